"""The evaluation of streams: metrics by hand, thresholds before the stream, labels unseen."""

from __future__ import annotations

import dataclasses
import gzip
import json

import numpy as np
import pytest

from benchmarks.paper import rows
from benchmarks.paper.costs import Costs, Counts, cost
from benchmarks.streams import demo, rivals
from benchmarks.streams.__main__ import main
from benchmarks.streams.evaluate import (
    autocorrelation,
    evaluate,
    evaluate_score,
    hard_labels,
    policy_labels,
    reached,
    rejections_at,
    trivial_scores,
)
from benchmarks.streams.events import found, recall_at
from benchmarks.streams.prequential import CONTAMINATION, RATE, said
from benchmarks.streams.sources import capped, find, load
from benchmarks.streams.vus import range_auc_pr, segments, soft_labels, vus_pr
from rejex_stream.config import load_config
from rejex_stream.demo.datasets import prepare
from rejex_stream.rejection.policy import RejectionPolicy


# ----------------------------------------------------------------------------- VUS-PR
def by_definition(y, score, buffer):
    """Range-based precision and recall, threshold by threshold, straight from the paper."""
    n, half = len(y), buffer // 2
    soft = soft_labels(y, buffer)
    ranges: list[list[int]] = []
    for start, end in segments(y):
        a, b = max(0, start - half), min(n, end + half)
        if ranges and a < ranges[-1][1]:
            ranges[-1][1] = b
        else:
            ranges.append([a, b])
    area, last = 0.0, 0.0
    for i in np.linspace(0, n - 1, 250).astype(int):
        predicted = score >= np.sort(score)[::-1][i]
        hits = sum(soft[j] for j in range(n) if predicted[j])
        border = sum(soft[j] for j in range(n) if predicted[j] and not y[j])
        existence = np.mean([predicted[a:b].any() for a, b in ranges])
        recall = min(hits / (sum(y) + border / 2), 1) * existence
        area += (recall - last) * hits / predicted.sum()
        last = recall
    return area


@pytest.mark.parametrize("buffer", [0, 2, 7, 20])
@pytest.mark.parametrize("digits", [1, 12])
def test_range_auc_is_its_definition(buffer, digits):
    rng = np.random.default_rng(buffer)
    y = np.zeros(300, dtype=int)
    y[[40, 41, 42, 60, 299]] = 1
    y[150:170] = 1
    score = np.round(rng.normal(size=300) + 1.5 * y, digits)
    assert range_auc_pr(y, score, buffer) == pytest.approx(by_definition(y, score, buffer))


def test_an_alarm_just_beside_a_segment_counts_with_a_buffer_and_not_without():
    y = np.zeros(400, dtype=int)
    y[200:210] = 1
    beside = np.zeros(400)
    beside[195:200] = 1.0
    assert range_auc_pr(y, beside, 20) > 4 * range_auc_pr(y, beside, 0)


def test_random_scores_get_about_the_prevalence():
    rng = np.random.default_rng(0)
    y = np.zeros(8000, dtype=int)
    for start in range(0, 8000, 400):
        y[start : start + 40] = 1
    areas = [vus_pr(y, rng.random(8000), (0, 10)) for _ in range(5)]
    assert np.mean(areas) == pytest.approx(0.1, abs=0.03)


def test_no_anomaly_gives_no_number():
    assert np.isnan(vus_pr(np.zeros(20), np.arange(20.0)))


# ----------------------------------------------------------------------------- events
def test_events_by_hand():
    y = np.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 0, 0])
    v = np.array([1, 1, 0, 0, 1, 1, 0, -1, 0, 0, 0, 0, 1])
    # Segment 2-4 is hit after two events; its alarm runs on over its end and is no false one.
    # 7-8 is seen by review only; 10 by nobody. False: the run 0-1 and the event 12.
    result = found(v, y)
    assert (result.events, result.alarmed, result.alarmed_or_reviewed) == (3, 1, 2)
    assert (result.false_alarms, result.delays) == (2, (2,))


