"""What became of records, counted once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.outcomes import OutcomeCounts
from rejex_stream.types import (
    Invalid,
    Label,
    Outcome,
    Position,
    Reason,
    Record,
    ReviewItem,
    Verdict,
)

PLACE = Position("t", 0, 0)
KINDS = [(Label.NORMAL, None), (Label.ANOMALY, None), *((Label.REJECTED, r) for r in Reason)]


def outcome(label, reason, is_reviewed):
    verdict = Verdict(
        position=PLACE, stream_key="a", sensor="a", event_time_ms=0, seq=0, label=label,
        reason=reason)  # fmt: skip
    item = ReviewItem(verdict=verdict, channels=(), values=()) if is_reviewed else None
    return Outcome(Record(PLACE, None, b""), verdict=verdict, review=item)


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.booleans())), st.integers(0, 5), st.integers(0)
)
def test_the_rate_is_of_those_the_theory_speaks_of(found, n_invalid, cut):
    outcomes = [outcome(label, reason, reviewed) for (label, reason), reviewed in found]
    outcomes += [Outcome(Record(PLACE, None, b""), invalid=Invalid(PLACE, "decode", "no"))] * (
        n_invalid
    )
    counts, cut = OutcomeCounts(), cut % (len(outcomes) + 1)
    counts.add(outcomes[:cut])
    counts.add(outcomes[cut:])
    labels, reasons = [kind[0] for kind, _ in found], [kind[1] for kind, _ in found]
    accepted = labels.count(Label.NORMAL) + labels.count(Label.ANOMALY)
    ambiguous = reasons.count(Reason.AMBIGUOUS)
    assert counts.n_ranked == accepted + ambiguous
    assert counts.rejection_rate == (
        ambiguous / (accepted + ambiguous) if accepted + ambiguous else None
    )
    assert (counts.n_invalid, counts.n_events) == (n_invalid, len(outcomes))
    assert counts.n_reviews == sum(reviewed for _, reviewed in found)
    assert counts.n_to_review == ambiguous + reasons.count(Reason.UNSCORABLE)
