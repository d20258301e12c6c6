"""From a rejected event to a lesson: run, ingest, answer, teach, and run on."""

from __future__ import annotations

import json
import shutil
from contextlib import closing

import pytest

from rejex_stream.cli.main import main
from rejex_stream.config import load_config
from rejex_stream.errors import ConfigError
from rejex_stream.review.queue.decisions import Decision
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.review.teaching import teach
from tests.pump import feed, pump_toml
from tests.review.test_review_store import ADA, episodes, label

MORE = """
[output]
audit_key_file = "key"
[learning]
enabled = true
measure_rate = 0.5
patience_events = 5000
[review]
reviewers = ["ada"]
settle_s = 0
gap_s = 0
gap_events = 0
"""
KEY = "a secret of thirty-two characters"


@pytest.fixture
def judged(tmp_path, monkeypatch, capsys):
    """A pipeline that learns, and a queue that holds what it asked about."""
    monkeypatch.chdir(tmp_path)
    feed(tmp_path, 0, 3_000)
    (tmp_path / "pump.toml").write_text(pump_toml(more=MORE))
    (tmp_path / "key").write_text(KEY)
    assert main(["run", "pump.toml"]) == 0
    assert main(["review", "ingest", "--config", "pump.toml"]) == 0
    capsys.readouterr()
    return tmp_path


def verdicts(folder):
    return [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]


def answer(folder, verdict, *, but=0):
    section = load_config(folder / "pump.toml").review
    with closing(ReviewStore(folder / "review.db", section)) as store:
        waiting = episodes(store)[but:]
        store.decide(
            Decision(request_id=f"r-{verdict}-{but}", verdict=verdict, targets=tuple(waiting)),
            Viewer("ada"),
        )
    return len(waiting)


def commands(folder):
    lines = (folder / "control.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def asked(folder):
    found = {"teach": set(), "measure": set()}
    for one in verdicts(folder):
        what = one.get("learning", {}).get("asked")
        if what:
            found[what].add(one["offset"])
    return found


def test_answers_reach_the_pipeline_once_and_teach_or_measure(judged, capsys):
    before = asked(judged)
    assert len(before["teach"]) > 20
    assert before["measure"]
    assert main(["review", "teach", "--config", "pump.toml"]) == 0
    assert capsys.readouterr().out == "pump: 0 answers in 0 commands\n"
    answer(judged, "normal", but=3)
    assert main(["review", "teach", "--config", "pump.toml"]) == 0
    assert " answers in 2 commands" in capsys.readouterr().out  # one a stream
    told = {event[2] for one in commands(judged) for event, _ in one["answers"]}
    assert told <= before["teach"] | before["measure"]
    assert len(told) >= len(before["teach"] | before["measure"]) - 3
    assert {said for one in commands(judged) for _, said in one["answers"]} == {"normal"}
    assert main(["review", "teach", "--config", "pump.toml", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"commands": {"pump": []}}

    feed(judged, 3_000, 3_400)
    assert main(["run", "pump.toml"]) == 0
    capsys.readouterr()
    assert main(["control", "list", "pump.toml", "--output", "json"]) == 0
    replies = [one["replies"] for one in json.loads(capsys.readouterr().out)["commands"]]
    assert all(reply[0]["accepted"] for reply in replies)
    counts = [int(word) for reply in replies for word in reply[0]["said"].split() if word.isdigit()]
    assert sum(counts[::3]) == len(told & before["teach"])
    assert sum(counts[1::3]) == len(told & before["measure"])
    assert sum(counts[2::3]) == 0


def test_a_replay_without_snapshots_writes_the_same_bytes(judged):
    answer(judged, "normal", but=3)
    assert main(["review", "teach", "--config", "pump.toml"]) == 0
    judge = ["control", "judge", "pump.toml", "p1", "challenger", "--wait", "0"]
    assert main(judge) == 0
    feed(judged, 3_000, 3_300)
    assert main(["run", "pump.toml"]) == 0
    kept = judged.with_name("kept")
    shutil.copytree(judged, kept)
    found = []
    for drop in (True, False):
        if drop:  # what was learnt is in no snapshot: it is learnt again, from the same offsets on
            assert main(["state", "drop", "pump.toml", "--all"]) == 0
        feed(judged, 3_300, 3_800)
        assert main(["run", "pump.toml"]) == 0
        found.append((judged / "verdicts.jsonl").read_bytes())
        shutil.rmtree(next(path.parent for path in judged.rglob("commit.json")))
        shutil.copytree(kept, judged, dirs_exist_ok=True)
    assert found[0] == found[1]
    spoke = [json.loads(line).get("learning") for line in found[0].splitlines()]
    assert {one["judge"] for one in spoke if one} == {"champion", "challenger"}


class Line:
    """A control log."""

    def __init__(self):
        self.said = []

    def say(self, command):
        self.said.append(command)

    def given(self):
        return self.said


def test_only_what_people_agree_on_is_told(judged):
    section = load_config(judged / "pump.toml").review.replace(double_review_ratio=1.0)
    with closing(ReviewStore(judged / "review.db", section)) as store:
        bob = Viewer("bob")
        targets = episodes(store)[-3:]  # asked about: there is a challenger by then
        for number, (one, said) in enumerate(
            zip(targets, ("normal", "anomaly", "unsure"), strict=True)
        ):
            label(store, ADA, [one], said, request=f"a{number}")

        line = Line()
        with store.database.read() as connection:
            assert teach(connection, "pump", line, "ada") == []  # all wait for a second opinion
        mine = [one.episode_id for one in targets]
        for number, one in enumerate(episodes(store, bob)):
            if one.episode_id not in mine:
                continue
            said = ["normal", "normal", "unsure"][mine.index(one.episode_id)]
            label(store, bob, [one], said, request=f"b{number}")
        with store.database.read() as connection:
            teach(connection, "pump", line, "ada")
            assert teach(connection, "pump", line, "ada") == []
            assert teach(connection, "other", Line(), "ada") == []
        assert {said for one in line.said for _, said in one.answers} == {"normal", "unsure"}


def test_nobody_is_taught_where_nothing_is_learnt(judged, capsys):
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("enabled = true", "")))
    assert main(["review", "teach", "--config", "pump.toml"]) == 2
    assert "No pipeline here learns from answers" in capsys.readouterr().err


def test_what_does_not_fit_is_refused_before_anything_runs(judged, capsys):
    budget = pump_toml(more=MORE).replace("tolerance = 4", "review_budget = { rate = 0.05 }")
    (judged / "pump.toml").write_text(budget)
    assert main(["validate", "pump.toml"]) == 2
    assert "no credit to hold a review budget with" in " ".join(capsys.readouterr().err.split())
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("= 0.5", "= 0")))
    with pytest.raises(ConfigError, match="measure_rate"):
        load_config(judged / "pump.toml")
    (judged / "pump.toml").write_text(pump_toml(more=MORE))
    (judged / "key").unlink()
    assert main(["run", "pump.toml"]) == 2
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("enabled = true", "")))
    assert main(["validate", "pump.toml"]) == 0  # whoever never tosses the coin needs no key
