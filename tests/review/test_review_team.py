"""The queue as a tool of several people: whose it is, what was said, saved filters, notices."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import pytest

from rejex_stream.review.console.console import Access
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Refusal, Viewer
from rejex_stream.review.queue.detail import episode_detail
from rejex_stream.review.queue.listing import QueueFilter
from tests.review.console_server import running
from tests.review.desk import counts, sees, violations
from tests.review.test_review_store import (
    ADA,
    BOB,
    EVE,
    LOOKER,
    audited,
    episodes,
    item,
    label,
    read,
)

HOUR_MS = 3_600_000


def severe(offset, sensor, severity, **more):
    found = item(offset, sensor=sensor, **more)
    verdict = msgspec.structs.replace(found.verdict, severity=severity)
    return msgspec.structs.replace(found, verdict=verdict)


def order(store, **view):
    with store.database.read() as connection:
        rows = QueueFilter(**view).rows(connection, ADA, store.now_ms())
        return [(row["sensor"], row["severity"]) for row in rows]


# ----------------------------------------------------------------------------------------- order
def test_audited_events_come_first_and_then_what_saves_most(new_store):
    store = new_store(settle_s=0)
    store.add([*(item(n, sensor="long") for n in range(10)), item(5000, sensor="short")])
    store.add([item(6000, sensor="drawn", why="audit")])
    assert [name for name, _ in order(store, sort="worth")] == ["drawn", "long", "short"]


# ------------------------------------------------------------------------------- whose it is
@pytest.fixture
def two(new_store):
    store = new_store(settle_s=0, reviewers=("ada", "bob"))
    store.add([item(0), item(9000, sensor="T08/vib")])
    return store


def assign(store, targets, to, viewer=ADA):
    return labelling.assign(store, [t.episode_id for t in targets], viewer, to=to)


def test_what_is_given_to_somebody_is_theirs_and_no_longer_ready_for_others(two):
    first, second = episodes(two)
    assert assign(two, [first], "bob") == "1 case given to bob"
    assert [episodes(two, ADA, tab) for tab in ("ready", "mine", "claimed")] == [
        [second], [], [first]
    ]  # fmt: skip
    assert [episodes(two, BOB, tab) for tab in ("ready", "mine", "claimed")] == [
        [first, second], [first], []
    ]  # fmt: skip
    assert read(two, QueueFilter("all", "for:bob").count, ADA, two.now_ms()) == 1
    assert labelling.claim_next(two, QueueFilter(), ADA).episode_id == second.episode_id
    assign(two, [first], "bob")
    assert assign(two, [first], "", BOB) == "1 case given back to everybody"
    assert first in episodes(two)
    assert [row for row in audited(two) if row[1] == "assign"] == [
        ("ada", "assign", first.episode_id), ("bob", "assign", first.episode_id)
    ]  # fmt: skip


def test_nothing_is_given_to_nobody_nor_by_who_only_looks_nor_when_it_is_decided(two):
    first, second = episodes(two)
    for viewer, to, code in ((ADA, "bbo", "bad_request"), (LOOKER, "bob", "forbidden")):
        with pytest.raises(Refusal) as refused:
            assign(two, [first], to, viewer)
        assert refused.value.code == code
    label(two, ADA, [second])
    with pytest.raises(Refusal) as refused:
        assign(two, [first, second], "bob")
    assert refused.value.code == "changed"
    assert episodes(two, BOB, "mine") == [], "all or none"


# ------------------------------------------------------------------------------------ comments
def say(store, target, viewer, text, request="c1"):
    labelling.comment(store, request, target.episode_id, viewer, text=text)


def history(store, target, viewer):
    shown = read(store, episode_detail, target.episode_id, store.settings, viewer, 0).history
    return [(line.actor, line.detail.get("note")) for line in shown if line.action == "comment"]


def test_a_comment_is_there_once_for_everybody_and_cannot_be_changed(two):
    first, _ = episodes(two)
    for _ in range(2):
        say(two, first, ADA, "  the pump was off\n")
    say(two, first, BOB, "no, it was not")
    assert history(two, first, EVE) == [("bob", "no, it was not"), ("ada", "the pump was off")]
    for _ in range(4):
        labelling.claim(two, first.episode_id, BOB)
        labelling.release(two, first.episode_id, BOB)
    lines = read(two, episode_detail, first.episode_id, two.settings, EVE, 0).history
    assert [line.action for line in lines] == ["release", "comment", "comment"], "one of looking"
    for viewer, text in ((ADA, "  "), (ADA, "x" * 2001), (LOOKER, "hello")):
        with pytest.raises(Refusal):
            say(two, first, viewer, text, "c2")


def test_a_blind_reviewer_reads_no_comment_and_no_verdict_of_the_same_sensor(new_store):
    store = new_store(settle_s=0, double_review_ratio=1.0, gap_events=0)
    store.add([item(0), item(9000)])
    first, other = episodes(store)
    for viewer, request in ((ADA, "r1"), (BOB, "r2")):
        seen = [one for one in episodes(store, viewer) if one.episode_id == other.episode_id]
        label(store, viewer, seen, "anomaly", request)
    label(store, ADA, [first], request="r3")
    (second,) = episodes(store, EVE)
    say(store, second, ADA, "normal, as always on Mondays")
    assert history(store, second, BOB) == []

    def earlier(viewer):
        found = read(store, episode_detail, second.episode_id, store.settings, viewer, 0)
        return [(one.episode_id, one.verdict) for one in found.earlier]

    assert earlier(BOB) == [(other.episode_id, None)]
    label(store, BOB, [second], "normal", "r4")
    assert earlier(BOB) == [(other.episode_id, "anomaly")]
    assert history(store, second, BOB) == [("ada", "normal, as always on Mondays")]


# ---------------------------------------------------------------------------------- over HTTP
def test_what_is_shared_goes_over_the_console_and_is_refused_in_sentences(wall_store):
    store = wall_store(settle_s=0, reviewers=("ada", "bob"))
    store.add([item(0)])
    (target,) = episodes(store)
    with running(store, access=Access(local=Viewer("ada"))) as console:
        refused = console.ask("/api/assign", {"episodes": [target.episode_id], "to": "nobody"})
        assert (refused.status, refused.json["message"]) == (
            422, "Nobody here is called nobody: name a reviewer."
        )  # fmt: skip
        assert console.ask("/api/assign", {"episodes": [target.episode_id], "to": "bob"}).json == {
            "message": "1 case given to bob"
        }
        comment = f"/api/episodes/{target.episode_id}/comment"
        said = console.ask(comment, {"request_id": "1", "text": "<b>off</b>"}).json
        assert (said["by"], said["text"]) == ("ada", "<b>off</b>")
        page = console.ask(f"/episode/{target.episode_id}").text
        assert "&lt;b&gt;off&lt;/b&gt;" in page
        assert console.ask("/api/assign", {"episodes": [], "to": ""}).status == 422


# --------------------------------------------------------------------------------- in a browser
@contextmanager
def team(wall_store, desk):
    store = wall_store(settle_s=0, reviewers=("ada", "bob"), gap_events=0)
    store.add([severe(1000 * n, f"T0{n % 3}/vib", float(n)) for n in range(9)])
    with running(store, access=Access(local=Viewer("ada"))) as console, desk(console) as place:
        yield console, place


@pytest.mark.browser
def test_an_episode_is_given_away_and_talked_about_on_a_phone_too(wall_store, desk, axe):
    with team(wall_store, desk) as (console, place):
        first = episodes(console.store)[0].episode_id
        page = place.open(f"/episode/{first}", width=390, height=844, scheme="dark")
        page.select_option("#assigned", "bob")
        sees(page, "1 case given to bob.")
        page.fill("#comment-text", "<i>ask bob</i>")
        page.click("#comment button")
        sees(page, "ada wrote", "#history li:first-child")
        sees(page, "<i>ask bob</i>", "#history li:first-child q")
        counts(page, "#earlier li", 2)
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.goto(console.base + "/queue?tab=claimed")
        sees(page, "for bob", "#rows")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page, axe) == []
