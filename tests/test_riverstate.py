"""States of River models: exact when ours, refused or harmless when anybody else's."""

import functools
import random
import struct
import subprocess
import sys
import textwrap
import types
import zlib

import numpy as np
import pytest
import river
from river import anomaly, compose, feature_extraction, preprocessing, stats, time_series

from rejex_stream.detectors import RIVER, as_detector, make_detector
from rejex_stream.detectors.river.model_state import (
    class_of,
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


def copied(model, **options):
    plain, kinds = write(model, **options)
    return read(unseal(seal(plain)), kinds, **options)


def fed(detector, n):
    scorer = detector.start(COLUMNS, seed=5)
    for x in np.random.default_rng(1).normal(size=(n, 3)):
        scorer.learn_one(x)
    return scorer


# ------------------------------------------------------------------------------- the bytes
@pytest.mark.parametrize("position", [0, 5, 20, 45, -1])
def test_a_flipped_bit_anywhere_is_refused(position):
    blob = bytearray(seal([1, 2.5, None, "x"]))
    blob[position] ^= 1
    with pytest.raises(CheckpointError):
        unseal(bytes(blob))


def resealed(body, format_version=2):
    import hashlib

    head = struct.pack(">4sH32s", b"RJXR", format_version, hashlib.sha256(body).digest())
    return head + body


def body_of(raw, length=None, version=None):
    version = version or ".".join(river.__version__.split(".")[:2]).encode()
    length = len(raw) if length is None else length
    return struct.pack(">Q16s", length, version.ljust(16, b"\0")) + zlib.compress(raw)


def test_a_state_of_another_format_version_says_which():
    with pytest.raises(CheckpointError, match="format version 9, this program reads 2"):
        unseal(resealed(body_of(b"\xc0"), 9))


def test_a_state_of_another_river_says_which():
    with pytest.raises(CheckpointError, match=r"River 0\.19, installed is 0\."):
        unseal(resealed(body_of(b"\xc0", version=b"0.19")))


@pytest.mark.thorough
@pytest.mark.parametrize("claim", [10, 1 << 62])
def test_a_decompression_bomb_stops_at_what_it_claims(claim):
    with pytest.raises(CheckpointError, match="claims"):
        unseal(resealed(body_of(bytes(50_000_000), claim)))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x91" * 100_000, b"\x93\x01"])
def test_what_is_no_messagepack_is_refused(raw):
    with pytest.raises(CheckpointError, match="cannot be read"):
        unseal(resealed(body_of(raw)))


def test_the_wrapping_used_to_attack_is_the_real_one():
    assert unseal(resealed(body_of(b"\x07"))) == 7


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


@pytest.mark.parametrize(
    "value",
    [
        [1, -(2**63), 2**63, 10**40, 0.1, float("inf"), True, None, "å", b"\x00"],
        {"a": (1, ("b",)), 3: {4.5: frozenset({"x"})}},
        {("a", 1): {1, 2}},
        [np.float64(2.5), np.int64(-3), np.arange(6, dtype=np.int16).reshape(2, 3)],
    ],
)
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
@pytest.mark.parametrize("name", NAMES)
def test_a_rehearsal_sees_every_kind_that_a_named_model_ever_holds(name):
    """So that the state of a named detector can declare nothing and is held to all of it."""
    detector = make_detector(name)
    scorer = fed(detector, detector.warm_up_events + 300)
    for value in (1e12, -1e300):
        scorer.learn_one(np.full(3, value))
    scorer.score_one(np.zeros(3))
    assert unseal(scorer.state())["also"] == {}


@pytest.mark.thorough
def test_a_rehearsal_gives_the_columns_that_a_model_asks_for_by_name():
    detector = as_detector(
        compose.Select("pressure", "kW")
        | preprocessing.StandardScaler()
        | anomaly.HalfSpaceTrees(seed=1)
    )
    scorer = fed(detector, detector.warm_up_events + 300)
    state = scorer.state()
    assert unseal(state)["also"] == {}
    row = np.array([0.1, 0.2, 0.3])
    assert detector.restore(COLUMNS, state).score_one(row) == scorer.score_one(row)
    asked = compose.FuncTransformer(never_enough) | anomaly.HalfSpaceTrees(seed=1)
    with pytest.raises(DetectorError, match="on ordinary rows: KeyError"):
        as_detector(asked)


def never_enough(x):
    return {"more": x[f"column {len(x)}"]}


@pytest.fixture
def user_module(monkeypatch):
    source = """
import os
from subprocess import Popen
from river import anomaly, base

def double(x):
    return {key: 2 * value for key, value in x.items()}

class Mine(anomaly.HalfSpaceTrees):
    pass

class Turning(base.AnomalyDetector):
    n = 0
    def __init__(self, gain=1.0):
        self.gain = gain
    def learn_one(self, x):
        self.n += 1
        if self.n == 100:
            self.late = {"total": 3, "when": (1, 2)}
    def score_one(self, x):
        return self.gain * self.n

class Drifting(Turning):
    def learn_one(self, x):
        self.gain *= 0.99

class Failing(Turning):
    def learn_one(self, x):
        raise IndexError("no row before this one")

class Locked(Turning):
    def __init__(self, gain=1.0):
        import threading
        self.gain = gain
        self.lock = threading.Lock()

class Hooked(Turning):
    def learn_one(self, x):
        self.n += 1
        if self.n == 100:
            self.hook = os.getpid
"""
    module = types.ModuleType("somebodys_models")
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, "somebodys_models", module)
    return module


