"""``plan --from`` and ``plan --history``: γ asked of what was measured already, without labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rejex_stream.cli.commands.score import print_said
from rejex_stream.cli.progress import counting
from rejex_stream.cli.show import number, print_facts, share
from rejex_stream.config import load_config
from rejex_stream.config.assembly import engine_spec, history_of
from rejex_stream.decode import Decoder, decode_records
from rejex_stream.detectors import DEFAULT, make_detector
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.plan.gamma import (
    HIGH,
    KNOWN_SETS,
    MOST,
    Contamination,
    contamination,
    rows_of,
)
from rejex_stream.tables import Table, open_table
from rejex_stream.types import FloatArray, Reading, Record

__all__ = ["Asked", "ask_history", "ask_table", "print_found"]

_MOST_RECORDS = 200_000
"""Of topics, so many of the newest are read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a history says of γ.

    Attributes
    ----------
    history
        What was read.
    rows
        Rows of features that it makes, of which some were looked at.
    contamination
        The answer.
    configured
        γ of the config, where there is one.
    """

    history: str
    rows: int
    contamination: Contamination
    configured: float | None = None

    @property
    def gamma(self) -> float:
        """γ to plan with: the median, to the two digits that it is worth."""
        assert self.contamination.median is not None
        return float(f"{self.contamination.median:.2g}")


def ask_history(file: Path | None, config: Path | None) -> Asked:
    """Ask a table, or the input of a config.

    Without a config the columns are those of the default detector.
    """
    if file is not None:
        table = open_table(file)
        print_said(table)
        return ask_table(table, file.name)
    assert config is not None
    found = load_config(config)
    spec = engine_spec(found)
    decoder, records = history_of(found, _MOST_RECORDS)
    rows, count = _rows(decoder, records, spec.features, None)
    name = found.input.path or ", ".join(found.input.topics)
    return Asked(name, count, contamination(rows), spec.policy.contamination)


def ask_table(table: Table, name: str) -> Asked:
    """Ask a table that is understood already, by the columns of the default detector."""
    preset = getattr(make_detector(DEFAULT), "preset", None)
    features = FeatureSpec(table.guess.channels, preset=preset, flags=table.guess.flags)
    rows, count = _rows(table.decoder(), table.records(), features, table.n_rows)
    return Asked(name, count, contamination(rows))


def _rows(
    decoder: Decoder, records: Iterable[Record], features: FeatureSpec, total: int | None
) -> tuple[FloatArray, int]:
    with counting(total, "records") as progress:

        def readings() -> Iterable[Reading]:
            for number_read, record in enumerate(records, 1):
                for item in decode_records(decoder, [record])[1]:
                    if isinstance(item, Reading):
                        yield item
                if number_read % 1000 == 0:
                    progress(number_read)

        rows, count = rows_of(readings(), features)
    if not count:
        raise ConfigError(
            "the history holds no row that can be scored, so it says nothing of γ: look at it with "
            "`rejex-stream score` or `doctor`, or give --contamination."
        )
    return rows, count


def print_found(asked: Asked) -> None:
    """Print the posterior, or why there is none."""
    found = asked.contamination
    facts = []
    if found.refusal is None:
        least, most = found.interval
        sure = 1 - 2 / (KNOWN_SETS + 1)
        facts += [
            ("median", share(found.median)),
            (
                f"{sure:.0%} interval",
                f"{share(least)} to {share(most)}: all that can be told without labels, if these "
                f"data are like the {KNOWN_SETS} public tables that showed how wrong a median is",
            ),
        ]
    facts.append(("rows looked at", f"{found.rows:,} of {asked.rows:,}"))
    if found.agreement is not None:
        common = f"{found.agreement:.0%} of the variance of their ranks in common"
        facts.append(("detectors", f"{', '.join(found.detectors)}; {common}"))
    if asked.configured is not None and found.refusal is None:
        inside = least <= asked.configured <= most
        where = "inside the interval" if inside else "outside the interval"
        facts.append(("in the config", f"{share(asked.configured)}, {where}"))
    if found.refusal is None:
        facts.append(
            (
                "believed beforehand",
                f"hardly more than {share(HIGH)}, and never {share(MOST)}: where more rows are "
                "anomalies, the median lies below the truth",
            )
        )
        facts.append(
            (
                "by the model alone",
                f"{share(found.low)} to {share(found.high)}, {found.level:.0%}; it counts how sure "
                "the model is and not how wrong, and held the truth in 9 of those tables",
            )
        )
    print_facts(facts, title=f"γ of {asked.history}, asked of the data without labels")
    if found.refusal is not None:
        print(f"{found.refusal[0].upper()}{found.refusal[1:]} Give --contamination.")
        return
    print(f"Planned with γ = {number(asked.gamma)}, the median.\n")
