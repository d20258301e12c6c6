"""Incidents in the console: kept once, one item each, one question, and the answer in the log."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.reviewing import Channel, Sensor
from rejex_stream.encode import decode_command, encode_incident, encode_review, encode_verdict
from rejex_stream.errors import ConnectorError
from rejex_stream.operate.incident_text import DisplayNames, describe_incident
from rejex_stream.rejection.window import grade
from rejex_stream.review.console.background import Background, Feeding, feeding
from rejex_stream.review.console.console import Access
from rejex_stream.review.incidents import incident_store, readings
from rejex_stream.review.incidents.incident_store import AnswerRequest
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Refusal, Viewer, wall_clock_ms
from rejex_stream.review.queue.listing import QueueFilter, summary
from rejex_stream.review.queue.review_store import ReviewStore, apply_labels
from rejex_stream.types import CommandReply, LimitExcess, Position
from tests.pump import pump_toml
from tests.review.console_server import running
from tests.review.desk import SCHEMES, sees, shot, verdict, violations
from tests.review.incidents import Line, held, incident, tell
from tests.review.test_review_store import ADA, LOOKER, audited, episodes, item, label, read
from tests.waiting import until

ROOT = Path(__file__).resolve().parent.parent.parent

WHICH = "feed-0-10"


def look(store, what=incident_store.stored_incident, which=WHICH):
    return read(store, what, which)


def said(version=1, kind="fault", request="r1", note="bearing"):
    return AnswerRequest(request, WHICH, version, kind, note)


# ------------------------------------------------------------------------------------ the store
def test_the_newest_version_stands_and_every_change_is_kept_once(new_store):
    store = new_store()
    tell(store, incident(1), incident(3, "recovering"), incident(2, "fault"), incident(1))
    assert look(store).incident.state == "recovering"
    course = read(store, incident_store.timeline, WHICH)
    assert [change.version for change in course] == [3, 2, 1]


LIMIT, MISSING = (LimitExcess("vib", 7.0, 6.0),), (LimitExcess("vib", None, 10.0, 11),)
STREAM_C = {"opened": 30, "severity": 5, "stream": "c"}


@pytest.mark.parametrize(("told", "order"), [
    ([incident(opened=10, severity=3), incident(opened=20, severity=9, stream="b"),
      incident(**STREAM_C), incident(2, "closed", **STREAM_C, ended="recovered")], [20, 10]),
    ([incident(opened=10, severity=1.0, limits=MISSING), incident(opened=20, severity=9.0),
      incident(opened=30, severity=0.0, limits=LIMIT)], [30, 20, 10]),
    ([incident(opened=10, severity=4.5, n_anomalies=100), incident(opened=20, severity=5.0)],
     [10, 20]),
], ids=["severity", "a limit that people set", "the grade that is shown"])  # fmt: skip
def test_what_is_graded_higher_stands_first_and_what_is_over_last(new_store, told, order):
    store = new_store()
    tell(store, *told)
    over = [one.opened_seq for one in told if one.state == "closed"]
    lists = ((incident_store.standing, [*order, *over]), (incident_store.open_incidents, order))
    for found, wanted in lists:
        assert [one.incident.opened_seq for one in read(store, found)] == wanted, found
    assert read(store, summary, ADA, store.now_ms()).incidents == len(order)


def test_figures_that_are_published_between_turns_are_the_incident_as_it_stands(new_store):
    """Of a turn the first record stayed for good: severity, counts and channels stood still."""
    store = new_store()
    turned, later = incident(n_anomalies=2, severity=3.0), incident(at=90, n_anomalies=80)
    tell(store, turned, later, turned, incident(at=50, n_anomalies=40))
    with store.database.read() as connection:
        (stored,) = incident_store.open_incidents(connection)
        assert stored.incident == later
        assert incident_store.timeline(connection, WHICH) == [turned], "when it turned"
    tell(store, incident(2, "fault", at=95), incident(at=99, n_anomalies=99))
    assert read(store, incident_store.stored_incident, WHICH).incident.version == 2


@pytest.mark.parametrize("severity", [2.2, 7.25, 191.7])
def test_pages_and_alerts_have_one_scale_of_severity(ward, severity):
    """Alerts said 22 (slight) where the pages said 42, clear, of the same incident."""
    console, _, _ = ward
    severe = incident(opened=50, severity=severity, stream="b", n_anomalies=75)
    tell(console.store, severe, pipeline="farm")
    points, word = grade(severity, severe.n_anomalies)
    for path in ("/now", "/incidents", f"/incidents/{severe.id}"):
        text = " ".join(re.sub(r"<[^>]+>", "", console.ask(path).text).split())
        assert f"{points} of 100, {word}" in text, path
    assert f"severity {points} of 100 ({word})" in describe_incident(severe)


def test_one_incident_is_one_item_whatever_its_length_and_answers(new_store):
    store = new_store(settle_s=0, gap_events=1)
    store.add([item(5)])
    store.add([held(i) for i in (10, 11, 12, 13, 400, 9_000)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 6]
    mine = next(t for t in episodes(store) if t.n_events == 6)
    label(store, ADA, [mine], "anomaly")
    store.add([held(i) for i in (9_001, 20_000)])
    assert [t.n_events for t in episodes(store)] == [1], "nobody is asked about it again"
    assert sorted(t.status for t in episodes(store, tab="all")) == ["done", "held", "open"]
    labelling.undo(store, "u1", ADA)
    store.add([held(20_001)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 7]
    store.add([held(30_000, opened=30_000), item(40_000)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 1, 1, 7]


def test_what_was_rejected_before_the_evidence_was_in_is_part_of_the_item(new_store):
    store = new_store(settle_s=0, gap_events=5)
    store.add([item(1), item(7), item(9), held(10), held(5_000), item(5_001)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 1, 4]


def test_a_part_that_is_answered_leaves_the_rest_of_an_incident_open(new_store):
    store = new_store(settle_s=0)
    store.add([held(i) for i in (10, 11, 12)])
    label(store, ADA, episodes(store), "normal", span_ms=(10_000, 10_000))
    store.add([held(13)])
    assert [t.n_events for t in episodes(store)] == [3]


def test_a_store_made_anew_asks_nobody_again(new_store):
    store = new_store(settle_s=0)
    store.add([held(i) for i in (10, 11)])
    label(store, ADA, episodes(store), "anomaly")
    store.add([held(12)])
    with store.database.read() as connection:
        from rejex_stream.encode.label_records import decode_label

        records = [decode_label(row[0]) for row in connection.execute("SELECT record FROM label")]
    again = new_store("again.db", settle_s=0)
    again.add([held(i) for i in (10, 11, 12)])
    apply_labels(again, records)
    assert episodes(again) == []
    assert sorted(t.status for t in episodes(again, tab="all")) == ["done", "held"]


def test_the_queue_is_sorted_by_severity_where_there_is_one(new_store):
    store = new_store(settle_s=0)
    store.add([item(1000), held(10, 10, 4.0), held(11, 10, 6.5)])
    store.add([held(2000, 2000, 5.0, sensor="b"), held(3000, 3000, 9.0, sensor="c")])
    with store.database.read() as connection:
        found = QueueFilter(sort="severity").rows(connection, ADA, store.now_ms())
        assert [row["severity"] for row in found] == [9.0, 6.5, 5.0, None]


# ---------------------------------------------------------------------------------- the answers
def test_an_answer_is_said_once_whatever_is_repeated(new_store):
    store, line = new_store(), Line()
    tell(store, incident())
    first = incident_store.give_answer(store, said(), ADA)
    assert incident_store.give_answer(store, said(), ADA) == first
    line.away = True
    with pytest.raises(ConnectorError):
        incident_store.send_commands(store, "", line)
    line.away = False
    told = (
        incident_store.send_commands(store, "", line),
        incident_store.send_commands(store, "", line),
        incident_store.send_commands(store, "other", line),
    )
    assert told == ([first], [], [])
    (told,) = line.said
    assert told == first
    assert (told.by, told.note, told.incident, told.version) == ("ada", "bearing", WHICH, 1)
    assert (told.kind, told.stream_key) == ("fault", "T07/vib")
    assert audited(store) == [("ada", "answer", WHICH)]


@pytest.mark.parametrize(("now", "kind", "words"), [
    (incident(2, "recovering"), "fault", "At version 2 now, it is returning to normal."),
    (incident(2, "fault"), "fault", "it is a fault, as was answered."),
    (incident(2, "fault", known=True), "known_fault", "it is a known fault, and stays"),
    (incident(2, "adopting"), "fault", "it becomes the new normal by itself"),
    (
        incident(2, "closed", ended="recovered"), "new_normal",
        "At version 2 now, it has returned to normal.",
    ),
], ids=["stale", "again", "known", "adopting", "closed"])  # fmt: skip
def test_an_answer_that_comes_too_late_is_refused_with_what_is_true(new_store, now, kind, words):
    store, line = new_store(), Line()
    tell(store, incident(), now)
    with pytest.raises(Refusal, match=words):
        incident_store.give_answer(store, said(kind=kind), ADA)
    assert (incident_store.send_commands(store, "", line), audited(store)) == ([], [])


def test_a_fault_may_be_a_known_one_later(new_store):
    store, line = new_store(), Line()
    tell(store, incident(), incident(2, "fault"))
    answer = msgspec.structs.replace(said(kind="known_fault"), version=2)
    incident_store.give_answer(store, answer, ADA)
    assert [one.kind for one in incident_store.send_commands(store, "", line)] == ["known_fault"]


def test_who_may_only_look_answers_nothing(new_store):
    store = new_store()
    tell(store, incident())
    with pytest.raises(Refusal, match="ask for the role reviewer"):
        incident_store.give_answer(store, said(), LOOKER)
    with pytest.raises(Refusal, match="There is no incident"):
        incident_store.give_answer(store, msgspec.structs.replace(said(), incident="feed-0-1"), ADA)


# -------------------------------------------------------------------------------------- the web
@pytest.fixture
def ward(wall_store):
    """A console on one incident with its item, and the line to its pipeline."""
    store, line = wall_store(settle_s=0), Line()
    review = [item(2), *(held(i) for i in range(10, 14))]
    store.ingest("review", map(encode_review, review), pipeline="farm")
    verdicts = [msgspec.structs.replace(one.verdict, tolerance=32.0) for one in review]
    store.ingest("verdicts", map(encode_verdict, verdicts), pipeline="farm")
    tell(store, incident(), pipeline="farm")
    background = Background(store, Feeding(control_lines={"farm": line}), undo_ms=0)
    with running(store, background=background) as console:
        yield console, line, background


def answer_it(console, version=1, kind="fault", request="r1", **more):
    body = {"request_id": request, "incident": WHICH, "version": version, "kind": kind, **more}
    return console.ask("/api/incidents/answer", body)


def test_an_answer_and_what_became_of_it_are_on_the_page(ward):
    console, line, background = ward
    page = console.ask(f"/incidents/{WHICH}").text
    assert "Fault, or new normal?" in page
    given = answer_it(console, note="oil <b>")
    assert given.status == 200
    assert "on its way" in console.ask(f"/incidents/{WHICH}").text
    background.round()
    (command,) = line.said
    assert command.id == given.json["command"]["id"]
    page = console.ask(f"/incidents/{WHICH}").text
    assert "the reply comes with the next events" in page
    assert "oil &lt;b&gt;" in page
    tell(console.store, CommandReply(command=command.id, accepted=False, said="It is at 4."))
    assert "refused</span> It is at 4." in console.ask(f"/incidents/{WHICH}").text
    tell(console.store, incident(2, "fault", answer=command.id), pipeline="farm")
    stale = answer_it(console, request="r2", kind="new_normal")
    assert (stale.status, stale.json["code"]) == (409, "changed")
    assert "At version 2 now, it is a fault, as was answered." in stale.json["message"]
    (given,) = read(console.store, incident_store.answers_to, WHICH)
    assert given.accepted is False
    assert "bearing" not in console.ask("/audit").text
    assert "answer" in console.ask("/audit").text


def test_while_the_control_log_is_away_people_are_told_that_answers_wait(ward):
    """The page said what the broker's library said, and no word of what was to be sent."""
    console, line, background = ward
    line.away = True
    answer_it(console)
    background.round()
    page = console.ask("/now").text
    assert "the control log is away Answers wait in the store and leave by themselves" in page
    line.away = False
    background.round()
    assert "Answers wait" not in console.ask("/now").text
    assert len(line.said) == 1


