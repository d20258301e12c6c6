"""What people are asked: so many cases a day, the most valuable first, one for one fault."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from urllib.parse import quote

import msgspec
import pytest

from rejex_stream.config.reviewing import Capacity
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.engine import Engine
from rejex_stream.operate.alerts import make_alert
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.readable import Expected
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.console.console import Access
from rejex_stream.review.incidents import incident_store
from rejex_stream.review.incidents.incident_store import AnswerRequest
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.cases import Costs
from rejex_stream.review.queue.database import Refusal, Viewer
from rejex_stream.review.queue.label_report import judged_episodes
from rejex_stream.review.queue.labelling import LabelRequest
from rejex_stream.review.queue.listing import QueueFilter, _speaking_channel, queue_rows, summary
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import AuditDraw, ReviewItems
from rejex_stream.types import (
    ChannelEvidence,
    CommandReply,
    ContextPoint,
    Evidence,
    Label,
    LimitExcess,
    Position,
    Reading,
    Reason,
    ReviewItem,
)
from tests.review.console_server import running
from tests.review.incidents import Line, held, incident, tell
from tests.review.test_review_store import ADA, BOB, LOOKER, episodes, item, label, read, rows
from tests.streams import spec

DAY_MS = 86_400_000


def doubtful(offset: int, p: float, **more):
    """A review item that would be called an anomaly with probability p."""
    one = item(offset, **more)
    return msgspec.structs.replace(one, verdict=msgspec.structs.replace(one.verdict, stability=p))


def shown(store: ReviewStore, tab: str = "ready") -> list[float]:
    """What the answers of a list are worth, from the top."""
    with store.database.read() as connection:
        view = QueueFilter(tab)
        return [row["worth"] for row in view.rows(connection, ADA, store.now_ms())]


def left(store: ReviewStore) -> int | None:
    return read(store, summary, ADA, store.now_ms()).left


def answered(store, request="r1", which="feed-0-10", kind="fault", viewer=ADA):
    return incident_store.give_answer(store, AnswerRequest(request, which, 1, kind), viewer)


def answer_first(store: ReviewStore, request: str) -> None:
    first = episodes(store)[0]
    decision = LabelRequest(request_id=request, verdict="normal", targets=(first,))
    labelling.label_cases(store, decision, ADA)


def test_so_many_are_asked_a_day_the_most_valuable_first(new_store, clock):
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=3))
    store.add([doubtful(100 * k, p) for k, p in enumerate((0.1, 0.5, 0.9, 0.7, 0.02, 0.4))])
    assert shown(store) == pytest.approx([0.75, 0.65, 0.55])
    assert shown(store, "waiting") == pytest.approx([0.2, 0.05, 0.01])
    assert left(store) == 3
    answer_first(store, "r1")
    assert (shown(store), left(store)) == (pytest.approx([0.65, 0.55]), 2)
    answer_first(store, "r2")
    answer_first(store, "r3")
    assert (shown(store), left(store)) == ([], 0)
    clock.pass_ms(DAY_MS)
    assert shown(store) == pytest.approx([0.2, 0.05, 0.01]), "the next day goes on"


@pytest.mark.thorough
def test_what_spends_nothing_of_the_budget_comes_out_of_the_capacity(new_store, clock):
    """A stream that cannot be ranked, and audits, beside a budget that is held."""
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=5))
    engine = Engine(spec(rate=0.05, burst=5, owner="partition"), InlineExecutor())
    items, rejected = ReviewItems(("x", "y"), audit=AuditDraw(0.05)), Counter()
    for day in range(4):
        nothing = (float("nan"), float("nan"))
        for i in range(600):
            n = 600 * day + i
            values = nothing if n > 200 and n % 6 else (n * 7919 % 101 / 10, n % 7)
            position = Position("feed", 0, n)
            reading = Reading(f"s{n % 3}", f"s{n % 3}", 1000 * n, values, position)
            (verdict,) = engine.process([reading])
            one = items.observe(reading, verdict)
            if isinstance(one, ReviewItem):
                rejected[verdict.reason or one.why] += 1
                store.add([one])
        assert (len(shown(store)), left(store)) == (5, 5)
        for k in range(5):
            assert shown(store)
            answer_first(store, f"{day}-{k}")
        assert (shown(store), left(store)) == ([], 0), "the others wait for another day"
        clock.pass_ms(DAY_MS)
    assert rejected[Reason.UNSCORABLE] > 50
    assert rejected["audit"] > 2
    assert shown(store, "waiting")


def test_a_case_grown_meanwhile_takes_the_place_of_another(new_store):
    store = new_store(settle_s=0, gap_events=3, capacity=Capacity(questions_per_day=1))
    store.add([doubtful(0, 0.3), doubtful(500, 0.4)])
    assert shown(store) == pytest.approx([0.2])
    store.add([doubtful(1, 0.3)])
    assert shown(store) == pytest.approx([0.3])


def test_audited_events_are_asked_before_anything_that_is_worth_more(new_store):
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=2))
    store.add([doubtful(0, 0.5), doubtful(100, 0.4), item(200, why="audit")])
    assert shown(store) == pytest.approx([0.0, 0.75])


def test_cases_of_an_absent_colleague_take_no_room_from_the_others(new_store, clock):
    """Ten of the greatest worth are Bob's: for days nobody else was asked anything."""
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=10))
    store.add([doubtful(100 * k, 0.5) for k in range(10)])
    with store.database.write() as connection:
        connection.execute("UPDATE episode SET assigned = 'bob'")
    store.add([doubtful(10_000 + 100 * k, 0.1) for k in range(30)])
    for day in range(3):
        assert (len(shown(store)), left(store)) == (10, 10), day
        for k in range(10):
            answer_first(store, f"{day}-{k}")
        assert (shown(store), left(store)) == ([], 0)
        clock.pass_ms(DAY_MS)
    assert len(shown(store, "claimed")) == 10


