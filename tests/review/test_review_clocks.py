"""Whose clock is believed, counts by the hour, and what is kept."""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.review.incidents import readings
from rejex_stream.review.incidents.shift import Actor, last_shift
from rejex_stream.review.queue import label_report, series
from rejex_stream.review.queue.label_report import pipelines_of, quality
from rejex_stream.review.queue.review_store import ReviewStore, rebuild
from rejex_stream.review.queue.series import DAY_MS, HOUR_MS
from rejex_stream.types import IncidentState, Label, Position, Reason, Status
from tests.review.console_server import running
from tests.review.incidents import incident, tell
from tests.review.test_review_store import item, read, rows

FROM_MS, TO_MS = 480 * HOUR_MS, 504 * HOUR_MS


def counted(store, name, *, last_ms=TO_MS - 1, n_anomalies=0, t_ms=FROM_MS, **told):
    """A sensor with counts in one hour of the day."""
    with store.database.write() as connection:
        (one,) = connection.execute(
            "INSERT INTO sensor (stream_key, sensor, grp, last_ms, window_len, n_anomalies) "
            "VALUES (?1,?1,?1,?2,100,?3) RETURNING sensor_id",
            (name, last_ms, n_anomalies),
        ).fetchone()
        names = ("normal", "anomaly", "rejected")
        connection.execute(
            f"INSERT INTO hour (sensor_id, t_ms, {', '.join(names)}) VALUES (?,?,?,?,?)",
            (one, t_ms, *(told.get(name, 0) for name in names)),
        )


