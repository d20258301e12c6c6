"""A small wind farm that does not exist: plausible sensor readings, and faults with labels.

Ten-minute averages as a turbine's controller reports them. One wind blows over the whole farm, and
everything else follows from it::

    wind ─► rotor speed ─► power ─► heat in the gearbox (lags by an hour, on top of the weather)
                 └────────► vibration

The numbers are those of a usual 2 MW machine, round and from memory; nothing was fitted to a real
one. What matters here is the structure: channels that explain each other, slow weather, a daily
cycle, noise, and faults that break one relation at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.signal import lfilter
from scipy.special import ndtr

from rejex_stream.types import FloatArray

AMBIENT = "ambient_c"
CHANNELS = ("gearbox_temp_c", "vibration_mm_s", "power_kw", "rotor_rpm")
STEP_S = 600
TURBINES = ("WT-01", "WT-02", "WT-03", "WT-04")

_DAY = 86_400 // STEP_S
_RATED_KW = 2_000.0
_CUT_IN_MS, _RATED_MS, _CUT_OUT_MS = 3.5, 12.5, 25.0

FaultKind: TypeAlias = Literal[
    "overheating", "bearing", "friction", "stuck", "derating", "trip", "dropout", "leak"
]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to one turbine, and when.

    Attributes
    ----------
    kind
        ``overheating``: the gearbox warms up to 24 K too much, hour by hour. ``bearing``: vibration
        grows to the 2.4-fold within two days. ``friction``: a bearing of the gearbox wears slowly;
        at the end it gives off 8 K more at full load, and nothing where there is none. ``stuck``:
        the temperature sensor repeats one number. ``derating``: power is held at 40 % while the
        rotor turns as the wind wants. ``trip``: the generator is off the grid, the rotor still
        turns. ``dropout``: vibration is missing. ``leak``: the oil of the gearbox runs low, and it
        is 14 K too warm from one day to the next.
    first, last
        Steps, both inclusive.
    """

    turbine: str
    kind: FaultKind
    first: int
    last: int
    title: str


FAULTS = (
    Fault("WT-01", "overheating", 17 * _DAY, 17 * _DAY + 110, "gearbox overheats"),
    Fault("WT-02", "bearing", 19 * _DAY, 21 * _DAY - 1, "bearing wears out"),
    Fault("WT-03", "stuck", 15 * _DAY + 30, 15 * _DAY + 120, "temperature sensor stuck"),
    Fault("WT-03", "derating", 23 * _DAY + 20, 23 * _DAY + 85, "held at 40 % power"),
    Fault("WT-04", "dropout", 18 * _DAY + 60, 18 * _DAY + 77, "vibration channel missing"),
    Fault("WT-04", "trip", 24 * _DAY + 50, 24 * _DAY + 61, "generator off the grid"),
)
LEAK = Fault("WT-01", "leak", 30 * _DAY, 35 * _DAY - 1, "gearbox loses oil")
"""Of a farm that runs for 35 days: it stays until somebody says so."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the farm did, and what was done to it.

    `values`: turbine → shape (steps, 4) in the order of :data:`CHANNELS`, ``nan`` where missing;
    `ambient_c`: temperature of the air, shape (steps,).
    """

    values: dict[str, FloatArray]
    faults: tuple[Fault, ...]
    ambient_c: FloatArray


def simulate(days: int = 28, seed: int = 0, faults: tuple[Fault, ...] = FAULTS) -> Run:
    """Let the farm run; equal arguments give equal numbers."""
    steps = days * _DAY
    site = np.random.default_rng([seed, 0])
    weather = _slow_noise(site, steps, hours=9.0)
    hour = np.arange(steps) / (_DAY / 24)
    ambient = 11.0 + 4.0 * np.sin(2 * math.pi * (hour - 9.0) / 24)
    ambient = ambient + 2.5 * _slow_noise(site, steps, hours=40.0)
    values = {}
    for number, turbine in enumerate(TURBINES):
        rng = np.random.default_rng([seed, 1 + number])
        own = [fault for fault in faults if fault.turbine == turbine]
        values[turbine] = _turbine(rng, weather, ambient, own)
    return Run(values, faults, ambient.round(1))


