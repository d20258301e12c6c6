"""What monitors put off, nobody sees: to look at them after every event changes nothing."""

import random
from typing import Any

import pytest

from rejex_stream.monitor import AlarmKind, MonitorBank, MonitorConfig, health
from rejex_stream.monitor.health import HealthDetector
from rejex_stream.monitor.theory import rank_law
from rejex_stream.types import Label, Position, Reason, Status, Verdict

N = 40
KEYS = 3


def verdicts(seed: int, length: int) -> list[Verdict]:
    """Events of streams whose windows fill, are tied, swap to shorter ones, drift and have gaps."""
    rng = random.Random(seed)
    windows: list[list[float]] = [[] for _ in range(KEYS)]
    epochs, means, digits = [0] * KEYS, [0.0] * KEYS, rng.choice([1, 2, 9])
    found = []
    for offset in range(length):
        key = rng.randrange(KEYS) if seed % 2 else offset // 7 % KEYS
        window = windows[key]
        if rng.random() < 0.005:
            epochs[key] += 1
            del window[: -rng.choice([N, N // 2, N // 3])]
        if rng.random() < 0.002:
            means[key] += rng.choice([-1.5, 1.5])
        score = round(rng.gauss(means[key], 1.0), digits)
        n, ties = len(window), window.count(score)
        rank = sum(other < score for other in window) + ties // 2
        odd = rng.random()
        reason, ranked, held = None, True, odd < 0.004
        if n < 10:
            reason = Reason.WARM_UP
        elif odd > 0.996:
            reason, ranked = Reason.UNSCORABLE, False
        found.append(
            Verdict(
                position=Position("t", 0, offset), stream_key=f"s{key}", sensor=f"s{key}",
                event_time_ms=60_000 * offset, seq=offset,
                label=Label.NORMAL if reason is None else Label.REJECTED, reason=reason,
                score=score if ranked else None, rank=rank if ranked else None, ties=ties,
                window_len=n, n_anomalies=n // 10, band_lower=n - n // 10 - 3,
                band_upper=n - n // 10 + 2, model_epoch=epochs[key], held=held,
                mode="idle" if not key else None,
                status=Status.WARM_UP_MIXED if 0.5 < odd < 0.502 else None,
            )
        )  # fmt: skip
        if ranked and not held:
            window.append(score)
            del window[:-N]
    return found


def bank(every: float = 200.0, **others: Any) -> MonitorBank:
    return MonitorBank(
        MonitorConfig(
            window=N, contamination=0.1, tolerance=4, false_alarm_events=every, stuck_events=5,
            **others,
        )
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_in_any_cut_and_looked_at_or_not_the_alarms_and_the_snapshot_are_the_same(seed):
    feed, rng = verdicts(seed, 3_000), random.Random(seed)
    unseen, seen, restored = bank(), bank(), bank()
    told = unseen.observe(feed)
    looked, cut, at = [], [], 0
    for verdict in feed:
        looked += seen.observe([verdict])
        seen.snapshot()
    while at < len(feed):
        length = rng.choice([1, 3, 50, 300])
        cut += restored.observe(feed[at : at + length])
        at, kept = at + length, restored.snapshot()
        restored = bank()
        restored.restore(kept)
    assert told == looked == cut
    assert unseen.snapshot() == seen.snapshot() == restored.snapshot()
    assert {AlarmKind.DRIFT, AlarmKind.HEALTH} <= {alarm.kind for alarm in told}


@pytest.mark.parametrize("most", [1, 2, 1_024])
def test_ratios_that_were_given_up_are_made_again_the_same(monkeypatch, most):
    def evidence() -> list[object]:
        rng = random.Random(3)
        detector = HealthDetector(
            MonitorConfig(window=N, contamination=0.1, tolerance=4, false_alarm_events=1e6), KEYS
        )
        fired = [
            detector.update(rng.choice(laws), rng.choices(range(4), [80, 8, 6, 6])[0])
            for _ in range(20 * N * KEYS)
        ]
        return [detector.state, fired]

    laws = [rank_law(n, n // 10, n - n // 10 - 3, n - n // 10 + 2) for n in range(30, 41)]
    expected = evidence()
    monkeypatch.setattr(health, "_MAX_LAWS", most)
    assert evidence() == expected
    assert sum(expected[0].evidence) > 0.0, "else it shows nothing"
