"""A shelved incident pages nobody: a real Alertmanager, kept in line with the store."""

from __future__ import annotations

import json
import urllib.request

import pytest

from rejex_stream.errors import ConnectorError
from rejex_stream.operate.alerts import Alertmanager, make_alert
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.operate.open_situations import OpenSituations
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.incidents import incident_store
from rejex_stream.review.incidents.silences import Silences
from rejex_stream.review.queue.database import wall_clock_ms
from rejex_stream.types import CommandReply
from tests.operate.alerting import Receiver, alertmanager, until
from tests.review.console_server import running
from tests.review.incidents import Line, incident, tell
from tests.review.test_review_store import ADA, episodes, label
from tests.review.test_sibling_questions import asked as siblings
from tests.review.test_sibling_questions import storm
from tests.waiting import PATIENCE_S


def asked(url, path):
    with urllib.request.urlopen(f"{url}/api/v2/{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def state_of(url):
    """Whether each incident's alert pages: active, or suppressed."""
    return {one["labels"]["incident"]: one["status"]["state"] for one in asked(url, "alerts")}


def shelve(console, hours, which="feed-0-10"):
    body = {"incident": which, "shelve_hours": hours, "why": "a spare part is on its way"}
    assert console.ask("/api/incidents/care", body).status == 200


@pytest.mark.prometheus
def test_a_shelved_incident_pages_nobody_until_that_ends(tmp_path, wall_store):
    receiver = Receiver()
    store = wall_store(reviewers=("ada:lead",))
    both = incident(), incident(opened=30, stream="T08/vib")
    tell(store, *both, pipeline="farm")
    with alertmanager(tmp_path, receiver.url) as url, running(store) as console:
        other = {
            "matchers": [{"name": "pipeline", "value": "farm", "isRegex": False, "isEqual": True},
                         {"name": "stream", "value": "x", "isRegex": False, "isEqual": True}],
            "startsAt": "2024-01-01T00:00:00Z", "endsAt": "2094-01-01T00:00:00Z",
            "createdBy": "an operator", "comment": "not ours",
        }  # fmt: skip
        Silences(url, "farm")._ask("POST", "silences", other)
        manager = Alertmanager(url, repeat_s=0.5)
        manager.update(make_alert(one, DisplayNames("farm")) for one in both)
        until(lambda: state_of(url) == {"feed-0-10": "active", "feed-0-30": "active"})
        background = Background(store, Feeding(silences={"farm": Silences(url, "farm")}))
        background.round()
        shelve(console, 2)
        assert Silences(url, "farm").bring_in_line(store)
        until(lambda: state_of(url) == {"feed-0-10": "suppressed", "feed-0-30": "active"})
        (ours,) = [
            one for one in asked(url, "silences") if one["comment"].startswith("rejex-stream")
        ]
        assert ours["createdBy"] == "ada"
        assert {one["name"]: one["value"] for one in ours["matchers"]} == {
            "pipeline": "farm", "incident": "feed-0-10",
        }  # fmt: skip
        again = Silences(url, "farm")
        again.bring_in_line(store)
        assert not again.bring_in_line(store), "nothing is asked while nothing changes"
        live = [one for one in asked(url, "silences") if one["status"]["state"] == "active"]
        assert len(live) == 2, "a console that starts again silences nothing twice"
        shelve(console, 8)
        again.bring_in_line(store)
        shelve(console, 0)
        again.bring_in_line(store)
        until(lambda: state_of(url)["feed-0-10"] == "active")
        shelve(console, 8)
        again.bring_in_line(store)
        tell(store, incident(2, "recovering"), pipeline="farm")
        again.bring_in_line(store)
        until(lambda: state_of(url)["feed-0-10"] == "active"), "it turned: the shelving is over"
        live = [one for one in asked(url, "silences") if one["status"]["state"] == "active"]
        assert [one["comment"] for one in live] == ["not ours"]
        manager.close()
    receiver.close()


def test_an_alertmanager_that_is_away_is_said_on_every_page_and_tried_again(wall_store):
    store = wall_store()
    tell(store, incident(), pipeline="farm")
    silences = Silences("http://127.0.0.1:1/hunter2", "farm")
    background = Background(store, Feeding(silences={"farm": silences}))
    with running(store, background=background) as console:
        shelve(console, 2)
        background.round()
        page = console.ask("/now").text
        assert "did not take which incidents are shelved" in page
        assert "Shelved incidents go on paging until that works." in page
        assert "hunter2" not in page
        assert background.failing()["silences farm"]
    with pytest.raises(ConnectorError, match=r"check alerts\.alertmanager_url"):
        silences.bring_in_line(store)


def test_only_incidents_of_the_own_pipeline_are_silenced(wall_store):
    away = [0]
    store = wall_store(clock_ms=lambda: wall_clock_ms() + away[0])
    tell(store, incident(), pipeline="other")
    silences = Silences("http://127.0.0.1:1", "farm")
    silences._held = {}
    with running(store) as console:
        shelve(console, 2)
    assert silences.bring_in_line(store) is False


def acknowledge(console, request="a1", which="feed-0-10"):
    body = {"request_id": request, "incident": which}
    assert console.ask("/api/incidents/seen", body).status == 200


@pytest.mark.prometheus
def test_a_situation_is_one_alert_silent_once_acknowledged_and_back_after_a_relapse(
    tmp_path, wall_store
):
    """Beside it three siblings ask one question, which pages nobody and is answered meanwhile."""
    receiver = Receiver()
    store = wall_store(reviewers=("ada:lead",), settle_s=0)
    store.add(storm()[:3])

    def both(*change):
        return incident(*change), incident(*change, opened=11, stream="T07/temp")

    tell(store, *both(), pipeline="farm")
    situations = OpenSituations()
    for one in both():
        situations.update(one, ())
    (together,) = situations
    with alertmanager(tmp_path, receiver.url) as url, running(store) as console:
        manager = Alertmanager(url, repeat_s=0.5)
        manager.update([make_alert(together.first, DisplayNames("farm"), (), together)])
        until(lambda: state_of(url) == {"feed-0-10": "active"})
        acknowledge(console)
        silences = Silences(url, "farm")
        assert silences.bring_in_line(store)
        until(lambda: state_of(url) == {"feed-0-10": "suppressed"})
        (ours,) = asked(url, "silences")
        assert ours["comment"] == "rejex-stream: acknowledged in the review console by ada"
        assert siblings(store) == [["WT-01", "WT-02", "WT-03"]]
        label(store, ADA, list(episodes(store)))
        tell(store, *both(2, "recovering"), pipeline="farm")
        silences.bring_in_line(store)
        assert state_of(url) == {"feed-0-10": "suppressed"}, "that it seems to end pages nobody"
        assert siblings(store) == []
        tell(store, *both(3), pipeline="farm")
        assert silences.bring_in_line(store)
        until(lambda: state_of(url) == {"feed-0-10": "active"}), "it came back"
        manager.close()
    receiver.close()


@pytest.mark.thorough
def test_the_answer_fault_acknowledges_and_the_pages_say_who(wall_store):
    store, line = wall_store(reviewers=("ada:lead",)), Line()
    tell(store, incident(), pipeline="farm")
    background = Background(store, Feeding(control_lines={"farm": line}))

    def care():
        with store.database.read() as connection:
            now = incident_store.stored_incident(connection, "feed-0-10").incident
            return incident_store.care_of(connection, now, store.now_ms())

    with running(store, background=background) as console:
        body = {"request_id": "r1", "incident": "feed-0-10", "version": 1, "kind": "fault"}
        assert console.ask("/api/incidents/answer", body).status == 200
        incident_store.send_commands(store, "farm", line)
        assert not care().acknowledged_by, "the pipeline has not replied"
        (command,) = line.said
        tell(store, CommandReply(command=command.id, accepted=True, said="It is held."))
        tell(store, incident(2, "fault"), pipeline="farm")
        assert care().acknowledged_by == "ada"
        assert 0 <= store.now_ms() + 31 * 86_400_000 - care().quiet_until_ms < 60_000
        for path in ("/now", "/incidents/feed-0-10"):
            page = console.ask(path).text
            assert "Or a new normal after all?" in page
            assert "Fault, or new normal?" not in page
            assert "Acknowledged" in page
        tell(store, incident(3, "recovering"), pipeline="farm")
        assert care().acknowledged_by == "ada"
        tell(store, incident(4, "fault"), pipeline="farm")
        assert not care().acknowledged_by, "it came back"
        acknowledge(console)
        assert care().acknowledged_by == "ada"
        assert "Acknowledged by ada" in console.ask("/incidents/feed-0-10").text


def test_the_headline_of_an_alert_says_its_state():
    said = {
        state: make_alert(incident(2, state), DisplayNames("farm")).annotations["summary"]
        for state in ("open", "fault", "recovering", "adopting")
    }
    assert len(set(said.values())) == 4
    assert said["fault"].endswith("; it is a fault, as was answered")
    assert said["recovering"].endswith("; it is returning to normal")


def test_a_silence_that_an_operator_made_is_none_of_ours(monkeypatch):
    comments = {
        "shelved": "rejex-stream: shelved in the review console by ada",
        "seen": "rejex-stream: acknowledged in the review console by ada",
        "planned": "rejex-stream: planned work",
    }
    standing = [
        {
            "id": name, "comment": comment, "status": {"state": "active"},
            "endsAt": "2094-01-01T00:00:00Z", "matchers": [{"name": "incident", "value": name}],
        }
        for name, comment in comments.items()
    ]  # fmt: skip
    silences = Silences("http://127.0.0.1:1", "farm")
    monkeypatch.setattr(silences, "_ask", lambda *_: standing)
    assert silences._standing().keys() == {"shelved", "seen"}
