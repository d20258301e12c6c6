"""A start with a native core that is damaged, foreign or panics: Python judges, and says why."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rejex_stream import native_core
from rejex_stream.engine import Engine
from rejex_stream.engine.model import BatchModel
from rejex_stream.errors import DetectorError, EngineError
from rejex_stream.native_core import Core, core
from rejex_stream.run.executors import InlineExecutor
from tests.program import ended, environment
from tests.streams import readings, spec

EXTENSION = Path(np._core._multiarray_umath.__file__)
ASKS = "from rejex_stream.native_core import core; print(core()[1])"
LOADS = "from rejex_native._core import poll\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return where a package of another core is found before any that is installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REJEX_CORE", raising=False)
    package = tmp_path / "site" / "rejex_native"
    package.mkdir(parents=True)
    return package


def said(folder, **more):
    """Return the sentence of a process of its own."""
    found = environment(**more | {"PYTHONPATH": str(folder.parent)})
    done = ended([sys.executable, "-c", ASKS], env=found)
    assert done.returncode == 0, done.stderr
    return done.stdout


def half():
    content = EXTENSION.read_bytes()
    return content[: len(content) // 2]


DAMAGED = {
    "garbage": (LOADS, lambda: b"\x00garbage\xff" * 99, "ImportError"),
    "truncated": (LOADS, half, ""),  # as the loader pleases: an error, or SIGBUS
    "foreign": (LOADS, EXTENSION.read_bytes, "PyInit__core"),
    "empty": (LOADS, lambda: b"", "ImportError"),
    "killing": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", bytes, "SIGSEGV"),
    "raising": ("class Panic(BaseException): ...\nraise Panic('panicked')", bytes, "panicked"),
    "of another tree": ("poll = fast_path_of = None", bytes, "is of another tree"),
    "of other names": ("REACHED = ['rejex_stream.types.Verdict']", bytes, "reaches other names"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("what", [*DAMAGED])
def test_whatever_is_wrong_with_a_core_python_judges(folder, what):
    source, content, why = DAMAGED[what]
    (folder / "__init__.py").write_text(source)
    (folder / "_core.abi3.so").write_bytes(content())
    sentence = said(folder)
    assert sentence.startswith("Python judges all events: the native core ")
    assert why in sentence
    assert sentence.count("\n") == 1


def test_a_core_that_is_not_wanted_is_not_loaded(folder):
    (folder / "__init__.py").write_text("import os\nos.abort()")
    assert said(folder, REJEX_CORE="python") == "Python judges all events: REJEX_CORE=python\n"


def test_a_panic_while_it_is_loaded_is_a_sentence(folder, monkeypatch):
    """After its trial, in the process that judges."""
    (folder / "__init__.py").write_text("class Panic(BaseException): ...\nraise Panic('late')")
    monkeypatch.syspath_prepend(folder.parent)
    for name in [name for name in sys.modules if name.startswith("rejex_native")]:
        monkeypatch.delitem(sys.modules, name)
    native_core._remember(native_core._digest(), "passed", "")
    core.cache_clear()
    try:
        native, why = core()
    finally:
        core.cache_clear()
    assert native is None
    assert "cannot be loaded (Panic: late)" in why


# --------------------------------------------------------------------------- with the core there
@pytest.fixture
def built(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REJEX_CORE", raising=False)
    found = pytest.importorskip("rejex_native", reason="the native core is not built: make native")
    core.cache_clear()
    yield found
    core.cache_clear()


@pytest.mark.thorough
def test_a_core_is_tried_once_and_another_one_again(built, tmp_path, monkeypatch):
    assert core()[0] is not None
    core.cache_clear()
    with monkeypatch.context() as patched:  # no process of its own can be started
        patched.setattr(sys, "executable", "")
        assert core()[0] is not None
        core.cache_clear()
        patched.setattr(np, "__version__", "another")
        assert "cannot be tried" in core()[1]
    (tmp_path / "file").write_text("")  # where nothing can be remembered
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    core.cache_clear()
    assert core()[0] is not None


SCORES = {
    "too few": lambda X: np.zeros(len(X) - 1), "none": lambda X: np.empty(0),
    "a column": lambda X: np.zeros((len(X), 1)), "texts": lambda X: ["much"] * len(X),
    "nothing": lambda X: None,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("what", [*SCORES])
def test_scores_of_another_length_or_kind_are_refused_by_both_cores(built, what, batch):
    for native in (None, Core(built.fast_path_of, built.poll, built.beside)):
        engine = Engine(spec(every=None), InlineExecutor())
        engine._core = native
        feed = readings(600, keys=("a",), missing=0.0)
        engine.process(feed[:400])
        scorer = SimpleNamespace(score=SCORES[what])
        serving = engine._live["a"].model._serving
        serving.fitted = replace(serving.fitted, scorer=scorer)
        with pytest.raises(DetectorError, match=r"scored \d+ rows of stream 'a' with"):
            engine.process(feed[400 : 400 + batch])


@pytest.mark.thorough
def test_a_panic_is_an_error_that_names_the_event_and_the_next_start_is_pythons(built, monkeypatch):
    assert core()[0] is not None
    engine = Engine(spec(every=None), InlineExecutor())
    engine._core = Core(built.fast_path_of, built.poll, built.beside)
    feed = readings(600, keys=("a",), missing=0.0)
    engine.process(feed[:400])
    with monkeypatch.context() as patched:
        patched.setattr(BatchModel, "_scores", lambda *_: [])
        with pytest.raises(EngineError) as raised:
            engine.process(feed[400:401])
    assert "broke off at t-0-400 of stream 'a'" in str(raised.value)
    assert "src/fast_path.rs" in str(raised.value)
    with pytest.raises(EngineError, match="An earlier call"):
        engine.process(feed[401:])
    core.cache_clear()
    native, why = core()
    assert native is None
    assert "broke off at t-0-400" in why
    assert "to try it again" in why
