"""Defects of the console that were found by using it."""

from __future__ import annotations

import csv
import re

import msgspec
import pytest

from rejex_stream.config import load_config
from rejex_stream.config.reviewing import Channel
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.incidents import incident_store, readings
from rejex_stream.types import Label, Position
from tests.review.console_server import running
from tests.review.desk import sees, shot, verdict
from tests.review.incidents import Line, incident, tell
from tests.review.test_context_loader import CONFIG
from tests.review.test_review_store import ADA, episodes, item, read
from tests.waiting import until

FIRST, ONSET, OPENED, END = 1_000, 1_500, 1_600, 3_000
WHICH = f"readings.csv-0-{OPENED}"


@pytest.fixture
def fault(tmp_path, monkeypatch, wall_store):
    """A store that knows 750 anomalies of an open incident and not one reading, and the input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(CONFIG)
    with (tmp_path / "readings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["t", "sensor", "vib"])
        rows.writerows(
            [n, ("T07/vib", "T08/vib")[n % 2], 40 + n % 7 if n >= ONSET else n % 7]
            for n in range(END)
        )
    store = wall_store()
    lines = [
        msgspec.structs.replace(
            item(n).verdict, position=Position("readings.csv", 0, n),
            label=Label.ANOMALY if n >= ONSET else Label.NORMAL, reason=None,
        )
        for n in range(FIRST, END, 2)
    ]  # fmt: skip
    store.ingest("verdicts", map(encode_verdict, lines), pipeline="farm")
    opened = msgspec.structs.replace(
        incident(opened=OPENED, at=OPENED),
        id=WHICH, position=Position("readings.csv", 0, OPENED), onset_ms=1000 * ONSET,
    )  # fmt: skip
    tell(store, opened, pipeline="farm")
    return store, load_config("p.toml")


def known(store):
    with store.database.read() as connection:
        return connection.execute(
            "SELECT count(channel_values), count(*) FROM point WHERE t_ms >= ?", (1000 * ONSET,)
        ).fetchone()


@pytest.mark.browser
def test_all_readings_of_an_open_incident_are_drawn_with_units_times_and_what_is_usual(fault, desk):
    """A clear fault rejects nothing: 26 of 957 readings were there, in panes without an axis."""
    store, config = fault
    with running(store) as console, desk(console) as place:
        console.console.inputs["farm"] = ContextLoader(config, records=200)
        console.console.shown["farm"] = DisplayNames(
            channels={"vib": Channel(unit="mm/s", label="Vibration", high=9.0)}
        )
        page = place.open(f"/incidents/{WHICH}")
        page.wait_for_selector("#plots canvas")
        until(lambda: tuple(known(store)) == (750, 750))
        until(lambda: not page.inner_text("#loading"))
        sees(page, "Vibration (mm/s)", "#plots")
        line = page.evaluate(
            "(({t, v, band, limits, holes}) => ({n: v.filter(x => x !== null).length, band, limits,"
            "holes, from: t[0], to: t[t.length - 1]}))("
            "document.querySelector('#plots').charts[0].line)"
        )
        assert line["to"] == 1000 * (END - 2)
        assert line["band"] == [0, 6], "usual: what was measured before the onset"
        assert line["limits"] == [None, 9]
        within = 1000 * ONSET, 1000 * (END - 2)
        assert not [
            one
            for one in line["holes"]
            if one[2] == "unknown" and one[1] > within[0] and one[0] < within[1]
        ]
        box = page.locator("#plots .u-over").first.bounding_box()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2)
        sees(page, "mm/s", "#readout")
        assert re.match(r"1970-01-01 00:\d\d:\d\d ", page.inner_text("#readout"))
        page.reload()
        page.click("text=The readings as a table")
        assert page.locator("details[open] tbody tr").count() >= 90
        sees(page, "vib (mm/s)", "details[open] thead")
        sees(page, "usually 0 to 6 mm/s", "#head")
        assert "known here so far" not in console.ask("/now").text


@pytest.mark.browser
def test_readings_that_nobody_has_are_hatched_and_counted(fault, desk):
    store, _ = fault
    point = msgspec.structs.replace(item(ONSET + 2), context=())
    placed = msgspec.structs.replace(point.verdict, position=Position("readings.csv", 0, ONSET + 2))
    line = encode_review(msgspec.structs.replace(point, verdict=placed))
    store.ingest("review", [line], pipeline="farm")
    with running(store) as console, desk(console) as place:
        page = place.open(f"/incidents/{WHICH}")
        sees(page, "The readings of 1 of 750 events are known here", "#loading")
        page.wait_for_selector("#plots canvas")
        holes = page.evaluate("document.querySelector('#plots').charts[0].line.holes")
        unknown = sum(to - low for low, to, kind in holes if kind == "unknown")
        assert unknown > 1000 * (END - ONSET) * 0.95
        sees(page, "readings not known here", ".legend")
        assert "750 readings (1 of them known here so far)" in console.ask("/now").text


@pytest.mark.browser
def test_an_answer_by_key_is_pending_and_taken_back_by_key(wall_store, desk):
    store, line = wall_store(), Line()
    tell(store, incident(), pipeline="farm")
    background = Background(store, Feeding(control_lines={"farm": line}))
    with running(store, background=background) as console, desk(console) as place:
        page = place.open("/incidents/feed-0-10")
        verdict(page, "1")
        sees(page, "answered fault", "#pending")
        page.wait_for_selector("#actions", state="detached")
        other = place.open("/incidents/feed-0-10")
        sees(other, "answered fault", "#pending")
        verdict(other, "2")
        assert other.locator("#ask[open]").count() == 0, "nobody answers meanwhile"
        page.keyboard.press("z")
        sees(page, "Taken back: nothing was answered.")
        page.wait_for_selector("#actions")
        background.round()
        assert line.said == []


@pytest.mark.browser
def test_new_normal_says_what_will_be_learnt_and_asks_again(fault, desk):
    store, _ = fault
    background = Background(store, Feeding(control_lines={"farm": Line()}))
    with running(store, background=background) as console, desk(console) as place:
        page = place.open(f"/incidents/{WHICH}")
        verdict(page, "2")
        sees(page, "is made of 750 readings measured since 1970-01-01 00:25:00", "#ask")
        sees(page, "of which 750 were called anomalies", "#ask")
        page.keyboard.press("Escape")
        page.wait_for_selector("#ask[open]", state="detached")
        told = msgspec.structs.replace(incident(1, opened=OPENED, at=OPENED + 9), id=WHICH,
                                       onset_ms=1000 * ONSET, held=False)  # fmt: skip
        tell(store, told, pipeline="farm")
        page.reload()
        verdict(page, "2")
        sees(page, "The reference is made again of what is measured from now on.", "#ask")
        page.keyboard.press("Escape")
        page.wait_for_selector("#ask[open]", state="detached")
        assert read(store, incident_store.answers_to, WHICH) == []


def test_two_pipelines_two_years_apart_keep_their_history(wall_store):
    """The demo's own: water of 2022 beside turbines of 2024."""
    from rejex_stream.review.queue import series

    store, hour = wall_store(), 3600
    for pipeline, sensor, begin in (("water", "branch-1", 1.65e9), ("farm", "WT-01", 1.71e9)):
        lines = [
            msgspec.structs.replace(
                item(n, sensor=sensor, t_s=begin + n * hour).verdict,
                position=Position(pipeline, 0, n),
            )
            for n in range(200)
        ]
        store.ingest("verdicts", map(encode_verdict, lines), pipeline=pipeline)
    with store.database.write() as connection:
        series.forget(connection)
        counts = connection.execute(
            "SELECT pipeline, (SELECT count(*) FROM point p WHERE p.sensor_id = s.sensor_id), "
            "(SELECT sum(rejected) FROM hour h WHERE h.sensor_id = s.sensor_id) FROM sensor s"
        ).fetchall()
    assert sorted(map(tuple, counts)) == [("farm", 200, 200), ("water", 200, 200)]


