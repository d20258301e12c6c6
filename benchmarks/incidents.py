"""Faults that last: found, held, answered; and streams in which nothing is wrong.

python -m benchmarks.incidents [--data ../shared/data/sensors] [--events 1000000]

Tables are kept in the folder `--keep` as they are made, so it can be killed and called again, and
`--only` makes some of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from benchmarks.harness import machine, write
from benchmarks.streams.prequential import spec_for
from benchmarks.streams.sources import Stream, find, load
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import (
    Command,
    CommandKind,
    Incident,
    IncidentState,
    Label,
    Position,
    Reading,
    Verdict,
)

N, AT, SHORT, LONG = 2000, 12_000, 8_000, 100_000
MINUTE, MONTH = 60_000, 30 * 86_400_000
AFTER = 500  # rows after a cut, in which a hold is rather of what was cut out than of nothing
CHANNELS = ("a", "b", "c")
DETECTORS = ("GMM", "KNN", "HBOS", "Sensor", "HalfSpaceTrees")
RATE = 0.05
Floats = np.ndarray[Any, np.dtype[np.float64]]


def ar(phi: float, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    z = rng.standard_normal(shape)
    start = rng.standard_normal((1, shape[1])) * phi
    filtered = lfilter([math.sqrt(1 - phi * phi)], [1, -phi], z, axis=0, zi=start)[0]
    return np.asarray(filtered)


def readings(X: Floats, every_ms: int = 1_000) -> list[Reading]:
    return [
        Reading("s", "s", every_ms * i, tuple(row), Position("t", 0, i))
        for i, row in enumerate(X.tolist())
    ]


def engine(
    detector: str, contamination: float = 0.02, *, channels: int = 3, **given: Any
) -> Engine:
    policy = RejectionPolicy(contamination, rate=RATE)
    given = {"evidence": False} | given
    features = FeatureSpec(CHANNELS[:channels])
    spec = EngineSpec(make_detector(detector), features, policy, window=N, **given)
    return Engine(spec, InlineExecutor())


class Played(NamedTuple):
    """What became of a feed."""

    verdicts: list[Verdict]
    incidents: list[Incident]


def play(engine: Engine, feed: Sequence[Reading]) -> Played:
    verdicts: list[Verdict] = []
    for start in range(0, len(feed), 500):
        verdicts += engine.process(feed[start : start + 500])
    return Played(verdicts, engine.take_incidents())


def not_normal(verdicts: Sequence[Verdict]) -> float:
    return sum(v.label is not Label.NORMAL for v in verdicts) / max(1, len(verdicts))


def answer(engine: Engine, kind: CommandKind, incident: Incident) -> None:
    command = Command(
        id=f"{kind}-{incident.id}",
        kind=kind,
        stream_key=incident.stream_key,
        incident=incident.id,
        version=None,
    )
    reply = engine.command(command)
    assert reply is not None
    assert reply.accepted, reply


# ------------------------------------------------------------------------------- the step
def step(
    detector: str, contamination: float, raised: float, lengths: Sequence[int], seed: int = 1
) -> list[list[Any]]:
    """Raise one of three AR(.95) channels for ever: held, without a hold, and frozen at once."""
    X = ar(0.95, (AT + max(lengths), 3), np.random.default_rng(seed))
    X[AT:, 0] += raised
    feed = readings(X)
    held = play(engine(detector, contamination), feed)
    off = play(engine(detector, contamination, hold=Hold(enabled=False)), feed)
    frozen_engine = engine(detector, contamination, hold=Hold(enabled=False))
    play(frozen_engine, feed[:AT])
    frozen_engine.command(
        Command(id="f", kind=CommandKind.PLANNED, from_ms=1000 * AT, until_ms=10**12)
    )
    frozen = play(frozen_engine, feed[AT:])
    opened = next(
        (i for i in held.incidents if i.state is IncidentState.OPEN and i.opened_seq >= AT), None
    )
    found = AT if opened is None else opened.opened_seq
    rows = []
    for events in lengths:
        part = slice(found, AT + events)
        frozen_part = frozen.verdicts[found - AT : events]
        rows.append(
            [
                detector,
                contamination,
                f"{raised:g}",
                events,
                "-" if opened is None else found - AT,
                sum(v.held for v in held.verdicts[part]) / (AT + events - found),
                not_normal(held.verdicts[part]),
                not_normal(frozen_part),
                not_normal(held.verdicts[part]) - not_normal(frozen_part),
                not_normal(off.verdicts[part]),
            ]
        )
    return rows


def steps(detector: str, lengths: Sequence[int]) -> tuple[str, list[str], list[list[Any]]]:
    rows = [
        row
        for contamination in (0.02, 0.05)
        for raised in (3.0, 5.0, 8.0, 20.0)
        for row in step(detector, contamination, raised, lengths)
    ]
    return (
        "One of three AR(.95) channels raised for ever, n = 2,000, defaults. `delay`: events from "
        "the onset until the incident; the shares are of the events after it (after the onset, "
        "where none opened): held, not normal (anomaly or rejected), the same with a reference "
        "frozen at the onset, the difference, and without a hold",
        ["detector", "γ", "sd", "events", "delay", "held", "not normal", "frozen", "difference",
         "no hold"],
        rows,
    )  # fmt: skip


def found(detector: str, phi: float, raised: float, seeds: int) -> list[Any]:
    """Return in how many streams a step is held within 2 n, and how soon."""
    delays: list[int] = []
    for seed in range(seeds):
        X = ar(phi, (5 * N, 3), np.random.default_rng(200 + seed))
        X[3 * N :, 0] += raised
        opened = play(engine(detector), readings(X)).incidents
        delays += [i.opened_seq - 3 * N for i in opened if i.opened_seq >= 3 * N][:1]
    return [
        detector,
        f"AR({phi:g})",
        f"{raised:g}",
        seeds,
        len(delays),
        statistics.median(delays) if delays else "-",
    ]


def sooner(seeds: int) -> tuple[str, list[str], list[list[Any]]]:
    return (
        "How soon: one of three channels raised for ever after 3 n events, n = 2,000, γ = .02; "
        "streams in which an incident opened within 2 n of it, and the median of its delay",
        ["detector", "stream", "sd", "streams", "held", "delay"],
        [
            found(detector, phi, raised, seeds)
            for detector in ("GMM", "Sensor")
            for phi in (0.95, 0.99)
            for raised in (3.0, 5.0, 8.0, 20.0)
        ],
    )


# ------------------------------------------------------------------------------- answers
def answered(detector: str, phi: float, kind: CommandKind, seeds: int) -> list[Any]:
    """Answer 500 events after the incident; rates after the end, over some streams."""
    ended, early, late = [], [], []
    over = 2 * N
    for seed in range(seeds):
        X = ar(phi, (AT + 3 * over + 500, 3), np.random.default_rng(100 + seed))
        until = AT + over if kind is CommandKind.FAULT else None
        X[AT:until, 0] += 8.0
        feed, told = readings(X), engine(detector)
        play(told, feed[:AT])
        first = play(told, feed[AT : AT + 700])
        opened = [i for i in first.incidents if i.state is IncidentState.OPEN]
        if not opened:
            continue
        answer(told, kind, opened[-1])
        rest = play(told, feed[AT + 700 :])
        closed = next((i for i in rest.incidents if i.state is IncidentState.CLOSED), None)
        begin = (AT + over) if kind is CommandKind.FAULT else AT + 700
        if closed is not None:
            ended.append(closed.changed_seq - begin)
        after = rest.verdicts[begin - AT - 700 :]
        early.append(not_normal(after[100 : 100 + N] if until else after[N : 2 * N]))
        late.append(not_normal([v for v in after[100:] if not v.held]))
    return [
        str(kind),
        detector,
        f"AR({phi:g})" if phi else "iid",
        len(early),
        statistics.median(ended) if ended else "-",
        max(ended) if ended else "-",
        statistics.mean(early),
        statistics.mean(late),
    ]


def answers(detector: str, seeds: int) -> tuple[str, list[str], list[list[Any]]]:
    planned = (N - RejectionPolicy(0.02, rate=RATE).band(N).lower + 1) / (N + 1)
    return (
        f"Answers, 8 sd, γ = .02 and a review budget of .05: by plan {planned:.3f} of the events "
        "are rejected or anomalies. `closed after`: median and most, counted from the answer (new "
        "normal), from the end of the fault (fault). `not normal`: of the n events that begin n "
        "after a new normal, or 100 events after the end of a fault; and of all events that are "
        "not held any more",
        ["answer", "detector", "stream", "runs", "closed after", "most", "not normal",
         "not normal, not held"],
        [
            answered(detector, phi, kind, seeds)
            for kind in (CommandKind.NEW_NORMAL, CommandKind.FAULT)
            for phi in (0.0, 0.95)
        ],
    )  # fmt: skip


# ------------------------------------------------------------------------------- nothing wrong
def season(period: int, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    return np.sin(2 * np.pi * (np.arange(shape[0])[:, None] + rng.integers(period)) / period)


Make = Callable[[tuple[int, int], np.random.Generator], Floats]
NULLS: dict[str, Make] = {
    "iid": lambda shape, rng: rng.standard_normal(shape),
    **{
        f"AR({phi:g})": lambda shape, rng, phi=phi: ar(phi, shape, rng)  # type: ignore[misc]
        for phi in (0.5, 0.8, 0.9, 0.95, 0.97, 0.99)
    },
    "season 300 + AR(.9)": lambda shape, rng: season(300, shape, rng) + ar(0.9, shape, rng),
    "season 1440 x AR(.9)": lambda shape, rng: (
        (1 + 0.5 * season(1440, shape, rng)) * ar(0.9, shape, rng)
    ),
    "season 5000 (2.5 n) + AR(.9)": lambda shape, rng: (
        season(5000, shape, rng) + ar(0.9, shape, rng)
    ),
    "t(2), iid": lambda shape, rng: rng.standard_t(2, shape),
    "t(3) through AR(.9)": lambda shape, rng: np.asarray(
        lfilter([1], [1, -0.9], rng.standard_t(3, shape), axis=0)
    ),
}


class Episodes(NamedTuple):
    """Incidents of one stream: how long each was held until it recovered (inf: never); alerts."""

    held: list[float]
    alerts: int

    @classmethod
    def of(cls, incidents: Sequence[Incident]) -> Episodes:
        """Return the incidents of one stream."""
        held = {i.id: i.changed_seq for i in reversed(incidents) if i.held}  # since when
        closed = {i.id: i.changed_seq for i in incidents if i.state is IncidentState.CLOSED}
        lengths = [closed.get(name, math.inf) - seq for name, seq in held.items()]
        return cls(lengths, len({i.id for i in incidents}))

    def __add__(self, other: Episodes) -> Episodes:  # type: ignore[override]
        return Episodes(self.held + other.held, self.alerts + other.alerts)

    def row(self, events: int, months: float) -> list[Any]:
        """Return the cells of a table."""
        n = len(self.held)
        soon = sum(length <= N for length in self.held)
        a_month = self.alerts / months if months else "-"
        return [events, n, 1e6 * n / max(1, events), f"{soon} of {n}", self.alerts, a_month]


ROW = ["events", "held", "in 10^6", "recovered in n", "alerts", "a month"]
TOLD = (
    "incidents held, in 10^6 events, and how many of them recovered by themselves within n = "
    "2,000 events; alerts (all incidents, held or not) and how many a sensor and month of event "
    "time, where one is what is allowed"
)


def null(detector: str, name: str, events: int, length: int = 50_000) -> list[Any]:
    found, seeds = Episodes([], 0), -(-events // length)
    for seed in range(seeds):
        X = NULLS[name]((length, 3), np.random.default_rng(1_000 + seed))
        told = engine(detector, alarms=Alarms())
        found += Episodes.of(play(told, readings(X, MINUTE)).incidents)
    return [detector, name, *found.row(seeds * length, seeds * length * MINUTE / MONTH)]


def nulls(detector: str, events: int) -> tuple[str, list[str], list[list[Any]]]:
    share, names = {
        "GMM": (1, list(NULLS)),
        "Sensor": (4, list(NULLS)),
        "HalfSpaceTrees": (20, ["iid", "AR(0.95)"]),
    }[detector]
    return (
        "Streams of three channels in which nothing is wrong, cut into streams of 50,000 events, "
        f"one a minute, with a warm-up each: {TOLD}",
        ["detector", "stream", *ROW],
        [null(detector, name, events // share) for name in names],
    )


def families(seeds: int) -> tuple[str, list[str], list[list[Any]]]:
    """Play what machines, rain, sun and bursts do, for three weeks by the minute."""
    from benchmarks.price import FAMILIES

    rows, length = [], 21 * 1_440
    for name in ("machine on and off", "rain", "solar", "regimes of a day", "bursts"):
        told, held = 0, 0
        for seed in range(seeds):
            X = FAMILIES[name](length, MINUTE, np.random.default_rng([seed, 32]))
            opened = play(engine("Sensor", alarms=Alarms()), readings(X, MINUTE)).incidents
            told += len({i.id for i in opened})
            held += len({i.id for i in opened if i.held})
        months = seeds * (length - N) * MINUTE / MONTH
        rows.append(["Sensor", name, seeds, told, held, told / months])
    return (
        "What is usual and looks like a fault: three weeks of a reading a minute of three "
        "channels, as `benchmarks.price` makes them. Alerts of all streams, how many of them were "
        "held, and how many a sensor and month (without the first window), where one is allowed",
        ["detector", "stream", "streams", "alerts", "held", "a month"],
        rows,
    )  # fmt: skip


# ------------------------------------------------------------------------------- little was seen
HOUR, SHORT_WINDOW, FIRST = 3_600_000, 336, 877  # until then 20 blocks of a full window were seen
DAY = {
    "iid": NULLS["iid"],
    "AR(.9)": NULLS["AR(0.9)"],
    "AR(.97)": NULLS["AR(0.97)"],
    "AR(.99)": NULLS["AR(0.99)"],
    "day + AR(.5)": lambda shape, rng: season(24, shape, rng) + 0.3 * ar(0.5, shape, rng),
    "t(3), iid": lambda shape, rng: rng.standard_t(3, shape),
}


def begun(X: Floats, window: int, every_ms: int) -> Played:
    policy = RejectionPolicy(0.02, rate=RATE)
    spec = EngineSpec(
        make_detector("Sensor"), FeatureSpec(CHANNELS), policy, window=window,
        evidence=False, alarms=Alarms(),
    )  # fmt: skip
    return play(Engine(spec, InlineExecutor()), readings(X, every_ms))


def hourly(X: Floats) -> Played:
    return begun(X, SHORT_WINDOW, HOUR)


def early(seeds: int) -> tuple[str, list[str], list[list[Any]]]:
    rows = []
    for name, make in DAY.items():
        told, events, at_first = 0, 0, 0
        found = dict[tuple[float, int], list[float]]()
        for seed in range(seeds):
            X = make((FIRST + 100, 3), np.random.default_rng([seed, 271]))
            played = hourly(X)
            told += sum(i.opens and i.opened_seq < FIRST for i in played.incidents)
            events += sum(v.severity is not None for v in played.verdicts[:FIRST])
            X_minutes = make((3_000, 3), np.random.default_rng([seed, 272]))
            at_first += sum(i.opens for i in begun(X_minutes, 1_000, MINUTE).incidents)
            for raised in (3.0, 8.0):
                for at in (480, 680):
                    faulty = X[: at + 100].copy()
                    faulty[at:, 0] += raised * X[:, 0].std()
                    opened = (i for i in hourly(faulty).incidents if i.opens)
                    delays = [i.opened_seq - at for i in opened if i.opened_seq >= at]
                    found.setdefault((raised, at), []).append(min(delays, default=math.inf))
        cells = [f"{sum(d <= 48 for d in each)} of {seeds}, {statistics.median(each):g}"
                 for each in found.values()]  # fmt: skip
        month = told * MONTH / HOUR / events
        rows.append(["Sensor", name, events, told, month, *cells, at_first / seeds])
    return (
        "Before much was seen: hourly streams of three channels, n = 336, as shipped; up to event "
        "877, when 20 blocks of a full window were there. Where nothing is wrong: alerts, and how "
        "many a sensor and month, where one is what is allowed. One channel raised for ever from "
        "event 480 or 680 on: in how many streams somebody is told of it within 48 hours (in some "
        "a false alert was open), and the median of the delay in hours (inf: not within 100). "
        "Last: of a reading a minute, n = 1,000, alerts a stream in its first 3,000 events, in "
        "which nothing is wrong",
        ["detector", "stream", "events", "alerts", "a month", "3 sd at 480", "3 sd at 680",
         "8 sd at 480", "8 sd at 680", "first 3,000 minutes"],
        rows,
    )  # fmt: skip


def spans(normal: Sequence[bool], *, apart: bool) -> list[list[int]]:
    """Return the normal rows of a stream: as one stream, or each stretch of them *apart*."""
    if not apart:
        return [[i for i, good in enumerate(normal) if good][: 3 * SHORT]]
    edges = np.flatnonzero(np.diff([0, *normal, 0]))
    return [list(range(a, min(b, a + 3 * SHORT))) for a, b in edges.reshape(-1, 2).tolist()]


def feed_of(stream: Stream, rows: Sequence[int]) -> list[Reading]:
    """Return these rows of a stream with their times, numbered again."""
    times, X = stream.times_ms[rows].tolist(), stream.X[rows].tolist()
    return [
        Reading("s", "s", t, tuple(x), Position("t", 0, i))
        for i, (t, x) in enumerate(zip(times, X, strict=True))
    ]


def played_by(
    detector: str, stream: Stream, feed: Sequence[Reading]
) -> tuple[Played | None, EngineSpec]:
    """Play rows of a stream as shipped; ``None``: the detector cannot be fitted on it."""
    spec = replace(spec_for(stream, detector), evidence=False, hold=Hold(), alarms=Alarms())
    try:
        return play(Engine(spec, InlineExecutor()), feed), spec
    except Exception as error:
        print(stream.source, stream.name, detector, error)
        return None, spec


def whole(data: Path) -> tuple[str, list[str], list[list[Any]]]:
    """Play labelled streams as a user has them, faults included, and look where holds begin."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for path in find(data):
        stream = load(path)
        rows = np.arange(min(len(stream.y), 3 * SHORT))
        faulty = np.flatnonzero(stream.y[rows] == 1)
        if len(rows) - len(faulty) < 1_000:
            continue
        feed = feed_of(stream, rows)
        for detector in ("GMM", "Sensor"):
            played, _ = played_by(detector, stream, feed)
            if played is None:
                continue
            of = found[stream.source, detector]
            of.update(streams=1, events=len(rows) - len(faulty))
            for name in {i.id: None for i in played.incidents if i.held}:
                said = [i for i in played.incidents if i.id == name and i.held]
                first, begun = said[0].onset_seq, said[0].changed_seq
                soon = faulty[(faulty <= begun) & (faulty >= first - AFTER)]
                where = "elsewhere" if not len(soon) else "fault" if soon[-1] >= first else "after"
                of.update({where: 1})
                of["false events"] += where != "fault" and sum(
                    v.held and v.incident == name and stream.y[v.seq] != 1 for v in played.verdicts
                )
    for detector in ("GMM", "Sensor"):
        for key in [key for key in found if key[1] == detector]:
            found["all", detector] += found[key]
    return (
        "The shared streams as somebody has them who runs the service: whole, faults included, at "
        "most 24,000 rows each, nobody answers. Holds that begin in a labelled fault (a labelled "
        f"row between onset and hold), within {AFTER} rows after one, and elsewhere; of the last, "
        "how many in 10^6 events that are not labelled",
        ["source", "detector", "streams", "events not labelled", "in a fault", "soon after",
         "elsewhere", "elsewhere in 10^6", "held by the last two, %"],
        [
            [source, detector, of["streams"], of["events"], of["fault"], of["after"],
             of["elsewhere"], 1e6 * of["elsewhere"] / of["events"],
             100 * int(of["false events"]) / of["events"]]
            for (source, detector), of in sorted(found.items(), key=lambda one: one[0][0] == "all")
        ],
    )  # fmt: skip


