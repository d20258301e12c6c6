"""The rejection rate as it goes by: the product's own monitors, asked again and again.

The console runs the same :class:`~rejex_stream.monitor.MonitorBank` over the same verdicts as the
pipeline does, so what it shows is what the metrics say. It keeps a sample of every stream about
once a minute of event time, and the monitors' state, so that a restart goes on.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from typing import Any

import msgspec

from rejex_stream.encode import decode_verdict
from rejex_stream.errors import CheckpointError, ConnectorError
from rejex_stream.monitor import Alarm, MonitorBank, MonitorConfig, MonitorStatus
from rejex_stream.rejection.band import nested_band
from rejex_stream.review.queue.detail import count_as_contamination
from rejex_stream.review.queue.listing import QueueFilter, Viewer
from rejex_stream.review.queue.series import HOUR_MS, MINUTE_MS
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.types import Verdict, in_mode, of_mode

__all__ = [
    "Brief",
    "Mix",
    "PipelineWatch",
    "RateSample",
    "StreamLine",
    "figures",
    "last_event_ms",
    "mix",
    "samples",
    "samples_after",
    "state_word",
    "stream_lines",
]

_EVENTS_BETWEEN_SAMPLES = 10
# As often as a sample can be due: a feed that is caught up with has its course, too.
_SLICE = _EVENTS_BETWEEN_SAMPLES
_KEEP_MS = 14 * 24 * 60 * MINUTE_MS


class RateSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the monitors of one stream said at one moment of event time.

    Attributes
    ----------
    t_ms
        Event time, UTC milliseconds.
    events
        In the rolling window.
    rate, lower, upper
        Rolling rejection rate with its limits.
    expected, frozen_bound, paper_bound
        R, the exact bound of a frozen window's rate (not of the rolling one) and the paper's h.
    anomaly_rate
        Share accepted as anomaly.
    alarms
        Kinds of the alarms that stand.
    """

    t_ms: int
    events: int
    rate: float
    expected: float | None = None
    frozen_bound: float | None = None
    paper_bound: float | None = None
    lower: float | None = None
    upper: float | None = None
    anomaly_rate: float | None = None
    effective_events: float | None = None
    health: str = ""
    alarms: tuple[str, ...] = ()


def _policy_tolerance(verdict: Verdict, tolerance: float) -> float:
    """Return T of the policy's own band, which a review budget that holds does not tell."""
    n, lower, upper = verdict.window_len, verdict.policy_lower, verdict.policy_upper
    if lower is None or upper is None:
        return tolerance
    contamination = count_as_contamination(n, max(verdict.n_anomalies, 1))
    return nested_band(n, contamination, upper - lower + 1).tolerance


def figures(status: MonitorStatus) -> dict[str, Any]:
    """Return what a status says in numbers, named as in :class:`RateSample`."""
    theory = status.theory
    return {
        "rate": status.rejection_rate,
        "expected": None if theory is None else theory.expected_rate,
        "frozen_bound": None if theory is None else theory.frozen_bound,
        "paper_bound": None if theory is None else theory.paper_bound,
        "lower": status.lower,
        "upper": status.upper,
        "anomaly_rate": status.anomaly_rate,
        "effective_events": status.effective_events,
    }


