"""The native core's trial: both cores judge, count, read and write the same, or Python goes alone.

Every preset meets every kind of scorer; policies, ways to calibrate, markers and mappings go round
with them. :mod:`rejex_stream.native_core` runs it in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
from rejex_connectors.kafka.messages import OutcomeMessages

from rejex_stream import types
from rejex_stream.decode import CsvDecoder, JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.detectors.scorers import ColumnHistograms, GaussianMixture
from rejex_stream.detectors.sensor.recipes import Mahalanobis
from rejex_stream.detectors.table import TableScorer
from rejex_stream.encode.records import verdict_encoder
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.sensor_registry import Limits, SensorRegistry
from rejex_stream.features import FeatureSpec
from rejex_stream.features.preset import PresetName
from rejex_stream.incidents import Alarms
from rejex_stream.monitor import MonitorBank, MonitorConfig
from rejex_stream.native_core import Core, reason_against
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.trusted_clock import DAY_MS, FIRST_MS

_ANEW = "build it again (`make native`)"
_EVENTS = 300


class Case(NamedTuple):
    """One way to judge: what scores, of which columns, by which policy."""

    kind: str
    preset: PresetName
    channels: int
    policy: dict[str, Any]
    calibration: Any
    guard: float | None
    alarms: bool
    modes: bool

    def __str__(self) -> str:
        return f"{self.kind} on {self.preset}, {self.channels} channels, {self.policy}"


_PRESETS: tuple[PresetName, ...] = get_args(PresetName)
_KINDS = ("histograms", "gaussian", "distance", "largest")
_POLICIES: tuple[dict[str, Any], ...] = (
    {"rate": 0.1},
    {"rate": 0.1, "burst": 20},
    {"tolerance": 4.0, "ties": "paper"},
    {"rate": 0.1, "burst": 20, "per_day": 150},
    {"tolerance": 4.0},
)


def _cases() -> Iterator[Case]:
    ways = (("holdout", None), ("shadow", 0.9), ("training", None))
    for n, (kind, preset) in enumerate(product(_KINDS, _PRESETS)):
        calibration, guard = ways[n % 3]
        channels = (3, 1, 2, 11)[(n + n // 4) % 4]  # beyond ten, presets have other columns
        yield Case(
            kind, preset, channels, _POLICIES[n % 5], calibration, guard, n % 2 == 0, n % 7 == 6
        )
    for n, alarms in enumerate((True, False)):
        yield Case("siblings", "sensor", 2 - n, _POLICIES[n], "shadow", 0.9, alarms, False)


CASES = tuple(_cases())


def main() -> None:
    """Try the core that is installed; say on standard output what is wrong with it."""
    import rejex_native

    if reason := wrong(rejex_native):
        print(reason)
        sys.exit(1)


def wrong(built: Any) -> str:  # noqa: ANN401 - the native core, a module
    """Return what is wrong with a core by events that both judge; empty: nothing."""
    if reason := reason_against(built):
        return reason
    try:
        for case in CASES:
            python, native = judged(case, None, None), judged(case, built, [])
            if python != native:
                return f"differs from Python in what it judges ({case}): {_ANEW}"
        plain = judged(CASES[0], None, None)
        verdicts = [verdict for verdict in plain if isinstance(verdict, types.Verdict)]
        for name, does in (("writes", _written), ("reads", _read), ("hears", _heard)):
            if does(verdicts, lambda _: None) != does(verdicts, lambda n: getattr(built, n, None)):
                return f"differs from Python in what it {name}: {_ANEW}"
    except Exception as error:
        return f"cannot judge ({type(error).__name__}: {error}): {_ANEW}"
    return ""


@dataclass(frozen=True)
class _Recipe:
    """Models of the kinds that are scored natively, without the libraries that fit them."""

    kind: str
    name: str = "trial"

    def fit(self, X: Any, *, seed: int) -> Any:  # noqa: ANN401
        d = X.shape[1]
        inner: Any = None
        if self.kind == "gaussian":
            root = np.triu(np.full((d, d), 0.25)) + np.diag(1.0 / (X.std(axis=0) + 0.1))
            inner = GaussianMixture(X.mean(axis=0)[None], root[None], np.array([-1.5]), np.empty(0))
        elif self.kind == "histograms":
            edges = np.quantile(X, np.linspace(0.0, 1.0, 9), axis=0).T.copy()
            heights = np.log2(np.arange(1.0, 11.0))[None] + np.arange(d)[:, None]
            reach = np.array([edges[:, 0] - 0.5, edges[:, -1] + 0.5])
            inner = ColumnHistograms(edges, reach, heights, heights.min(axis=1), np.empty(0))
        else:
            return _Largest(X.mean(axis=0))
        return TableScorer(self.name, d, None, inner)


@dataclass(frozen=True)
class _Largest:
    """A model that the native core does not know: the largest distance from the mean."""

    mean: Any

    def score(self, X: Any) -> Any:  # noqa: ANN401
        return np.abs(X - self.mean).max(axis=1)


def judged(case: Case, built: Any, fast_paths: list[Any] | None) -> list[Any]:  # noqa: ANN401
    """Return the verdicts of two streams, their incidents, alarms and snapshots.

    `built` is the native core, ``None`` for Python's own. What it made for its streams is added to
    `fast_paths`: they say how many events it took.
    """
    recipe = Mahalanobis() if case.kind in ("distance", "siblings") else _Recipe(case.kind)
    names, said = tuple(f"c{i}" for i in range(case.channels)), "*" * (case.kind == "siblings")
    spec = EngineSpec(
        recipe, FeatureSpec(names, preset=case.preset, carry_forward_events=1, siblings=said),
        RejectionPolicy(0.1, **case.policy), window=60, modes=case.modes,
        alarms=Alarms() if case.alarms else None,
        schedule=RefitSchedule(
            first_fit_events=60, refit_every_events=90, refit_lag_events=5, buffer_events=80,
            calibration=case.calibration, guard_quantile=case.guard,
        ),
    )  # fmt: skip
    engine = Engine(spec, InlineExecutor())
    engine._core = None
    if built is not None:

        def fast_path(state: Any) -> Any:  # noqa: ANN401
            fast_paths.append(made := built.fast_path_of(state))  # type: ignore[union-attr]
            return made

        engine._core = Core(fast_path, built.poll, built.beside)
    known = MonitorConfig(window=60, contamination=0.1, tolerance=4.0, false_alarm_events=200.0)
    bank = MonitorBank(known, None if built is None else built.note)
    readings, results, at = _readings(case), list[Any](), 0
    while at < len(readings):
        part = readings[at : (at := at + 1 + at % 29)]
        verdicts = engine.process(part)
        changes = engine.take_incidents()
        results += [*verdicts, *changes, bank.observe(verdicts)]
        results += [engine.command(_answer(change, len(results))) for change in changes[:1]]
    return [*results, engine.snapshot(), bank.snapshot()]


def _answer(incident: Any, n: int) -> types.Command:  # noqa: ANN401
    return types.Command(
        id=f"c{n}", kind=types.CommandKind.NEW_NORMAL if n % 2 else types.CommandKind.FAULT,
        stream_key=incident.stream_key, incident=incident.id, version=incident.version,
    )  # fmt: skip


def _readings(case: Case, events: int = _EVENTS) -> list[types.Reading]:
    draw = np.random.default_rng(7 + case.channels)
    values = draw.normal(size=(events, case.channels))
    values[::4] = np.round(values[::4])  # ties
    values[::97] *= 40.0
    values[170:176] = -0.0
    values[210, 0] = 1e200
    values[260:280] += 9.0  # a fault
    values[190, 0] = values[-9, -1] = np.nan
    keys = ["a" if draw.random() < 0.7 else "b" for _ in range(events)]
    if case.kind == "siblings":
        return _of_siblings(values.tolist())
    if case.modes:
        keys = [types.in_mode(key, "on" if i % 3 else None) for i, key in enumerate(keys)]
    return [
        types.Reading(key, key[0], 60_000 * i, tuple(row), types.Position("t", 0, i))
        for i, (key, row) in enumerate(zip(keys, values.tolist(), strict=True))
    ]


def _of_siblings(values: list[list[float]]) -> list[types.Reading]:
    """Return readings of sensors that go up and down together, some of them late or held."""
    return [
        types.Reading(
            key, key, 60_000 * i + (i % 11 == 0) * 31_000,
            tuple(x + 0.1 * (i * n % 7) + 8.0 * (n == 2 and i > 250) for x in row),
            types.Position("t", 0, 6 * i + n),
        )
        for i, row in enumerate(values) for n, key in enumerate("abcdef") if (i + n) % 53
    ]  # fmt: skip


# --------------------------------------------------------------------------- bytes in and out
_ODD = '\u00e9"\\\n\x00\U0001f600'


def _floats() -> list[float]:
    draw = np.random.default_rng(3)
    floats: list[float] = draw.integers(0, 2**64, 600, dtype=np.uint64).view(np.float64).tolist()
    return floats


def _written(verdicts: Sequence[types.Verdict], native: Callable[[str], Any]) -> list[Any]:
    """Return what becomes of verdicts, natively or in Python: messages, lines and counts."""
    topics = SimpleNamespace(verdicts="v", review="r", deadletter="d", incidents="i")
    settings: Any = SimpleNamespace(
        topics=topics, max_message_bytes=6_000, pipeline_version="1", pipeline="p",
        instance_id=None, form="full",
    )  # fmt: skip
    floats, results = _floats(), list[Any]()
    for settings.form in ("full", "lean"):
        items = ReviewItems(CASES[0].channels * (_ODD,), points=9, native=native)
        records, readings, some = [], [], []
        for verdict, reading in zip(verdicts, _readings(CASES[0]), strict=True):
            at = reading.position.offset
            position = reading.position._replace(topic=_ODD, reading=at % 3)
            score = floats[at % len(floats)]
            some.append(msgspec.structs.replace(verdict, position=position, score=score))
            records.append(types.Record(position, None if at % 5 else b"key", b"", (), None))
            readings.append(reading._replace(position=position))
        outcomes = items.outcomes(records, readings, some)
        results += OutcomeMessages(settings, lambda _: 3, native).of(outcomes)
        counts = types.OutcomeCounts(plain=native("plain"))
        counts.add(outcomes)
        results.append(counts)
        results += map(verdict_encoder(settings.form, native), some)
    return results


def _heard(_: Sequence[types.Verdict], native: Callable[[str], Any]) -> list[Any]:
    """Return what is known of sensors after steps, gaps, and a clock that is wrong for a while."""
    registry, results = SensorRegistry(Limits(forget_after_ms=40 * DAY_MS), native), list[Any]()
    for start in range(0, 900, 30):
        items = [
            types.Reading(
                name := f"s{i * i % 7}", name,
                FIRST_MS + (7 * i**2 % 9 + i) * DAY_MS // 8 + 90 * DAY_MS * (i == 250),
                (), types.Position("t", 0, i),
            )
            for i in range(start, start + 30) if i % 7 or not 400 < i < 700  # forgotten
        ]  # fmt: skip
        while (found := registry.admit(items)).end < len(items):
            results.append(found)
            registry.forget(found.gone)
            items = items[found.end :]
        results += [found, registry.head(), *map(registry.view, ("s0", "s1", "s2", "s4"))]
    return results


_MAPPINGS: tuple[dict[str, Any], ...] = (
    {"sensor": "s", "time": "t"},
    {"sensor": "s", "time": "t", "missing": ["-999", "1", "---"]},
    {"sensor": "s"},
    {"fixed_sensor": "pump", "time": "t", "time_unit": "s"},
    {"sensor_from": "key", "time": "i", "time_unit": "iso8601"},
    {"sensor": "s", "time": "t", "partial": True, "flags": ["b"]},
    {"sensor": "s", "time": "t", "pooled": True, "numbers": "text"},
    {"sensor": "s", "time": "t", "group": "i", "max_value_bytes": 90},
)


def _read(_: Sequence[types.Verdict], native: Callable[[str], Any]) -> list[str]:
    """Return what becomes of records, JSON and CSV, by every kind of mapping, as text."""
    floats: list[Any] = [*_floats()[:150], -999.0, -999, 1, 0, -0.0, 1e999]
    texts = [msgspec.json.encode(x) for x in floats]
    texts += [b"-9.99e2", b"-999.0", b"---", b"", b" 1", b"1.", b"+1", b"-0", b"1_0", b"inf"]
    rows, trees = [], []
    for i, text in enumerate(texts):
        stamp, iso = 1_000 * i, f"2024-01-01T00:00:{i % 60:02}Z"
        rows.append(b"%b,x%d,%d,%d,%b" % (text, i % 9, stamp, i, iso.encode()))
        given = (text or b"null", i % 9, stamp, i, iso.encode())
        trees.append(b'{"a":%b,"s":"x%d","t":%d,"b":%d,"i":"%b"}' % given)
    rows, trees = [*rows, b"", b",,,,", rows[3] + b","], [*trees, b"{}", trees[3] * 2]
    texts_read = list[str]()
    for mapping in _MAPPINGS:
        fields = FieldMapping(("a", "b"), **mapping)
        csv = CsvDecoder(fields, ("a", "s", "t", "b", "i"), native=native)
        for decoder, values in ((csv, rows), (JsonDecoder(fields, native), trees)):
            records = [
                types.Record(types.Position("t", 0, i), b"k", value, (), 5)
                for i, value in enumerate(values)
            ]
            texts_read += map(repr, decoder.decode_all(records))
            texts_read += [repr(decoder.decode_all([record])[0]) for record in records[::5]]
    return texts_read
