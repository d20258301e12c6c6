"""A whole pipeline as one Python object: rows in, verdicts and incidents out, no broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import count, islice
from pathlib import Path
from typing import Any

from rejex_stream.config.assembly.edges import file_decoder, json_decoder, open_source, records_of
from rejex_stream.config.assembly.running import Judging
from rejex_stream.config.load import check_sections, load_config
from rejex_stream.config.pipeline_config import Config
from rejex_stream.errors import ConfigError
from rejex_stream.run.partition import PartitionState
from rejex_stream.settings import render
from rejex_stream.types import Incident, Outcome, Partition, Position, Record

__all__ = ["Pipeline"]

_BATCH = 5_000


class Pipeline:
    """A pipeline that a Python program feeds: the verdicts are those of ``rejex-stream run``.

    Parameters
    ----------
    config
        A config file, or a :class:`~rejex_stream.config.Config`.
    **sections
        Instead of `config`: its sections, as in a file. ``input.path`` is only needed for
        :meth:`process_file`.

    Attributes
    ----------
    config
        What was given, checked, with the defaults and what the environment overrides.

    Raises
    ------
    ConfigError
        With all problems of the config.

    Notes
    -----
    Fits run where they are due, in the caller's thread. Nothing is written and no state is kept
    beyond the object; it is not thread-safe. Batches of any size give the same verdicts.

    Examples
    --------
    >>> pipeline = Pipeline(
    ...     input={"channels": ["flow"], "time": "at", "sensor": "meter"},
    ...     rejection={"contamination": 0.1, "window": 100, "tolerance": 4},
    ... )
    >>> hours = [{"at": 1_700_000_000 + 3600 * i, "meter": "m1", "flow": i % 7} for i in range(300)]
    >>> outcomes = pipeline.process(hours)
    >>> str(outcomes[0].verdict.label), str(outcomes[0].verdict.reason)
    ('rejected', 'warm_up')
    >>> (broken,) = pipeline.process([{"at": "yesterday", "meter": "m1", "flow": 3.0}])
    >>> broken.verdict is None, broken.invalid.stage
    (True, 'validate')
    """

    def __init__(
        self, config: str | Path | Config | None = None, /, **sections: Mapping[str, Any]
    ) -> None:
        if (config is None) == (not sections):
            raise ConfigError(
                "give either a config file or its sections, e.g. input={...}, rejection={...}."
            )
        if config is None:
            rows = {"path": "-", "format": "jsonl"}  # which validates, and is never read
            given = {**sections, "input": rows | dict(sections.get("input", {}))}
            checked, problems = check_sections(given, name="python")
            if checked is None:
                raise ConfigError(render("Pipeline", problems))
            config = checked
        self.config = config if isinstance(config, Config) else load_config(config)
        self._judging = Judging(self.config)
        self._partition = Partition(self.config.pipeline.name, 0)
        self._rows = self._judging.state(self._partition, json_decoder(self.config))
        self._offsets = count()
        self._incidents: dict[str, Incident] = {}

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All incidents so far, as they stand, in the order in which they opened."""
        return tuple(self._incidents.values())

    def process(self, rows: Iterable[Mapping[str, Any]]) -> list[Outcome]:
        """Judge rows in order; each outcome holds a verdict, or why the row is invalid.

        A row maps field names to numbers, texts, times or ``None``; a nan is missing. Rows that
        ``input.reorder_s`` holds back come with a later call. Some 50 µs a row.
        """
        records = [
            Record(Position(*self._partition, next(self._offsets)), None, _as_json(row))
            for row in rows
        ]
        return self._judge(self._rows, records)

    def process_file(self) -> Iterator[Outcome]:
        """Judge the records of ``input.path`` from its first to its last.

        Raises
        ------
        ConfigError
            If the config names no file.
        """
        if self.config.input.kind != "file" or self.config.input.path in (None, "-"):
            raise ConfigError("input.path is missing: name the file to judge.")
        source = open_source(self.config.without_follow())
        state = self._judging.state(source.partition, file_decoder(self.config, source))
        records = records_of(source)
        while batch := list(islice(records, _BATCH)):
            yield from self._judge(state, batch)

    def _judge(self, state: PartitionState, records: Sequence[Record]) -> list[Outcome]:
        outcomes = list(state.process(records))
        self._incidents |= {now.id: now for outcome in outcomes for now in outcome.incidents}
        return outcomes


def _as_json(row: Mapping[str, Any]) -> bytes:
    present = {name: None if value != value else value for name, value in row.items()}  # noqa: PLR0124 - nan
    return json.dumps(present, default=_plain).encode()


def _plain(value: Any) -> object:  # noqa: ANN401
    return value.isoformat() if isinstance(value, date) else value.item()