def test_a_stream_that_is_held_is_marked_in_the_queue(ward):
    console, _, _ = ward
    path = "/queue?tab=all"
    link = f'href="/incidents/{WHICH}"'
    assert console.ask(path).text.count(link) == 1
    tell(console.store, incident(2, "closed", ended="recovered"), pipeline="farm")
    # Its item in the queue goes on to lead there.
    assert console.ask(path).text.count(link) == 1


def test_a_list_shows_what_is_open_first_and_says_when_anything_moved(ward):
    console, _, _ = ward
    before = console.ask("/api/summary").json
    assert before["counts"]["incidents"] == 1
    tell(console.store, incident(opened=90, stream="<i>"), pipeline="farm")
    tell(console.store, incident(2, "closed", opened=90, stream="<i>", ended="adopted"))
    after = console.ask("/api/summary").json
    assert after["version"].split(".")[:-1] != before["version"].split(".")[:-1]
    page = console.ask("/incidents").text
    assert page.index(WHICH) < page.index("feed-0-90")
    assert "&lt;i&gt;" in page
    assert console.ask("/incidents/none").status == 404


def test_a_list_counts_the_events_of_now_and_not_those_of_the_opening(ward):
    console, _, _ = ward
    for at in range(400, 440):
        line = encode_verdict(item(at, sensor="T07/vib").verdict)
        console.store.ingest("verdicts", [line], pipeline="farm")
    page, now = console.ask("/incidents").text, console.ask("/now").text
    (events,) = re.findall(r'<td class="num">([\d,]+)</td>', page)
    assert int(events) >= 40
    assert f"{events} readings" in now


