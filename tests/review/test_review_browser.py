"""The queue and an episode in a real browser, worked as a reviewer works: mostly by keyboard."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from rejex_stream.review.console.console import Access
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Viewer
from tests.review.console_server import running
from tests.review.desk import counts, cursor, ids, labels, sees, shot, verdict
from tests.review.test_review_store import episodes, item
from tests.waiting import until

pytestmark = pytest.mark.browser


@pytest.fixture
def office(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i + k, sensor=f"T0{i}/vib") for i in range(6) for k in range(2)])
    with running(store) as console, desk(console) as place:
        yield console, place


@contextmanager
def held(page, address):
    """Keep a page's requests to an address until the block ends; yields them as they come."""
    kept, over = [], []

    def keep(route):
        if over:
            route.continue_()
        else:
            kept.append(route)

    page.route(address, keep)
    yield kept
    over.append(True)
    for route in kept:
        route.continue_()
    page.unroute(address)


# ---------------------------------------------------------------------------------------- queue
def test_the_first_episode_is_worked_without_reading_anything(office):
    console, place = office
    page = place.open("/queue")
    sees(page, "The model was not sure", "#intro")
    first, second, *_ = ids(page)
    page.click("text=Start reviewing")
    page.wait_for_url(f"**/episode/{first}*")
    sees(page, "Is the shaded stretch an anomaly?", "#ask-verdict")
    for words in ("Anomaly", "Normal", "Unsure"):
        box = page.locator(".verdict-button", has_text=words).bounding_box()
        assert box["y"] + box["height"] <= 860, "the choice is on the first screen"
    page.click("text=Normal")
    page.wait_for_url(f"**/episode/{second}*")
    sees(page, "1 case (2 events) marked normal")
    page.click("#toasts button")
    page.wait_for_url(f"**/episode/{first}*")
    assert [kind for kind, _ in labels(console.store)] == ["label", "retract"]
    verdict(page, "1")
    page.wait_for_url(f"**/episode/{second}*")
    page.goto(console.base + "/queue")
    counts(page, "#intro", 0)


def test_an_episode_is_worked_by_keyboard_alone(office):
    console, place = office
    page = place.open("/queue")
    first, second, third, *_ = ids(page)
    page.keyboard.press("j")
    assert cursor(page) == second
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/episode/{second}*")
    sees(page, "yours for", "#lease")
    sees(page, "rank960 of 1,000", ".why")
    page.keyboard.press("i")
    page.keyboard.type("bearing 12n")
    page.keyboard.press("Escape")
    verdict(page, "1")
    page.wait_for_url(f"**/episode/{third}*")
    sees(page, "1 case (2 events) marked anomaly")
    page.keyboard.press("Escape")
    page.wait_for_url("**/queue*")
    counts(page, f"#row-{second}", 0)
    assert ids(page)[0] == first
    with console.store.database.read() as connection:
        row = connection.execute("SELECT verdict, record FROM label").fetchone()
    assert row["verdict"] == "anomaly"
    assert b"bearing 12n" in row["record"], "typing 1, 2, n in a note labels nothing"


def test_one_key_labels_and_moves_on_and_undo_survives_a_reload(office):
    console, place = office
    page = place.open("/queue")
    before = ids(page)
    for key in ("2", "1", "3"):
        verdict(page, key)
    assert cursor(page) == before[3], "each key moved on at once"
    sees(page, "marked unsure")
    until(lambda: len(labels(console.store)) == 3)
    assert [verdict for _, verdict in labels(console.store)] == ["normal", "anomaly", "unsure"]
    page.reload()
    assert ids(page) == before[3:]
    for level in range(3):
        page.keyboard.press("Control+z" if level == 0 else "z")
        until(lambda level=level: len(ids(page)) == 4 + level)
        until(lambda level=level: cursor(page) == before[2 - level])
    assert ids(page) == before, "each came back to its old place"
    page.keyboard.press("z")
    sees(page, "nothing of yours left")


PRESS_TWICE = """
([key, apart]) => {
  const press = () => document.body.dispatchEvent(
    new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
  press();
  return new Promise((done) => setTimeout(() => { press(); done(); }, apart));
}
"""


@pytest.mark.parametrize("where", [pytest.param("list", marks=pytest.mark.long), "case"])
def test_twenty_impatient_intents_are_twenty_verdicts(wall_store, desk, where):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i, sensor=f"T{i:02}/vib") for i in range(30)])
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        if where == "case":
            page.keyboard.press("Enter")
            page.wait_for_selector("#plots canvas")
        for given in range(20):
            page.wait_for_selector("body[data-keys=on]")
            page.evaluate(PRESS_TWICE, ["2", (0, 60, 200, 350)[given % 4]])
            until(lambda given=given: len(labels(store)) == given + 1)
        page.wait_for_selector("body[data-keys=on]")
    assert len(labels(store)) == 20


