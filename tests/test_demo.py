"""The demo: its feeds, its verdicts, its report, the command."""

from __future__ import annotations

import datetime
import io
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from rich.console import Console

from rejex_stream.cli import main
from rejex_stream.demo.evaluate import evaluate
from rejex_stream.demo.feeds import write_turbines, write_water
from rejex_stream.demo.live import Board, LiveView
from rejex_stream.demo.pipelines import prepare
from rejex_stream.demo.play import play, read_back, read_lines
from rejex_stream.demo.report import write_report
from rejex_stream.encode import decode_review, decode_verdict
from rejex_stream.types import Label, Position, Reason


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Both pipelines, played once, with findings and report."""
    out = tmp_path_factory.mktemp("demo")
    pipelines = prepare(out)
    boards = [Board(pipeline) for pipeline in pipelines]
    summaries = [play(board) for board in boards]
    findings = [evaluate(pipeline) for pipeline in pipelines]
    write_report(out / "report.html", findings, "rejex-stream demo")
    return {
        "out": out,
        "pipelines": pipelines,
        "boards": boards,
        "summaries": summaries,
        "findings": findings,
        "report": (out / "report.html").read_text(encoding="utf-8"),
    }


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The command as a user types it, in a process of its own."""
    folder = tmp_path_factory.mktemp("typed")
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-m", "rejex_stream", "demo"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return ended, folder / "demo-output", time.monotonic() - begun


def verdicts_of(pipeline):
    return [decode_verdict(line) for line in read_lines(pipeline.verdicts_path)]


