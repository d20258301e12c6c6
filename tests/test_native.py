"""The native core beside the Python one: verdicts and snapshots are the same, bit for bit."""

import random
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine
from rejex_stream.engine import model as model_module
from rejex_stream.engine.explanation import Explainer
from rejex_stream.engine.sensor_registry import Limits, SensorRegistry
from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.features.preset import PRESETS
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.monitor import AlarmKind, MonitorBank, MonitorConfig
from rejex_stream.native_core import Core, core
from rejex_stream.native_trial import wrong
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import (
    Command,
    CommandKind,
    Label,
    Limited,
    Position,
    Reading,
    Reason,
    Status,
    Verdict,
    in_mode,
)
from tests import test_monitor_looks
from tests.streams import ROLLING, Distance, FirstColumn, Holes, spec

DETECTORS = {
    "HBOS": make_detector("HBOS"), "GMM": make_detector("GMM"),
    "mixture": make_detector("GMM", n_components=2), "scaled": make_detector("GMM", scale="robust"),
    "Mahalanobis": make_detector("Mahalanobis"), "Sensor": make_detector("Sensor"),
    "KNN": make_detector("KNN"), "ECOD": make_detector("ECOD"), "LOF": make_detector("LOF"),
    "VAR": make_detector("VARResidual"), "distance": Distance(), "holes": Holes(),
}  # fmt: skip
POLICIES = [
    {"tolerance": 3.0}, {"tolerance": 3.0, "ties": "paper"}, {"rate": 0.15}, {"rate": 0.15,
    "burst": 3}, {"rate": 0.15, "burst": 3, "per_day": 6000}, {"rate": 0.15, "burst": 9,
    "owner": "partition"},
]  # fmt: skip


@pytest.fixture
def native():
    """Return the native core, may it be believed or not."""
    built = pytest.importorskip("rejex_native", reason="the native core is not built: make native")
    return Core(built.fast_path_of, built.poll, built.beside)


def made(pipeline, core, most=None):
    engine = Engine(pipeline, InlineExecutor(), idle={}, max_live_streams=most)
    engine._core = core
    return engine


def taken(engine):
    return sum(state._fast_path.taken for state in engine._live.values())


