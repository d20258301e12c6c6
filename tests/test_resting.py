"""Channels that rest are out of the distance, and judged by what they have never shown."""

from dataclasses import replace

import numpy as np
import pytest

from rejex_stream.cli import main
from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor.recipes import Layout
from rejex_stream.encode import decode_verdict, encode_verdict
from rejex_stream.engine import Engine
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, ChannelLimits, FalseAlarms
from rejex_stream.operate.incident_text import DisplayNames, choices, headline
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Command, CommandKind, Label, Reason
from tests.streams import of_rows, played, spec

MINUTE, DAY = 60_000, 1440
N = 200
ONCE_A_MONTH = Alarms()


def made(channels=("a", "gas"), detector="Sensor", *, alarms=ONCE_A_MONTH, **given):
    given = {"every": 400, "tolerance": 3.0} | given
    detector = make_detector(detector)
    pipeline = spec(detector, window=N, **given)
    features = FeatureSpec(channels, preset=detector.preset, carry_forward_events=1)
    return Engine(replace(pipeline, features=features, alarms=alarms), InlineExecutor(), idle={})


def feed(gas, *, step=MINUTE, seed=0, others=1):
    """Readings of channels at random, and of one that people give."""
    X = np.random.default_rng(seed).normal(size=(len(gas), others))
    return of_rows(np.column_stack([X, gas]), step_ms=step)


def awake(n, *stretches, rest=0.0):
    """Return n values at rest, but in stretches: first, stop, value."""
    gas = np.full(n, rest)
    for first, stop, value in stretches:
        gas[first:stop] = value
    return gas


def unseen(verdicts):
    return [i for i, verdict in enumerate(verdicts) if verdict.reason is Reason.UNSEEN]


def play(engine, readings):
    return played(lambda: engine, readings)


def opened(incidents):
    return [*{one.id: one for one in reversed(incidents)}.values()][::-1]  # the first of each


def test_a_gas_sensor_that_rested_is_an_anomaly_at_once_and_told_at_the_third_reading():
    verdicts, incidents = play(made(), feed(awake(1000, (800, 1000, 400.0))))
    assert unseen(verdicts) == [*range(800, 1000)]
    assert {verdict.label for verdict in verdicts[800:]} == {Label.ANOMALY}
    assert verdicts[800].severity >= np.log10(N + 1)
    assert sum(verdict.held for verdict in verdicts[800:]) > 150, "nothing of it is learnt"
    told = next(one for one in opened(incidents) if one.opened_seq >= 800)
    assert told.opened_seq == 802
    assert told.channels[0].channel == "gas"
    said = headline(told, DisplayNames())
    assert "gas 400, where it has rested at no more than 0" in said
    assert not told.passed_limit  # nobody set one
    assert all("limit" not in choice.does for choice in choices(told))


@pytest.mark.thorough
@pytest.mark.parametrize("detector", ["SeasonalSensor", "SensorEnsemble"])
def test_so_it_is_where_no_member_of_an_ensemble_scores_it(detector):
    readings = feed(awake(1000, (800, 1000, 400.0)))
    verdicts, incidents = play(made(detector=detector), readings)
    assert unseen(verdicts) == [*range(800, 1000)]
    assert 802 in [one.opened_seq for one in opened(incidents)]


def test_a_member_that_scores_the_channel_judges_it():
    rows = np.column_stack([np.random.default_rng(0).normal(size=300), np.zeros(300)])
    apart, together = (
        make_detector("Ensemble", members=["Sensor", second]).for_features(
            FeatureSpec(("a", "gas"))
        )
        for second in ("Mahalanobis", "KNN")
    )
    assert [r.channel for r in apart.fit(rows, seed=0).resting] == [1]
    assert not together.fit(rows, seed=0).resting


def test_without_its_range_it_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(Layout, "resting", lambda self, X: ())
    verdicts, _ = play(made(), feed(awake(1000, (800, 1000, 400.0))))
    assert not unseen(verdicts)
    assert sum(verdict.label is Label.NORMAL for verdict in verdicts[800:]) > 100


def test_of_two_values_as_far_again_is_ordinary_and_beyond_it_is_unseen():
    level = 45.0 + (np.random.default_rng(1).random(2000) < 0.3)
    level[700:710], level[800:810], level[1500:1510] = 47.0, 43.9, 90.0
    verdicts, incidents = play(made(guard=0.9), feed(level))
    assert unseen(verdicts) == [*range(800, 810), *range(1500, 1510)]
    assert [one.opened_seq for one in opened(incidents) if one.limits] == [802, 1502]


def test_a_channel_that_is_alone_and_rests_is_judged_as_well():
    gas = awake(1000, (800, 1000, 400.0))
    readings = [reading._replace(values=reading.values[1:]) for reading in feed(gas)]
    verdicts, incidents = play(made(("gas",)), readings)
    assert unseen(verdicts) == [*range(800, 1000)]
    assert opened(incidents)[-1].opened_seq == 802


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [1, 7, 1500])
def test_no_cut_and_no_restart_changes_what_is_unseen(cut):
    gas = awake(1500, (750, 753, 5.0), (800, 1000, 51.0), (1002, 1020, 600.0), (1400, 1402, 700.0))
    readings = feed(gas, step=60 * MINUTE)
    expected = play(made(), readings)
    assert played(made, readings, cut, lambda: cut == 7) == expected
    assert unseen(expected[0])
    held = [i for i, verdict in enumerate(expected[0]) if verdict.held]
    assert 800 < held[0] < 1000, "a hold begins in a wake-up: what came after it is judged again"


