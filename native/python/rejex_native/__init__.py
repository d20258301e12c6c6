"""The native core of rejex-stream, and what it has to show before it is believed.

:func:`poll` takes the events of any streams in one call, as
:class:`rejex_stream.engine.Engine` asks for, by the lanes that :func:`lane_of` makes for each.
:func:`believed` says whether it does: not where REJEX_CORE is ``python``, nor where a single one of
2,000 events is judged otherwise, or a single byte that is written of them differs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from rejex_native._core import (
    Cells,
    Flat,
    Lane,
    Lines,
    Messages,
    Points,
    lane_of,
    note,
    plain,
    poll,
    written,
)

__all__ = [
    "SEAM", "Cells", "Core", "Flat", "Lane", "Lines", "Messages", "Points", "believed", "lane_of",
    "lines", "note", "plain", "poll", "written", "wrong",
]  # fmt: skip

SEAM = 4
"""As `rejex_stream.native_core` has it."""

lines = lru_cache(Lines)
"""What encodes verdicts in a form; one of each."""

_EVENTS, _CHANNELS = 2000, 3


class Core(NamedTuple):
    """What judges natively: what makes the lane of a stream, and what takes a whole poll."""

    lane: Any
    poll: Any


def believed() -> tuple[Any, str]:
    """Return what makes lanes, None where Python judges alone, and a sentence on it."""
    if os.environ.get("REJEX_CORE") == "python":
        return None, "Python judges all events: REJEX_CORE=python"
    if reason := wrong():
        return None, f"Python judges all events: the native core {reason}"
    return Core(lane_of, poll), "the native core judges ordinary events as Python would"


def wrong() -> str | None:
    """Return what is wrong with it by 2,000 events that both cores judge; None: nothing is."""
    try:
        python, native = _judged(None), _judged(lane_of)
        verdicts = [one for one in python if hasattr(one, "label")]
        python += _written(verdicts, lambda _: None)
        native += _written(verdicts, globals().get)
    except Exception as error:
        return f"cannot judge ({type(error).__name__}: {error}): build it anew (make native)"
    if python != native:
        return "differs from it in 2,000 events: build it anew (make native)"
    return None


@dataclass(frozen=True)
class _Recipe:
    """Models of the kinds that are scored natively, without the libraries that fit them."""

    kind: str
    name: str = "self-test"

    def fit(self, X: Any, *, seed: int) -> Any:
        """Fit on rows of shape (n, d)."""
        from rejex_stream.detectors.scorers import ColumnHistograms, GaussianMixture
        from rejex_stream.detectors.table import TableScorer

        d, inner = X.shape[1], None
        if self.kind == "gaussian":
            root = np.triu(np.full((d, d), 0.25)) + np.diag(1.0 / X.std(axis=0))
            inner = GaussianMixture(X.mean(axis=0)[None], root[None], np.array([-1.5]), np.empty(0))
        elif self.kind == "histograms":
            edges = np.quantile(X, np.linspace(0.0, 1.0, 9), axis=0).T.copy()
            heights = np.log2(np.arange(1.0, 11.0))[None] + np.arange(d)[:, None]
            reach = np.array([edges[:, 0] - 0.5, edges[:, -1] + 0.5])
            inner = ColumnHistograms(edges, reach, heights, heights.min(axis=1), np.empty(0))
        else:
            return _Furthest(X.mean(axis=0))
        return TableScorer(self.name, d, None, inner)


@dataclass(frozen=True)
class _Furthest:
    """A model that the native core does not know."""

    mean: Any

    def score(self, X: Any) -> Any:
        """Return the largest distance from the mean in any column."""
        return np.abs(X - self.mean).max(axis=1)


def _judged(lane: Any) -> list[Any]:
    """Return the verdicts and snapshots of streams, judged through a lane or in Python."""
    found: list[Any] = []
    for kind, decision in (
        ("gaussian", {"rate": 0.1}),
        ("histograms", {"rate": 0.1, "burst": 20}),
        ("furthest", {"tolerance": 4.0, "ties": "paper"}),
        ("sensor", {"rate": 0.1, "burst": 20, "per_day": 150}),
    ):
        found += _of_stream(kind, decision, lane)
    return found


def _of_stream(kind: str, decision: dict[str, Any], lane: Any) -> list[Any]:
    from rejex_stream.engine.explanation import Explainer
    from rejex_stream.engine.refit import RefitSchedule
    from rejex_stream.engine.spec import EngineSpec
    from rejex_stream.engine.stream_state import StreamState, new_model
    from rejex_stream.features import FeatureSpec
    from rejex_stream.incidents import Alarms, Watch
    from rejex_stream.monitor import MonitorBank, MonitorConfig
    from rejex_stream.rejection.judge import Judge
    from rejex_stream.rejection.policy import RejectionPolicy
    from rejex_stream.run.executors import InlineExecutor

    recipe, features = _Recipe(kind), FeatureSpec(tuple("abc"[:_CHANNELS]))
    if kind == "sensor":
        from rejex_stream.detectors.sensor.recipes import Mahalanobis

        recipe, features = Mahalanobis(), replace(features, preset="sensor")
    spec = EngineSpec(
        recipe, features, RejectionPolicy(0.1, **decision), window=60,
        schedule=RefitSchedule(
            first_fit_events=60, refit_every_events=120, refit_lag_events=5, buffer_events=80
        ),
    )  # fmt: skip
    watch = Watch(
        spec.hold, "s", spec.window, None, Alarms() if kind in ("histograms", "sensor") else None
    )
    model = new_model(spec, "s", watch, InlineExecutor(), [].append)
    state = StreamState(
        "s", spec.features, model, Judge(spec.policy, spec.window, None, watch),
        watch=watch, explainer=Explainer(spec.features, spec.policy.contamination), lane=lane,
    )  # fmt: skip
    readings = _readings(_EVENTS // 4)
    found: list[Any] = []
    at = 0
    while at < len(readings):
        stop = at + 1 + at % 29
        part = readings[at:stop]
        if lane is None:
            found += state.advance(part, [sum(reading.values) for reading in part])
        else:
            found += poll(None, {"s": state}, part, _CHANNELS)[0]
        at = stop
    known = MonitorConfig(window=60, contamination=0.1, tolerance=4.0, false_alarm_events=200.0)
    bank = MonitorBank(known, None if lane is None else note)
    alarms = [
        alarm for at in range(0, len(found), 50) for alarm in bank.observe(found[at : at + 50])
    ]
    return [*found, state.take_incidents(), state.snapshot(), alarms, bank.snapshot()]


def _readings(count: int) -> list[Any]:
    from rejex_stream.types import Position, Reading

    draw = np.random.default_rng(7)
    values = draw.normal(size=(count, _CHANNELS))
    values[::4] = np.round(values[::4])  # ties
    values[::97] *= 40.0
    values[250:260] = -0.0
    values[400, 0] = 1e200
    values[430:450] += 9.0  # a fault
    values[-9, 1] = np.nan
    return [
        Reading("s", "s", 60_000 * i, tuple(row), Position("t", 0, i))
        for i, row in enumerate(values.tolist())
    ]


def _written(verdicts: list[Any], native: Callable[[str], Any]) -> list[Any]:
    """Return what becomes of verdicts, natively or in Python: messages, and lines."""
    import msgspec
    from rejex_connectors.kafka.messages import OutcomeMessages

    from rejex_stream.decode import CsvDecoder, JsonDecoder
    from rejex_stream.decode.mapping import FieldMapping
    from rejex_stream.encode.records import verdict_encoder
    from rejex_stream.run.review_items import ReviewItems
    from rejex_stream.types import OutcomeCounts, Position, Record

    topics = SimpleNamespace(verdicts="v", review="r", deadletter="d", incidents="i")
    settings = SimpleNamespace(
        topics=topics, max_message_bytes=6_000, pipeline_version="1", pipeline="p",
        instance_id=None, form="full",
    )  # fmt: skip
    odd = '\u00e9"\\\n\x00\U0001f600'
    draw = np.random.default_rng(3)
    floats = draw.integers(0, 2**64, 2000, dtype=np.uint64).view(np.float64).tolist()
    found: list[Any] = []
    for form in ("full", "lean"):
        settings.form = form
        items = ReviewItems(("a", odd), points=9, native=native)
        records, readings, some = [], [], []
        for verdict, reading in zip(verdicts, _readings(len(verdicts)), strict=True):
            at = reading.position.offset
            position = reading.position._replace(topic=odd, reading=at % 3)
            some.append(
                msgspec.structs.replace(verdict, position=position, score=floats[at % 2000])
            )
            records.append(Record(position, None if at % 5 else b"key", b"", (), None))
            readings.append(reading._replace(position=position))
        outcomes = items.outcomes(records, readings, some)
        made = OutcomeMessages(settings, lambda _: 3, native)
        found += made.of(outcomes)
        counts = OutcomeCounts(plain=native("plain"))
        counts.add(outcomes)
        found.append(counts)
        found += map(verdict_encoder(form, native), some)
    fields = FieldMapping(("a", "b"), time="t", sensor="s")
    told = [
        b'{"a":%b,"s":"x%d","t":%d,"b":%d}' % (msgspec.json.encode(x), i % 9, i, i)
        for i, x in enumerate(floats)
    ]
    records = [Record(Position("t", 0, i), None, value) for i, value in enumerate(told)]
    found += map(str, JsonDecoder(fields, native).decode_all(records))
    told = [b"%r,x%d,%d,%d" % (x, i % 9, i, i) for i, x in enumerate(floats)]
    records = [Record(Position("t", 0, i), None, value) for i, value in enumerate(told)]
    rows = CsvDecoder(fields, ("a", "s", "t", "b"), native=native)
    found += map(str, rows.decode_all(records))
    return found
