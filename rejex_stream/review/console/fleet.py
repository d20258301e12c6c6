"""All sensors at once: measured rejection rate over expected, bucket by bucket of event time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from sqlite3 import Connection, Row

import msgspec

from rejex_stream.rejection import RejectionBand
from rejex_stream.rejection.bounds import exact_rate_bound

__all__ = ["Cell", "FleetRow", "fleet"]

_FEWEST = 20


class Cell(msgspec.Struct, frozen=True):
    """One sensor over one bucket.

    Attributes
    ----------
    state
        ``none`` (no event), ``few`` (too few to say), ``ok``, ``over`` (more than half above R),
        ``bound`` (above the exact bound of its windows), ``under`` (less than a quarter of R).
        Above means by more than chance: the stream's variance inflation is allowed for.
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


def fleet(
    connection: Connection,
    from_ms: int,
    bucket_ms: int,
    buckets: int,
    *,
    delta: float,
    inflation: Mapping[tuple[str, str], float] | None = None,
) -> list[FleetRow]:
    """Return every sensor with `buckets` cells from `from_ms` on; O(minutes with events).

    A cell counts the minutes that begin in ``[t_ms, t_ms + bucket_ms)``: the same bounds as the
    page behind it.

    Parameters
    ----------
    inflation
        Variance inflation by (pipeline, stream key), from the monitors; 1 where it is not known.
    """
    counted: dict[tuple[int, int], Row] = {
        (row["sensor_id"], row["bucket"]): row
        for row in connection.execute(
            "SELECT sensor_id, (t_ms - :from) / :width AS bucket, "
            "sum(normal + anomaly + rejected) AS events, sum(rejected) AS rejected, "
            "sum(banded) AS banded, sum(ambiguous) AS ambiguous, sum(expected) AS expected "
            "FROM minute WHERE t_ms >= :from AND t_ms < :to GROUP BY 1, 2",
            {"from": from_ms, "width": bucket_ms, "to": from_ms + buckets * bucket_ms},
        )
    }
    known = inflation or {}
    rows = connection.execute(
        "SELECT * FROM sensor WHERE last_ms IS NOT NULL ORDER BY pipeline, grp, sensor"
    ).fetchall()
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
                    from_ms + i * bucket_ms,
                    row,
                    delta,
                    known.get((row["pipeline"], row["stream_key"]), 1.0),
                )
                for i in range(buckets)
            ],
        )
        for row in rows
    ]


def _cell(found: Row | None, t_ms: int, sensor: Row, delta: float, inflation: float) -> Cell:
    if found is None or not found["events"]:
        return Cell(t_ms, "none", 0, 0, None, None)
    events, banded = found["events"], found["banded"]
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
    elif rate > 1.5 * expected and low > expected:
        state = "over"
    elif rate < expected / 4 and effective * expected > 8:
        state = "under"
    return Cell(t_ms, state, events, found["rejected"], rate, expected)