@pytest.mark.thorough
@pytest.mark.parametrize("held", [True, False])
def test_an_incident_by_a_limit_says_which_limit_and_stands_first(wall_store, held):
    """Its page said "0 of 100" and nothing of the limit; the list had it last."""
    store = wall_store()
    tell(store, incident(opened=30, severity=9.0, stream="b"), pipeline="farm")
    passed = (LimitExcess("vib", 7.25, 6.0), LimitExcess("<t>", -4.0, -2.5))
    by_limit = incident(severity=0.0, held=held, limits=passed)
    tell(store, by_limit, pipeline="farm")
    shown = DisplayNames(channels={"vib": Channel(unit="mm/s", label="Vibration <1>")})
    said = "Vibration &lt;1&gt; 7.25 mm/s is above its limit of 6 mm/s"
    background = Background(store, Feeding(control_lines={"farm": Line()}))
    with running(store, background=background) as console:
        console.console.shown["farm"] = shown
        now, all_of_them = console.ask("/now").text, console.ask("/incidents").text
        page = console.ask(f"/incidents/{WHICH}").text
        for text in (now, all_of_them, page):
            assert said in text
            assert "&lt;t&gt; -4 is below its limit of -2.5" in text
        assert now.index(WHICH) < now.index("feed-0-30")
        assert all_of_them.index(WHICH) < all_of_them.index("feed-0-30")
        assert "scores are ordinary</span></dd>" in page, "a severity that is none has no date"
        assert page.count("The limit stays: ") == 1, "whatever is learnt"
        assert "The limit stays" not in console.ask("/incidents/feed-0-30").text
        tell(
            store,
            incident(2, "closed", severity=0.0, limits=passed, ended="recovered"),
            pipeline="farm",
        )
        assert said in console.ask(f"/incidents/{WHICH}").text


