"""What labels give back: intervals that hold, and exports."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.review.queue import label_store, labelling
from rejex_stream.review.queue.label_report import Group, estimate, judged_episodes, quality, report
from rejex_stream.review.queue.labelling import LabelRequest
from rejex_stream.review.queue.listing import in_short
from rejex_stream.types import Label, Reason, Status
from tests.review.console_server import running
from tests.review.test_review_store import ADA, episodes, item, label, read, rows


# ------------------------------------------------------------------------------------ estimates
@pytest.mark.thorough
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
        found = estimate(*groups)
        inside += found.contamination.low <= truth <= found.contamination.high
        inside_missed += found.miss_rate.low <= missed <= found.miss_rate.high
    assert inside / rounds > 0.9
    assert inside_missed / rounds > 0.9


def test_without_an_audit_nothing_is_claimed_about_accepted_events():
    found = estimate(
        Group(events=100), Group(events=9000), Group(events=500, judged=500, effective=50)
    )
    assert found.precision.value is None
    assert found.miss_rate.value is None
    assert found.contamination.value is None
    assert found.anomalous_rejected.value == 0.0


def test_events_of_one_episode_are_one_judgement(new_store):
    store = new_store(settle_s=0)
    store.add([item(i) for i in range(40)] + [item(5000)])
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], "anomaly", request=str(number))
    found = read(store, quality)
    assert (found.rejected.judged, found.rejected.anomalous) == (41, 41)
    assert 1.0 <= found.rejected.effective < 1.1
    seen = replace(found.rejected, events=4_100)
    assert estimate(seen, Group(), Group()).precision.low < 0.6
    assert found.anomalous_rejected == (1.0, 1.0, 1.0), "all were judged: there is no rest"


@pytest.mark.parametrize("anomalous", [0, 30])
def test_an_interval_holds_its_value_at_either_end(anomalous):
    audited = Group(events=9_000, judged=30, anomalous=anomalous, effective=30)
    found = estimate(audited, audited, Group(events=500, judged=500, effective=50))
    for one in (found.precision, found.false_omission, found.miss_rate, found.contamination):
        assert one.low <= one.value <= one.high
    end = anomalous / 30
    assert end in (found.precision.low, found.precision.high)
    assert found.precision.high - found.precision.low > 0.05


def test_what_waits_among_the_rejected_is_anything():
    few = Group(events=1_000, judged=100, anomalous=90, effective=100)
    found = estimate(Group(events=9, judged=9, effective=9), Group(), few)
    assert found.anomalous_rejected[1:] == pytest.approx((0.09, 0.99))


def test_the_rejected_are_those_that_were_sent_however_far_the_work_is(new_store):
    store = new_store(settle_s=0)
    ambiguous = [item(100_000 * i) for i in range(4)]
    constant = [
        replace(one, verdict=replace(one.verdict, reason=Reason.CONSTANT_WINDOW))
        for one in (item(100_000 * i, sensor="T09/x") for i in range(10, 13))
    ]
    store.add([*ambiguous, *constant])
    seen = []
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], request=str(number))
        seen.append(read(store, quality))
    assert {one.rejected.events for one in seen} == {7}
    late = read(store, quality, since_ms=constant[0].verdict.event_time_ms)
    assert (late.rejected.events, late.rejected.judged) == (3, 3)


def label_honestly(store, farm) -> None:
    """Say anomaly where an audited event was one, and normal everywhere else."""
    verdicts = {str(i.verdict.position): i for i in farm.items}
    for number, target in enumerate(episodes(store)):
        ((topic, partition, offset, why),) = rows(
            store,
            "SELECT topic, partition, offset, why FROM event v JOIN episode e "
            "USING (episode_id) WHERE v.episode_id = ? LIMIT 1",
            target.episode_id,
        )
        said = verdicts[f"{topic}-{partition}-{offset}"].verdict.label
        truth = "anomaly" if why == "audit" and said is Label.ANOMALY else "normal"
        label(store, ADA, [target], truth, request=str(number))


@pytest.mark.thorough
def test_the_report_estimates_the_contamination_and_changes_nothing(new_store, farm):
    store = new_store(settle_s=0)
    store.add(farm.items, farm.verdicts)
    label_honestly(store, farm)
    before = store.settings
    found = read(store, report, now_ms=store.now_ms())
    ((events,),) = rows(store, "SELECT count(*) FROM label")
    estimate_ = found[""].contamination
    assert estimate_.low < estimate_.value < 0.12
    assert store.settings is before
    assert events == len(episodes(store, tab="done"))


# --------------------------------------------------------------------------------------- export
NASTY = (
    *("=1+1", "@SUM(A1)", "+1", "-1+1", "|calc", "\t=1+1", "\tx", "\r=1", "\rx", "\n=1", "\nx"),
    *(" =1+1", "\ufeff=1", "\u00a0=1", "＝1+1", "ok;=1", "ok; @A1", "ok\n-1", 'ok, "quoted"\nline'),
)
SIGNS = tuple("=+-@|＝＋－＠")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_no_cell_of_the_csv_is_a_formula_and_the_json_is_as_it_was(new_store, separator):
    store = new_store(settle_s=0)
    for number, name in enumerate(NASTY):
        store.add([item(1000 * number, sensor=name)])
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], request=str(number), note=NASTY[number], fault_code="=cmd")
    text = "".join(label_store.as_csv(label_store.export_rows(store.database)))
    # A spreadsheet may split at what its country splits at, whatever we meant.
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    assert len(rows) > len(NASTY)
    cells = [cell for row in rows[1:] for cell in row]
    for cell in cells:
        seen = cell.lstrip(" \t\r\n\ufeff\u00a0")
        number = re.fullmatch(r"-?[0-9.]+", seen)
        assert number or not seen.startswith(SIGNS), cell
        assert not cell.startswith(("\t", "\r", "\n")) or separator != ",", cell
    lines = "".join(label_store.as_jsonl(label_store.export_rows(store.database))).splitlines()
    assert {json.loads(line)["sensor"] for line in lines} == set(NASTY)


def test_a_status_of_the_sensor_is_no_rejected_event_whose_quality_is_measured(new_store):
    store = new_store(settle_s=0)
    begins = item(0, sensor="T01/a", why="status")
    begins = replace(
        begins,
        verdict=replace(
            begins.verdict, label=Label.REJECTED, reason=Reason.CONSTANT_WINDOW,
            status=Status.CONSTANT_BEGINS,
        ),
    )  # fmt: skip
    store.add([begins, item(1, sensor="T02/b"), item(2, sensor="T02/b")])
    found = episodes(store)
    assert len(found) == 2  # one of its own, and the two rejected events together
    label(store, ADA, found)
    with store.database.read() as connection:
        assert [judged.n_events for judged in judged_episodes(connection)] == [2]
    assert "all equal" in in_short(begins.verdict, begins.why)


_EXPORT = """
import sys
from pathlib import Path
from rejex_stream.review.queue import label_store
from rejex_stream.review.queue.review_store import ReviewStore
store = ReviewStore(Path(sys.argv[1]))
count = label_store.write_export(store.database, Path(sys.argv[2]), sys.argv[3])
# Not getrusage: its maximum is that of the process that started this one, too.
status = Path("/proc/self/status").read_text().split()
print(count, status[status.index("VmHWM:") + 1])
"""


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_an_export_of_40_000_rows_takes_the_memory_of_a_small_one(new_store, tmp_path, form):
    def peak_kib(rows: int) -> int:
        """The most memory that a process of its own ever held for an export."""
        store = new_store(f"{rows}.db", settle_s=0)
        store.add([item(0)])
        label(store, ADA, episodes(store), note="x" * 200)
        with store.database.write() as connection:  # so many items by hand take long
            connection.execute(
                "WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more "
                "WHERE n < ?) INSERT INTO event (topic, partition, offset, reading, sensor_id, "
                "episode_id, "
                "event_time_ms, seq, received_ms, item) SELECT topic, partition, "
                "n, 0, sensor_id, episode_id, event_time_ms, n, received_ms, item "
                "FROM more, event WHERE event_id = 1",
                (rows - 1,),
            )
            connection.execute(
                "INSERT INTO label_event SELECT event_id, 1 FROM event WHERE event_id > 1"
            )
        out = tmp_path / f"{rows}.{form}"
        words = (sys.executable, "-c", _EXPORT, store.database.path, out, form)
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=300,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        count, peak = map(int, done.stdout.split())
        assert count == rows
        assert out.stat().st_size > rows * 300
        return peak

    small, large = peak_kib(5_000), peak_kib(40_000)
    assert large - small < 8_192, f"{small} KiB for 5,000 rows, {large} KiB for 40,000"


def test_decisions_by_nobody_do_not_count_as_labels(new_store, clock):
    store = new_store(settle_s=0, max_age_hours=10 / 3_600_000, default_answer="anomaly")
    store.add([item(0)])
    clock.pass_ms(20)
    labelling.expire_due(store)
    found = read(store, report, now_ms=store.now_ms())
    assert found[""].rejected.judged == 0
    assert LabelRequest  # the report never decides


DAY_MS = 86_400_000


def test_every_pipeline_has_figures_of_its_own_time_and_none_are_pooled(wall_store):
    """A month that was read today was "296 cases a day"; two γ were one table."""
    store = wall_store(settle_s=0, gap_events=0)
    for first, (name, cases, days) in enumerate((("pumps", 30, 30), ("ovens", 4, 8))):
        lines = [
            item(10**6 * first + 1000 * i, sensor=name, t_s=1.6e9 + i * days * 86_400 / cases)
            for i in range(cases + 1)
        ]
        store.ingest("review", map(encode_review, lines), pipeline=name)
        store.ingest("verdicts", [encode_verdict(one.verdict) for one in lines], pipeline=name)
    ovens = [target for target in episodes(store, ADA) if "ovens" in sensor_of(store, target)]
    label(store, ADA, ovens[:3], "anomaly")
    found = read(store, report, now_ms=store.now_ms(), since_ms=store.now_ms() - 10 * DAY_MS)
    pumps, ovens = found["pumps"].rejected, found["ovens"].rejected
    assert (pumps.events, pumps.judged) == (11, 0), "of its own last ten days"
    assert (ovens.events, ovens.judged) == (5, 3)
    with running(store) as console:
        page = console.ask("/audit").text
    assert re.findall(r'<h2 class="of-pipeline"><bdi>(\w+)', page) == ["ovens", "pumps"]


def sensor_of(store, target):
    query = "SELECT sensor FROM episode JOIN sensor USING (sensor_id) WHERE episode_id = ?"
    return rows(store, query, target.episode_id)[0][0]
