"""The program as a user meets it: commands, exit status, what goes where."""

import gzip
import json
import math
import random
import re
from datetime import UTC, datetime, timedelta

import pytest

from rejex_stream.encode import decode_verdict
from rejex_stream.plan.promises import BESIDE_BUDGET, Costs, budget_sentence, plan_table
from rejex_stream.rejection.window import joint_severity
from tests.program import ROOT, command, ended, environment, here, rejex, started


@pytest.fixture
def table(tmp_path):
    rows = ["time,sensor,flow,pressure,label"]
    for i in range(1500):
        wild = i % 100 == 99
        flow = 50.0 if wild else 10 + (i * 7919 % 101) / 50
        rows.append(f"2024-01-01T{i // 60:02d}:{i % 60:02d}:00,pump,{flow},{i * 31 % 17},{+wild}")
    for i in range(24 * 60, 1500):  # hours end at 24
        cells = rows[i + 1].split(",")
        rows[i + 1] = ",".join([f"2024-01-02T00:{i - 1440:02d}:00", *cells[1:]])
    path = tmp_path / "pump.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


# ----------------------------------------------------------------------------- the program
def test_the_version_and_the_help_are_quick_and_plain():
    shown = rejex("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("rejex-stream ")
    text = rejex("--help").stdout
    for name in ("run", "plan", "validate", "doctor", "score", "settings", "topics"):
        assert f"  {name} " in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("arguments", "status", "said"), [
    (["nonsense"], 2, "No such command"), (["plan", "--nonsense"], 2, "No such option"),
    (["plan", "--window", "many"], 2, "--window"),
    (["validate", "missing.toml"], 2, "missing.toml: Expected a readable TOML file"),
    (["run", "missing.toml"], 2, "missing.toml: Expected a readable TOML file"),
    (["plan", "-c", "0.7"], 2, "contamination = 0.7 is outside (0, 0.5)"),
    (["score", "missing.csv"], 1, "missing.csv cannot be opened: No such file"),
    (["plan", "--burst", "3"], 2, "--burst goes with --rate"),
    (["run", "missing.toml", "--limit", "5"], 2, "--limit goes with --dry-run"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_on_standard_error(capsys, arguments, status, said):
    found, out, err = here(capsys, *arguments)
    assert found == status
    assert said in err
    assert not out
    assert "Traceback" not in err


def test_a_traceback_is_shown_to_those_who_ask(capsys, monkeypatch):
    monkeypatch.setenv("REJEX_DEBUG", "1")
    status, _, err = here(capsys, "plan", "-c", "0.7")
    assert status == 2
    assert "Traceback" in err


@pytest.mark.thorough
def test_a_reader_that_leaves_is_no_error_message():
    """As in ``rejex-stream settings | head -1``."""
    with started(command("settings"), env=environment(PYTHONUNBUFFERED="1")) as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert "Traceback" not in err
    assert "Exception" not in err


# ----------------------------------------------------------------------------------- plan
def test_the_numbers_of_plan_are_those_of_the_library(capsys):
    status, out, _ = here(
        capsys, "plan", "-c", "0.05", "-n", "1000", "-n", "2000", "-T", "8", "-T", "32",
        "--delta", "0.05", "--events-per-day", "86400", "--c-r", "0.04", "--output", "json",
    )  # fmt: skip
    assert status == 0
    expected = plan_table(
        0.05, [1000, 2000], [8, 32], delta=0.05, costs=Costs(1, 1, 0.04), events_per_day=86400
    )
    found = json.loads(out)
    assert [(row["window"], row["tolerance"]) for row in found] == [
        (1000, 8), (1000, 32), (2000, 8), (2000, 32)
    ]  # fmt: skip
    for row, promised in zip(found, expected, strict=True):
        for name, value in row["promise"].items():
            theirs = getattr(promised.promise, name)
            assert value == theirs or value == pytest.approx(theirs, rel=1e-12), name


def test_plan_says_what_is_impossible_and_why(capsys):
    status, out, _ = here(capsys, "plan", "-c", "0.01", "-n", "1000", "-n", "2000", "-T", "32")
    assert status == 0
    assert "impossible: n = 1,000, T = 32: With window n = 1,000" in out
    assert "use a window of at least 1,700" in out
    assert "impossible: n = 2,000" not in out
    assert here(capsys, "plan", "-c", "0.01", "-n", "1000", "-T", "32")[0] == 1


# ------------------------------------------------------------------------------- validate
@pytest.mark.thorough
def test_validate_shows_all_problems_and_exits_with_2(capsys, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[input]\nkind = "fil"\n[rejection]\ncontamnation = 0.1\n')
    status, out, err = here(capsys, "validate", path)
    assert (status, out) == (2, "")
    assert "did you mean 'contamination'?" in err
    assert "did you mean 'file'?" in err
    assert "Traceback" not in err
    status, out, _ = here(capsys, "validate", path, "--output", "json")
    assert status == 2
    problems = json.loads(out)["problems"]
    assert {problem["key"] for problem in problems} >= {"input.kind", "rejection.contamnation"}


def test_validate_says_what_a_config_promises(capsys):
    status, out, _ = here(capsys, "validate", ROOT / "examples" / "kafka.toml")
    assert status == 0
    assert "rejection rate, expected" in out
    status, out, _ = here(capsys, "validate", ROOT / "examples" / "kafka.toml", "--output", "json")
    found = json.loads(out)
    assert found["valid"]
    assert found["plan"]["promise"]["expected_rate"] <= 0.02


def test_validate_says_how_a_budget_is_held_and_which_burst_was_chosen(capsys, tmp_path):
    text = (ROOT / "examples" / "kafka.toml").read_text()
    status, out, _ = here(capsys, "validate", ROOT / "examples" / "kafka.toml")
    for sentence in (budget_sentence("0.02", "50"), BESIDE_BUDGET):
        assert sentence in " ".join(out.split())
    assert "none, by construction" in out
    assert "50 events, chosen: set rejection.review_budget.burst" in " ".join(out.split())
    path = tmp_path / "c.toml"
    for given, held in ((', burst = "none"', None), (", burst = 7, per_day = 9", 7)):
        path.write_text(text.replace("rate = 0.02", f"rate = 0.02{given}"))
        status, out, _ = here(capsys, "validate", path, "--output", "json")
        assert status == 0
        found = json.loads(out)["plan"]["promise"]["held"]
        assert (found and found["burst"]) == held
    status, out, _ = here(capsys, "validate", path)
    assert "at most 9 · τ + 7 are rejected while" in " ".join(out.split())
    path.write_text(text.replace("rate = 0.02", "rate = 0.02, burst = 0"))
    assert here(capsys, "validate", path)[0] == 2


def test_validate_doubts_a_tolerance_that_means_little(capsys, tmp_path):
    text = (ROOT / "examples" / "file.toml").read_text().replace("rate = 0.04", "rate = 0.004")
    path = tmp_path / "c.toml"
    path.write_text(text)
    status, out, _ = here(capsys, "validate", path)
    assert status == 0
    assert "Doubtful: T = 0.93: labels are accepted that flip" in out


@pytest.mark.parametrize(("more", "said"), [
    ('time_unit = "iso8601"', True), ('time_format = "%d.%m.%Y %H:%M"', True),
    ('time_format = "%d.%m.%Y %H:%M %z"', False),
    ('time_unit = "iso8601"\ntime_zone = "Europe/Berlin"', False), ('time_unit = "ms"', False),
])  # fmt: skip
def test_validate_says_where_a_time_without_a_zone_is_taken_to_be(capsys, tmp_path, more, said):
    path = tmp_path / "c.toml"
    lines = ["[input]", 'path = "t.csv"', 'channels = ["v"]', 'time = "t"', more]
    path.write_text("\n".join([*lines, "[rejection]", "contamination = 0.05", "tolerance = 8"]))
    status, out, _ = here(capsys, "validate", path)
    assert status == 0
    assert ("read as UTC: input.time_zone changes it" in out) == said


# ----------------------------------------------------------------------- plain terminals
@pytest.mark.thorough
@pytest.mark.parametrize(
    "encoding",
    [  # a process each, and what goes wrong with one mostly goes wrong with all
        pytest.param({"PYTHONIOENCODING": "latin-1"}, marks=pytest.mark.long),
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
@pytest.mark.parametrize(("arguments", "said"), [
    (["plan"], "u03b3 = 0.05"), (["--help"], "score"),
    (["validate", "größe.toml"], "Expected a readable TOML file"),
])  # fmt: skip
def test_a_terminal_that_is_not_utf_8_gets_signs_spelled_out(arguments, said, encoding):
    bare = {name: environment()[name] for name in ("PATH", "PYTHONPATH")}
    shown = ended(command(*arguments), text=False, env=bare | encoding)
    text = (shown.stdout + shown.stderr).decode("latin-1")
    assert said in text
    assert "Unicode" not in text
    assert "unexpected" not in text


# ---------------------------------------------------------------------------------- score
def test_score_guesses_says_so_and_writes_verdicts(capsys, table, tmp_path):
    verdicts = tmp_path / "v.jsonl"
    status, out, err = here(capsys, "score", table, "--detector", "HBOS", "--verdicts", verdicts)
    assert status == 0, err
    assert re.search(r"^ time +time \(iso8601\)", out, re.M)
    assert re.search(r"^ channels +flow, pressure", out, re.M)
    assert "label (kept from the detector)" in out
    assert "labelled anomalies" in out
    found = [decode_verdict(line) for line in verdicts.read_bytes().splitlines()]
    assert len(found) == 1500
    assert [verdict.position.offset for verdict in found] == list(range(1500))
    wild = [verdict for verdict in found[700:] if verdict.position.offset % 100 == 99]
    assert all(verdict.label != "normal" for verdict in wild)


@pytest.mark.thorough
def test_score_gives_data_on_standard_output_alone(rejex, table):
    shown = rejex("score", table, "--detector", "HBOS", "--verdicts", "-")
    assert shown.status == 0
    assert len(shown.stdout.splitlines()) == 1500
    assert json.loads(shown.stdout.splitlines()[0])["label"] == "rejected"
    assert "of 1" in shown.stderr


def test_score_reads_what_people_have(capsys, table, tmp_path):
    packed = tmp_path / "pump.csv.gz"
    packed.write_bytes(
        gzip.compress(table.read_bytes().replace(b",", b";").replace(b"\n", b"\r\n"))
    )
    bare = tmp_path / "bare.csv"
    bare.write_text("".join(f"{i * 7919 % 101 / 10}\n" for i in range(800)))
    for path in (packed, bare):
        status, out, err = here(capsys, "score", path, "--detector", "HBOS", "--output", "json")
        assert status == 0, err
        assert json.loads(out)["measured"]["ranked"] > 100


@pytest.mark.parametrize(("content", "status", "said"), [
    (b"", 2, "is empty"),
    (b"time,flow\n", 2, "no rows"),
    (b"time,flow\n0,1.5\n1,1.6\n", 2, "too few"),
    (b"name,word\na,b\nc,d\n", 2, "no column holds numbers"),
    (b"\xff\xfe\x00\x01\n", 2, "no rows"),  # UTF-16 with one line
    (b"\x1f\x8bnonsense", 1, "is damaged, or not gzip"),
])  # fmt: skip
def test_score_refuses_what_is_no_table_in_a_sentence(capsys, tmp_path, content, status, said):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    found, out, err = here(capsys, "score", path)
    assert found == status, err
    assert said in err
    assert not out


def test_score_survives_rows_that_cannot_be_read(capsys, table):
    lines = table.read_text().splitlines()
    lines[700] = "2024-01-01T11:39:00,pump,\x1b[31mbroken,3,0"
    lines[701] = "short"
    table.write_text("\n".join(lines))
    status, out, err = here(capsys, "score", table, "--detector", "HBOS")
    assert status == 0
    assert "unreadable: 1 of 1,500 rows" in err  # the text is no value
    assert "the first is row 701: " in err
    assert "\x1b" not in out + err


def test_score_shows_the_worst_first_and_the_rate_beside_the_expected_one(capsys, table):
    status, out, _ = here(capsys, "score", table, "--detector", "HBOS")
    assert status == 0
    assert out.index("Episodes: ") < out.index("rejected  ") < out.index("labelled anomalies")
    assert out.index("rejection rate, ranked") < out.index("expected in a full window")


@pytest.mark.thorough
def test_score_says_which_fault_came_to_an_incident_that_is_open_and_since_when(capsys, tmp_path):
    draw, rows = random.Random(4), ["time,a,b,c"]
    for i in range(3600):
        a, b, c = (draw.gauss(0, 1) for _ in range(3))
        at = datetime(2026, 6, 1, tzinfo=UTC) + timedelta(minutes=i)
        rows.append(f"{at.isoformat()},{a + 9 * (i >= 2600)},{b},{c + 9 * (i >= 3000)}")
    path = tmp_path / "second.csv"
    path.write_text("\n".join(rows))
    status, out, _ = here(capsys, "score", path, "--window", 1000)
    assert status == 0
    assert re.search(r"also\s+c\s+since\s+06-03\s+0[12]:\d\d", out), out  # 3,000 minutes: 02:00
    status, out, _ = here(capsys, "score", path, "--window", 1000, "--output", "json")
    (incident,) = json.loads(out)["incidents"]
    ((channel, since_ms),) = incident["further"].items()
    begun = datetime(2026, 6, 3, 2, tzinfo=UTC).timestamp() * 1000
    assert (channel, abs(since_ms - begun) <= 1_800_000) == ("c", True)


@pytest.mark.thorough
def test_score_says_what_an_incident_reads_and_how_many_rows_it_holds(capsys, tmp_path):
    rows = ["id,t,v"]
    for i in range(2800):
        v = 100 + 5 * math.sin(i / 7) + (i * 7919 % 101) / 50
        # a ends in an incident, that of b is over and of another cause, c has none
        fault = (2500 <= i < 2800, 2300 <= i < 2400, False)
        rows += [f"{k},{i},{v + 400 * wrong}" for k, wrong in zip("abc", fault, strict=True)]
    path = tmp_path / "held.csv"
    path.write_text("\n".join(rows))
    verdicts = tmp_path / "verdicts"
    status, out, _ = here(capsys, "score", path, "--verdicts", verdicts, "--window", 1000)
    assert status == 0
    found = [decode_verdict(line) for line in verdicts.read_bytes().splitlines()]
    n_held = sum(verdict.held for verdict in found)
    assert n_held
    assert f"{n_held:,} events, which have no rank" in out
    # What lasts comes first, with what it reads and what is usual.
    assert out.index("Incidents, faults that last: 2") < out.index("ther episodes: ")
    worst = out.split("Incidents")[1].split("ther episodes")[0]
    (row,) = (line for line in worst.splitlines() if line.startswith(" a "))
    assert re.search(r"7,4\d\d to 8,398 .* v 49\d\S*, usually 95\.\d+ to 106\.\d", row)
    status, out, _ = here(capsys, "score", path, "--output", "json", "--window", 1000)
    incidents = json.loads(out)["incidents"]
    assert {one["sensor"] for one in incidents} == {"a", "b"}
    joint = [joint_severity(one["severity"], one["anomalies"]) for one in incidents]
    assert joint == sorted(joint, reverse=True), "by what is printed of them"
    (reads,) = next(one["reads"] for one in incidents if one["sensor"] == "a")
    assert reads["channel"] == "v"
    assert reads["value"] > 480
    assert reads["usual"][1] < 120
    assert json.loads(out)["measured"]["held"] == n_held


def test_score_pools_sensors_that_are_too_short_alone(capsys, tmp_path):
    rows = ["id,t,v"] + [f"s{i % 40},{i // 40},{i * 7919 % 101 / 10}" for i in range(2000)]
    path = tmp_path / "many.csv"
    path.write_text("\n".join(rows))
    status, out, _ = here(capsys, "score", path, "--detector", "HBOS")
    assert status == 0
    assert "40 sensors share one model" in out


# --------------------------------------------------------------------------------- others
def test_settings_print_the_page(capsys):
    status, out, _ = here(capsys, "settings")
    assert status == 0
    assert out == (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")


def test_rules_and_dashboard_are_printed(capsys):
    status, out, _ = here(capsys, "alerts", "print")
    assert status == 0
    assert "groups:" in out
    status, out, _ = here(capsys, "dashboard", "print")
    assert status == 0
    assert json.loads(out)["title"] == "rejex-stream"


def test_topics_need_a_config_of_kafka(capsys):
    status, _, err = here(capsys, "topics", "create", ROOT / "examples" / "file.toml")
    assert status == 2
    assert "there are no topics" in err