def feed(seed, events, *, missing, fault, channels=2, streams="ab"):
    """Ties, zeros of either sign, spikes, gaps, stretches of one value, faults that last."""
    draw, rng = np.random.default_rng(seed), random.Random(seed)
    values = draw.normal(size=(events, channels))
    rounded = draw.random(events) < 0.3
    values[rounded] = values[rounded].round(rng.choice((0, 1)))
    values[draw.random(events) < 0.01] *= 30.0
    values[draw.random(events) < 0.01] = -0.0
    values[draw.random(values.shape) < missing] = np.nan
    if fault:
        start = rng.randrange(events // 2, events)
        values[start : start + fault] += rng.choice((-6.0, 3.0, 9.0))
    if rng.random() < 0.2:
        start = rng.randrange(events)
        values[start : start + 90] = 1.5
    if rng.random() < 0.5:  # near the ends of the floats, and for long in windows that roll
        values[rng.randrange(events), 0] = rng.choice((1e160, 1e145, 1e307, 1e-310, np.inf))
    keys = [rng.choice(streams) for _ in range(events)]
    return [
        Reading(key, f"{key}{i % 2}", 20_000 * i, tuple(row), Position("t", 0, i))
        for i, (key, row) in enumerate(zip(keys, values.tolist(), strict=True))
    ]


def with_switch(readings, rng):
    """Have the last channel take one value or two, and others for a stretch now and then."""
    levels, height, left, found = rng.choice(((0.0,), (-0.0, 0.0), (44.0, 45.0))), 0.0, 0, []
    for i, reading in enumerate(readings):
        if left == 0 and i > len(readings) // 3 and rng.random() < 0.01:
            left, height = rng.choice((1, 9, 40)), rng.choice((0.5, 2.0, 90.0, -90.0))
        *others, last = reading.values
        value = rng.choice(levels) + (height if left else 0.0)
        left = max(left - 1, 0)
        found.append(reading._replace(values=(*others, last if np.isnan(last) else value)))
    return found


def told(engine, incident):
    kind = CommandKind.FAULT if incident.opened_seq % 2 else CommandKind.NEW_NORMAL
    return engine.command(
        Command(
            id=f"c{incident.id}", kind=kind, stream_key=incident.stream_key, incident=incident.id,
            version=incident.version,
        )
    )  # fmt: skip


def counting(native):
    fast_paths = []

    def fast_path(state):
        fast_paths.append(native.fast_path(state))
        return fast_paths[-1]

    return Core(fast_path, native.poll, native.beside), fast_paths


def alike(native, pipeline, readings, batch, most=None):
    """Play readings by so many in both cores; return the engines and what the native one said."""
    ours, theirs, said = made(pipeline, None, most), made(pipeline, native, most), []
    for at in range(0, len(readings), batch):
        part = readings[at : at + batch]
        said += theirs.process(part)
        assert ours.process(part) == said[at:]
        assert ours.take_incidents() == theirs.take_incidents()
        assert ours.streams() == theirs.streams()
    assert ours.snapshot() == theirs.snapshot()
    return ours, theirs, said


def ordinary(verdicts):
    """Return how many of these were ranked, in no incident: what the core says it takes."""
    return sum(verdict.rank is not None and not verdict.held for verdict in verdicts)


@pytest.mark.thorough
def test_both_cores_say_the_same_and_go_on_from_each_other(native):
    """Draw by seeds, not by hypothesis: its examples come in clusters, and may miss what counts."""
    tally = Counter()
    for seed in range(60):
        tally += any_pipeline(native, random.Random(seed))
    assert 0 < tally["ordinary"] < 2 * tally["taken"], tally


def any_pipeline(native, rng):
    """Compare both cores on a pipeline drawn at random; count what the native one took."""
    draw, tally = rng.choice, Counter()
    name = draw([*DETECTORS])
    preset = draw((None, *PRESETS))
    channels = draw((2, 2, 2, 1, 3, 11))
    names = tuple(f"c{i}" for i in range(channels))
    kind = draw(range(10))  # flags, columns of one's own, modes
    flags = names[-1:] if kind == 9 and channels > 1 else ()
    shadow, holds = (draw((True, False)), draw((True, False)))
    policy = draw(POLICIES)
    pipeline = spec(
        DETECTORS[name], calibration="shadow" if shadow else "holdout", window=draw((60, 100)),
        every=draw((130, 250, None)), lag=draw((0, 7)), evidence=draw((True, False)),
        guard=draw((None, 0.9)) if shadow else None, hold=Hold(enabled=holds, recover_events=10),
        features=ROLLING if kind == 8 else (), modes=kind == 7, **policy,
    )  # fmt: skip
    columns = FeatureSpec(names, preset=preset, flags=flags, carry_forward_events=1)
    alarms = Alarms() if draw((True, False)) else None
    if kind != 8:
        pipeline = replace(pipeline, features=columns)
    pipeline = replace(pipeline, alarms=alarms)
    readings = feed(
        draw(range(10_000)), draw((400, 900)), missing=draw((0.0, 0.0, 0.01)),
        fault=draw((0, 12, 60)), streams=draw(("ab", "abc\u00e4")),
        channels=2 if kind == 8 else channels,
    )  # fmt: skip
    if kind == 7:
        readings = [
            reading._replace(stream_key=in_mode(reading.stream_key, "on" if i % 3 else None))
            for i, reading in enumerate(readings)
        ]
    if name in ("Sensor", "Mahalanobis", "VAR") and draw((True, False)):
        readings = with_switch(readings, rng)
    most = draw((None, None, 1, 3))
    native, fast_paths = counting(native)
    ours, theirs, at = made(pipeline, None, most), made(pipeline, native, most), 0
    # Python judges where nothing is held, credit is shared, or rows or scores need more than a row.
    is_counted = kind < 7 and most is None
    is_counted &= holds and "owner" not in policy
    n_since = 0  # events since the restart: the first of each stream are Python's
    while at < len(readings):
        stop = at + draw((1, 2, 13, 60, 300, 900))
        before = sum(fast_path.taken for fast_path in fast_paths)
        expected, found = ours.process(readings[at:stop]), theirs.process(readings[at:stop])
        for one, other in zip(expected, found, strict=True):
            assert one == other
        plain = not any(abs(value) > 1e100 for one in readings[at:stop] for value in one.values)
        if is_counted and plain and n_since >= 20:
            tally["ordinary"] += ordinary(expected)
            tally["taken"] += sum(fast_path.taken for fast_path in fast_paths) - before
        n_since += stop - at
        incidents = ours.take_incidents()
        assert theirs.take_incidents() == incidents
        for incident in incidents[:1]:
            assert told(ours, incident) == told(theirs, incident)
        at = stop
        if draw(range(6)) == 0:
            snapshots = ours.snapshot(), theirs.snapshot()
            assert snapshots[0] == snapshots[1]
            ours, theirs = made(pipeline, None, most), made(pipeline, native, most)
            ours.restore(snapshots[1])
            theirs.restore(snapshots[0])
            n_since = 0
    assert ours.snapshot() == theirs.snapshot()
    return tally


@pytest.mark.parametrize("channels", [1, 3, 11])  # beyond ten a preset has other columns
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["HBOS", "GMM", "Mahalanobis", "KNN"])
def test_each_scorer_on_each_preset_is_taken_and_says_the_same(native, name, preset, channels):
    policy = POLICIES[(channels + len(name) + len(preset)) % 4]
    names = tuple(f"c{i}" for i in range(channels))
    pipeline = spec(DETECTORS[name], window=60, every=150, lag=3, evidence=True, **policy)
    pipeline = replace(pipeline, features=FeatureSpec(names, preset=preset))
    readings = feed(6, 700, missing=0.003, fault=12, channels=channels, streams="a")
    native, fast_paths = counting(native)
    *_, said = alike(native, pipeline, readings, 25)
    assert sum(fast_path.taken for fast_path in fast_paths) > ordinary(said) / 2


