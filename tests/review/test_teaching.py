"""From a rejected event to a lesson: run, ingest, answer, teach, and run on."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import msgspec
import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")
pytest.importorskip("uvicorn", reason="the extra `review` is not installed")

from rejex_stream.cli.main import main
from rejex_stream.config import load_config
from rejex_stream.errors import ConfigError
from rejex_stream.review import teaching
from rejex_stream.review.console.background import Background, feeding
from rejex_stream.review.incidents import incident_store
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Viewer, wall_clock_ms
from rejex_stream.review.queue.labelling import LabelRequest
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.review.teaching import lessons
from tests.pump import feed, pump_toml
from tests.review.console_server import running
from tests.review.test_review_store import ADA, EVE, audited, episodes, label
from tests.waiting import until

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
gap_events = 0
"""
KEY = "a secret of thirty-two characters"


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A pipeline that learns, and a queue that holds what it asked about."""
    folder = tmp_path_factory.mktemp("pump")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        feed(folder, 0, 3_000)
        (folder / "pump.toml").write_text(pump_toml(more=MORE))
        (folder / "key").write_text(KEY)
        assert main(["run", "pump.toml"]) == 0
        assert main(["review", "ingest", "--config", "pump.toml"]) == 0
    kept = tmp_path_factory.mktemp("kept") / "first"
    shutil.copytree(folder, kept)
    return folder, kept


@pytest.fixture
def judged(first_run, monkeypatch, capsys):
    """The same, as it was before any test; in its place, since what was committed names it."""
    folder, kept = first_run
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    monkeypatch.chdir(folder)
    capsys.readouterr()
    return folder


def verdicts(folder):
    return [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]


def answer(folder, verdict, *, but=0):
    section = load_config(folder / "pump.toml").review
    with closing(ReviewStore(folder / "review.db", section)) as store:
        waiting = episodes(store)[but:]
        labelling.label_cases(
            store,
            LabelRequest(request_id=f"r-{verdict}-{but}", verdict=verdict, targets=tuple(waiting)),
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_replay_without_snapshots_writes_the_same_bytes(judged, tmp_path):
    answer(judged, "normal", but=3)
    assert main(["review", "teach", "--config", "pump.toml"]) == 0
    judge = ["control", "judge", "pump.toml", "p1", "challenger", "--wait", "0"]
    assert main(judge) == 0
    feed(judged, 3_000, 3_300)
    assert main(["run", "pump.toml"]) == 0
    kept = tmp_path / "kept"
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


@contextmanager
def desk(folder, clock=None, **settings):
    """The store, and the background of a console on it."""
    config = load_config(folder / "pump.toml")
    section = config.review.replace(**settings)
    with closing(ReviewStore(folder / "review.db", section)) as store:
        store.now_ms = clock or store.now_ms
        fed = feeding(store.database.path, configs=[config])
        background = Background(store, fed)
        try:
            yield store, background
            assert background.problems == {}
        finally:
            assert background.stop()


def told(folder):
    """What the log says of which event, in its order."""
    path = folder / "control.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [(event[2], said) for line in lines for event, said in json.loads(line)["answers"]]


def settle(background):
    until(lambda: not background.round() and not background.round())


def test_the_console_tells_answers_by_itself_once_they_cannot_be_undone(judged, clock):
    with desk(judged, clock) as (store, background):
        first, second, *_ = reversed(episodes(store))
        label(store, ADA, [first], "normal", request="1")
        label(store, ADA, [second], "anomaly", request="2")
        settle(background)
        clock.pass_ms(59_000)
        settle(background)
        assert told(judged) == []
        labelling.undo(store, "u", ADA)
        clock.pass_ms(2_000)
        settle(background)
        once = told(judged)
        assert {said for _, said in once} == {"normal"}
        assert len(once) == first.n_events
        clock.pass_ms(600_000)
        settle(background)
        labelling.undo(store, "v", ADA)  # too late for what was told
        label(
            store,
            ADA,
            [t for t in episodes(store) if t.episode_id == first.episode_id],
            "anomaly",
            request="3",
        )
        clock.pass_ms(600_000)
        settle(background)
        assert told(judged) == once
        assert ("system", "teach", "p1") in audited(store) or ("system", "teach", "p0") in audited(
            store
        )


def test_a_changed_mind_is_told_as_it_is_when_it_cannot_be_undone_any_more(judged, clock):
    with desk(judged, clock) as (store, background):
        last = episodes(store)[-1]
        label(store, ADA, [last], "normal", request="1")
        clock.pass_ms(50_000)
        again = msgspec.structs.replace(last, status="done")
        label(store, ADA, [again], "anomaly", request="2")
        clock.pass_ms(20_000)
        settle(background)
        assert told(judged) == []
        clock.pass_ms(40_000)
        settle(background)
        assert {said for _, said in told(judged)} == {"anomaly"}


def test_an_expiry_is_no_answer_and_a_person_may_still_give_one(judged, clock):
    clock.now_ms = wall_clock_ms()  # the store was filled by it
    with desk(judged, clock, default_answer="anomaly", teach_after_s=0) as (store, background):
        n = len(episodes(store))
        clock.pass_ms(8 * 24 * 3_600_000)
        assert len(labelling.expire_due(store)) == n
        settle(background)
        assert told(judged) == []
        label(store, ADA, episodes(store, tab="all")[-1:], "normal")
        settle(background)
        assert {said for _, said in told(judged)} == {"normal"}


def test_only_what_people_agree_on_is_told(judged):
    with desk(judged, double_review_ratio=1.0, teach_after_s=0) as (store, background):
        bob = Viewer("bob")
        targets = episodes(store)[-3:]  # asked about: there is a challenger by then
        for number, (one, said) in enumerate(
            zip(targets, ("normal", "anomaly", "unsure"), strict=True)
        ):
            label(store, ADA, [one], said, request=f"a{number}")
        settle(background)
        assert told(judged) == []  # all wait for a second opinion
        mine = [one.episode_id for one in targets]
        for one in episodes(store, bob):
            if one.episode_id in mine:
                at = mine.index(one.episode_id)
                label(store, bob, [one], ["normal", "normal", "unsure"][at], request=f"b{at}")
        settle(background)
        assert sorted({said for _, said in told(judged)}) == ["normal", "unsure"]
        disputed = next(one for one in episodes(store, EVE, "disputed"))
        label(store, EVE, [disputed], "anomaly", request="e")
        settle(background)
        assert sorted({said for _, said in told(judged)}) == ["anomaly", "normal", "unsure"]
        assert len(told(judged)) == sum(one.n_events for one in targets)
        by = {one["by"] for one in commands(judged)}
        assert by == {"ada and 1 more", "ada and 2 more"}


def test_answers_wait_while_the_control_log_is_away_and_the_page_says_so(judged):
    (judged / "control.jsonl").mkdir()  # nobody can write a command
    with desk(judged, teach_after_s=0) as (store, background):
        targets = episodes(store)[-5:]
        n = sum(one.n_events for one in targets)
        with running(store, background=background) as console:
            assert "0 told, none waits" in console.ask("/audit").text
            label(store, ADA, targets)
            background.round()
            assert f"0 told, <b>{n} wait for its control log</b>" in console.ask("/audit").text
            assert "control.jsonl cannot be written" in console.ask("/audit").text
            (judged / "control.jsonl").rmdir()
            settle(background)
            assert f"{n} told, none waits" in console.ask("/audit").text
            assert "It last said" not in console.ask("/audit").text
            feed(judged, 3_000, 3_400)
            assert main(["run", "pump.toml"]) == 0
            settle(background)
            assert "It last said: “" in console.ask("/audit").text
        assert len(told(judged)) == len(set(told(judged))) == n


@pytest.mark.thorough
def test_a_console_that_is_killed_between_storing_and_sending_tells_each_once(judged):
    (judged / "pump.toml").write_text(pump_toml(more=MORE + "port = 0\nteach_after_s = 0\n"))
    (judged / "control.jsonl").mkdir()

    def waiting():
        with closing(sqlite3.connect(judged / "review.db")) as store:
            query = "SELECT count(*) FROM answer WHERE sent_ms IS NULL"
            return store.execute(query).fetchone()[0]

    def serve():
        words = [sys.executable, "-m", "rejex_stream", "review", "serve", "--config", "pump.toml"]
        return subprocess.Popen(words, cwd=judged, stdout=subprocess.DEVNULL)

    answer(judged, "normal", but=len(asked_episodes(judged)) - 9)
    with serve() as console:
        until(waiting)
        console.kill()
    assert told(judged) == []
    (judged / "control.jsonl").rmdir()
    with serve() as console:
        until(lambda: not waiting())
        console.kill()
    once = told(judged)
    assert len(once) == len(set(once)) >= 9
    # Killed after sending, and before it was noted: the same commands again, obeyed once.
    with closing(sqlite3.connect(judged / "review.db")) as store, store:
        store.execute("UPDATE answer SET sent_ms = NULL")
    with serve() as console:
        until(lambda: not waiting())
        console.kill()
    assert told(judged) == once * 2
    feed(judged, 3_000, 3_300)
    assert main(["run", "pump.toml"]) == 0
    lines = (judged / "incidents.jsonl").read_text().splitlines()
    replies = [one for one in map(json.loads, lines) if one["kind"] == "reply"]
    accepted = [one["command"] for one in replies if one["accepted"]]
    assert sorted(accepted) == sorted({one["id"] for one in commands(judged)})
    assert len(replies) == 2 * len(accepted)


def asked_episodes(folder):
    section = load_config(folder / "pump.toml").review
    with closing(ReviewStore(folder / "review.db", section)) as store:
        return episodes(store)


@pytest.mark.thorough
def test_a_store_made_anew_tells_all_again_and_no_verdict_changes(judged, tmp_path):
    """The law that lets a console repeat itself: a learner ignores what it knows."""
    answer(judged, "normal", but=3)
    assert main(["review", "teach", "--config", "pump.toml"]) == 0
    feed(judged, 3_000, 3_300)
    assert main(["run", "pump.toml"]) == 0
    kept = tmp_path / "kept"
    shutil.copytree(judged, kept)
    found = []
    for again in (False, True):
        if again:
            before = told(judged)
            (judged / "review.db").unlink()
            assert main(["review", "ingest", "--config", "pump.toml"]) == 0
            answer(judged, "anomaly", but=3)  # even if people changed their minds meanwhile
            assert main(["review", "teach", "--config", "pump.toml"]) == 0
            repeated = told(judged)[len(before) :]
            assert {event for event, _ in before} <= {event for event, _ in repeated}
            # Of those that were told before; what came since is a first answer.
            keep_known(judged, {event for event, _ in before})
        feed(judged, 3_300, 3_800)
        assert main(["run", "pump.toml"]) == 0
        found.append((judged / "verdicts.jsonl").read_bytes())
        if not again:
            shutil.rmtree(next(path.parent for path in judged.rglob("commit.json")))
            shutil.copytree(kept, judged, dirs_exist_ok=True)
    assert found[0] == found[1]


def keep_known(folder, events):
    path, kept = folder / "control.jsonl", []
    for line in path.read_text().splitlines():
        one = json.loads(line)
        one["answers"] = [each for each in one["answers"] if each[0][2] in events]
        kept += [json.dumps(one) + "\n"] if one["answers"] else []
    path.write_text("".join(kept))


def test_a_console_tells_nothing_to_who_does_not_learn(judged):
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("enabled = true", "")))
    with desk(judged, teach_after_s=0) as (store, background):
        label(store, ADA, episodes(store)[-5:])
        settle(background)
        assert told(judged) == []
        assert background.learns == []
        with running(store, background=background) as console:
            assert "that teach" not in console.ask("/audit").text
        with store.database.read() as connection:
            assert lessons(connection, "pump") == (0, 0, "")


@pytest.mark.thorough
def test_more_answers_than_fit_into_a_command_are_several(judged, monkeypatch):
    monkeypatch.setattr(teaching, "MAX_ANSWERS", 2)
    monkeypatch.setattr(teaching, "_AT_ONCE", 5)
    monkeypatch.setattr(incident_store, "_AT_ONCE", 3)
    with desk(judged, teach_after_s=0) as (store, background):
        label(store, ADA, episodes(store))
        settle(background)
    known = asked(judged)
    assert sorted(event for event, _ in told(judged)) == sorted(known["teach"] | known["measure"])
    assert max(len(one["answers"]) for one in commands(judged)) == 2


def test_nobody_is_taught_where_nothing_is_learnt(judged, capsys):
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("enabled = true", "")))
    assert main(["review", "teach", "--config", "pump.toml"]) == 2
    assert "No pipeline here learns from answers" in capsys.readouterr().err


def test_what_does_not_fit_is_refused_before_anything_runs(judged):
    budget = pump_toml(more=MORE).replace("tolerance = 4", "review_budget = { rate = 0.05 }")
    (judged / "pump.toml").write_text(budget)
    assert main(["validate", "pump.toml"]) == 0, "one credit holds it for both"
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("= 0.5", "= 0")))
    with pytest.raises(ConfigError, match="measure_rate"):
        load_config(judged / "pump.toml")
    (judged / "pump.toml").write_text(pump_toml(more=MORE))
    (judged / "key").unlink()
    assert main(["run", "pump.toml"]) == 2
    (judged / "pump.toml").write_text(pump_toml(more=MORE.replace("enabled = true", "")))
    assert main(["validate", "pump.toml"]) == 0  # whoever never tosses the coin needs no key
