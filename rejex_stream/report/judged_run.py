"""What a run says: its readings with their verdicts, rates beside theory, what became of faults."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import scipy

from rejex_stream.config import Config
from rejex_stream.config.assembly import (
    file_decoder,
    file_places,
    kafka_decoder,
    kafka_settings,
    monitor_config,
    open_source,
    records_of,
)
from rejex_stream.config.assembly.control_line import incidents_in, lines_of, published_lines
from rejex_stream.decode import Decoder, decode_records
from rejex_stream.encode import decode_dead_letter, decode_verdict
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.monitor import MonitorConfig, Theory
from rejex_stream.monitor.theory import mean_theory, rank_law, theory_of
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.settings import toml
from rejex_stream.types import (
    Incident,
    Invalid,
    Label,
    OutcomeCounts,
    Partition,
    Position,
    Reading,
    Reason,
    Record,
    Verdict,
    policy_band,
    without_limits,
)

NEWEST = 100_000  # events that a report shows; of more the newest
# They say nothing about a verdict, and may hold what not everybody may read.
_KEPT_BACK = frozenset(("kafka", "schema_registry", "alerts", "review"))


class Channel(NamedTuple):
    """How a channel is shown."""

    title: str
    unit: str = ""


class Fault(NamedTuple):
    """A stretch of one sensor in which something is known to be wrong."""

    sensor: str
    first_ms: int
    last_ms: int
    title: str
    settling_ms: int = 0  # features still contain it: an anomaly then is no false alarm


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one pipeline judged, in the order in which it did."""

    name: str
    title: str
    about: str
    channels: tuple[Channel, ...]
    events: tuple[tuple[Reading, Verdict], ...]
    monitors: MonitorConfig
    dead_letters: tuple[tuple[Record, Invalid], ...] = ()
    faults: tuple[Fault, ...] = ()
    budget: float | None = None  # planned share of rejected; None: a tolerance was given
    settings: str = ""
    left_out: int = 0  # older events
    incidents: tuple[Incident, ...] = ()
    names: DisplayNames = field(default_factory=DisplayNames)


def read_run(config: Config) -> Run:
    """Read back the newest events of a pipeline; O(length of input and output) of a file.

    Of topics only the stretches are read that the newest verdicts judge. Readings that their
    topic does not keep any more are left out with their verdicts.
    """
    written = _in_topics(config) if config.input.kind == "kafka" else _in_files(config)
    if not written.verdicts:
        raise ConnectorError(
            f"{written.place} holds no verdict: run the pipeline first, with rejex-stream run."
        )
    verdicts = list(map(decode_verdict, written.verdicts))
    wanted = {verdict.position for verdict in verdicts}
    decoder, records = written.judged(wanted)
    readings = {
        item.position: item
        for record in records
        for item in decode_records(decoder, [record])[1]
        if isinstance(item, Reading) and item.position in wanted
    }
    lost = next((position for position in wanted if position not in readings), None)
    if lost is not None and (config.input.kind == "file" or not readings):
        raise ConnectorError(
            f"{written.input} does not hold the reading {lost} that {written.place} judges: "
            "give the input that was judged, or run the pipeline again."
        )
    events = tuple((readings[v.position], v) for v in verdicts if v.position in readings)
    budget = config.rejection.review_budget
    return Run(
        name=config.pipeline.name,
        title=config.pipeline.name,
        about=f"{Path(written.input).name}, judged by {config.detector.name}.",
        channels=tuple(_shown(config, name) for name in config.mapping().channel_names),
        names=DisplayNames(channels=config.channels),
        events=events,
        monitors=monitor_config(config),
        dead_letters=tuple(written.dead_letters),
        budget=None if budget is None else budget.share,
        settings=_as_toml(config),
        left_out=written.n_older + len(verdicts) - len(events),
        incidents=tuple(incidents_in(written.incidents).values()),
    )


class _Written(NamedTuple):
    """What a pipeline wrote, where, and how the records that it judged are read again."""

    input: str
    place: str  # of the verdicts
    verdicts: Collection[bytes]  # the newest
    n_older: int
    dead_letters: Iterable[tuple[Record, Invalid]]
    incidents: Iterable[bytes]
    judged: Callable[[set[Position]], tuple[Decoder, Iterator[Record]]]


def _in_files(config: Config) -> _Written:
    places = file_places(config)
    if "-" in (config.input.path, places.verdicts, places.deadletter):
        raise ConfigError(
            "this pipeline reads standard input or writes to standard output, which cannot be read "
            "again: give input.path, output.verdicts and output.deadletter files."
        )
    newest: deque[bytes] = deque(maxlen=NEWEST)
    n_written = 0
    for line in lines_of(Path(places.verdicts)):
        newest.append(line)
        n_written += 1

    def judged(wanted: set[Position]) -> tuple[Decoder, Iterator[Record]]:
        source = open_source(config.without_follow())
        offsets = {position.offset for position in wanted}
        records = (r for r in records_of(source) if r.position.offset in offsets)
        return file_decoder(config, source), records

    dead = deque(lines_of(Path(places.deadletter)), maxlen=NEWEST)
    return _Written(
        config.input.path or "",
        places.verdicts,
        newest,
        n_written - len(newest),
        map(decode_dead_letter, dead),
        lines_of(Path(places.incidents)),
        judged,
    )