@pytest.mark.parametrize("name", ["Sensor", "distance"])
@pytest.mark.parametrize("batch", [1, 200])
def test_nearly_all_ordinary_events_are_taken(native, name, batch):
    engine = made(spec(DETECTORS[name], window=100, every=None, rate=0.1), native)
    readings = feed(1, 3000, missing=0.0, fault=0)
    for at in range(0, len(readings), batch):
        engine.process(readings[at : at + batch])
    assert taken(engine) > 1500


@pytest.mark.parametrize("guard", [None, 0.9, 0.99])  # a window of 60 has no hundredth
def test_zeros_of_either_sign_and_rows_beyond_a_quantile_are_kept_the_same(native, guard):
    pipeline = spec(FirstColumn(), guard=guard, every=150)
    readings = feed(3, 900, missing=0.0, fault=0, streams="a")
    readings[::3] = [one._replace(values=(-0.0, one.values[1])) for one in readings[::3]]
    ours, theirs = made(pipeline, None), made(pipeline, native)
    for at in range(0, len(readings), 25):
        part = readings[at : at + 25]
        assert ours.process(part) == theirs.process(part)
        assert ours.snapshot() == theirs.snapshot()  # where -0.0 and 0.0 are not equal
    assert taken(theirs) > 500


def test_a_clock_that_is_taken_back_earns_nothing_in_either_core(native):
    pipeline = spec(DETECTORS["HBOS"], every=None, rate=0.15, burst=3, per_day=6000)
    begun, day = 1_700_000_000_000, 86_400_000
    readings = feed(3, 460, missing=0.0, fault=0, streams="a")
    for i, one in enumerate(readings):
        # One, alone, is a month ahead; two that differ at first, and so are known, contradict it.
        name, days = ("ahead", 30) if i < 400 else (one.sensor, {400: 20, 401: 10}.get(i, 0))
        time_ms = begun + days * day + one.event_time_ms
        readings[i] = one._replace(sensor=name, event_time_ms=time_ms)
    ours, theirs, believed = made(pipeline, None), made(pipeline, native), []
    for part in (readings[:395], *([one] for one in readings[395:])):
        assert ours.process(part) == theirs.process(part)
        assert ours.snapshot() == theirs.snapshot()
        believed.append((theirs._live["a"]._judge._bucket.latest_ms, taken(theirs)))
    (back,) = [after[1] - before[1] for before, after in pairwise(believed) if after < before]
    assert back == 1, "by the native core"


