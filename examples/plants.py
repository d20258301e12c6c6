"""Two plants that do not exist, as tables: ten turbines under one wind, six zones of one town.

    python examples/plants.py farm > farm.csv
    python examples/plants.py district > district.csv

Fifty days, a reading an hour. From 10 to 12 February the gearbox of turbine WT-07 is 4 K too warm;
from 8 to 12 February a main leaks in zone-4.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
from scipy.signal import lfilter

BEGIN, HOURS = datetime(2026, 1, 1, tzinfo=UTC), 24 * 50
Sensor = tuple[str, dict[str, np.ndarray]]
rng, hour = np.random.default_rng(7), np.arange(HOURS)


def slow(keep: float) -> np.ndarray:
    """Draw noise that remembers: what the weather does."""
    return lfilter([np.sqrt(1 - keep**2)], [1, -keep], rng.standard_normal(HOURS))


def farm() -> Iterator[Sensor]:
    """Yield turbines: power by the wind, heat by power and air."""
    air = 5 + 4 * slow(0.9) + 3 * np.sin(2 * np.pi * (hour - 9) / 24)
    weather = 8 + 2.5 * slow(0.8)
    for number in range(1, 11):
        wind = np.clip(weather + 0.3 * slow(0.5), 0, 25)
        power = 2000 * np.clip((wind / 12) ** 3, 0, 1) + 15 * rng.standard_normal(HOURS)
        gearbox = air + 22 + 30 * np.clip(wind / 12, 0, 1) ** 2 + 0.4 * rng.standard_normal(HOURS)
        if number == 7:
            gearbox[24 * 40 : 24 * 43] += 4
        yield f"WT-{number:02}", {"power_kw": power.round(), "gearbox_c": gearbox.round(1)}


def district() -> Iterator[Sensor]:
    """Yield zones: flow by the hour, pressure by the flow."""
    people = 1 + 0.5 * np.sin(2 * np.pi * (hour - 7) / 24) + 0.05 * slow(0.6)
    for number in range(1, 7):
        flow = (40 + 5 * number) * people * (1 + 0.03 * rng.standard_normal(HOURS))
        if number == 4:
            flow[24 * 38 : 24 * 43] += 15
        pressure = 5.2 - 0.012 * flow + 0.02 * rng.standard_normal(HOURS)
        yield f"zone-{number}", {"flow_m3h": flow.round(1), "pressure_bar": pressure.round(2)}


plant = {"farm": farm, "district": district}[(sys.argv[1:] or ["farm"])[0]]
sensors = dict(plant())
print("time", "sensor", *next(iter(sensors.values())), sep=",")
for i in range(HOURS):
    at = f"{BEGIN + timedelta(hours=i):%Y-%m-%d %H:%M}"
    for name, channels in sensors.items():
        print(at, name, *(values[i] for values in channels.values()), sep=",")