def test_second_opinions_that_nobody_here_may_give_take_no_room(new_store, clock):
    store = new_store(
        settle_s=0, gap_events=0, double_review_ratio=1.0, capacity=Capacity(questions_per_day=4)
    )
    store.add([doubtful(100 * k, 0.5) for k in range(20)])
    for day in range(4):
        assert len(shown(store)) == 4, day
        for k in range(4):
            answer_first(store, f"{day}-{k}")
        clock.pass_ms(DAY_MS)


def test_audits_and_doubts_share_the_day_and_one_takes_what_the_other_leaves(new_store):
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=6))
    store.add([item(100 * k, why="audit") for k in range(26)])
    assert len(shown(store)) == 6
    store.add([doubtful(10_000 + 100 * k, 0.5) for k in range(2)])
    assert shown(store) == pytest.approx([0.0] * 4 + [0.75] * 2)
    store.add([doubtful(20_000 + 100 * k, 0.5) for k in range(9)])
    assert shown(store) == pytest.approx([0.0] * 3 + [0.75] * 3)


def test_what_others_have_before_them_now_is_asked_already(new_store):
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=3))
    store.add([doubtful(100 * k, 0.5) for k in range(9)])
    with store.database.write() as connection:
        connection.execute(
            "UPDATE episode SET lease_owner = 'bob', lease_until_ms = :until WHERE start_ms = 0",
            {"until": store.now_ms() + 60_000},
        )
    assert (len(shown(store)), left(store)) == (2, 2)


def extreme(offset: int, severity: float):
    """A review item of an anomaly that no incident tells of."""
    one = item(offset, why="extreme")
    known = msgspec.structs.replace(one.verdict, label=Label.ANOMALY, severity=severity)
    return msgspec.structs.replace(one, verdict=known)


