"""`rejex_stream.Pipeline`: the same verdicts as a run of the same config, fed from Python."""

import csv
import math
from datetime import UTC, datetime

import numpy as np
import pytest

from rejex_stream import Pipeline
from rejex_stream.cli import main
from rejex_stream.config.assembly.control_line import incidents_in, lines_of
from rejex_stream.encode import decode_verdict
from rejex_stream.errors import ConfigError
from tests import pump

SECTIONS = {
    "input": {"channels": ["flow"], "time": "t", "time_unit": "s", "sensor": "id"},
    "rejection": {"contamination": 0.05, "tolerance": 4, "window": 200},
}


def faulty(i: int) -> float:
    return pump.flow(i) + 50.0 * (2_000 <= i < 2_100)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pump.feed(tmp_path, 0, 3_000, faulty)
    (tmp_path / "pump.toml").write_text(pump.pump_toml().replace('[detector]\nname = "HBOS"\n', ""))
    return tmp_path


def judged(outcome):
    verdict = outcome.verdict
    return verdict.label, verdict.reason, verdict.score, verdict.rank, verdict.incident is None


@pytest.mark.thorough
def test_a_file_gets_the_verdicts_and_incidents_of_a_run(folder):
    assert main(["run", "pump.toml"]) == 0
    ran = [decode_verdict(line) for line in (folder / "verdicts.jsonl").read_bytes().splitlines()]
    pipeline = Pipeline("pump.toml")
    verdicts = [outcome.verdict for outcome in pipeline.process_file()]
    assert verdicts == ran
    assert {verdict.label for verdict in verdicts} == {"normal", "anomaly", "rejected"}
    published = incidents_in(lines_of(folder / "incidents.jsonl"))
    assert pipeline.incidents == tuple(published.values())
    assert len(pipeline.incidents) >= 2


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [1, 7, 3_000])
def test_rows_in_any_batches_get_the_verdicts_of_the_file(folder, batch):
    expected = [judged(outcome) for outcome in Pipeline("pump.toml").process_file()]
    with (folder / "feed.csv").open() as file:
        rows = [
            {"t": int(row["t"]), "id": row["id"], "flow": float(row["flow"])}
            for row in csv.DictReader(file)
        ]
    pipeline = Pipeline(**SECTIONS)
    outcomes = [
        outcome
        for start in range(0, len(rows), batch)
        for outcome in pipeline.process(rows[start : start + batch])
    ]
    assert [judged(outcome) for outcome in outcomes] == expected
    assert [outcome.record.position.offset for outcome in outcomes] == list(range(3_000))
    assert len(pipeline.incidents) >= 2


def test_what_python_holds_is_read_as_it_is_meant():
    sections = SECTIONS | {"input": SECTIONS["input"] | {"time_unit": "iso8601"}}
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    row = {"t": when, "id": "p", "flow": np.float32(1.5)}
    read, missing, invalid = Pipeline(**sections).process(
        [row, row | {"t": np.datetime64("2026-01-31T13:00").item(), "flow": math.nan}, {"t": when}]
    )
    assert read.verdict.event_time_ms == when.timestamp() * 1000
    assert read.verdict.reason == "warm_up"
    assert missing.verdict.event_time_ms == read.verdict.event_time_ms + 3_600_000
    assert missing.verdict.reason == "unscorable"
    assert invalid.verdict is None
    assert "sensor" in invalid.invalid.reason


def test_the_environment_overrides_sections_as_it_does_a_file(monkeypatch):
    monkeypatch.setenv("REJEX_REJECTION__WINDOW", "300")
    pipeline = Pipeline(**SECTIONS)
    assert pipeline.config.rejection.window == 300
    assert Pipeline(pipeline.config).config is pipeline.config


def test_a_config_with_problems_is_refused_with_all_of_them():
    wrong = SECTIONS | {"rejection": {"contamination": 0.7, "window": 1, "tolerance": 4}}
    with pytest.raises(ConfigError, match=r"(?s)contamination.*window"):
        Pipeline(**wrong)
    for nothing in (Pipeline, lambda: Pipeline("pump.toml", **SECTIONS)):
        with pytest.raises(ConfigError, match="a config file or its sections"):
            nothing()
    with pytest.raises(ConfigError, match=r"input\.path is missing"):
        list(Pipeline(**SECTIONS).process_file())