def test_the_next_case_is_there_before_it_is_asked_for(office):
    console, place = office
    page = place.open("/queue")
    page.keyboard.press("Enter")
    page.wait_for_selector("#plots canvas")
    asked = []
    for given in range(4):
        page.wait_for_selector("body[data-keys=on]")
        page.wait_for_load_state("networkidle")
        asked = []
        listen = lambda request, asked=asked: asked.append(request)  # noqa: E731
        page.on("request", listen)
        verdict(page, "2")
        until(lambda given=given: len(labels(console.store)) == given + 1)
        page.wait_for_selector("body[data-keys=on]")
        page.wait_for_load_state("networkidle")
        page.remove_listener("request", listen)
        assert not [one for one in asked if one.is_navigation_request()]
        own = [one.url for one in asked if "/api/summary" not in one.url]
        assert len(own) <= 6, own  # the verdict, a claim, a series, the next page


def test_typing_in_a_field_and_keys_with_modifiers_label_nothing(office):
    console, place = office
    page = place.open("/queue")
    before = ids(page)
    page.keyboard.press("/")
    page.keyboard.type("12nasz")
    assert page.input_value("#q") == "12nasz"
    page.keyboard.press("Escape")
    for key in ("Control+2", "Alt+1", "Meta+3"):
        page.keyboard.press(key)
    page.evaluate(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', "
        "{key: '2', bubbles: true, isComposing: true}))"
    )
    assert ids(page) == before, "a verdict takes its row out at once"
    page.keyboard.press("j")
    verdict(page, "1")
    sees(page, "marked anomaly")
    assert labels(console.store) == [("label", "anomaly")], "and only this one was meant"


def test_a_batch_is_exactly_what_was_selected(office):
    console, place = office
    page = place.open("/queue")
    before = ids(page)
    page.keyboard.press("x")
    for _ in range(2):
        page.keyboard.press("j")
    page.keyboard.press("Shift+X")
    sees(page, "3 cases selected, 6 events", "#what")
    sensors = ("T00/vib", "T01/vib", "T09/vib")
    console.store.add([item(500_000 + i, sensor=name) for i, name in enumerate(sensors)])
    sees(page, "new case", "#news")
    sees(page, "3 cases selected", "#what")
    assert cursor(page) == before[2], "the cursor stays while the list changes"
    verdict(page, "2")
    sees(page, "3 cases (6 events) marked normal")
    assert ids(page) == before[3:]
    page.keyboard.press("r")
    until(lambda: len(ids(page)) == 4, "what came at one time is one question")
    assert len(labels(console.store)) == 3


def test_a_selection_survives_a_refusal(office):
    console, place = office
    page = place.open("/queue")
    before = ids(page)
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    labelling.claim(console.store, before[1], Viewer("bob"))
    verdict(page, "1")
    sees(page, f"bob is working on {before[1]}")
    sees(page, "2 cases selected", "#what")
    assert ids(page) == before
    counts(page, f"#row-{before[1]}.gone", 1)
    sees(page, "2 cases selected", "#what")
    assert labels(console.store) == []


def test_a_list_from_before_a_verdict_brings_no_row_back(office):
    console, place = office
    page = place.open("/queue")
    before = ids(page)
    with held(page, "**/queue/rows*") as asked:
        page.keyboard.press("r")
        until(lambda: page.evaluate("1") and asked)  # a page's events come while one talks to it
        with held(page, "**/api/labels") as sent:
            verdict(page, "2")
            verdict(page, "1")
            assert ids(page) == before[2:], "nobody waits for an answer"
            until(lambda: page.evaluate("1") and sent)
            assert labels(console.store) == []
    until(lambda: len(labels(console.store)) == 2)
    sees(page, "marked anomaly")
    page.keyboard.press("r")
    page.wait_for_load_state("networkidle")
    assert ids(page) == before[2:]