def _turbine(
    rng: np.random.Generator, weather: FloatArray, ambient: FloatArray, faults: list[Fault]
) -> FloatArray:
    steps = len(weather)
    # Weibull wind, 8 m/s on average: the farm's weather, and the turbine's own gusts.
    z = 0.97 * weather + 0.24 * _slow_noise(rng, steps, hours=0.7)
    wind = 9.0 * (-np.log(ndtr(-z))) ** (1 / 2.1)
    rotor = np.where(wind < _CUT_IN_MS, 0.25 * wind, np.clip(1.32 * wind, 6.5, 15.0))
    rotor = rotor * (1 + 0.012 * rng.standard_normal(steps))
    power = _power_curve(wind) * (1 + 0.02 * rng.standard_normal(steps))
    running = wind < _CUT_OUT_MS
    rotor, power = np.where(running, rotor, 0.4), np.where(running, power, 0.0)
    rotor, power = np.maximum(rotor, 0.0), np.clip(power, 0.0, 1.02 * _RATED_KW)

    extra_heat, wear = np.zeros(steps), np.ones(steps)
    for fault in faults:
        at = slice(fault.first, fault.last + 1)
        progress = np.linspace(0.0, 1.0, fault.last - fault.first + 1)
        if fault.kind == "overheating":
            extra_heat[at] = 24.0 * progress
        elif fault.kind == "leak":
            extra_heat[at] = 14.0
        elif fault.kind == "friction":
            extra_heat[at] = 8.0 * progress * power[at] / _RATED_KW
        elif fault.kind == "bearing":
            wear[at] = np.exp(progress * math.log(2.4))
        elif fault.kind == "derating":
            power[at] = np.minimum(power[at], 0.4 * _RATED_KW)
        elif fault.kind == "trip":
            power[at] = 0.0

    load = power / _RATED_KW
    target = ambient + 17.0 + 35.0 * load**0.8 + 0.25 * rotor + extra_heat
    lag = math.exp(-STEP_S / 3_000)
    temperature = lfilter([1 - lag], [1, -lag], target, zi=[lag * target[0]])[0]
    temperature = temperature + 0.35 * rng.standard_normal(steps)
    vibration = (0.35 + 0.085 * rotor + 0.5 * load) * wear
    vibration = vibration * np.exp(0.06 * rng.standard_normal(steps))
    channels = (temperature.round(1), vibration.round(3), power.round(1), rotor.round(2))
    table = np.column_stack(channels)

    for fault in faults:
        at = slice(fault.first, fault.last + 1)
        if fault.kind == "stuck":
            table[at, 0] = table[fault.first, 0]
        elif fault.kind == "dropout":
            table[at, 1] = np.nan
    return table


def _power_curve(wind: FloatArray) -> FloatArray:
    cubes = (wind**3 - _CUT_IN_MS**3) / (_RATED_MS**3 - _CUT_IN_MS**3)
    # Smooth around the rated wind, where a real controller blends two regimes.
    share: FloatArray = 1 - np.log1p(np.exp(-14 * (np.clip(cubes, 0, 3) - 1))) / 14
    return _RATED_KW * np.where(wind < _CUT_IN_MS, 0.0, np.clip(np.minimum(cubes, share), 0, 1))


def _slow_noise(rng: np.random.Generator, steps: int, hours: float) -> FloatArray:
    """Draw standard normal noise whose correlation falls to 1/e within `hours`."""
    keep = math.exp(-STEP_S / 3_600 / hours)
    shocks = rng.standard_normal(steps) * math.sqrt(1 - keep * keep)
    shocks[0] = rng.standard_normal()
    noise: FloatArray = lfilter([1.0], [1.0, -keep], shocks)
    return noise
