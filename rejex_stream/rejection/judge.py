"""From a score to a verdict: rank it in the window, compare two integers, let it in."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from rejex_stream.rejection.band import RejectionBand, label_table
from rejex_stream.rejection.exceed import stability_at, stability_table
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.token_bucket import TokenBucket
from rejex_stream.rejection.window import ScoreWindow, Tail, clustered_table, severity
from rejex_stream.types import Label, Limited, LimitExcess, Reading, Reason, Status, Verdict

EXTREME = 4.0
"""A severity, one in 10,000 of the calibration scores, from which on places are kept free."""
_REJECTED, _AMBIGUOUS = Label.REJECTED, Reason.AMBIGUOUS  # look-up is not free
_NOTHING: Mapping[int, str] = MappingProxyType({})
_NONE_UNSEEN: Mapping[int, Unseen] = MappingProxyType({})
_NOBODY: Sequence[int] = ()
_NOT_ENTERED: float | None = math.nan  # in the place of what a score pushed out
_Marks: TypeAlias = tuple[int | None, bool, bool, str | None]
"""What the verdicts of a block have in common: epoch, held, planned, and the incident."""
_NO_MARKS: _Marks = (None, False, False, None)
_MUTABLE = (None, Reason.AMBIGUOUS)  # other reasons are states of the sensor, and no pattern


class Unseen(NamedTuple):
    """Channels at rest that read what they have never shown, and for how many readings so far."""

    channels: tuple[LimitExcess, ...]
    n_so_far: int  # of the channel that has done so for the shortest time


def rejected(
    reading: Reading, seq: int, reason: Reason, window_len: int = 0, marks: _Marks = _NO_MARKS
) -> Verdict:
    """Return the verdict for an event that has no rank."""
    key, sensor, time_ms, _, position = reading
    epoch, held, planned, incident = marks
    return Verdict(
        position, key, sensor, time_ms, seq, _REJECTED, reason,
        window_len=window_len, model_epoch=epoch, held=held, planned=planned, incident=incident,
    )  # fmt: skip


def _unseen(verdict: Verdict, unseen: Unseen) -> Verdict:
    """Return the verdict on the k-th such reading in a row: as rare as k in a window of n."""
    rarity = math.log10((verdict.window_len + 1) / unseen.n_so_far)
    return replace(
        verdict, label=Label.ANOMALY, reason=Reason.UNSEEN,
        severity=max(verdict.severity or 0.0, rarity),
        limited=Limited(unseen.channels, verdict.label, verdict.reason),
    )  # fmt: skip


class RankTables(NamedTuple):
    """What ranks in a full window mean: the band; by rank the label, how sure it is, how rare."""

    band: RejectionBand
    labels: tuple[Label, ...]
    p_anomalies: tuple[float, ...]
    confidences: tuple[float, ...]
    severities: tuple[float, ...]


class Watcher(Protocol):
    """Weighs verdicts as evidence, and says from which event on the reference stands still."""

    level: float  # of the evidence; above 0 every verdict counts
    min_severity: (
        float  # a severity from which on the evidence begins; infinite where there is none
    )
    frozen: bool  # events are judged and do not enter the window
    incident: str | None  # id of what is open

    def update_evidence(
        self, verdict: Verdict, window_severity: float | None, evicted: float | None
    ) -> bool:
        """Add a verdict to the evidence; return whether to stop before the next."""

    def restart(self, window: ScoreWindow) -> None:
        """Begin again with another reference."""


class Judge:
    """The reference window of one stream key, and the verdicts it gives.

    O(log n) per event. Nothing of scipy runs per event once the window is full: bands are cached
    integers, stability and severity are tables by rank, and the order statistics shown with a
    verdict are looked up again only when a push or an eviction could have moved them.

    A score whose severity is at least :data:`EXTREME` enters only while fewer than half of the
    flagged places hold such scores. So what is extreme is an anomaly in a full window, whatever
    came before: earlier faults cannot hold the places of later ones (docs/explanation/theory.md).
    """

    __slots__ = (
        "_bucket", "_by_mid_rank", "_capacity", "_constant", "_edges", "_edges_of", "_policy",
        "_rank_tables", "_was_constant", "_watcher", "is_governed", "shares", "tail", "window",
    )  # fmt: skip

    def __init__(
        self, policy: RejectionPolicy, capacity: int, bucket: TokenBucket | None = None,
        watcher: Watcher | None = None,
    ) -> None:  # fmt: skip
        self._watcher = watcher
        self.window = ScoreWindow(capacity)
        self.tail: Tail | None = None
        self._constant = False
        self._edges: tuple[float, float | None, float | None] | None = None
        self._edges_of: RejectionBand | None = None
        self._was_constant = False
        self._capacity = self.window.capacity
        self._set_policy(policy, bucket)

    def set_policy(self, policy: RejectionPolicy, bucket: TokenBucket | None = None) -> None:
        """Judge by another policy from the next score on; the window stays, and so does credit."""
        state = self.state()
        self._edges = None
        self._set_policy(policy, bucket)
        self.restore(state)

    def exchange_budget(self, other: Judge) -> None:
        """Judge by another one's policy and credit from the next score on, and it by these."""
        own = self._policy, self._bucket
        self.set_policy(other._policy, other._bucket)
        other.set_policy(*own)

    def _set_policy(self, policy: RejectionPolicy, bucket: TokenBucket | None) -> None:
        self._policy, self._by_mid_rank = policy, policy.ties == "mid"
        self._rank_tables: RankTables | None = None
        self._bucket = bucket or (None if policy.burst is None else TokenBucket(policy))
        self.is_governed = self._bucket is not None
        self.shares = self._bucket is not None and self._bucket.is_shared

    def state(self) -> dict[str, Any]:
        """Return what changes with judging, for a snapshot; :meth:`restore` takes it back."""
        credit = None if self._bucket is None else self._bucket.state()
        return {"credit": credit, "constant": self._was_constant}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state; a budget that was not there before begins full."""
        if self._bucket is not None and state["credit"] is not None:
            self._bucket.restore(state["credit"])
        self._was_constant = bool(state["constant"])

    def calibrate(self, scores: Sequence[float], extreme: Collection[int] = ()) -> None:
        """Start over with the scores that another model was calibrated with, oldest first.

        Severities go by those that were not `extreme` when they came, by their place in `scores`;
        of scores that are extreme by them, no more stay than there are places for.
        """
        finite = [score for score in scores if score - score == 0.0][-self._capacity :]
        if extreme:
            ordinary = [
                score for i, score in enumerate(scores)
                if score - score == 0.0 and i not in extreme
            ][-self._capacity :]  # fmt: skip
            self.tail = Tail.of(ordinary)
            self.replace_window(self._with_places(finite))
        else:
            self.replace_window(finite)
            self.tail = Tail.of(self.window.scores())

    def _with_places(self, scores: list[float]) -> list[float]:
        if not self._can_label(len(scores)):
            return scores
        tail, places = self.tail, self._extreme_capacity(len(scores))
        if tail is None:
            return scores
        kept, n_extreme = list[float](), 0
        for score in scores:
            is_extreme = tail(score) >= EXTREME
            n_extreme += is_extreme
            if not is_extreme or n_extreme <= places:
                kept.append(score)
        return kept if self._can_label(len(kept)) else scores

    def replace_window(self, scores: Iterable[float]) -> None:
        """Start over with other reference scores, oldest first."""
        finite = (score for score in scores if score - score == 0.0)
        self.window = ScoreWindow(self.window.capacity, finite)
        self._forget_edges()
        if self._watcher is not None:
            self._watcher.restart(self.window)

    def retract(self, evicted: Iterable[float | None]) -> None:
        """Take the newest scores out of the window, as :meth:`ScoreWindow.retract` does."""
        self.window.retract(evicted)
        self._forget_edges()

    def _forget_edges(self) -> None:
        self._constant = self.window.is_constant
        self._edges = None

    def judge(
        self, readings: Sequence[Reading], which: Sequence[int], scores: Sequence[float],
        verdicts: list[Verdict | None], *, seq: int, epoch: int, planned: bool = False,
        muted: Mapping[int, str] = _NOTHING,
        unseen: Mapping[int, Unseen] = _NONE_UNSEEN,
    ) -> tuple[int, Sequence[int]]:  # fmt: skip
        """Fill ``verdicts[i]`` for every i in `which`, whose scores are `scores`, in order.

        Returns how many of them were judged: all, unless the watcher stopped it before the next;
        and which of those that the reference learns from are extreme, by their place in `which`.
        Each goes through five steps: its rank, the band for it, the label, whether it enters the
        window, and what evidence it is to the watcher.
        """
        watcher = self._watcher
        held, incident = (False, None) if watcher is None else (watcher.frozen, watcher.incident)
        frozen = held or planned
        if planned:
            watcher = None
        window, tail = self.window, self.tail
        marks, n, n_judged, extreme = (epoch, held, planned, incident), len(window), 0, _NOBODY
        for i, score in zip(which, scores, strict=True):
            n_judged += 1
            reading, window_severity, evicted = readings[i], None, _NOT_ENTERED
            if score - score != 0.0:
                verdict = rejected(reading, seq + i, Reason.UNSCORABLE, n, marks)
            else:
                below, at_or_below = window.rank(score)  # 1. Rank
                tail_severity = None if tail is None else tail(score)
                verdict, window_severity = self._verdict(  # 2. Band and 3. label
                    reading, score, below, at_or_below,
                    n=n, seq=seq + i, tail_severity=tail_severity, marks=marks,
                )  # fmt: skip
                if muted and i in muted and verdict.reason in _MUTABLE:
                    verdict = replace(verdict, muted=muted[i])
                if not frozen:  # 4. Enter
                    if tail_severity is not None and tail_severity >= EXTREME:
                        extreme = [*extreme, n_judged - 1]
                    evicted = self._enter(n, score, at_or_below - below, tail_severity)
                    n += evicted is None
            if unseen and i in unseen:
                window_severity = max(window_severity or 0.0, math.log10(n + 1))
                verdict = _unseen(verdict, unseen[i])
            verdicts[i] = verdict
            if (  # 5. Evidence
                watcher is not None
                and (
                    frozen
                    or watcher.level
                    or (window_severity is not None and window_severity > watcher.min_severity)
                )
                and watcher.update_evidence(verdict, window_severity, evicted)
            ):
                break
        return n_judged, extreme

    def _verdict(
        self, reading: Reading, score: float, below: int, at_or_below: int, *, n: int, seq: int,
        tail_severity: float | None, marks: _Marks,
    ) -> tuple[Verdict, float | None]:  # fmt: skip
        key, sensor, time_ms, _, position = reading
        epoch, held, planned, incident = marks
        ties = at_or_below - below
        rank = (below + at_or_below) // 2 if ties and self._by_mid_rank else at_or_below  # mid_rank
        window_severity: float | None
        if n == self._capacity:
            if (full := self._rank_tables) is None:
                full = self._make_tables()
            band, labels, p_anomalies, confidences, severities = full
            label, p_anomaly, confidence = labels[rank], p_anomalies[rank], confidences[rank]
            window_severity = severities[below] if below < n else None
        elif self._can_label(n):
            band, window_severity = self._policy.band(n), None
            label = band.label(rank)
            p_anomaly, confidence = stability_at(rank, n, band.n_anomalies)
        else:
            return Verdict(
                position, key, sensor, time_ms, seq, _REJECTED, Reason.WARM_UP, score, rank, ties,
                n, model_epoch=epoch, held=held, planned=planned, incident=incident,
            ), None  # fmt: skip
        if not self.is_governed and not (self._constant or self._was_constant):
            judged, withheld, status = band, False, None
            reason = _AMBIGUOUS if label is _REJECTED else None
        else:
            judged, label, reason, withheld, status = self._label_in_band(
                band, label, rank, sensor, time_ms
            )
        edges = self._edges
        if edges is None or judged is not self._edges_of:
            at, (low, first, top) = self.window.order_statistic, judged.edges
            edges = at(first), at(low) if low >= 1 else None, at(top) if top <= n else None
            self._edges, self._edges_of = edges, judged
        if self._constant:
            window_severity = tail_severity = None
        else:
            if window_severity is None:
                window_severity = severity(self.window, score, below)
            if tail_severity is None:
                tail_severity = window_severity
        governed = self.is_governed
        return Verdict(
            position, key, sensor, time_ms, seq, label, reason, score, rank, ties, n,
            band.n_anomalies, judged.lower, judged.upper, rank / n, p_anomaly, confidence,
            edges[0], edges[1], edges[2], epoch, judged.tolerance, None, withheld,
            band.lower if governed else None, band.upper if governed else None,
            tail_severity, status, held, planned, incident,
        ), window_severity  # fmt: skip

    def _enter(self, n: int, score: float, ties: int, tail_severity: float | None) -> float | None:
        # ``_NOT_ENTERED`` where it is extreme and all places for such scores are taken.
        if (
            tail_severity is not None
            and tail_severity >= EXTREME
            and self._can_label(n)  # a length that says nothing is left by growing, whatever comes
            and self._n_extreme() >= self._extreme_capacity(n)
        ):
            return _NOT_ENTERED
        evicted = self.window.push(score)
        if evicted is None:
            n += 1
            self._edges = None
        elif self._edges is not None:
            # Order statistics above both the newcomer and the evicted have not moved.
            lowest = self._edges[1]
            if lowest is None or score >= lowest or evicted >= lowest:
                self._edges = None
        # Constant where all others equal the newcomer, of which one has left.
        self._constant = ties + (evicted != score) >= n
        return evicted

    def _n_extreme(self) -> int:
        tail, window = self.tail, self.window
        if tail is None:
            return 0
        n, kth = len(window), window.order_statistic  # a severity never falls with its score
        return n - bisect_left(range(1, n + 1), EXTREME, key=lambda k: tail(kth(k)))

    def _extreme_capacity(self, n: int) -> int:
        # So the next one still ranks among the flagged, whatever came before.
        full = self._rank_tables or self._make_tables()
        band = full.band if n == self._capacity else self._policy.band(n)
        return max(1, (n + 1 - band.edges[2]) // 2)

    def _label_in_band(
        self, band: RejectionBand, label: Label, rank: int, sensor: str, time_ms: int
    ) -> tuple[RejectionBand, Label, Reason | None, bool, Status | None]:
        """Return the band that decides, label and reason, whether it is withheld, the status."""
        # `band` is the policy's own, with the label it gives; a budget may allow another.
        status = None
        if self._constant is not self._was_constant:
            self._was_constant = self._constant
            status = Status.CONSTANT_BEGINS if self._constant else Status.CONSTANT_ENDS
        if self._constant:
            return band, _REJECTED, Reason.CONSTANT_WINDOW, False, status
        bucket = self._bucket
        if bucket is None:
            return band, label, _AMBIGUOUS if label is _REJECTED else None, False, status
        allowed = bucket.allow(band.n, sensor, time_ms)
        given = allowed.label(rank)
        if given is _REJECTED:
            bucket.spend()
            return allowed, given, _AMBIGUOUS, False, status
        return allowed, given, None, label is _REJECTED, status

    def severity(self, score: float) -> float | None:
        """Return how rare a score is that is no event's; ``None`` where that is not known."""
        if self._constant or score - score != 0.0 or not self._can_label(len(self.window)):
            return None
        below, _ = self.window.rank(score)
        return severity(self.window, score, below) if self.tail is None else self.tail(score)

    def outlier_positions(
        self, quantile: float, which: Sequence[int], verdicts: Sequence[Verdict | None]
    ) -> list[int]:
        """Return which of the verdicts just given rank beyond a quantile of their window.

        By mid-rank, whatever the policy says of ties: another policy finds the same. A window too
        short to have anything beyond the quantile has nothing there.
        """
        mid, least, found = self._policy.ties == "mid", 1.0 / (1.0 - quantile), []
        for j, i in enumerate(which):
            verdict = verdicts[i]
            assert verdict is not None  # given by judge
            rank, ties, n = verdict.rank, verdict.ties, verdict.window_len
            if rank is None or ties is None or n < least:
                continue
            if (rank if mid else rank - ties + ties // 2) > quantile * n:
                found.append(j)
        return found

    def _can_label(self, n: int) -> bool:
        # Some lengths above the first that can cannot again.
        return n >= self._policy.first_window and self._policy.band(n).can_accept_both

    def _make_tables(self) -> RankTables:
        n = self.window.capacity
        self._rank_tables = _tables_of(self._policy.band(n), n, self._policy.contamination)
        return self._rank_tables


@lru_cache(maxsize=64)
def _tables_of(band: RejectionBand, n: int, gamma: float) -> RankTables:
    severities = tuple(clustered_table(n, 1.0))
    return RankTables(band, label_table(band), *stability_table(n, gamma), severities)
