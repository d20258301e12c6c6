"""One cause is one card, one row and one answer in the console, and pages once."""

from __future__ import annotations

import pytest

from rejex_stream.operate.alerts import Alertmanager, make_alert
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.incidents import incident_store
from rejex_stream.review.incidents.silences import Silences
from rejex_stream.types import CommandReply, Spread
from tests.operate.alerting import Receiver, alertmanager
from tests.review.console_server import running
from tests.review.desk import SCHEMES, shot, violations
from tests.review.incidents import Line, incident, tell
from tests.review.test_review_store import read
from tests.review.test_silences import acknowledge, asked, state_of
from tests.waiting import until

FIRST = "feed-0-10"


def meter(k, version=1, state="open", **more):
    """Of a meter of one gateway; all begin within seconds, at a reading a second."""
    told = {"opened": 10 + k, "stream": f"gw7/meter-{k:02d}", "severity": 8.0 - k / 10}
    return incident(version, state, **told | more)


def of(store, which):
    return read(store, incident_store.stored_incident, which).situation


@pytest.fixture
def site(wall_store):
    """A console on five meters of one gateway and one of another, and the line to the pipeline."""
    store, line = wall_store(settle_s=0, reviewers=("ada:lead",)), Line()
    other = incident(opened=400, stream="gw8/meter-00")
    tell(store, *map(meter, range(5)), other, pipeline="farm")
    background = Background(store, Feeding(control_lines={"farm": line}), undo_ms=0)
    with running(store, background=background) as console:
        yield console, line, background


def answer(console, **more):
    body = {"request_id": "r1", "incident": FIRST, "version": 1, "kind": "fault"} | more
    return console.ask("/api/incidents/answer", body)


def test_one_cause_is_one_card_and_one_row_and_its_page_names_all(site):
    console, _, _ = site
    page = console.ask("/now").text
    assert page.count('class="panel card"') == 2
    assert "<b>5</b> of 5 <bdi>gw7/</bdi>* began together" in page
    assert "<b>2</b> open incidents" in page
    rows = console.ask("/incidents").text
    assert rows.count("data-row") == 2
    assert "and 4 others together" in rows
    assert console.ask("/incidents?q=meter-03").text.count("data-row") == 1
    page = console.ask(f"/incidents/{FIRST}").text
    assert page.count("data-member=") == 4
    assert "Began together: 5 of 5" in page
    assert "Began together" not in console.ask("/incidents/feed-0-400").text


def test_one_answer_is_of_all_that_are_named_and_taken_back_as_one(site):
    console, line, background = site
    tell(console.store, meter(4, 2, "recovering"), pipeline="farm")
    others = {f"feed-0-{10 + k}": 1 for k in (1, 2, 4)}
    given = answer(console, others=others).json["command"]
    assert answer(console, others=others).json["command"] == given, (
        "a repeated request says no more"
    )
    back = {"command": given["id"]}
    assert console.ask("/api/incidents/withdraw", back).status == 200
    background.round()
    assert line.said == []
    answer(console, request_id="r2", others=others)
    background.round()
    assert [one.incident for one in line.said] == ["feed-0-10", "feed-0-11", "feed-0-12"], (
        "what moved on is asked again"
    )
    assert len({one.id for one in line.said}) == 3


def test_who_joins_comes_in_and_who_leaves_or_comes_late_takes_no_identity(site):
    console, _, _ = site
    store = console.store
    tell(store, meter(7), pipeline="farm")
    assert of(store, "feed-0-17") == FIRST
    tell(store, meter(0, 2, spread=(Spread("gas", 900_000),)), pipeline="farm")
    assert {of(store, f"feed-0-{10 + k}") for k in (1, 2, 3, 4, 7)} == {FIRST}
    assert of(store, FIRST) == f"{FIRST}-900000"
    assert of(store, "feed-0-400") == "feed-0-400"
    tell(store, incident(opened=11_000, stream="gw7/meter-19"), pipeline="other")
    late = [meter(k, opened=11_000 + k) for k in (9, 3, 6)]
    tell(store, *late, pipeline="farm")
    assert {of(store, one.id) for one in late[:2]} == {"feed-0-11003"}, "of one batch, the oldest"