def wake_ups(*heights, every, step, seed=2, alarms=ONCE_A_MONTH):
    first = [700 + i * every for i in range(len(heights))]
    gas = awake(700 + len(heights) * every, *((at, at + 12, h) for at, h in zip(first, heights)))  # noqa: B905
    engine = made(every=None, alarms=alarms)
    verdicts, incidents = play(engine, feed(gas, step=step, seed=seed))
    told = [one.changed_seq for one in opened([one for one in incidents if one.limits])]
    return [at in unseen(verdicts) for at in first], [at + 2 in told for at in first]


def test_what_wakes_each_day_is_told_once_a_month_and_ten_times_as_far_at_once():
    # A shower a day, a reading every quarter of an hour; the window is two days.
    judged, told = wake_ups(2, 3, 1, 2, 31, 2, 2, 2, every=100, step=15 * MINUTE)
    assert judged == told == [True, False, False, False, True, False, False, False]
    judged, told = wake_ups(*[2] * 32, every=100, step=15 * MINUTE)
    assert [i for i, one in enumerate(told) if one] == [0, 29]


def test_who_is_willing_to_see_more_false_alarms_is_told_more_often():
    weekly = Alarms(false_alarms=FalseAlarms(per_sensor_month=30 / 7))
    _, told = wake_ups(*[2] * 9, every=100, step=15 * MINUTE, alarms=weekly)
    assert [i for i, one in enumerate(told) if one] == [0, 7]
    daily = Alarms(false_alarms=FalseAlarms(per_sensor_month=30))
    judged, _ = wake_ups(*[2] * 3, every=100, step=15 * MINUTE, alarms=daily)
    assert judged == [True] * 3, "each day, though a window is two"


def test_what_lasts_ten_times_as_long_as_any_before_is_told():
    verdicts, incidents = play(made(every=None), feed(awake(1400, (700, 710, 2), (800, 1000, 2))))
    assert unseen(verdicts) == [*range(700, 710), *range(900, 1000)]
    assert 902 in [one.opened_seq for one in opened(incidents)]


def warmed_up(*stretches, n=1000):
    engine = made(every=None, lag=20)
    return unseen(play(engine, feed(awake(n, *stretches, (800, 812, 2.0))))[0])


def test_what_woke_and_rested_again_in_the_warm_up_is_known():
    # The model learns from readings 23 to 57, is calibrated by 15 more, and speaks from 93 on.
    assert warmed_up() == [*range(800, 812)]
    assert warmed_up((60, 72, 3.0)) == []
    assert warmed_up((74, 82, 3.0)) == [], "while the model was fitted, too"
    assert warmed_up((60, 62, 3.0)) == [*range(800, 812)], "a glitch is no wake-up"
    assert warmed_up((60, 72, 0.1)) == [*range(800, 812)], "twenty times as far"
    assert warmed_up((60, 700, 3.0))[:600] == [*range(93, 693)], "it lasts: people have to see it"


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [1, 7])
def test_no_cut_and_no_restart_forgets_what_woke_in_the_warm_up(cut):
    readings = feed(awake(1000, (74, 82, 3.0), (800, 812, 2.0)))
    build = lambda: made(every=None, lag=20)  # noqa: E731
    expected = play(build(), readings)
    assert not unseen(expected[0])
    assert played(build, readings, cut, lambda: cut == 7) == expected


def test_what_wakes_before_its_window_has_a_band_is_an_anomaly_that_no_score_explains():
    engine = made(calibration="holdout", evidence=True, lag=0)
    verdicts, _ = play(engine, feed(awake(600, (74, 76, 9.0), (300, 302, 9.0))))
    assert unseen(verdicts) == [74, 75, 300, 301]
    assert [verdicts[i].evidence is None for i in (74, 300)] == [True, False]


def test_a_glitch_of_two_readings_is_an_anomaly_each_time_and_told_never():
    stretches = [(700 + 50 * i, 702 + 50 * i, 9.0) for i in range(5)]
    verdicts, incidents = play(made(), feed(awake(1000, *stretches)))
    assert unseen(verdicts) == [i for first, stop, _ in stretches for i in range(first, stop)]
    assert not [one for one in incidents if one.limits]


def test_a_value_that_flickers_is_one_wake_up():
    gas = awake(1000, (800, 1000, 400.0))
    gas[805::5] = 0.0
    verdicts, incidents = play(made(), feed(gas))
    assert unseen(verdicts) == [i for i in range(800, 1000) if gas[i]]
    assert len([one for one in opened(incidents) if one.limits]) == 1


