"""``rejex-stream control``: what a person types, and what comes of it."""

import json
import threading

import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import run_pipeline, running
from tests.obedient import Obedient
from tests.pump import feed, pump_toml
from tests.waiting import PATIENCE_S, until

MUTE = ["mute", "pump.toml", "p0", "--from", "2024-01-01T00:00Z", "--until", "2024-01-02T00:00Z"]
QUICK = "[run]\ncommit_interval_s = 0.01\n"


def level(i):
    """Of two pumps; one that ends in 7 opens an incident."""
    return i * 7919 % 1009


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A pipeline whose engine has incidents, with a hundred events."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "make_engine", lambda config: lambda partition, fits: Obedient())
    (tmp_path / "pump.toml").write_text(pump_toml(more=QUICK))
    feed(tmp_path, 0, 100, level)
    return tmp_path


def listed(capsys, *words):
    capsys.readouterr()
    assert main(["control", "list", "pump.toml", "--output", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_answer_holds_from_the_next_event_and_the_list_says_what_became_of_it(folder, capsys):
    assert main(["run", "pump.toml"]) == 0
    (first, *_) = listed(capsys)["incidents"]
    assert first["state"] == "open"
    answer = ["control", "fault", "pump.toml", first["id"], "--note", "bearing", "--by", "ada"]
    assert main([*answer, "--wait", "0"]) == 0
    assert "it holds from the next events on" in capsys.readouterr().out
    feed(folder, 100, 110, level)
    assert main(["run", "pump.toml"]) == 0
    (command,) = listed(capsys)["commands"]
    said = {
        name: command["command"][name] for name in ("kind", "by", "note", "incident", "version")
    }
    assert said == {"kind": "fault", "by": "ada", "note": "bearing", "incident": first["id"],
                    "version": 1}  # fmt: skip
    assert [reply["said"] for reply in command["replies"]] == ["it is fault"]
    assert main(["control", "list", "pump.toml"]) == 0
    table = capsys.readouterr().out
    assert "accepted: it is fault (bearing)" in " ".join(table.split())
    assert main([*answer[:1], "new-normal", *answer[2:], "--wait", "0"]) == 0
    feed(folder, 110, 120, level)
    assert main(["run", "pump.toml"]) == 0
    assert first["id"] not in {one["id"] for one in listed(capsys)["incidents"]}
    assert first["id"] in {one["id"] for one in listed(capsys, "--closed")["incidents"]}
    capsys.readouterr()
    assert main(answer) == 2
    assert "is closed; open are: " in capsys.readouterr().err


def test_a_mute_holds_is_listed_with_its_box_and_end_and_is_taken_back(folder, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(folder)  # the engine of a pipeline as it is
    assert main(["run", "pump.toml"]) == 0
    capsys.readouterr()
    sides = ["--channel", "flow=-1e9:1e9", "--note", "washing", "--by", "ada", "--wait", "0"]
    assert main(["control", *MUTE[:4], "1970-01-01T00:00Z", "--until", "1970-03-01T00:00Z",
                 *sides, "--output", "json"]) == 0  # fmt: skip
    id_ = json.loads(capsys.readouterr().out)["command"]["id"]
    feed(folder, 100, 110, level)
    assert main(["run", "pump.toml"]) == 0
    (command,) = listed(capsys)["commands"]
    assert [reply["accepted"] for reply in command["replies"]] == [True]
    assert main(["control", "list", "pump.toml"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "p0: flow -1e+09 to 1e+09 until 1970-03-01 00:00:00Z" in table
    assert main(["control", "cancel", "pump.toml", id_, "--wait", "0"]) == 0
    feed(folder, 110, 120, level)
    assert main(["run", "pump.toml"]) == 0
    assert [one["replies"][0]["said"] for one in listed(capsys)["commands"]][1:] == [
        f"Mute {id_} holds no more."
    ]


@pytest.mark.thorough
def test_while_the_pipeline_runs_the_reply_is_waited_for(folder, capsys):
    (folder / "pump.toml").write_text(pump_toml(source='sensor = "id"\nfollow = true', more=QUICK))
    stop, n = threading.Event(), 100

    def go_on():
        nonlocal n
        feed(folder, n, n + 1, level)
        n += 1

    pipeline = threading.Thread(
        target=run_pipeline, args=(load_config(folder / "pump.toml"),), kwargs={"stop": stop}
    )
    pipeline.start()
    feeding = threading.Thread(
        target=until, args=(lambda: go_on() or stop.is_set(),), kwargs={"every_s": 0.05}
    )
    try:
        until(lambda: (folder / "incidents.jsonl").exists() and listed(capsys)["incidents"])
        feeding.start()
        wait = ["--wait", str(PATIENCE_S)]
        times = ["--from", "2024-01-01T00:00Z", "--until", "2024-01-02T00:00+01:00"]
        assert main(["control", "plan", "pump.toml", *times, *wait]) == 0
        out = capsys.readouterr().out
        assert out.endswith(": accepted: planned is noted\n")
        assert main(["control", "cancel", "pump.toml", out.partition(":")[0], *wait]) == 0
        assert main(["control", "plan", "pump.toml", *times, "--stream", "p9", *wait]) == 1
        assert "refused: feed.csv-0 has no stream 'p9'" in capsys.readouterr().out
    finally:
        stop.set()
        pipeline.join(PATIENCE_S)
        if feeding.is_alive():
            feeding.join(PATIENCE_S)
    assert not pipeline.is_alive()


@pytest.mark.parametrize(("words", "complaint"), [
    (["fault", "pump.toml", "nothing"], "incident 'nothing' is not known; open are: none"),
    (["cancel", "pump.toml", "nothing"], "there is no plan or mute 'nothing' to take back"),
    (["plan", "pump.toml", "--from", "soon", "--until", "later"], "expected a time such as"),
    (["plan", "pump.toml", "--from", "2024-01-01T00:00", "--until", "2024-01-02T00:00Z"],
     "without a zone"),
    (["plan", "pump.toml", "--from", "2024-01-02T00:00Z", "--until", "2024-01-01T00:00Z"],
     "the first earlier"),
    (["mute", "pump.toml", "p0", "--channel", "x", "--until", "2024-01-02T00:00Z"],
     "--until is '2024-01-02T00:00Z', which is over: where events are old, give --from"),
    ([*MUTE, "--channel", "x", "--note", "n"], "--channel is 'x': expected NAME=LOW:HIGH"),
    ([*MUTE, "--channel", "x=1", "--note", "n"], "--channel is 'x=1': expected NAME=LOW:HIGH"),
    ([*MUTE, "--channel", "x=1:nan", "--note", "n"], "two numbers, e.g."),
    ([*MUTE, "--channel", "x=1:2"], "does not say note"),
    ([*MUTE[:-1], "2024-06-01T00:00Z", "--channel", "x=1:2", "--note", "n"], "by 90 days"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_it_is_said(folder, capsys, words, complaint):
    assert main(["control", *words]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not (folder / "control.jsonl").exists()


def test_a_pipeline_of_standard_streams_hears_nothing_unless_told_where(folder, capsys):
    (folder / "pump.toml").write_text(pump_toml(more=QUICK + '[output]\nverdicts = "-"\n'))
    assert main(["control", "list", "pump.toml"]) == 2
    assert "hears no commands" in capsys.readouterr().err
    (folder / "pump.toml").write_text(
        pump_toml(
            source='sensor = "id"\ncontrol = "told.jsonl"',
            more=QUICK + '[output]\nverdicts = "-"\n',
        )
    )
    assert main(["control", "list", "pump.toml"]) == 0


def test_a_log_that_cannot_be_read_ends_no_run(folder, caplog):
    (folder / "control.jsonl").mkdir()
    assert main(["run", "pump.toml"]) == 0
    assert len((folder / "verdicts.jsonl").read_bytes().splitlines()) == 100