def test_nothing_is_adjusted_to_the_segment():
    y = np.repeat([0, 1, 0], [50, 100, 50])
    v = np.zeros(200, dtype=int)
    v[60] = 1
    result = evaluate_counts(v, y)
    assert result.tp == 1
    assert result.fn == 99


def evaluate_counts(v, y):
    from benchmarks.streams.evaluate import verdict_numbers

    return Counts(*verdict_numbers(v, y)["counts"])


def test_autocorrelation():
    rng = np.random.default_rng(0)
    x = np.zeros(20_000)
    for i in range(1, len(x)):
        x[i] = 0.9 * x[i - 1] + rng.normal()
    assert autocorrelation(x) == pytest.approx(0.9, abs=0.02)
    assert autocorrelation(np.ones(10)) is None


def test_recall_at_a_rate_of_false_alarms_by_hand():
    y = np.zeros(1000, dtype=int)
    y[100:110], y[300], y[700:720] = 1, 1, 1
    score = np.zeros(1000)
    score[105], score[300], score[705] = 9.0, 5.0, 2.0
    score[500:504], score[800] = 6.0, 4.0  # two runs of false alarms
    score[111] = 8.0  # beside a segment is no part of it
    for allowed, wanted in ((0, 1 / 3), (1, 1 / 3), (2, 2 / 3), (3, 1.0)):
        assert recall_at(y, score, allowed / 1000) == pytest.approx(wanted), allowed
    assert np.isnan(recall_at(np.zeros(5), np.zeros(5), 0.1))


def test_an_alarm_without_an_end_finds_nothing():
    y = np.zeros(4000, dtype=int)
    y[1000:1060], y[3000:3060] = 1, 1
    assert recall_at(y, np.zeros(4000), 1 / 1000) == 0.0, "constant"
    step = np.where(np.arange(4000) >= 50, 1.0, 0.0)
    assert recall_at(y, step, 1 / 1000) == 0.0, "one run that touches every fault"
    tail = np.zeros(4000)
    for start in (1000, 3000):  # a little longer than the fault: 19 of 3,880 normal events each
        tail[start : start + 79] = 1.0
    assert recall_at(y, tail, 1 / 1000) == 1.0
    tail[1000:1090] = 1.0  # 30 and 19
    assert recall_at(y, tail, 1 / 1000) == 0.0


def test_a_detector_is_ordered_by_severity_and_beside_it_by_raw_score(run):
    stream, part = run
    ours = evaluate(stream, part)["ranking"]
    assert len(set(part["epoch"][np.isfinite(part["epoch"])])) == 1
    assert ours["detector"] == ours["raw score"], "one model: one order, by severity too"
    flat = {**part, "rank": np.ones_like(part["rank"])}  # ranks say nothing
    assert evaluate(stream, flat)["ranking"] == ours
    told = np.full(len(stream.y), np.nan)  # what has no severity stands lowest
    told[stream.y == 1], told[stream.warm_up] = 3.0, 0.5
    best = evaluate(stream, {**part, "severity": told})["ranking"]
    assert best["detector"]["auc_pr"] == 1.0
    assert best["raw score"] == ours["raw score"]
    assert evaluate_score(stream, part["score"])["ranking"]["max |z|"] == ours["max |z|"]


def test_severities_are_counted_among_normal_events_by_first_and_later_models(run):
    stream, said_ = run
    assert reached(np.array([0.5, 1.0, 2.5, 3.0, np.nan])) == [4, 3, 2, 1]
    counts = evaluate(stream, said_)["severity"]
    use = (np.arange(len(stream.y)) >= stream.warm_up) & (stream.y == 0)
    use &= np.isfinite(said_["severity"]) & (said_["held"] == 0) & (said_["constant"] == 0)
    first = said_["epoch"] == np.nanmin(said_["epoch"])
    for name, which in (("first", first), ("later", ~first)):
        severities = said_["severity"][use & which]
        assert counts[name] == [len(severities), *((severities >= x).sum() for x in (1, 2, 3))]
    assert counts["first"][0] > 0


