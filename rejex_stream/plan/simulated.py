"""What a choice does in a day: the default detector on simulated sensors with nothing wrong.

Theory speaks of exchangeable scores. Those of the default detector are not, even where readings
are: its columns are rolling. So the engine itself is run, and what it says is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
import numpy as np

from rejex_stream.detectors import DEFAULT, make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.plan.measured import law_of
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.threads import one_thread
from rejex_stream.types import FloatArray, Label, Position, Reading, is_ranked

__all__ = ["Simulated", "simulate"]

_DAY_MS = 86_400_000
_Made: TypeAlias = Callable[[np.random.Generator, int], FloatArray]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What one sensor gets, once its window is full; nothing is wrong with it.

    Attributes
    ----------
    stream
        What its readings are like.
    days
        How many were simulated after the window was full.
    rejected_a_day, worst_day
        Rejected in the mean, and in the worst of all stretches of a day.
    withheld
        Share of what the policy's own band would reject that had no credit.
    flagged_a_day
        Ranks above n - r, rejected or not.
    false_alarms_a_day
        Events called an anomaly.
    incidents_a_month
        Incidents opened in 30 days, all of them false.
    """

    stream: str
    days: float
    rejected_a_day: float
    worst_day: int
    withheld: float
    flagged_a_day: float
    false_alarms_a_day: float
    incidents_a_month: float


def _ar(phi: float) -> _Made:
    def made(rng: np.random.Generator, n: int) -> FloatArray:
        noise = rng.standard_normal(n) * np.sqrt(1 - phi**2)
        level = np.empty(n)
        x = rng.standard_normal()
        for i in range(n):
            level[i] = x = phi * x + noise[i]
        return level

    return made


STREAMS: Mapping[str, _Made] = {
    "independent": lambda rng, n: rng.standard_normal(n),
    "AR(.97)": _ar(0.97),
    "AR(.999)": _ar(0.999),
}


def simulate(
    policy: RejectionPolicy,
    window: int,
    *,
    per_day: float = 1440.0,
    days: float = 30.0,
    seed: int = 0,
) -> tuple[Simulated, ...]:
    """Run the default detector, with holds and alarms as shipped, on streams of each kind.

    O(days * per_day), some 30 µs an event. Needs a policy that :meth:`RejectionPolicy.require`
    takes.
    """
    policy.require(window)
    return tuple(
        _of(name, policy, window, per_day=per_day, days=days, seed=seed) for name in STREAMS
    )


def _of(
    name: str, policy: RejectionPolicy, window: int, *, per_day: float, days: float, seed: int
) -> Simulated:
    spec = EngineSpec(
        make_detector(DEFAULT), FeatureSpec(("x",)), policy, window,
        RefitSchedule.for_window(window), seed, evidence=False, alarms=Alarms(),
    )  # fmt: skip
    warm_up, a_day = 2 * window, max(1, round(per_day))
    values = STREAMS[name](np.random.default_rng([seed, 29]), warm_up + round(days * per_day))
    step_ms = round(_DAY_MS / per_day)
    readings = [
        Reading("sensor", "sensor", i * step_ms, (value,), Position("simulated", 0, i))
        for i, value in enumerate(values.tolist())
    ]
    engine = Engine(spec, InlineExecutor())
    with one_thread():
        verdicts = engine.process(readings)[warm_up:]
    opened = {one.id for one in engine.take_incidents() if one.position.offset >= warm_up}
    engine.close()
    ranked = [verdict for verdict in verdicts if is_ranked(verdict)]
    rejected = np.array([verdict.label is Label.REJECTED for verdict in verdicts])
    cells = [law_of(one).cell(one.rank) for one in ranked if one.rank is not None]
    own = sum(0 < cell < 3 for cell in cells)  # of the policy's own band
    flagged = sum(cell >= 2 for cell in cells)
    of_day = np.convolve(rejected, np.ones(min(a_day, len(rejected))), "valid")
    return Simulated(
        stream=name,
        days=days,
        rejected_a_day=float(rejected.sum()) / days,
        worst_day=int(of_day.max()),
        withheld=sum(verdict.withheld for verdict in ranked) / max(1, own),
        flagged_a_day=flagged / days,
        false_alarms_a_day=sum(v.label is Label.ANOMALY for v in ranked) / days,
        incidents_a_month=30 * len(opened) / days,
    )
