"""Cases of siblings at one time are one question, answered once for all of them or for some."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rejex_stream.config.reviewing import Capacity
from rejex_stream.encode import encode_review
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.listing import QueueFilter
from rejex_stream.types import ContextPoint, Label
from tests.review.console_server import running
from tests.review.desk import SCHEMES, counts, shot, verdict, violations
from tests.review.test_review_store import ADA, BOB, episodes, item, label, read, rows

STEP_S = 600


def reading(offset, turbine, minute, why="extreme"):
    """A turbine's only case: one reading of many at one in ten minutes."""
    one = item(offset, sensor=f"WT-{turbine:02d}", t_s=60 * minute, why=why)
    context = tuple(
        ContextPoint(round(1000 * (60 * minute - STEP_S * k)), (0.0,), 0.5, Label.NORMAL)
        for k in range(6, 0, -1)
    )
    return msgspec.structs.replace(one, context=context)


def storm():
    """Three turbines within an hour, one of them a day later, and one that an audit drew."""
    first = [reading(k, k, 5000 + 20 * k) for k in (1, 2, 3)]
    return [*first, reading(10, 1, 12_000), reading(11, 4, 5020, why="audit")]


def asked(store, viewer=ADA, tab="ready"):
    """The sensors of each question, by the list."""
    questions = read(store, QueueFilter(tab).questions, viewer, store.now_ms())
    return sorted(sorted(one.sensor for one in those) for those in questions)


def test_three_single_readings_within_an_hour_are_one_question_in_any_order(new_store):
    store, later = new_store(settle_s=0), new_store("later.db", settle_s=0)
    store.add(storm())
    for one in reversed(storm()):
        later.add([one])
    expected = [["WT-01"], ["WT-01", "WT-02", "WT-03"], ["WT-04"]]
    assert asked(store) == asked(later) == expected
    assert read(store, QueueFilter().count, ADA, store.now_ms()) == 3
    assert read(store, QueueFilter("all").count, ADA, store.now_ms()) == 5, "each is listed"
    assert len(read(store, QueueFilter(words="WT-02").questions, ADA, store.now_ms())[0]) == 1


def test_what_chance_brings_together_stays_apart(new_store):
    """Forty sensors that each ask once a day, at times of their own."""
    store, draw = new_store(settle_s=0), np.random.default_rng(5)
    minutes = np.sort(draw.uniform(0, 7 * 1440, 280))
    store.add([reading(i, int(draw.integers(40)), m, "rejected") for i, m in enumerate(minutes)])
    questions = read(store, QueueFilter().questions, ADA, store.now_ms())
    assert sum(len(those) > 1 for those in questions) <= 2


def test_a_question_is_one_of_the_days_and_one_persons(new_store):
    store = new_store(settle_s=0, capacity=Capacity(questions_per_day=1))
    store.add(storm()[:3])
    store.add([reading(20, 7, 20_000)])
    assert asked(store) == [["WT-01", "WT-02", "WT-03"]], "three of one save more than another"
    second = next(one for one in episodes(store))
    labelling.claim(store, second.episode_id, ADA)
    assert asked(store, BOB) == [], "and it fills his day"
    assert asked(store, BOB, "claimed") == [["WT-01", "WT-02", "WT-03"]]
    labelling.release(store, second.episode_id, ADA)
    assert len(asked(store, BOB)) == 1
    label(store, ADA, [one for one in episodes(store)][:2])
    assert asked(store) == [], "the day's question was asked"
    assert len(asked(store, ADA, "waiting")) == 2


def test_all_that_one_question_brought_is_one_of_the_days(new_store):
    store = new_store(settle_s=0, capacity=Capacity(questions_per_day=2))
    store.add(storm()[:3])
    label(store, ADA, episodes(store))
    store.add([reading(20, 7, 20_000)])
    assert asked(store) == [["WT-07"]]


def test_a_case_that_its_incident_asks_about_is_of_no_question(new_store):
    store = new_store(settle_s=0)
    for one in storm()[:3]:
        verdict = msgspec.structs.replace(
            one.verdict, label=Label.REJECTED, incident=str(one.verdict.position)
        )
        store.add([msgspec.structs.replace(one, why="rejected", verdict=verdict)])
    store.add(storm()[3:])
    assert rows(store, "SELECT count(DISTINCT incident) FROM episode") == [(3,)]
    assert rows(store, "SELECT count(DISTINCT question) FROM episode") == [(5,)]


def test_a_part_that_is_split_off_is_asked_by_itself(new_store):
    store = new_store(settle_s=0, gap_events=50)
    store.add([*storm()[:2], reading(3, 3, 5060), reading(4, 3, 5070)])
    (long,) = (one for one in episodes(store) if one.n_events == 2)
    label(store, ADA, [long], span_ms=(60_000 * 5060, 60_000 * 5065))
    store.add([reading(30, 9, 19_000)])
    assert asked(store) == [["WT-01", "WT-02", "WT-03"], ["WT-09"]]
    assert rows(store, "SELECT count(DISTINCT question) FROM episode") == [(3,)]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_answered_for_those_that_are_ticked_and_the_rest_from_the_list(
    wall_store, desk, axe, scheme
):
    store = wall_store(settle_s=0)
    store.ingest("review", map(encode_review, storm()), pipeline="farm")
    phone = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
    (first,) = (one for one in read(store, QueueFilter().questions, ADA, store.now_ms()) if one[1:])
    with running(store) as console, desk(console) as place:
        for name, size in (("wide", {}), ("phone", phone)):
            page = place.open("/now", scheme=scheme, **size)
            for path in ("/now", "/queue", f"/episode/{first[0].episode_id}"):
                page.goto(console.base + path)
                page.wait_for_load_state("networkidle")
                shot(page, f"siblings-{path.split('/')[1]}-{name}-{scheme}")
                assert violations(page, axe) == [], path
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                if path != "/now":
                    assert "2 other" in page.content() or "3 cases at once" in page.content()
        page = place.open(f"/episode/{first[0].episode_id}?sort=oldest", scheme=scheme)
        page.wait_for_selector("#plots canvas")
        page.uncheck(f"[data-case='{first[2].episode_id}']")
        verdict(page, "1")
        page.get_by_text("2 cases (2 events) marked anomaly").wait_for()
        assert first[2].episode_id not in page.url, "what was left out is not the next question"
        assert read(store, QueueFilter("done").count, ADA, store.now_ms()) == 2
        page.keyboard.press("z")
        page.get_by_text("Undone").wait_for()
        listed = place.open("/queue?q=WT-0+-why:audit&sort=oldest", scheme=scheme)
        counts(listed, "#rows tr", 2)
        verdict(listed, "2")
        listed.get_by_text("3 cases (3 events) marked normal").wait_for()
        assert asked(store) == [["WT-01"], ["WT-04"]]