def test_a_row_says_the_reading_and_what_was_expected_or_is_usual(new_store):
    """It said a figure of retrained models alone, and no channel."""

    def with_evidence(offset: int, *, flow: float, expected: Expected | None = None):
        one = extreme(offset, 50.0)
        first = ChannelEvidence("flow", 9.0, 0.1, Label.NORMAL, expected or msgspec.UNSET)
        evidence = Evidence((first,), None, 1, None, 0.1, 9)
        known = msgspec.structs.replace(one.verdict, evidence=evidence)
        return msgspec.structs.replace(one, verdict=known, channels=("flow",), values=(flow,))

    store = new_store(settle_s=0, gap_events=0)
    hour = Expected(57.0, 45.0, 41.0, 49.0, "hour")
    store.add([with_evidence(100, flow=57.0, expected=hour), with_evidence(200, flow=30.0),
               with_evidence(300, flow=5.0)])  # fmt: skip
    sensor = "T07/vib"
    told = [(100 * t, (4.0 + t % 3,)) for t in range(400)]
    store.add_readings(sensor, sensor, ("flow",), told)
    with store.database.read() as connection:
        rows = queue_rows(connection, QueueFilter(), store.settings, ADA, store.now_ms(), limit=9)
        by_value = {row.reading.value: row for row in rows}
    assert by_value[57.0].reading.expected == hour
    assert by_value[30.0].reading.usual == (4.0, 6.0)
    assert by_value[5.0].reading.usual == (4.0, 24.0)
    assert by_value[30.0].short_why == "severity 100 of 100, no incident"
    two = replace(by_value[30.0], channels=("other", "flow"))
    assert _speaking_channel(two) == 1, "the small line is of the channel that the row names"
    assert _speaking_channel(replace(two, reading=None)) == 0
    with running(store) as console:
        page = re.sub("<.*?>", "", console.ask("/queue").text)
    assert "flow 57, expected 45 ± 4 at this hour" in page
    assert "flow 30, usually 4 to 6 · severity 100 of 100, no incident" in page
    assert "flow 5, by itself it may be 4 to 24 ·" in page, "its level alone is not what is wrong"


def test_extreme_anomalies_near_each_other_are_one_case_worth_more_than_a_doubt(new_store):
    store = new_store(settle_s=0, gap_events=5, capacity=Capacity(questions_per_day=3))
    store.add([doubtful(0, 0.5), extreme(2, 4.0), extreme(900, 8.0), extreme(902, 50.0)])
    assert shown(store) == pytest.approx([4.5, 1.0, 0.75]), "a doubt nearby is another case"
    with store.database.read() as connection:
        rows = queue_rows(connection, QueueFilter(), store.settings, ADA, store.now_ms(), limit=9)
        first, second, _ = list(rows)
    assert first.short_why == "severity 100 of 100, no incident"
    assert second.short_why == "severity 40 of 100, no incident"
    assert first.reading is None, "no evidence says which channel it is"
    for number in range(3):
        answer_first(store, f"r{number}")
    with store.database.read() as connection:
        judged = list(judged_episodes(connection))
    assert [one.n_events for one in judged] == [1], "chosen by what they are, so no estimate"


def starts(store: ReviewStore) -> list[int]:
    """When the cases began that are asked today."""
    with store.database.read() as connection:
        rows = QueueFilter().rows(connection, ADA, store.now_ms())
        return sorted(row["start_ms"] for row in rows)


@pytest.mark.parametrize("told_first", [False, True])
def test_an_extreme_anomaly_that_an_incident_begins_with_is_asked_by_that_alone(
    new_store, told_first
):
    """From its onset, the event 5, on: who answers the incident was asked the same before."""
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=9))
    before, of, after = extreme(2, 9.0), [extreme(5, 9.0), extreme(8, 20.0)], extreme(900, 9.0)
    parts = [lambda: store.add([before, *of]), lambda: tell(store, incident())]
    for part in reversed(parts) if told_first else parts:
        part()
    assert starts(store) == [2_000]
    assert left(store) == 8, "the incident is the other question"
    store.add([held(12)])
    tell(store, incident(2, "closed", at=100, ended="recovered"))
    store.add([after, item(905)])
    asked = [2_000, 12_000, 900_000, 905_000]
    assert starts(store) == asked, "its doubts as well, which nobody answered"
    query = "SELECT why, status FROM episode WHERE incident <> '' ORDER BY start_ms"
    joined = [("extreme", "held"), ("extreme", "held"), ("rejected", "open")]
    assert rows(store, query) == joined


