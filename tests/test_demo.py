"""The demo: its feeds, its verdicts, its report, the command."""

import datetime
import json
import math
import re
import resource
import shlex
import signal
import time
import urllib.request

import numpy as np
import pytest

from rejex_stream.cli import main
from rejex_stream.demo.datasets import play, prepare, write_turbines, write_water
from rejex_stream.detectors import DEFAULT
from rejex_stream.encode import decode_incidents, decode_reviewed, decode_verdict
from rejex_stream.report import analyse_run, write_report
from rejex_stream.review.queue.database import Database, Viewer
from rejex_stream.review.queue.listing import QueueFilter
from rejex_stream.types import Label, Reason, ReviewItem
from tests.pages import Page
from tests.program import command, ended, started
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    feeds = prepare(out)
    for feed in feeds:
        play(feed)
    findings = [analyse_run(feed.run()) for feed in feeds]
    write_report(out / "report.html", findings, "rejex-stream demo")
    return {
        "out": out, "feeds": feeds, "findings": findings,
        "report": (out / "report.html").read_text(encoding="utf-8"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python, *words = command("demo")
    done = ended([python, "-W", "error::ResourceWarning", *words], cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, folder / "demo-output", after.ru_utime - before.ru_utime


def lines_of(feed, name):
    return (feed.config_path.parent / name).read_bytes().splitlines()


def verdicts_of(feed):
    return [decode_verdict(line) for line in lines_of(feed, "verdicts.jsonl")]


# ------------------------------------------------------------------------------------- the feeds
def test_the_same_seed_writes_the_same_file_and_another_seed_another_one(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_turbines(tmp_path / name, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_the_water_labels_cover_the_documented_moments_and_nothing_usual(tmp_path):
    n_records, faults = write_water(tmp_path / "feed.csv")
    lines = (tmp_path / "feed.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "time,flow_l_s"
    assert len(lines) - 1 == n_records == 1_268
    rows = [line.split(",") for line in lines[1:]]
    at = [datetime.datetime.fromisoformat(time).timestamp() * 1000 for time, _ in rows]
    flow = np.array([float(value) for _, value in rows])
    inside = np.zeros(len(rows), dtype=bool)
    counts = []
    for segment in faults:
        here = np.array([segment.first_ms <= time <= segment.last_ms for time in at])
        counts.append(int(here.sum()))
        inside |= here
    assert counts == [17, 15, 1, 16]
    # Three lows below everything else, one peak above everything else.
    assert flow[~inside].min() > 97
    assert flow[~inside].max() < 108
    assert flow.max() == flow[inside].max() > 109
    assert sum(flow[inside] < 97) >= 45


def test_the_water_branch_goes_by_the_default_and_each_of_its_faults_is_caught(played):
    config, findings = played["feeds"][0].config, played["findings"][0]
    assert "[detector]" not in played["feeds"][0].config_path.read_text(encoding="utf-8")
    assert config.detector.name == DEFAULT
    titles = ("first low moment", "second low moment", "pumping peak", "third low moment")
    assert {one.fault.title: one.outcome for one in findings.faults} == dict.fromkeys(
        titles, "caught"
    )
    # One fault hides no other: of the 17 hours of the first fall at least 15 are not normal.
    first = next(one for one in findings.faults if one.fault.title == "first low moment")
    assert first.n_anomaly + first.n_rejected >= 15


def test_every_turbine_fault_shows_in_the_feed_as_it_is_described(tmp_path):
    path = tmp_path / "feed.jsonl"
    n_records, faults = write_turbines(path)
    rows = [json.loads(x) for x in path.read_bytes().splitlines() if x.endswith(b"}")]
    assert len(rows) == n_records - 1  # one line was cut off

    def during(title, *, after=False):
        (segment,) = [found for found in faults if found.title == title]
        first, last = segment.first_ms, segment.last_ms
        if after:
            first, last = last + 1, last + (last - first)
        found = []
        for row in rows:
            time_ms = datetime.datetime.fromisoformat(row["time"]).timestamp() * 1000
            if row["turbine"] == segment.sensor and first <= time_ms <= last:
                found.append(row)
        return found

    assert len({row["gearbox_temp_c"] for row in during("temperature sensor stuck")}) == 1
    assert all("vibration_mm_s" not in row for row in during("vibration channel missing"))
    assert all("vibration_mm_s" in row for row in during("vibration channel missing", after=True))
    assert max(row["power_kw"] for row in during("held at 40 % power")) <= 800
    assert {row["power_kw"] for row in during("generator off the grid")} == {0.0}
    assert max(row["rotor_rpm"] for row in during("generator off the grid")) > 5
    loads = [
        row["vibration_mm_s"] / (0.35 + 0.085 * row["rotor_rpm"] + 0.00025 * row["power_kw"])
        for row in during("bearing wears out")
    ]
    assert np.mean(loads[:20]) < 1.1
    assert np.mean(loads[-20:]) > 2.1


def test_one_clock_steps_back_and_one_channel_set_is_incomplete(tmp_path):
    path = tmp_path / "feed.jsonl"
    write_turbines(path)
    latest: dict[str, str] = {}
    back = []
    for line in path.read_bytes().splitlines():
        if line.endswith(b"}"):
            row = json.loads(line)
            if row["time"] < latest.get(row["turbine"], ""):
                back.append(row["turbine"])
            latest[row["turbine"]] = max(row["time"], latest.get(row["turbine"], ""))
    assert back == ["WT-01"]


# ----------------------------------------------------------------------------------- the verdicts
def test_every_record_gets_exactly_one_outcome(played):
    for feed, findings in zip(played["feeds"], played["findings"], strict=True):
        run = findings.run
        assert all(reading.position == verdict.position for reading, verdict in run.events)
        positions = [verdict.position for _, verdict in run.events]
        positions += [record.position for record, _ in run.dead_letters]
        assert len(positions) == len(set(positions)) == feed.n_records


def test_the_rough_edges_become_dead_letters_and_unscorable_events(played):
    water, turbines = played["findings"]
    assert not water.run.dead_letters
    ((record, invalid),) = turbines.run.dead_letters
    assert invalid.stage == "decode"
    assert record.value in lines_of(played["feeds"][1], "feed.jsonl")
    # 18 missing, 2 carried forward; ten events are usual, then an incident says that it is gone.
    assert turbines.counts.reasons[Reason.UNSCORABLE] == 8
    assert turbines.counts.n_limited == 8
    (dropout,) = [f for f in turbines.faults if "missing" in f.fault.title]
    assert dropout.outcome == "caught"
    assert dropout.n_unscorable == 8


def test_the_rejection_rate_is_of_the_size_that_the_theory_expects(played):
    for findings in played["findings"]:
        expected = findings.theory.expected_rate
        assert expected / 2 < findings.counts.rejection_rate < 2 * expected


@pytest.mark.thorough
def test_the_rolling_rate_agrees_with_theory_for_nine_tenths_of_the_time(played):
    from benchmarks.streams.demo import within_limits  # not beside an installed package

    for feed, findings in zip(played["feeds"], played["findings"], strict=True):
        verdicts = (verdict for _, verdict in findings.run.events)
        assert within_limits(verdicts, feed.config) >= 0.9, feed.title


def test_the_budget_becomes_the_rate_that_was_planned(played):
    for feed, findings in zip(played["feeds"], played["findings"], strict=True):
        share = findings.run.budget
        assert share == feed.config.rejection.review_budget.share
        window = feed.config.rejection.window
        assert share - 1 / (window + 1) < findings.theory.expected_rate <= share


def test_the_files_hold_the_same_verdicts_whoever_runs_the_pipelines(played, typed):
    ended, out, _ = typed
    assert ended.returncode == 0, ended.stderr
    for feed in played["feeds"]:
        folder = feed.config_path.parent
        for name in ("verdicts.jsonl", "review.jsonl", "incidents.jsonl", "deadletter.jsonl"):
            assert (out / folder.name / name).read_bytes() == (folder / name).read_bytes()


def test_a_fault_is_held_answered_and_closed_and_a_leak_stays_until_somebody_says_so(played):
    feed, incidents = played["feeds"][1], played["findings"][1].run.incidents
    (bearing,) = [one for one in incidents if one.stream_key == "WT-02" and one.held]
    (leak,) = [one for one in incidents if one.state != "closed"]
    assert (bearing.stream_key, bearing.state, bearing.ended) == ("WT-02", "closed", "recovered")
    assert (leak.stream_key, leak.state, leak.answer) == ("WT-01", "open", None)
    (fault,) = [fault for fault in feed.faults if fault.title == "gearbox loses oil"]
    assert fault.first_ms - 86_400_000 < leak.onset_ms < leak.opened_ms < fault.last_ms
    lines = [decode_incidents(line) for line in lines_of(feed, "incidents.jsonl")]
    ((at, reply),) = [item for item in lines if isinstance(item, tuple)]
    assert reply.accepted
    assert (at.offset, bearing.answer) == (feed.answer_after, reply.command)
    last = [verdict for verdict in verdicts_of(feed) if verdict.sensor == "WT-01"][-1]
    assert (last.incident, last.held) == (leak.id, True)
    assert "closed: returned to normal, answered" in played["report"]
    assert "open, not answered: fault, or new normal?" in played["report"]


def test_no_fault_of_the_wind_farm_is_missed_and_hardly_anything_is_told_in_vain(played):
    """At most one false incident a turbine and month; what overheats is noticed in four hours."""
    findings = played["findings"][1]
    assert {found.outcome for found in findings.faults} <= {"caught", "review"}
    hot = next(one for one in findings.faults if one.fault.title == "gearbox overheats")
    assert hot.notice_after_s <= 4 * 3600
    told: dict[str, float] = {}  # hours until somebody is told
    for fault in played["feeds"][1].faults:
        for one in findings.run.incidents:
            if one.stream_key == fault.sensor and fault.first_ms <= one.opened_ms <= fault.last_ms:
                hours = (one.opened_ms - fault.first_ms) / 3_600_000
                told[fault.title] = min(hours, told.get(fault.title, hours))
    in_vain = [
        one for one in findings.run.incidents
        if not any(
            one.stream_key == fault.sensor
            and one.onset_ms <= fault.last_ms
            and one.opened_ms >= fault.first_ms
            for fault in played["feeds"][1].faults
        )
    ]  # fmt: skip
    assert {title: math.ceil(hours) for title, hours in told.items()} == {
        "gearbox overheats": 5, "bearing wears out": 16, "temperature sensor stuck": 4,
        "held at 40 % power": 3, "vibration channel missing": 2, "generator off the grid": 1,
        "gearbox loses oil": 2,
    }  # fmt: skip
    assert len(in_vain) <= 4 * 35 / 30


def test_every_rejected_event_after_the_warm_up_is_a_review_item(played):
    for feed in played["feeds"]:
        reviewed = [decode_reviewed(line) for line in lines_of(feed, "review.jsonl")]
        items = [one for one in reviewed if isinstance(one, ReviewItem) and one.why == "rejected"]
        wanted = [
            verdict.position
            for verdict in verdicts_of(feed)
            if verdict.label is Label.REJECTED and verdict.reason is not Reason.WARM_UP
        ]
        assert [item.verdict.position for item in items] == wanted


def test_few_questions_and_the_known_faults_are_among_them_or_incidents(played):
    """What the queue asks today, of all that was rejected: the capacity of the demo's config."""
    out = played["out"]
    words = [word for feed in played["feeds"] for word in ("--config", str(feed.config_path))]
    assert main(["review", "ingest", "--store", str(out / "review.db"), *words]) == 0
    capacity = played["feeds"][0].config.review.capacity.questions_per_day
    now = time.time_ns() // 1_000_000
    with Database(out / "review.db", capacity=capacity).read() as connection:
        cases = list(QueueFilter().rows(connection, Viewer("ada"), now))
    incidents = [one for findings in played["findings"] for one in findings.run.incidents]
    asked = [(row["sensor"], row["start_ms"], row["end_ms"]) for row in cases]
    n_open = sum(one.state != "closed" for one in incidents)
    assert 20 <= len(cases) + n_open <= 30
    stretches = asked + [
        (one.stream_key, one.onset_ms, math.inf if one.state != "closed" else one.changed_ms)
        for one in incidents
    ]
    faults = [fault for feed in played["feeds"] for fault in feed.faults]
    assert len(faults) == 11
    unasked = {
        fault.title
        for fault in faults
        if not any(
            sensor == fault.sensor and first <= fault.last_ms and last >= fault.first_ms
            for sensor, first, last in stretches
        )
    }
    assert unasked == set()


def test_the_configs_left_behind_run_again_by_themselves(played):
    feed = played["feeds"][0]
    assert main(["validate", str(feed.config_path)]) == 0
    before = lines_of(feed, "verdicts.jsonl")
    assert main(["run", str(feed.config_path)]) == 0  # nothing is left to do
    assert lines_of(feed, "verdicts.jsonl") == before


# ------------------------------------------------------------------------------------ the findings
def test_a_folder_of_any_name_holds_the_demo(tmp_path):
    feed = prepare(tmp_path / 'a "b" ü')[0]
    assert feed.config.input.path == str(tmp_path / 'a "b" ü' / "water" / "feed.csv")


def test_preparing_again_touches_only_its_own_folders(tmp_path):
    (tmp_path / "mine.txt").write_text("kept", encoding="utf-8")
    prepare(tmp_path)
    (tmp_path / "water" / "verdicts.jsonl").write_text("old", encoding="utf-8")
    prepare(tmp_path)
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "kept"
    assert not (tmp_path / "water" / "verdicts.jsonl").exists()


# -------------------------------------------------------------------------------------- the report
@pytest.fixture(scope="module")
def page(played):
    found = Page()
    found.feed(played["report"])
    found.close()
    return found


def test_the_report_is_one_well_formed_page_that_asks_nobody_for_anything(played, page):
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith("data:") for address in page.addresses)
    named = played["report"].replace("/*! https://github.com/leeoniya/uPlot (v", "")
    assert named != played["report"]  # the library's own line, which its licence asks to keep
    assert not re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}""", named)
    assert not re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", named)
    assert "default-src 'none'" in played["report"]
    assert "$" not in re.sub(r"<script.*?</script>", "", played["report"], flags=re.DOTALL)


# ------------------------------------------------------------------------------------- the command
def test_the_command_takes_less_than_a_minute_and_says_what_it_did(typed):
    ended, out, seconds = typed
    assert ended.returncode == 0, ended.stderr
    assert seconds < 60
    for words in ("Water branch", "Wind farm", "expected rate R", "frozen-window bound"):
        assert words in ended.stdout
    assert ended.stdout.splitlines()[-1] == f"report: {(out / 'report.html').as_uri()}"
    assert (out / "report.html").stat().st_size < 3_000_000
    assert "Traceback" not in ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr
    assert re.search(r"^[\d,]+ records, \d+ s\.", ended.stderr, re.M)


def test_a_fault_that_stays_is_held_and_the_end_says_how_to_answer(typed, capsys, monkeypatch):
    ended, out, _ = typed
    monkeypatch.chdir(out.parent)
    found = dict(
        re.findall(r"^to say what is wrong with (\S+): rejex-stream (.*)$", ended.stdout, re.M)
    )
    assert set(found) == {"WT-01"}, ended.stdout
    assert main([*found["WT-01"].split(), "--note", "no oil"]) == 0
    assert "holds from the next events on" in capsys.readouterr().out
    assert (out / "turbines" / "control.jsonl").read_text().count("no oil") == 1


def test_the_command_that_the_demo_names_shows_what_it_rejected(typed):
    for module in ("starlette", "uvicorn", "jinja2"):
        pytest.importorskip(module, reason="the extra `review` is not installed")
    ended, out, _ = typed
    (named,) = re.findall(r"^to decide what was rejected: rejex-stream (.*)$", ended.stdout, re.M)
    with started(command(*shlex.split(named), "--port", "0"), cwd=out.parent) as console:
        try:
            line = console.stdout.readline()
            address = re.match(r"review console: (http://127\.0\.0\.1:\d+/)", line)[1]

            def sensors_are_listed():
                with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                    return "WT-0" in answer.read().decode()

            until(sensors_are_listed)  # the queue is filled while the console answers
            console.send_signal(signal.SIGINT)
            _, complaints = console.communicate(timeout=PATIENCE_S)
        finally:
            console.kill()
    assert "Traceback" not in complaints
