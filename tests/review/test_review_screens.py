"""Every screen in a real browser: what is drawn, what moves, what a narrow or dark one shows."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")
pytest.importorskip("uvicorn", reason="the extra `review` is not installed")

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.review.console.auth import Access
from rejex_stream.review.console.rates import PipelineWatch
from rejex_stream.review.queue.decisions import Decision
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.review.queue.store import ReviewStore
from tests.review.console_server import running
from tests.review.desk import counts, ids, sees, shot, violations
from tests.review.test_review_store import episodes, item
from tests.review.turbines import hostile_names, simulate
from tests.waiting import until

pytestmark = pytest.mark.browser

ADA = Viewer("ada", "admin")
LIVE = "document.getElementById('chart').probe()"


@pytest.fixture(scope="module")
def farm_office(tmp_path_factory):
    """A console on the whole farm, with labels, a dispute, and monitors."""
    farm = simulate(start_ms=int(time.time() * 1000) - 2400 * 10_000)
    settings = Review(double_review_ratio=0.2)
    store = ReviewStore(tmp_path_factory.mktemp("farm") / "review.db", settings)
    watch = PipelineWatch(store, "farm")
    watch.observe(farm.verdicts)
    store.take("review", [encode_review(i) for i in farm.items], pipeline="farm")
    store.take("verdicts", [encode_verdict(v) for v in farm.verdicts], pipeline="farm")
    for number, target in enumerate(episodes(store)[:60:2]):
        verdict = ("normal", "anomaly", "normal", "unsure")[number % 4]
        decision = Decision(
            request_id=f"seed{number}", verdict=verdict, targets=(target,), note="oil change"
        )
        store.decide(decision, Viewer("bob"))
    with running(store, watches={"farm": watch}) as console:
        yield console
    store.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_is_clean_for_axe_and_stays_on_its_own_origin(farm_office, desk, axe, scheme):
    waiting = episodes(farm_office.store, ADA)
    done = episodes(farm_office.store, ADA, "done")
    second = next(target for target in waiting if target.status == "needs_second")
    with farm_office.store.database.read() as connection:
        sensor_id = connection.execute("SELECT min(sensor_id) FROM sensor").fetchone()[0]
    screens = {
        "queue": "/queue",
        "done": "/queue?tab=done",
        "empty": "/queue?q=nosuchsensor",
        "episode": f"/episode/{waiting[5].episode_id}",
        "blind": f"/episode/{second.episode_id}",
        "decided": f"/episode/{done[0].episode_id}?tab=done",
        "live": "/live?hours=all",
        "fleet": "/fleet",
        "planner": "/planner",
        "audit": "/audit",
        "help": "/help",
        "cell": f"/fleet/{sensor_id}?from=0&to={int(time.time() * 1000)}",
        "cannot": "/planner?window=100&tolerance=32&contamination=0.01",
        "keys": "/queue?tab=all",
        "missing": "/episode/E-nothing",
    }
    found = {}
    with desk(farm_office) as place:
        page = place.open("/queue", scheme=scheme)
        for name, path in screens.items():
            page.goto(farm_office.base + path)
            if name in ("episode", "blind", "decided"):
                page.wait_for_selector("#plots canvas")
            if name == "live":
                sees(page, "live", "#connection")
            if name == "keys":
                page.keyboard.press("?")
                page.wait_for_selector("#keys[open]")
            shot(page, f"{name}-{scheme}")
            result = violations(page, axe)
            if result:
                found[name] = result
    assert found == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screens_with_nothing_to_show_say_so_and_are_clean_for_axe(wall_store, desk, axe, scheme):
    words = {
        "/queue": "No rejected events yet",
        "/live": "No verdicts yet",
        "/fleet": "No verdicts yet",
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
        for path in ("/queue", episode, "/live?hours=all", "/fleet", "/planner", "/audit", "/help"):
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


def test_hostile_names_and_notes_are_text_everywhere(wall_store, desk):
    names = hostile_names()
    farm = simulate(
        events=700, window=300, sensors=(*names[:6], "T01/x"), audit_rate=0.01, context=10
    )
    store = wall_store(settle_s=0)
    watch = PipelineWatch(store, '<b onclick="x">farm</b>')
    watch.observe(farm.verdicts)
    lines = [encode_review(i) for i in farm.items]
    store.take("review", lines, pipeline=watch.pipeline)
    store.take("verdicts", [encode_verdict(v) for v in farm.verdicts], pipeline=watch.pipeline)
    store.add([item(10**6, sensor=names[6])])
    note = "</q></script><script>alert(3)</script><img src=http://evil.example/x onerror=alert(4)>"
    for number, target in enumerate(episodes(store)[:8]):
        decision = Decision(
            request_id=str(number),
            verdict="anomaly",
            targets=(target,),
            note=note,
            fault_code=note[:80],
        )
        store.decide(decision, Viewer("<i>eve</i>"))
    with running(store, watches={watch.pipeline: watch}) as console, desk(console) as place:
        page = place.open("/queue")
        assert page.locator("#rows bdi", has_text="<img src=x").count() > 0
        paths = [
            "/queue?tab=all",
            "/queue?tab=done",
            "/live?hours=all",
            "/fleet",
            "/planner",
            "/audit",
        ]
        paths += [f"/episode/{target.episode_id}" for target in episodes(store, tab="all")[::9]]
        paths += [f"/episode/{target.episode_id}" for target in episodes(store, tab="done")[:2]]
        for path in paths:
            page.goto(console.base + path)
            assert page.locator("main img, main script, main b[onclick], main i").count() == 0, path
        page.goto(
            console.base + "/live?hours=all&stream=" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
        )
        sees(page, "live", "#connection")


def test_what_is_drawn_is_where_the_numbers_say(farm_office, desk):
    target = next(t for t in episodes(farm_office.store, ADA) if t.n_events >= 5)
    with desk(farm_office) as place:
        page = place.open(f"/episode/{target.episode_id}")
        page.wait_for_selector("#plots canvas")
        told = page.evaluate("JSON.parse(document.getElementById('episode-data').textContent)")
        assert told["threshold"] is not None
        found = page.evaluate(
            """() => {
              const {charts} = document.getElementById("plots");
              const {plot, line} = charts[charts.length - 1];
              const {ctx, bbox} = plot;
              // The column just right of the axis label holds the dashed threshold and the band.
              const x = Math.round(bbox.left + bbox.width - 3);
              const pixels = ctx.getImageData(x - 12, bbox.top, 12, bbox.height).data;
              const rows = [];
              for (let y = 0; y < bbox.height; y++) {
                let red = 0;
                for (let i = 0; i < 12; i++) {
                  const p = (y * 12 + i) * 4;
                  const [r, g, b, a] = pixels.slice(p, p + 4);
                  if (r > 150 && g < 110 && b < 120 && a > 100) red++;
                }
                if (red > 3) rows.push(y + bbox.top);
              }
              return {
                rows, name: line.name, band: line.band, threshold: line.threshold,
                at: plot.valToPos(line.threshold, "y", true),
                back: line.band.map((v) => plot.posToVal(plot.valToPos(v, "y"), "y")),
              };
            }"""
        )
        assert found["name"] == "score"
        assert found["threshold"] == told["threshold"]
        assert found["band"] == [told["score_lower"], told["score_upper"]]
        assert found["back"] == pytest.approx(found["band"], rel=1e-3)
        assert found["rows"], "the threshold is drawn"
        assert min(abs(row - found["at"]) for row in found["rows"]) <= 1


# ----------------------------------------------------------------------------------------- live
def test_a_live_view_survives_a_restart_of_the_server(wall_store, desk, farm):
    store = wall_store()
    watch = PipelineWatch(store, "farm")
    watch.observe(farm.verdicts[:4000])
    with ExitStack() as console, ExitStack() as evening:
        first = console.enter_context(running(store, watches={"farm": watch}))
        place = evening.enter_context(desk(first))
        page = place.open("/live?hours=all")
        sees(page, "live", "#connection")
        before = page.evaluate(LIVE)
        # That a server which is away does not answer is no complaint; everything else is.
        with place.expecting(r"ERR_(CONNECTION_(REFUSED|RESET)|INCOMPLETE_CHUNKED|EMPTY_RESPONSE)"):
            console.close()
            sees(page, "reconnecting", "#connection")
            shot(page, "live-reconnecting")
            watch.observe(farm.verdicts[4000:6000])
            evening.enter_context(running(store, watches={"farm": watch}, port=first.port))
            until(lambda: page.evaluate(LIVE)["samples"] > before["samples"])
        sees(page, "live", "#connection")
        counts(page, "#offline:visible", 0)
        after = page.evaluate(LIVE)
        assert len(after["times"]) == len(set(after["times"])), "no sample twice"
        assert after["seq"] > before["seq"]
        page.goto("about:blank")


def test_new_samples_extend_the_live_view_and_leave_a_chosen_one_alone(wall_store, desk, farm):
    store = wall_store()
    watch = PipelineWatch(store, "farm")
    half = len(farm.verdicts) // 2
    watch.observe(farm.verdicts[:half])
    with running(store, watches={"farm": watch}) as console, desk(console) as place:
        page = place.open("/live?hours=1")
        sees(page, "live", "#connection")
        begin = page.evaluate(LIVE)
        assert begin["to"] == max(begin["times"])
        watch.observe(farm.verdicts[half : half + 600])
        until(lambda: page.evaluate(LIVE)["seq"] > begin["seq"])
        grown = page.evaluate(LIVE)
        assert grown["to"] == max(grown["times"]) > begin["to"], "the view follows"

        page.keyboard.press("+")
        page.keyboard.press("h")
        chosen = page.evaluate(LIVE)
        assert grown["from"] < chosen["from"] < chosen["to"] < grown["to"]
        watch.observe(farm.verdicts[half + 600 : half + 1000])
        until(lambda: page.evaluate(LIVE)["seq"] > chosen["seq"])
        kept = page.evaluate(LIVE)
        assert (kept["from"], kept["to"]) == (chosen["from"], chosen["to"])

        page.click("[data-act=reset]")
        assert page.evaluate(LIVE)["to"] == max(kept["times"])
        box = page.locator("#chart .u-over").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.25, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
        page.mouse.up()
        dragged = page.evaluate(LIVE)
        assert dragged["from"] > kept["times"][0]
        assert dragged["to"] < max(kept["times"])
        page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
        assert page.evaluate(LIVE)["to"] == max(kept["times"])

        # Two more hours of events: a screen that shows an hour keeps an hour.
        watch.observe(farm.verdicts[half + 1000 :])
        newest = farm.verdicts[-1].event_time_ms
        until(lambda: max(page.evaluate(LIVE)["times"]) > newest - 120_000)
        held = page.evaluate(LIVE)
        assert max(held["times"]) - min(held["times"]) <= 3_600_000
        assert held["samples"] <= 61


def test_a_hidden_live_view_holds_no_stream_and_many_tabs_block_nothing(farm_office, desk):
    with desk(farm_office) as place:
        page = place.open("/live?hours=all")
        sees(page, "live", "#connection")
        context = place.contexts[0]
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        assert page.evaluate("document.getElementById('chart').probe().open") is False
        sees(page, "paused", "#connection")
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        sees(page, "live", "#connection")
        # In a browser only the tab in front is seen; each of the others has let go of its stream.
        for _ in range(8):
            page.evaluate(
                "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )
            page = place.tab(context, "/live?hours=all")
            sees(page, "live", "#connection")


def test_what_a_stream_has_to_review_is_what_its_link_opens(farm_office, desk):
    with desk(farm_office) as place:
        page = place.open("/live?hours=all")
        links = page.locator("#streams a[href^='/queue']").all()
        found = [(link.inner_text(), link.get_attribute("href")) for link in links]
        assert found
        for text, address in found:
            page.goto(farm_office.base + address)
            assert len(ids(page)) == int(text.split()[0].replace(",", ""))


def test_a_cell_of_the_fleet_is_reached_by_keyboard_and_says_its_numbers(farm_office, desk):
    with desk(farm_office) as place:
        page = place.open("/fleet")
        page.focus(".fleet-name >> nth=1")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.matches('a.cell')"), "one stop per sensor"
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        rate, events, title = page.evaluate(
            "(({dataset, title}) => [dataset.rate, dataset.events, title])(document.activeElement)"
        )
        sees(page, title, "#readout")
        page.keyboard.press("Enter")
        page.wait_for_url("**/fleet/*from=*")
        assert page.get_attribute("#rate", "data-rate") == rate
        assert page.get_attribute("#events", "data-events") == events


def test_the_planner_answers_while_numbers_change(farm_office, desk):
    with desk(farm_office) as place:
        page = place.open("/planner")
        page.fill("input[name=contamination]", "0.01")
        page.fill("input[name=window]", "1000")
        page.fill("input[name=tolerance]", "32")
        sees(page, "This cannot work", "#answer")
        page.fill("input[name=window]", "2000")
        sees(page, "Expected rejection rate by window", "#answer")
        sees(page, "window = 2000", "#toml")
        page.wait_for_url("**window=2000*")
