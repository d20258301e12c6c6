"""What small functions of the queue and its console say, value by value."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from rejex_stream.config.reviewing import Channel
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.plan.promises import Costs
from rejex_stream.readable import (
    ChannelReading,
    Expected,
    TypicalRows,
    how_often,
    number,
    percent,
    span,
    utc,
)
from rejex_stream.review.certificate import Tally, certify, sentence
from rejex_stream.review.console.formatting import age, seen
from rejex_stream.review.queue import cases
from rejex_stream.review.queue.database import filesystem_of
from rejex_stream.review.queue.ingest import group_of
from rejex_stream.review.queue.label_report import Group, estimate
from rejex_stream.review.queue.label_store import cell, drawn_for_second_review
from rejex_stream.review.queue.labelling import counted
from rejex_stream.review.queue.listing import QueueFilter, in_short, parse_filter
from rejex_stream.types import ContextPoint, Label, Position, Reason, ReviewItem, Verdict

NORMAL, ANOMALY = Label.NORMAL, Label.ANOMALY
VERDICT = Verdict(
    position=Position("t", 0, 0), stream_key="a", sensor="a", seq=0, event_time_ms=0,
    label=Label.REJECTED, reason=Reason.AMBIGUOUS, rank=962, window_len=1000, n_anomalies=50,
    stability=0.94,
)  # fmt: skip


def audited(n: int) -> Tally:
    tally = Tally()
    tally.count(0, 0.01, "", 40_000, 400)
    tally.answers[0.01, "normal"] += n
    return tally


def test_a_certificate_is_a_sentence():
    assert certify(audited(400), pipeline="pumps").missed_at_most == 500
    tally = audited(399)
    tally.count(0, 0.0, "held", 1_500, 0)
    assert sentence(certify(tally, pipeline="pumps")) == (
        "of 41,500 events called normal or muted since 1970-01-01 00:00Z, 40,000 could be drawn: "
        "at most 748 and at least 0 of them were anomalies (95 % for both together, at every look, "
        "assumed that reviewers recognise all anomalies and call no normal one); 1 audited event "
        "has no clear answer: at best 500. 1,500 could not be drawn (1,500 held), so of all it is "
        "at most 2,248"
    )


@pytest.mark.parametrize(("function", "given", "text"), [
    (seen, "pump\u200b", "pump⟨U+200B⟩"), (seen, "live\u202e-rtl", "live⟨U+202E⟩-rtl"),
    (seen, "a\x1b\x00\nb", "a⟨U+001B⟩⟨U+0000⟩↵b"), (seen, 7, 7), (span, 40_000, "40 s"),
    (span, 380_000, "6 min 20 s"), (span, 7_200_000, "2 h"), (span, 200_000_000, "2 d 7 h"),
    (span, 2_366_841_600_000, "75 years"), (age, 40_000, "<1 min"), (age, 380_000, "6 min"),
    (age, 7_200_000, "2 h"), (number, 11400, "11,400"), (number, 0.03456789, "0.03457"),
    (number, None, "–"), (percent, 0.0653, "6.5 %"), (percent, 0.00123, "0.12 %"),
    (percent, 0, "0 %"), (percent, None, "–"), (number, 12345.678, "12,346"),
    (number, 0.0000123456, "0.00001235"), (number, math.inf, "–"), (number, 1e16, "1e+16"),
    (how_often, math.log(0.44), "44 % of cases"),
    (how_often, math.log(0.002), "1 in 500 cases"), (how_often, -32.0, "1 in 8e+13 cases"),
    (cell, "=1+1", "'=1+1"), (cell, "@SUM(A1)", "'@SUM(A1)"), (cell, -3.5, "-3.5"),
    (cell, "-3.5 V", "'-3.5 V"), (cell, None, ""), (cell, "\t=1+1", "'\t'=1+1"),
    (cell, "warm; =1+1", "warm; '=1+1"),
    (cell, "rose by 2 - 3 V, -1 V later", "rose by 2 - 3 V, -1 V later"),
])  # fmt: skip
def test_values_are_said_as_people_read_them(function, given, text):
    assert function(given) == text


def test_what_a_channel_reads_is_one_sentence_wherever_it_is_said():
    channels = {"oil": Channel(unit="bar", label="Oil pressure"), "rpm": Channel(unit="rpm")}
    shown = DisplayNames(channels=channels)
    unusual = ChannelReading("oil", 1.25, (3.4, 4.0))
    assert DisplayNames().reading_text(unusual) == "oil 1.25, usually 3.40 to 4.00"
    assert shown.reading_text(unusual) == "Oil pressure 1.25 bar, usually 3.40 to 4.00 bar"
    given = ChannelReading("oil", 1.25, (3.4, 4.0), Expected(1.25, 3.7, 3.6, 3.8))
    said = "Oil pressure 1.25 bar, expected 3.70 bar from the others; usually 3.40 to 4.00 bar"
    assert shown.reading_text(given) == said
    assert shown.reading_text(given.expected.as_reading("oil")) == said.partition(";")[0]
    within = ChannelReading("rpm", 12_345.6, (12_000.0, 13_000.0))
    assert shown.reading_text(within) == "rpm 12,346 rpm, within its usual 12,000 to 13,000 rpm"
    told = shown.describe_reading(within, speaks=True)[1]
    assert told == "by itself it may be 12,000 to 13,000 rpm", "an incident is based on it"
    assert (
        shown.describe_reading(ChannelReading("oil", 3.4, (3.4, 3.4)))[1]
        == "within its usual 3.4 bar"
    )
    assert (
        DisplayNames().reading_text(ChannelReading("oil", math.nan, (3.0, 4.0)))
        == "oil missing, usually 3 to 4"
    )
    assert DisplayNames().reading_text(ChannelReading("oil", 1.25, None)) == "oil 1.25"
    one_sided = DisplayNames(channels={"oil": Channel(side="low")})
    assert one_sided.reading_text(ChannelReading("oil", 1.25, None)) == "oil 1.25"
    said = "oil 1.25, usually 3.40 to 4.00 (only drops are asked about)"
    assert one_sided.reading_text(unusual) == said
    assert (utc(10**18).year, utc(-(10**18)).year) == (9999, 1), "clocks that no calendar has"


def test_what_is_usual_is_of_all_or_of_the_newest():
    every, newest = TypicalRows(100), TypicalRows(32, 8)
    for i in range(6_400):
        every.update((float(i), math.nan))
        newest.update((float(i), math.nan))
    assert every.range(0) == pytest.approx((160, 6_240), abs=90)
    assert newest.range(0) == pytest.approx((6_400 - 32 * 8, 6_400), abs=16)
    assert every.range(1) is newest.range(1) is TypicalRows(2).range(0) is None


def test_names_and_numbers():
    assert (counted(1, "event"), counted(1200, "event")) == ("1 event", "1,200 events")
    assert cases.episode_id("feed-0-7") == "E-vrax9yb26m"
    assert [group_of(*one) for one in (("T07/vib", "T07/vib"), ("hub", "T07"), ("flow", "flow"))] \
        == ["T07", "hub", "flow"]  # fmt: skip
    assert QueueFilter("done", "group:T07").address() == "/queue?tab=done&q=group%3AT07"
    words = (("", "", "gear"), ("-", "group", "T07"), ("", "sensor", "T 7/vib"))
    assert parse_filter('gear -group:T07 sensor:"T 7/vib"') == words
    assert in_short(VERDICT, "rejected") == "leans to anomaly"
    assert in_short(replace(VERDICT, stability=0.47), "rejected") == "borderline"
    table = "22 1 8:1 / / rw - ext4 /dev/a rw\n30 22 0:5 / /mnt/share rw - nfs4 host:/x rw"
    assert filesystem_of(Path("/mnt/share/review.db"), table) == "nfs4"
    assert sum(drawn_for_second_review(f"E-{i}", 0.1) for i in range(10_000)) == 989


def test_a_case_goes_on_while_no_run_of_steps_is_all_ordinary():
    noise = [ContextPoint(t, (), (-1.0) ** t, NORMAL) for t in range(32)]
    slow = [ContextPoint(t, (), math.sin(t / 10), NORMAL) for t in range(32)]
    assert [cases.stream_gap(one) for one in (noise, slow, [])] == [5, 15, 5]
    before = cases.EpisodeSpan(0, 5_000, 10, 15, 6)
    far = cases.Arrival(1, Position("feed", 0, 30), 20_000, 30, "rejected", None, 0, 0)
    assert [cases.belongs(before, far, gap) for gap in (14, 15)] == [False, True]
    between = [ContextPoint(t, (), 0.1, NORMAL) for t in range(13_000, 20_000, 1000)]
    anomaly = ContextPoint(12_000, (), 9.0, ANOMALY)
    assert cases.belongs(before, far._replace(context=(anomaly, *between)), 8)


@pytest.mark.parametrize(
    ("p", "c_fn", "worth"),
    [(0.94, 1.0, 0.53), (0.94, 9.0, 0.53), (0.06, 1.0, 0.03), (0.06, 9.0, 0.27)],
)
def test_an_answer_is_worth_what_the_label_it_leans_to_costs(p, c_fn, worth):
    item = ReviewItem(verdict=replace(VERDICT, stability=p), channels=(), values=())
    assert cases.worth_of(item, Costs(c_fn=c_fn)) == pytest.approx(worth)


def test_estimates_put_groups_together():
    found = estimate(
        Group(events=200, judged=20, anomalous=18, effective=20),
        Group(events=9000, judged=90, anomalous=0, effective=90),
        Group(events=800, judged=800, anomalous=300, effective=60),
    )  # fmt: skip
    assert round(found.precision.value, 2) == 0.9
    assert round(found.contamination.value, 3) == 0.048
    assert found.contamination.low < 0.048 < found.contamination.high