def test_extreme_anomalies_behind_the_end_of_an_incident_are_asked_though_read_before_it(new_store):
    """Items and incidents are read apart: of a backlog all items may come first."""
    store = new_store(settle_s=0, gap_events=0)
    store.add([extreme(5, 9.0), extreme(101, 54.0), extreme(900, 9.0)])
    tell(store, incident())
    assert starts(store) == [], "nobody knows as yet where it ends"
    tell(store, incident(2, "closed", at=100, ended="recovered"))
    assert starts(store) == [101_000, 900_000]
    store.add([extreme(905, 9.0)])
    assert starts(store) == [101_000, 900_000, 905_000]


def test_who_works_on_an_extreme_anomaly_goes_on_and_who_undoes_is_not_asked_anew(new_store):
    store = new_store(settle_s=0, gap_events=0)
    store.add([extreme(6, 9.0), extreme(8, 9.0)])
    first, second = episodes(store)
    labelling.claim(store, first.episode_id, ADA)
    tell(store, incident())
    assert [row.episode_id for row in episodes(store)] == [first.episode_id]
    label(store, ADA, [first], "anomaly")
    joined = [row for row in episodes(store, tab="all") if row.episode_id == second.episode_id]
    label(store, BOB, joined, "normal", request="r2")
    tell(store, incident(2, "closed", at=100, ended="recovered"))
    labelling.undo(store, "u1", BOB)
    assert episodes(store) == [], "the incident asked"


def test_an_extreme_anomaly_of_another_sensor_is_no_part_of_an_incident(new_store):
    store = new_store(settle_s=0)
    other = msgspec.structs.replace(
        extreme(7, 9.0), verdict=msgspec.structs.replace(extreme(7, 9.0).verdict, sensor="b",
                                                        stream_key="b"))  # fmt: skip
    store.add([other])
    tell(store, incident())
    assert starts(store) == [7_000]


def test_without_a_capacity_everything_is_asked_the_oldest_first(new_store, clock):
    store = new_store(settle_s=0, gap_events=0)
    for k, p in enumerate((0.1, 0.5, 0.3)):
        store.add([doubtful(100 * k, p)])
        clock.pass_ms(1000)
    assert shown(store) == pytest.approx([0.05, 0.75, 0.15])
    assert left(store) is None


def test_whoever_leans_to_an_alarm_is_asked_before_whoever_does_not(new_store):
    """With as much doubt: of a sensor that is well some events are the highest all the same."""
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=9))
    for k, p in enumerate((0.45, 0.55, 0.2, 0.8, 0.95, 0.05)):
        store.add([doubtful(100 * k, p)])
    assert shown(store) == pytest.approx([0.725, 0.6, 0.525, 0.225, 0.1, 0.025])


def test_what_mistakes_cost_decides_what_an_answer_is_worth(tmp_path):
    store = ReviewStore(tmp_path / "r.db", costs={"farm": Costs(c_fp=1.0, c_fn=10.0)})
    store.ingest("review", [encode_review(doubtful(0, 0.2))], pipeline="farm")
    store.ingest("review", [encode_review(doubtful(900, 0.2, sensor="x"))], pipeline="other")
    found = rows(store, "SELECT worth FROM episode ORDER BY start_ms")
    store.close()
    assert [worth for (worth,) in found] == pytest.approx([1.0, 0.1])


