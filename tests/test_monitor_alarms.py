"""Each alarm on its own scenario, and none where nothing is wrong."""

import math

import msgspec
import numpy as np
import pytest

from rejex_stream.monitor import AlarmKind, Alternative, MonitorBank, StreamMonitor
from rejex_stream.monitor.alarm import ActiveAlarms
from rejex_stream.readable import percent
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position, Reason, Status
from tests.monitor_streams import (
    BAND,
    CONFIG,
    CONTAMINATION,
    TOLERANCE,
    N,
    kinds,
    observe_all,
    scores,
    stream,
    unranked,
    verdict,
)


# ------------------------------------------------------------------- nothing wrong, no alarm
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["iid", "autocorrelated", "seasonal", "rounded"])
def test_nothing_is_raised_where_nothing_is_wrong(kind):
    monitor = StreamMonitor(CONFIG, "s")
    alarms = observe_all(monitor, stream(scores(kind, 25_000, 11)))
    if kind == "autocorrelated":  # twice the plan does happen there: a fact
        alarms = [pair for pair in alarms if pair[1].kind is not AlarmKind.REJECTION_RATE]
    assert alarms == []
    status = monitor.status()
    assert status.health in {"ok", "too autocorrelated to tell"}
    assert (kind == "iid") <= (status.health == "ok")
    assert status.rejection_rate == pytest.approx(status.theory.expected_rate, rel=0.35)


def test_the_window_may_fill_without_an_alarm():
    rng = np.random.default_rng(2)
    monitor = StreamMonitor(CONFIG, "s")
    alarms = []
    for i in range(3_000):
        n = min(N, 60 + i)
        band = rejection_band(n, CONTAMINATION, TOLERANCE)
        v = verdict(int(rng.integers(0, n + 1)), i, n=n, band=band, score=rng.random())
        alarms += monitor.observe(v)
    assert alarms == []
    assert monitor.status().theory.expected_rate == BAND.width / (N + 1)


# ---------------------------------------------------------- each alarm on its own scenario
def changed(kind, how, seed=3):
    values = scores(kind, 6_000 + N, seed)
    after = values[4_000 + N :]
    values[4_000 + N :] = how(after, np.arange(after.size))
    monitor = StreamMonitor(CONFIG, "s")
    alarms = observe_all(monitor, stream(values))
    assert all(i >= 4_000 for i, _ in alarms)
    return {alarm.kind: (i - 4_000, alarm) for i, alarm in reversed(alarms)}


def test_scores_one_sd_higher_alarm_health_within_a_window():
    delay, alarm = changed("iid", lambda x, t: x + 1)[AlarmKind.HEALTH]
    assert delay < N
    assert alarm.alternative in {Alternative.MORE_REJECTS, Alternative.MORE_ANOMALIES}
    assert alarm.guarantee.startswith("about one false alarm per 1,000,000 events")
    assert alarm.evidence >= alarm.threshold == pytest.approx(math.log(1e6))
    assert (alarm.stream_key, alarm.seq) == ("s", 4_000 + delay)
    assert alarm.position == Position("scores", 0, alarm.seq)


@pytest.mark.parametrize(("ranks", "alternatives"), [
    (range(BAND.lower), {Alternative.FEWER_REJECTS, Alternative.FEWER_ANOMALIES}),
    ([*range(BAND.lower), N, N, N] * 3, {Alternative.FEWER_REJECTS}),
    ([*range(BAND.lower), *[BAND.lower] * 15], {Alternative.FEWER_ANOMALIES}),
    ([*range(BAND.lower), *[BAND.lower] * 100], {Alternative.MORE_REJECTS}),
    ([*range(BAND.lower), *[N] * 60], {Alternative.MORE_ANOMALIES}),
])  # fmt: skip
def test_health_names_the_direction_of_a_lasting_change(ranks, alternatives):
    rng = np.random.default_rng(4)
    monitor = StreamMonitor(CONFIG, "s")
    usual = [verdict(int(k), i) for i, k in enumerate(rng.integers(0, N + 1, 3_000))]
    assert observe_all(monitor, usual) == []
    after = [verdict(int(k), 3_000 + i) for i, k in enumerate(rng.choice(list(ranks), 2_000))]
    health = [a for _, a in observe_all(monitor, after) if a.kind is AlarmKind.HEALTH]
    assert health[0].alternative in alternatives


