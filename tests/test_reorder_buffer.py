"""Rows that are joined, held and put in order: one memory, under the laws."""

import dataclasses
import json
import math
import random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rejex_connectors.files.sink import lines_of

from rejex_stream.config import parse_config
from rejex_stream.config.assembly import Judging
from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping, Quality
from rejex_stream.decode.reorder_buffer import ReorderBuffer, ReorderRules
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.loop import run
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.trusted_clock import TrustedClock
from rejex_stream.types import Outcome, Partition, Position, Reading, Record, unit_change
from tests.doubles import ABORT, Crash, FakeClock, ListSink, ListSource, MemorySnapshotStore

NAMES = ("temp", "press", "speed")
WIDE_TWO = FieldMapping(("temp", "press"), sensor="m", time="t")
WIDE = FieldMapping(NAMES, sensor="m", time="t")
LONG = FieldMapping(dict.fromkeys(NAMES, "v"), sensor="m", time="t", tag="tag")
PART = dataclasses.replace(WIDE, partial=True)
SPEC = EngineSpec(
    make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20), FeatureSpec(NAMES),
    RejectionPolicy(0.1, tolerance=4), window=40,
)  # fmt: skip
T0 = 1_700_000_000_000


def rows(n: int = 240, machines: int = 3) -> list[dict[str, Any]]:
    chance = random.Random(4)
    return [
        {"m": f"m{i % machines}", "t": T0 + 1000 * (i // machines)}
        | {name: round(chance.gauss(5, 1), 3) for name in NAMES}
        for i in range(n)
    ]


def parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"m": row["m"], "t": row["t"], "tag": name, "v": row[name]} for name in NAMES]


def lines(trees: list[dict[str, Any]]) -> list[Any]:
    return [json.dumps(tree).encode() for tree in trees]


def judged(
    script: list[Any], mapping: FieldMapping, rules: ReorderRules, commits: list[str] | None = None
) -> list[Outcome]:
    """Run it to its end, however often it crashes."""
    sink, store = ListSink(commits or []), MemorySnapshotStore()
    knobs = RunSettings(
        reorder=rules, commit_every_events=7, snapshot_every_events=19, max_poll_records=5,
        commit_interval_s=0.01, snapshot_interval_s=0.01,
    )  # fmt: skip
    source, clock = ListSource(script, committed=sink.offsets), FakeClock(tick_s=0.01)
    while True:
        try:
            run(
                source, sink, store, lambda _, fits: Engine(SPEC, fits), JsonDecoder(mapping),
                settings=knobs, clock=clock, wait=clock.advance,
            )  # fmt: skip
        except Crash:
            continue
        return sink.outcomes


def verdicts(outcomes: list[Outcome]) -> list[tuple[Any, ...]]:
    found = [o.verdict for o in outcomes if o.verdict is not None]
    return [(v.stream_key, v.event_time_ms, v.seq, v.score, v.reason) for v in found]


JOIN = ReorderRules(step_ms=1000)


@pytest.mark.thorough
def test_long_records_that_all_come_are_judged_as_wide_ones_are() -> None:
    wide = rows()
    long = [part for row in wide for part in parts(row)]
    assert verdicts(judged(lines(long), LONG, JOIN)) == verdicts(
        judged(lines(wide), WIDE, ReorderRules())
    )


def test_one_outcome_a_record_and_only_whole_rows_have_verdicts() -> None:
    long = [part for row in rows(30) for part in parts(row)]
    outcomes = judged(lines(long), LONG, JOIN)
    assert len(outcomes) == len(long)
    stages = [o.invalid.stage if o.invalid else "judged" for o in outcomes]
    assert stages == ["joined", "joined", "judged"] * 30
    # An event of a row is that of its last record.
    assert [o.verdict.position.offset for o in outcomes if o.verdict] == list(range(2, 90, 3))


