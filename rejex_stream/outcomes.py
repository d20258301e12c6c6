"""What became of records, counted once: a run's summary, its metrics and a rehearsal hold this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rejex_stream.types import Label, Outcome, Reason, Verdict

__all__ = [
    "OutcomeCounts",
    "could_be_missed",
    "drawable",
    "is_for_review",
    "is_ranked",
    "policy_band",
]


def could_be_missed(verdict: Verdict) -> bool:
    """Return whether an anomaly would be missed: called normal by the pipeline, or by a mute."""
    return verdict.label is Label.NORMAL or bool(verdict.muted)


def drawable(verdict: Verdict) -> tuple[float, str]:
    """Return how probable it was that somebody is asked, and of 0 why: held, planned, or rate."""
    if verdict.audit:
        return verdict.audit.p, ""
    if verdict.muted or not (verdict.held or verdict.planned):
        return 0.0, "rate"
    return 0.0, "held" if verdict.held else "planned"


def is_ranked(verdict: Verdict) -> bool:
    """Return whether the theory speaks of a verdict: accepted, or rejected as ambiguous.

    It does not of a warm-up, of a score that says nothing, of a window of one repeated value, or
    where the reference stood still: in an incident, or in planned work.
    """
    if verdict.held or verdict.planned:
        return False
    return verdict.reason is None or verdict.reason is Reason.AMBIGUOUS


def is_for_review(verdict: Verdict) -> bool:
    """Return whether a verdict is worth a person's time.

    A rejected one is, but for a warm-up, one sensor too many, and a window of one repeated value:
    that is a state of the sensor, worth one look where it begins and one where it ends. What is
    muted has been looked at.
    """
    if verdict.status is not None:
        return True
    no_question = (Reason.WARM_UP, Reason.CONSTANT_WINDOW, Reason.TOO_MANY_SENSORS)
    if verdict.muted:
        return False
    return verdict.label is Label.REJECTED and verdict.reason not in no_question


def policy_band(verdict: Verdict) -> tuple[int | None, int | None]:
    """Return first and last rank of the policy's own band, which theory and monitors speak of.

    A review budget that holds widens and narrows the band that decides; who compares with theory,
    or watches for drift, must not be steered by that.
    """
    if verdict.policy_lower is None:
        return verdict.band_lower, verdict.band_upper
    return verdict.policy_lower, verdict.policy_upper


@dataclass(slots=True)
class OutcomeCounts:
    """How many outcomes of each kind.

    Attributes
    ----------
    labels, reasons
        How many verdicts of each label, and of the rejected ones, of each reason.
    n_to_review
        Verdicts worth a person's time, see :func:`is_for_review`.
    n_withheld
        Accepted because the review budget had no credit left; see :class:`Verdict`.
    n_muted
        In a pattern that people muted.
    n_held
        Given while the reference stood still; no rate counts them.
    n_ranked, n_ambiguous
        Verdicts that the theory speaks of, see :func:`is_ranked`; those of them it rejects.
    n_invalid, n_reviews, n_incidents
        Records that could not be read; review items; incidents that opened.
    n_ignored
        Records without a reading of their own: heartbeats, tombstones, parts of a row.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> counts = OutcomeCounts()
    >>> counts.add_verdicts(
    ...     Verdict(position=Position("t", 0, i), stream_key="a", sensor="a", event_time_ms=0,
    ...             seq=i, label=Label.NORMAL if reason is None else Label.REJECTED, reason=reason)
    ...     for i, reason in enumerate([Reason.WARM_UP, None, Reason.AMBIGUOUS, None, None]))
    >>> counts.n_events, counts.n_ranked, counts.rejection_rate
    (5, 4, 0.25)
    """

    labels: Counter[Label] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    n_to_review: int = 0
    n_withheld: int = 0
    n_muted: int = 0
    n_held: int = 0
    n_ranked: int = 0
    n_ambiguous: int = 0
    n_invalid: int = 0
    n_reviews: int = 0
    n_incidents: int = 0
    n_ignored: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count outcomes; O(1) each."""
        outcomes = list(outcomes)
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        self.add_verdicts(verdicts)
        if len(verdicts) < len(outcomes):
            unread = [outcome.invalid for outcome in outcomes if outcome.invalid is not None]
            self.n_ignored += sum(i.silent and i.stage != "waiting" for i in unread)
            self.n_invalid += sum(not invalid.silent for invalid in unread)
        self.n_reviews += len(outcomes) - [outcome.review for outcome in outcomes].count(None)
        changed = [outcome.incidents for outcome in outcomes if outcome.incidents]
        self.n_incidents += sum(one.version == 1 for changes in changed for one in changes)

    def add_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Count verdicts whose records are not at hand; O(1) each."""
        verdicts = list(verdicts)
        labels = [verdict.label for verdict in verdicts]
        for label in Label:  # to hash a member of an enum takes longer than to compare it
            if n := labels.count(label):
                self.labels[label] += n
        odd = [
            one
            for one in verdicts
            if one.reason is not None
            or one.withheld
            or one.held
            or one.planned
            or one.status is not None
            or one.muted
        ]
        self.reasons.update([verdict.reason for verdict in odd if verdict.reason is not None])
        self.n_to_review += sum(map(is_for_review, odd))
        self.n_withheld += sum(verdict.withheld for verdict in odd)
        self.n_muted += sum(bool(verdict.muted) for verdict in odd)
        self.n_held += sum(verdict.held or verdict.planned for verdict in odd)
        ranked = [verdict for verdict in odd if is_ranked(verdict)]
        self.n_ranked += len(verdicts) - len(odd) + len(ranked)
        self.n_ambiguous += sum(verdict.reason is Reason.AMBIGUOUS for verdict in ranked)

    @property
    def n_events(self) -> int:
        """How many records got their outcome, invalid ones included."""
        return self.labels.total() + self.n_invalid

    @property
    def rejection_rate(self) -> float | None:
        """Share of ranked verdicts that are rejected as ambiguous; ``None`` without any."""
        return self.n_ambiguous / self.n_ranked if self.n_ranked else None