def test_an_open_incident_asks_once_and_out_of_the_same_capacity(new_store):
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=2))
    store.add([held(10), held(11), item(4_000, sensor="b"), item(8_000, sensor="c")])
    tell(store, incident())
    assert left(store) == 1
    assert [row.n_events for row in episodes(store)] == [1]
    assert 2 in [row.n_events for row in episodes(store, tab="waiting")]
    tell(store, incident(2, "closed", ended="recovered"))
    assert sorted(row.n_events for row in episodes(store)) == [1, 2], "nobody has answered it"


def test_an_incident_that_was_answered_is_one_question_and_none_the_day_after(new_store, clock):
    """Until the pipeline said so it was two, an answer and an open incident, and one each day."""
    store = new_store(settle_s=0, capacity=Capacity(questions_per_day=9))
    tell(store, incident(), incident(opened=30, stream="b"))
    assert left(store) == 7
    given = answered(store)
    assert left(store) == 7
    clock.pass_ms(86_400_000)
    assert left(store) == 8, "the other one is asked again"
    tell(store, incident(2, "fault"))
    assert left(store) == 8
    again = answered(store, "r2", "feed-0-30")
    incident_store.withdraw_answer(store, again.id, ADA)
    assert (left(store), given.kind) == (8, "fault"), "taken back, it waits for one"


def test_who_answered_an_incident_is_not_asked_about_its_events(new_store):
    store = new_store(settle_s=0)
    store.add([held(10), held(11)])
    tell(store, incident())
    command = answered(store)
    incident_store.send_commands(store, "", Line())
    tell(store, CommandReply(command=command.id, accepted=True, said="It is held."))
    tell(store, incident(2, "closed", ended="recovered"))
    assert episodes(store) == []
    assert [row.n_events for row in episodes(store, tab="all")] == [2]


# ----------------------------------------------------------------------- answers under way
def test_an_answer_under_way_locks_the_incident_for_everybody(new_store):
    store, line = new_store(), Line()
    tell(store, incident())
    command = answered(store)
    for viewer, request in ((BOB, "r2"), (ADA, "r3")):
        with pytest.raises(Refusal, match="ada answered fault, and the pipeline has not replied"):
            answered(store, request, kind="new_normal", viewer=viewer)
    assert answered(store) == command
    with store.database.read() as connection:
        before = summary(connection, ADA, store.now_ms()).version
    assert incident_store.send_commands(store, "", line) == [command]
    with store.database.read() as connection:
        after = summary(connection, ADA, store.now_ms()).version
    assert after != before, "nobody is offered to take back what has left"
    tell(store, CommandReply(command=command.id, accepted=False, said="It is at 4."))
    answered(store, "r4", viewer=BOB)


def test_an_answer_is_taken_back_until_it_leaves(new_store, clock):
    store, line = new_store(), Line()
    tell(store, incident())
    first = answered(store, kind="new_normal")
    assert incident_store.send_commands(store, "", line, wait_ms=10_000) == []
    with pytest.raises(Refusal, match="Who gave an answer"):
        incident_store.withdraw_answer(store, first.id, BOB)
    assert incident_store.withdraw_answer(store, first.id, ADA) == "feed-0-10"
    incident_store.withdraw_answer(store, first.id, ADA)
    clock.pass_ms(20_000)
    assert incident_store.send_commands(store, "", line, wait_ms=10_000) == []
    second = answered(store, "r2", viewer=BOB)
    clock.pass_ms(10_000)
    assert incident_store.send_commands(store, "", line, wait_ms=10_000) == [second]
    with pytest.raises(Refusal, match="control log and cannot be taken back"):
        incident_store.withdraw_answer(store, second.id, BOB)


def test_what_may_be_in_the_log_is_not_taken_back_and_is_sent_again(new_store):
    store, line = new_store(), Line()
    tell(store, incident())
    command = answered(store)
    line.away = True
    with pytest.raises(Exception, match="away"):
        incident_store.send_commands(store, "", line)
    with pytest.raises(Refusal, match="cannot be taken back"):
        incident_store.withdraw_answer(store, command.id, ADA)
    line.away = False
    assert incident_store.send_commands(store, "", line) == [command]


