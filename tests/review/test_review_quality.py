"""What labels give back: textbook agreement, honest intervals, proposals that change nothing."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc

import numpy as np
import pytest

from rejex_stream.planner import Costs
from rejex_stream.review import export, workload
from rejex_stream.review.agreement import (
    bootstrap,
    cohen_kappa,
    krippendorff_alpha,
    percent_agreement,
)
from rejex_stream.review.decisions import Decision
from rejex_stream.review.quality import Group, estimate, quality
from rejex_stream.review.queue import Viewer
from rejex_stream.review.report import propose_contamination, report
from rejex_stream.types import Label
from tests.review.test_review_store import ADA, BOB, EVE, episodes, item, label


# ------------------------------------------------------------------------------------ agreement
def test_kappa_is_that_of_the_textbooks():
    table = [("y", "y")] * 45 + [("y", "n")] * 15 + [("n", "y")] * 25 + [("n", "n")] * 15
    assert cohen_kappa(table) == pytest.approx(0.1304, abs=5e-5)
    table = [("y", "y")] * 25 + [("y", "n")] * 35 + [("n", "y")] * 5 + [("n", "n")] * 35
    assert cohen_kappa(table) == pytest.approx(0.2593, abs=5e-5)
    assert cohen_kappa([("y", "y")] * 5) is None
    assert cohen_kappa([]) is None


def test_alpha_is_that_of_krippendorffs_own_example():
    # Four observers, twelve units, some missing: nominal alpha 0.743 (Krippendorff 2011).
    rows = (
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    )
    units = [
        [one for one in column if one != "."]
        for column in zip(*(r.split() for r in rows), strict=True)
    ]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha([["a"], ["b"]]) is None


def test_agreement_of_the_store_leaves_adjudications_out(new_store):
    store = new_store(double_review_ratio=1.0, settle_ms=0)
    store.add([item(1000 * i) for i in range(4)])
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], "normal", request=f"a{number}")
    for number, target in enumerate(episodes(store, BOB)):
        label(store, BOB, [target], "anomaly" if number == 3 else "normal", request=f"b{number}")
    (disputed,) = episodes(store, EVE, "disputed")
    label(store, EVE, [disputed], "anomaly", request="e")
    with store.database.read() as connection:
        found = workload.agreement(connection)
    assert (found.episodes, found.pair) == (4, ("ada", "bob"))
    assert found.percent.value == 0.75
    assert found.percent.low < 0.75 < found.percent.high


def test_a_bootstrap_interval_repeats():
    units = [("a", "a")] * 30 + [("a", "b")] * 10
    assert bootstrap(units, percent_agreement) == bootstrap(units, percent_agreement)


# ------------------------------------------------------------------------------------ estimates
def test_the_intervals_cover_the_truth():
    rng = np.random.default_rng(3)
    sizes, shares, audited = (300, 9000, 700), (0.8, 0.004, 0.4), (40, 300, 60)
    truth = sum(n * p for n, p in zip(sizes, shares, strict=True)) / sum(sizes)
    missed = sizes[1] * shares[1] / (truth * sum(sizes))
    rounds, inside, inside_missed = 200, 0, 0
    for _ in range(rounds):
        groups = [
            Group(events=n, judged=m, anomalous=int(rng.binomial(m, p)), effective=m)
            for n, m, p in zip(sizes, audited, shares, strict=True)
        ]
        found = estimate(*groups, Costs())
        inside += found.contamination.low <= truth <= found.contamination.high
        inside_missed += found.miss_rate.low <= missed <= found.miss_rate.high
    assert inside / rounds > 0.9
    assert inside_missed / rounds > 0.9


def test_without_an_audit_nothing_is_claimed_about_accepted_events():
    found = estimate(
        Group(events=100), Group(events=9000), Group(events=500, judged=500, effective=50), Costs()
    )
    assert found.precision.value is None
    assert found.miss_rate.value is None
    assert found.contamination.value is None
    assert found.anomalous_rejected.value == 0.0


def test_events_of_one_episode_are_one_judgement(new_store):
    store = new_store(settle_ms=0)
    store.add([item(i) for i in range(40)] + [item(5000)])
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], "anomaly", request=str(number))
    with store.database.read() as connection:
        found = quality(connection)
    assert (found.rejected.judged, found.rejected.anomalous) == (41, 41)
    assert 1.0 <= found.rejected.effective < 1.1
    assert found.anomalous_rejected.low < 0.6


def test_the_report_proposes_another_contamination_and_changes_nothing(new_store, farm):
    store = new_store(settle_ms=0)
    store.add(farm.items, farm.verdicts)
    verdicts = {str(i.verdict.position): i for i in farm.items}
    for number, target in enumerate(episodes(store)):
        with store.database.read() as connection:
            row = connection.execute(
                "SELECT topic, partition, offset, why FROM event v JOIN episode e "
                "USING (episode_id) WHERE v.episode_id = ? LIMIT 1",
                (target.episode_id,),
            ).fetchone()
        said = verdicts[f"{row[0]}-{row[1]}-{row[2]}"].verdict.label
        truth = "anomaly" if row["why"] == "audit" and said is Label.ANOMALY else "normal"
        label(store, ADA, [target], truth, request=str(number))
    before = store.settings
    with store.database.read() as connection:
        found = report(connection, now_ms=store.now_ms(), contamination=0.12)
        events = connection.execute("SELECT count(*) FROM label").fetchone()[0]
    estimate_ = found.quality.contamination
    assert estimate_.low < estimate_.value < 0.12
    assert found.cost_bound > 0
    (proposal, *_) = found.proposals
    assert "contamination" in proposal.toml
    assert "# was 0.12" in proposal.toml
    assert proposal.after.promise is not None or proposal.after.refusal is not None
    assert store.settings is before
    assert events == len(episodes(store, tab="done"))
    with store.database.read() as connection:
        fitting = report(connection, now_ms=store.now_ms(), contamination=round(estimate_.value, 4))
    assert propose_contamination(fitting.pipelines[0], fitting.quality, estimate_.value) is None


def test_a_queue_that_people_cannot_keep_up_with_gets_a_smaller_budget(new_store, farm, clock):
    store = new_store(settle_ms=0)
    store.add(farm.items, farm.verdicts)
    clock.pass_ms(2 * 86_400_000)
    for number, target in enumerate(episodes(store)[:30]):
        label(store, ADA, [target], "normal", request=str(number))
    with store.database.read() as connection:
        found = report(connection, now_ms=store.now_ms())
    budget = next(p for p in found.proposals if "review_budget" in p.toml)
    assert "rate = " in budget.toml
    assert budget.after.promise.expected_rate < budget.before.promise.expected_rate


# --------------------------------------------------------------------------------------- export
def test_no_cell_of_the_csv_is_a_formula_and_the_json_is_as_it_was(new_store):
    store = new_store(settle_ms=0)
    nasty = ("=1+1", "@SUM(A1)", "+1", "-1+1", "\t=1+1", " =1+1", "\r=1", 'ok, "quoted"\nline')
    for number, name in enumerate(nasty):
        store.add([item(1000 * number, sensor=name)])
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], request=str(number), note=nasty[number], fault_code="=cmd")
    text = "".join(export.as_csv(export.rows(store.database)))
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == len(nasty) + 1
    for row in rows[1:]:
        for cell in row:
            stripped = cell.strip()
            number = stripped.lstrip("-").replace(".", "").isdigit()
            assert number or stripped[:1] not in ("=", "+", "-", "@")
    lines = "".join(export.as_jsonl(export.rows(store.database))).splitlines()
    assert {json.loads(line)["sensor"] for line in lines} == set(nasty)


def test_parquet_holds_the_same_rows(new_store, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    store = new_store(settle_ms=0)
    store.add([item(i) for i in range(30)])
    label(store, ADA, episodes(store), "anomaly", note="héllo")
    path = tmp_path / "labels.parquet"
    assert export.write(store.database, path, "parquet") == 30
    table = parquet.read_table(path)
    assert table.num_rows == 30
    assert table.to_pylist()[0]["verdict"] == "anomaly"
    assert table.column_names == list(export.ExportRow._fields)


def test_a_large_export_needs_little_memory(new_store):
    store = new_store(settle_ms=0, max_events=2000)
    store.add([item(i) for i in range(6000)])
    for number, target in enumerate(episodes(store)):
        label(store, Viewer("ada"), [target], request=str(number))

    def peak(rows: int) -> int:
        tracemalloc.start()
        found = export.rows(store.database)
        size = sum(
            len(piece)
            for piece in export.as_csv(row for _, row in zip(range(rows), found, strict=False))
        )
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size > 100 * rows
        return used

    small, large = peak(2000), peak(6000)
    assert large < 1.5 * small, (small, large)


def test_decisions_by_nobody_do_not_count_as_labels(new_store, clock):
    store = new_store(settle_ms=0, max_age_ms=10, fallback="anomaly")
    store.add([item(0)])
    clock.pass_ms(20)
    store.expire_due()
    with store.database.read() as connection:
        found = report(connection, now_ms=store.now_ms())
    assert found.quality.rejected.judged == 0
    assert found.workload.expired == 1
    assert Decision  # the report never decides
