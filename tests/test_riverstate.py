"""States of River models: exact when ours, refused when anybody else's."""

import copyreg
import functools
import hashlib
import operator
import os
import pickle
import random
import subprocess
import sys
import types
import zlib

import numpy as np
import pytest
import river
from river import anomaly, compose, drift, feature_extraction, preprocessing, stats

from rejex_stream.detectors import riverstate
from rejex_stream.detectors.fourier import FourierFeatures
from rejex_stream.errors import CheckpointError, DetectorError


def sealed(raw: bytes) -> bytes:
    """Wrap any pickle as a well-formed state, as a clever attacker would."""
    version = ".".join(river.__version__.split(".")[:2]).encode().ljust(16, b"\0")
    body = riverstate._BODY.pack(len(raw), version) + zlib.compress(raw)
    return riverstate._HEAD.pack(b"RJXR", 1, hashlib.sha256(body).digest()) + body


def by_name(module: str, name: str, *args: str) -> bytes:
    """Pickle that looks a global up and calls it with strings."""
    out = b"\x80\x04"
    for text in (module, name):
        raw = text.encode()
        out += b"\x8c" + bytes([len(raw)]) + raw
    out += b"\x93("
    for text in args:
        raw = text.encode()
        out += b"\x8c" + bytes([len(raw)]) + raw
    return out + b"tR."