def labelled(data: Path) -> tuple[str, list[str], list[list[Any]]]:
    """Play labelled streams whole, and count the faults that an alert tells of while they last."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in find(data):
        stream = load(path)
        rows = np.arange(min(len(stream.y), 3 * SHORT))
        y = stream.y[rows] == 1
        if len(rows) - y.sum() < 1_000:
            continue
        played, _ = played_by("Sensor", stream, feed_of(stream, rows))
        if played is None:
            continue
        ranked = np.array([v.rank is not None for v in played.verdicts])
        told = np.zeros(len(rows), dtype=np.int64)
        np.add.at(told, [i.changed_seq for i in played.incidents if i.opens], 1)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], y, [False])).astype(np.int8)))
        faults = [slice(a, b) for a, b in edges.reshape(-1, 2) if ranked[a:b].any()]
        for of in (found[stream.source], found["all"]):
            of.update(
                streams=1, faults=len(faults), told=sum(bool(told[at].any()) for at in faults),
                false=int(told[~y].sum()), ms=int(np.diff(stream.times_ms[rows])[~y[1:]].sum()),
                events=int((~y).sum()),
            )  # fmt: skip
    return (
        "The shared streams whole, at most 24,000 rows each, nobody answers, by the default "
        "detector: labelled faults in which anything was ranked, those in which an alert came, "
        "alerts in rows that are not labelled, how many a month of these and in 10,000 of them",
        ["source", "streams", "faults", "told", "share", "alerts elsewhere", "a month", "in 10^4"],
        [
            [source, of["streams"], of["faults"], of["told"], of["told"] / max(1, of["faults"]),
             of["false"], of["false"] * MONTH / max(1, of["ms"]), 1e4 * of["false"] / of["events"]]
            for source, of in sorted(found.items(), key=lambda one: one[0] == "all")
        ],
    )  # fmt: skip


def shared(data: Path, *, apart: bool = False) -> tuple[str, list[str], list[list[Any]]]:
    """Play the rows of labelled streams that are not anomalous."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    episodes: dict[tuple[str, str], Episodes] = defaultdict(lambda: Episodes([], 0))
    for path in find(data):
        stream = load(path)
        for rows in spans((stream.y != 1).tolist(), apart=apart):
            if len(rows) < 1_000:
                continue
            feed, times = feed_of(stream, rows), stream.times_ms[rows]
            for detector in ("GMM", "Sensor"):
                played, spec = played_by(detector, stream, feed)
                if played is None:
                    continue
                key, verdicts = (stream.source, detector), played.verdicts
                episodes[key] += Episodes.of(played.incidents)
                full = sum(v.window_len == spec.window for v in verdicts)
                begun = {i.id: i.changed_seq for i in reversed(played.incidents) if i.held}
                cuts = np.flatnonzero(np.diff(rows) > 1) + 1
                found[key].update(
                    streams=1,
                    events=full if apart else len(feed),
                    ms=int(times[-1] - times[0]),
                    held=sum(v.held for v in verdicts),
                    cut=sum(bool(((cuts <= s) & (s < cuts + AFTER)).any()) for s in begun.values()),
                )
    caption = (
        "The same, with no cut in them: each stretch of 1,000 and more rows between two labelled "
        "ones is a stream with a warm-up of its own, and the events are those judged by a full "
        "window, without which nothing is held"
        if apart
        else "Normal rows of the shared streams (rows labelled as anomalous are cut out, which "
        "leaves a jump where they were, and how many holds begin soon after one is in the last "
        "column; at most 24,000 rows each)"
    )
    for detector in ("GMM", "Sensor"):
        for key in [key for key in found if key[1] == detector]:
            found["all", detector] += found[key]
            episodes["all", detector] += episodes[key]
    table = [
        [
            *(source, detector, of["streams"]),
            *episodes[source, detector].row(of["events"], of["ms"] / MONTH),
            *(100 * of["held"] / max(1, of["events"]), of["cut"]),
        ]
        for (source, detector), of in sorted(found.items(), key=lambda one: one[0][0] == "all")
    ]
    columns = ["source", "detector", "streams", *ROW, "time held, %", f"{AFTER} after a cut"]
    return (caption, columns, table)