def _in_topics(config: Config) -> _Written:
    from rejex_connectors.kafka.partition_reader import (
        bounds_of,
        newest_records,
        partitions_of,
        read_partition,
    )
    from rejex_connectors.kafka.topic_to_topic import list_dead_letters

    settings = kafka_settings(config)
    verdicts = partitions_of(settings, settings.topics.verdicts, needed=True)
    each = max(1, NEWEST // len(verdicts))
    n_older = sum(
        max(0, end - first - each) for first, end in bounds_of(settings, verdicts).values()
    )
    newest = newest_records(settings, verdicts, NEWEST)

    def judged(wanted: set[Position]) -> tuple[Decoder, Iterator[Record]]:
        offsets: dict[Partition, list[int]] = {}
        for position in wanted:
            place = Partition(position.topic, position.partition)
            offsets.setdefault(place, []).append(position.offset)
        stretches = (
            read_partition(settings, place, min(at), max(at) + 1)
            for place, at in sorted(offsets.items())
        )
        return kafka_decoder(config), chain.from_iterable(stretches)

    return _Written(
        ", ".join(settings.topics.input),
        f"topic {settings.topics.verdicts!r}",
        [record.value for record in newest if record.value],
        n_older,
        (
            (letter.original, Invalid(letter.original.position, letter.stage, letter.reason))
            for letter in list_dead_letters(settings, newest=NEWEST)
        ),
        published_lines(config, "incidents"),
        judged,
    )


def _shown(config: Config, name: str) -> Channel:
    channel = config.channels.get(name)
    return Channel(name) if channel is None else Channel(channel.label or name, channel.unit)


def _as_toml(config: Config) -> str:
    given = config.model_dump(mode="json", exclude_unset=True)
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {toml(value)}" for key, value in section.items())])
        for name, section in given.items()
        if name not in _KEPT_BACK
    )


# ------------------------------------------------------------------------------------ findings
Outcome = Literal["caught", "review", "missed"]

_BY_CHANCE = 0.1
_FIRST_RATE_EVENTS = 100
_DAY_S = 86_400.0


class Event(NamedTuple):
    """One judged event, with the rolling rate after it."""

    reading: Reading
    verdict: Verdict
    rolling_rate: float | None
    theory: Theory | None