class Calls:
    """Reduces to a call of any function."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


EVIL = {
    "os.system": pickle.dumps(Calls(os.system, "touch /tmp/rejex-was-here")),
    "subprocess.Popen": pickle.dumps(Calls(subprocess.Popen, ["true"])),
    "builtins.eval": pickle.dumps(Calls(eval, "1")),
    "builtins.exec": pickle.dumps(Calls(exec, "1")),
    "builtins.__import__": pickle.dumps(Calls(__import__, "os")),
    "builtins.open": pickle.dumps(Calls(open, "/etc/hostname")),
    "builtins.type": pickle.dumps(Calls(type, "x")),
    "builtins.vars": by_name("builtins", "vars"),
    "getattr on a class": pickle.dumps(Calls(getattr, random.Random, "__init__")),
    "getattr on an instance": pickle.dumps(Calls(getattr, stats.Mean(), "__class__")),
    "getattr on a model": pickle.dumps(Calls(getattr, stats.Mean(), "update")),
    "operator.attrgetter": pickle.dumps(operator.attrgetter("a")),
    "operator.methodcaller": pickle.dumps(operator.methodcaller("a")),
    "functools.reduce": pickle.dumps(functools.reduce),
    "partial of os.system": pickle.dumps(functools.partial(os.system, "true")),
    "pickle.loads": pickle.dumps(Calls(pickle.loads, b"N.")),
    "copyreg.add_extension": pickle.dumps(Calls(copyreg.add_extension, "os", "system", 250)),
    "numpy.load": pickle.dumps(Calls(np.load, "x.npy")),
    "dots in a name": by_name("river.anomaly", "hst.random._os.system", "true"),
    "dots through a class": by_name("river.stats.mean", "Mean.update", "true"),
    "module within a module": by_name("river.anomaly.hst", "random", "true"),
    "imported function": by_name("river.anomaly.hst", "make_padded_tree"),
    "function of River": by_name("river.anomaly.hst", "_walk_learn"),
    "imported class": by_name("river.anomaly.lof", "LazySearch"),
    "River's data sets": by_name("river.datasets.http", "HTTP"),
    "River's bandit data": by_name("river.bandit.datasets.news", "NewsArticles"),
    "River's sklearn wrapper": by_name("river.compat", "SKL2RiverRegressor"),
    "lookalike package": by_name("river_evil", "x"),
    "no module": by_name("", "x"),
}


MALFORMED = {
    "numpy object scalar": pickle.dumps(
        Calls(np._core.multiarray.scalar, np.dtype("O"), b"cos\nsystem\n.")
    ),
    "module that is no module": by_name("river.anomaly.nothing", "x"),
    "persistent id": b"\x80\x04\x8c\x01aQ.",
    "truncated": b"\x80\x04\x8c\x05ab",
    "empty": b"",
    "stack underflow": b"\x80\x04" + b"]" * 3 + b"0" * 9,
}


@pytest.mark.parametrize("raw", EVIL.values(), ids=EVIL)
def test_a_malicious_pickle_is_refused_even_with_a_right_checksum(raw):
    with pytest.raises(CheckpointError, match=r"The state (names|binds) "):
        riverstate.decode(sealed(raw))
    assert not os.path.exists("/tmp/rejex-was-here")


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_pickle_is_refused(raw):
    with pytest.raises(CheckpointError, match="cannot be read"):
        riverstate.decode(sealed(raw))


def test_the_wrapping_used_to_attack_is_the_real_one():
    raw = pickle.dumps({"a": [1, 2.5, None, "x"]}, 5)
    assert riverstate.decode(sealed(raw)) == {"a": [1, 2.5, None, "x"]}


@pytest.mark.parametrize("position", [0, 5, 20, 45, -1])
def test_a_flipped_bit_anywhere_is_refused(position):
    blob = bytearray(riverstate.encode(stats.Mean()))
    blob[position] ^= 1
    with pytest.raises(CheckpointError):
        riverstate.decode(bytes(blob))


def test_a_state_of_another_format_version_says_which():
    blob = bytearray(riverstate.encode(stats.Mean()))
    blob[5] = 9
    with pytest.raises(CheckpointError, match="format version 9, this program reads 1"):
        riverstate.decode(bytes(blob))


def test_a_state_of_another_river_says_which():
    raw = pickle.dumps(1)
    body = riverstate._BODY.pack(len(raw), b"0.19".ljust(16, b"\0")) + zlib.compress(raw)
    blob = riverstate._HEAD.pack(b"RJXR", 1, hashlib.sha256(body).digest()) + body
    with pytest.raises(CheckpointError, match=r"River 0\.19, installed is 0\."):
        riverstate.decode(blob)


@pytest.mark.parametrize("claim", [10, 1 << 62])
def test_a_decompression_bomb_stops_at_what_it_claims(claim):
    version = ".".join(river.__version__.split(".")[:2]).encode().ljust(16, b"\0")
    body = riverstate._BODY.pack(claim, version) + zlib.compress(bytes(50_000_000))
    blob = riverstate._HEAD.pack(b"RJXR", 1, hashlib.sha256(body).digest()) + body
    with pytest.raises(CheckpointError, match="claims"):
        riverstate.decode(blob)


MODELS = {
    "rust quantile": stats.Quantile(0.9),
    "rust ewma": stats.EWMean(0.3),
    "rust ewvar": stats.EWVar(0.3),
    "rust iqr": stats.IQR(),
    "rust kurtosis": stats.Kurtosis(),
    "rust skew": stats.Skew(),
    "rust peak to peak": stats.RollingPeakToPeak(20),
    "rolling quantile": stats.RollingQuantile(0.5, window_size=20),
    "autocorrelation": stats.AutoCorr(lag=3),
}


@pytest.mark.parametrize("statistic", MODELS.values(), ids=MODELS)
def test_statistics_go_on_bit_for_bit(statistic):
    rng = random.Random(1)
    statistic = statistic.clone()
    for _ in range(200):
        statistic.update(rng.gauss(0, 1))
    copy = riverstate.decode(riverstate.encode(statistic))
    for _ in range(200):
        x = rng.gauss(0, 1)
        assert statistic.get() == copy.get()
        statistic.update(x)
        copy.update(x)


def test_adwin_and_page_hinkley_go_on_the_same():
    rng = random.Random(2)
    detectors = [drift.ADWIN(), drift.PageHinkley()]
    for _ in range(300):
        for detector in detectors:
            detector.update(rng.random())
    copies = riverstate.decode(riverstate.encode(detectors))
    for i in range(600):
        x = rng.random() + (i > 300)
        for detector, copy in zip(detectors, copies, strict=True):
            detector.update(x)
            copy.update(x)
            assert detector.drift_detected == copy.drift_detected


def test_a_pipeline_with_a_bound_method_inside_goes_on_the_same():
    model = (
        preprocessing.StandardScaler()
        | feature_extraction.RBFSampler(seed=3, n_components=5)
        | anomaly.OneClassSVM()
    )
    for i in range(50):
        model.learn_one({"a": i % 7, "b": i % 3})
    copy = riverstate.decode(riverstate.encode(model))
    for i in range(50):
        x = {"a": i % 5, "b": i % 4, "new": 1.0}
        assert model.score_one(x) == copy.score_one(x)
        model.learn_one(x)
        copy.learn_one(x)


def test_fourier_features_are_drawn_again_the_same():
    features = FourierFeatures(seed=5)
    x = {"a": 0.1, "b": 2.0}
    copy = riverstate.decode(riverstate.encode(features))
    assert features.transform_one(x) == copy.transform_one(x)


def test_arrays_and_generators_come_back():
    value = {"a": np.arange(6.0).reshape(2, 3), "s": np.float64(2.5), "r": random.Random(4)}
    back = riverstate.decode(riverstate.encode(value))
    assert np.array_equal(back["a"], value["a"])
    assert back["s"] == 2.5
    assert back["r"].random() == value["r"].random()


def test_a_lambda_is_refused_when_the_state_is_written():
    model = compose.FuncTransformer(lambda x: x) | anomaly.HalfSpaceTrees()
    with pytest.raises(DetectorError, match="lambda"):
        riverstate.encode(model)


def test_a_foreign_class_is_refused_when_the_state_is_written():
    with pytest.raises(DetectorError, match=r"subprocess\.Popen"):
        riverstate.encode({"x": subprocess.Popen})


@pytest.fixture
def user_module(monkeypatch):
    source = """