def test_a_fault_that_lasts_is_one_that_fills_the_places_of_anomalies(run):
    stream, part = run
    y = np.zeros(len(stream.y), dtype=int)
    long = slice(stream.warm_up + 100, stream.warm_up + 300)
    y[long], y[-10:] = 1, 1
    faulty = dataclasses.replace(stream, y=y)
    first = int(600 * CONTAMINATION)
    told = {**part, "label": np.zeros(len(y))}
    told["label"][long.start : long.start + first + 7] = 1.0  # found, held a little, forgotten
    told["label"][long.stop - 3 : long.stop] = -1.0
    found = evaluate(faulty, told)["lasting"]
    assert found == {"faults": 1, "events": 200 - first, "flagged": 7, "rejected": 3}
    # A score is held against the warm-up, which never moves.
    score = np.where(y == 1, 1.0, 0.0)
    score[: stream.warm_up] = np.linspace(0, 1.04, stream.warm_up)
    assert evaluate_score(faulty, score)["lasting"]["flagged"] == 200 - first
    assert evaluate_score(faulty, 0.98 * score - 1.0)["rate"]["flagged_normal"] == 0.0
    assert evaluate_score(faulty, np.where(y == 1, 0.9, score))["lasting"]["flagged"] == 0


def test_a_constant_window_is_no_ambiguous_event_and_in_no_rate(run):
    stream, part = run
    stuck = {key: values.copy() for key, values in part.items()}
    where = slice(len(stream.y) - 100, None)
    stuck["label"][where], stuck["constant"][where] = -1.0, 1.0
    before, after = evaluate(stream, part), evaluate(stream, stuck)
    assert after["constant_rate"] == pytest.approx(100 / after["events"])
    assert after["ambiguous_rate"] <= before["ambiguous_rate"]
    assert after["rate"]["measured"] < 2 * before["rate"]["measured"]


def test_a_stream_is_cut_to_the_newest_of_its_warm_up_and_the_first_after(data):
    stream = load(find(data)[1])
    cut = capped(stream, 100, 500)
    assert (cut.warm_up, len(cut.y)) == (100, 600)
    assert np.array_equal(cut.X, stream.X[stream.warm_up - 100 : stream.warm_up + 500], True)