def test_now_lists_whom_no_incident_asks_about_the_farthest_from_chance_first(new_store):
    store = new_store()
    counted(store, "held", normal=900, anomaly=90)
    counted(store, "slight", normal=900, anomaly=9)
    counted(store, "clear", normal=900, anomaly=300)
    counted(store, "well", normal=900, anomaly=9, n_anomalies=1)
    counted(store, "past", last_ms=TO_MS - DAY_MS, normal=900, anomaly=90, t_ms=FROM_MS - HOUR_MS)
    counted(store, "over", normal=900, anomaly=200)
    tell(store, incident(stream="held"))
    tell(store, incident(2, "closed", opened=11, stream="over", at=TO_MS // 1000))
    with store.database.read() as connection:
        found = readings.flagged(connection)
        assert [one.sensor for one in found] == ["clear", "slight"]
        assert readings.flagged(connection, limit=1) == found[:1]
    with running(store) as console:
        page = words_of(console.ask("/now"))
    assert "clear 300 of 1,200 events" in page


def test_who_takes_over_reads_what_the_last_eight_hours_brought_and_what_alarms_most(new_store):
    store = new_store()
    for name in ("pump", "fan", "mill"):
        counted(store, name, normal=900)

    def opened(stream: str, hours_ago: float, *, ended_ago: float | None = None) -> None:
        one = incident(opened=round((TO_MS / HOUR_MS - hours_ago) * 3600), stream=stream)
        tell(store, one)
        if ended_ago is not None:
            ended_ms = round(TO_MS - ended_ago * HOUR_MS)
            tell(store, msgspec.structs.replace(
                one, state=IncidentState.CLOSED, version=2, changed_ms=ended_ms,
                changed_seq=one.changed_seq + 9, position=Position("feed", 0, one.changed_seq + 9),
            ))  # fmt: skip

    for hours_ago in (500, 21, 14, 2):
        opened("pump", hours_ago, ended_ago=hours_ago - 1)
    opened("pump", 721, ended_ago=720.5)  # more than 30 days ago
    opened("fan", 300, ended_ago=299)
    opened("fan", 200, ended_ago=7)
    opened("mill", 26)
    opened("mill", 6)
    newest_ms = {name: read(store, series.pipeline_clock, name).now_ms
                 for name in read(store, pipelines_of)}  # fmt: skip
    shift = read(store, last_shift, store.now_ms(), newest_ms)
    assert (shift.opened, shift.ended, shift.standing, shift.answered) == (2, 2, 1, 0)
    assert shift.actors == (Actor("pump", 4, True), Actor("fan", 2, False), Actor("mill", 2, False))
    assert shift.an_hour == 2 / 8
    with running(store) as console:
        page = words_of(console.ask("/now"))
    assert "2 opened, 2 ended, 0 answered 0.2 an hour; one person can attend to 6" in page
    assert "1 standing open for more than a day" in page
    assert "pump 4 incidents in 30 days chattering" in page


# ------------------------------------------------------------------- whose clock is believed
T0 = 1_764_028_800_000  # a day of 2025, at midnight
YEAR_MS = 31_557_600_000
STEP_MS = 1_800_000


def heard(name, number, t_ms, partition=0, status=None):
    """The verdict of one event of one sensor, as a line of the log."""
    one = msgspec.structs.replace(
        item(number, sensor=name).verdict, position=Position("feed", partition, number),
        event_time_ms=t_ms, label=Label.ANOMALY if number % 11 == 0 else Label.NORMAL, reason=None,
        status=status,
    )  # fmt: skip
    return encode_verdict(one)


def lines_of(lies):
    """Thirty hours of four sensors, of which one ended early, and one that says what it likes."""
    times, lines, was_wrong = itertools.cycle(lies), [], False
    for tick in range(60):
        now = T0 + tick * STEP_MS
        for name in ("WT-03", "a", "b", "c", *(["d"] if tick < 47 else [])):
            t_ms = next(times) if name == "WT-03" and lies != [None] else now
            status, is_wrong = None, t_ms > now + DAY_MS or t_ms < T0 - 30 * YEAR_MS
            if name == "WT-03" and is_wrong is not was_wrong:  # the pipeline says so
                status = Status.CLOCK_BEGINS if is_wrong else Status.CLOCK_ENDS
                was_wrong = is_wrong
            lines.append(heard(name, len(lines), t_ms, status=status))
    return lines


def seen_of_others(lines, batch):
    """What the store holds and the pages say of everybody but WT-03."""
    with TemporaryDirectory() as folder:
        store = ReviewStore(Path(folder) / "review.db", Review(), clock_ms=lambda: T0)
        store.ingest(
            "review", [encode_review(item(k, sensor="a", t_s=T0 / 1000)) for k in range(3)]
        )
        for start in range(0, len(lines), batch):
            store.ingest("verdicts", lines[start : start + batch])
            with store.database.write() as connection:
                series.forget(connection, keep=40, keep_hours=20)
        with store.database.read() as connection:
            others = "FROM sensor s JOIN {} USING (sensor_id) WHERE sensor <> 'WT-03' ORDER BY 1, 2"
            found = [
                [
                    [round(x, 6) if isinstance(x, float) else x for x in row]
                    for row in connection.execute(f"SELECT sensor, x.* {others}".format(table))
                ]
                for table in ("hour x", "point x", "event x")
            ]
            found.append(label_report.event_time_of(connection, "", HOUR_MS, 2 * HOUR_MS))
        with running(store) as console:
            found.append(re.findall(r"up to <time[^>]*>([^<]*)", console.ask("/now").text))
        store.close()
    return found


HONEST = []


@pytest.mark.thorough
@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.integers(0, 2 * 10**12) | st.integers(0, 4_200 * 10**9), min_size=1, max_size=50),
    st.integers(25, 400),
)
@example([4_102_444_800_000], 100)  # the year 2100
@example([*[T0] * 59, 4_102_444_800_000], 100)
@example([T0 + k * 23 * HOUR_MS for k in range(60)], 200)  # a clock that is fast
@example([0], 200)
def test_a_sensor_that_lies_about_time_changes_nothing_for_others(lies, batch):
    if not HONEST:
        HONEST.append(seen_of_others(lines_of([None]), 200))
    found = seen_of_others(lines_of(lies), batch)
    assert found == HONEST[0]
    assert found[3] == T0 + 59 * STEP_MS - HOUR_MS
    assert len(found[4]) == 1