# ------------------------------------------------------------------------------------- the feeds
def test_the_same_seed_writes_the_same_file_and_another_seed_another_one(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_turbines(tmp_path / name, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_the_water_labels_cover_the_documented_moments_and_nothing_usual(tmp_path):
    feed = write_water(tmp_path / "feed.csv")
    lines = (tmp_path / "feed.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "time,flow_l_s"
    assert len(lines) - 1 == feed.n_records == 1_268
    rows = [line.split(",") for line in lines[1:]]
    at = [datetime.datetime.fromisoformat(time).timestamp() * 1000 for time, _ in rows]
    flow = np.array([float(value) for _, value in rows])
    inside = np.zeros(len(rows), dtype=bool)
    counts = []
    for segment in feed.segments:
        here = np.array([segment.first_ms <= time <= segment.last_ms for time in at])
        counts.append(int(here.sum()))
        inside |= here
    assert counts == [17, 15, 1, 16]
    # Three lows below everything else, one peak above everything else.
    assert flow[~inside].min() > 97
    assert flow[~inside].max() < 108
    assert flow.max() == flow[inside].max() > 109
    assert sum(flow[inside] < 97) >= 45


def test_every_turbine_fault_shows_in_the_feed_as_it_is_described(tmp_path):
    feed = write_turbines(tmp_path / "feed.jsonl")
    rows = [json.loads(line) for line in read_lines(feed.path) if line.endswith(b"}")]
    assert len(rows) == feed.n_records - 1  # one line was cut off

    def during(title, *, after=False):
        (segment,) = [found for found in feed.segments if found.title == title]
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
    feed = write_turbines(tmp_path / "feed.jsonl")
    latest: dict[str, str] = {}
    back = []
    for line in read_lines(feed.path):
        if line.endswith(b"}"):
            row = json.loads(line)
            if row["time"] < latest.get(row["turbine"], ""):
                back.append(row["turbine"])
            latest[row["turbine"]] = max(row["time"], latest.get(row["turbine"], ""))
    assert back == ["WT-01"]


# ----------------------------------------------------------------------------------- the verdicts
def test_every_record_gets_exactly_one_outcome(played):
    for pipeline in played["pipelines"]:
        readings, verdicts, dead_letters = read_back(pipeline)
        positions = [verdict.position for verdict in verdicts]
        positions += [record.position for record, _ in dead_letters]
        assert len(positions) == len(set(positions)) == pipeline.feed.n_records
        assert {verdict.position for verdict in verdicts} == set(readings)


def test_the_rough_edges_become_dead_letters_and_unscorable_events(played):
    water, turbines = played["findings"]
    assert not water.dead_letters
    ((record, invalid),) = turbines.dead_letters
    assert invalid.stage == "decode"
    assert record.value in read_lines(turbines.pipeline.feed.path)
    assert turbines.reasons[Reason.UNSCORABLE] == 16  # 18 missing, 2 carried forward
    (dropout,) = [f for f in turbines.segments if "missing" in f.segment.title]
    assert dropout.outcome == "review"
    assert dropout.n_unscorable == 16


def test_summary_board_and_findings_count_the_same_verdicts(played):
    for summary, board, findings in zip(
        played["summaries"], played["boards"], played["findings"], strict=True
    ):
        assert summary.labels == findings.labels
        assert +summary.reasons == +findings.reasons
        assert board.done == board.total == findings.n_events
        assert board.kinds["rejected"] == findings.n_ambiguous == findings.reasons["ambiguous"]
        assert board.kinds["learning"] == findings.reasons[Reason.WARM_UP]


def test_the_rejection_rate_is_of_the_size_that_the_theory_expects(played):
    for findings in played["findings"]:
        expected = findings.theory.expected_rate
        assert expected / 2 < findings.rejection_rate < 2 * expected


def test_the_budget_becomes_the_rate_that_was_planned(played):
    for findings in played["findings"]:
        share = findings.pipeline.config.rejection.review_budget.share
        window = findings.pipeline.config.rejection.window
        assert share - 1 / (window + 1) < findings.theory.expected_rate <= share


def test_the_files_hold_the_same_verdicts_whoever_runs_the_pipelines(played, typed):
    ended, out, _ = typed
    assert ended.returncode == 0, ended.stderr
    for pipeline in played["pipelines"]:
        theirs = (out / pipeline.name / "verdicts.jsonl").read_bytes()
        assert theirs == pipeline.verdicts_path.read_bytes()
        assert (out / pipeline.name / "review.jsonl").read_bytes() == (
            pipeline.review_path.read_bytes()
        )


def test_every_rejected_event_after_the_warm_up_is_a_review_item(played):
    for pipeline in played["pipelines"]:
        items = [decode_review(line) for line in read_lines(pipeline.review_path)]
        wanted = [
            verdict.position
            for verdict in verdicts_of(pipeline)
            if verdict.label is Label.REJECTED and verdict.reason is not Reason.WARM_UP
        ]
        assert [item.verdict.position for item in items] == wanted


def test_the_configs_left_behind_run_again_by_themselves(played):
    pipeline = played["pipelines"][0]
    assert main(["validate", str(pipeline.config_path)]) == 0
    before = pipeline.verdicts_path.read_bytes()
    assert main(["run", str(pipeline.config_path)]) == 0  # nothing is left to do
    assert pipeline.verdicts_path.read_bytes() == before


# ------------------------------------------------------------------------------------ the findings
def test_segments_are_judged_by_more_than_chance(played):
    for findings in played["findings"]:
        for found in findings.segments:
            flagged = found.n_anomaly + found.n_rejected
            if found.outcome == "caught":
                assert found.n_anomaly > found.expected_anomaly
            elif found.outcome == "review":
                assert found.n_unscorable or flagged > found.expected_flagged
            assert found.n_normal >= 0
            assert found.n_events > 0


def test_false_alarms_are_anomalies_outside_all_segments(played):
    for findings in played["findings"]:
        inside = sum(found.n_anomaly for found in findings.segments)
        assert 0 <= findings.false_alarms <= findings.labels[Label.ANOMALY] - inside


def test_a_detector_can_be_chosen_and_an_unknown_one_is_refused(tmp_path, capsys):
    status = main(["demo", "--out", str(tmp_path), "--detector", "NoSuchThing"])
    assert status in (1, 2)
    assert "NoSuchThing" in capsys.readouterr().err
    pipelines = prepare(tmp_path, detector="HalfSpaceTrees")
    assert [p.config.detector.name for p in pipelines] == ["HalfSpaceTrees"] * 2
    board = Board(pipelines[0])
    play(board)
    assert evaluate(pipelines[0]).n_ranked > 0


def test_preparing_again_touches_only_its_own_folders(tmp_path):
    (tmp_path / "mine.txt").write_text("kept", encoding="utf-8")
    prepare(tmp_path)
    (tmp_path / "water" / "verdicts.jsonl").write_text("old", encoding="utf-8")
    prepare(tmp_path)
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "kept"
    assert not (tmp_path / "water" / "verdicts.jsonl").exists()


# -------------------------------------------------------------------------------------- the report
class _Page(HTMLParser):
    """Checks that tags are balanced, and collects what could make a request."""

    VOID = frozenset(("meta", "link", "br", "img", "input", "path", "rect", "circle", "hr"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "action", "srcset", "data"):
                self.addresses.append(value)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(played):
    found = _Page()
    found.feed(played["report"])
    found.close()
    return found


def test_the_report_is_one_well_formed_page_that_asks_nobody_for_anything(played, page):
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith("data:") for address in page.addresses)
    outside_svg = played["report"].replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}""", outside_svg)
    assert not re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", outside_svg)
    assert "default-src 'none'" in played["report"]
    assert "$" not in re.sub(r"<script.*?</script>", "", played["report"], flags=re.DOTALL)


def test_the_plots_show_the_verdicts_of_the_files_one_by_one(played):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', played["report"])
    data = json.loads(found[1])
    assert [entry["name"] for entry in data] == ["water", "turbines"]
    codes = {"n": "normal", "a": "anomaly", "r": "ambiguous", "u": "unscorable", "w": "warm_up"}
    for entry, pipeline in zip(data, played["pipelines"], strict=True):
        by_key: dict[str, Counter[str]] = {}
        for verdict in verdicts_of(pipeline):
            word = str(verdict.reason or verdict.label)
            by_key.setdefault(verdict.stream_key, Counter())[word] += 1
        assert [stream["key"] for stream in entry["streams"]] == sorted(by_key)
        for stream in entry["streams"]:
            assert Counter(codes[code] for code in stream["code"]) == by_key[stream["key"]]
            lengths = {len(stream[name]) for name in ("time", "code", "score", "rank", "rate")}
            assert lengths == {by_key[stream["key"]].total()}
            assert len(stream["values"]) == len(pipeline.channels)


def test_the_numbers_on_the_page_are_those_of_the_files(played, page):
    text = " ".join(page.text)
    verdicts = [verdict for pipeline in played["pipelines"] for verdict in verdicts_of(pipeline)]
    labels = Counter(verdict.label for verdict in verdicts)
    warm_up = sum(verdict.reason is Reason.WARM_UP for verdict in verdicts)
    for count in (
        len(verdicts) + 1,
        labels[Label.NORMAL],
        labels[Label.ANOMALY],
        labels[Label.REJECTED] - warm_up,
        warm_up,
    ):
        assert f"{count:,}" in text
    for findings in played["findings"]:
        assert findings.pipeline.title in text
        assert f"{100 * findings.rejection_rate:.1f} %" in text
        assert f"{100 * findings.theory.exact_bound:.1f} %" in text
        assert f"{100 * findings.theory.paper_bound:.1f} %" in text
        items = len(read_lines(findings.pipeline.review_path))
        assert f"{items:,} review items" in text
        for found in findings.segments:
            assert found.segment.title in text


def test_text_from_the_feed_stays_text(tmp_path, played):
    water = played["findings"][0]
    hostile = '</script><img src=x onerror=alert(1)>"'
    streams = tuple(type(stream)(hostile, stream.events) for stream in water.streams)
    pipeline = water.pipeline
    changed = type(water)(
        **{
            **{name: getattr(water, name) for name in water.__dataclass_fields__},
            "streams": (*streams, *streams),
            "pipeline": type(pipeline)(
                **{
                    **{name: getattr(pipeline, name) for name in pipeline.__dataclass_fields__},
                    "title": hostile,
                }
            ),
            "segments": (),
        }
    )
    write_report(tmp_path / "report.html", [changed], hostile)
    found = _Page()
    found.feed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert found.open == []
    assert all(address.startswith("data:") for address in found.addresses)


# ------------------------------------------------------------------------------------- the command
def test_the_command_takes_less_than_a_minute_and_says_what_it_did(typed):
    ended, out, seconds = typed
    assert ended.returncode == 0, ended.stderr
    assert seconds < 60
    for words in ("Water branch", "Wind farm", "expected rate R", "exact bound", "paper's bound"):
        assert words in ended.stdout
    assert ended.stdout.splitlines()[-1] == f"report: {(out / 'report.html').as_uri()}"
    assert (out / "report.html").stat().st_size < 3_000_000
    assert "Traceback" not in ended.stderr


def test_without_a_terminal_there_are_plain_lines(typed):
    ended, _, _ = typed
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "Water branch: 1,268 records in" in ended.stderr


def test_on_a_terminal_the_view_shows_progress_rates_and_reasons(played):
    screen = io.StringIO()
    console = Console(force_terminal=True, color_system=None, width=100, height=50, file=screen)
    console.print(LiveView(console, played["boards"]).render())
    text = screen.getvalue()
    for words in ("Water branch", "1,268 of 1,268", "rejected, rolling", "expected", "exact bound"):
        assert words in text
    assert "of the last" in text


def test_the_pace_on_a_terminal_changes_no_verdict(tmp_path, played):
    pipeline = prepare(tmp_path)[0]
    begun = time.monotonic()
    play(Board(pipeline), seconds=1.5)
    assert time.monotonic() - begun >= 1.4
    nowhere = Position("", 0, 0)
    slow, fast = (
        [msgspec.structs.replace(verdict, position=nowhere) for verdict in verdicts_of(p)]
        for p in (pipeline, played["pipelines"][0])
    )
    assert slow == fast