def test_a_users_model_goes_on_and_what_it_takes_on_late_is_declared(user_module):
    detector = as_detector(compose.FuncTransformer(user_module.double) | user_module.Turning(2.0))
    scorer = fed(detector, 120)
    assert "somebodys_models.Turning.late" in unseal(scorer.state())["also"]
    copy = detector.restore(COLUMNS, scorer.state())
    assert copy.state() == scorer.state()
    assert copy.feed.models[0]["Turning"].late == {"total": 3, "when": (1, 2)}


def test_a_users_class_is_trusted_only_when_named(user_module):
    model = user_module.Mine(seed=1)
    with pytest.raises(DetectorError, match="trusted_modules"):
        write(model)
    plain, kinds = write(model, trusted_modules=["somebodys_models"])
    with pytest.raises(CheckpointError, match="somebodys_models"):
        read(plain, kinds)
    assert type(read(plain, kinds, trusted_modules=["somebodys_models"])) is user_module.Mine


@pytest.mark.parametrize("name", ["os", "Popen", "anomaly", "os.system", "double"])
def test_a_trusted_module_lends_no_trust_to_what_it_imports(user_module, name):
    with pytest.raises(CheckpointError, match="no class of a River model"):
        class_of("somebodys_models", name, frozenset({"somebodys_models"}))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda _: compose.FuncTransformer(lambda x: x) | anomaly.HalfSpaceTrees(), "lambda"),
        (lambda mine: mine.Failing(), r"fails on row 1 .*no row before this one"),
        (lambda mine: mine.Drifting(), "changes its own parameters"),
        (lambda mine: mine.Locked(), r"_thread\.lock at somebodys_models\.Locked\.lock"),
        (
            lambda _: anomaly.PredictiveAnomalyDetection(time_series.HoltWinters(alpha=0.3)),
            r"AdditiveLevel at .*HoltWinters\.level",
        ),
        (
            lambda _: preprocessing.AdaptiveStandardScaler() | anomaly.LODA(n_random_cuts=3),
            r"RsEW(Mean|Var) at river\.stats",
        ),
    ],
)
def test_what_could_not_be_brought_back_is_refused_when_the_pipeline_is_made(
    user_module, make, sentence
):
    model = make(user_module)
    with pytest.raises(DetectorError, match=sentence):
        as_detector(model)


def test_a_function_taken_on_later_is_refused_not_named(user_module):
    scorer = fed(as_detector(user_module.Hooked()), 120)
    with pytest.raises(DetectorError, match="has taken on a function"):
        scorer.state()


# --------------------------------------------------------------------------------- attacks
def attacked(change):
    """Restore a state of half-space trees after `change` of its plain values."""
    detector = make_detector("HalfSpaceTrees", n_trees=2, height=3)
    plain = unseal(fed(detector, 300).state())
    change(plain, plain["models"][1][0])
    return detector.restore(COLUMNS, seal(plain))


def attribute(model, name, value):
    model[4][model[3].index(name)] = value