BARS = """
(() => {
  const rows = new Set();
  for (const one of document.querySelectorAll("body *")) {
    const {position, visibility} = getComputedStyle(one);
    if (!["fixed", "sticky"].includes(position) || visibility === "hidden") continue;
    const box = one.getBoundingClientRect();
    if (box.width < innerWidth / 2) continue;
    const [top, end] = [Math.max(0, Math.floor(box.top)), Math.min(innerHeight, box.bottom)];
    for (let y = top; y < end; y += 1) rows.add(y);
  }
  return rows.size / innerHeight;
})()
"""


@pytest.mark.browser
def test_at_200_percent_the_bars_leave_most_of_the_page(wall_store, desk):
    """They took 44 % of the queue's height."""
    store = wall_store(settle_s=0, gap_events=0)
    store.add([item(1000 * i, sensor=f"T{i % 3}/vib") for i in range(30)])
    tell(store, incident())
    first = episodes(store)[0].episode_id
    with running(store) as console, desk(console) as place:
        page = place.open("/queue", width=640, height=430)
        for path in ("/queue", f"/episode/{first}", "/incidents/feed-0-10", "/now"):
            page.goto(console.base + path)
            page.wait_for_load_state("networkidle")
            shot(page, f"zoomed-{path.split('/')[1]}")
            assert page.evaluate(BARS) <= 0.3, path
            assert page.evaluate("document.documentElement.scrollWidth") <= 640, path


def test_an_old_incident_is_found_however_many_are_over(wall_store):
    """Of those that are over only the newest hundred were in the list."""
    store = wall_store()
    tell(
        store,
        *(incident(2, "closed", opened=10 + 10 * k, stream=f"s{k}", ended="recovered")
          for k in range(150)),
        pipeline="farm",
    )  # fmt: skip
    with running(store) as console:
        assert "/incidents/feed-0-10" in console.ask("/incidents?q=s0").text
        assert "150" in console.ask("/incidents").text


class Away:
    """A labels topic whose broker does not answer."""

    def publish(self, rows):
        from rejex_stream.errors import ConnectorError

        raise ConnectorError("Kafka at 10.0.0.1:9092: Failed to get metadata", retriable=True)

    def close(self):
        pass


def test_a_broker_that_is_away_says_that_labels_wait(wall_store):
    from tests.review.test_review_store import label

    store = wall_store(settle_s=0)
    store.add([item(1)])
    label(store, ADA, episodes(store))
    background = Background(store, Feeding(sink=Away()))
    background.round()
    with running(store, background=background) as console:
        page = console.ask("/now").text
    assert "Labels wait in the store and leave by themselves once that works" in page
    assert "1 label to be sent" in page


def test_an_incident_of_an_input_that_was_dropped_stops_nobody(fault):
    store, config = fault
    gone = msgspec.structs.replace(incident(opened=9), id="gone.csv-0-9")
    tell(store, gone, pipeline="farm")
    source, tried = {"farm": ContextLoader(config)}, set()
    assert [readings.load_next(store, source, tried) for _ in range(2)] == [True, True]
    assert tried == {WHICH, gone.id}, "and no banner comes and goes with it"
    assert known(store)[0] > 0