@pytest.mark.thorough
def test_an_incident_is_given_to_somebody_and_shelved_until_its_end(wall_store):
    away = [0]
    store = wall_store(clock_ms=lambda: wall_clock_ms() + away[0], reviewers=("bob", "lou:viewer"))
    tell(store, incident())
    passed = {"limits": (LimitExcess("vib", 7.0, 6.0),)}

    def care():
        with store.database.read() as connection:
            found = incident_store.stored_incident(connection, WHICH).incident
            found = incident_store.care_of(connection, found, store.now_ms())
        return found.assigned, found.shelved_by

    with running(store) as console:

        def take(status=200, **body):
            done = console.ask("/api/incidents/care", {"incident": WHICH, "why": "rain"} | body)
            assert done.status == status
            return done.json["message"]

        assert care() == ("", "")
        assert take(to="bob") == "T07/vib: given to bob."
        take(shelve_hours=2)
        assert care() == ("bob", "ada")
        assert take(to="", shelve_hours=0) == (
            "T07/vib: given back to everybody and not shelved any more."
        )
        assert care() == ("", "")
        take(shelve_hours=1)
        away[0] = 3_600_001
        assert care() == ("", ""), "it has an end"
        take(shelve_hours=1)
        tell(store, incident(2))
        assert care() == ("", "ada")
        tell(store, incident(3, **passed))
        assert care() == ("", ""), "what passes a limit is said"
        take(shelve_hours=1)
        tell(store, incident(4, **passed))
        assert care() == ("", "ada"), "it was passed when that was shelved"
        tell(store, incident(5, "fault", **passed))
        assert care() == ("", ""), "nor does it outlast a turn"
        assert "Nobody here" in take(422, to="lou")
        tell(store, incident(6, "closed", ended="recovered"))
        assert "it has returned to normal" in take(409, to="bob")
    with running(store, access=Access(local=LOOKER)) as console:
        take(403, to="bob")