def _sample(status: MonitorStatus, t_ms: int) -> RateSample | None:
    if status.rejection_rate is None:
        return None
    return RateSample(
        t_ms=t_ms,
        events=status.rolling_events,
        health=status.health,
        alarms=tuple(sorted({str(alarm.kind) for alarm in status.active_alarms})),
        **figures(status),
    )


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What the monitors said of a stream when it was sampled last.

    Attributes
    ----------
    state
        See :func:`state_word`.
    events
        In the rolling window.
    inflation
        Of the rate's variance; 1 where it is not known.
    """

    state: str
    events: int
    inflation: float
    rate: float | None
    expected: float | None
    frozen_bound: float | None
    lower: float | None
    upper: float | None


def _brief(status: MonitorStatus) -> Brief:
    known = figures(status)
    return Brief(
        state=state_word(status),
        events=status.rolling_events,
        inflation=max(1.0, status.inflation or 1.0),
        **{name: known[name] for name in ("rate", "expected", "frozen_bound", "lower", "upper")},
    )


class PipelineWatch:
    """The monitors of one pipeline inside the console.

    Parameters
    ----------
    store
        Keeps samples, alarms and state.
    pipeline
        Name; also tells streams of several pipelines apart.
    config
        Settings of the monitors; without them n, γ and T are taken from the first verdict judged
        by a full band, which is nearly the same.
    """

    def __init__(
        self, store: ReviewStore, pipeline: str = "", config: MonitorConfig | None = None
    ) -> None:
        self.pipeline = pipeline
        self._store = store
        self._lock = threading.Lock()
        self._config = config
        self._bank: MonitorBank | None = None
        self._sampled: dict[str, tuple[int, int]] = {}
        self._briefs: dict[str, Brief] = {}
        self._latest_ms = 0
        with store.database.read() as connection:
            row = connection.execute(
                "SELECT state FROM monitor WHERE pipeline = ?", (pipeline,)
            ).fetchone()
        if row is not None:
            self._restore(row["state"])
        elif config is not None:
            self._bank = MonitorBank(config)

    def _restore(self, blob: bytes) -> None:
        length = int.from_bytes(blob[:4], "big")
        kept = MonitorConfig(**msgspec.json.decode(blob[4 : 4 + length]))
        self._config = self._config or kept
        self._bank = MonitorBank(self._config)
        try:
            self._bank.restore(blob[4 + length :])
        except CheckpointError:  # other settings by now: the monitors start anew
            self._bank = MonitorBank(self._config)

    @property
    def config(self) -> MonitorConfig | None:
        """Settings of the monitors; ``None`` while nothing is known."""
        return self._config

    def observe_lines(self, lines: Iterable[bytes]) -> None:
        """Take encoded verdicts, in order; what cannot be read is left out."""
        verdicts = []
        for line in lines:
            try:
                verdicts.append(decode_verdict(line))
            except ConnectorError:
                continue
        self.observe(verdicts)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Take verdicts in order, and keep samples and alarms."""
        found: list[tuple[str, RateSample]] = []
        alarms: list[Alarm] = []
        with self._lock:
            for start in range(0, len(verdicts), _SLICE):
                part = verdicts[start : start + _SLICE]
                # Not its truth: a bank without streams is empty, and configured all the same.
                bank = self._bank if self._bank is not None else self._begin(part)
                if bank is None:
                    continue
                raised = bank.observe(part)
                alarms += raised
                for alarm in raised:
                    self._briefs.pop(_key_of(alarm), None)
                self._latest_ms = max(self._latest_ms, *(v.event_time_ms for v in part))
                found += self._due(bank, part)
        if found or alarms:
            self._keep(found, alarms)

    def _begin(self, verdicts: Sequence[Verdict]) -> MonitorBank | None:
        for verdict in verdicts:
            if verdict.band_lower is not None and verdict.tolerance is not None:
                self._config = MonitorConfig(
                    window=verdict.window_len,
                    contamination=max(verdict.n_anomalies, 1) / verdict.window_len,
                    tolerance=_policy_tolerance(verdict, verdict.tolerance),
                )
                self._bank = MonitorBank(self._config)
                return self._bank
        return None

    def _due(self, bank: MonitorBank, verdicts: Sequence[Verdict]) -> list[tuple[str, RateSample]]:
        latest: dict[str, tuple[int, int]] = {}
        for verdict in verdicts:
            key = in_mode(verdict.stream_key, verdict.mode)
            _, count = latest.get(key, (0, 0))
            latest[key] = (verdict.event_time_ms, count + 1)
        latest[""] = (self._latest_ms, len(verdicts))
        found = []
        for key, (t_ms, count) in latest.items():
            last_ms, since = self._sampled.get(key, (0, 0))
            since += count
            self._sampled[key] = (last_ms, since)
            if t_ms - last_ms < MINUTE_MS or since < _EVENTS_BETWEEN_SAMPLES:
                continue
            status = bank.stream(key).status() if key else bank.status()
            if key:
                self._briefs[key] = _brief(status)
            sample = _sample(status, t_ms)
            if sample is not None:
                found.append((key, sample))
                self._sampled[key] = (t_ms, 0)
        return found

    def _keep(self, found: Sequence[tuple[str, RateSample]], alarms: Sequence[Alarm]) -> None:
        with self._store.database.write() as connection:
            next_seq = connection.execute(
                "SELECT coalesce(max(rate_seq), 0) + 1 FROM rate"
            ).fetchone()[0]
            connection.executemany(
                "INSERT INTO rate VALUES (?,?,?,?,?) "
                "ON CONFLICT (pipeline, stream_key, t_ms) DO UPDATE SET "
                "rate_seq = excluded.rate_seq, value = excluded.value",
                [
                    (self.pipeline, key, one.t_ms, next_seq + i, msgspec.json.encode(one))
                    for i, (key, one) in enumerate(found)
                ],
            )
            connection.executemany(
                "INSERT INTO mark VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING",
                [
                    (
                        self.pipeline,
                        _key_of(alarm),
                        alarm.event_time_ms,
                        f"alarm:{alarm.kind}",
                        alarm.message,
                    )
                    for alarm in alarms
                ],
            )

    def key_of(self, stream: str) -> str:
        """Return the key that is watched of a stream: in its busiest mode, where it has some."""
        with self._lock:
            bank = self._bank
            if bank is None or stream in bank:
                return stream
            modes = [key for key in bank if of_mode(key)[0] == stream]
            return max(modes, key=lambda key: bank.stream(key).status().events, default=stream)

    def status(self, stream_key: str = "") -> MonitorStatus | None:
        """Return what the monitors know now, of one stream or the pipeline; ``None`` if nothing."""
        with self._lock:
            if self._bank is None:
                return None
            if not stream_key:
                return self._bank.status()
            return self._bank.stream(stream_key).status() if stream_key in self._bank else None

    def briefs(self) -> dict[str, Brief]:
        """Return what is known of every stream, as of about a minute of event time ago at most.

        O(streams), and O(monitor) only for those that were never sampled or have a new alarm.
        """
        with self._lock:
            if self._bank is None:
                return {}
            for key in self._bank:
                if key not in self._briefs:
                    self._briefs[key] = _brief(self._bank.stream(key).status())
            return dict(self._briefs)

    def save(self) -> None:
        """Keep the monitors' state, and drop samples older than two weeks of event time."""
        with self._lock:
            if self._bank is None or self._config is None:
                return
            config = msgspec.json.encode(dict(self._config))
            blob = len(config).to_bytes(4, "big") + config + self._bank.snapshot()
        with self._store.database.write() as connection:
            connection.execute(
                "INSERT INTO monitor VALUES (?,?) "
                "ON CONFLICT (pipeline) DO UPDATE SET state = excluded.state",
                (self.pipeline, blob),
            )
            for table in ("rate", "mark"):
                connection.execute(
                    f"DELETE FROM {table} WHERE pipeline = ? AND t_ms < ?",
                    (self.pipeline, self._latest_ms - _KEEP_MS),
                )


