"""``replay``: a history judged twice; the same config differs nowhere, another where it must."""

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime

import pytest

from rejex_stream.cli import main
from rejex_stream.encode import decode_verdict

CONFIG = """
[pipeline]
name = "pumps"
[input]
path = "feed.csv"
time = "t"
time_unit = "ms"
sensor = "id"
channels = ["flow"]
[detector]
name = "HBOS"
[rejection]
contamination = {contamination}
window = 200
tolerance = 8
[output]
verdicts = "{out}/verdicts.jsonl"
"""
START_MS = 1_700_000_000_000


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(5)
    lines = ["t,id,flow"]
    for i in range(3_000):
        flow = rng.gauss(10, 1) + (9 if rng.random() < 0.02 else 0)
        lines.append("?" if i == 1_000 else f"{START_MS + i * 1000},s{i % 4},{flow:.3f}")
    (tmp_path / "feed.csv").write_text("\n".join(lines) + "\n")
    for name, contamination in (("old", 0.05), ("new", 0.1)):
        (tmp_path / name).mkdir()
        text = CONFIG.format(contamination=contamination, out=name)
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


@pytest.fixture
def replayed(history, capsys):
    def run(*arguments):
        assert main(["replay", *arguments, "--output", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def written(folder):
    lines = (folder / "verdicts.jsonl").read_bytes().splitlines()
    return {v.position.offset: v for v in map(decode_verdict, lines)}


def test_the_same_config_differs_nowhere(replayed):
    found = replayed("old.toml", "--config", "old.toml")
    first, second = found["counts"]
    assert first == second
    assert (first["events"], found["changed"], first["invalid"]) == (3_000, 0, 1)
    assert first["reviews"] > 0
    assert found["labels"]["dead letter > dead letter"] == 1


@pytest.mark.thorough
def test_what_differs_is_what_two_runs_would_write(history, replayed, capsys):
    for name in ("old", "new"):
        assert main(["run", f"{name}.toml"]) == 0
    capsys.readouterr()
    old, new = written(history / "old"), written(history / "new")
    labels = Counter(f"{old[i].label} > {new[i].label}" for i in old)
    found = replayed("old.toml", "--config", "new.toml")
    assert found["labels"] == labels | {"dead letter > dead letter": 1}
    changed = [i for i in old if old[i].label != new[i].label]
    assert found["changed"] == len(changed) > 0
    assert [one["offset"] for one in found["examples"]] == changed[:5]
    assert found["sensors"] == Counter(old[i].sensor for i in changed)


@pytest.mark.thorough
def test_since_begins_to_compare_and_not_to_judge(history, replayed, capsys):
    for name in ("old", "new"):
        assert main(["run", f"{name}.toml"]) == 0
    capsys.readouterr()
    old, new = written(history / "old"), written(history / "new")
    later = [i for i in old if old[i].event_time_ms >= START_MS + 2_000_000]
    since = datetime.fromtimestamp(START_MS / 1000 + 2_000, UTC).isoformat()
    found = replayed("old.toml", "--config", "new.toml", "--since", since)
    assert found["counts"][0]["events"] == len(later) + 1  # what cannot be read has no time
    assert found["changed"] == sum(old[i].label != new[i].label for i in later) > 0


def test_a_time_that_is_none_is_said(history, capsys):
    assert main(["replay", "old.toml", "--since", "yesterday"]) == 2
    assert "--since 'yesterday': expected a time in ISO 8601" in capsys.readouterr().err


def test_records_that_hold_no_reading_or_several_are_compared_too(history, replayed):
    lines = [
        json.dumps({"rows": [{"t": i * 1000, "id": f"s{j}", "flow": i % 7} for j in range(i % 3)]})
        for i in range(900)
    ]
    (history / "feed.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("old", "new"):
        text = (history / f"{name}.toml").read_text().replace("feed.csv", "feed.jsonl")
        (history / f"{name}.toml").write_text(text.replace("time =", 'select = ".rows[]"\ntime ='))
    found = replayed("old.toml", "--config", "new.toml")
    assert found["labels"]["dead letter > dead letter"] == 300
    assert sum(found["labels"].values()) == 1_200


def test_without_another_config_nothing_is_compared(history, capsys):
    assert main(["replay", "old.toml"]) == 0
    said = capsys.readouterr().out
    assert "3,000 records judged" in said
    assert "Changed labels" not in said


@pytest.mark.thorough
def test_columns_are_named_by_what_differs(history, capsys):
    assert main(["replay", "old.toml", "--config", "new.toml"]) == 0
    assert re.search(r"^ +old\.toml +new\.toml *$", capsys.readouterr().out, re.M)
    (history / "next").mkdir()
    (history / "next" / "old.toml").write_text((history / "new.toml").read_text())
    assert main(["replay", "old.toml", "--config", "next/old.toml"]) == 0
    assert re.search(r"^ +old\.toml +next/old\.toml *$", capsys.readouterr().out, re.M)