def test_a_set_point_that_an_operator_moves_is_told_once_and_then_known():
    engine, readings = made(), feed(awake(3000, (800, 3000, 50.0), rest=45.0))
    _, incidents = play(engine, readings[:1000])
    told = next(one for one in opened(incidents) if one.limits)
    newest = [one for one in incidents if one.id == told.id][-1]
    answer = Command(
        id="c", kind=CommandKind.NEW_NORMAL, stream_key="s", incident=told.id,
        version=newest.version,
    )  # fmt: skip
    assert engine.command(answer).accepted
    later, incidents = play(engine, readings[1000:])
    assert not unseen(later[300:])
    assert {one.id for one in incidents if one.limits} == {told.id}


def test_people_set_limits_beside_it_and_both_are_said():
    pipeline = spec(make_detector("Sensor"), window=N, every=400, tolerance=3.0)
    features = FeatureSpec(("a", "gas"), preset="sensor", carry_forward_events=1)
    limits = (ChannelLimits("gas", None, 100.0),)
    engine = Engine(
        replace(pipeline, features=features, alarms=Alarms(), limits=limits),
        InlineExecutor(), idle={},
    )  # fmt: skip
    verdicts, _ = play(engine, feed(awake(1000, (800, 1000, 400.0))))
    assert verdicts[800].reason is Reason.LIMIT
    assert [one.unseen for one in verdicts[800].limited.channels].count(True) == 1
    assert len(verdicts[800].limited.channels) == 2
    assert decode_verdict(encode_verdict(verdicts[800])) == verdicts[800]


def test_the_rarer_of_two_wake_ups_says_how_rare_a_reading_is():
    gas, oil = awake(1000, (800, 1000, 400.0)), awake(1000, (850, 1000, 3.0))
    readings = [
        reading._replace(values=(*reading.values, value))
        for reading, value in zip(feed(gas), oil.tolist(), strict=True)
    ]
    verdicts, _ = play(made(("a", "gas", "oil")), readings)
    assert len(verdicts[850].limited.channels) == 2
    assert verdicts[849].severity < 2 < np.log10(N + 1) <= verdicts[850].severity


def test_a_month_of_few_readings_is_not_enough_for_the_next_report():
    # Every 190 times four hours: more than a month, and less than the window of 200.
    judged, told = wake_ups(2, 2, 2, every=190, step=4 * 60 * MINUTE)
    assert judged == told == [True, False, True]


def test_glitches_train_no_later_model_so_the_channel_still_rests():
    stretches = [(first, first + 2, 5.0 + i) for i, first in enumerate(range(600, 850, 30))]
    gas = awake(1600, *stretches, (1400, 1450, 2.0))
    verdicts, _ = play(made(guard=0.9), feed(gas))
    assert verdicts[1400].model_epoch > 0, "fitted again since"
    assert {*range(1400, 1450)} <= {*unseen(verdicts)}


def test_what_people_mute_is_not_unseen():
    engine, readings = made(), feed(awake(1000, (800, 1000, 400.0)))
    play(engine, readings[:700])
    muted = Command(
        id="m", kind=CommandKind.MUTE, stream_key="s", box={"gas": (300.0, 500.0)}, from_ms=0,
        until_ms=10**12, by="ada", note="calibration gas",
    )  # fmt: skip
    assert engine.command(muted).accepted
    verdicts, incidents = play(engine, readings[700:])
    assert not unseen(verdicts)
    assert not [one for one in incidents if one.limits]


def test_what_is_missing_is_not_unseen():
    gas = awake(1000, (800, 1000, 400.0))
    gas[810:820] = np.nan
    verdicts, _ = play(made(), feed(gas))
    assert not {*range(810, 820)} & {*unseen(verdicts)}
    assert unseen(verdicts)[:10] == [*range(800, 810)]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_sensor_that_was_forgotten_never_woke(is_forgotten):
    engine = made(every=None)
    readings = feed(awake(900, (700, 712, 2.0), (800, 812, 2.0)), step=15 * MINUTE)
    play(engine, readings[:730])
    if is_forgotten:
        engine.forget("s", "s")
    assert (70 in unseen(play(engine, readings[730:])[0])) is is_forgotten


def test_run_validate_and_state_show_say_what_is_out_of_the_distance(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = enumerate(np.random.default_rng(0).normal(size=1200))
    lines = ["time,amps,gas", *(f"{60 * i},{v:.4f},{i * 7 % 11 * (i > 1150)}" for i, v in rows)]
    (tmp_path / "pump.csv").write_text("\n".join(lines) + "\n")
    config = str(tmp_path / "c.toml")
    main(["init", str(tmp_path / "pump.csv"), "--to", config])
    why = "out of the distance, and judge it by what it has never shown"
    for command, named in [
        (["validate"], "at rest: channels of at most two values in the rows of a fit;"),
        (["run"], "at rest: 'gas', of at most two values in the first 1,000 events;"),
        (["state", "show"], "at rest: 'gas', of at most two values;"),
    ]:
        capsys.readouterr()
        main([*command, config])
        said = "".join(capsys.readouterr())
        assert named in said, command
        assert why in " ".join(said.split()), command
