"""Work that is planned in the console: the pipeline marks its events, and it can be taken back."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")
pytest.importorskip("uvicorn", reason="the extra `review` is not installed")

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.incidents.calendar import Plan
from rejex_stream.review.console.background import Background, feeding
from rejex_stream.review.console.console import Access
from rejex_stream.review.incidents.planned import _next, planned_work
from rejex_stream.review.queue.database import Viewer, scalar
from rejex_stream.review.queue.series import pipeline_clock
from tests.pump import feed, pump_toml
from tests.review.console_server import running
from tests.review.desk import violations
from tests.review.test_review_store import LOOKER

T0_MS = 1_700_000_000_000
NIGHTLY = """
[[calendar]]
begin = "2023-11-14T20:00:00Z"
end = "2023-11-14T20:30:00Z"
every = "day"
streams = ["p0"]
"""


@pytest.fixture
def plant(tmp_path, monkeypatch, wall_store):
    """A pipeline that has judged 400 rows, its store, and what keeps both up to date."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.toml").write_text(pump_toml(more=NIGHTLY))

    def rows(start, stop):
        feed(tmp_path, start, stop)
        assert main(["run", "pump.toml"]) == 0

    rows(0, 400)
    store = wall_store(settle_s=0)
    fed = feeding(store.database.path, configs=[load_config(tmp_path / "pump.toml")])
    background = Background(store, fed, undo_ms=0)
    background.round()
    with running(store, background=background) as console:
        console.console.calendars = fed.calendars
        yield console, background, rows, tmp_path
    assert background.stop()


def plan(console, start, stop, request="r1", **more):
    wanted = {"request_id": request, "pipeline": "pump", "why": "a new <seal>",
              "from_ms": T0_MS + 1000 * start, "until_ms": T0_MS + 1000 * stop}  # fmt: skip
    return console.ask("/api/incidents/plan", wanted | more)


def listed(console):
    with console.store.database.read() as connection:
        newest_ms = {"pump": pipeline_clock(connection, "pump").now_ms}
        return planned_work(connection, console.console.calendars, newest_ms)


def test_what_is_planned_here_marks_the_events_of_its_time_and_ends_when_taken_back(plant):
    console, background, rows, folder = plant
    given = plan(console, 500, 600, stream="p1")
    assert given.status == 200, given.text
    assert plan(console, 500, 600, stream="p1").json == given.json, "a retry says nothing new"
    assert plan(console, 700, 5000, "r2").status == 200
    work, every, night = listed(console)
    assert (work.streams, work.by, work.state) == (
        ("p1",), "ada", "the pipeline has not replied yet"
    )  # fmt: skip
    assert every.streams == ()
    assert (night.from_ms - T0_MS, night.every_ms) == (78_400_000, 86_400_000), "the next night"
    page = console.ask("/now").text
    assert "a new &lt;seal&gt;" in page
    assert "by the config's calendar" in page
    background.round()
    rows(400, 420)  # heard at its commit, it holds from the next event on
    rows(420, 650)
    background.round()
    assert [(work.by, work.state) for work in listed(console)] == [("ada", ""), ("", "")]
    verdicts = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    planned = {v["event_time_ms"] - T0_MS for v in verdicts if v.get("planned")}
    assert planned == {1000 * i for i in range(501, 600, 2)}
    taken = {"request_id": "r3", "command": every.command}
    assert console.ask("/api/incidents/cancel", taken).status == 200
    assert [work.by for work in listed(console)] == [""]
    assert console.ask("/api/incidents/cancel", taken).status == 200, "once more says nothing new"
    background.round()
    rows(650, 660)
    rows(660, 800)
    verdicts = [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]
    assert sum(bool(v.get("planned")) for v in verdicts) == 50, (
        "700 to 800 are not planned any more"
    )


def test_what_has_not_left_never_does(plant):
    console, background, _, folder = plant
    id_ = plan(console, 400, 500).json["command"]
    assert console.ask("/now").text.count("data-cancel") == 1
    taken = {"request_id": "r3", "command": id_}
    assert console.ask("/api/incidents/cancel", taken).status == 200
    background.round()
    assert listed(console)[0].by == ""
    assert id_ not in "".join(path.read_text() for path in folder.glob("*control*"))