def test_a_case_of_before_an_incident_is_not_said_to_be_of_it(wall_store):
    """The demo's cases of March were marked for an incident of May, beside "no incident"."""
    store = wall_store(settle_s=0)
    store.add([item(0), held(12)])
    tell(store, incident())
    with running(store) as console:
        rows = console.ask("/queue/rows?tab=all").text.split("</tr>")
    assert sorted(">incident</a>" in row for row in rows[:2]) == [False, True]


def test_who_may_say_new_normal_is_a_setting(wall_store):
    store = wall_store(new_normal="lead")
    tell(store, incident())
    bob, lou = Viewer("bob", "reviewer"), Viewer("lou", "lead")
    with running(store, access=Access(local=bob)) as console:
        page = console.ask(f"/incidents/{WHICH}").text
        assert page.count("It takes the role lead.") == 1
    with pytest.raises(Refusal, match="New normal takes the role lead here"):
        incident_store.give_answer(store, said(kind="new_normal"), bob)
    assert incident_store.give_answer(store, said(kind="new_normal"), lou).by == "lou"
    store = wall_store("other.db")
    tell(store, incident())
    assert incident_store.give_answer(store, said(kind="new_normal"), bob).by == "bob"


def test_a_shelved_incident_leaves_the_first_page_and_the_list_says_whose_it_is(ward):
    console, _, _ = ward
    for body in ({"to": "ada"}, {"shelve_hours": 8, "why": "a <new> seal is on its way"}):
        assert console.ask("/api/incidents/care", {"incident": WHICH} | body).status == 200
    now, listed = console.ask("/now").text, console.ask("/incidents").text
    assert "Shelved for now" in now
    assert 'class="panel card"' not in now
    assert "for <bdi>ada</bdi>" in listed
    assert ">shelved<" in listed
    why = "a &lt;new&gt; seal is on its way"
    assert (
        f"shelved by <bdi>ada</bdi> (<q><bdi>{why}</bdi></q>)"
        in console.ask(f"/incidents/{WHICH}").text
    )
    assert why in now
    assert console.ask("/api/incidents/care", {"incident": WHICH, "shelve_hours": 8}).status == 422
    for body in ({"shelve_hours": -1}, {"shelve_hours": 10_000}, {"to": "x" * 65}):
        assert console.ask("/api/incidents/care", {"incident": WHICH} | body).status == 422
    assert console.ask("/api/incidents/care", {"incident": "none", "to": ""}).status == 404