def test_a_note_belongs_to_the_verdict_it_was_typed_for(office):
    console, place = office
    page = place.open("/queue")
    first, second, *_ = ids(page)
    page.keyboard.press("i")
    page.keyboard.type("oil change")
    page.keyboard.press("Escape")
    with held(page, "**/api/labels"):
        verdict(page, "2")
        verdict(page, "1")
    until(lambda: len(labels(console.store)) == 2)
    with console.store.database.read() as connection:
        records = {
            row["episode_id"]: bytes(row["record"])
            for row in connection.execute("SELECT episode_id, record FROM label")
        }
    assert b"oil change" in records[first]
    assert b"oil change" not in records[second]


def test_everything_in_a_filter_is_labelled_only_after_a_question(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i) for i in range(30)])
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        page.check("#select-all")
        verdict(page, "2")
        sees(page, "Mark 30 cases normal?", "#ask")
        page.keyboard.press("Escape")
        assert labels(store) == []
        verdict(page, "2")
        page.click("#ask-yes")
        sees(page, "30 cases (30 events) marked normal")
        sees(page, "All reviewed", "#empty")
        page.reload()
        page.click("text=Undo the last verdict")
        until(lambda: len(episodes(store)) == 30)
        sees(page, "30 new cases", "#news")


def test_the_closing_of_one_question_does_not_answer_the_next(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i) for i in range(30)])
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        page.check("#select-all")
        verdict(page, "2")
        sees(page, "Mark 30 cases normal?", "#ask")
        # A dialog's close event comes after the fact: here the next question is asked before it.
        page.evaluate(
            """() => {
              document.getElementById("ask").close("no");
              document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "1", bubbles: true}));
            }"""
        )
        sees(page, "Mark 30 cases anomaly?", "#ask")
        page.click("#ask-yes")
        sees(page, "30 cases (30 events) marked anomaly")
        assert set(labels(store)) == {("label", "anomaly")}


def test_more_than_is_shown_is_selected_only_after_a_question(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i, sensor=f"T{i % 40:02}/vib") for i in range(503)])
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        assert len(ids(page)) == 100
        sees(page, "100 rows of 503 are shown", "#beyond")
        page.check("#select-all")
        sees(page, "Select all 503 cases of this list?", "#ask")
        page.keyboard.press("Escape")
        sees(page, "100 cases selected, 100 events", "#what")
        page.uncheck("#select-all")
        page.check("#select-all")
        page.click("#ask-yes")
        sees(page, "All 503 cases of this list, 503 events", "#what")
        store.add([item(900_000, sensor="T99/vib")])
        verdict(page, "2")
        sees(page, "Mark 503 cases normal?", "#ask")
        page.click("#ask-yes")
        sees(page, "503 cases (503 events) marked normal")
        until(lambda: len(ids(page)) == 1)
        assert len(episodes(store)) == 1, "what came meanwhile was not meant"


def test_a_long_list_follows_as_it_is_worked(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i) for i in range(210)])
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        first = ids(page)
        for shown, left in ((100, 110), (100, 10)):
            until(lambda shown=shown: len(ids(page)) == shown)
            page.check("#select-all")
            sees(page, "Select all", "#ask")
            page.keyboard.press("Escape")
            sees(page, "100 cases selected", "#what")
            verdict(page, "1")
            sees(page, "Mark 100 cases anomaly?", "#ask")
            page.click("#ask-yes")
            until(lambda left=left: len(episodes(store)) == left)
        until(lambda: len(ids(page)) == 10)
        assert set(ids(page)).isdisjoint(first)
        counts(page, "#beyond:visible", 0)
        for _ in range(10):
            verdict(page, "2")
        sees(page, "All reviewed", "#empty")
        until(lambda: len(labels(store)) == 210)


def test_two_reviewers_and_a_conflict(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i + k) for i in range(3) for k in range(2)])
    with running(store, access=Access(mode="token")) as console, desk(console) as place:

        def log_in(name: str):
            page = place.open(f"/login?token={console.console.sessions.link(Viewer(name))}")
            page.click(f"text=Continue as {name}")
            page.wait_for_url("**/queue")
            return page

        ada, bob = log_in("ada"), log_in("bob")
        first, second, _ = ids(ada)
        ada.click("#claim-next")
        ada.wait_for_url(f"**/episode/{first}*")
        sees(ada, "yours for", "#lease")
        verdict(bob, "2")
        sees(bob, f"ada is working on {first}")
        assert labels(store) == []
        bob.keyboard.press("c")
        bob.wait_for_url(f"**/episode/{second}*")
        bob.goto(f"{console.base}/episode/{first}")
        sees(bob, "ada is working on", "#held")
        assert bob.locator("[data-act=normal]").is_disabled()
        shot(bob, "conflict")
        verdict(ada, "2")
        until(lambda: labels(store) == [("label", "normal")])
        ada.wait_for_url(lambda url: first not in url)