def test_a_row_ends_with_its_step_and_has_the_last_values_of_what_did_not_come() -> None:
    script = [
        {"m": "a", "t": T0, "tag": "temp", "v": 1}, {"m": "a", "t": T0, "tag": "press", "v": 2},
        {"m": "a", "t": T0, "tag": "speed", "v": 3}, {"m": "a", "t": T0 + 1000, "tag": "temp",
        "v": 4}, {"m": "a", "t": T0 + 2000, "tag": "temp", "v": 5},
    ]  # fmt: skip
    assert rows_of(script, LONG, JOIN) == [(T0, (1, 2, 3)), (T0 + 1000, (4, 2, 3))]


def test_a_value_that_is_too_old_is_missing() -> None:
    script = [
        {"m": "a", "t": T0, "temp": 1, "press": 2, "speed": 3},
        {"m": "a", "t": T0 + 5000, "temp": 4},
        {"m": "a", "t": T0 + 6001, "temp": 5, "press": None},
    ]
    rules = ReorderRules(hold=True, max_age_ms=6000)
    found = rows_of(script, PART, rules)
    assert [time for time, _ in found] == [T0, T0 + 5000, T0 + 6001]
    assert found[1][1] == (4, 2, 3)
    assert found[2][1][0] == 5
    assert math.isnan(found[2][1][1]), "null is missing"
    assert math.isnan(found[2][1][2]), "too old"


def test_a_tag_that_nobody_wants_and_a_heartbeat_are_ignored() -> None:
    outcomes = judged(lines([{"m": "a", "t": T0, "tag": "mode", "v": "RUN"}]), LONG, JOIN)
    assert outcomes[0].invalid is not None
    assert outcomes[0].invalid.stage == "ignored"
    outcomes = judged(lines([{"m": "a", "t": T0, "tag": "temperature", "v": 1}]), LONG, JOIN)
    assert outcomes[0].invalid is not None
    assert "the tag 'temperature' is none of the channels: did you mean 'temp'?" in str(
        outcomes[0].invalid.reason
    )
    outcomes = judged(lines([{"m": "a", "t": T0, "up": 3}]), PART, ReorderRules(hold=True))
    assert outcomes[0].invalid is not None
    assert outcomes[0].invalid.stage == "ignored"


def rows_of(
    script: list[dict[str, Any]], mapping: FieldMapping, rules: ReorderRules
) -> list[tuple[int, tuple[float, ...]]]:
    reorder, decoder = ReorderBuffer(rules), JsonDecoder(mapping)
    found = []
    for i, line in enumerate(lines(script)):
        record = Record(Position("in", 0, i), None, line)
        for _, item in reorder.add(record, decoder.decode(record)):
            if isinstance(item, Reading):
                found.append((item.event_time_ms, item.values))
    return found


@pytest.mark.thorough
def test_late_events_are_judged_in_order_where_they_are_waited_for() -> None:
    ordered = rows(300)
    late = list(ordered)
    chance = random.Random(9)
    late.sort(key=lambda row: row["t"] + chance.uniform(0, 4500))
    assert late != ordered
    rules = ReorderRules(reorder_ms=5000)
    by_sensor: dict[str, list[int]] = {}
    for key, time_ms, *_ in verdicts(judged(lines(late), WIDE, rules)):
        by_sensor.setdefault(key, []).append(time_ms)
    assert all(times == sorted(times) for times in by_sensor.values())
    assert sum(map(len, by_sensor.values())) > 270, "only the last ones still wait"


def test_so_many_events_wait_at_most_and_the_earliest_goes_first() -> None:
    decoder, order = JsonDecoder(WIDE), []
    with patch("rejex_stream.decode.reorder_buffer._MAX_WAITING", 3):
        reorder = ReorderBuffer(ReorderRules(reorder_ms=10**9))
        for i, t in enumerate((5, 3, 9, 1, 7)):
            value = json.dumps({**rows(1)[0], "t": T0 + t}).encode()
            record = Record(Position("in", 0, i), None, value)
            for _, item in reorder.add(record, decoder.decode(record)):
                order += [item.event_time_ms - T0] if isinstance(item, Reading) else []
    assert order == [1, 3]