ATTACKS = {
    "a function at the root": lambda p, m: p.update(models=["c", "os", "system"]),
    "a function for a number": lambda p, m: attribute(m, "counter", ["c", "os", "system"]),
    "another default": lambda p, m: attribute(
        m, "limits", ["defaultdict", [], [], ["c", "os", "getpid"]]
    ),
    "a partial of another": lambda p, m: attribute(
        m, "limits", ["defaultdict", [], [], ["p", ["c", "os", "system"], ["true"], []]]
    ),
    "a method": lambda p, m: attribute(m, "counter", ["m", ["@", 1], "learn_one"]),
    "a declared function": lambda p, m: p["also"].update(
        {"river.anomaly.hst.HalfSpaceTrees.counter": ["call:['c', 'os', 'system']"]}
    ),
    "a declared class of subprocess": lambda p, m: (
        p["also"].update({"models[]": ["subprocess.Popen"], "subprocess.Popen": [""]}),
        p["models"][1].append(["o", "subprocess", "Popen", [], [], None]),
    ),
    "a declared class that nobody imported": lambda p, m: (
        p["also"].update({"models[]": ["antigravity.X"], "antigravity.X": [""]}),
        p["models"][1].append(["o", "antigravity", "X", [], [], None]),
    ),
    "a class of River's data sets": lambda p, m: (
        p["also"].update({"models[]": ["river.datasets.http.HTTP"]}),
        p["models"][1].append(["o", "river.datasets.http", "HTTP", [], [], None]),
    ),
    "another class of River": lambda p, m: m.__setitem__(2, "LODA"),
    "a missing attribute": lambda p, m: (m[3].pop(), m[4].pop()),
    "one attribute more": lambda p, m: (m[3].append("learn_one"), m[4].append(1)),
    "another window": lambda p, m: attribute(m, "window_size", 10**15),
    "another height": lambda p, m: attribute(m, "height", 60),
    "more trees": lambda p, m: attribute(m, "n_trees", 10**9),
    "a counter beyond the window": lambda p, m: attribute(m, "counter", 250),
    "no trees": lambda p, m: m.__setitem__(5, None),
    "a mass below zero": lambda p, m: m[5].__setitem__(4, write_array(np.full(30, -1))),
    "a column that is none": lambda p, m: m[5].__setitem__(1, []),
    "words of another generator": lambda p, m: attribute(
        m, "rng", ["r", 3, bytes(2496) + b"\xff" * 4, None]
    ),
    "objects for numbers": lambda p, m: m[5].__setitem__(3, ["a", "|O", [1], bytes(8)]),
    "a shape beyond its bytes": lambda p, m: m[5].__setitem__(3, ["a", "<f8", [1 << 39], b""]),
    "a shape below zero": lambda p, m: m[5].__setitem__(3, ["a", "<f8", [-1], b""]),
    "what is not made yet": lambda p, m: attribute(m, "counter", ["@", 10**6]),
    "another place's columns": lambda p, m: p.update(columns=["a", 5, "c"]),
    "rows for a scale": lambda p, m: p.update(scale={"rows": write_array(np.ones((5, 2)))}),
    "a scale of nothing": lambda p, m: p["scale"].update(spread=write_array(np.zeros(3))),
    "a scale of nan": lambda p, m: p["scale"].update(centre=write_array(np.full(3, np.nan))),
    "a row of before": lambda p, m: p.update(previous=write_array(np.ones(9))),
    "two models": lambda p, m: p["models"][1].append(["@", 1]),
    "one thing more": lambda p, m: p.update(more=1),
}


@pytest.mark.parametrize("change", ATTACKS.values(), ids=ATTACKS)
def test_a_forged_state_is_refused_even_with_a_right_checksum(change):
    with pytest.raises(CheckpointError):
        attacked(change)
    assert "antigravity" not in sys.modules


def test_the_state_used_to_attack_is_the_real_one():
    assert attacked(lambda p, m: None).score_one(np.zeros(3)) > 0


def test_numbers_that_make_a_model_fail_are_found_before_it_is_used():
    detector = make_detector("GaussianScorer")
    plain = unseal(fed(detector, 400).state())
    for node in nodes_of(plain["models"], "Var"):
        attribute(node, "_S", -5.0)
    with pytest.raises(CheckpointError, match="cannot score a row"):
        detector.restore(COLUMNS, seal(plain))


def nodes_of(plain, name):
    if isinstance(plain, list):
        if len(plain) == 6 and plain[0] == "o" and plain[2] == name:
            yield plain
        for item in plain:
            yield from nodes_of(item, name)


@pytest.mark.parametrize("dtype", ["O", "V8", "U3", "S2", "M8[s]", "f2", ">f8", "<f16"])
def test_only_plain_numbers_make_an_array(dtype):
    raw = ["a", np.dtype(dtype).str, [1], bytes(np.dtype(dtype).itemsize)]
    with pytest.raises(CheckpointError, match="broken"):
        read_array(raw)


def test_a_compiled_statistic_is_checked_before_it_is_made():
    plain, kinds = write(stats.Quantile(0.5))
    numbers = plain[4][plain[3].index("_quantile")][2]
    for i, wrong in [(21, 200), (22, 2), (11, 9.0), (16, float("nan")), (0, 7.0), (3, None)]:
        kept, numbers[i] = numbers[i], wrong
        with pytest.raises(CheckpointError):
            read(plain, kinds)
        numbers[i] = kept
    assert read(plain, kinds).get() == stats.Quantile(0.5).get()


def test_a_compiled_statistic_that_only_river_can_read_is_refused():
    model = compose.FuncTransformer(dict) | anomaly.QuantileFilter(anomaly.LODA(), q=0.9)
    with pytest.raises(DetectorError, match=r"RsEWMean at river\.stats\.ewmean\.EWMean\._ewmean"):
        write([model, stats.EWMean(0.3)])


