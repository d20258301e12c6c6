"""The monitors as a pipeline sees them: verdicts in, alarms out, state that travels."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.monitor import AlarmKind, MonitorBank, MonitorConfig, StreamMonitor
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position, Reason, Verdict
from tests.monitor_streams import (
    BAND,
    CONFIG,
    CONTAMINATION,
    TOLERANCE,
    N,
    observe_all,
    scores,
    stream,
    unranked,
    verdict,
)

# -------------------------------------------------------------------------------------- laws
some_int = st.one_of(st.integers(-5, 300), st.integers(-(2**63), 2**63))
some_float = st.floats(allow_nan=True, allow_infinity=True)
any_verdict = st.builds(
    Verdict, position=st.builds(Position, st.text(max_size=3), some_int, some_int, some_int),
    stream_key=st.sampled_from(["a", "b", "\ud800", "x\n"]), sensor=st.just("s"),
    event_time_ms=some_int, seq=st.integers(0, 2**40), label=st.sampled_from(Label),
    reason=st.none() | st.sampled_from(Reason), score=st.none() | some_float,
    rank=st.none() | some_int, ties=some_int,
    window_len=st.one_of(st.integers(-2, 220), st.just(N)), n_anomalies=some_int,
    band_lower=st.none() | some_int, band_upper=st.none() | some_int,
    model_epoch=st.none() | st.integers(0, 3),
)  # fmt: skip


@pytest.mark.thorough
@settings(max_examples=80, deadline=None)
@given(st.lists(any_verdict, max_size=40), st.sampled_from(["mid", "paper"]))
def test_no_sequence_of_verdicts_makes_a_monitor_raise(verdicts, ties):
    bank = MonitorBank(CONFIG.replace(ties=ties))
    bank.observe(verdicts)
    status = bank.status()
    unranked_events = (
        status.warm_up_events + status.unscorable_events + status.constant_window_events
    )
    assert status.events + unranked_events == len(verdicts)
    for key in bank:
        bank.stream(key).status()


def eventful():
    """Verdicts in which much happens: a start without ranks, changes, a swap, ties, a stuck end."""
    rng = np.random.default_rng(7)
    first = rng.standard_normal(3_000)
    first[2_000:2_300] += 3
    second = np.round(rng.standard_normal(4_000), 1)
    second[2_500:] += 1.5
    second[3_500:] = 0.25
    verdicts = [unranked(Reason.WARM_UP, i) for i in range(10)]
    verdicts += stream(first, first=10)
    verdicts += [unranked(Reason.UNSCORABLE, 2_810)]
    verdicts += stream(second, first=2_811, epoch=1)
    return [*verdicts, unranked(Reason.CONSTANT_WINDOW, 6_611)]


EVENTFUL = eventful()


def test_state_does_not_grow():
    monitor = StreamMonitor(CONFIG, "s")
    for i, v in enumerate(stream(scores("rounded", 30_000, 1)), 1):
        monitor.observe(v)
        if i == 10_000:
            early = len(monitor.snapshot())
    assert abs(len(monitor.snapshot()) - early) < 100


@pytest.mark.parametrize("damage", [
    lambda blob: b"", lambda blob: b"not a snapshot", lambda blob: blob[:-7],
    lambda blob: blob[:13] + bytes([99]) + blob[14:], lambda blob: blob[:14] + b"\xc1" + blob[15:],
])  # fmt: skip
def test_foreign_and_damaged_snapshots_are_refused_and_change_nothing(damage):
    monitor = StreamMonitor(CONFIG, "s")
    observe_all(monitor, EVENTFUL[:1_000])
    before = monitor.snapshot()
    with pytest.raises(CheckpointError, match="again"):
        monitor.restore(damage(before))
    assert monitor.snapshot() == before
    bank = MonitorBank(CONFIG)
    with pytest.raises(CheckpointError):
        bank.restore(damage(bank.snapshot()))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_snapshot_with_flipped_bytes_is_refused_or_harmless(data):
    blob = bytearray(FLIPPED)
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    monitor = StreamMonitor(CONFIG, "s")
    try:
        monitor.restore(bytes(blob))
    except CheckpointError:
        return
    observe_all(monitor, EVENTFUL[2_000:2_050])


def _flipped():
    monitor = StreamMonitor(CONFIG, "s")
    observe_all(monitor, EVENTFUL[:2_000])
    return monitor.snapshot()


FLIPPED = _flipped()


def test_a_snapshot_of_other_settings_or_of_another_stream_is_refused():
    blob = StreamMonitor(CONFIG, "s").snapshot()
    with pytest.raises(CheckpointError, match="another stuck_events, delta"):
        StreamMonitor(CONFIG.replace(delta=0.2, stuck_events=9), "s").restore(blob)
    with pytest.raises(CheckpointError, match="stream 's', not to 'other'"):
        StreamMonitor(CONFIG, "other").restore(blob)


def test_a_model_swap_changes_nothing_of_what_is_made_of_ranks():
    plain, swapping = StreamMonitor(CONFIG, "s"), StreamMonitor(CONFIG, "s")
    values = scores("iid", 3_000, 5)
    values[2_900:] += 3
    verdicts = stream(values)
    alarms = observe_all(plain, verdicts)
    swapped = [msgspec.structs.replace(v, model_epoch=v.seq // 400) for v in verdicts]
    again = observe_all(swapping, swapped)

    def said(pairs):
        return [(i, alarm.kind, alarm.evidence) for i, alarm in pairs if alarm.kind != "drift"]

    assert said(again) == said(alarms) != []
    assert swapping.ranks.state.rate == plain.ranks.state.rate
    assert swapping.ranks.state.health == plain.ranks.state.health
    assert swapping.status().events == 2_800
    assert swapping.status().health == "alarm"


# -------------------------------------------------------------------------------------- status
def test_the_status_says_what_was_seen():
    monitor = StreamMonitor(CONFIG, "s")
    ranks = [0, BAND.lower, BAND.upper, N, N] * 100
    monitor.observe(unranked(Reason.WARM_UP))
    monitor.observe(unranked(Reason.UNSCORABLE))
    observe_all(monitor, [verdict(rank, i) for i, rank in enumerate(ranks)])
    status = monitor.status()
    assert (status.events, status.rolling_events) == (500, 500)
    assert (status.warm_up_events, status.unscorable_events) == (1, 1)
    assert (status.rejection_rate, status.anomaly_rate, status.flagged_rate) == (0.4, 0.4, 0.6)
    assert status.theory.expected_rate == BAND.width / (N + 1)
    assert status.lower < 0.4 < status.upper
    assert status.health == "calibrating"
    assert msgspec.json.decode(msgspec.json.encode(status))["contamination"] == CONTAMINATION


def test_under_ties_the_rate_is_that_of_the_verdicts_whatever_is_drawn():
    bank = MonitorBank(CONFIG)
    for i in range(1_000):
        bank.observe([verdict(BAND.lower, i, ties=2 * BAND.width, key="ab"[i % 2])])
    for status in (bank.status(), bank.stream("a").status(), bank.stream("b").status()):
        assert (status.rejection_rate, status.anomaly_rate) == (1.0, 0.0)


def test_heavy_ties_at_the_threshold_are_warned_of():
    monitor = StreamMonitor(CONFIG, "s")
    observe_all(monitor, stream(scores("iid", 2_000, 1)))
    assert not monitor.status().tie_warning
    observe_all(monitor, stream(scores("rounded", 2_000, 1), epoch=1))
    assert monitor.status().tie_warning
    assert monitor.status().tie_mass > 0.05
    observe_all(monitor, stream(scores("iid", N + 1, 1), epoch=2))  # another model's scores
    assert monitor.status().tie_mass == 0.0


def test_windows_of_few_anomalies_say_that_they_cannot_tell():
    band = rejection_band(N, 0.02, 1.5)
    config = MonitorConfig(window=N, contamination=0.02, tolerance=1.5)
    monitor = StreamMonitor(config, "s")
    rng = np.random.default_rng(0)
    ranks = rng.integers(0, N + 1, 3_000)
    alarms = observe_all(monitor, [verdict(int(k), i, band=band) for i, k in enumerate(ranks)])
    assert alarms == []
    assert monitor.status().health == "too few rejects to tell"


# -------------------------------------------------------------------------------------- pooled
def test_a_small_change_common_to_all_streams_shows_first_in_the_pipeline():
    rng = np.random.default_rng(8)
    verdicts = []
    for key in range(10):
        values = rng.standard_normal(3_000 + N)
        values[2_500 + N :] += 0.5
        verdicts += stream(values, key=f"pump-{key}")
    verdicts.sort(key=lambda v: (v.seq, v.stream_key))
    bank = MonitorBank(CONFIG)
    alarms = [a for a in bank.observe(verdicts) if a.kind is AlarmKind.HEALTH]
    assert alarms[0].stream_key is None
    assert 2_500 <= alarms[0].seq < 2_600
    assert bank.status().health == "alarm"
    assert bank.status().events == len(verdicts)


@pytest.mark.thorough
def test_what_streams_have_in_common_raises_the_pooled_inflation_not_an_alarm():
    common = scores("autocorrelated", 4_000 + N, 21)
    rng = np.random.default_rng(22)
    verdicts = []
    for key in range(10):
        verdicts += stream(common + 0.5 * rng.standard_normal(common.size), key=f"pump-{key}")
    verdicts.sort(key=lambda v: (v.seq, v.stream_key))
    bank = MonitorBank(CONFIG)
    pooled = [a for a in bank.observe(verdicts) if a.stream_key is None]
    assert AlarmKind.HEALTH not in {a.kind for a in pooled}
    assert bank.status().inflation > 2 * bank.stream("pump-0").status().inflation


def test_a_single_stream_is_not_announced_twice():
    values = scores("iid", 3_000, 5)
    values[2_500:] += 2
    bank = MonitorBank(CONFIG)
    alarms = bank.observe(stream(values))
    assert {alarm.stream_key for alarm in alarms} == {"s"}
    assert bank.status().health == "alarm"


@pytest.mark.thorough
def test_the_pipeline_shows_the_mean_of_its_streams():
    bank = MonitorBank(CONFIG)
    small = rejection_band(100, CONTAMINATION, TOLERANCE)
    verdicts = []
    for i in range(1_000):
        verdicts.append(verdict(i % N, i, key="large"))
        verdicts.append(verdict(i % 100, i, key="small", n=100, band=small))
    bank.observe(verdicts)
    rates = [BAND.width / (N + 1), small.width / 101]
    assert bank.status().theory.expected_rate == pytest.approx(sum(rates) / 2)


def test_a_forgotten_stream_comes_back_unchanged():
    bank = MonitorBank(CONFIG)
    bank.observe(EVENTFUL[:3_000])
    before = bank.stream("s").snapshot()
    bank.forget("s")
    assert list(bank) == []
    bank.forget("never seen")
    bank.stream("s").restore(before)
    assert bank.stream("s").snapshot() == before


# ------------------------------------------------------------------------------------- config
@pytest.mark.parametrize(("setting", "value"), [
    ("window", 1), ("contamination", 0.7), ("tolerance", 0.5), ("false_alarm_events", 10),
    ("false_alarm_events", math.nan), ("delta", 0.0), ("stuck_events", -1), ("ties", "max"),
])  # fmt: skip
def test_a_setting_that_cannot_work_is_refused_with_its_value(setting, value):
    settings_ = {"window": N, "contamination": 0.1, "tolerance": 8.0, setting: value}
    with pytest.raises(ConfigError) as caught:
        MonitorConfig(**settings_)
    assert setting.split("_")[0] in str(caught.value)
    assert str(caught.value).endswith(".")
