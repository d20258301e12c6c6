"""What a report is about: the readings of a run with their verdicts, and what is known of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rejex_stream.config import Config
from rejex_stream.config.assembly import (
    file_decoder,
    file_places,
    monitor_config,
    open_source,
    records_of,
)
from rejex_stream.decode import decode_records
from rejex_stream.encode import decode_dead_letter, decode_incidents, decode_verdict
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.monitor import MonitorConfig
from rejex_stream.settings import toml
from rejex_stream.types import Incident, Invalid, Reading, Record, Verdict

__all__ = ["Channel", "Fault", "Run", "read_run"]

_NEWEST = 100_000
# They say nothing about a verdict, and may hold what not everybody may read.
_KEPT_BACK = frozenset(("kafka", "schema_registry", "alerts", "review"))


class Channel(NamedTuple):
    """How a channel is shown."""

    title: str
    unit: str = ""


class Fault(NamedTuple):
    """A stretch of one sensor in which something is known to be wrong.

    Attributes
    ----------
    sensor
        Whose readings.
    first_ms, last_ms
        Event times of its first and last reading, UTC, both inclusive.
    title
        What was wrong, for people.
    settling_ms
        For so long afterwards the features still contain it: an anomaly there is no false alarm.
    """

    sensor: str
    first_ms: int
    last_ms: int
    title: str
    settling_ms: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one pipeline judged, in the order in which it did."""

    name: str
    title: str
    about: str
    channels: tuple[Channel, ...]
    events: tuple[tuple[Reading, Verdict], ...]
    monitors: MonitorConfig
    dead_letters: tuple[tuple[Record, Invalid], ...] = ()
    faults: tuple[Fault, ...] = ()
    budget: float | None = None  # planned share of rejected; None: a tolerance was given
    settings: str = ""
    left_out: int = 0  # older events
    incidents: tuple[Incident, ...] = ()


def read_run(config: Config, *, newest: int = _NEWEST) -> Run:
    """Read back the newest events of a pipeline over a file; O(length of input and output)."""
    if config.input.kind == "kafka":
        raise ConfigError(
            "this pipeline reads topics, and a report is made of files: see it live with "
            "rejex-stream review serve --config, or give input.path a file of the same records."
        )
    places = file_places(config)
    if "-" in (config.input.path, places.verdicts, places.deadletter):
        raise ConfigError(
            "this pipeline reads standard input or writes to standard output, which cannot be read "
            "again: give input.path, output.verdicts and output.deadletter files."
        )
    kept: deque[bytes] = deque(maxlen=newest)
    written = 0
    for line in _lines(Path(places.verdicts)):
        kept.append(line)
        written += 1
    if not kept:
        raise ConnectorError(
            f"{places.verdicts} holds no verdict: run the pipeline first, with rejex-stream run."
        )
    verdicts = [decode_verdict(line) for line in kept]
    wanted = {verdict.position for verdict in verdicts}
    offsets = {position.offset for position in wanted}
    source = open_source(config.model_copy(update={"input": _not_followed(config)}))
    decoder = file_decoder(config, source)
    records = (r for r in records_of(source) if r.position.offset in offsets)
    decoded = (item for record in records for item in decode_records(decoder, [record])[1])
    readings = {
        item.position: item
        for item in decoded
        if isinstance(item, Reading) and item.position in wanted
    }
    lost = next(
        (verdict.position for verdict in verdicts if verdict.position not in readings), None
    )
    if lost is not None:
        raise ConnectorError(
            f"{config.input.path} does not hold the reading {lost} that {places.verdicts} judges: "
            "give the input that was judged, or run the pipeline anew."
        )
    dead = deque(_lines(Path(places.deadletter)), maxlen=newest)
    budget = config.rejection.review_budget
    return Run(
        name=config.pipeline.name,
        title=config.pipeline.name,
        about=f"{Path(config.input.path or '').name}, judged by {config.detector.name}.",
        channels=tuple(Channel(name) for name in config.input.mapping().channel_names),
        events=tuple((readings[verdict.position], verdict) for verdict in verdicts),
        monitors=monitor_config(config),
        dead_letters=tuple(map(decode_dead_letter, dead)),
        budget=None if budget is None else budget.share,
        settings=_as_toml(config),
        left_out=written - len(verdicts),
        incidents=tuple(_incidents(Path(places.incidents))),
    )


def _incidents(path: Path) -> Iterable[Incident]:
    """Return incidents as they stand, in the order in which they opened."""
    found: dict[str, Incident] = {}
    for told in map(decode_incidents, _lines(path)):
        if isinstance(told, Incident):
            found[told.id] = told
    return found.values()


def _not_followed(config: Config) -> object:
    """Return the input section of a file that ends."""
    return config.input.model_copy(update={"follow": False})


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that was made only if there was something to write."""
    try:
        with path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConnectorError(f"cannot read {path}: {error.strerror}.") from error


def _as_toml(config: Config) -> str:
    """Write what the config sets and a verdict may depend on."""
    given = config.model_dump(mode="json", exclude_unset=True)
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {toml(value)}" for key, value in section.items())])
        for name, section in given.items()
        if name not in _KEPT_BACK
    )
