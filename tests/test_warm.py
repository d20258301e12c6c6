"""``rejex-stream warm``: the first live event is judged as if the history had come before it."""

import json
import math
import random
import sys

import pytest

from rejex_stream import native_core
from rejex_stream.cli import main
from tests.program import command, started
from tests.pump import pump_toml, row
from tests.waiting import until

pytestmark = pytest.mark.thorough
N, LIVE = 1_100, 2_600


def high(i):
    """A fault of the first pump among readings that vary."""
    return 300.0 + i % 7 if 500 <= i < 700 and i % 2 == 0 else i * 7919 % 1009 / 100


def table(path, start, stop, skip=()):
    rows = (row(i, high) for i in range(start, stop) if i not in skip)
    path.write_text("t,id,flow\n" + "".join(rows))


def of_five(i, high):
    """A reading of one of five pumps on one main; now and then one that says it has none."""
    main, noise = 20 * math.sin(i / 23), random.Random(i).gauss(0, 1)
    value = -1 if i % 331 == 0 else round(main + noise + (high(i) > 20) * high(i), 3)
    return f"{1_700_000_000 + i},p{i % 5},{value}\n"


def config(name, path, budget="", **changes):
    more = (
        f'[state]\nfolder = "{name}"\nsnapshot_every_events = 300\n[run]\ncommit_interval_s = 0\n'
        + "".join(f'{"[output]" if role == "verdicts" else ""}\n{role} = "{name}-{role}.jsonl"'
                  for role in ("verdicts", "review", "incidents", "deadletter"))
    )  # fmt: skip
    text = (
        pump_toml(path=path, window=100, more=more, **changes)
        .replace('"pump"', f'"{name}"')
        .replace("HBOS", "Sensor")
    )
    return text.replace("tolerance = 4", budget) if budget else text


def beside(name, path, budget="", *, plain=config):
    """Return a config in which all pumps are siblings, and -1 is a missing flow."""
    text = plain(name, path, budget, source='siblings = "*"\nsensor = "id"\n')
    return text + "\n[channels.flow]\nmissing = [-1]\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "history.csv", 0, N)
    table(tmp_path / "live.csv", N, LIVE)
    (tmp_path / "new.toml").write_text(config("new", "live.csv"))
    return tmp_path


@pytest.fixture
def rejex(capsys):
    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out + said.err

    return call


def verdicts(path):
    """What was said of each event, but where it stands in its file."""
    lines = map(json.loads, path.read_text().splitlines())
    where = ("id", "topic", "offset", "incident")
    return [{name: x for name, x in line.items() if name not in where} for line in lines]


def undisturbed(here, rejex, skip=(), budget=""):
    table(here / "all.csv", 0, LIVE, skip)
    (here / "whole.toml").write_text(config("whole", "all.csv", budget))
    assert rejex("run", "whole.toml")[0] == 0
    return verdicts(here / "whole-verdicts.jsonl")[N - len(skip) :]


@pytest.mark.parametrize("siblings", [False, True], ids=["", "siblings"])
@pytest.mark.parametrize("core", ["", "python"], ids=["native", "python"])
def test_the_verdicts_are_those_of_one_file_also_after_a_kill(
    here, rejex, core, siblings, monkeypatch
):
    monkeypatch.setenv("REJEX_CORE", core)
    if not core and native_core.core()[0] is None:
        pytest.skip("no native core")
    if siblings:
        monkeypatch.setattr(sys.modules[__name__], "config", beside)
        monkeypatch.setattr(sys.modules[__name__], "row", of_five)
        for name, *span in (("history", 0, N), ("live", N, LIVE)):
            table(here / f"{name}.csv", *span)
        (here / "new.toml").write_text(config("new", "live.csv"))
    fault = range(495, 720)
    status, said = rejex(
        "warm", "new.toml", "--from", "history.csv",
        "--without", "2023-11-14T22:21:35/2023-11-14T22:25:20",
    )  # fmt: skip
    assert status == 0, said
    assert "left out: 2023-11-14T22:21:35Z to 2023-11-14T22:25:20Z" in said
    assert f"{N - len(fault)} readings" in said
    assert f"{2 + 3 * siblings} of {2 + 3 * siblings} sensors are ranked" in said
    written = here / "new-verdicts.jsonl"
    with started(command("run", "new.toml"), cwd=here) as process:
        until(lambda: written.exists() and written.stat().st_size)
        process.kill()
    assert rejex("run", "new.toml")[0] == 0
    found = verdicts(written)
    assert found[0]["reason"] is None
    assert siblings == ('"by":"siblings"' in written.read_text())
    assert found == undisturbed(here, rejex, fault)


def test_a_fault_in_the_history_is_said_with_what_leaves_it_out(here, rejex):
    status, said = rejex("warm", "new.toml", "--from", "history.csv")
    assert status == 0, said
    assert "incident: p0; --without 2023-11-14T22:21:36Z/2023-11-14T22:27:10Z" in said
    assert rejex("run", "new.toml")[0] == 0
    assert verdicts(here / "new-verdicts.jsonl") == undisturbed(here, rejex)


def test_a_budget_begins_full_with_the_stream(here, rejex):
    budget = "review_budget = { rate = 0.05, burst = 60 }"
    (here / "new.toml").write_text(config("new", "live.csv", budget))
    assert rejex("warm", "new.toml", "--from", "history.csv")[0] == 0
    assert rejex("run", "new.toml")[0] == 0
    first, *_ = verdicts(here / "new-verdicts.jsonl")
    then, *_ = undisturbed(here, rejex, budget=budget)
    width = first["policy_upper"] - first["policy_lower"] + 1
    assert first["band_upper"] - first["band_lower"] + 1 == 2 * width  # at full credit
    assert first["rank"] == then["rank"]


def test_what_is_no_history_of_the_stream_is_refused_and_nothing_is_kept(here, rejex):
    def refused(text, *more, history="history.csv", **changes):
        (here / "new.toml").write_text(config("new", "live.csv", **changes))
        status, said = rejex("warm", "new.toml", "--from", history, *more)
        assert status == 2, said
        assert text in said

    sensor = 'sensor = "id"\n'
    refused("2 s apart", source=sensor + "sample_interval_ms = 600000")
    refused("joined tags", source=sensor + "reorder_s = 5")
    refused("goes on while the stream begins", history="live.csv")
    refused("START/END", "--without", "2023-11-15/2023-11-14")
    table(here / "short.csv", 0, 690)
    refused("ends within an incident of p0", history="short.csv")
    (here / "other.csv").write_text("t,id,pressure\n1700000000,p0,1\n")
    refused("'flow' is not in the header", history="other.csv")
    (here / "none.csv").write_text("t,id,flow\n1700000000,p0,\n")
    refused("has no value of flow", history="none.csv")
    (here / "unit.csv").write_text("t,id,flow\n" + "1700000000,p0,7 bar\n" * 9)
    refused("cannot be read as those of the stream; channel 'flow'", history="unit.csv")

    assert rejex("state", "list", "new.toml", "--output", "json")[0] == 0
    assert rejex("warm", "new.toml", "--from", "history.csv")[0] == 0
    refused("state drop new.toml --all")
    assert rejex("state", "drop", "new.toml", "--all")[0] == 0
    assert rejex("warm", "new.toml", "--from", "history.csv")[0] == 0