def test_keys_can_be_switched_off_and_the_clock_set_to_local_time(office):
    console, place = office
    page = place.open("/help", timezone_id="Asia/Tokyo")
    with page.expect_navigation():
        page.select_option("select[name=clock]", "local")
    page.goto(console.base + "/queue")
    sees(page, "local time", "thead")
    shown = page.locator("tbody time").first
    said = datetime.fromtimestamp(int(shown.get_attribute("data-ms")) / 1000, UTC)
    assert shown.text_content() == f"{said + timedelta(hours=9):%Y-%m-%d %H:%M:%S}"
    verdict(page, "2")
    sees(page, "marked normal")
    page.goto(console.base + "/help")
    with page.expect_navigation():
        page.uncheck("input[name=keys_on]")
    page.goto(console.base + "/queue")
    page.wait_for_selector("body.no-keys")
    before = ids(page)
    verdict(page, "2")
    page.keyboard.press("Control+z")
    assert ids(page) == before
    assert page.locator("kbd:visible").count() == 0
    page.click("[data-act=anomaly]")
    sees(page, "marked anomaly")
    assert labels(console.store) == [("label", "normal"), ("label", "anomaly")]
    page.goto(console.base + "/help")
    assert page.locator("select[name=clock]").input_value() == "local"
    with page.expect_navigation():
        page.check("input[name=keys_on]")
    page.goto(console.base + "/queue")
    page.keyboard.press("z")
    sees(page, "Undone")


def test_every_stop_of_the_tab_key_can_be_seen(office):
    _, place = office
    page = place.open("/queue")
    stops = []
    for _ in range(25):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate(
                """() => {
                  const it = document.activeElement;
                  const style = getComputedStyle(it);
                  const box = it.getBoundingClientRect();
                  return {
                    what: it.outerHTML.slice(0, 80), body: it === document.body,
                    seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
                      && box.width > 0 && box.bottom > 0 && box.top < innerHeight,
                  };
                }"""
            )
        )
    assert sum(not stop["body"] for stop in stops) > 15
    assert [stop for stop in stops if not stop["body"] and not stop["seen"]] == []


def test_a_console_that_went_away_is_said_and_comes_back_by_itself(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i) for i in range(3)])
    with running(store) as console, desk(console) as place:
        page = place.open("/queue")
        before = ids(page)
        assert "cannot be reached" not in console.ask("/queue").text, "some browsers show it"
        with place.expecting("ERR_FAILED|ERR_INTERNET_DISCONNECTED"):
            place.contexts[0].set_offline(True)
            sees(page, "cannot be reached", "#offline:visible")
            shot(page, "offline")
            verdict(page, "2")
            sees(page, "Nothing was lost: try again")
            assert ids(page) == before, "the row came back"
            place.contexts[0].set_offline(False)
            counts(page, "#offline:visible", 0)
        verdict(page, "2")
        sees(page, "marked normal")
        assert labels(store) == [("label", "normal")]


# -------------------------------------------------------------------------------------- episode
def test_a_dragged_range_labels_the_events_inside_it_and_the_rest_stays_open(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(i) for i in range(20)])
    (target,) = episodes(store)
    with running(store) as console, desk(console) as place:
        page = place.open(f"/episode/{target.episode_id}")
        page.wait_for_selector("#plots canvas")
        sees(page, "yours for", "#lease")
        left, right, y = page.evaluate(
            """() => {
              const {plot} = document.getElementById("plots").charts[0];
              const box = plot.over.getBoundingClientRect();
              const at = (ms) => box.left + plot.valToPos(ms, "x");
              return [at(4500), at(9500), box.top + box.height / 2];
            }"""
        )
        page.mouse.move(left, y)
        page.mouse.down()
        page.mouse.move((left + right) / 2, y, steps=4)
        page.mouse.move(right, y, steps=4)
        page.mouse.up()
        sees(page, "Marked part: 5 of 20 events", "#scope")
        shot(page, "marked")
        page.keyboard.press("e")
        sees(page, "Whole case: 20 events", "#scope")
        for _ in range(5):
            page.keyboard.press("[")
        for _ in range(10):
            page.keyboard.press("]")
        sees(page, "Marked part: 5 of 20 events", "#scope")
        verdict(page, "1")
        sees(page, "1 case (5 events) marked anomaly")
        sees(page, "Whole case: 15 events", "#scope")
        with store.database.read() as connection:
            rows = connection.execute(
                "SELECT offset FROM label_event JOIN event USING (event_id) ORDER BY 1"
            ).fetchall()
        assert [row[0] for row in rows] == [5, 6, 7, 8, 9]
        page.keyboard.press("z")
        until(lambda: [t.n_events for t in episodes(store)] == [20])