@pytest.mark.parametrize("policy", [*POLICIES[:5]], ids=str)
@pytest.mark.parametrize("batch", [1, 7, 300])
def test_a_window_that_fills_again_after_a_fit_is_left_to_the_native_core(native, batch, policy):
    pipeline = spec(DETECTORS["HBOS"], window=100, every=150, calibration="holdout", **policy)
    object.__setattr__(pipeline, "alarms", Alarms())
    readings = feed(1, 3000, missing=0.0, fault=60)
    _, theirs, said = alike(native, pipeline, readings, batch)
    labels = (Label.NORMAL, Label.ANOMALY)
    assert sum(verdict.label in labels and verdict.window_len < 100 for verdict in said) > 500
    assert taken(theirs) > 2000


@pytest.mark.parametrize("name", ["HBOS", "GMM"])
@pytest.mark.parametrize("preset", [None, "sensor"])
def test_what_scores_whole_rows_is_explained_by_the_native_core(native, monkeypatch, name, preset):
    hold = Hold(recover_events=10, adopt_after_events=100)  # what is held is Python's,
    monkeypatch.setattr("rejex_stream.engine.stream_state._KEPT_MS", 0)  # and the time after
    policy = {"rate": 0.15, "burst": 9}
    pipeline = spec(DETECTORS[name], window=100, every=150, evidence=True, hold=hold, **policy)
    if preset is not None:  # channels of many columns
        object.__setattr__(pipeline, "features", FeatureSpec(("x", "y"), preset=preset))
    readings = feed(2, 2000, missing=0.0, fault=60)
    flat = [reading._replace(values=(1.0, reading.values[1])) for reading in readings[:300]]
    readings[:300] = flat  # a channel that says nothing
    ours, theirs = made(pipeline, None), made(pipeline, native)
    expected = [one for at in range(0, 2000, 40) for one in ours.process(readings[at : at + 40])]
    asked, real = [], Explainer.explain

    def counted(self, verdicts, *args):
        asked.extend(verdicts)
        return real(self, verdicts, *args)

    monkeypatch.setattr(Explainer, "explain", counted)
    found = [one for at in range(0, 2000, 40) for one in theirs.process(readings[at : at + 40])]
    assert found == expected
    explained = [one for one in found if one.evidence is not None]
    assert len(explained) > 100
    assert any(one.evidence.flip for one in explained)
    assert len(asked) < len(explained) / 2
    assert ours.snapshot() == theirs.snapshot()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Sensor", "Mahalanobis", "VAR"])
@pytest.mark.parametrize("batch", [1, 40])
def test_a_stream_with_a_switch_is_taken_while_the_switch_rests(native, batch, name):
    pipeline = spec(DETECTORS[name], every=None, lag=0, evidence=True, rate=0.1)
    pipeline = replace(pipeline, features=FeatureSpec(("x", "y"), preset="sensor"))
    readings = with_switch(feed(6, 2000, missing=0.001, fault=0), random.Random(1))
    native, fast_paths = counting(native)
    ours, theirs, judged = made(pipeline, None), made(pipeline, native), []
    for at in range(0, len(readings), batch):
        judged += ours.process(readings[at : at + batch])
        assert theirs.process(readings[at : at + batch]) == judged[at:]
        assert theirs.take_incidents() == ours.take_incidents()
        if at % 40 == 0:
            assert theirs.snapshot() == ours.snapshot()
    assert Counter(one.reason for one in judged)[Reason.UNSEEN] > 20
    assert sum(fast_path.taken for fast_path in fast_paths) > ordinary(judged) / 2


