"""States of River models: exact when ours, refused or harmless when anybody else's."""

import functools
import random
import struct
import sys
import zlib

import numpy as np
import pytest
from river import anomaly, compose, feature_extraction, preprocessing, stats, time_series

from rejex_stream.detectors import RIVER, as_detector, make_detector
from rejex_stream.detectors.river import model_state
from rejex_stream.detectors.river.model_state import (
    read,
    read_array,
    seal,
    unseal,
    write,
    write_array,
)
from rejex_stream.detectors.river.models import FourierFeatures
from rejex_stream.errors import CheckpointError, DetectorError

NAMES = [f"river:{name}" for name in RIVER]
COLUMNS = ["flow", "pressure", "kW"]


def copied(model):
    return read(unseal(seal(write(model))))


def fed(detector, n):
    scorer = detector.start(COLUMNS, seed=5)
    for x in np.random.default_rng(1).normal(size=(n, 3)):
        scorer.learn_one(x)
    return scorer


# ------------------------------------------------------------------------------- the bytes
@pytest.mark.parametrize("position", [0, 1, 2, 9, 20, 40, -1])
def test_a_flipped_bit_anywhere_is_refused(position):
    blob = bytearray(seal([1, 2.5, None, "x" * 20]))
    blob[position] ^= 1
    with pytest.raises(CheckpointError, match="damaged"):
        unseal(bytes(blob))


@pytest.mark.parametrize(
    "of", [b"", b"x", seal([1])[:-1], seal([1]) + b"x", zlib.compress(b"\x93")]
)
def test_what_is_no_state_is_refused(of):
    with pytest.raises(CheckpointError, match="no state of a River model"):
        unseal(of)


def test_a_state_of_another_river_says_which(monkeypatch):
    blob = seal([1])
    monkeypatch.setattr(model_state, "_river_version", lambda: "0.19")
    with pytest.raises(CheckpointError, match=r"written with River 0\.\d+, installed is 0\.19"):
        unseal(blob)
    monkeypatch.undo()
    assert unseal(blob) == [1]