def test_incidents_are_found_by_plant_sensor_and_channel(wall_store):
    store, day = wall_store(), 86_400
    for at, stream in ((10, "B/1"), (3 * day + 20, "A/1"), (3 * day + 50, "B/2")):
        tell(store, incident(opened=at, stream=stream), pipeline="farm")

    def sections(address):
        page = console.ask(address).text
        return re.findall(r'<h2 id="part-\d+"><bdi>([^<]+)</bdi>', page)

    with running(store) as console:
        assert sections("/incidents") == ["Open"]
        assert "feed-0-10" not in console.ask("/incidents?q=b/2").text
        assert "feed-0-10" in console.ask("/incidents?q=VIB").text
        assert sections("/incidents?q=nowhere") == []


def test_a_viewer_looks_and_does_not_answer(wall_store):
    store = wall_store()
    tell(store, incident())
    with running(store, access=Access(local=LOOKER)) as console:
        page = console.ask(f"/incidents/{WHICH}").text
        assert "ask for the role reviewer" in page
        assert "data-kind" not in page
        refused = answer_it(console)
        assert (refused.status, refused.json["code"]) == (403, "forbidden")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "body",
    [{"version": 0}, {"kind": "cancel"}, {"request_id": ""}, {"note": "x" * 4001}],
    ids=["version", "kind", "request", "note"],
)
def test_nonsense_is_refused(ward, body):
    console, line, background = ward
    sound = {"request_id": "r", "incident": WHICH, "version": 1, "kind": "fault"}
    assert console.ask("/api/incidents/answer", sound | body).status == 422
    assert console.ask("/api/incidents/answer", sound, site="cross-site").status == 403
    background.round()
    assert line.said == []


def test_a_config_is_all_a_console_needs_to_hear_and_to_tell(tmp_path, monkeypatch, wall_store):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.toml").write_text(
        '[pipeline]\nname = "pump"\n[input]\npath = "feed.csv"\nchannels = ["flow"]\n'
        'time = "t"\n[rejection]\ncontamination = 0.05\ntolerance = 32\n'
    )
    (tmp_path / "incidents.jsonl").write_bytes(encode_incident(incident()) + b"\nnonsense\n")
    store: ReviewStore = wall_store()
    fed = feeding(store.database.path, configs=[load_config(tmp_path / "pump.toml")])
    background = Background(store, fed, undo_ms=0)
    background.round()
    assert look(store).pipeline == "pump"
    assert background.invalid["incidents"][0] == 1
    command = incident_store.give_answer(store, said(), ADA)
    background.round()
    background.round()
    (line,) = (tmp_path / "control.jsonl").read_bytes().splitlines()
    assert decode_command(line) == command
    assert background.problems == {}
    assert background.stop()