def test_what_the_command_line_planned_is_listed_and_taken_back_here_or_there(plant, capsys):
    console, background, rows, folder = plant
    start, end = ("2023-11-14T22:23:20+00:00", "2023-11-14T22:25:00+00:00")  # of rows 600 to 700
    told = ["pump.toml", "--by", "bob", "--wait", "0"]
    for stream in ("p0", "p1"):
        window = ["--from", start, "--until", end, "--stream", stream, "--note", "oil"]
        assert main(["control", "plan", *told, *window]) == 0
    background.round()
    works = sorted((work for work in listed(console) if work.by), key=lambda work: work.streams)
    assert [(one.by, one.why, one.streams) for one in works] == [
        ("bob", "oil", ("p0",)), ("bob", "oil", ("p1",)),
    ]  # fmt: skip
    assert main(["control", "cancel", *told, works[0].command]) == 0
    taken = {"request_id": "r3", "command": works[1].command}
    assert console.ask("/api/incidents/cancel", taken).status == 200
    background.round()
    assert [work.by for work in listed(console)] == [""]
    rows(400, 420)
    rows(420, 700)
    background.round()
    assert '"planned":true' not in (folder / "verdicts.jsonl").read_text()


def test_a_plan_is_taken_back_by_anybody_who_may_plan_before_and_after_it_has_left(plant):
    console, background, _, _ = plant
    id_ = plan(console, 500, 600).json["command"]
    bob = Access(local=Viewer("bob", "reviewer"))
    with running(console.store, background=background, access=bob) as other:
        body = {"request_id": "r3", "command": id_}
        assert other.ask("/api/incidents/cancel", body).status == 200
        assert other.ask("/api/incidents/cancel", body).status == 200, "once more"
        taken_back = "SELECT count(*) FROM audit WHERE action = 'withdraw'"
        with console.store.database.read() as connection:
            assert scalar(connection, taken_back) == 1
        later = plan(console, 500, 600, "r4").json["command"]
        background.round()
        body = {"request_id": "r5", "command": later}
        assert other.ask("/api/incidents/cancel", body).status == 200
    assert [work.by for work in listed(console)] == [""]


@pytest.mark.parametrize(("more", "status", "words"), [
    ({"until_ms": T0_MS}, 422, "ends after it begins"),
    ({"until_ms": T0_MS + 500_001 + 31 * 86_400_000}, 422, "[[calendar]]"),
    ({"why": ""}, 422, "why"), ({"stream": "p9"}, 404, "There is no stream 'p9'"),
    ({"pipeline": "other"}, 404, "where this pipeline reads commands"),
])  # fmt: skip
def test_a_plan_that_cannot_hold_is_a_sentence(plant, more, status, words):
    refused = plan(plant[0], 500, 600, **more)
    assert refused.status == status
    assert words in refused.text
    assert len(listed(plant[0])) == 1


def test_who_only_looks_plans_nothing(plant):
    console, background, _, _ = plant
    id_ = plan(console, 500, 600).json["command"]
    with running(console.store, background=background, access=Access(local=LOOKER)) as other:
        assert plan(other, 500, 600, "r2").status == 403
        body = {"request_id": "r3", "command": id_}
        assert other.ask("/api/incidents/cancel", body).status == 403
        page = other.ask("/now").text
        assert "data-cancel" not in page
        assert 'id="plan"' not in page


def test_a_plan_of_the_config_is_shown_at_its_next_time():
    nightly = Plan(1_000, 1_500, every_ms=10_000)
    seen = [_next("p", nightly, now).from_ms for now in (0, 1_499, 1_500, 11_499, 11_500)]
    assert seen == [1_000, 1_000, 11_000, 11_000, 21_000]


@pytest.mark.browser
def test_work_is_planned_and_taken_back_by_hand(plant, desk, axe):
    console, _, _, _ = plant
    phone = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
    with desk(console) as place:
        page = place.open("/now", **phone)
        page.get_by_text("Plan work").click()
        page.fill("input[name=from]", "2023-11-14T22:30")
        page.fill("input[name=until]", "2023-11-14T23:30")
        page.fill("input[name=why]", "cleaning")
        page.get_by_role("button", name="Plan it").click()
        page.get_by_text("cleaning").wait_for()
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert listed(console)[0].from_ms == 1_700_001_000_000
        page.get_by_role("button", name="Take back").click()
        page.get_by_text("cleaning").wait_for(state="detached")
    assert [work.by for work in listed(console)] == [""]