def test_a_claim_is_renewed_while_seen_released_on_leaving_and_blocks_when_it_lapsed(
    wall_store, desk
):
    ahead_ms = 0
    store = wall_store(settle_s=0, clock_ms=lambda: int(time.time() * 1000) + ahead_ms)
    store.add([item(0), item(5000)])
    first, _ = episodes(store)

    def lease() -> tuple[str, int]:
        with store.database.read() as connection:
            row = connection.execute(
                "SELECT lease_owner, lease_until_ms FROM episode WHERE episode_id = ?",
                (first.episode_id,),
            ).fetchone()
        held = row[0] and row[1] > store.now_ms()
        return (row[0], row[1]) if held else ("", 0)

    with running(store) as console, desk(console) as place:
        page = place.open(f"/episode/{first.episode_id}")
        until(lambda: lease()[0] == "ada")
        page.keyboard.press("Escape")
        page.wait_for_url("**/queue*")
        until(lambda: lease() == ("", 0))

        page.clock.install()
        page.goto(f"{console.base}/episode/{first.episode_id}")
        sees(page, "yours for", "#lease")
        _, until_ms = lease()
        ahead_ms += 60_000
        page.clock.fast_forward(60_000)
        until(lambda: lease()[1] > until_ms)
        assert lease()[0] == "ada", "renewed while the page is seen"

        page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
        ahead_ms += 3_600_000
        page.clock.fast_forward(3_600_000)
        sees(page, "run out", "#held")
        assert lease() == ("", 0)
        assert page.locator("[data-act=normal]").is_disabled()
        verdict(page, "2")
        page.keyboard.press("c")
        sees(page, "yours for", "#lease")
        assert labels(store) == []
        verdict(page, "1")
        until(lambda: labels(store) == [("label", "anomaly")])


def test_new_readings_show_up_and_leave_a_view_alone_that_was_chosen(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i + k) for i in range(3) for k in range(4)])
    first, *_ = episodes(store)
    probe = """() => {
      const {plot, line} = document.getElementById("plots").charts[0];
      const {min, max} = plot.scales.x;
      return {from: min, to: max, last: Math.max(...line.t), n: line.t.length};
    }"""

    def more(offset: int) -> None:
        store.add([item(offset + k) for k in range(4)])

    with running(store) as console, desk(console) as place:
        page = place.open(f"/episode/{first.episode_id}")
        page.wait_for_selector("#plots canvas")
        begin = page.evaluate(probe)
        more(3000)
        until(lambda: page.evaluate(probe)["last"] > begin["last"])
        grown = page.evaluate(probe)
        assert grown["to"] >= grown["last"] > begin["to"], "the view follows"

        page.keyboard.press("+")
        page.keyboard.press("l")
        page.keyboard.press("l")
        page.keyboard.press("l")
        until(lambda: page.evaluate(probe)["to"] > grown["to"])
        chosen = page.evaluate(probe)
        assert chosen["to"] - chosen["from"] < grown["to"] - grown["from"]
        more(3100)
        until(lambda: page.evaluate(probe)["last"] > grown["last"])
        kept = page.evaluate(probe)
        assert (kept["from"], kept["to"]) == (chosen["from"], chosen["to"])

        page.keyboard.press("0")
        until(lambda: page.evaluate(probe)["to"] >= kept["last"])
        more(4000)
        until(lambda: page.evaluate(probe)["to"] > kept["last"] + 500_000)


def test_what_a_plot_shows_is_there_as_a_table_and_marked_without_a_mouse(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(k) for k in range(8)])
    (target,) = episodes(store)
    with running(store) as console, desk(console) as place:
        page = place.open(f"/episode/{target.episode_id}")
        page.wait_for_selector("#plots canvas")
        sees(page, "yours for", "#lease")
        page.focus("text=The same as a table")
        page.keyboard.press("Enter")
        counts(page, ".data-table tbody tr", 8)
        sees(page, "8 events of T07/vib", ".data-table")
        for key in ("[", "]", "]"):
            page.keyboard.press(key)
        sees(page, "Marked part: 5 of 8 events", "#scope")
        verdict(page, "2")
        sees(page, "1 case (5 events) marked normal")
        (rest,) = [target for target in episodes(store) if target.n_events == 3]
        assert rest.status == "open"
