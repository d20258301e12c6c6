"""What became of records, counted once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from rejex_stream.cli.show import outcome_rows
from rejex_stream.types import (
    Invalid,
    Label,
    Outcome,
    OutcomeCounts,
    Position,
    Reason,
    Record,
    ReviewItem,
    Status,
    Verdict,
    is_for_review,
    is_ranked,
)

PLACE = Position("t", 0, 0)
OF_ANOMALIES = (Reason.LIMIT, Reason.UNSEEN)
REJECTIONS = [(Label.REJECTED, reason) for reason in Reason if reason not in OF_ANOMALIES]
KINDS = [(Label.NORMAL, None), (Label.ANOMALY, None), *REJECTIONS]


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


KINDS_OF_VERDICT = st.builds(
    Verdict, position=st.just(PLACE), stream_key=st.just("a"), sensor=st.just("a"),
    event_time_ms=st.just(0), seq=st.just(0), label=st.sampled_from(Label),
    reason=st.none() | st.sampled_from(Reason), status=st.none() | st.sampled_from(Status),
    withheld=st.booleans(), held=st.booleans(), planned=st.booleans(),
    muted=st.just(UNSET) | st.just("m"),
)  # fmt: skip


@pytest.mark.thorough
@given(st.lists(KINDS_OF_VERDICT.filter(lambda v: (v.reason is None) == (v.label != "rejected"))))
def test_every_count_is_the_sum_of_what_each_verdict_is(verdicts):
    counts, ranked = OutcomeCounts(), [one for one in verdicts if is_ranked(one)]
    counts.add_verdicts(verdicts)
    assert counts.labels == Counter(one.label for one in verdicts)
    assert counts.reasons == Counter(one.reason for one in verdicts if one.reason)
    assert counts.n_to_review == sum(is_for_review(one) for one in verdicts)
    assert counts.n_withheld == sum(one.withheld for one in verdicts)
    assert counts.n_muted == sum(one.muted is not UNSET for one in verdicts)
    assert counts.n_held == sum(one.held or one.planned for one in verdicts)
    assert counts.n_ranked == len(ranked)
    assert counts.n_ambiguous == sum(one.reason is Reason.AMBIGUOUS for one in ranked)


def test_what_becomes_part_of_a_later_row_is_not_called_lost():
    (*_, row) = outcome_rows(OutcomeCounts(n_ignored=2))
    assert row == ("ignored", "2 records: no reading, or part of a later row")