# ------------------------------------------------------------------------------- ramps and costs
def ramps(seeds: int) -> tuple[str, list[str], list[list[Any]]]:
    rows = []
    for phi in (0.0, 0.95):
        for windows in (1, 5, 20):
            opened = 0
            for seed in range(seeds):
                X = ar(phi, (AT + windows * N * 3, 3), np.random.default_rng(seed))
                X[AT:, 0] += np.arange(len(X) - AT) / (windows * N)
                opened += bool(play(engine("GMM"), readings(X)).incidents)
            rows.append([f"AR({phi:g})" if phi else "iid", f"1 sd in {windows} n", seeds, opened])
    return (
        "A slow ramp of one channel, 3 sd in all, GMM: streams in which an incident opened; in the "
        "others the window absorbed it as drift",
        ["stream", "ramp", "streams", "held"],
        rows,
    )


def costs() -> tuple[str, list[str], list[list[Any]]]:
    rows = []
    for detector, events in (("GMM", 60_000), ("Sensor", 60_000), ("HalfSpaceTrees", 10_000)):
        for phi in (0.0, 0.95):
            feed = readings(ar(phi, (events, 3), np.random.default_rng(5)))
            on, off, ratio = interleaved(detector, feed)
            name = f"AR({phi:g})" if phi else "iid"
            rows.append([detector, name, off, on, 100 * (ratio - 1)])
    return (
        "What holding costs while nothing happens, in the engine as it is by default: processor "
        "time of two engines that take turns at the same 500 events, medians; the last column: of "
        "the ratios",
        ["detector", "stream", "off, µs an event", "on, µs an event", "more with a hold, %"],
        rows,
    )