STREAMS = "abcdefghijkl"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["HBOS", "Sensor", "distance"])
def test_a_poll_of_many_streams_is_judged_in_one_call(native, name):
    pipeline = spec(DETECTORS[name], window=60, every=150, lag=3, rate=0.1, guard=0.9)
    readings = feed(3, 6000, missing=0.002, fault=40, streams=STREAMS)
    _, theirs, _ = alike(native, pipeline, readings, 37)
    assert taken(theirs) > 1500


@pytest.mark.thorough
def test_who_was_heard_of_longest_ago_leaves_memory_all_the_same(native):
    pipeline = spec(DETECTORS["distance"], every=None)
    readings = feed(5, 3000, missing=0.0, fault=0, streams=STREAMS)
    ours, theirs, _ = alike(native, pipeline, readings, 7, 5)
    assert [*ours._live] == [*theirs._live]


ODD = {
    "integers": lambda reading: reading._replace(values=(1, 0.5)),
    "numbers of numpy": lambda reading: reading._replace(values=tuple(np.ones(2))),
    "a list": lambda reading: reading._replace(values=[0.5, 0.25]),
    "a name of its own kind": lambda reading: reading._replace(sensor=np.str_("a0")),
    "a time of numpy": lambda reading: reading._replace(event_time_ms=np.int64(7)),
}


@pytest.mark.parametrize("odd", [*ODD])
def test_readings_as_nobody_decodes_them_are_judged_as_ever(native, odd):
    readings = feed(4, 900, missing=0.0, fault=0)
    readings[500::9] = map(ODD[odd], readings[500::9])
    alike(native, spec(every=None), readings, 50)


WRONG = {
    "no reading": lambda reading: None,
    "one channel": lambda reading: reading._replace(values=(1.0,)),
    "a word": lambda reading: reading._replace(values=("x", 0.5)),
    "no key": lambda reading: reading._replace(stream_key=7),
    "a mode": lambda reading: reading._replace(stream_key="a\x1fon"),
    "half a character": lambda reading: reading._replace(sensor="\ud800"),
    "no time": lambda reading: reading._replace(event_time_ms=None),
    "a time beyond all": lambda reading: reading._replace(event_time_ms=2**70),
}


@pytest.mark.parametrize("wrong", [*WRONG])
def test_of_a_batch_with_a_wrong_reading_nothing_is_taken(native, wrong):
    readings = feed(4, 900, missing=0.0, fault=0)
    engine = made(spec(every=None), native)
    engine.process(readings[:600])
    before = engine.snapshot()
    with pytest.raises(ConfigError):
        engine.process([*readings[600:650], WRONG[wrong](readings[650])])
    assert engine.snapshot() == before
    engine.process(readings[600:])


@pytest.mark.parametrize("batch", [1, 50, 3000])
def test_columns_that_python_makes_are_pythons_from_the_first_call_on(native, batch):
    other = (Feature("lag", "y", events=2), Feature("mean", "x", events=5))  # as many as channels
    pipeline = spec(DETECTORS["distance"], every=None, features=other)
    alike(native, pipeline, feed(4, 3000, missing=0.0, fault=0), batch)


@pytest.mark.thorough
@pytest.mark.parametrize("detector", ["Sensor", "Mahalanobis", "distance"])
@pytest.mark.parametrize("wild", [1e307, -1.7e308, 1e152, 1e149, 1e141])
def test_what_is_wild_is_wild_for_as_long_as_it_is_in_a_window_that_rolls(native, detector, wild):
    preset = {"features": (), "evidence": True} if detector == "Sensor" else {}
    pipeline = spec(DETECTORS[detector], every=None, **preset)
    readings = feed(2, 600, missing=0.0, fault=0)
    readings[400] = readings[400]._replace(values=(wild, 0.5))
    for batch in (1, 7, 200):
        with np.errstate(all="ignore"):
            alike(native, pipeline, readings, batch)


def test_a_gap_that_is_over_leaves_the_stream_to_the_native_core(native):
    engine = made(spec(DETECTORS["distance"], every=None), native)
    readings = feed(1, 900, missing=0.0, fault=0)
    readings[300] = readings[300]._replace(values=(float("nan"), 0.0))
    engine.process(readings[:400])
    before = taken(engine)
    engine.process(readings[400:])
    assert taken(engine) - before > 350