# ---------------------------------------------------------------------------- streams
@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensors")
    rng = np.random.default_rng(5)
    for source, name, n in (("plant", "pump-1", 2400), ("plant", "pump-2", 1500)):
        x = rng.normal(size=(n, 2))
        y = np.zeros(n, dtype=int)
        for start in (n // 2, n - 200):
            x[start : start + 30] += 6.0
            y[start : start + 30] = 1
        lines = ["timestamp,flow,pressure,label"]
        for i in range(n):
            flow = "" if i == 900 else f"{x[i, 0]:.4f}"
            clock = f"2026-01-01T{i // 3600:02d}:{i // 60 % 60:02d}:{i % 60:02d}"
            lines.append(f"{clock},{flow},{x[i, 1]:.4f},{y[i]}")
        (folder / source).mkdir(exist_ok=True)
        with gzip.open(folder / source / f"{name}.csv.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    stream = load(find(data)[1])
    return stream, said(stream, "GMM", tmp_path_factory.mktemp("cache"))


def test_a_stream_is_read_with_its_gaps_and_its_clock(data):
    stream = load(data / "plant" / "pump-1.csv.gz")
    assert stream.channels == ("flow", "pressure")
    assert stream.interval_s == 1.0
    assert stream.warm_up == 600
    assert np.isnan(stream.X[900, 0])
    assert stream.y.sum() == 60


def test_a_train_part_is_the_warm_up(tmp_path):
    (tmp_path / "s").mkdir()
    lines = ["t,x,label,split", *[f"{i},{i % 7},-1,train" for i in range(300)]]
    lines += [f"{i},{i % 7},{int(i == 450)},test" for i in range(300, 500)]
    path = tmp_path / "s" / "a.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines))
    stream = load(path)
    assert (stream.warm_up, stream.interval_s) == (300, None)


def test_verdicts_for_another_policy_are_those_that_policy_gives_in_the_engine(run):
    stream, part = run
    again = policy_labels(part, RejectionPolicy(CONTAMINATION, rate=RATE))
    ranked = np.isfinite(part["rank"])
    assert ranked[stream.warm_up :].mean() > 0.99
    assert np.array_equal(again[ranked], part["label"][ranked].astype(int))


def test_labels_without_rejection_agree_with_every_accepted_verdict(run):
    _, part = run
    accepted = part["label"] >= 0
    assert np.array_equal(hard_labels(part)[accepted], part["label"][accepted].astype(int))


def test_the_future_and_the_labels_are_not_looked_at(data, tmp_path):
    stream = load(data / "plant" / "pump-2.csv.gz")
    part = said(stream, "GMM", tmp_path / "a")
    X, y = stream.X.copy(), stream.y.copy()
    X[1000:] += 50.0
    y[:] = 1 - y
    other = type(stream)(
        stream.source, stream.name, stream.channels, stream.times_ms, X, y, stream.warm_up, 1.0
    )
    changed = said(other, "GMM", tmp_path / "b")
    for key in part:
        assert np.array_equal(part[key][:1000], changed[key][:1000], equal_nan=True), key


def test_yardsticks_reject_as_many_and_oracle_is_the_cheapest(run):
    stream, part = run
    row = evaluate(stream, part)
    prices = Costs(1, 1, CONTAMINATION)
    use = slice(stream.warm_up, None)
    rejected = np.sum(part["label"][use] == -1)
    paid = {}
    for name in ("as shipped", "Random", "Margin", "Oracle"):
        counts = Counts(*row["policies"][name]["counts"])
        assert counts.n == pytest.approx(len(stream.y) - stream.warm_up)
        assert counts.rejected == pytest.approx(rejected)
        paid[name] = cost(counts, prices)
        assert row["policies"][name]["cost"]["1-1"] == pytest.approx(paid[name])
    assert paid["Oracle"] == min(paid.values())


def test_margin_rejects_the_nearest_scores_and_oracle_the_wrong_labels():
    part = {
        "score": np.array([1.0, 4.0, 6.0, 9.0, np.nan]),
        "threshold": np.array([5.0, 5.0, 5.0, 5.0, np.nan]),
    }
    hard, y = np.array([0, 0, 1, 1, 0]), np.array([1, 0, 1, 1, 0])
    ranked = np.array([True, True, True, True, False])
    result = rejections_at(2, part, hard, y, ranked)
    assert result["Margin"].tolist() == [0, -1, -1, 1, -1]
    assert rejections_at(1, part, hard, y, ranked)["Oracle"].tolist() == [-1, 0, 1, 1, -1]


def test_trivial_scores_need_the_warm_up_only(run):
    stream, _ = run
    scores = trivial_scores(stream)
    mean, sd = np.nanmean(stream.X[:600], axis=0), np.nanstd(stream.X[:600], axis=0)
    z = np.abs((stream.X[1000] - mean) / sd)
    assert scores["max |z|"][1000] == pytest.approx(z.max())
    step = np.abs((stream.X[1000] - stream.X[999]) / sd)
    assert scores["|Δx|"][1000] == pytest.approx(step.max())


def test_a_clear_shift_is_found_and_the_rate_is_the_expected_one_without_drift(run):
    stream, part = run
    row = evaluate(stream, part)
    shipped = row["policies"]["as shipped"]
    assert (shipped["events"], shipped["alarmed"]) == (2, 2)
    assert row["ranking"]["detector"]["vus_pr"] > 0.8
    assert row["rate"]["expected"] <= RATE
    assert row["rate"]["measured_normal"] == pytest.approx(row["rate"]["expected"], abs=0.03)
    assert row["days"] == pytest.approx(1800 / 86400)


def test_run_resumes_and_the_report_has_its_tables(data, tmp_path):
    out = tmp_path / "out"
    command = ["run", "--data", str(data), "--out", str(out), "--detectors", "GMM", "HBOS"]
    command += ["max |z|"]
    main(command)
    first = (out / "rows.jsonl").read_bytes()
    main(command)
    assert (out / "rows.jsonl").read_bytes() == first
    assert len(rows.read(out / "rows.jsonl")) == 6
    with pytest.raises(SystemExit, match="made with another evaluated rows: give another --out"):
        main([*command, "--rows", "500"])
    pytest.importorskip("matplotlib", reason="figures need Matplotlib (extra bench)")
    main(["report", "--out", str(out)])
    text = (out / "report.md").read_text("utf-8")
    assert "2 streams, 4 runs" in text
    code = json.loads((out / "setup.json").read_text("utf-8"))["code"]
    assert f"one state of the code ({code}" in text
    assert "No random cut forest was run: " in text
    assert "| GMM, raw | 2 |" in text
    for title in (
        *("What an operator sees", "Cost", "Ranking of events", "Rejection rate"),
        "Faults that last",
        "Severity: as rare as it says?",
    ):
        assert f"## {title}" in text
    for name in (
        "operator", "cost_1-1", "cost_5-5", "vus_pr", "auc_pr", "recall", "ranking", "lasting",
        "rate", "poor", "severity",
    ):  # fmt: skip
        assert (out / f"{name}.csv").exists()
    assert (out / "streams.png").stat().st_size > 5000


def test_every_config_of_the_demos_table_is_what_its_row_says(tmp_path):
    feed = prepare(tmp_path)[0]
    shipped = feed.config_path.read_text("utf-8")
    found = {}
    for row, change in demo.VARIANTS.items():
        feed.config_path.write_text(change(shipped), "utf-8")
        config = load_config(feed.config_path)
        detector, columns, refits = row
        assert detector.startswith(config.detector.name)
        assert (columns == "its own") == (not config.features.columns)
        assert (refits == "the demo's") == (config.refit == feed.config.refit)
        if "init" in refits:
            assert (config.rejection.window, config.rejection.review_budget.rate) == (310, 0.05)
        else:
            assert config.rejection == feed.config.rejection
        found[row] = change(shipped)
    assert found["Sensor (the demo)", "the demo's", "the demo's"] == shipped
    assert len(set(found.values())) == len(found) == 9


# ----------------------------------------------------------------------------- rivals
def test_a_gap_is_carried_forward_and_a_channel_without_a_value_is_zero(run):
    X = np.array([[np.nan, 1.0, np.nan], [2.0, np.nan, np.nan], [np.nan, 3.0, np.nan]])
    stream = dataclasses.replace(run[0], X=X)
    assert rivals.filled(stream).tolist() == [[0.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 3.0, 0.0]]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["krcf", "AWS RCF"])
def test_a_forest_scores_before_it_learns_and_keeps_its_scores(name, run, tmp_path):
    if rivals.able(name):
        pytest.skip(f"{name}: {rivals.able(name)}")
    stream = capped(run[0], 300, 200)
    try:
        score = rivals.score_of(stream, name, tmp_path / "a")
    except RuntimeError as error:
        if "Maven could not fetch" not in str(error):
            raise
        pytest.skip(str(error))
    assert score.shape == (500,)
    changed = dataclasses.replace(stream, X=stream.X.copy())
    changed.X[400] += 50.0
    changed.X[401:] *= -1
    other = rivals.score_of(changed, name, tmp_path / "b")
    assert np.array_equal(score[:400], other[:400])
    assert other[400] > np.quantile(other[:400], 0.99)
    assert np.array_equal(rivals.score_of(changed, name, tmp_path / "a"), score)  # from the folder
