"""The pipeline: rows that survive a SIGKILL, a run that goes on where it stopped, a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import rows
from benchmarks.paper.__main__ import main
from benchmarks.paper.results import Results, paper_numbers
from benchmarks.paper.run import plan
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.thorough, pytest.mark.long]

ROOT = Path(__file__).parents[2]
DETECTORS, METHODS = ["HBOS", "COPOD"], ["RejEx", "NoReject", "Oracle"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adbench")
    rng = np.random.default_rng(0)
    # Names of two of the paper's sets, contents of neither.
    for stem, n in (("6_cardio", 260), ("45_wine", 210)):
        X = np.vstack([rng.normal(size=(n - 26, 3)), rng.normal(3, 1, size=(26, 3))])
        np.savez(folder / f"{stem}.npz", X=X, y=np.repeat([0, 1], [n - 26, 26]))
    np.savez(folder / "sub_stand_in.npz", X=np.eye(3), y=[0, 1, 0])
    return folder


def row(fold, **more):
    return {"dataset": "a", "detector": "KNN", "fold": fold, "method": "RejEx", **more}


def test_a_torn_last_row_costs_that_row_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows.append(path, row(0))
    with path.open("ab") as file:
        file.write(b'{"dataset":"a","detector":"KN')
    assert rows.read(path) == [row(0)]
    rows.append(path, row(1))
    assert rows.read(path) == [row(0), row(1)]


def test_a_failed_cell_is_not_done_and_a_later_success_replaces_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows.append(path, row(0, absent="out of memory"))
    assert rows.keys(rows.read(path)) == set()
    rows.append(path, row(0, value=1))
    assert rows.read(path) == [row(0, value=1)]
    assert rows.keys(rows.read(path)) == {("a", "KNN", 0, "RejEx")}


def arguments(data, out, *more):
    return [
        "run", "--data", str(data), "--out", str(out), "--jobs", "1", "--folds", "2",
        "--detectors", *DETECTORS, "--methods", *METHODS, *more,
    ]  # fmt: skip


def start(data, out):
    command = [sys.executable, "-m", "benchmarks.paper", *arguments(data, out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def without_times(found):
    def clean(one):
        return json.dumps({k: v for k, v in one.items() if k != "cpu_ms_per_row"}, sort_keys=True)

    return sorted(map(clean, found))


def test_a_run_killed_again_and_again_ends_with_the_rows_of_one_that_was_not(data, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    main(arguments(data, whole))
    total = 2 * 2 * len(DETECTORS) * len(METHODS)
    expected = rows.read(whole / "rows.jsonl")
    assert len(expected) == total
    assert not any("absent" in one for one in expected)
    file = broken / "rows.jsonl"
    kills = 0
    for wanted in (1, total // 2, total - 2):
        process = start(data, broken)
        until(
            lambda p=process, n=wanted: p.poll() is not None or len(rows.read(file)) >= n,
            every_s=0.002,
        )
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(timeout=PATIENCE_S)
        before = file.read_bytes()
        # What was on disk stays: a resumed run appends.
        if wanted == total - 2:
            main(arguments(data, broken))
        assert file.read_bytes().startswith(before)
    assert kills >= 2
    assert without_times(rows.read(file)) == without_times(expected)
    lines = file.read_bytes().splitlines()
    whole_lines = [line for line in lines if line.endswith(b"}")]
    assert len(whole_lines) == total, "a finished row was computed twice"


def test_a_folder_refuses_rows_of_another_kind(data, tmp_path):
    main(arguments(data, tmp_path))
    with pytest.raises(SystemExit, match="give another --out"):
        main(arguments(data, tmp_path, "--fast"))


def test_names_are_checked_before_anything_runs(data, tmp_path):
    with pytest.raises(SystemExit, match="no detector 'KMM'"):
        plan(data, tmp_path, detectors=["KMM"])
    with pytest.raises(SystemExit, match="no data set 'pima'"):
        plan(data, tmp_path, datasets=["pima"])
    with pytest.raises(SystemExit, match=r"no ADBench \.npz files"):
        plan(tmp_path, tmp_path)
    assert plan(data, tmp_path, datasets=["cardio"]).datasets == ("6_cardio",)


def test_fast_covers_every_method_and_every_detector_but_ae(data, tmp_path):
    from benchmarks.paper.methods import METHODS as ALL
    from benchmarks.paper.run import DETECTORS as TWELVE

    fast = plan(data, tmp_path, fast=True)
    assert set(fast.methods) == set(ALL)
    assert set(fast.detectors) == set(TWELVE) - {"AE"}
    assert fast.fold_limit == 2


@pytest.fixture(scope="module")
def reported(data, tmp_path_factory):
    out, to = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("report")
    command = ["run", "--data", str(data), "--out", str(out), "--jobs", "1", "--fast"]
    main([*command, "--datasets", "cardio", "wine", "--detectors", "HBOS", "COPOD"])
    pytest.importorskip("matplotlib", reason="figures need Matplotlib (extra bench)")
    main(["report", "--out", str(out), "--to", str(to)])
    return out, to


def test_the_report_has_every_section_table_and_figure(reported):
    _, to = reported
    text = (to / "report.md").read_text("utf-8")
    for title in ("What this covers", "What was promised", "Q1", "Q2", "Q3", "Q4", "Q5", "Beyond"):
        assert f"## {title}" in text
    for name in ("q1.png", "q2.png", "q4.png", "beyond.png", "coverage.png"):
        assert (to / name).stat().st_size > 5000
        assert f"({name})" in text
    for name in ("cost_1-1", "rank_1-1", "cost_5-5", "cpu", "theory", "oracle", "beyond", "bars"):
        assert (to / f"{name}.csv").read_text("utf-8").count("\n") >= 2
    assert "2 of the paper's 34 data sets" in text


def test_the_numbers_of_the_report_are_those_of_the_rows(reported):
    out, to = reported
    found = [r for r in rows.read(out / "rows.jsonl") if r["detector"] == "HBOS"]
    by_set = []
    for stem in ("6_cardio", "45_wine"):
        costs = []
        for one in found:
            if one["dataset"] == stem and one["method"] == "NoReject":
                tn, fp, fn, tp, *_ = one["counts"]["any"]
                costs.append((fp + fn) / (tn + fp + fn + tp))
        by_set.append(np.mean(costs))
    line = next(
        text
        for text in (to / "cost_1-1.csv").read_text("utf-8").splitlines()
        if text.startswith("HBOS")
    )
    assert line.split(",")[-1] == f"{np.mean(by_set):.3f} (0.142)"


def test_what_the_papers_em_was_probably_is_told_from_the_same_rows(reported, tmp_path, capsys):
    out, _ = reported
    main(["probably", "--out", str(out), "--to", str(tmp_path)])
    text = capsys.readouterr().out
    assert text == (tmp_path / "probably.md").read_text("utf-8") + "\n"
    assert "no proof" in text
    results = Results.load(out)
    means = {
        method: results.per_dataset(lambda by, m=method: results.cost(by, m, "1-1")).mean()
        for method in ("NoReject", "Em as probably run")
    }
    lines = (tmp_path / "probably.csv").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("Em as probably run"))
    cost, share = line.split(",")[2:4]
    assert cost == f"{means['Em as probably run']:.3f}"
    assert share == f"{means['Em as probably run'] / means['NoReject']:.2f}"
    # Where random rejection costs as little, the set is named.
    gap = results.per_dataset(
        lambda by: results.cost(by, "RejEx", "1-10") - results.cost(by, "Random", "1-10")
    )
    named = [results.name(d) for d, value in zip(results.datasets, gap, strict=True) if value >= 0]
    last = text.strip().splitlines()[-1]
    assert all(name in last for name in named)
    assert ("no set" in last) == (not named)
    with pytest.raises(SystemExit, match="Em as probably run"):
        main(["probably", "--out", str(tmp_path)])


def test_ranks_count_every_data_set_once(reported):
    out, _ = reported
    results = Results.load(out)
    mean, _ = results.mean_ranks("1-1", ["RejEx", "NoReject"], "HBOS")
    assert mean.sum() == pytest.approx(3.0)


def test_the_papers_numbers_are_whole_and_agree_with_its_own_average_row():
    paper = paper_numbers()
    for kind in ("cost", "rank"):
        for case, table in paper[kind].items():
            assert len(table) == 12, (kind, case)
            assert all(len(by) == 8 for by in table.values())
    methods = paper["methods"]
    printed = [0.121, 0.125, 0.138, 0.136, 0.139, 0.146, 0.144, 0.148]
    mean = [np.mean([by[m][0] for by in paper["cost"]["1-1"].values()]) for m in methods]
    assert mean == pytest.approx(printed, abs=1e-3)
    printed = [2.29, 3.54, 4.72, 4.10, 4.87, 5.44, 5.28, 5.77]
    mean = [np.mean([by[m][0] for by in paper["rank"]["1-1"].values()]) for m in methods]
    assert mean == pytest.approx(printed, abs=0.02)
    for table in paper["rank"].values():
        for by in table.values():  # eight ranks add up to 36
            assert sum(value[0] for value in by.values()) == pytest.approx(36, abs=0.35)