# ---------------------------------------------------------------------------------- the page
def ill(offset: int):
    """An item of a fault: 30 readings that are usual, then ones that are not."""
    context = tuple(
        ContextPoint(1000 * (offset - k), (20.0 if k > 5 else 60.0 + k,), 0.5, Label.ANOMALY)
        for k in range(40, 0, -1)
    )
    return msgspec.structs.replace(held(offset), context=context, values=(60.0,))


@pytest.fixture
def sick(wall_store):
    store, line = wall_store(settle_s=0), Line()
    review = [ill(45)]
    store.ingest("review", map(encode_review, review), pipeline="farm")
    store.ingest("verdicts", [encode_verdict(one.verdict) for one in review], pipeline="farm")
    tell(store, msgspec.structs.replace(incident(opened=45), onset_ms=40_000), pipeline="farm")
    background = Background(store, Feeding(control_lines={"farm": line}))
    with running(store, background=background) as console:
        yield console, line, background


def test_the_first_page_says_what_where_since_when_how_far_and_what_is_asked(sick):
    console, _, _ = sick
    home = console.ask("/")
    assert (home.status, home.headers["location"]) == (303, "/now")
    page = console.ask("/now").text
    for words in (
        "T07/vib", "For <b>5 s</b>", "usually 20", "80</b> of 100, extreme",
        "Fault, or new normal?", "reference frozen", "running</span>",
    ):  # fmt: skip
        assert words.lower() in page.lower(), words


@pytest.mark.thorough
def test_a_card_names_first_what_speaks_though_it_reads_canonical_time_just_now(wall_store):
    """The gearbox of the demo was between its peaks, and the card named the weather."""
    store = wall_store(settle_s=0)
    spoken = [
        ChannelEvidence("power", None, 0.1, Label.NORMAL),
        ChannelEvidence("gearbox", 9.0, 0.1, Label.NORMAL, Expected(90.0, 21.5, 20.5, 22.5)),
        ChannelEvidence("ambient", -3.0, 9.0, Label.ANOMALY),
    ]
    opened = msgspec.structs.replace(
        incident(opened=45), onset_ms=40_000, channels=tuple(spoken), changed_ms=60_000
    )
    tell(store, opened, pipeline="farm")
    told = [
        (1000 * t, (20.0 + t % 3 if not 40 <= t <= 50 else 90.0 + t % 2, 5.0 + t % 3, t / 1e3))
        for t in range(61)
    ]
    store.add_readings("T07/vib", "T07/vib", ("gearbox", "power", "ambient"), told, pipeline="farm")
    with running(store) as console:
        (card,) = re.findall('(?s)class="card-actual">(.*?)</ul>', console.ask("/now").text)
        page = console.ask("/incidents/feed-0-45").text
        spoken[0] = ChannelEvidence("power", 6.0, 0.1, Label.NORMAL)
        speaks = msgspec.structs.replace(opened, version=2, channels=tuple(spoken))
        tell(store, speaks, pipeline="farm")
        pages = [console.ask(path).text for path in ("/now", "/incidents/feed-0-45")]
    assert re.search("power .</bdi></b>, within its usual 5 to 7", page)
    for later in pages:
        assert re.search("power .</bdi></b>, by itself it may be 5 to 7", later)
    told, first, second = re.findall("<li>(.*?)</li>", card)
    assert "gearbox 90.0, expected 21.5 from the others" in told, "as the alert says"
    assert "gearbox" in first
    assert "91</bdi></b> at worst, usually 20 to 22; now" in first
    assert "ambient" in second, "it does read otherwise; what reads as usual is not named"
    assert "at worst" not in second
    assert page.index(">gearbox ") < page.index(">ambient ") < page.index(">power ")
    adds = page.partition("based on, by weight</dt>")[2].partition("</dd>")[0]
    assert "gearbox 100\xa0%" in re.sub("<.*?>", "", adds)
    assert "gearbox 90.0, expected 21.5 from the others" in adds
    assert "ambient" not in adds


