"""Labelled episodes that look like this one: what people said about them, and how far off they are.

Distances are between a few plain features, each divided by a scale of its own, so that a reader can
see *why* two cases are alike. Brute force: 50,000 labelled episodes take a few milliseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rejex_stream.encode import decode_review
from rejex_stream.review.storage import Connection, Row
from rejex_stream.types import FloatArray

__all__ = ["ChannelDeviation", "Similar", "deviations", "features", "remember", "similar"]

# Name, and the difference that counts as 1.
_SCALES = (
    ("length", 1.0),
    ("number of events", 1.0),
    ("place in the band", 0.5),
    ("hour of the day", 2.0),  # sine and cosine: noon and midnight are 1 apart
    ("hour of the day", 2.0),
)
_CHANNEL_SCALE = 0.5  # of log(1 + robust standard deviations): what the channels did counts most
_CHANNELS = 16


class ChannelDeviation(NamedTuple):
    """How far one channel is from its own recent past, in robust standard deviations."""

    channel: str
    z: float
    column: int


class Similar(NamedTuple):
    """One labelled episode near another one."""

    episode_id: str
    sensor: str
    verdict: str
    reviewer: str
    note: str
    distance: float
    alike_in: tuple[str, ...]
    start_ms: int
    end_ms: int
    sensor_id: int


def deviations(
    connection: Connection,
    sensor_id: int,
    channels: Sequence[str],
    start_ms: int,
    end_ms: int,
    *,
    past: int = 240,
) -> tuple[ChannelDeviation, ...]:
    """Return how far each channel is from the readings before the episode, farthest first.

    The median of the episode against median and median absolute deviation of the last `past`
    readings; a channel without at least eight of them is left out.
    """
    width = len(channels)
    if not width:
        return ()
    before = _table(
        connection.execute(
            "SELECT channel_values FROM point WHERE sensor_id = ? AND t_ms < ? "
            "AND channel_values IS NOT NULL ORDER BY t_ms DESC LIMIT ?",
            (sensor_id, start_ms, past),
        ).fetchall(),
        width,
    )
    inside = _table(
        connection.execute(
            "SELECT channel_values FROM point WHERE sensor_id = ? AND t_ms BETWEEN ? AND ? "
            "AND channel_values IS NOT NULL LIMIT 2000",
            (sensor_id, start_ms, end_ms),
        ).fetchall(),
        width,
    )
    found = []
    for index, channel in enumerate(channels):
        old = before[:, index][np.isfinite(before[:, index])]
        new = inside[:, index][np.isfinite(inside[:, index])]
        if len(old) < 8 or not len(new):
            continue
        middle = float(np.median(old))
        scale = 1.4826 * float(np.median(np.abs(old - middle))) or float(np.std(old))
        if scale <= 0 or not math.isfinite(scale):
            continue
        # The most deviating reading counts: an episode may start before it gets interesting.
        z = (new - middle) / scale
        found.append(ChannelDeviation(channel, float(z[np.abs(z).argmax()]), index))
    return tuple(sorted(found, key=lambda item: -abs(item.z)))


def _table(rows: Sequence[Row], width: int) -> FloatArray:
    blobs = [row[0] for row in rows if len(row[0]) == 8 * width]
    return np.frombuffer(b"".join(blobs), dtype="<f8").reshape(len(blobs), width)


def features(connection: Connection, episode: str) -> FloatArray:
    """Return the features of an episode, shape (5 + 16,)."""
    row = connection.execute(
        "SELECT e.*, s.channels FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE episode_id = ?",
        (episode,),
    ).fetchone()
    item = connection.execute(
        "SELECT item FROM event WHERE episode_id = ? ORDER BY confidence IS NULL, confidence "
        "LIMIT 1",
        (episode,),
    ).fetchone()
    verdict = decode_review(item[0]).verdict
    place = 0.5
    if verdict.rank is not None and verdict.band_lower is not None:
        width = (verdict.band_upper or 0) - verdict.band_lower + 1
        place = (verdict.rank - verdict.band_lower) / max(1, width)
    hour = 2 * math.pi * (row["start_ms"] % 86_400_000) / 86_400_000
    vector = [
        math.log1p((row["end_ms"] - row["start_ms"]) / 1000),
        math.log1p(row["n_events"]),
        place,
        math.sin(hour),
        math.cos(hour),
    ]
    channels = tuple(_names(row["channels"]))
    signed = [0.0] * _CHANNELS
    found = deviations(connection, row["sensor_id"], channels, row["start_ms"], row["end_ms"])
    for deviation in found:
        if deviation.column < _CHANNELS:
            # Far out, the sign matters more than the size.
            signed[deviation.column] = math.copysign(math.log1p(abs(deviation.z)), deviation.z)
    return np.array(vector + signed)


def _names(channels: str) -> list[str]:
    names: list[str] = json.loads(channels)
    return names


def remember(connection: Connection, episode: str) -> None:
    """Store the features of an episode that was just labelled."""
    connection.execute(
        "INSERT INTO feature VALUES (?, ?) "
        "ON CONFLICT (episode_id) DO UPDATE SET vector = excluded.vector",
        (episode, features(connection, episode).tobytes()),
    )


def similar(connection: Connection, episode: str, *, most: int = 4) -> tuple[Similar, ...]:
    """Return the nearest labelled episodes of sensors with the same channels, nearest first."""
    own = connection.execute(
        "SELECT s.channels FROM episode e JOIN sensor s USING (sensor_id) WHERE episode_id = ?",
        (episode,),
    ).fetchone()
    rows = connection.execute(
        "SELECT f.episode_id, f.vector FROM feature f JOIN episode e USING (episode_id) "
        "JOIN sensor s USING (sensor_id) WHERE e.status = 'done' AND e.verdict IS NOT NULL "
        "AND s.channels = ? AND f.episode_id <> ? ORDER BY e.decided_ms DESC LIMIT 50000",
        (own["channels"], episode),
    ).fetchall()
    if not rows:
        return ()
    width = len(_SCALES) + _CHANNELS
    table = np.frombuffer(b"".join(row["vector"] for row in rows), dtype="<f8")
    scale = np.array([size for _, size in _SCALES] + [_CHANNEL_SCALE] * _CHANNELS)
    apart = (table.reshape(len(rows), width) - features(connection, episode)) / scale
    distance = np.sqrt((apart**2).mean(axis=1))
    names = [name for name, _ in _SCALES] + (_names(own["channels"]) + [""] * _CHANNELS)[:_CHANNELS]
    found = []
    for index in np.argsort(distance, kind="stable")[:most]:
        case = connection.execute(
            "SELECT e.episode_id, s.sensor, e.verdict, e.start_ms, e.end_ms, e.sensor_id, "
            "(SELECT reviewer FROM label l WHERE l.episode_id = e.episode_id AND l.kind = 'label' "
            " ORDER BY label_seq DESC LIMIT 1) AS reviewer "
            "FROM episode e JOIN sensor s USING (sensor_id) WHERE episode_id = ?",
            (rows[index]["episode_id"],),
        ).fetchone()
        order = np.argsort(np.abs(apart[index]), kind="stable")
        alike = list(dict.fromkeys(names[i] for i in order if names[i]))[:2]
        found.append(
            Similar(
                case["episode_id"],
                case["sensor"],
                case["verdict"],
                case["reviewer"] or "",
                "",
                float(distance[index]),
                tuple(alike),
                case["start_ms"],
                case["end_ms"],
                case["sensor_id"],
            )
        )
    return tuple(found)
