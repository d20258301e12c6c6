"""Every screen in a real browser: what is drawn, what moves, what a narrow or dark one shows."""

from __future__ import annotations

import time

import pytest

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.review.console.console import Access
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.labelling import LabelRequest
from rejex_stream.review.queue.review_store import ReviewStore
from tests.review.console_server import running
from tests.review.desk import SCHEMES, sees, shot, violations
from tests.review.incidents import incident, tell
from tests.review.test_review_store import episodes, item
from tests.review.turbines import hostile_names, simulate

pytestmark = pytest.mark.browser

ADA = Viewer("ada", "admin")


@pytest.fixture(scope="module")
def farm_office(tmp_path_factory):
    farm = simulate(start_ms=int(time.time() * 1000) - 2400 * 10_000)
    settings = Review(double_review_ratio=0.2)
    store = ReviewStore(tmp_path_factory.mktemp("farm") / "review.db", settings)
    store.ingest("review", [encode_review(i) for i in farm.items], pipeline="farm")
    store.ingest("verdicts", [encode_verdict(v) for v in farm.verdicts], pipeline="farm")
    for number, target in enumerate(episodes(store)[:60:2]):
        verdict = ("normal", "anomaly", "normal", "unsure")[number % 4]
        decision = LabelRequest(
            request_id=f"seed{number}", verdict=verdict, targets=(target,), note="oil change"
        )
        labelling.label_cases(store, decision, Viewer("bob"))
    with running(store) as console:
        yield console
    store.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_screen_is_clean_for_axe_and_stays_on_its_own_origin(farm_office, desk, axe, scheme):
    waiting = episodes(farm_office.store, ADA)
    done = episodes(farm_office.store, ADA, "done")
    second = next(target for target in waiting if target.status == "needs_second")
    screens = {
        "queue": "/queue", "done": "/queue?tab=done", "empty": "/queue?q=nosuchsensor",
        "episode": f"/episode/{waiting[5].episode_id}", "blind": f"/episode/{second.episode_id}",
        "decided": f"/episode/{done[0].episode_id}?tab=done", "audit": "/audit", "help": "/help",
        "keys": "/queue?tab=all", "missing": "/episode/E-nothing",
    }  # fmt: skip
    found = {}
    with desk(farm_office) as place:
        page = place.open("/queue", scheme=scheme)
        for name, path in screens.items():
            page.goto(farm_office.base + path)
            if name in ("episode", "blind", "decided"):
                page.wait_for_selector("#plots canvas")
            if name == "keys":
                page.keyboard.press("?")
                page.wait_for_selector("#keys[open]")
            shot(page, f"{name}-{scheme}")
            result = violations(page, axe)
            if result:
                found[name] = result
    assert found == {}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_screens_with_nothing_to_show_say_so_and_are_clean_for_axe(wall_store, desk, axe, scheme):
    words = {
        "/queue": "No rejected events yet",
        "/audit": "Nothing happened yet",
        "/nowhere": "Not here",
    }
    with running(wall_store()) as console, desk(console) as place:
        page = place.open("/queue", scheme=scheme)
        for path, text in words.items():
            page.goto(console.base + path)
            sees(page, text, "main")
            shot(page, f"nothing-{path[1:]}-{scheme}")
            assert violations(page, axe) == [], path
    with (
        running(wall_store("b.db"), access=Access(mode="token")) as console,
        desk(console) as place,
    ):
        page = place.open("/queue", scheme=scheme)
        page.wait_for_url("**/login*")
        shot(page, f"login-{scheme}")
        assert violations(page, axe) == []


def test_a_phone_is_enough(farm_office, desk):
    waiting = episodes(farm_office.store, ADA)
    episode = f"/episode/{waiting[3].episode_id}"
    with desk(farm_office) as place:
        page = place.open("/queue", width=390, height=844, has_touch=True, is_mobile=True)
        for path in ("/queue", episode, "/now", "/audit", "/help"):
            page.goto(farm_office.base + path)
            if path == episode:
                page.wait_for_selector("#plots canvas")
            name = path[1:].partition("/")[0].partition("?")[0]
            shot(page, f"{name}-390")
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{name} is {width} wide"
        for path in ("/queue", episode):
            page.goto(farm_office.base + path)
            for button in page.locator(".verdict-button").all():
                box = button.bounding_box()
                assert box["height"] >= 44
                assert box["width"] >= 44
                assert box["y"] + box["height"] <= 844, "within reach without scrolling"
        page.tap("text=Normal")
        page.wait_for_url(lambda url: episode not in url)
        sees(page, "marked normal")
        page.tap("#toasts button")
        page.wait_for_url(f"**{episode}*")