# ---------------------------------------------------------------------------------- the browser
@pytest.mark.browser
def test_an_incident_is_answered_by_keyboard_and_shows_the_reply_by_itself(ward, desk):
    console, line, background = ward
    with desk(console) as place:
        page = place.open("/incidents")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/incidents/{WHICH}")
        page.keyboard.press("i")
        page.keyboard.type("bearing 12")
        page.keyboard.press("Escape")
        verdict(page, "1")
        sees(page, "on its way", "#said")
        background.round()
        (command,) = line.said
        assert (command.kind, command.note) == ("fault", "bearing 12")
        tell(console.store, CommandReply(command=command.id, accepted=True, said="It is held."))
        tell(console.store, incident(2, "fault", answer=command.id), pipeline="farm")
        sees(page, "accepted It is held.", "#said")
        sees(page, "fault", "#state")
        page.wait_for_selector("[data-kind=fault]", state="detached")


@pytest.mark.browser
def test_a_stale_answer_is_refused_on_the_page_with_what_is_true_now(ward, desk):
    console, line, background = ward
    with desk(console) as place:
        page = place.open(f"/incidents/{WHICH}")
        page.route("**/api/summary*", lambda route: route.abort())  # it hears of nothing
        with place.expecting("ERR_FAILED"):
            tell(console.store, incident(2, "recovering"), pipeline="farm")
            page.click("[data-kind=new_normal]")
            sees(page, "Is this the new normal?", "#ask")
            page.click("#ask-yes")
            sees(page, "At version 2 now, it is returning to normal", "#refused")
            sees(page, "recovering", "#state")
            page.click("[data-kind=new_normal]")
            page.click("#ask-yes")
            sees(page, "new normal", "#said")
            page.unroute("**/api/summary*")
        until(lambda: background.round() or line.said)
        assert line.said[0].version == 2


@pytest.mark.browser
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_screens_of_incidents_are_clean_for_axe_and_fit_a_phone(ward, desk, axe, scheme):
    console, _, _ = ward
    answer_it(console, note="oil change")
    tell(console.store, incident(2, "closed", opened=90, stream="b", ended="adopted"))
    by_limit = (LimitExcess("a-channel-with-a-name-of-thirty-s", 7.25, 6.0),)
    tell(console.store, incident(opened=40, stream="c", severity=0, limits=by_limit))
    tell(console.store, incident(opened=50, stream="d"))
    care = {"incident": "feed-0-50", "to": "ada", "shelve_hours": 8, "why": "rain"}
    assert console.ask("/api/incidents/care", care).status == 200
    phone = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
    with desk(console) as place:
        for name, size in (("wide", {}), ("phone", phone)):
            page = place.open("/incidents", scheme=scheme, **size)
            for path in (
                "/now", "/incidents?q=T07", f"/incidents/{WHICH}", "/incidents/feed-0-40", "/queue",
            ):  # fmt: skip
                page.goto(console.base + path)
                shot(page, f"incidents-{path.split('/')[-1].partition('?')[0]}-{name}-{scheme}")
                assert violations(page, axe) == [], path
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
                    path
                )
                if path.startswith("/incidents?"):  # the list's last column was off the screen
                    assert page.evaluate(
                        "[...document.querySelectorAll('.scroll')].every(one => "
                        "one.scrollWidth <= one.clientWidth)"
                    )