KINDS = {
    "tens": lambda x: np.round(x, -1),
    "hundredths": lambda x: np.round(x, 2),
    "millionths": lambda x: np.round(x, 6),
    "floats of four bytes": lambda x: x.astype(np.float32).astype(np.float64),
    "doubles": lambda x: x,
    "one of each": lambda x: np.stack([np.round(x[:, 0], 1), x[:, 1]], axis=1),
}


@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("detector", ["GMM", "Sensor"])
def test_rows_are_put_away_as_python_does(native, monkeypatch, kind, detector):
    preset = {"features": ()} if detector == "Sensor" else {}
    pipeline = spec(DETECTORS[detector], window=100, every=None, **preset)
    values = KINDS[kind](np.random.default_rng(1).normal(size=(2000, 2)) * 20.0)
    values[1000] = 1e5 + 1.0 / 3.0  # of no such kind, and what comes then is again
    readings = [
        Reading("a", f"a{i // 3 % 2}" if i > 1500 else "a0", 20_000 * i, tuple(row),
                Position("t", 0, i))
        for i, row in enumerate(values.tolist())
    ]  # fmt: skip
    made_of = []
    for core_ in (None, native):
        engine, packed = made(pipeline, core_), [0]
        real = model_module.pack

        def counted(*args, packed=packed, real=real):
            packed[0] += 1
            return real(*args)

        monkeypatch.setattr(model_module, "pack", counted)
        for at in range(0, len(readings), 5):
            engine.process(readings[at : at + 5])
        rows = engine._live["a"].model._rows
        made_of.append((rows._blocks, rows._newest().tobytes(), engine.snapshot(), packed[0]))
        monkeypatch.undo()
    ours, theirs = made_of
    assert ours[:3] == theirs[:3]
    assert theirs[3] < 2 * ours[3] / 3  # most are packed natively


def ranked(seed, events, *, digits=2, keys=3):
    """Verdicts of streams in full windows: ties, faults, stretches of one score, other models."""
    rng, n = random.Random(seed), test_monitor_looks.N
    windows = [[round(rng.gauss(0, 1), digits) for _ in range(n)] for _ in range(keys)]
    wilder, stuck, epochs, found = [1.0] * keys, [0] * keys, [0] * keys, []
    for offset in range(events):
        key = rng.randrange(keys)
        window = windows[key]
        if rng.random() < 0.002:
            wilder[key] = rng.choice((0.2, 1.0, 1.0, 1.6))
        if rng.random() < 0.002:
            stuck[key] = 12
        epochs[key] += rng.random() < 0.002
        stuck[key] = max(0, stuck[key] - 1)
        score = window[-1] if stuck[key] else round(rng.gauss(0, wilder[key]), digits)
        below, ties = sum(other < score for other in window), window.count(score)
        own = {"policy_lower": n - 7, "policy_upper": n - 2} if offset % 3 == 0 else {}
        found.append(
            Verdict(
                position=Position("t", 0, offset), stream_key=f"s{key}", sensor=f"s{key}",
                event_time_ms=60_000 * offset, seq=offset, label=Label.NORMAL, score=score,
                rank=below + ties // 2, ties=ties, window_len=n, n_anomalies=n // 10,
                band_lower=n - 7, band_upper=n - 2, model_epoch=epochs[key], **own,
            )
        )  # fmt: skip
        del window[0]
        window.append(score)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_monitors_note_the_same_and_go_on_from_each_other(native, seed):
    import rejex_native

    def note(*arguments):
        at = rejex_native.note(*arguments)
        taken.append(at - arguments[4])
        return at

    rng, taken = random.Random(seed), []
    ties = "paper" if seed % 4 == 3 else "mid"
    ours, theirs = (test_monitor_looks.bank(100.0, ties=ties) for _ in range(2))
    theirs._note = note
    feed = ranked(seed, 4000, digits=seed % 3 + 1, keys=1 if seed == 4 else 3)
    if seed != 4:
        feed += test_monitor_looks.verdicts(seed, 3000)
    kinds, at = set(), 0
    while at < len(feed):
        length = rng.choice((1, 2, 40, 300))
        told = ours.observe(feed[at : at + length])
        assert theirs.observe(feed[at : at + length]) == told
        kinds |= {alarm.kind for alarm in told}
        at += length
        kept = ours.snapshot(), theirs.snapshot()
        assert kept[0] == kept[1]
        assert [one.status() for one in (ours, *map(ours.stream, ours))] == [
            one.status() for one in (theirs, *map(theirs.stream, theirs))
        ]
        if rng.random() < 0.1:
            ours.restore(kept[1])
            theirs.restore(kept[0])
        if rng.random() < 0.03:  # the pipeline has fewer streams to rely on
            key = rng.choice(list(ours))
            ours.forget(key)
            theirs.forget(key)
    assert sum(taken) > 0.97 * len(feed)
    assert {AlarmKind.HEALTH, AlarmKind.STUCK, AlarmKind.DRIFT, AlarmKind.REJECTION_RATE} <= kinds