def test_a_missing_value_is_no_limit_that_people_set(wall_store):
    store = wall_store()
    missing = (LimitExcess("flow", None, 10.0, 11),)
    tell(store, incident(limits=missing), pipeline="farm")
    tell(store, incident(opened=30, stream="b", limits=(LimitExcess("vib", 7.0, 6.0),)))
    background = Background(store, Feeding(control_lines={"farm": Line(), "": Line()}))
    with running(store, background=background) as console:
        for path in ("/now", "/incidents", "/incidents/feed-0-10"):
            page = console.ask(path).text
            assert ">no value</span>" in page, path
        page = console.ask("/incidents/feed-0-10").text
        assert "limit that people set" not in page
        assert "The limit stays" not in page
        assert '"passed_limit": false' in page
        assert "limit that people set" in console.ask("/incidents/feed-0-30").text


def test_the_page_says_what_is_pending_and_takes_it_back(sick):
    console, line, background = sick
    body = {"request_id": "r", "incident": "feed-0-45", "version": 1, "kind": "fault"}
    command = console.ask("/api/incidents/answer", body).json["command"]["id"]
    page = console.ask("/incidents/feed-0-45").text
    assert "Take it back" in page
    assert 'id="actions"' not in page, "nobody can answer meanwhile"
    assert "has not replied yet" in console.ask("/now").text
    background.round()
    assert line.said == [], "it waits for its undo"
    assert console.ask("/api/incidents/withdraw", {"command": command}).status == 200
    assert 'id="actions"' in console.ask("/incidents/feed-0-45").text


@pytest.mark.thorough
@pytest.mark.parametrize(("step_ms", "waits_min"), [(1_000, 15), (3_600_000, 180)])
def test_a_pipeline_of_which_nothing_comes_is_said_to_be_quiet(wall_store, step_ms, waits_min):
    from rejex_stream.review.queue.database import wall_clock_ms

    away = [0]
    store = wall_store(clock_ms=lambda: wall_clock_ms() + away[0])
    verdicts = [msgspec.structs.replace(item(k).verdict, event_time_ms=k * step_ms, seq=k)
                for k in range(1, 31)]  # fmt: skip
    store.ingest("verdicts", map(encode_verdict, verdicts), pipeline="farm")
    tell(store, incident(), pipeline="farm")
    with running(store) as console:
        away[0] = (waits_min - 1) * 60_000
        assert "is it running?" not in console.ask("/now").text
        away[0] = (waits_min + 10) * 60_000
        assert "is it running?" in console.ask("/now").text
        assert "The pipeline is not running" in console.ask("/incidents/feed-0-10").text


def test_who_has_seen_an_incident_and_what_they_say_stays(sick):
    console, _, _ = sick
    seen = {"request_id": "s1", "incident": "feed-0-45"}
    for _ in range(2):
        assert console.ask("/api/incidents/seen", seen).status == 200
    console.ask("/api/incidents/seen", seen | {"request_id": "s2", "text": "oil <b>"})
    page = console.ask("/incidents/feed-0-45").text
    assert "oil &lt;b&gt;" in page
    assert "Seen by <bdi>ada</bdi>" in console.ask("/now").text
    actions = [action for (action,) in rows(console.store, "SELECT action FROM audit")]
    assert (actions.count("seen"), actions.count("comment")) == (1, 1)
    assert console.ask("/api/incidents/seen", seen | {"incident": "none"}).status == 404


def test_incidents_are_found_by_name_and_come_by_the_page(wall_store):
    store = wall_store()
    tell(store, *(incident(opened=10 + 99 * k, stream=f"P{k % 3}/s{k}") for k in range(60)))
    with running(store) as console:
        page = console.ask("/incidents").text
        assert page.count("data-row") == 50
        assert "Further ones" in page
        assert console.ask("/incidents?q=p1/").text.count("data-row") == 20