# ----------------------------------------------------------------------------- a whole pipeline
@pytest.mark.thorough
def test_a_fault_is_held_answered_on_the_page_and_over_in_a_real_pipeline(
    tmp_path, monkeypatch, wall_store
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.toml").write_text(pump_toml(source=""))
    draw = random.Random(3)

    def feed(start, stop, shift):
        with (tmp_path / "feed.csv").open("a") as file:
            if not start:
                file.write("t,flow\n")
            file.writelines(
                f"{1_700_000_000 + i},{draw.gauss(shift, 1):.4f}\n" for i in range(start, stop)
            )
        assert main(["run", "pump.toml"]) == 0

    feed(0, 1500, 0.0)
    feed(1500, 1600, 20.0)
    store = wall_store(settle_s=0)
    fed = feeding(store.database.path, configs=[load_config(tmp_path / "pump.toml")])
    background = Background(store, fed, undo_ms=0)
    background.round()
    with running(store, background=background) as console:
        (found,) = (one.incident for one in read(store, incident_store.open_incidents))
        which = found.id
        assert which in console.ask("/now").text
        given = console.ask(
            "/api/incidents/answer",
            {"request_id": "r", "incident": which, "version": found.version, "kind": "fault"},
        )
        assert given.status == 200, given.text
        background.round()
        feed(1600, 1610, 20.0)  # heard at its commit, it holds from the next event on
        feed(1610, 1620, 20.0)
        background.round()
        with store.database.read() as connection:
            known = incident_store.stored_incident(connection, which).incident
            (answered,) = incident_store.answers_to(connection, which)
        assert known.state == "fault"
        assert answered.accepted is True
        assert (
            "It is held until scores are ordinary again." in console.ask(f"/incidents/{which}").text
        )
        feed(1620, 1900, 0.0)
        background.round()
    with store.database.read() as connection:
        assert incident_store.stored_incident(connection, which).incident.ended == "recovered"
        items = connection.execute(
            "SELECT incident FROM episode WHERE end_ms >= ? AND start_ms <= ?",
            (known.onset_ms, known.changed_ms),
        )
        assert [row["incident"] for row in items] == [which]
    assert background.problems == {}
    assert background.stop()


@pytest.mark.thorough
def test_an_answer_passes_few_files_from_its_page_to_the_model():
    """It was 27, then 16, then 13. What is behind the console is the way of any command."""
    # A process of its own: where a browser's tests ran, a loop of asyncio is running already.
    command = [sys.executable, "-m", "tools.trace_answer"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    way = dict.fromkeys(re.findall(r"^  (\S+\.py)$", out, re.M))
    assert [file for file in way if "/review/" in file] == [
        "rejex_stream/review/console/console.py", "rejex_stream/review/incidents/screen.py",
        "rejex_stream/review/incidents/incident_store.py", "rejex_stream/review/queue/database.py",
        "rejex_stream/review/queue/review_store.py",
    ]  # fmt: skip
    assert int(re.match(r"one answer: (\d+) files", out)[1]) <= 14
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    told = page.split("## The way of one answer")[1].split("\n## ")[0]
    named = re.findall(r"`((?:rejex_stream|connectors)/[\w/]+\.py)`", told)
    to_the_model = list(way)[: list(way).index("rejex_stream/incidents/state_machine.py") + 1]
    assert set(named) == set(to_the_model), "docs/explanation/architecture.md goes another way"


def test_the_page_of_an_incident_links_its_runbook(wall_store):
    store = wall_store()
    tell(store, incident(), pipeline="farm")
    with running(store) as console:
        assert "runbook" not in console.ask(f"/incidents/{WHICH}").text
        known = {"T07/*": Sensor(link="https://wiki.example/{sensor}")}
        console.console.shown["farm"] = DisplayNames("farm", sensors=known)
        page = console.ask(f"/incidents/{WHICH}").text
    assert 'href="https://wiki.example/T07%2Fvib"' in page


@pytest.mark.parametrize(("name", "position"), [
    ("a-b-3-17", Position("a-b", 3, 17)), ("feed.csv-0-17.4", Position("feed.csv", 0, 17)),
    ("feed-2-17-silent-1", Position("feed", 2, 17)),
])  # fmt: skip
def test_the_input_around_an_incident_is_found_by_any_id(name, position):
    assert readings._opened_at(msgspec.structs.replace(incident(), id=name)) == position