def interleaved(detector: str, feed: Sequence[Reading], poll: int = 500) -> list[float]:
    """Return µs an event with and without a hold, and their ratio: medians over polls."""
    engines = {
        hold: engine(detector, hold=Hold(enabled=hold), evidence=True) for hold in (True, False)
    }
    taken: list[tuple[float, float]] = []
    for start in range(0, len(feed), poll):
        spent = dict.fromkeys(engines, 0.0)
        for hold in sorted(engines, reverse=bool(start // poll % 2)):
            begun = time.process_time()
            engines[hold].process(feed[start : start + poll])
            spent[hold] = time.process_time() - begun
        if start > 2 * (N + 1000):  # models are there, the window is full
            taken.append((spent[True], spent[False]))
    on, off = zip(*taken, strict=True)
    ratio = statistics.median(a / b for a, b in taken)
    return [1e6 * statistics.median(on) / poll, 1e6 * statistics.median(off) / poll, ratio]


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.incidents", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of <source>/<stream>.csv.gz")
    parser.add_argument("--events", type=int, default=1_000_000, help="of each null stream")
    parser.add_argument(
        "--after", type=int, nargs="+", default=[SHORT, LONG], help="events after a step"
    )
    parser.add_argument("--runs", type=int, default=10, help="of each answer")
    parser.add_argument("--keep", type=Path, help="folder of tables; those there are not made")
    makes = {
        "costs": costs,
        **{f"steps {name}": partial(lambda d: steps(d, given.after), name) for name in DETECTORS},
        **{
            f"answers {name}": partial(lambda d: answers(d, given.runs), name) for name in DETECTORS
        },
        **{
            f"nulls {name}": partial(lambda d: nulls(d, given.events), name)
            for name in ("GMM", "Sensor", "HalfSpaceTrees")
        },
        "families": lambda: families(given.runs),
        "early": lambda: early(2 * given.runs),
        "how soon": lambda: sooner(given.runs),
        "ramps": lambda: ramps(given.runs),
        "shared": lambda: shared(given.data),
        "whole": lambda: whole(given.data),
        "labelled": lambda: labelled(given.data),
        "stretches": lambda: shared(given.data, apart=True),
    }
    parser.add_argument(
        "--only", nargs="+", choices=list(makes), help="make these, write no results"
    )
    parser.add_argument("--report", action="store_true", help="make nothing, write what is kept")
    parser.add_argument("--note", default="", help="what a reader must know of how it was made")
    given = parser.parse_args()
    keep = given.keep or Path(tempfile.mkdtemp())
    keep.mkdir(parents=True, exist_ok=True)
    for name in given.only or makes:
        path = keep / f"{name}.json"
        if (
            given.report
            or path.exists()
            or (name in ("shared", "whole", "labelled", "stretches") and not given.data)
        ):
            continue
        caption, columns, rows = makes[name]()
        print(caption, columns, *rows, sep="\n", flush=True)
        path.write_text(json.dumps([caption, columns, rows, machine()["load_1min"]]), "utf-8")
    if given.only:
        return
    made = {
        name: json.loads(path.read_text("utf-8"))
        for name in makes
        if (path := keep / f"{name}.json").exists()
    }
    loads = ", ".join(f"{name} {load}" for name, (_, _, _, load) in made.items())
    note = (
        f"{given.note} Simulated streams are seeded; only the costs depend on the machine. "
        "Load when made: "
    ).lstrip()
    tables: dict[str, tuple[str, list[str], list[list[Any]]]] = {}
    for caption, columns, rows, _ in made.values():
        tables.setdefault(caption, (caption, columns, []))[2].extend(rows)
    write("incidents", "Faults that last: the hold", list(tables.values()), note=f"{note}{loads}.")


if __name__ == "__main__":
    main()
