"""More readings around an item: from the input itself, by position, bounded, and unknown beyond."""

from __future__ import annotations

import csv
from contextlib import contextmanager

import msgspec
import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")
pytest.importorskip("uvicorn", reason="the extra `review` is not installed")

from rejex_stream.config import load_config
from rejex_stream.encode import encode_review
from rejex_stream.errors import ConfigError
from rejex_stream.review import context_loader
from rejex_stream.review.console.background import feeding
from rejex_stream.review.console.console import Access
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.queue import series
from rejex_stream.review.queue.database import Viewer
from rejex_stream.types import Position
from tests.review.console_server import running
from tests.review.desk import sees, violations
from tests.review.test_review_store import LOOKER, episodes, item

N, AT = 4_000, 2_000
CONFIG = """
[pipeline]
name = "farm"
[input]
path = "readings.csv"
channels = ["vib"]
time = "t"
sensor = "sensor"
time_unit = "s"
[rejection]
contamination = 0.12
tolerance = 8
window = 500
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Two sensors in turn, one reading a second; some cells of the first are empty."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(CONFIG)
    with (tmp_path / "readings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["t", "sensor", "vib"])
        for n in range(N):
            rows.writerow([n, ("T07/vib", "T08/vib")[n % 2], "" if n % 100 == 0 else n])
    return load_config("p.toml")


def at(offset, topic="readings.csv"):
    return Position(topic, 0, offset)


def test_each_step_reads_what_the_one_before_did_not_and_only_this_sensor(config):
    wide = ContextLoader(config, records=100)
    first = wide.around(at(AT), "T07/vib", "T07/vib", 1)
    assert (first.channels, first.records, first.cut) == (("vib",), 200, "")
    assert [t_ms // 1000 for t_ms, _ in first.points] == list(range(AT - 100, AT + 100, 2))
    assert first.points[1][1] == (float(AT - 98),)
    assert first.points[0][1] == (None,), "an empty cell is missing, not zero"
    second = wide.around(at(AT), "T07/vib", "T07/vib", 2)
    seconds = [t_ms // 1000 for t_ms, _ in second.points]
    assert seconds == [*range(AT - 200, AT - 100, 2), *range(AT + 100, AT + 200, 2)]
    assert wide.around(at(AT), "T07/vib", "T07/vib", 60).points == ()
    ends = wide.around(at(10), "T07/vib", "T07/vib", 1)
    assert ends.points[0][0] == 0


def test_a_step_is_bounded_in_bytes_and_in_time_and_says_so(config, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(context_loader, "_MAX_BYTES", 500)
        bytes_cut = ContextLoader(config).around(at(AT), "T07/vib", "T07/vib", 1)
    assert "the records hold more than" in bytes_cut.cut
    assert 0 < bytes_cut.records < 100
    late = ContextLoader(config, patience_s=0.0).around(at(AT), "T07/vib", "T07/vib", 1)
    assert (late.points, late.cut) == ((), "reading took longer than 0 s")


def test_what_cannot_be_read_is_a_sentence(config):
    with pytest.raises(ConfigError, match=r"is not of the input readings\.csv"):
        ContextLoader(config).around(at(5, "other.csv"), "T07/vib", "T07/vib", 1)
    passing = config.model_copy(
        update={"input": config.input.model_copy(update={"path": "-", "format": "csv"})}
    )
    with pytest.raises(ConfigError, match="standard input cannot be read twice"):
        ContextLoader(passing)


@contextmanager
def office(store, config, viewer="ada"):
    """A console on one item at AT, of which the store has the three readings before."""
    found = item(AT)
    place = msgspec.structs.replace(found.verdict, position=at(AT))
    line = encode_review(msgspec.structs.replace(found, verdict=place))
    store.ingest("review", [line], pipeline="farm")
    access = Access(local=viewer if isinstance(viewer, Viewer) else Viewer(viewer))
    with running(store, access=access) as console:
        console.console.inputs.update(feeding(None, configs=[config]).inputs)
        yield console, f"/api/episodes/{episodes(store)[0].episode_id}"


def test_wider_readings_are_drawn_and_what_is_beyond_them_stays_unknown(wall_store, config):
    store = wall_store(settle_s=0)
    with office(store, config) as (console, base):
        span = f"from={1000 * (AT - 200)}&to={1000 * (AT + 200)}"
        before = console.ask(f"{base}/series?{span}").json
        assert len([v for v in before["channels"][0]["v"] if v is not None]) == 4
        console.console.inputs["farm"] = ContextLoader(config, records=100)
        told = console.ask(f"{base}/wider", {"step": 1}).json
        assert (told["readings"], told["records"], told["cut"]) == (100, 200, "")
        after = console.ask(f"{base}/series?{span}").json
        line = after["channels"][0]
        known = [t for t, v in zip(line["t"], line["v"], strict=True) if v is not None]
        assert known[0] == 1000 * (AT - 98)
        assert known[-1] == 1000 * (AT + 98)
        kinds = {tuple(hole) for hole in after["holes"]}
        assert (1000 * (AT - 200), 1000 * (AT - 100), "unknown") in kinds
        assert (1000 * (AT + 98), 1000 * (AT + 200), "unknown") in kinds
        assert not any(AT - 90 < low / 1000 < AT + 90 for low, _, _ in kinds)
        again = console.ask(f"{base}/wider", {"step": 1}).json
        assert again["readings"] == 100, "reading it again changes nothing"
        assert console.ask(f"{base}/series?{span}").json == after
        assert console.ask(f"{base}/wider", {"step": 0}).status == 422


def test_who_only_looks_reads_nothing_and_another_pipelines_input_is_not_guessed(
    wall_store, config
):
    store = wall_store(settle_s=0)
    with office(store, config, LOOKER) as (console, base):
        assert console.ask(f"{base}/wider", {"step": 1}).status == 403
    with running(store) as console:
        refused = console.ask(f"{base}/wider", {"step": 1})
    assert refused.status == 404
    assert refused.json["message"] == "The console does not know the input of this pipeline."


@pytest.mark.browser
def test_more_is_one_key_away_and_the_plot_shows_it(wall_store, config, desk, axe):
    store = wall_store(settle_s=0)
    with office(store, config) as (console, base), desk(console) as place:
        page = place.open(f"/episode/{base.rpartition('/')[2]}", scheme="dark")
        page.wait_for_selector("#plots canvas")
        page.keyboard.press("w")
        sees(page, "2,000 readings of this sensor among 4,000 records.")
        with store.database.read() as connection:
            assert series.around(connection, 1, 1000 * AT, 1000 * AT, before=9999)[0] == 0
        assert violations(page, axe) == []