def test_what_shares_itself_within_a_tuple_is_refused():
    knot = []
    pair = (knot,)
    knot.append(pair)
    with pytest.raises(DetectorError, match="it holds itself"):
        write(pair)


def test_a_partial_function_keeps_its_arguments():
    made = copied([functools.partial(tuple, ((0.0, 1.0),))])
    assert made[0]() == ((0.0, 1.0),)


# ------------------------------------------------------------------------------------- fuzz
FUZZ = textwrap.dedent(
    """
    import copy, random, sys, time, warnings
    import numpy as np
    from river import anomaly, preprocessing
    from rejex_stream.detectors import RIVER, as_detector, make_detector
    from rejex_stream.detectors.river.model_state import seal, unseal
    from rejex_stream.errors import CheckpointError

    warnings.simplefilter("ignore")
    rng = random.Random(int(sys.argv[2]))
    COLUMNS = ["a", "b", "c"]
    rows = np.random.default_rng(3).normal(size=(400, 3))
    small = {
        "HalfSpaceTrees": {"n_trees": 2, "height": 3, "window_size": 40},
        "LODA": {"n_random_cuts": 4},
        "LocalOutlierFactor": {"window_size": 12, "n_neighbors": 3},
        "OneClassSVM": {"n_components": 5},
    }
    detectors = [make_detector(f"river:{name}", **small.get(name, {})) for name in RIVER] + [
        as_detector(preprocessing.StandardScaler() | anomaly.LODA(n_random_cuts=3)),
        as_detector(anomaly.QuantileFilter(anomaly.GaussianScorer(window_size=20), q=0.9)),
    ]
    ODD = [None, True, 0, -1, 7, 2**62, 0.0, -1.5, 1e300, float("nan"), float("inf"), "", "a",
           b"", b"x" * 8, [], {}, ["@", 0], ["@", 3], ["l", []], ["tuple", []], ["i", "ff"],
           ["dict", [], [], None], ["a", "<f8", [1], b"x" * 8], ["c", "os", "getpid"],
           ["o", "river.stats.mean", "Mean", ["n", "_mean"], [1.0, 2.0], None]]

    def places(value, found):
        if isinstance(value, (list, dict)):
            for key in range(len(value)) if isinstance(value, list) else list(value):
                found.append((value, key))
                places(value[key], found)
        return found

    def mutate(plain):
        everywhere = places(plain, [])
        holder, key = rng.choice(everywhere)
        choice = rng.randrange(7)
        old = holder[key]
        if choice == 0:
            holder[key] = rng.choice(ODD)
        elif choice == 1:
            other, at = rng.choice(everywhere)
            holder[key] = copy.deepcopy(other[at])
        elif choice == 2:
            del holder[key]
        elif choice == 3 and isinstance(holder, list):
            holder.insert(key, rng.choice(ODD))
        elif choice == 4 and isinstance(old, (int, float)) and old is not True:
            holder[key] = rng.choice([-old, old + 1, old * 3.7, 1 / (old or 1), int(old == 0)])
        elif choice == 5 and isinstance(old, bytes) and old:
            i = rng.randrange(len(old))
            holder[key] = old[:i] + bytes([rng.randrange(256)]) + old[i + rng.randrange(2):]
        elif isinstance(old, list):
            rng.shuffle(old)

    refused = alive = 0
    states = []
    for detector in detectors:
        for n in (0, 30, 320):
            scorer = detector.start(COLUMNS, seed=5)
            for x in rows[:n]:
                scorer.score_one(x)
                scorer.learn_one(x)
            states.append((detector, scorer.state()))
    began = time.process_time()
    count = 0
    while count < int(sys.argv[1]) and time.process_time() - began < float(sys.argv[3]):
        detector, state = states[count % len(states)]
        count += 1
        plain = unseal(state)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            mutate(plain)
        try:
            blob = seal(plain)
        except (ValueError, TypeError, RecursionError, OverflowError):
            continue
        try:
            scorer = detector.restore(COLUMNS, blob)
        except CheckpointError:
            refused += 1
            continue
        for x in rows[320:350]:
            assert type(scorer.score_one(x)) is float
            scorer.learn_one(x)
        detector.restore(COLUMNS, scorer.state())
        alive += 1
    print(count, refused, alive)
    """
)


@pytest.mark.long
@pytest.mark.thorough
def test_no_mutated_state_ends_the_process_or_fails_later(tmp_path):
    """Mutated in their structure and sealed again; each is refused, or works and is written."""
    script = tmp_path / "fuzz.py"
    script.write_text(FUZZ, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script), "3000", "20", "12"],  # how many, seed, seconds of processor
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    count, refused, alive = map(int, run.stdout.split())
    assert count >= 500
    assert refused > count // 2
    assert alive > 0