@given(st.lists(st.integers(0, 4_200 * 10**9), min_size=1, max_size=30), st.integers(1, 30))
@settings(max_examples=6, deadline=None)
def test_what_is_known_of_clocks_is_the_same_in_any_batches_and_after_a_rebuild(lies, batch):
    lines = lines_of([T0, *lies])[:100]
    rows = []

    def feed(store, size):
        for start in range(0, len(lines), size):
            store.ingest("verdicts", lines[start : start + size])
        with store.database.read() as connection:
            rows.append([tuple(row) for row in connection.execute("SELECT * FROM sensor")])
            rows[-1].append(series.pipeline_clock(connection, ""))

    with TemporaryDirectory() as folder:
        path = Path(folder) / "review.db"
        for size in (batch, 100):
            rebuild(
                path, Review(), feed=lambda store, n=size: feed(store, n), labels=(), replace=True
            )
    assert rows[0] == rows[1]


def words_of(answer):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", answer.text))


def test_pages_say_whose_clock_runs_ahead_until_it_is_set_right(new_store):
    store = new_store()
    lines = lines_of([None])
    right = T0 + 59 * STEP_MS
    store.ingest("verdicts", lines)
    says = "WT-03: its clock is 75 years ahead, since 2025-11-26 05:30:00."
    with running(store) as console:
        assert "its clock is" not in console.ask("/now").text
        wrong = heard("WT-03", 2000, right + 75 * YEAR_MS, status=Status.CLOCK_BEGINS)
        store.ingest("verdicts", [wrong])
        found = words_of(console.ask("/now"))
        assert says in found
        assert "2100-" not in found
        set_right = heard("WT-03", 2001, right + STEP_MS, status=Status.CLOCK_ENDS)
        store.ingest("verdicts", [set_right])
        assert "its clock is" not in console.ask("/now").text


def reached_by(store, *events):
    lines = (heard(name, n, t_ms, status=status) for n, (name, t_ms, status) in enumerate(events))
    store.ingest("verdicts", list(lines))
    clock = read(store, series.pipeline_clock, "")
    return clock.now_ms, clock.ahead and clock.ahead.sensor


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_a_pipelines_time_is_that_of_sensors_whose_clocks_are_right(new_store, names):
    every = [(name, T0 + k * STEP_MS, None) for k in range(20) for name in names]
    alone = [("a", T0 + k * STEP_MS, None) for k in range(20, 300)]
    last = (every if len(names) == 3 else alone)[-1][1]
    assert reached_by(new_store(), *every, *alone) == (last, None), "two agree, or the other ended"
    wrong = [("a", T0 + 75 * YEAR_MS + k, None if k else Status.CLOCK_BEGINS) for k in range(9)]
    reached = wrong[-1][1] if names == "a" else every[-1][1]
    assert reached_by(new_store("b.db"), *every, *wrong) == (reached, None if names == "a" else "a")
    ends = ("a", every[-1][1], Status.CLOCK_ENDS)
    assert reached_by(new_store("c.db"), *every, *wrong, ends) == (every[-1][1], None)
    late = [(name, every[-1][1] - HOUR_MS, None) for name in names]
    assert reached_by(new_store("d.db"), *every, *late) == (every[-1][1], None)


def test_an_incident_does_not_last_until_the_time_of_a_clock_that_runs_ahead(new_store):
    store = new_store()
    names = ("a", "b", "c")
    events = [(name, T0 + k * STEP_MS) for k in range(20) for name in names]
    events.append(("c", T0 + 75 * YEAR_MS))
    lines = []
    for n, (name, t_ms) in enumerate(events):
        status = Status.CLOCK_BEGINS if t_ms > T0 + YEAR_MS else None
        one = msgspec.json.decode(heard(name, n, t_ms, status=status))
        lines.append(msgspec.json.encode(one | {"stream_key": "hub"}))
    store.ingest("verdicts", lines)
    opened = msgspec.structs.replace(
        incident(stream="hub"), sensors=names, onset_ms=T0, opened_ms=T0, changed_ms=T0
    )
    assert read(store, readings.stretch, opened) == (T0, T0 + 19 * STEP_MS)