import os
from subprocess import Popen
from river import anomaly

def double(x):
    return {key: 2 * value for key, value in x.items()}

class Mine(anomaly.HalfSpaceTrees):
    pass
"""
    module = types.ModuleType("somebodys_models")
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, "somebodys_models", module)
    return module


def test_a_users_module_is_trusted_only_when_named(user_module):
    model = compose.FuncTransformer(user_module.double) | user_module.Mine(seed=1)
    with pytest.raises(DetectorError, match="trusted_modules"):
        riverstate.encode(model)
    blob = riverstate.encode(model, trusted_modules=["somebodys_models"])
    with pytest.raises(CheckpointError, match="somebodys_models"):
        riverstate.decode(blob)
    copy = riverstate.decode(blob, trusted_modules=["somebodys_models"])
    assert type(copy["Mine"]) is user_module.Mine


@pytest.mark.parametrize("name", ["os", "Popen", "anomaly", "os.system"])
def test_a_trusted_module_lends_no_trust_to_what_it_imports(user_module, name):
    with pytest.raises(CheckpointError):
        riverstate.decode(
            sealed(by_name("somebodys_models", name, "true")),
            trusted_modules=["somebodys_models"],
        )


def test_every_allowed_global_exists_and_is_defined_where_it_is_said_to_be():
    for module, name in riverstate.CLASSES | riverstate.FUNCTIONS:
        found = riverstate._look_up(module, name, frozenset())
        assert callable(found), (module, name)
    for owner, name in riverstate.BOUND_METHODS:
        module, _, cls = owner.rpartition(".")
        assert callable(getattr(riverstate._look_up(module, cls, frozenset()), name))


def test_a_model_within_a_model_keeps_what_the_two_share():
    rng = random.Random(1)
    both = riverstate.decode(riverstate.encode([rng, rng]))
    assert both[0] is both[1]