def test_names_that_would_pass_for_others_are_shown(wall_store):
    store = wall_store(settle_s=0)
    names = {"pump\x00": "pump⟨U+0000⟩", "a\x1bb": "a⟨U+001B⟩b", "c\x08d": "c⟨U+0008⟩d",
             "e\x7ff": "e⟨U+007F⟩f", "g\nh": "g↵h", "live\u202e-rtl": "live⟨U+202E⟩-rtl",
             "pump\u200b": "pump⟨U+200B⟩", "pump": "pump"}  # fmt: skip
    store.add([item(1000 * k, sensor=name) for k, name in enumerate(names)])
    with running(store) as console:
        page = console.ask("/queue").text
        found = console.ask(f"/queue?q={quote('pump' + chr(0x200B))}").text
    for told in names.values():
        assert told in page
    assert not set(page) & set("\x00\x1b\x08\x7f\u202e")
    assert found.count('<tr id="row-') == 1
    assert 'value="pump\u200b"' in found, "a form sends back what it was given"


# --------------------------------------------------------------------------------------- refresh
@pytest.mark.thorough
def test_an_idle_tab_is_told_that_nothing_changed_and_pages_come_compressed(new_store, clock):
    store = new_store(settle_s=0, gap_events=0)
    store.add([item(100 * k) for k in range(100)])
    with running(store) as console:
        first = console.ask("/api/summary")
        clock.pass_ms(600_000)
        again = console.ask("/api/summary", headers={"if-none-match": first.headers["etag"]})
        assert again.status == 304
        page = console.ask("/queue", headers={"accept-encoding": "gzip"})
        assert page.headers["content-encoding"] == "gzip"
        assert len(page.body) < 20_000
        labelling.claim(store, episodes(store)[0].episode_id, Viewer("bob"))
        changed = console.ask("/api/summary", headers={"if-none-match": first.headers["etag"]})
        assert changed.status == 200


def test_a_viewer_is_given_nothing_and_nobody_gives_to_one(wall_store):
    store = wall_store(settle_s=0, reviewers=("ada", "lou:viewer"))
    store.add([item(1)])
    (target,) = episodes(store)
    with running(store, access=Access(local=Viewer("ada", "lead"))) as console:
        page = console.ask(f"/episode/{target.episode_id}").text
        assert "lou" not in page
        given = console.ask("/api/assign", {"episodes": [target.episode_id], "to": "lou"})
        assert given.status == 422
    assert LOOKER.role == "viewer"


@pytest.mark.parametrize("priority", ["T07/", "T07/vib/vib", "*/vib", "T07/*/vi*"])
def test_priority_comes_first_on_now_and_is_a_label_of_the_alert(wall_store, priority):
    """By the sensor, by its channel, or by a channel wherever it is."""
    store = wall_store(priority_sensors=(priority,))
    oil = (ChannelEvidence("oil", 2.5, 0.1, Label.NORMAL), *incident().channels)
    worse = msgspec.structs.replace(incident(opened=20, severity=30.0), stream_key="T08/vib")
    worse = msgspec.structs.replace(worse, sensors=("T08/vib",), channels=oil)
    tell(store, incident(), worse)
    with running(store) as console:
        page = console.ask("/now").text
        pages = [console.ask(f"/incidents/{one.id}").text for one in (incident(), worse)]
    assert [text.count(">priority<") for text in pages] == [1, 0]
    cards = page.partition('class="cards"')[2]
    assert cards.index("T07/vib") < cards.index("T08/vib")
    assert cards.count(">priority<") == 1
    names = DisplayNames("farm", priority=(priority,))
    labels = [make_alert(one, names).labels for one in (incident(), worse)]
    assert [one.get("priority") for one in labels] == ["high", None]
    assert make_alert(incident(), DisplayNames()).labels.get("priority") is None
    beyond = msgspec.structs.replace(worse, limits=(LimitExcess("vib", 9.0, 6.0),))
    told = make_alert(beyond, names).labels.get("priority")
    assert told == ("high" if priority == "*/vib" else None), "what is beyond a limit is meant too"
