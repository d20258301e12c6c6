"""What an operator sees: anomalies found, alarms raised for nothing, and how late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.streams.vus import segments

__all__ = ["Found", "found"]


class Found(NamedTuple):
    """Segments of anomalies against the accepted anomaly verdicts; no point adjustment.

    Attributes
    ----------
    events
        Labelled segments.
    alarmed
        Of them, those with an accepted anomaly in them.
    alarmed_or_reviewed
        Those with an accepted anomaly or a rejected event in them.
    false_alarms
        Runs of accepted anomalies that touch no labelled event.
    delays
        Events from the start of an alarmed segment to its first accepted anomaly.
    """

    events: int
    alarmed: int
    alarmed_or_reviewed: int
    false_alarms: int
    delays: tuple[int, ...]


def found(verdicts: npt.ArrayLike, y: npt.ArrayLike) -> Found:
    """Count for verdicts (0, 1, -1) and labels of shape (n,).

    Examples
    --------
    >>> found([0, 1, 0, 0, 1, 1, 0, -1], [0, 0, 0, 1, 1, 1, 0, 1])
    Found(events=2, alarmed=1, alarmed_or_reviewed=2, false_alarms=1, delays=(1,))
    """
    verdicts, y = np.asarray(verdicts), np.asarray(y)
    alarm = verdicts == 1
    alarmed = reviewed = 0
    delays = []
    for start, end in segments(y == 1):
        hits = np.flatnonzero(alarm[start:end])
        if len(hits):
            alarmed += 1
            delays.append(int(hits[0]))
        reviewed += bool(len(hits) or (verdicts[start:end] == -1).any())
    false = sum(1 for start, end in segments(alarm) if not (y[start:end] == 1).any())
    return Found(len(segments(y == 1)), alarmed, reviewed, false, tuple(delays))
