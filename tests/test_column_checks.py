"""What a sample of columns is suspected of, and what it is not."""

import math
import random

import pytest

from rejex_stream.tables.column_checks import (
    CHECKS,
    carry_needed,
    check_columns,
    is_key,
    time_doubt,
)
from rejex_stream.tables.columns import Sample
from rejex_stream.tables.order import TimeOrder

N = 600
NAN = math.nan
RNG = random.Random(7)
NOISE = [round(20 + RNG.gauss(0, 0.5), 2) for _ in range(N)]
WALK = [round(50 + 20 * math.sin(i / 40) + NOISE[i] - 20, 1) for i in range(N)]
RAMP = [50 + round(20 * math.sin(i / 60)) for i in range(N)]


def suspected(kind, values, **more):
    sample = Sample(numbers={"x": [float(x) for x in values]}, **more)
    return [found.value or found.seen for found in check_columns(sample, kind)]


COUNTERS = {
    "row numbers": range(94_554, 94_554 + N), "by two": range(0, 2 * N, 2),
    "a byte that wraps": [i % 256 for i in range(N)],
    "with records lost": [i + i // 7 for i in range(N)],
    "restarted": [i if i < 250 else i - 250 for i in range(N)],
    "milliseconds since start": [i * 100 + i % 7 for i in range(N)],
    "hour of the day": [i // 4 % 24 for i in range(N)],
    "minute of the hour": [i * 10 % 60 for i in range(N)],
    "hhmm": [i // 12 % 24 * 100 + i * 5 % 60 for i in range(N)],
    "day of the year": [61 + i // 96 for i in range(N)],
    "energy with rests": [round(1000 + 0.1 * sum(k % 24 < 9 for k in range(i)), 1)
                          for i in range(N)],
    "count down": range(5000, 5000 - N, -1),
    "two per cent out of order": [i if i % 50 else i - 3 for i in range(N)],
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTERS)
def test_a_number_that_only_counts_is_suspected(name):
    assert suspected("counter", COUNTERS[name])


COOLING = [round(90 - i / 8 + RNG.gauss(0, 1), 1) for i in range(N)]


@pytest.mark.parametrize("values", [NOISE, WALK, RAMP, COOLING, [i // 50 % 2 for i in range(N)]])
def test_a_measurement_is_no_counter(values):
    assert not suspected("counter", values)


def test_a_counter_is_one_of_each_series():
    values, series = [], []
    for i in range(N):
        values += [500 + i, 90_000 + i]
        series += ["a", "b"]
    assert suspected("counter", values, series=series)


@pytest.mark.parametrize(
    "value", [-999, 9999, -999.9, -7999, 65535, -32768, 2147483647, 99999, -9999.9, 3.4e38, -200]
)
def test_a_value_that_stands_for_none_is_suspected(value):
    values = [value if i % 13 == 5 else x for i, x in enumerate(NOISE)]
    assert suspected("sentinel", values) == [f"{value:.15g}"]


@pytest.mark.parametrize("values", [
    NOISE,
    [x + 60 if 100 <= i < 120 else x for i, x in enumerate(NOISE)],  # a fault
    [60.0 if 100 <= i < 120 else x for i, x in enumerate(NOISE)],  # stuck at a limit, once
    [0.0 if i // 100 % 2 else x for i, x in enumerate(NOISE)],  # a pump that rests
    [99.0 + (i % 10) / 10 for i in range(N)],
    [1.0 if i % 50 == 7 else {3: 0.4, 9: 0.6}.get(i, 0.5) for i in range(N)],  # rests, mostly
])  # fmt: skip
def test_a_value_that_was_measured_is_not(values):
    assert not suspected("sentinel", values)


def test_a_sparse_channel_is_suspected_and_one_with_gaps_is_not():
    assert suspected("sparse", [x if i % 60 == 0 else NAN for i, x in enumerate(NOISE)])
    assert not suspected("sparse", [x if i % 60 else NAN for i, x in enumerate(NOISE)])


def test_channels_that_report_by_turns_need_a_carry():
    nan_rows = {f"c{k}": [x if i % 3 == k else NAN for i, x in enumerate(NOISE)] for k in range(3)}
    assert carry_needed(Sample(numbers=nan_rows), list(nan_rows)) == 2
    assert carry_needed(Sample(numbers={"c": NOISE}), ["c"]) == 0


TIMES = [i * 60_000 for i in range(N)]


@pytest.mark.parametrize(("cells", "moments", "strong", "right"), [
    ([str(x) for x in RAMP], TIMES, True, False),  # a valve's position
    ([str(x) for x in RAMP], TIMES, False, False),
    (["ON" if i // 40 % 2 else "OFF" for i in range(N)], TIMES, True, False),
    (["1" if i // 40 % 2 else "0" for i in range(N)], TIMES, True, False),
    ([f"B{i // 50}" for i in range(N)], TIMES, False, False),  # a batch
    (["a"] * N, TIMES, True, False),
    ([f"m{i % 4}" for i in range(N)], [i // 4 * 60_000 for i in range(N)], False, True),
    ([str(i % 4 + 1) for i in range(N)], [i // 4 * 60_000 for i in range(N)], False, True),
    ([f"m{i % 4}" for i in range(N)], TIMES, True, True),
    ([str(i // 100) for i in range(N)], [i % 100 * 1000 for i in range(N)], True, True),
])  # fmt: skip
def test_a_key_looks_like_keys(cells, moments, strong, right):
    assert is_key(cells, moments, strong=strong) is right


def test_types_of_record_are_parts_of():
    kinds = ["reading" if i % 5 else "heartbeat" for i in range(N)]
    temp = [x if kind == "reading" else NAN for kind, x in zip(kinds, NOISE, strict=True)]
    sample = Sample(numbers={"temp": temp}, cells={"type": kinds, "m": ["a", "b"] * (N // 2)})
    assert [(s.column, s.value) for s in check_columns(sample, "mixture")] == [("type", "reading")]


def test_thousands_that_look_like_decimals_are_a_doubt():
    cells = ["987", "1.012", "1.530", "845"] * 20
    sample = Sample(numbers={}, cells={"x": cells, "y": ["1.5", "2", "2.25", "7"] * 20})
    assert [s.column for s in check_columns(sample, "decimal")] == ["x"]


NOW = 1_750_000_000_000


@pytest.mark.parametrize(("name", "first", "unit", "odd"), [
    ("timestamp", NOW - 10**9, "ms", False),
    ("t", 0, "s", False),  # since the start of a trial
    ("time_ms", 0, "s", True),
    ("time_ms", 0, "ms", False),
    ("timestamp_ns", NOW, "s", True),
    ("time", NOW + 10**9, "s", True),
    ("time", 190_000_000_000, "s", True),
])  # fmt: skip
def test_times_that_nobody_lived_through_are_a_doubt(name, first, unit, odd):
    assert bool(time_doubt(name, [first, first + 60_000], unit, NOW)) is odd


def test_every_suspicion_names_what_overrules_it():
    for entry in CHECKS.values():
        assert "--" in entry.option or "init" in entry.option
        assert "input." in entry.setting or "[channels." in entry.setting


def test_disorder_is_counted_against_the_row_before():
    order = TimeOrder()
    for now in [*range(0, 50_000, 1000), *range(-90_000, -10_000, 1000)]:  # one step back, once
        order.add("a", now)
    assert [line for line in order.remarks() if line.startswith("disorder")] == [
        "disorder: 1 rows are older than the one before; they are judged as they come"
    ]
    order.add("a", 49_000)  # the newest of all, again, after older ones
    assert [line[:14] for line in order.remarks()][:1] == ["duplicates: 1 "]