def test_a_decompression_bomb_stops(monkeypatch):
    monkeypatch.setattr(model_state, "_MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="do not end"):
        unseal(zlib.compress(bytes(1_000_000)))
    with pytest.raises(DetectorError, match="the most is 1000"):
        seal(bytes(2000))


# -------------------------------------------------------------------------------- exactness
@pytest.mark.parametrize(
    "statistic",
    [stats.Quantile(0.9), stats.IQR(), stats.AutoCorr(lag=3), stats.Var()],
    ids=lambda statistic: type(statistic).__name__,
)
@pytest.mark.parametrize("events", [0, 3, 200])
def test_statistics_go_on_bit_for_bit(statistic, events):
    rng = random.Random(1)
    statistic = statistic.clone()
    for _ in range(events):
        statistic.update(rng.gauss(0, 1))
    copy = copied(statistic)
    for _ in range(200):
        x = rng.gauss(0, 1)
        statistic.update(x)
        copy.update(x)
        assert statistic.get() == copy.get()


def test_a_pipeline_with_a_bound_method_inside_goes_on_the_same():
    model = (
        preprocessing.StandardScaler()
        | feature_extraction.RBFSampler(seed=3, n_components=5)
        | anomaly.OneClassSVM()
    )
    for i in range(50):
        model.learn_one({"a": i % 7, "b": i % 3})
    copy = copied(model)
    for i in range(50):
        x = {"a": i % 5, "b": i % 4, "new": 1.0}
        assert model.score_one(x) == copy.score_one(x)
        model.learn_one(x)
        copy.learn_one(x)


def test_fourier_features_are_drawn_again_the_same():
    features = FourierFeatures(seed=5)
    x = {"a": 0.1, "b": 2.0}
    assert features.transform_one(x) == copied(features).transform_one(x)


@pytest.mark.parametrize("value", [
    [1, -(2**63), 2**63, 10**40, 0.1, float("inf"), True, None, "å", b"\x00"],
    {"a": (1, ("b",)), 3: {4.5: frozenset({"x"})}}, {("a", 1): {1, 2}},
    [np.float64(2.5), np.int64(-3), np.arange(6, dtype=np.int16).reshape(2, 3)],
])  # fmt: skip
def test_values_come_back_as_they_were_types_and_all(value):
    assert repr(copied(value)) == repr(value)


def test_a_model_within_a_model_keeps_what_the_two_share():
    rng, ring = random.Random(1), []
    ring.append(ring)
    both = copied([rng, rng, ring])
    assert both[0] is both[1]
    assert both[0].random() == rng.random()
    assert both[2][0] is both[2]


def test_trees_go_on_from_any_moment_and_their_nodes_are_shared():
    model = anomaly.HalfSpaceTrees(n_trees=3, height=4, window_size=20, seed=1)
    rng = np.random.default_rng(0)
    for i in range(70):
        copy = copied(model)
        assert [list(tree.iter_dfs()) for tree in copy.trees] == copy._tree_nodes
        for x in rng.uniform(size=(3, 2)).tolist():
            row = dict(zip("ab", x, strict=True))
            for each in (model, copy) if i % 7 == 0 else (model,):
                each.learn_one(row)
            assert i % 7 or model.score_one(row) == copy.score_one(row)


@pytest.mark.thorough
def test_equal_models_have_equal_bytes_before_and_after():
    for name in NAMES:
        detector = make_detector(name)
        state = fed(detector, 300).state()
        assert fed(detector, 300).state() == state
        assert detector.restore(COLUMNS, state).state() == state


# ------------------------------------------------------------------------------ what is known
@pytest.mark.thorough
def test_a_rehearsal_gives_the_columns_that_a_model_asks_for_by_name():
    detector = as_detector(
        compose.Select("pressure", "kW")
        | preprocessing.StandardScaler()
        | anomaly.HalfSpaceTrees(seed=1)
    )
    scorer = fed(detector, detector.warm_up_events + 300)
    state = scorer.state()
    row = np.array([0.1, 0.2, 0.3])
    assert detector.restore(COLUMNS, state).score_one(row) == scorer.score_one(row)


class Mine(anomaly.HalfSpaceTrees):
    pass


@pytest.mark.parametrize(("model", "sentence"), [
    (compose.FuncTransformer(lambda x: x) | anomaly.HalfSpaceTrees(), "lambda"),
    (compose.FuncTransformer(copied) | anomaly.HalfSpaceTrees(), "none of River's"),
    (Mine(), r"test_riverstate\.Mine is no class of a River model; for a class .* write a det"),
    (
        anomaly.PredictiveAnomalyDetection(time_series.HoltWinters(alpha=0.3)),
        r"AdditiveLevel at .*HoltWinters\.level",
    ),
    (
        preprocessing.AdaptiveStandardScaler() | anomaly.LODA(n_random_cuts=3),
        r"RsEW(Mean|Var) at river\.stats",
    ),
], ids=range(5))  # fmt: skip
def test_what_could_not_be_brought_back_is_refused_when_the_pipeline_is_made(model, sentence):
    with pytest.raises(DetectorError, match=sentence):
        as_detector(model)


def drifting(model, x):
    model.n_bins += 1


def failing(model, x):
    raise IndexError("no row before this one")


@pytest.mark.parametrize(
    ("learn", "sentence"),
    [(drifting, "changes its own parameters"), (failing, "fails on row 1 .*no row before this")],
)
def test_a_model_that_cannot_learn_ordinary_rows_is_refused(learn, sentence, monkeypatch):
    monkeypatch.setattr(anomaly.LODA, "learn_one", learn)
    with pytest.raises(DetectorError, match=sentence):
        as_detector(anomaly.LODA())


# --------------------------------------------------------------------------------- attacks
def attacked(change):
    """Restore a state of half-space trees after `change` of its plain values."""
    detector = make_detector("HalfSpaceTrees", n_trees=2, height=3)
    plain = unseal(fed(detector, 300).state())
    change(plain, plain["models"][1][0])
    return detector.restore(COLUMNS, seal(plain))


ATTACKS = {
    "a function at the root": lambda p, m: p.update(models=["c", "os", "system"]),
    "a function for a number": lambda p, m: m[3].update(counter=["c", "os", "system"]),
    "another default": lambda p, m: m[3].update(limits=["defaultdict", [], ["c", "os", "getpid"]]),
    "a partial of another": lambda p, m: m[3].update(
        limits=["defaultdict", [], ["p", ["c", "os", "system"], ["true"], {}]]
    ),
    "a builtin that acts": lambda p, m: m[3].update(counter=["c", "builtins", "exec"]),
    "what a module of River imports": lambda p, m: m[3].update(
        counter=["c", "river.base.base", "inspect"]
    ),
    "a method of plain data": lambda p, m: m[3].update(counter=["m", ["l", []], "append"]),
    "a class of subprocess": lambda p, m: p["models"][1].append(
        ["o", "subprocess", "Popen", {}, None]
    ),
    "a class that nobody imported": lambda p, m: p["models"][1].append(
        ["o", "antigravity", "X", {}, None]
    ),
    "a class of River's data sets": lambda p, m: p["models"][1].append(
        ["o", "river.datasets.http", "HTTP", {}, None]
    ),
    "another class of River": lambda p, m: m.__setitem__(2, "LODA"),
    "another window": lambda p, m: m[3].update(window_size=10**15),
    "another height": lambda p, m: m[3].update(height=60),
    "no trees": lambda p, m: m.__setitem__(4, None),
    "words of another generator": lambda p, m: m[3].update(
        rng=["r", 3, bytes(2496) + b"\xff" * 4, None]
    ),
    "objects for numbers": lambda p, m: m[4].__setitem__(3, ["a", "|O", [1], bytes(8)]),
    "a shape beyond its bytes": lambda p, m: m[4].__setitem__(3, ["a", "<f8", [1 << 39], b""]),
    "what is not made yet": lambda p, m: m[3].update(counter=["@", 10**6]),
    "another place's columns": lambda p, m: p.update(columns=["a", 5, "c"]),
    "a scale of nothing": lambda p, m: p["scale"].update(spread=write_array(np.zeros(3))),
    "a scale of nan": lambda p, m: p["scale"].update(centre=write_array(np.full(3, np.nan))),
    "a row of before": lambda p, m: p.update(previous=write_array(np.ones(9))),
    "two models": lambda p, m: p["models"][1].append(["@", 1]),
    "one thing more": lambda p, m: p.update(more=1),
}


@pytest.mark.parametrize("change", ATTACKS.values(), ids=ATTACKS)
def test_a_forged_state_is_refused_and_runs_nothing(change):
    with pytest.raises(CheckpointError):
        attacked(change)
    assert "antigravity" not in sys.modules


def test_the_state_used_to_attack_is_the_real_one():
    assert attacked(lambda p, m: None).score_one(np.zeros(3)) > 0


def test_numbers_that_make_a_model_fail_are_found_before_it_is_used():
    detector = make_detector("GaussianScorer")
    plain = unseal(fed(detector, 400).state())
    for node in nodes_of(plain["models"], "Var"):
        node[3]["_S"] = -5.0
    with pytest.raises(CheckpointError, match="cannot score a row"):
        detector.restore(COLUMNS, seal(plain))


def nodes_of(plain, name):
    if isinstance(plain, list) and plain[:1] == ["o"] and plain[2] == name:
        yield plain
    if isinstance(plain, list | dict):
        for item in plain.values() if isinstance(plain, dict) else plain:
            yield from nodes_of(item, name)


@pytest.mark.parametrize("dtype", ["O", "V8", "U3", "S2", "M8[s]"])
def test_only_plain_numbers_make_an_array(dtype):
    raw = ["a", np.dtype(dtype).str, [1], bytes(np.dtype(dtype).itemsize)]
    with pytest.raises(CheckpointError, match="broken"):
        read_array(raw)


def test_a_compiled_statistic_is_checked_before_it_is_made():
    plain = write(stats.Quantile(0.5))
    node = plain[3]["_quantile"]
    numbers, raw = struct.Struct("<21d2B"), node[2]
    for i, wrong in [(21, 200), (22, 2), (11, 9.0), (16, float("nan"))]:
        changed = list(numbers.unpack(raw))
        changed[i] = wrong
        node[2] = numbers.pack(*changed)
        with pytest.raises(CheckpointError, match="quantile"):
            read(plain)
    node[2] = raw
    assert read(plain).get() == stats.Quantile(0.5).get()


def test_a_compiled_statistic_that_only_river_can_read_is_refused():
    model = compose.FuncTransformer(dict) | anomaly.QuantileFilter(anomaly.LODA(), q=0.9)
    with pytest.raises(DetectorError, match=r"RsEWMean at river\.stats\.ewmean\.EWMean\._ewmean"):
        write([model, stats.EWMean(0.3)])


def test_a_partial_function_keeps_its_arguments():
    made = copied([functools.partial(tuple, ((0.0, 1.0),))])
    assert made[0]() == ((0.0, 1.0),)