def test_a_doubled_rejection_rate_is_named_and_ends():
    rng = np.random.default_rng(4)
    band_ranks = np.arange(BAND.lower, BAND.upper + 1)
    ranks = rng.integers(0, N + 1, 6_000)
    for i in range(2_000, 3_000):  # two and a half times as often in the band
        if rng.random() < 1.5 * BAND.width / (N + 1):
            ranks[i] = rng.choice(band_ranks)
    monitor = StreamMonitor(CONFIG, "s")
    alarms = observe_all(monitor, [verdict(int(k), i) for i, k in enumerate(ranks[:3_000])])
    by_kind = {alarm.kind: (i, alarm) for i, alarm in reversed(alarms)}
    assert kinds(alarms) >= {AlarmKind.HEALTH, AlarmKind.REJECTION_RATE}
    i, alarm = by_kind[AlarmKind.REJECTION_RATE]
    assert 2_000 < i < 2_000 + 4 * N
    assert alarm.guarantee.startswith("heuristic")
    assert alarm.evidence > 2 * monitor.status().theory.expected_rate
    assert by_kind[AlarmKind.HEALTH][1].alternative is Alternative.MORE_REJECTS
    assert alarm.message.startswith(
        f"{percent(alarm.evidence, 1)} of the last 200 events were rejected;"
    )
    # Of what the budget withholds it is said that it went to nobody.
    given = [
        msgspec.structs.replace(one, withheld=at % 3 == 0 and one.label is Label.REJECTED)
        for at, one in enumerate(verdict(int(k), i) for i, k in enumerate(ranks[: i + 1]))
    ]
    went = sum(one.label is Label.REJECTED and not one.withheld for one in given[-N:]) / N
    short = StreamMonitor(CONFIG, "s")
    (same,) = [a for _, a in observe_all(short, given) if a.kind is AlarmKind.REJECTION_RATE]
    assert same.evidence == alarm.evidence, "the law is of ranks"
    assert same.message.startswith(
        f"{percent(went, 1)} of the last 200 events were rejected, "
        f"{percent(alarm.evidence - went, 1)} withheld without credit of the budget; the theory"
    )
    plain = StreamMonitor(CONFIG, "s")
    observe_all(plain, [msgspec.structs.replace(one, withheld=False) for one in given])
    assert short.status().rejection_rate == plain.status().rejection_rate
    assert AlarmKind.REJECTION_RATE in {a.kind for a in monitor.status().active_alarms}
    observe_all(monitor, [verdict(int(k), 3_000 + i) for i, k in enumerate(ranks[3_000:])])
    assert AlarmKind.REJECTION_RATE not in {a.kind for a in monitor.status().active_alarms}


def test_a_dead_sensor_collapses_the_rejection_rate_until_it_lives_again():
    rng = np.random.default_rng(9)
    alive = stream(scores("iid", 4_000 + N, 9))
    dead = [verdict(20 + i % 50, 4_000 + i) for i in range(4_000)]
    monitor = StreamMonitor(CONFIG, "s")
    assert observe_all(monitor, alive) == []
    found = {alarm.kind: (i, alarm) for i, alarm in observe_all(monitor, dead)}
    i, alarm = found[AlarmKind.COLLAPSE]
    assert i < CONFIG.rolling
    assert alarm.alternative is Alternative.FEWER_REJECTS
    assert found[AlarmKind.HEALTH][1].alternative in {
        Alternative.FEWER_REJECTS,
        Alternative.FEWER_ANOMALIES,
    }
    assert AlarmKind.COLLAPSE in {a.kind for a in monitor.status().active_alarms}
    observe_all(monitor, [verdict(int(k), i) for i, k in enumerate(rng.integers(0, N + 1, 1_000))])
    assert AlarmKind.COLLAPSE not in {a.kind for a in monitor.status().active_alarms}


def test_an_alarm_that_is_raised_again_stays_so_much_longer_and_is_said_once():
    active, where = ActiveAlarms("s"), verdict(1)

    def raised(now):
        return active.raise_alarm(
            where, AlarmKind.HEALTH, Alternative.MORE_REJECTS, evidence=1.0, threshold=1.0,
            unit="nats", guarantee="", message="", now=now, hold_events=100,
        )  # fmt: skip

    (alarm,) = raised(0)
    assert raised(60) == ()
    assert active.at(120) == active.at(159) == (alarm,)
    assert active.at(160) == ()
    assert len(raised(160)) == 1  # it was over: this is another one


def test_a_stuck_sensor_is_named_after_200_equal_scores():
    found = changed("iid", lambda x, t: np.full_like(x, x[0]))
    delay, alarm = found[AlarmKind.STUCK]
    assert delay == CONFIG.stuck_events - 1
    assert alarm.alternative is Alternative.REPEATED_SCORE


def test_a_constant_reference_is_a_stuck_sensor_at_once_until_scores_move():
    monitor = StreamMonitor(CONFIG, "s")
    observe_all(monitor, stream(scores("iid", 1_000, 1)))
    (alarm,) = monitor.observe(unranked(Reason.CONSTANT_WINDOW, 900))
    assert alarm.kind is AlarmKind.STUCK
    assert monitor.observe(unranked(Reason.CONSTANT_WINDOW, 901)) == ()
    monitor.observe(verdict(17, 902))
    assert monitor.status().active_alarms == ()
    assert monitor.status().constant_window_events == 2


@pytest.mark.thorough
def test_a_ramp_that_the_sliding_window_absorbs_is_drift():
    runs = [changed("iid", lambda x, t: x + np.minimum(1, t / 1_000), seed) for seed in range(10)]
    for found in runs:
        delay, alarm = found[AlarmKind.DRIFT]
        assert 0 < delay < 1_000
        assert alarm.alternative is Alternative.HIGHER_SCORES