def test_care_is_of_all_and_a_viewer_gives_none(site):
    console, _, _ = site
    care = {"incident": "feed-0-12", "to": "ada", "shelve_hours": 2, "why": "rain"}
    said = console.ask("/api/incidents/care", care).json["message"]
    assert said == "gw7/meter-02 and 4 others: given to ada and shelved for 2 h."
    page = console.ask("/now").text
    assert page.count('class="panel card"') == 1


@pytest.mark.prometheus
def test_what_was_acknowledged_stays_silent_while_others_join_until_it_comes_back(
    tmp_path, wall_store
):
    receiver, store = Receiver(), wall_store(reviewers=("ada:lead",))
    tell(store, *map(meter, range(3)), pipeline="farm")
    with alertmanager(tmp_path, receiver.url) as url, running(store) as console:
        manager = Alertmanager(url, repeat_s=0.5)
        # Whichever of them the worker was told of first.
        manager.update([make_alert(meter(1), DisplayNames("farm"))])
        until(lambda: state_of(url) == {"feed-0-11": "active"})
        acknowledge(console, which="feed-0-12")
        silences = Silences(url, "farm")
        assert silences.bring_in_line(store)
        until(lambda: state_of(url) == {"feed-0-11": "suppressed"})
        (ours,) = asked(url, "silences")
        assert {one["name"]: one["value"] for one in ours["matchers"]} == {
            "pipeline": "farm", "incident": "feed-0-10|feed-0-11|feed-0-12",
        }  # fmt: skip
        tell(store, *map(meter, range(3, 9)), pipeline="farm")
        silences.bring_in_line(store)
        until(lambda: state_of(url) == {"feed-0-11": "suppressed"}, "others join")
        tell(store, *(meter(k, 2, "recovering") for k in range(3)), pipeline="farm")
        tell(store, *(meter(k, 3) for k in range(3)), pipeline="farm")
        assert silences.bring_in_line(store)
        until(lambda: state_of(url) == {"feed-0-11": "active"}, "it came back")
        manager.close()
    receiver.close()


def test_what_grows_to_eight_times_what_was_acknowledged_pages_again():
    quiet = incident_store.Care("", "ada", 100)
    loud = incident_store.Care("", "", 0)
    assert incident_store.quiet_care([quiet, *[loud] * 6], 50) == quiet
    assert incident_store.quiet_care([quiet, *[loud] * 7], 50) is None
    assert incident_store.quiet_care([quiet], 150) is None


@pytest.mark.browser
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_cause_is_answered_once_for_all_that_are_ticked_and_fits_a_phone(site, desk, axe, scheme):
    console, line, background = site
    phone = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
    with desk(console) as place:
        for name, size in (("wide", {}), ("phone", phone)):
            page = place.open("/now", scheme=scheme, **size)
            for path in ("/now", "/incidents", f"/incidents/{FIRST}"):
                page.goto(console.base + path)
                shot(page, f"situations-{path.split('/')[-1]}-{name}-{scheme}")
                assert violations(page, axe) == [], path
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.uncheck("[data-member='feed-0-13']")
        tell(console.store, meter(1, 2, "fault"), pipeline="farm")
        page.wait_for_selector("[data-member='feed-0-11'][data-version='2']")
        assert not page.is_checked("[data-member='feed-0-13']"), "what was left out stays so"
        page.click("[data-kind=fault]")
        page.wait_for_selector("#withdraw")
        background.round()
        assert [one.incident for one in line.said] == ["feed-0-10", "feed-0-12", "feed-0-14"]
        reply = CommandReply(command=line.said[0].id, accepted=True, said="It is held.")
        tell(console.store, reply)
        page.wait_for_selector("#said :text('accepted')")