def test_no_column_falls_off_a_laptop(wall_store, desk):
    """With names of 26 characters the queue's state was cut."""
    names = [f"plant-{n}/gearbox-temp-sensor" for n in range(3)]
    store = wall_store(settle_s=0, gap_events=0)
    lines = [encode_review(item(1000 * i, sensor=names[i % 3])) for i in range(9)]
    store.ingest("review", lines, pipeline="farm")
    verdicts = [encode_verdict(item(1000 * i, sensor=names[i % 3]).verdict) for i in range(9)]
    store.ingest("verdicts", verdicts, pipeline="farm")
    tell(store, incident(stream=names[0], severity=191.7), pipeline="farm")
    labelling.claim(store, episodes(store)[0].episode_id, Viewer("bob"))
    with running(store) as console, desk(console) as place:
        page = place.open("/queue?tab=all", width=1280, height=800)
        for path in ("/queue?tab=all", "/now", "/incidents", "/audit"):
            page.goto(console.base + path)
            shot(page, f"laptop-{path[1:].partition('?')[0]}")
            cut = page.evaluate(
                "[...document.querySelectorAll('#main *')].filter(one => !one.closest('svg') && "
                "one.getClientRects().length && !one.closest('.sr, .audit') && "
                "one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"
            )
            assert cut == [], path
            wide = page.evaluate(
                "[...document.querySelectorAll('.scroll')].filter("
                "one => one.scrollWidth > one.clientWidth + 1).length"
            )
            assert wide == 0, path
            short = page.evaluate(
                "[...document.querySelectorAll('.page-head, input[type=search]')]"
                ".filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML)"
            )
            assert short == [], path


def test_a_viewer_presses_every_key_and_is_told_and_nothing_breaks(wall_store, desk):
    """A verdict's key was a TypeError on a page without its buttons."""
    store = wall_store(settle_s=0, gap_events=0)
    store.add([item(1000 * i) for i in range(3)])
    tell(store, incident())
    first = episodes(store)[0].episode_id
    looker = Viewer("lou", "viewer")
    with running(store, access=Access(local=looker)) as console, desk(console) as place:
        for path in (f"/episode/{first}", "/queue", "/incidents/feed-0-10", "/now", "/audit"):
            page = place.open(path)
            if "episode" in path:
                page.wait_for_selector("#plots canvas")
            if path != "/audit":
                page.wait_for_selector('body[data-keys="on"]')
            for key in ("1", "2", "3", "x", "t", "i", "c", "z"):
                page.keyboard.press(key)
                if key == "1" and path != "/audit":
                    sees(page, "You may look but not decide", "#toasts")
            assert page.evaluate("document.body.isConnected")
            if path.startswith("/incidents"):
                sees(page, "You may look but not answer", "main")
    assert len(episodes(store)) == 3


def test_hostile_names_and_notes_are_text_everywhere(wall_store, desk):
    names = hostile_names()
    farm = simulate(
        events=700, window=300, sensors=(*names[:6], "T01/x"), audit_rate=0.01, context=10
    )
    store = wall_store(settle_s=0)
    name = '<b onclick="x">farm</b>'
    lines = [encode_review(i) for i in farm.items]
    store.ingest("review", lines, pipeline=name)
    store.ingest("verdicts", [encode_verdict(v) for v in farm.verdicts], pipeline=name)
    store.add([item(10**6, sensor=names[6])])
    note = "</q></script><script>alert(3)</script><img src=http://evil.example/x onerror=alert(4)>"
    for number, target in enumerate(episodes(store)[:8]):
        decision = LabelRequest(
            request_id=str(number), verdict="anomaly", targets=(target,), note=note,
            fault_code=note[:80],
        )  # fmt: skip
        labelling.label_cases(store, decision, Viewer("<i>eve</i>"))
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        assert page.locator("#rows bdi", has_text="<img src=x").count() > 0
        paths = ["/queue?tab=all", "/queue?tab=done", "/now", "/audit"]
        paths += [f"/episode/{target.episode_id}" for target in episodes(store, tab="all")[::9]]
        paths += [f"/episode/{target.episode_id}" for target in episodes(store, tab="done")[:2]]
        for path in paths:
            page.goto(console.base + path)
            assert page.locator("main img, main script, main b[onclick], main i").count() == 0, path
