"""The picture is the evidence: a page draws and says what the alert says."""

from __future__ import annotations

import html
import re

import msgspec
import numpy as np
import pytest

from rejex_stream import Pipeline
from rejex_stream.encode import encode_verdict
from rejex_stream.operate.alerts import make_alert
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.queue import series
from rejex_stream.types import Position
from tests.review.console_server import running
from tests.review.desk import shot
from tests.review.incidents import Line, tell

ROWS, FAULT, STEP_MS = 3_000, 2_900, 60_000


def plant(seed: int = 0):
    """A pump whose flow follows its load over a wide range; a leak of a tenth of that range."""
    draw = np.random.default_rng(seed)
    load = 50 + 30 * np.sin(np.arange(ROWS) / 40 + 3) + draw.normal(0, 3, ROWS)
    flow = 2 * load + draw.normal(0, 1.5, ROWS)
    flow[FAULT:] -= 18
    return np.column_stack([flow, load])


@pytest.fixture(scope="module")
def judged():
    rows = plant()
    pipeline = Pipeline(
        pipeline={"name": "farm"},
        input={"channels": ["flow", "load"], "time": "at", "time_unit": "ms", "sensor": "s"},
        rejection={"contamination": 0.02, "window": 1000, "review_budget": {"rate": 0.02}},
    )
    records = [
        {"at": STEP_MS * i, "s": "pump", "flow": float(a), "load": float(b)}
        for i, (a, b) in enumerate(rows)
    ]
    outcomes = list(pipeline.process(records))
    (opened,) = {one.id: one for outcome in outcomes for one in outcome.incidents}.values()
    return rows, [outcome.verdict for outcome in outcomes], opened


@pytest.fixture
def wall(judged, wall_store):
    rows, verdicts, opened = judged
    store = wall_store(settle_s=0)
    store.ingest("verdicts", map(encode_verdict, verdicts), pipeline="farm")
    readings = [(STEP_MS * i, tuple(row)) for i, row in enumerate(rows.tolist())]
    store.add_readings("pump", "pump", ("flow", "load"), readings, pipeline="farm")
    tell(store, opened, pipeline="farm")
    return store


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub("<.*?>", "", page)).split())


def test_the_drawn_range_is_left_where_what_is_usual_by_itself_is_not(judged, wall):
    rows, _, opened = judged
    with running(wall) as console:
        span = f"from={STEP_MS * (FAULT - 500)}&to={STEP_MS * ROWS}&px=1000"
        (drawn,) = console.ask(f"/api/incident-readings/{opened.id}?{span}").json
    flow = next(line for line in drawn["channels"] if line["name"] == "flow")
    low, high = flow["usual"]
    by_itself = np.mean((rows[FAULT:, 0] < low) | (rows[FAULT:, 0] > high))
    left = [
        not low <= rows[t_ms // STEP_MS, 0] <= high
        for t_ms, low, high in flow["expected"]
        if t_ms >= STEP_MS * FAULT
    ]
    assert by_itself < 0.5
    assert len(left) >= 0.8 * (ROWS - FAULT)
    assert np.mean(left) >= 0.8


@pytest.mark.thorough
def test_the_page_and_the_card_say_the_sentence_of_the_alert(judged, wall):
    _, verdicts, opened = judged
    newest = verdicts[-1].expected("flow").as_reading("flow")
    said = make_alert(opened, DisplayNames("farm"), [newest]).annotations["values"]
    expected = re.search(r"flow [\d.]+, expected [\d.]+ from the others", said)
    assert expected is not None
    with running(wall) as console:
        for path in (f"/incidents/{opened.id}", "/now"):
            page = console.ask(path).text
            assert expected[0] in text_of(page), path
            assert "within its usual" not in page, path


def test_a_blind_reviewer_sees_no_expectation(judged, wall):
    span = STEP_MS * FAULT, STEP_MS * ROWS
    with wall.database.read() as connection:
        (sensor,) = connection.execute("SELECT sensor_id FROM sensor").fetchone()
        seen = series.deviations(connection, sensor, "pump", ("flow", "load"), span)
        blind = series.deviations(connection, sensor, "pump", ("flow", "load"), span, blind=True)
    assert any(one.reads.expected for one in seen)
    assert not any(one.reads.expected or one.farthest.expected for one in blind)


@pytest.mark.thorough
def test_what_was_expected_is_said_of_now_only_where_it_is_of_now(judged, wall_store):
    """After the fault the newest readings speak for themselves, and the worst one is named."""
    rows, verdicts, opened = judged
    store, again = wall_store(settle_s=0), FAULT + 40
    store.ingest("verdicts", map(encode_verdict, verdicts[:again]), pipeline="farm")
    calm = [v for v in verdicts if v.evidence is None and v.score is not None][:20]
    after = [
        msgspec.structs.replace(
            verdict, event_time_ms=STEP_MS * (again + k), position=Position("python", 0, again + k)
        )
        for k, verdict in enumerate(calm)
    ]
    store.ingest("verdicts", map(encode_verdict, after), pipeline="farm")
    rows = rows.copy()
    rows[again:, 0] += 18
    readings = [(STEP_MS * i, tuple(row)) for i, row in enumerate(rows[: again + 20].tolist())]
    store.add_readings("pump", "pump", ("flow", "load"), readings, pipeline="farm")
    tell(store, opened, pipeline="farm")
    with running(store) as console:
        page = text_of(console.ask(f"/incidents/{opened.id}").text)
    assert re.search(
        r"flow [\d.]+, (within its )?usual\S* .*; at worst flow [\d.]+, expected", page
    )


@pytest.mark.browser
def test_the_expected_range_is_drawn(judged, wall, desk):
    _, _, opened = judged
    with running(wall) as console, desk(console) as place:
        page = place.open(f"/incidents/{opened.id}")
        page.wait_for_selector("#plots canvas")
        expected = page.evaluate("document.querySelector('#plots').charts[0].line.expected.length")
        assert expected > 50
        shot(page, "incident-expected")


IN_SIGHT = """
(selector) => [...document.querySelectorAll(selector)].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && box.top >= 0 && box.bottom <= innerHeight;
}).map((one) => one.innerText).join("\\n")
"""


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_what_somebody_has_to_know_in_thirty_seconds_is_in_sight(judged, wall, desk, width, height):
    """Where, what, since when, how sure, in which state, and what to do: without scrolling."""
    _, _, opened = judged
    background = Background(wall, Feeding(control_lines={"farm": Line()}))
    with running(wall, background=background) as console, desk(console) as place:
        page = place.open("/now", width=width, height=height)
        card = page.evaluate(IN_SIGHT, ".card h3, .card header, .card p, .card li, .card .button")
        for words in (
            r"pump", r"flow [\d.]+, expected [\d.]+ from the others", r"since .*\d{4}-",
            r"\d+ of 100", r"Fault, or new normal\?", r"Look and answer",
        ):  # fmt: skip
            assert re.search(words, card), words
        page = place.open(f"/incidents/{opened.id}", width=width, height=height)
        head = page.evaluate(IN_SIGHT, "#head h1, #head .sub, #head li")
        for words in (
            r"pump", r"flow [\d.]+, expected [\d.]+ from the others", r"since about \d{4}-",
            r"\d+ of 100", r"open",
        ):  # fmt: skip
            assert re.search(words, head), words
        assert re.search("Fault", page.evaluate(IN_SIGHT, "[data-kind=fault]"))
        assert re.search("New normal|new normal", page.evaluate(IN_SIGHT, "[data-kind=new_normal]"))
        shot(page, f"thirty-seconds-{width}")