def some(row: dict[str, Any], i: int) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k in ("m", "t") or (i * 7 + len(k)) % 3}


COUNTING = ReorderRules(counters=(1,))


def counted(n: int = 160) -> list[dict[str, Any]]:
    """Rows of two machines with a total that rests and begins anew, at times that repeat."""
    chance, totals, made = random.Random(8), {"m0": 900.0, "m1": 5.0}, []
    for i in range(n):
        m, step = f"m{i % 2}", chance.choice((0, 0, 1, 3))
        totals[m] = 0.0 if i in {60, 90} else totals[m] + step
        t = T0 + 1000 * (i // 2 - (i in {40, 41}))  # once a time stands still
        made.append({"m": m, "t": t, "temp": chance.gauss(5, 1), "press": totals[m], "speed": 1.0})
    return made


LATE = sorted(rows(120), key=lambda row: row["t"] + row["t"] // 7 % 2900)
GAPS = [part for row in rows(45) for part in parts(row)[: 3 - row["t"] // 1000 % 2]]
SCRIPTS = {
    "joined": (LONG, JOIN, [part for row in rows(45) for part in parts(row)]), "held": (PART,
    ReorderRules(hold=True, max_age_ms=9000), [some(row, i) for i, row in enumerate(rows(120))]),
    "in order": (WIDE, ReorderRules(reorder_ms=3000), LATE),
    "counters": (WIDE, COUNTING, counted(90)), "all": (LONG,
    ReorderRules(step_ms=1000, reorder_ms=2000, counters=(1,)), GAPS),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCRIPTS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_crash_anywhere_gives_the_same_outcomes(name: str, data: st.DataObject) -> None:
    mapping, rules, trees = SCRIPTS[name]
    script = lines(trees)
    plain = judged(script, mapping, rules)
    for at in data.draw(st.lists(st.integers(0, len(script)), max_size=4)):
        script.insert(at, ABORT)
    commits = data.draw(
        st.lists(st.sampled_from(["ok", "fail", "ambiguous", "crash", "crash after"]), max_size=10)
    )
    crashed = judged(script, mapping, rules, commits)
    assert [told(one) for one in crashed] == [told(one) for one in plain]


def told(outcome: Outcome) -> tuple[Any, ...]:
    """What is written of an outcome; of a record that waited its value is not kept."""
    return (outcome.record[:2], *outcome[1:])


INCIDENT = """
[pipeline]
name = "plant"
[input]
path = "feed.jsonl"
time = "t"
sensor = "m"
channels = ["temp", "press"]
reorder_s = 4
[detector]
name = "Mahalanobis"
[rejection]
contamination = 0.05
tolerance = 5
window = 150
[refit]
refit_every_events = 150
"""


@pytest.mark.thorough
def test_what_becomes_of_an_incident_is_written_once_however_records_come() -> None:
    """A record that waits has two outcomes, and only that of its event says it."""
    config, problems = parse_config(INCIDENT)
    assert config is not None, problems
    chance = random.Random(1)
    fault = [30 * (600 < i < 800 and i % 2 == 0) for i in range(1000)]
    trees = [
        {"m": f"m{i % 2}", "t": T0 + 1000 * i}
        | {name: chance.gauss(5, 1) + fault[i] for name in ("temp", "press")}
        for i in range(1000)
    ]
    script = [
        Record(Position("feed.jsonl", 0, i), None, line) for i, line in enumerate(lines(trees))
    ]

    def written(cut: int) -> list[Any]:
        state = Judging(config).state(Partition("feed.jsonl", 0), JsonDecoder(WIDE_TWO))
        parts = [script[i : i + cut] for i in range(0, len(script), cut)]
        return [line for part in parts for line in lines_of(state.process(part))]

    whole = written(len(script))
    changes = [line for role, line in whole if role == "incidents"]
    assert len(changes) >= 2
    assert len(changes) == len(set(changes))
    assert written(1) == written(13) == whole


# ------------------------------------------------------------------------------ whose clock
@given(st.lists(st.integers(0, 4 * 10**12), min_size=1, max_size=200))
def test_one_sensor_that_lies_moves_no_clock(lies: list[int]) -> None:
    honest, deceived = TrustedClock(), TrustedClock()
    for i in range(400):
        sensor = f"s{i % 3}"
        now = honest.advance(sensor, T0 + 1000 * i)
        if i > 10:
            deceived.advance("liar", lies[i % len(lies)])
        assert deceived.advance(sensor, T0 + 1000 * i) is not None or now is None
        if now is not None and deceived.now_ms is not None:
            assert abs(deceived.now_ms - now) <= 1000


HORIZON = 24 * 86_400_000


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([0, T0, T0 + HORIZON, 4 * 10**12])),
        min_size=1, max_size=12,
    ),
    st.integers(0, 40),
)  # fmt: skip
def test_a_liar_who_is_alone_for_a_while_is_contradicted_by_two_others(
    lies: list[tuple[int, int]], crash: int
) -> None:
    """Alone is who is first, or who speaks so often that others are not recent any more."""
    clock = TrustedClock()
    with patch("rejex_stream.trusted_clock._RECENT", 20):
        for i in range(40):
            count, at = lies[i % len(lies)]
            for _ in range(count):
                clock.advance("liar", at)
            times = [T0 + 1000 * (3 * i + k) for k in range(3)]
            for k, time_ms in enumerate(times):
                clock.advance(f"s{k}", time_ms)
            assert clock.now_ms is not None
            assert times[1] <= clock.now_ms <= times[2] + 86_400_000
            if i == crash:
                state, clock = clock.state(), TrustedClock()
                clock.restore(state)


def test_who_is_left_of_two_takes_the_clock_back_from_who_had_it_alone() -> None:
    clock = TrustedClock()
    with patch("rejex_stream.trusted_clock._RECENT", 20):
        for i in range(8):
            clock.advance("liar", T0 + 400 * 86_400_000 + i)
        for i in range(40):
            clock.advance("a", T0 + i)
        assert clock.now_ms is not None
        assert T0 <= clock.now_ms <= T0 + 40
        # But nobody takes it back from themselves: that would be paid for each time.
        for i in range(40):
            clock.advance("a", T0 + 400 * 86_400_000 + i)
        for i in range(40):
            clock.advance("a", T0 + i)
        assert clock.now_ms >= T0 + 400 * 86_400_000


@pytest.mark.parametrize(
    ("leaders", "others"),
    [
        ("l" * 8, [("a", T0), ("a", T0 + 1), ("a", T0 + 2)]),
        ("l" * 8, [("a", T0), ("b", T0 - 3 * 86_400_000)]),
        ("l" * 8, [("a", 5), ("b", 6)]),
        ("lm", [("a", T0), ("b", T0)]),
    ],
    ids=["one alone", "two that disagree", "times before 1990", "who two have vouched for"],
)
def test_what_takes_no_clock_back(leaders: str, others: list[tuple[str, int]]) -> None:
    clock, far = TrustedClock(), T0 + 400 * 86_400_000
    for sensor in leaders:
        clock.advance(sensor, far)
    assert clock.now_ms == far
    for sensor, time_ms in others:
        clock.advance(sensor, time_ms)
    assert clock.now_ms == far


def test_there_the_guarantee_ends_two_that_are_ahead_together_are_believed() -> None:
    clock = TrustedClock()
    for i in range(100):
        clock.advance(f"s{i % 3}", T0 + i)
    clock.advance("liar", 4 * 10**12)
    assert clock.now_ms is not None
    assert clock.now_ms < T0 + 100
    clock.advance("another", 3 * 10**12)
    assert clock.now_ms < T0 + 100, "they do not agree"
    clock.advance("a third", 4 * 10**12 - 86_400_000)
    assert clock.now_ms == 4 * 10**12 - 86_400_000


def test_a_single_sensor_is_believed_after_some_that_agree() -> None:
    clock = TrustedClock()
    for i in range(100):
        clock.advance("a", T0 + 1000 * i)
    before = clock.now_ms
    assert before == T0 + 92_000
    clock.advance("a", T0 + 400 * 86_400_000)
    assert clock.now_ms == before + 1000  # seven that agree and one that is ahead
    for i in range(8):
        clock.advance("a", T0 + 400 * 86_400_000 + i)
    assert clock.now_ms == T0 + 400 * 86_400_000
    again = TrustedClock()
    again.restore(clock.state())
    assert again.advance("a", T0) == clock.advance("a", T0)
    assert again.state() == clock.state()


def test_a_counter_is_read_as_its_rise_an_hour() -> None:
    rises: dict[str, list[float]] = {"m0": [], "m1": []}
    last: dict[str, dict[str, Any]] = {}
    expected = list[float]()
    for row in counted():
        before, seen = last.get(row["m"], row), rises[row["m"]]
        hours, rise = (row["t"] - before["t"]) / 3.6e6, row["press"] - before["press"]
        seen.append(rise / hours if hours > 0 and rise >= 0 else (seen or [math.nan])[-1])
        expected.append(seen[-1])
        last[row["m"]] = row
    found = [values[1] for _, values in rows_of(counted(), WIDE, COUNTING)]
    assert [math.isnan(rise) for rise in found[:3]] == [True, True, False]
    assert found[2:] == pytest.approx(expected[2:])


@pytest.mark.parametrize("cut", range(60, 66))
@pytest.mark.parametrize("reorder_ms", [0, 2000])
def test_another_unit_is_known_through_a_restart_while_its_row_is_under_way(
    cut: int, reorder_ms: int
) -> None:
    quality = Quality({"temp": "u", "press": "u"}, ("C", "bar"), {"temp": "C", "press": "bar"})
    decoder = JsonDecoder(dataclasses.replace(
        FieldMapping(dict.fromkeys(NAMES[:2], "v"), sensor="m", time="t", tag="tag"),
        quality=quality,
    ))  # fmt: skip
    script = [{"m": "a", "t": T0 + 1000 * (i // 2), "tag": NAMES[i % 2], "v": i + 0.5,
               "u": "bar" if i % 2 else "CF"[i == 60]} for i in range(90)]  # fmt: skip
    reorder = ReorderBuffer(rules := ReorderRules(step_ms=1000, reorder_ms=reorder_ms))
    found = list[tuple[object, ...]]()
    for i, line in enumerate(lines(script)):
        record = Record(Position("in", 0, i), None, line)
        for _, item in reorder.add(record, decoder.decode(record)):
            if isinstance(item, Reading):
                found.append(tuple(unit_change(x) or x for x in item.values))
        if i == cut:
            kept, reorder = msgspec.msgpack.encode(reorder.state()), ReorderBuffer(rules)
            reorder.restore(msgspec.msgpack.decode(kept))
    assert [row for row in found if ("C", "F") in row] == [(("C", "F"), 61.5)]


def test_a_counter_s_rise_holds_until_its_next_value() -> None:
    script = [{"m": "a", "t": T0 + 900_000 * i, **({"temp": i} if i % 2 else {"press": 7 * i})}
              for i in range(6)]  # fmt: skip
    found = rows_of(script, PART, ReorderRules(hold=True, counters=(1,)))
    assert [values[1] for _, values in found[2:]] == [28, 28, 28, 28]