class Series(NamedTuple):
    """All events of one sensor, in the order they were judged, and its usual step in seconds."""

    sensor: str
    events: tuple[Event, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class FaultFindings:
    """What became of one known fault.

    ``caught``: more anomalies than chance would give (probability below 0.1). ``review``: more
    anomalies and rejects than chance would give, or no score, so that a person sees it. ``missed``:
    neither. Events of one fault depend on each other, so this is a rough check.
    """

    fault: Fault
    n_events: int
    n_anomaly: int
    n_rejected: int  # the ambiguous ones
    n_unscorable: int
    n_warm_up: int
    expected_flagged: float  # anomalies and rejects that as many ordinary events would have given
    outcome: Outcome
    notice_after_s: float | None  # from its first reading to the first anomaly or reject

    @property
    def n_normal(self) -> int:
        judged = self.n_anomaly + self.n_rejected + self.n_unscorable + self.n_warm_up
        return self.n_events - judged


@dataclass(frozen=True, slots=True)
class Findings:
    """What one run did."""

    run: Run
    series: tuple[Series, ...]
    counts: OutcomeCounts
    faults: tuple[FaultFindings, ...]
    rolling_rate: float  # share of rejected over the last window of each stream
    theory: Theory | None
    events_per_day: float  # of one sensor, by its usual step
    false_alarms: int  # anomalies outside all known faults

    @property
    def n_ambiguous(self) -> int:
        """Ranked events that were rejected."""
        return self.counts.reasons[Reason.AMBIGUOUS]

    @property
    def days(self) -> float:
        """Judged sensor-days: ranked events over events a day; 1 if there are none."""
        return self.counts.n_ranked / self.events_per_day or 1.0

    def outcomes(self, outcome: Outcome) -> int:
        return sum(fault.outcome == outcome for fault in self.faults)


def analyse_run(run: Run) -> Findings:
    """Sum up a run and compare it with theory, and with what is known. O(events)."""
    streams: dict[str, list[Event]] = {}
    recent: dict[str, deque[bool]] = {}
    sensors: dict[tuple[str, str], list[Event]] = {}
    for reading, verdict in run.events:
        key, window = verdict.stream_key, run.monitors.window
        rolling = recent.setdefault(key, deque(maxlen=window))
        theory = theory_at(verdict, run.monitors)
        if theory is not None:
            rolling.append(without_limits(verdict).reason is Reason.AMBIGUOUS)
        enough = len(rolling) >= min(_FIRST_RATE_EVENTS, window)
        rate = sum(rolling) / len(rolling) if enough else None
        event = Event(reading, verdict, rate, theory)
        streams.setdefault(key, []).append(event)
        sensors.setdefault((verdict.sensor, key), []).append(event)

    names = Counter(sensor for sensor, _ in sensors)
    series = tuple(
        _series(sensor if names[sensor] == 1 else f"{sensor} in {key}", events)
        for (sensor, key), events in sorted(sensors.items())
    )
    known = {fault.sensor for fault in run.faults}
    timed = {
        name: sorted(
            (e for s in series for e in s.events if e.verdict.sensor == name), key=_time_ms
        )
        for name in known
    }
    last = [
        ([event.theory for event in events if event.theory], events[-1].rolling_rate)
        for events in streams.values()
    ]
    rates = [rate for _, rate in last if rate is not None]
    verdicts = [verdict for _, verdict in run.events]
    counts = OutcomeCounts(n_invalid=len(run.dead_letters))
    counts.add_verdicts(verdicts)
    steps = [of_sensor.step_s for of_sensor in series]
    return Findings(
        run=run,
        series=series,
        counts=counts,
        faults=tuple(
            judged for fault in run.faults if (judged := _judge_fault(fault, timed[fault.sensor]))
        ),
        rolling_rate=sum(rates) / len(rates) if rates else 0.0,
        theory=mean_theory([(theories[-1], len(theories)) for theories, _ in last if theories]),
        events_per_day=_DAY_S / statistics.median(steps) if steps else 1.0,
        false_alarms=sum(_is_false_alarm(verdict, run.faults) for verdict in verdicts),
    )


def theory_at(verdict: Verdict, monitors: MonitorConfig) -> Theory | None:
    """Return the theory of the band that decided; ``None`` where none did: no rate counts those."""
    lower, upper = policy_band(verdict)
    reason = without_limits(verdict).reason
    if lower is None or upper is None or reason is Reason.CONSTANT_WINDOW:
        return None
    law = rank_law(verdict.window_len, verdict.n_anomalies, lower, upper)
    return theory_of(law, monitors)


def _series(name: str, events: Sequence[Event]) -> Series:
    times = sorted(event.reading.event_time_ms for event in events)
    steps = [later - earlier for earlier, later in pairwise(times) if later > earlier]
    return Series(name, tuple(events), statistics.median(steps) / 1000 if steps else 1.0)


def _time_ms(event: Event) -> int:
    return event.verdict.event_time_ms


def _judge_fault(fault: Fault, timed: Sequence[Event]) -> FaultFindings | None:
    first = bisect_left(timed, fault.first_ms, key=_time_ms)
    events = timed[first : bisect_right(timed, fault.last_ms, key=_time_ms)]
    if not events:
        return None
    verdicts = [event.verdict for event in events]
    reasons = Counter(verdict.reason for verdict in verdicts)
    n_anomaly = sum(verdict.label is Label.ANOMALY for verdict in verdicts)
    n_rejected = reasons[Reason.AMBIGUOUS]
    n_unscorable = reasons[Reason.UNSCORABLE] + reasons[Reason.CONSTANT_WINDOW]
    theories = [event.theory for event in events if event.theory is not None]
    by_chance = sum(theory.expected_anomaly_rate for theory in theories)
    flagged = by_chance + sum(theory.expected_rate for theory in theories)
    outcome: Outcome = "missed"
    if reasons[Reason.LIMIT] or _beyond_chance(n_anomaly, len(theories), by_chance):
        outcome = "caught"
    elif n_unscorable or _beyond_chance(n_anomaly + n_rejected, len(theories), flagged):
        outcome = "review"
    return FaultFindings(
        fault=fault,
        n_events=len(events),
        n_anomaly=n_anomaly,
        n_rejected=n_rejected,
        n_unscorable=n_unscorable,
        n_warm_up=reasons[Reason.WARM_UP],
        expected_flagged=flagged,
        outcome=outcome,
        notice_after_s=min(
            (
                (verdict.event_time_ms - fault.first_ms) / 1000
                for verdict in verdicts
                if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP
            ),
            default=None,
        ),
    )


def _beyond_chance(flagged: int, events: int, expected: float) -> bool:
    """Whether so many or more would come by chance with probability below 0.1, if independent."""
    probability = scipy.special.bdtrc
    return flagged > 0 and float(probability(flagged - 1, events, expected / events)) < _BY_CHANCE


def _is_false_alarm(verdict: Verdict, faults: Sequence[Fault]) -> bool:
    return verdict.label is Label.ANOMALY and not any(
        fault.sensor == verdict.sensor
        and fault.first_ms <= verdict.event_time_ms <= fault.last_ms + fault.settling_ms
        for fault in faults
    )