def samples(
    connection: Connection,
    pipeline: str,
    stream_key: str,
    from_ms: int,
    *,
    most: int = 1_500,
) -> list[RateSample]:
    """Return at most about `most` samples of a stream since a time, oldest first."""
    rows = connection.execute(
        "SELECT value FROM rate WHERE pipeline = ? AND stream_key = ? AND t_ms >= ? ORDER BY t_ms",
        (pipeline, stream_key, from_ms),
    ).fetchall()
    step = max(1, -(-len(rows) // most))
    # Counted from the end, so that the newest is always there.
    picked = rows[::-1][::step][::-1]
    return [msgspec.json.decode(row["value"], type=RateSample) for row in picked]


def samples_after(
    connection: Connection, pipeline: str, stream_key: str, rate_seq: int
) -> list[tuple[int, RateSample]]:
    """Return the samples of a stream that came after `rate_seq`, with their own."""
    return [
        (row["rate_seq"], msgspec.json.decode(row["value"], type=RateSample))
        for row in connection.execute(
            "SELECT rate_seq, value FROM rate WHERE rate_seq > ? AND pipeline = ? "
            "AND stream_key = ? ORDER BY rate_seq LIMIT 2000",
            (rate_seq, pipeline, stream_key),
        )
    ]


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts counted over a stretch of event time."""

    normal: int = 0
    anomaly: int = 0
    rejected: int = 0
    banded: int = 0
    ambiguous: int = 0
    expected: float = 0.0

    @property
    def events(self) -> int:
        """All verdicts."""
        return self.normal + self.anomaly + self.rejected


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """One stream in the list beside the plot.

    Attributes
    ----------
    state
        See :func:`state_word`.
    key
        What it is watched by: the stream, with the mode where it has some.
    trace
        Its rolling rates, oldest first.
    open_episodes
        Ready for review; the link behind it shows exactly these.
    """

    key: str
    stream_key: str
    mode: str | None
    sensors: int
    state: str
    rate: float | None = None
    expected: float | None = None
    frozen_bound: float | None = None
    lower: float | None = None
    upper: float | None = None
    events: int = 0
    last_ms: int
    trace: list[tuple[int, float]]
    open_episodes: int
    address: str


def state_word(sample: RateSample | MonitorStatus | None) -> str:
    """Return one word or two for a stream's state, worst first."""
    if sample is None:
        return "no verdicts yet"
    if isinstance(sample, MonitorStatus):
        alarms = {str(alarm.kind) for alarm in sample.active_alarms}
        rate, theory = sample.rejection_rate, sample.theory
        bound = None if theory is None else theory.frozen_bound
        health: str = sample.health
    else:
        alarms, rate, bound = set(sample.alarms), sample.rate, sample.frozen_bound
        health = sample.health
    for kind, word in (
        ("stuck", "stuck"),
        ("collapse", "rate collapsed"),
        ("rejection_rate", "far above plan"),
        ("health", "changed"),
        ("drift", "drifting"),
        ("warm_up", "warm-up in doubt"),
    ):
        if kind in alarms:
            return word
    if rate is not None and bound is not None and rate > bound:
        return "above bound"
    return "calibrating" if health == "calibrating" else "as planned"


def last_event_ms(connection: Connection, pipeline: str) -> int | None:
    """Return the event time of the newest verdict of a pipeline."""
    row = connection.execute(
        "SELECT max(last_ms) FROM sensor WHERE pipeline = ?", (pipeline,)
    ).fetchone()
    return None if row[0] is None else int(row[0])


def mix(
    connection: Connection,
    pipeline: str,
    from_ms: int,
    *,
    to_ms: int | None = None,
    stream_key: str = "",
    sensor_id: int | None = None,
) -> Mix:
    """Count the verdicts from one minute of event time to another (not included).

    O(sensors · hours) between full hours, O(sensors · minutes) between others.
    """
    full = from_ms % HOUR_MS == 0 and (to_ms is None or to_ms % HOUR_MS == 0)
    table = "hour" if full else "minute"
    where, values = ["s.pipeline = ?", "m.t_ms >= ?"], list[Any]([pipeline, from_ms])
    if to_ms is not None:
        where.append("m.t_ms < ?")
        values.append(to_ms)
    if stream_key:
        where.append("s.stream_key = ?")
        values.append(of_mode(stream_key)[0])
    if sensor_id is not None:
        where.append("m.sensor_id = ?")
        values.append(sensor_id)
    row = connection.execute(
        "SELECT coalesce(sum(normal), 0), coalesce(sum(anomaly), 0), coalesce(sum(rejected), 0), "
        "coalesce(sum(banded), 0), coalesce(sum(ambiguous), 0), coalesce(sum(expected), 0.0) "
        f"FROM {table} m JOIN sensor s USING (sensor_id) WHERE {' AND '.join(where)}",
        values,
    ).fetchone()
    return Mix(
        normal=row[0],
        anomaly=row[1],
        rejected=row[2],
        banded=row[3],
        ambiguous=row[4],
        expected=row[5],
    )


_CALM = frozenset({"as planned", "calibrating", "no verdicts yet"})


def stream_lines(
    connection: Connection,
    watch: PipelineWatch,
    viewer: Viewer,
    from_ms: int,
    now_ms: int,
    *,
    limit: int,
    offset: int = 0,
) -> tuple[list[StreamLine], int]:
    """Return a page of a pipeline's streams, farthest from plan first, and how many there are.

    O(streams · log streams + open episodes + limit · samples).
    """
    rows = connection.execute(
        "SELECT stream_key, count(*) AS sensors, max(last_ms) AS last_ms, "
        "min(sensor) AS sensor, min(grp) AS grp "
        "FROM sensor WHERE pipeline = ? AND last_ms IS NOT NULL GROUP BY stream_key",
        (watch.pipeline,),
    ).fetchall()
    briefs = watch.briefs()
    modes: dict[str, list[str]] = {}
    for key in briefs:
        modes.setdefault(of_mode(key)[0], []).append(key)
    every = [
        (row, key) for row in rows for key in modes.get(row["stream_key"], [row["stream_key"]])
    ]
    states = {key: _state(briefs.get(key)) for _, key in every}
    every.sort(key=lambda one: (*_worst_first(briefs.get(one[1]), states[one[1]]), one[1]))
    waiting = QueueFilter().waiting(connection, viewer, now_ms)
    found = []
    for row, key in every[offset : offset + limit]:
        brief, (stream_key, mode) = briefs.get(key), of_mode(key)
        one = row["sensors"] == 1
        name = ("sensor", row["sensor"]) if one else ("group", row["grp"])
        trace = samples(connection, watch.pipeline, key, from_ms, most=60)
        found.append(
            StreamLine(
                key=key,
                stream_key=stream_key,
                mode=mode,
                sensors=row["sensors"],
                state=states[key],
                **(
                    {}
                    if brief is None
                    else {
                        one: getattr(brief, one)
                        for one in StreamLine.__struct_fields__
                        if one in Brief.__struct_fields__ and one != "state"
                    }
                ),
                last_ms=row["last_ms"],
                trace=[(sample.t_ms, sample.rate) for sample in trace if sample.lower is not None],
                open_episodes=waiting[name],
                address=QueueFilter(words=shlex.quote(":".join(name))).address(),
            )
        )
    return found, len(every)


def _key_of(alarm: Alarm) -> str:
    return "" if alarm.stream_key is None else in_mode(alarm.stream_key, alarm.mode)


def _state(brief: Brief | None) -> str:
    return "no verdicts yet" if brief is None else brief.state


def _worst_first(brief: Brief | None, state: str) -> tuple[bool, float]:
    if brief is None or brief.rate is None or not brief.expected:
        return state in _CALM, 0.0
    return state in _CALM, -abs(brief.rate / brief.expected - 1)
