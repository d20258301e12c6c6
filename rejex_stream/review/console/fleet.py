"""All sensors at once: measured rejection rate over expected, bucket by bucket of event time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from sqlite3 import Connection, Row
from typing import NamedTuple

import msgspec

from rejex_stream.rejection import RejectionBand
from rejex_stream.rejection.bounds import exact_rate_bound
from rejex_stream.review.queue.series import HOUR_MS

__all__ = ["Cell", "FleetRow", "Known", "Stretch", "fleet", "states"]

_FEWEST = 20


class Cell(msgspec.Struct, frozen=True):
    """One sensor over one bucket.

    Attributes
    ----------
    state
        ``none`` (no event), ``few`` (too few to say, or so many more than planned as chance could
        make of so few), ``ok``, ``over`` (more than half above R), ``bound`` (above the exact bound
        of its windows), ``under`` (less than a quarter of R), ``stuck`` (nearly nothing could be
        ranked, by a model that could). Above means by more than chance: the stream's variance
        inflation is allowed for.
    rate
        Rejected for ambiguity, over events judged by a band; ``None`` without any.
    """

    t_ms: int
    state: str
    events: int
    rejected: int
    rate: float | None
    expected: float | None


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sensor."""

    sensor_id: int
    sensor: str
    stream_key: str
    group: str
    pipeline: str
    last_ms: int
    epoch: int | None
    cells: list[Cell]

    def count(self, state: str) -> int:
        """Return how many cells are in a state."""
        return [cell.state for cell in self.cells].count(state)


@lru_cache(maxsize=1024)
def _bound(n: int, r: int, lower: int, upper: int, delta: float) -> float:
    return exact_rate_bound(RejectionBand(n, r, lower, upper, r / n, 32.0), delta)


class Known(NamedTuple):
    """What monitors and incidents say of streams, by (pipeline, stream key).

    Attributes
    ----------
    delta
        Probability with which the bounds may fail.
    inflation
        Of the rate's variance; 1 where it is not known.
    stuck, held
        Those with an alarm that they are stuck, and those whose reference stands still.
    """

    delta: float
    inflation: Mapping[tuple[str, str], float]
    stuck: Collection[tuple[str, str]]
    held: Collection[tuple[str, str]]


class Stretch(NamedTuple):
    """Buckets of event time, from `from_ms` on."""

    from_ms: int
    width_ms: int
    buckets: int

    @property
    def to_ms(self) -> int:
        """Where the last one ends."""
        return self.from_ms + self.width_ms * self.buckets


def fleet(
    connection: Connection,
    sensors: Sequence[Row],
    stretch: Stretch,
    known: Known,
) -> list[FleetRow]:
    """Return the cells of some sensors; O(hours with events), between full hours.

    A cell counts the minutes that begin in ``[t_ms, t_ms + width_ms)``: the same bounds as the
    page behind it.
    """
    marks = ",".join("?" * len(sensors))
    counted: dict[tuple[int, int], Row] = {
        (row["sensor_id"], row["bucket"]): row
        for row in connection.execute(
            f"SELECT sensor_id, (t_ms - ?) / ? AS bucket, {_SUMS} FROM {_table(stretch)} "
            f"WHERE t_ms >= ? AND t_ms < ? AND sensor_id IN ({marks}) GROUP BY 1, 2",
            (
                *(stretch.from_ms, stretch.width_ms, stretch.from_ms, stretch.to_ms),
                *(row["sensor_id"] for row in sensors),
            ),
        )
    }
    return [
        FleetRow(
            sensor_id=row["sensor_id"],
            sensor=row["sensor"],
            stream_key=row["stream_key"],
            group=row["grp"],
            pipeline=row["pipeline"],
            last_ms=row["last_ms"],
            epoch=row["epoch"],
            cells=[
                _cell(
                    counted.get((row["sensor_id"], i)),
                    stretch.from_ms + i * stretch.width_ms,
                    row,
                    known.delta,
                    known.inflation.get((row["pipeline"], row["stream_key"]), 1.0),
                )
                for i in range(stretch.buckets)
            ],
        )
        for row in sensors
    ]


def states(
    connection: Connection,
    sensors: Sequence[Row],
    stretch: Stretch,
    known: Known,
) -> dict[int, str]:
    """Return in which state each sensor is over a whole stretch, by its id, in one grouped query.

    ``silent`` (it was heard of, and has been quiet for two buckets and for five times as long as it
    usually is), ``stuck``, ``held``, or else as a cell's.
    """
    counted = {
        row["sensor_id"]: row
        for row in connection.execute(
            f"SELECT sensor_id, {_SUMS} FROM {_table(stretch)} "
            "WHERE t_ms >= ? AND t_ms < ? GROUP BY 1",
            (stretch.from_ms, stretch.to_ms),
        )
    }
    newest = max((row["last_ms"] for row in sensors), default=0)
    found = {}
    for row in sensors:
        key, own = (row["pipeline"], row["stream_key"]), counted.get(row["sensor_id"])
        events = own["events"] if own is not None else 0
        usual = stretch.width_ms * stretch.buckets / events if events else 0.0
        cell = _cell(own, stretch.from_ms, row, known.delta, known.inflation.get(key, 1.0))
        if newest - row["last_ms"] > max(2 * stretch.width_ms, 5 * usual):
            state = "silent"
        elif key in known.stuck or cell.state == "stuck":
            state = "stuck"
        else:
            state = "held" if key in known.held else cell.state
        found[row["sensor_id"]] = state
    return found


_SUMS = (
    "sum(normal + anomaly + rejected) AS events, sum(rejected) AS rejected, "
    "sum(banded) AS banded, sum(ambiguous) AS ambiguous, sum(expected) AS expected"
)


def _table(stretch: Stretch) -> str:
    return "minute" if stretch.from_ms % HOUR_MS or stretch.width_ms % HOUR_MS else "hour"


def _cell(found: Row | None, t_ms: int, sensor: Row, delta: float, inflation: float) -> Cell:
    if found is None or not found["events"]:
        return Cell(t_ms, "none", 0, 0, None, None)
    events, banded = found["events"], found["banded"]
    unranked = found["rejected"] - found["ambiguous"]
    if sensor["band_lower"] is not None and events >= _FEWEST and unranked > events / 2:
        return Cell(t_ms, "stuck", events, found["rejected"], None, None)
    if not banded:
        return Cell(t_ms, "few", events, found["rejected"], None, None)
    rate, expected = found["ambiguous"] / banded, found["expected"] / banded
    effective = banded / inflation
    low = rate - 2.58 * math.sqrt(rate * (1 - rate) / effective)
    state = "ok"
    if banded < _FEWEST:
        state = "few"
    elif sensor["band_lower"] is not None and low > _bound(
        sensor["window_len"],
        sensor["n_anomalies"],
        sensor["band_lower"],
        sensor["band_upper"],
        delta,
    ):
        state = "bound"
    elif rate > 1.5 * expected:
        state = "over" if low > expected else "few"  # not as planned, and maybe chance
    elif rate < expected / 4 and effective * expected > 8:
        state = "under"
    return Cell(t_ms, state, events, found["rejected"], rate, expected)
