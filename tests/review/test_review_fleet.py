"""Many sensors: states that are honest, counts by the hour, and what is kept."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")

from rejex_stream.review.console import fleet
from rejex_stream.review.console.fleet import Stretch
from rejex_stream.review.queue import series
from rejex_stream.review.queue.quality import quality
from rejex_stream.review.queue.series import HOUR_MS
from rejex_stream.types import Label, Position, Reason
from tests.review.console_server import running
from tests.review.test_review_store import item

DAY = Stretch(480 * HOUR_MS, HOUR_MS, 24)


def sensors(connection):
    return connection.execute("SELECT * FROM sensor ORDER BY sensor_id").fetchall()


def counted(store, name, *, last_ms=DAY.to_ms - 1, **told):
    """A sensor with counts in one hour of the day."""
    with store.database.write() as connection:
        (one,) = connection.execute(
            "INSERT INTO sensor (stream_key, sensor, grp, last_ms) VALUES (?1,?1,?1,?2) "
            "RETURNING sensor_id",
            (name, last_ms),
        ).fetchone()
        names = ("normal", "anomaly", "rejected", "banded", "ambiguous", "expected")
        connection.execute(
            f"INSERT INTO hour (sensor_id, t_ms, {', '.join(names)}) VALUES (?,?,?,?,?,?,?,?)",
            (one, DAY.from_ms, *(told.get(name, 0) for name in names)),
        )


def counts(normal, ambiguous, expected):
    return {
        "normal": normal, "rejected": ambiguous, "banded": normal + ambiguous,
        "ambiguous": ambiguous, "expected": expected,
    }  # fmt: skip


PLANNED = counts(970, 30, 30.0)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("ok", PLANNED),
        ("ok", counts(955, 45, 30.0)),  # chance makes so many
        ("doubt", counts(950, 50, 30.0)),
        ("ok", counts(2, 17, 0.5)),
        ("anomaly", PLANNED | {"anomaly": 1}),
        ("fault", PLANNED | {"anomaly": 400}),
        ("stuck", {"normal": 10, "rejected": 90, "banded": 10, "expected": 0.3}),
        ("none", {}),
    ],
)
def test_a_state_says_what_the_counts_allow(new_store, state, told):
    store = new_store()
    counted(store, "a", **told)
    with store.database.read() as connection:
        found = fleet.states(connection, sensors(connection), DAY, ())
        (row,) = fleet.rows_of(connection, sensors(connection), DAY)
    assert list(found.values()) == [state]
    assert row.cells[0].state == state
    assert {cell.state for cell in row.cells[1:]} == {"none"}


def test_silence_a_clock_ahead_and_an_open_incident_are_said(new_store):
    store = new_store()
    counted(store, "quiet", last_ms=DAY.to_ms - 3 * HOUR_MS, **PLANNED)
    counted(store, "daily", last_ms=DAY.to_ms - 23 * HOUR_MS, normal=1, banded=1)
    counted(store, "held", **PLANNED)
    counted(store, "ahead", last_ms=DAY.to_ms + 500 * 24 * HOUR_MS, **PLANNED)
    counted(store, "well", **PLANNED)
    with store.database.read() as connection:
        found = fleet.states(connection, sensors(connection), DAY, {("", "held")})
        assert fleet.time_of(sensors(connection)) == DAY.to_ms - 1
    # Who sends once a day is not silent after 23 hours, and one clock ahead silences nobody.
    assert list(found.values()) == ["silent", "ok", "held", "ahead", "ok"]


def test_one_clock_that_runs_ahead_makes_nobodys_history_old(new_store):
    store = new_store()
    verdicts = []
    for number, name in enumerate(("s1", "s2", "s3")):
        for k in range(30):
            away = 500 * 24 * HOUR_MS if name == "s3" and k == 29 else 0
            one = item(k, sensor=name).verdict
            verdicts.append(
                msgspec.structs.replace(
                    one,
                    position=Position("feed", number, k),
                    event_time_ms=k * 600_000 + away,
                    label=Label.NORMAL,
                    reason=None,
                )
            )
    store.add([], verdicts)
    with store.database.write() as connection:
        series.forget(connection)
    with store.database.read() as connection:
        found = connection.execute("SELECT sum(normal) FROM hour WHERE t_ms >= 0").fetchone()[0]
        assert found == 90


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
    with store.database.read() as connection:
        rows = connection.execute(
            "SELECT t_ms, normal, rejected, banded, ambiguous, expected FROM hour ORDER BY t_ms"
        ).fetchall()
    rejected = [sum(n % 7 == 0 for n in range(6 * hour, 6 * hour + 6)) for hour in range(50)]
    banded = 1 if verdicts[0].band_lower is not None else 0
    for hour, (row, wanted) in enumerate(zip(rows, rejected, strict=True)):
        assert tuple(row[:3]) == (hour * HOUR_MS, 6 - wanted, wanted)
        assert row[3:5] == (6 * banded, wanted * banded)


def test_forgotten_hours_leave_their_sum_and_no_row_of_their_own(new_store):
    store = new_store()
    sums = (
        "SELECT sum(normal), sum(rejected), sum(banded), round(sum(expected), 6), "
        "(SELECT count(*) FROM hour) FROM hour"
    )
    seen = []
    for day in range(8):
        verdicts = [item(24 * day + h, t_s=3600 * (24 * day + h)).verdict for h in range(24)]
        store.add([], verdicts)
        for _ in range(2):  # forgetting twice adds nothing up twice
            with store.database.write() as connection:
                series.forget(connection, hours_ms=48 * HOUR_MS)
        with store.database.read() as connection:
            seen.append(tuple(connection.execute(sums).fetchone()))
    assert [one[1] for one in seen] == [24 * (day + 1) for day in range(8)]
    assert {one[4] for one in seen[3:]} == {51}, "two days, the two hours they end in, and the sum"
    with store.database.read() as connection:
        assert quality(connection).accepted_normal.events == 0
        first = connection.execute("SELECT min(t_ms) FROM hour WHERE t_ms >= 0").fetchone()[0]
    assert first == (8 * 24 - 2 - 48) * HOUR_MS


def test_what_is_counted_since_a_forgotten_hour_is_counted_since_the_first_that_is_kept(new_store):
    store = new_store(settle_s=0, gap_events=0)
    accepted = [item(h, t_s=3600 * h, why="audit").verdict for h in range(72)]
    store.add([item(100 + h, t_s=3600 * h + 1) for h in (0, 71)], accepted)
    with store.database.read() as connection:
        before = quality(connection, since_ms=HOUR_MS)
        every = quality(connection)
    assert (before.accepted_normal.events, before.rejected.events) == (71, 1)
    with store.database.write() as connection:
        series.forget(connection, hours_ms=24 * HOUR_MS)
    with store.database.read() as connection:
        after = quality(connection, since_ms=HOUR_MS)
        assert quality(connection) == every, "totals over all time remain"
    assert (after.accepted_normal.events, after.rejected.events) == (26, 1)


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
