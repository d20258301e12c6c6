"""River's ADWIN on the scores, as an option: simple, well known, and a heuristic here.

ADWIN's bound assumes independent values. On autocorrelated scores it raises thousands of alarms per
million events (benchmarks/results/monitors.md); on independent ones it is quick and quiet.

River offers no way to save an ADWIN, so it is made restorable: its recent input is kept, and it is
rebuilt from the second half of that input whenever there are 20,000 values. It therefore remembers
at least the last 10,000 scores, and a restored monitor goes on exactly.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np

from rejex_stream.monitor.alarm import Alternative

__all__ = ["AdwinDetector", "AdwinState"]

_KEEP = 10_000


class AdwinState(msgspec.Struct):
    """The input since the last rebuild, as little-endian doubles; at most 160 kB."""

    scores: bytes


class AdwinDetector:
    """ADWIN over the scores of one stream.

    Parameters
    ----------
    delta
        ADWIN's confidence value.

    Examples
    --------
    >>> import random
    >>> rng = random.Random(3)
    >>> adwin = AdwinDetector(0.002)
    >>> any(adwin.update(rng.gauss(0, 1)) for _ in range(3_000))
    False
    >>> alarms = (adwin.update(rng.gauss(1, 1)) for _ in range(1_000))
    >>> str(next(alarm for alarm in alarms if alarm))
    'higher_scores'
    """

    __slots__ = ("_adwin", "_delta", "_scores")

    def __init__(self, delta: float) -> None:
        self._delta = delta
        self.reset()

    def reset(self) -> None:
        """Forget everything, as at a model swap."""
        self._adwin: Any = _new(self._delta)
        self._scores = array("d")

    def update(self, score: float) -> Alternative | None:
        """Count one finite score; return in which direction the mean moved, if ADWIN saw it."""
        if len(self._scores) >= 2 * _KEEP:
            self._rebuild(self._scores[_KEEP:])
        before = self._adwin.estimation
        self._scores.append(score)
        self._adwin.update(score)
        if not self._adwin.drift_detected:
            return None
        # What ADWIN drops is older: the mean of what it keeps has moved towards the new values.
        up = self._adwin.estimation > before
        return Alternative.HIGHER_SCORES if up else Alternative.LOWER_SCORES

    def _rebuild(self, scores: array[float]) -> None:
        self._adwin = _new(self._delta)
        self._scores = scores
        for score in scores:
            self._adwin.update(score)

    @property
    def state(self) -> AdwinState:
        """All that has to be kept."""
        values = np.frombuffer(self._scores, dtype=np.float64) if self._scores else np.empty(0)
        return AdwinState(values.astype("<f8").tobytes())

    def restore(self, state: AdwinState) -> None:
        """Go on from a state, by giving ADWIN its recent input again: about 5 ms."""
        values = np.frombuffer(state.scores, dtype="<f8").astype(np.float64)
        self._rebuild(array("d", values.tobytes()))


def _new(delta: float) -> Any:  # noqa: ANN401 - River is not typed
    from river.drift import ADWIN  # takes a second to import, and few pipelines want it

    return ADWIN(delta=delta)  # type: ignore[no-untyped-call]
