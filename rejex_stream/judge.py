"""From a score to a verdict: rank it in the window, compare two integers, let it in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rejex_stream.exceed import stability_at, stability_table
from rejex_stream.policy import RejectionPolicy
from rejex_stream.types import Label, Reading, Reason, Verdict
from rejex_stream.window import ScoreWindow, mid_rank

__all__ = ["Judge", "rejected"]

_NORMAL, _ANOMALY, _REJECTED = Label.NORMAL, Label.ANOMALY, Label.REJECTED


def rejected(
    reading: Reading, seq: int, reason: Reason, window_len: int = 0, epoch: int | None = None
) -> Verdict:
    """Return the verdict for an event that has no rank."""
    return Verdict(
        reading.position,
        reading.stream_key,
        reading.sensor,
        reading.event_time_ms,
        seq,
        _REJECTED,
        reason,
        window_len=window_len,
        model_epoch=epoch,
    )


class Judge:
    """The reference window of one stream key, and the verdicts it gives.

    Parameters
    ----------
    policy
        Which ranks are rejected, for every window length.
    capacity
        n of a full window; `policy` must leave both labels there.

    Notes
    -----
    O(log n) per event. Nothing of scipy runs per event once the window is full: bands are cached
    integers, stability is a table by rank, and the order statistics shown with a verdict are
    looked up again only when a push or an eviction could have moved them.
    """

    __slots__ = ("_constant", "_edges", "_policy", "window")

    def __init__(self, policy: RejectionPolicy, capacity: int) -> None:
        self._policy = policy
        self.window = ScoreWindow(capacity)
        self._constant = False
        self._edges: tuple[float, float | None, float | None] | None = None

    def replace_window(self, scores: Iterable[float]) -> None:
        """Start over with the reference scores of another model, oldest first."""
        finite = (score for score in scores if score - score == 0.0)
        self.window = ScoreWindow(self.window.capacity, finite)
        self._constant = self.window.is_constant
        self._edges = None

    def judge(  # noqa: PLR0912, PLR0917 - one straight line, run for every event
        self,
        readings: Sequence[Reading],
        which: Sequence[int],
        seq: int,
        scores: Iterable[float],
        epoch: int,
        verdicts: list[Verdict | None],
    ) -> None:
        """Fill ``verdicts[i]`` for every i in `which`, whose scores are `scores`, in order.

        Parameters
        ----------
        readings, which
            Reading i has sequence number ``seq + i``.
        scores
            One per element of `which`; a score that is not finite makes its event unscorable.
        epoch
            The model that gave the scores.
        """
        policy, window = self._policy, self.window
        rank_of, push, by_mid_rank = window.rank, window.push, policy.ties == "mid"
        first, capacity, n = policy.first_window, window.capacity, len(window)
        table: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        band = policy.band(capacity)
        for i, score in zip(which, scores, strict=True):
            key, sensor, time_ms, _, position = reading = readings[i]
            if score - score != 0.0:
                verdicts[i] = rejected(reading, seq + i, Reason.UNSCORABLE, n, epoch)
                continue
            below, at_or_below = rank_of(score)
            ties = at_or_below - below
            rank = mid_rank(below, at_or_below) if by_mid_rank else at_or_below
            if n < first:
                verdicts[i] = Verdict(
                    position,
                    key,
                    sensor,
                    time_ms,
                    seq + i,
                    _REJECTED,
                    Reason.WARM_UP,
                    score,
                    rank,
                    ties,
                    n,
                    model_epoch=epoch,
                )
            else:
                if n == capacity:
                    if table is None:
                        band, table = policy.band(n), stability_table(n, policy.contamination)
                    p_anomaly, confidence = table[0][rank], table[1][rank]
                else:
                    band = policy.band(n)
                    p_anomaly, confidence = stability_at(rank, n, band.n_anomalies)
                edges = self._edges
                if edges is None:
                    edges = self._edges = self._order_statistics(n)
                reason = None
                if self._constant:
                    label, reason = _REJECTED, Reason.CONSTANT_WINDOW
                elif band.lower <= rank <= band.upper:
                    label, reason = _REJECTED, Reason.AMBIGUOUS
                else:
                    label = _ANOMALY if rank > n - band.n_anomalies else _NORMAL
                verdicts[i] = Verdict(
                    position,
                    key,
                    sensor,
                    time_ms,
                    seq + i,
                    label,
                    reason,
                    score,
                    rank,
                    ties,
                    n,
                    band.n_anomalies,
                    band.lower,
                    band.upper,
                    rank / n,
                    p_anomaly,
                    confidence,
                    edges[0],
                    edges[1],
                    edges[2],
                    epoch,
                    band.tolerance,
                )
            evicted = push(score)
            if evicted is None:
                n += 1
                self._edges = None
            elif self._edges is not None:
                # Order statistics above both the newcomer and the evicted have not moved.
                lower = self._edges[1]
                if lower is None or score >= lower or evicted >= lower:
                    self._edges = None
            # Only a window whose other scores all equal the newcomer can have become constant.
            self._constant = ties >= n - 1 and window.is_constant

    def _order_statistics(self, n: int) -> tuple[float, float | None, float | None]:
        """λ, and the scores at which rejecting begins and ends."""
        band, at = self._policy.band(n), self.window.order_statistic
        return (
            at(n - band.n_anomalies + 1),
            at(band.lower) if band.lower >= 1 else None,
            at(band.upper + 1) if band.upper < n else None,
        )