@pytest.mark.parametrize("seed", range(3))
def test_health_that_cannot_be_relied_on_is_so_for_both_cores(native, seed):
    """Ranks that come in clusters, laws that change, and fewer streams to rely on."""
    import rejex_native

    rng, n, level = random.Random(seed), 40, 0.0
    config = MonitorConfig(window=n, contamination=0.1, tolerance=4, false_alarm_events=1e6)
    ours, theirs = MonitorBank(config), MonitorBank(config, rejex_native.note)
    known, at = set(), 0
    while at < 6000:
        feed, upto = [], at + rng.choice((1, 7, 60))
        keys = 3 if at // 1500 % 2 else 1
        for i in range(at, upto):
            level = 0.3 * level + rng.gauss(0, 0.3)
            now = n - i // 97 % 3
            rank = min(now, max(0, int((0.5 + level / 2 + rng.uniform(-0.2, 0.2)) * n)))
            feed.append(
                Verdict(
                    position=Position("t", 0, i), stream_key=f"s{i % keys}", sensor="s", seq=i,
                    event_time_ms=i, label=Label.NORMAL, score=rng.random(), rank=rank, ties=0,
                    window_len=now, n_anomalies=now // 10, band_lower=now - 7, band_upper=now - 2,
                    model_epoch=0,
                )
            )  # fmt: skip
        at = upto
        assert ours.observe(feed) == theirs.observe(feed)
        assert ours.snapshot() == theirs.snapshot()
        told = ours.status()
        assert theirs.status() == told
        is_blind = ours._pooled.health._is_blind
        assert theirs._pooled.health._is_blind == is_blind
        known.add((told.inflation is None, is_blind))
        if not at // 1500 % 2:  # only one of three goes on
            for key in sorted({*ours} - {"s0"}):
                ours.forget(key)
                theirs.forget(key)
    assert known == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("beside_half", [-1, 0, 1])
def test_a_run_is_of_a_common_score_where_more_than_half_of_the_window_ties(native, beside_half):
    import rejex_native

    ties = test_monitor_looks.N // 2 + beside_half
    feed = ranked(1, 200, keys=1)
    feed[-1] = msgspec.structs.replace(feed[-1], score=99.0, ties=ties, rank=ties)
    ours, theirs = (test_monitor_looks.bank(100.0) for _ in range(2))
    theirs._note = rejex_native.note
    assert ours.observe(feed[:100]) == theirs.observe(feed[:100])
    assert ours.observe(feed[100:]) == theirs.observe(feed[100:])
    for bank in (ours, theirs):
        assert bank._streams["s0"]._stuck.was_common is (beside_half > 0)


