"""A pattern that people called normal again and again, and what would mute it.

Nobody is asked less by what stands here: the console shows the command, with what it would cover.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from rejex_stream.encode import decode_review
from rejex_stream.review.queue.labels import OF_KNOWN
from rejex_stream.review.queue.listing import EpisodeRow
from rejex_stream.types import FloatArray

__all__ = ["LEAST", "Pattern", "Side", "known_pattern"]

LEAST = 3
"""So many episodes, called normal, are a pattern."""
_FARTHEST = 3.0  # usual deviations that they lie apart at most, in any channel
_WIDER = 0.1  # usual deviations that the box is wider than they are, on either side
_DAYS = 30
_MOST = 200  # events of an episode that are looked at, and answered episodes
_RECENT = 1_000


class Side(NamedTuple):
    """A side of the box: a channel, its least and its largest value."""

    channel: str
    low: float
    high: float


class Pattern(NamedTuple):
    """What a mute would cover.

    Attributes
    ----------
    n_episodes
        How many episodes it is made of, all called normal.
    sides
        The box around their readings.
    n_inside, n_readings
        Of the sensor's newest readings that are known here, how many lie in it.
    command
        What to type; it holds for 30 days from the end of the episode.
    """

    n_episodes: int
    sides: tuple[Side, ...]
    n_inside: int
    n_readings: int
    command: str


def known_pattern(connection: Connection, row: EpisodeRow) -> Pattern | None:
    """Return the pattern of an episode that was called normal; ``None`` where there is none.

    It and the :data:`LEAST` - 1 others of its sensor that lie nearest make it, if no channel of
    them is three usual deviations apart (1.48 median absolute deviations of the newest readings),
    and nothing that was called an anomaly lies in their box. O(200 episodes).
    """
    asked = not row.blind and row.verdict == "normal" and row.why != "status"
    if not asked or not row.channels or _is_known(connection, row.episode_id):
        return None
    width = len(row.channels)
    recent = _readings(connection, row.sensor_id, width)
    ours = _events(connection, [row.episode_id], width)
    usual = _usual(recent)
    if not len(ours) or usual is None:
        return None
    middle = np.median(ours, axis=0)
    others = [_events(connection, [one], width) for one in _answered(connection, row, "normal")]
    near = sorted(
        (float(np.max(np.abs(np.median(one, axis=0) - middle) / usual)), at)
        for at, one in enumerate(others)
        if len(one)
    )
    if len(near) < LEAST - 1:
        return None
    together = np.concatenate([ours, *(others[at] for _, at in near[: LEAST - 1])])
    low, high = together.min(axis=0), together.max(axis=0)
    if np.any((high - low) / usual > _FARTHEST):
        return None
    low, high = low - _WIDER * usual, high + _WIDER * usual
    sides = tuple(
        Side(channel, _rounded(a, down=True), _rounded(b, down=False))
        for channel, a, b in zip(row.channels, low.tolist(), high.tolist(), strict=True)
    )
    anomalies = _events(connection, _answered(connection, row, "anomaly"), width)
    if _inside(anomalies, sides):
        return None
    return Pattern(LEAST, sides, _inside(recent, sides), len(recent), _command(row, sides))


def _is_known(connection: Connection, episode: str) -> bool:
    query = f"SELECT 1 FROM episode e WHERE episode_id = ? AND {OF_KNOWN}"
    return connection.execute(query, (episode,)).fetchone() is not None


def _answered(connection: Connection, row: EpisodeRow, verdict: str) -> list[str]:
    found = connection.execute(
        "SELECT episode_id FROM episode e WHERE sensor_id = ? AND episode_id <> ? AND verdict = ? "
        f"AND why <> 'status' AND NOT {OF_KNOWN} ORDER BY start_ms DESC LIMIT ?",
        (row.sensor_id, row.episode_id, verdict, _MOST),
    )
    return [episode for (episode,) in found]


def _events(connection: Connection, episodes: Sequence[str], width: int) -> FloatArray:
    """Return the whole readings of the events of episodes, shape (m, width)."""
    rows = [
        decode_review(item).values
        for episode in episodes
        for (item,) in connection.execute(
            "SELECT item FROM event WHERE episode_id = ? ORDER BY event_id LIMIT ?",
            (episode, _MOST),
        )
    ]
    whole = [row for row in rows if len(row) == width and None not in row]
    return np.array(whole, dtype=np.float64).reshape(len(whole), width)


def _readings(connection: Connection, sensor_id: int, width: int) -> FloatArray:
    found = connection.execute(
        "SELECT channel_values FROM point WHERE sensor_id = ? AND channel_values IS NOT NULL "
        "ORDER BY t_ms DESC LIMIT ?",
        (sensor_id, _RECENT),
    )
    blobs = [blob for (blob,) in found if len(blob) == 8 * width]
    table: FloatArray = np.frombuffer(b"".join(blobs), dtype="<f8").reshape(len(blobs), width)
    known: FloatArray = table[np.isfinite(table).all(axis=1)]
    return known


def _usual(recent: FloatArray) -> FloatArray | None:
    """Return the usual deviation of each channel; ``None`` where too little is known of any."""
    if len(recent) < 8:
        return None
    spread = 1.4826 * np.median(np.abs(recent - np.median(recent, axis=0)), axis=0)
    spread = np.where(spread > 0, spread, recent.std(axis=0))
    return spread if np.all(spread > 0) and np.isfinite(spread).all() else None


def _inside(readings: FloatArray, sides: Sequence[Side]) -> int:
    low = np.array([side.low for side in sides])
    high = np.array([side.high for side in sides])
    return int(np.count_nonzero(np.all((low <= readings) & (readings <= high), axis=1)))


def _rounded(value: float, *, down: bool) -> float:
    """Return it with four digits, so that nothing falls out of the box."""
    if value == 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    return float(f"{(math.floor if down else math.ceil)(value / unit) * unit:.6g}")


def _command(row: EpisodeRow, sides: Sequence[Side]) -> str:
    begin = datetime.fromtimestamp(row.end_ms // 1000, UTC)
    words = ["rejex-stream", "control", "mute", "pipeline.toml", row.stream_key]
    for side in sides:
        words += ["--channel", f"{side.channel}={side.low!r}:{side.high!r}"]
    words += ["--from", f"{begin:%Y-%m-%dT%H:%M:%SZ}"]
    words += ["--until", f"{begin + timedelta(days=_DAYS):%Y-%m-%dT%H:%M:%SZ}"]
    return shlex.join([*words, "--note", f"as {row.episode_id}: normal"])
