"""Times in place of counts: what they become, what is refused, and that it is said."""

import json
import tomllib

import pytest

from rejex_stream import Pipeline
from rejex_stream.config import Config, parse_config
from rejex_stream.config.durations import counts_of
from rejex_stream.config.pipeline_config import config_schema

EVERY_10_MIN = """
[input]
path = "feed.csv"
channels = ["flow"]
time = "time"
time_unit = "ms"
fixed_sensor = "p"
{interval}
[rejection]
contamination = 0.05
review_budget = {{ rate = 0.05 }}
window = {window}
[hold]
adopt_after_events = "3 d"
"""
STATED = "sample_interval_ms = 600_000"


def text(window: str = '"14 d"', interval: str = STATED) -> str:
    return EVERY_10_MIN.format(window=window, interval=interval)


@pytest.mark.parametrize(
    ("written", "events"),
    [("14 d", 2016), ("2w", 2016), (" 33.5 h ", 201), ("20160 min", 2016), ("1209600 s", 2016)],
)
def test_a_time_becomes_a_count_by_the_stated_interval(written, events):
    config, problems = parse_config(text(f'"{written}"'))
    assert not problems
    assert config.rejection.window == events
    assert config.hold.adopt_after_events == 432
    assert config.durations == {
        "rejection.window": (written.strip(), events), "hold.adopt_after_events": ("3 d", 432),
    }  # fmt: skip


def test_without_an_interval_each_time_is_refused_with_what_to_give():
    config, problems = parse_config(text(interval=""))
    assert config is None
    assert [problem.key for problem in problems] == ["rejection.window", "hold.adopt_after_events"]
    assert all("give input.sample_interval_ms" in str(problem) for problem in problems)


@pytest.mark.parametrize("written", ["14 days", "d", "-3 d", "fortnight"])
def test_what_is_no_time_is_refused_as_any_other_value(written):
    _, (problem,) = parse_config(text(f'"{written}"'))
    assert str(problem).startswith(f'rejection.window = "{written}": expected integer')


def test_a_time_that_is_too_short_is_refused_by_the_settings_own_limit():
    _, problems = parse_config(text('"5 min"'))
    assert any(p.key == "rejection.window" and "greater than or equal" in str(p) for p in problems)


def test_the_environment_may_give_a_time(monkeypatch):
    monkeypatch.setenv("REJEX_REJECTION__WINDOW", "7 d")
    config, _ = parse_config(text())
    assert config.rejection.window == 1008
    monkeypatch.delenv("REJEX_REJECTION__WINDOW")
    monkeypatch.setenv("REJEX_REFIT__BUFFER_EVENTS", "1 d")
    config, problems = parse_config(text(window="500", interval=""))
    assert config is None
    assert "REJEX_REFIT__BUFFER_EVENTS" in str(problems[0])


def test_the_verdicts_are_those_of_the_count():
    def labels(window):
        pipeline = Pipeline(
            input={"channels": ["flow"], "time": "at", "sensor": "m", "sample_interval_ms": 60_000},
            rejection={"contamination": 0.1, "window": window, "tolerance": 4},
        )
        rows = [{"at": 60 * i, "m": "m1", "flow": (7 * i) % 11} for i in range(300)]
        return [outcome.verdict for outcome in pipeline.process(rows)]

    assert labels("100 min") == labels(100)
    assert labels("90 min") != labels(100)


def test_validate_prints_what_a_time_became(tmp_path, rejex):
    path = tmp_path / "pipe.toml"
    path.write_text(text())
    assert "14 d: 2,016 events, at one in 10 min" in rejex("validate", path).stdout


@pytest.mark.parametrize(("step_s", "doubted"), [(600, False), (60, True)])
def test_doctor_doubts_an_interval_that_the_readings_do_not_have(tmp_path, rejex, step_s, doubted):
    feed = tmp_path / "feed.csv"
    rows = [f"{1_700_000_000_000 + 1000 * step_s * i},{i % 7}" for i in range(50)]
    feed.write_text("\n".join(["time,flow", *rows]) + "\n")
    path = tmp_path / "pipe.toml"
    path.write_text(text().replace('"feed.csv"', json.dumps(str(feed))))
    found = " ".join(rejex("doctor", path).stdout.split())
    assert ("so rejection.window = '14 d', 2,016 events, lasts 1 d 9 h" in found) == doubted
    assert ("give input.sample_interval_ms = 60000" in found) == doubted


@pytest.mark.thorough
def test_init_writes_the_interval_and_a_window_of_whole_days(tmp_path, rejex):
    import numpy as np

    i = np.arange(14 * 144)
    flow = 60 + 15 * np.sin(2 * np.pi * i / 144) + np.random.default_rng(0).normal(0, 2, len(i))
    table = tmp_path / "flow.csv"
    lines = [f"{1_700_000_000 + 600 * k},{x:.2f}" for k, x in zip(i, flow, strict=True)]
    table.write_text("\n".join(["time,flow", *lines]) + "\n")
    rejex("init", table, "--to", tmp_path / "p.toml")
    written = tomllib.loads((tmp_path / "p.toml").read_text())
    assert written["input"]["sample_interval_ms"] == 600_000
    assert written["rejection"]["window"] == "5 d"
    config, problems = parse_config((tmp_path / "p.toml").read_text())
    assert not problems
    assert config.rejection.window == 720


def test_an_editors_schema_knows_the_times():
    places = list(counts_of(Config))
    assert ("rejection", "window") in places
    assert ("features", "columns") not in places
    schema = config_schema()
    for section, name in places:
        where = schema["properties"][section]["$ref"].rpartition("/")[2]
        kinds = schema["$defs"][where]["properties"][name]["anyOf"]
        assert [kind["type"] for kind in kinds] == ["integer", "string"]
