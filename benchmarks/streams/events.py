"""What an operator sees: anomalies found, alarms raised for nothing, and how late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.streams.vus import segments

__all__ = ["Found", "found", "lasting", "recall_at"]


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


def lasting(y: npt.ArrayLike, first: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which events are of faults that last, beyond the first ones; and how many do.

    A fault lasts if it is longer than `first` events. So many fill all places of anomalies in the
    window that it is compared with, and whether it is still seen then is another question than
    whether it was found.

    Examples
    --------
    >>> late, faults = lasting([0, 1, 1, 1, 1, 0, 1, 1, 0], 2)
    >>> late.astype(int).tolist(), faults
    ([0, 0, 0, 1, 1, 0, 0, 0, 0], 1)
    """
    y = np.asarray(y)
    late = np.zeros(len(y), dtype=np.bool_)
    faults = 0
    for start, end in segments(y == 1):
        late[start + first : end] = True
        faults += end - start > first
    return late, faults


def recall_at(
    y: npt.ArrayLike, score: npt.ArrayLike, false_alarms_per_event: float, false_share: float = 0.01
) -> float:
    """Return the share of segments that an alarm hits before there are too many false alarms.

    The threshold falls until runs of alarms that touch no labelled event are more than allowed,
    or alarms take more than `false_share` of the events that are not labelled: a run that begins
    long before a segment and never ends touches it, and is no alarm that anybody could use. Up to
    400 thresholds, denser where scores are high.

    Examples
    --------
    >>> y, score = [0, 0, 1, 0, 1, 0], [3.0, 0.0, 5.0, 0.0, 2.0, 0.0]
    >>> recall_at(y, score, 0.01), recall_at(y, score, 0.2, 0.3)    # none is allowed; one is
    (0.5, 1.0)
    >>> recall_at(y, [1.0] * 6, 0.2)    # one alarm without an end
    0.0
    """
    y, score = np.asarray(y) == 1, np.asarray(score, dtype=np.float64)
    parts = segments(y)
    if not parts:
        return float("nan")
    falling = np.sort(score)[::-1]
    at = np.unique(np.geomspace(1, len(y), 400).astype(int)) - 1
    peaks = np.array([score[a:b].max() for a, b in parts])
    labelled, normal = np.concatenate(([0], np.cumsum(y))), ~y
    best = 0.0
    for threshold in np.unique(falling[at])[::-1]:
        alarms = score >= threshold
        runs = np.array(segments(alarms))
        false = np.count_nonzero(labelled[runs[:, 1]] == labelled[runs[:, 0]])
        time = np.count_nonzero(alarms & normal)
        if false > false_alarms_per_event * len(y) or time > false_share * normal.sum():
            break
        best = float(np.mean(peaks >= threshold))
    return best