def test_a_slow_fall_is_drift_downwards_said_once_and_active_until_twenty_windows_after_it_ends():
    monitor = StreamMonitor(CONFIG, "s")
    values = scores("iid", 40_000, 1)
    values[3_000:] -= np.minimum(8, np.arange(37_000) / 1_000)
    verdicts = stream(values)
    alarms = [a for _, a in observe_all(monitor, verdicts[:11_000]) if a.kind is AlarmKind.DRIFT]
    assert [a.alternative for a in alarms] == [Alternative.LOWER_SCORES]
    assert alarms[0] in monitor.status().active_alarms
    assert [a for _, a in observe_all(monitor, verdicts[11_000:])
            if a.kind is AlarmKind.DRIFT] == []  # fmt: skip
    assert alarms[0] not in monitor.status().active_alarms


def test_a_bank_names_what_is_active_in_its_streams_and_in_the_pipeline():
    bank = MonitorBank(CONFIG)
    constant = [unranked(Reason.CONSTANT_WINDOW, i, key="a") for i in range(3)]
    bank.observe([verdict(5, key="b"), *constant])
    (of_stream,) = bank.stream("a").status().active_alarms
    assert bank.status().active_alarms == ()
    assert bank.active_alarms() == [of_stream]


# ------------------------------------------------------------------------------ across gaps
def stuck_verdicts(first, count, *, epoch, score):
    return [verdict(120, first + i, score=score, epoch=epoch, ties=1) for i in range(count)]


def test_a_sensor_that_is_stuck_over_a_swap_is_named_after_200_equal_scores_of_both_models():
    monitor = StreamMonitor(CONFIG, "s")
    observe_all(monitor, stream(scores("iid", 1_000, 1)))
    feed = stuck_verdicts(900, 120, epoch=0, score=0.5)
    feed += stuck_verdicts(1_020, 120, epoch=1, score=-7.25)
    alarms = [(i, a) for i, a in observe_all(monitor, feed) if a.kind is AlarmKind.STUCK]
    assert [i for i, _ in alarms] == [CONFIG.stuck_events - 1]


def test_a_restored_alarm_of_a_stuck_sensor_ends_when_scores_move():
    monitor, restored = StreamMonitor(CONFIG, "s"), StreamMonitor(CONFIG, "s")
    observe_all(monitor, stuck_verdicts(0, 300, epoch=0, score=0.5))
    restored.restore(monitor.snapshot())
    assert AlarmKind.STUCK in {a.kind for a in restored.status().active_alarms}
    restored.observe(verdict(17, 301, score=0.75))
    assert AlarmKind.STUCK not in {a.kind for a in restored.status().active_alarms}


def test_what_stands_still_each_night_is_named_until_that_is_usual_and_beyond_thrice_as_long():
    feed, nights = [], {3_000: 250, 3_500: 250, 4_000: 700, 5_000: 2_200}
    for i in range(7_300):
        is_night = any(begin <= i < begin + length for begin, length in nights.items())
        feed.append(verdict(120, i, score=0.5 if is_night else i % 7 + 1.0, ties=1))
    for cut in (3_600, 4_700, 6_000):
        monitor, restored = StreamMonitor(CONFIG, "s"), StreamMonitor(CONFIG, "s")
        alarms = observe_all(monitor, feed[:cut])
        restored.restore(monitor.snapshot())
        alarms += [(cut + i, alarm) for i, alarm in observe_all(restored, feed[cut:])]
        named = [i for i, alarm in alarms if alarm.kind is AlarmKind.STUCK]
        assert named == [3_199, 3_699, 7_100], cut


def test_what_a_model_tied_and_what_it_warmed_up_on_end_with_the_next_model():
    monitor = StreamMonitor(CONFIG, "s")
    n_r = N - BAND.n_anomalies
    mixed = msgspec.structs.replace(verdict(n_r, ties=20), status=Status.WARM_UP_MIXED)
    monitor.observe(mixed)
    assert monitor.status().tie_mass == 20 / N
    assert {a.kind for a in monitor.status().active_alarms} == {AlarmKind.WARM_UP}
    monitor.observe(verdict(5, 1))
    assert monitor.status().tie_mass == 20 / N
    monitor.observe(verdict(5, 2, epoch=1))
    assert monitor.status().tie_mass == 0.0
    assert monitor.status().active_alarms == ()


def test_the_pipelines_blocks_span_the_streams_there_are():
    """Counted again where a window of blocks ends, after a restart and after a stream has gone."""
    bank = MonitorBank(CONFIG)
    for key in "abc":
        bank.observe([verdict(5, key=key)])
    restored = MonitorBank(CONFIG)
    restored.restore(bank.snapshot())
    assert restored._pooled.health.streams == bank._pooled.health.streams == 3
    restored.forget("a")
    assert restored._pooled.health.streams == 2
    for key in "bc":
        restored.forget(key)
    assert restored._pooled.health.streams == 1
