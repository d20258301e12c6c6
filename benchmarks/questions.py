"""What people are asked, and what their answers save: by worth, by age, at random.

python -m benchmarks.questions [--sensors 1000] [--days 30] [--capacity 240] [--faults 200]

A fleet of simulated sensors goes through the engine and the review store as in production: an hour
between readings, two channels that remember (AR, 0.6 to 0.95) and share a day, and faults of ten
kinds at places drawn beforehand. Every day people answer what *Today* shows, truthfully, and never
more than the capacity; incidents take theirs first, the day they open, and are answered. The same
items are answered again by age and at random, as many, and by worth with half the capacity:
then what is left of a day with much to ask is asked on a day with little. An answer saves the
events whose label, forced, would have been wrong;
which half of all answers is the best is known in hindsight alone, and bounds any order of them. A
fault is *asked or alerted* if a case that overlaps it is answered or an incident of its sensor
opens within it (or two days after).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import write
from benchmarks.kinds import ar
from rejex_stream.config.reviewing import Capacity, Review
from rejex_stream.detectors import make_detector
from rejex_stream.encode import decode_review, encode_incident, encode_reply
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.review.incidents.incident_store import AnswerRequest, give_answer, stored_incident
from rejex_stream.review.incidents.readings import flagged
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.labelling import LabelRequest, Target
from rejex_stream.review.queue.listing import QueueFilter, model_leaning
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.types import (
    CommandReply,
    Incident,
    IncidentState,
    Position,
    Reading,
    ReviewItem,
    Verdict,
)

Floats = np.ndarray[Any, np.dtype[np.float64]]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WARM = 500  # hours before the first day: nobody is asked while models warm up
WINDOW, CONTEXT, AFTER = 400, 32, 48
EPOCH_MS = 1_700_006_400_000
PEOPLE = Viewer("people")

# Ten kinds: each changes `x`, shape (hours, 2), of a fault, in units of its standard deviation.
KINDS: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "spikes": lambda x, rng: x + 8 * (rng.random(len(x)) < 0.3)[:, None],
    "step": lambda x, _: x + 5,
    "ramp": lambda x, _: x + np.linspace(0, 8, len(x))[:, None],
    "noise": lambda x, rng: x + 4 * rng.standard_normal(x.shape),
    "stuck": lambda x, _: np.broadcast_to(x[:1], x.shape) + 0.0,
    "zero": lambda x, _: x * np.array([0.0, 1.0]) - np.array([6.0, 0.0]),
    "swing": lambda x, _: x + 5 * np.sin(np.arange(len(x)))[:, None],
    "saturated": lambda x, _: np.clip(x + 6, None, 5.0),
    "one channel": lambda x, _: x + np.array([0.0, 6.0]),
    "inverted": lambda x, _: -x + np.array([6.0, -6.0]),
}


@dataclass(frozen=True)
class Fault:
    """Where something is wrong: hours of a sensor, the last one excluded."""

    sensor: str
    kind: str
    begin: int
    end: int


@dataclass
class Judged:
    """What the engine made of a stream: items and incidents by hour, and the truth."""

    items: list[tuple[int, ReviewItem, bool]]
    verdicts: list[Verdict]
    incidents: list[tuple[int, Incident]]


def judge(
    name: str, X: Floats, truth: np.ndarray[Any, Any], times: Sequence[int], number: int
) -> Judged:
    """Send a stream through the engine, and make review items as a worker does."""
    channels = tuple(f"c{i}" for i in range(X.shape[1]))
    spec = EngineSpec(
        make_detector("Sensor"),
        FeatureSpec(channels, carry_forward_events=10),
        RejectionPolicy(0.02, rate=0.02),
        window=WINDOW,
        evidence=False,
    )
    engine = Engine(spec, InlineExecutor())
    feed = [
        Reading(name, name, int(t), tuple(row), Position(f"fleet{number}", 0, i))
        for i, (t, row) in enumerate(zip(times, X.tolist(), strict=True))
    ]
    verdicts = engine.process(feed)
    worker = ReviewItems(channels, points=CONTEXT)
    made = [worker.observe(*event) for event in zip(feed, verdicts, strict=True)]
    items = [
        (i, item, bool(truth[i] == 1))
        for i, item in enumerate(made)
        if isinstance(item, ReviewItem) and i >= WARM
    ]
    found = [(one.position.offset, one) for one in engine.take_incidents()]
    return Judged(items, verdicts[WARM:], [one for one in found if one[0] >= WARM])


def fleet(sensors: int, days: int, faults: int, seed: int) -> tuple[list[Judged], list[Fault]]:
    """Simulate and judge a fleet."""
    rng = np.random.default_rng(seed)
    hours = WARM + 24 * days
    ill = rng.permutation(sensors)[:faults]
    kinds = list(KINDS)
    planned = {}
    for place, sensor in enumerate(ill):
        begin = WARM + int(rng.integers(24, 24 * days - 48))
        length = int(rng.integers(12, 73))
        planned[int(sensor)] = Fault(
            f"s{sensor:04}", kinds[place % len(kinds)], begin, min(hours, begin + length)
        )
    found = []
    for sensor in range(sensors):
        own = np.random.default_rng([seed, sensor])
        phi = own.uniform(0.6, 0.95)
        day = np.sin(2 * np.pi * np.arange(hours) / 24)[:, None]
        X = ar(phi, (hours, 2), own) + 0.5 * day
        truth = np.zeros(hours, dtype=int)
        fault = planned.get(sensor)
        if fault is not None:
            part = slice(fault.begin, fault.end)
            X[part] = KINDS[fault.kind](X[part], own)
            truth[part] = 1
        times = EPOCH_MS + HOUR_MS * np.arange(hours)
        found.append(judge(f"s{sensor:04}", X, truth, times.tolist(), sensor))
    return found, list(planned.values())


@dataclass
class Outcome:
    """What was asked, and what came of it."""

    asked: list[int]
    saved: list[list[int]]
    cases: set[tuple[str, int, int]]
    incidents: set[tuple[str, int]]
    listed: set[tuple[str, int]]


def people(judged: Sequence[Judged], days: int, capacity: int, how: str, folder: Path) -> Outcome:
    """Answer a fleet's questions day by day, `how` is ``worth``, ``age`` or ``random``."""
    now = [EPOCH_MS]
    settings = Review(
        capacity=Capacity(questions_per_day=capacity if how == "worth" else None), settle_s=0
    )
    store = ReviewStore(folder / f"{how}{capacity}.db", settings, clock_ms=lambda: now[0])
    wrong: dict[str, bool] = {}
    by_day: dict[int, list[ReviewItem]] = {}
    opened: dict[int, list[Incident]] = {}
    for one in judged:
        for hour, item, anomaly in one.items:
            by_day.setdefault((hour - WARM) // 24, []).append(item)
            leaning = model_leaning(item.verdict) == "anomaly"
            wrong[str(item.verdict.position)] = leaning != anomaly
        for hour, incident in one.incidents:
            opened.setdefault((hour - WARM) // 24, []).append(incident)
    said: dict[int, list[Verdict]] = {}
    for one in judged if how == "worth" else ():
        for verdict in one.verdicts:
            said.setdefault((verdict.position.offset - WARM) // 24, []).append(verdict)
    rng = np.random.default_rng(0)
    outcome = Outcome([], [], set(), set(), set())
    for day in range(days):
        now[0] = EPOCH_MS + WARM * HOUR_MS + (day + 1) * DAY_MS - 1
        store.add(by_day.get(day, []), said.get(day, []))
        store.ingest("incidents", [encode_incident(one) for one in opened.get(day, [])])
        new = [one for one in opened.get(day, []) if one.opens]
        for one in new:  # asked as well, and answered at once
            with store.database.read() as connection:
                stored = stored_incident(connection, one.id)
            assert stored is not None
            if stored.incident.state is not IncidentState.OPEN:
                continue  # over, or adopted, by the evening
            wanted = AnswerRequest(f"{how}/{one.id}", one.id, stored.incident.version, "fault")
            command = give_answer(store, wanted, PEOPLE).id
            obeyed = encode_reply(
                one.position, CommandReply(command=command, accepted=True, said="")
            )
            store.ingest("incidents", [obeyed])
        outcome.incidents |= {(one.stream_key, one.position.offset) for one in new}
        today: list[int] = []
        with store.database.read() as connection:
            outcome.listed |= {
                (one.sensor, 24 * (day + 1) + WARM - 1) for one in flagged(connection)
            }
            view = QueueFilter(sort={"worth": "", "age": "oldest", "random": "oldest"}[how])
            rows = list(view.ids(connection, PEOPLE, now[0], limit=100_000))
        if how == "random":
            rows = [rows[i] for i in rng.permutation(len(rows))]
        # By age and at random so many are answered as by worth: what its incidents leave.
        rows = rows if how == "worth" else rows[: max(0, capacity - len(new))]
        for episode, n_events, status in rows:
            with store.database.read() as connection:
                items = connection.execute(
                    "SELECT item FROM event WHERE episode_id = ?", (episode,)
                ).fetchall()
            verdicts = [decode_review(row[0]).verdict for row in items]
            today.append(sum(wrong[str(one.position)] for one in verdicts))
            hours = [one.position.offset for one in verdicts]
            outcome.cases.add((verdicts[0].sensor, min(hours), max(hours)))
            labelling.label_cases(
                store,
                LabelRequest(
                    request_id=f"{how}{day}/{episode}",
                    verdict="normal",
                    targets=(Target(episode, n_events, status),),
                ),
                PEOPLE,
            )
        outcome.saved.append(today)
        outcome.asked.append(len(today) + len(new))
    store.close()
    return outcome


def caught(
    outcome: Outcome, faults: Sequence[Fault], *, with_list: bool = False
) -> tuple[int, dict[str, int]]:
    """Return how many faults were asked or alerted, and how many not, by kind."""
    missed: dict[str, int] = {}
    for fault in faults:
        alerted = any(
            sensor == fault.sensor and fault.begin <= hour < fault.end + AFTER
            for sensor, hour in outcome.incidents
        )
        asked = any(
            sensor == fault.sensor and begin < fault.end and end >= fault.begin
            for sensor, begin, end in outcome.cases
        )
        listed = any(
            sensor == fault.sensor and fault.begin <= hour < fault.end + 24
            for sensor, hour in outcome.listed
        )
        if not (alerted or asked or (listed and with_list)):
            missed[fault.kind] = missed.get(fault.kind, 0) + 1
    return len(faults) - sum(missed.values()), missed


def simulated(args: argparse.Namespace) -> None:
    """Print the fleet's table."""
    judged, faults = fleet(args.sensors, args.days, args.faults, args.seed)
    rejected = sum(len(one.items) for one in judged)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        everything = 0
        for how, most in (
            ("age", args.capacity), ("worth", args.capacity), ("worth", args.capacity // 2),
            ("random", args.capacity),
        ):  # fmt: skip
            outcome = people(judged, args.days, most, how, Path(folder))
            found, _ = caught(outcome, faults)
            seen, missed = caught(outcome, faults, with_list=True)
            half = sum(sum(day[: len(day) // 2]) for day in outcome.saved)
            best = sum(sum(sorted(day)[-(len(day) // 2) :]) for day in outcome.saved)
            saved = [one for day in outcome.saved for one in day]
            best_ever = sum(sorted(saved)[-(len(saved) // 2) :])
            everything = everything or sum(saved)
            rows.append(
                [f"{how}, at most {most}", len(saved), max(outcome.asked), sum(saved),
                 f"{sum(saved) / everything:.0%}", half, best, best_ever,
                 f"{found} of {len(faults)}", f"{seen}" if how == "worth" else "–",
                 len(outcome.incidents),
                 ", ".join(f"{k} {n}" for k, n in sorted(missed.items())) or "–"]
            )  # fmt: skip
    write(
        "questions-fleet",
        "What people are asked",
        [(f"{args.sensors:,} simulated sensors, a reading an hour, {args.days} days, "
        f"{len(faults)} faults of ten kinds, at most {args.capacity} questions a day: "
        f"{rejected:,} review items.",
        ["order", "cases answered", "most asked a day", "events saved", "of all by age",
         "by the first half of each day", "the best half of each day, in hindsight",
         "the best half of the month, in hindsight",
         "faults asked or alerted", "or listed", "incidents", "missed, by kind"],
        rows)],
        note="Counts.",
    )  # fmt: skip


def main() -> None:
    """Parse the command line, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sensors", type=int, default=1_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--capacity", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    simulated(parser.parse_args())


if __name__ == "__main__":
    main()