def test_monitors_leave_to_python_what_is_odd(native):
    import rejex_native

    config = MonitorConfig(window=40, contamination=0.1, tolerance=4)
    ours, theirs = MonitorBank(config), MonitorBank(config, rejex_native.note)
    feed = ranked(1, 900)
    odd = [
        {"rank": None}, {"score": None}, {"score": float("nan")}, {"score": float("inf")},
        {"held": True}, {"planned": True}, {"mode": "idle"}, {"reason": Reason.UNSCORABLE},
        {"reason": Reason.AMBIGUOUS}, {"rank": 2**70}, {"rank": -(2**70)}, {"ties": 2**70},
        {"ties": -3}, {"window_len": 0}, {"band_lower": None}, {"model_epoch": None},
        {"status": Status.WARM_UP_MIXED}, {"limited": Limited((), Label.NORMAL)},
        {"limited": Limited((), Label.REJECTED, Reason.UNSCORABLE)}, {"score": 3},
        {"n_anomalies": 9}, {"reason": Reason.CONSTANT_WINDOW}, {"score": None, "rank": None},
        {"reason": Reason.WARM_UP}, {"n_anomalies": 2**70}, {"status": Status.CLOCK_BEGINS},
        {"stream_key": "new"}, {"rank": 10**6}, {"rank": -1, "ties": 4}, {"window_len": 41},
    ]  # fmt: skip
    for i, changes in enumerate(odd):
        feed[300 + 20 * i] = msgspec.structs.replace(feed[300 + 20 * i], **changes)
    for batch in (feed[:250], feed[250:]):
        assert ours.observe(batch) == theirs.observe(batch)
        assert ours.snapshot() == theirs.snapshot()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_who_is_heard_of_is_known_to_both_cores_alike(native, seed):
    """Sensors that are late, silent, new, ahead; and records that are no reading."""
    import rejex_native

    rng, told = random.Random(seed), []
    day, names = 86_400_000, "abcdefghijklmn"[: rng.choice((1, 2, 5, 14))]
    step = rng.choice((1, 60_000, day // 40, day // 3))
    for i in range(3000):
        name = rng.choice(names[: 1 + i // 150])
        odd = rng.random() < 0.01 and rng.choice((90 * day, -2 * day, 3 * 3_600_000, -(10**13)))
        late = int(rng.expovariate(1 / step)) if rng.random() < 0.3 else 0
        time_ms = 1_700_000_000_000 + step * i + 9 * day * (i > 2000) - late + odd
        key = name if rng.random() < 0.99 else name + "2"
        reading = Reading(key, name, time_ms, (1.0,), Position("t", 0, i))
        told.append(reading if rng.random() < 0.99 else None)
    after = rng.choice((None, 30 * day, day))
    limits = Limits(forget_after_ms=after, max_keys=rng.choice((None, 9)))
    calls = []

    def counted(registry, items, at):
        calls.append(rejex_native.admit(registry, items, at) - at)
        return calls[-1] + at

    ours = SensorRegistry(limits, lambda _: None)
    theirs = SensorRegistry(limits, lambda _: counted)
    while told:
        n = rng.choice((1, 7, 60, 200))
        found = ours.admit(told[:n])
        assert theirs.admit(told[:n]) == found
        for registry in (ours, theirs):
            registry.forget(found.gone)
        assert ours.head() == theirs.head()
        assert all(ours.view(name) == theirs.view(name) for name in names)
        told = told[found.end :]
        if rng.random() < 0.1:
            views = {name: ours.view(name) for name in names}
            for registry in (ours, theirs):
                registry.restore(msgspec.to_builtins(ours.head()), msgspec.to_builtins(views))
    assert sum(calls) > (2900 if step <= 60_000 else 40)  # what is left is odd


def test_a_core_that_differs_fails_its_trial(native, monkeypatch):
    import rejex_native

    def off(*args):
        for state in args[1].values():
            state._judge.window._oldest = 0
        return native.poll(*args)

    assert wrong(rejex_native) == ""
    monkeypatch.setattr(rejex_native, "poll", off)
    assert "differs from Python in what it judges" in wrong(rejex_native)


def test_python_judges_alone_where_nothing_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "rejex_native", None)
    monkeypatch.delenv("REJEX_CORE", raising=False)
    core.cache_clear()
    try:
        assert core() == (
            None, "Python judges all events: no native core is installed (`make native`)",
        )  # fmt: skip
    finally:
        core.cache_clear()