def test_two_hours_of_a_wrong_clock_leave_the_history_of_its_own_sensor(new_store):
    store = new_store()
    right = [heard("a", k, T0 + k * HOUR_MS) for k in range(100)]
    wrong = [heard("a", 100 + k, T0 + 75 * YEAR_MS + k * HOUR_MS) for k in range(5)]
    store.ingest("verdicts", [*right, *wrong])
    with store.database.write() as connection:
        series.forget(connection)
        found = connection.execute("SELECT sum(normal + anomaly) FROM hour WHERE t_ms >= 0")
        assert found.fetchone()[0] == 105


def test_hours_are_the_sums_of_their_verdicts(new_store):
    store = new_store()
    verdicts = []
    for number in range(300):
        at = number * 600_000
        one = item(number).verdict
        label, reason = (
            (Label.REJECTED, Reason.AMBIGUOUS) if number % 7 == 0 else (Label.NORMAL, None)
        )
        verdicts.append(msgspec.structs.replace(one, event_time_ms=at, label=label, reason=reason))
    for start in range(0, 300, 35):
        store.add([], verdicts[start : start + 35])
    store.add([], verdicts)  # again: nothing is counted twice
    rejected = [sum(n % 7 == 0 for n in range(6 * hour, 6 * hour + 6)) for hour in range(50)]
    assert rows(store, "SELECT t_ms, normal, rejected FROM hour ORDER BY t_ms") == [
        (hour * HOUR_MS, 6 - wanted, wanted) for hour, wanted in enumerate(rejected)
    ]


def test_forgotten_hours_leave_their_sum_and_no_row_of_their_own(new_store):
    store = new_store()
    sums = "SELECT sum(normal), sum(rejected), (SELECT count(*) FROM hour) FROM hour"
    seen = []
    for day in range(8):
        verdicts = [item(24 * day + h, t_s=3600 * (24 * day + h)).verdict for h in range(24)]
        store.add([], verdicts)
        for _ in range(2):  # forgetting twice adds nothing up twice
            with store.database.write() as connection:
                series.forget(connection, keep_hours=48)
        seen += rows(store, sums)
    assert [one[1] for one in seen] == [24 * (day + 1) for day in range(8)]
    assert {one[2] for one in seen[3:]} == {49}, "two days and the sum"
    assert read(store, quality).accepted_normal.events == 0
    first = (8 * 24 - 48) * HOUR_MS
    assert rows(store, "SELECT min(t_ms) FROM hour WHERE t_ms >= 0") == [(first,)]


def test_what_is_counted_since_a_forgotten_hour_is_counted_since_the_first_that_is_kept(new_store):
    store = new_store(settle_s=0, gap_events=0)
    accepted = [item(h, t_s=3600 * h, why="audit").verdict for h in range(72)]
    store.add([item(100 + h, t_s=3600 * h + 1) for h in (0, 71)], accepted)
    before, every = read(store, quality, since_ms=HOUR_MS), read(store, quality)
    assert (before.accepted_normal.events, before.rejected.events) == (71, 1)
    with store.database.write() as connection:
        series.forget(connection, keep_hours=24)
    after = read(store, quality, since_ms=HOUR_MS)
    assert read(store, quality) == every, "totals over all time remain"
    assert (after.accepted_normal.events, after.rejected.events) == (24, 1)


@pytest.mark.thorough
def test_a_long_queue_comes_by_the_page(new_store):
    store = new_store(settle_s=0, gap_events=0)
    store.add([item(k, t_s=100 * k) for k in range(430)])
    shown, address, pages = [], "/queue", 0
    with running(store) as console:
        while address:
            text, pages = console.ask(address).text, pages + 1
            shown += re.findall(r'<tr[^>]* data-id="([^"]*)"', text)
            found = re.search(r'rel="next" href="([^"]*)"', text)
            address = found and html.unescape(found[1])
        rows = console.ask("/queue/rows?from=400").text
    assert (len(shown), len(set(shown)), pages) == (430, 430, 5)
    assert rows.count("data-id=") == 30
