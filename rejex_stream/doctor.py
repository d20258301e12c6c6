"""Is everything there that a pipeline needs? Numbered checks, each with the way to fix it.

Nothing is changed: files are opened, topics described, a few records read outside any group.
"""

from __future__ import annotations

import re
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from rejex_stream.addresses import masked
from rejex_stream.config import Config, check_config
from rejex_stream.config.assembly import (
    budget_of_groups,
    file_decoder,
    kafka_decoder,
    kafka_settings,
    open_source,
    require_one_partition,
    require_own_topics,
)
from rejex_stream.decode import Decoder, decode_records
from rejex_stream.decode.mapping import printable
from rejex_stream.decode.written import number_reader
from rejex_stream.engine.engine import core
from rejex_stream.errors import ConfigError, ConnectorError, RejexError
from rejex_stream.operate.alerts import http_request
from rejex_stream.plan.promises import Costs, Plan, plan, plan_doubts
from rejex_stream.protocols import Assigned
from rejex_stream.readable import span, utc
from rejex_stream.settings import toml
from rejex_stream.tables.column_checks import at_rest, check_readings, resting_among
from rejex_stream.tables.dialect import find_marks, find_times
from rejex_stream.tables.order import TimeOrder
from rejex_stream.types import Invalid, Partition, Reading, Record, of_mode

Level = Literal["ok", "warning", "error", "skipped"]
_TIMEOUT_S = 5.0
_FUTURE_MS = 300_000
_NO_SCHEMA = 2**31 - 1
_PARTED = (
    ": the group would have a review budget in each",
    ": it would be as many streams, each with a model of its own",
)
"""What that means of a group, and of a sensor; then how to fix it."""
_PUT_TOGETHER = (
    'key the records by group; or give rejection.review_budget.owner = "partition"',
    "key the records by sensor, as `rejex-stream topics rekey` does; or "
    'input.partitioning = "trust", if it changes its partition for good',
)
_GOT = re.compile(r"'([^']+)'(?: lies outside|;|$)")


class Finding(NamedTuple):
    """What one check found; `error`: the pipeline will not run, or not as promised."""

    level: Level
    message: str
    fix: str = ""


class Check(msgspec.Struct, frozen=True):
    """A finding, numbered in the order of the checks; one name may have several."""

    number: int
    name: str
    level: Level
    message: str
    fix: str = ""


_Look: TypeAlias = Callable[[], Iterator[Finding]]


def examine(path: Path, *, sample: int = 200) -> Iterator[Check]:
    """Run all checks on a config, reading `sample` records; yields each as soon as it is known."""
    config, problems = check_config(path)
    if config is None:
        for problem in problems:
            what, _, fix = str(problem).rpartition(": ")
            where = "" if problem.key else f"{path}: "
            yield Check(1, "config", "error", f"{where}{what or problem.key}", fix)
        return
    yield Check(1, "config", "ok", f"{path} is valid")
    readings: list[Reading] = []
    looks: list[tuple[str, _Look]] = [
        ("promise", lambda: config_findings(config)),
        *(
            _of_kafka(config, sample, readings)
            if config.input.kind == "kafka"
            else [
                ("input", lambda: _input(config)),
                ("sample", lambda: _sample(config, sample, readings)),
            ]
        ),
        ("core", lambda: iter([Finding("ok", core()[1])])),
        ("clock", lambda: _clock(config, readings)),
        ("alertmanager", lambda: _alertmanager(config)),
        ("webhook", lambda: _webhook(config)),
    ]
    for number, (name, look) in enumerate(looks, start=2):
        try:
            for finding in look():
                yield Check(number, name, *finding)
        except RejexError as error:
            message, _, fix = str(error).partition(": ")
            yield Check(number, name, "error", message, fix)


def config_findings(config: Config) -> Iterator[Finding]:
    """Yield what is doubtful about a valid config."""
    source = config.input
    for doubt, fix in plan_doubts(promised(config)):
        yield Finding("warning", doubt, fix)
    is_text = source.time is not None and source.mapping().time_is_text
    if is_text and source.time_zone is None and "%z" not in (source.time_format or ""):
        yield Finding("ok", "times without a zone are read as UTC", "input.time_zone changes it")
    setting = budget_of_groups(config) if source.kind == "kafka" else None
    if setting is not None and source.partitioning == "check":
        yield Finding(
            "warning",
            f"{setting} with a budget that is held: input of several partitions will be refused",
            'give input.partitioning = "trust" if every group is in one partition',
        )


def promised(config: Config) -> Plan:
    """Return what the rejection settings of a config promise."""
    rejection, given = config.rejection, config.rejection.costs
    policy, budget = rejection.policy(), rejection.review_budget
    return plan(
        rejection.contamination,
        rejection.window,
        policy.tolerance,
        rate=policy.rate,
        burst=policy.burst,
        per_day=policy.per_day,
        owner=policy.owner,
        costs=None if given.c_r is None else Costs(given.c_fp, given.c_fn, given.c_r),
        events_per_day=None if budget is None else budget.events_per_day,
    )


def _clock(config: Config, readings: list[Reading]) -> Iterator[Finding]:
    if readings:
        yield clock_finding(readings, time.time())
        yield from _interval(config, readings)
    else:
        yield Finding("skipped", "no record was read")


def clock_finding(readings: list[Reading], now_s: float) -> Finding:
    """Compare the newest event time with this machine's clock."""
    newest_ms = max(reading.event_time_ms for reading in readings)
    ahead_ms = newest_ms - 1000 * now_s
    when = f"{utc(newest_ms):%Y-%m-%d %H:%M:%S} UTC"
    if ahead_ms > _FUTURE_MS:
        return Finding(
            "warning",
            f"the newest event is of {when}, {span(ahead_ms)} ahead of this clock",
            "check input.time_unit, the sensor's clock and this machine's",
        )
    return Finding("ok", f"the newest event is of {when}, {span(ahead_ms)} ago")


def _interval(config: Config, readings: list[Reading]) -> Iterator[Finding]:
    """Compare how far apart readings are with the interval by which times became counts."""
    order = TimeOrder()
    for reading in readings:
        order.add(reading.stream_key, reading.event_time_ms)
    stated, usual = config.input.sample_interval_ms, order.usual_step_ms
    if stated is None or not usual:
        return
    message = f"readings of a sensor are {span(usual)} apart"
    if stated / 2 <= usual <= 2 * stated:
        yield Finding("ok", message)
        return
    if config.durations:
        key, (written, count) = next(iter(config.durations.items()))
        message += f", so {key} = {written!r}, {count:,} events, lasts {span(count * usual)}"
    yield Finding("warning", message, f"give input.sample_interval_ms = {round(usual)}")


# ------------------------------------------------------------- a sample of the records
def sample_findings(
    records: Sequence[Record],
    decoded: Sequence[Reading | Invalid],
    decoder: Decoder,
    flags: Sequence[str] = (),
) -> Iterator[Finding]:
    """Say how many of the sample can be read, the first that cannot, and channels nobody has."""
    readings = [item for item in decoded if isinstance(item, Reading)]
    unread = [item for item in decoded if isinstance(item, Invalid)]
    invalid = [item for item in unread if not item.silent]
    if not decoded:
        yield Finding("warning", "there is no record yet", "send one, then look again")
        return
    sensors = len({reading.sensor for reading in readings})
    if invalid:
        first = invalid[0]
        yield Finding(
            "error" if not readings else "warning",
            f"{len(invalid)} of {len(decoded)} records cannot be read; {first.position}: "
            f"{first.reason}",
            _fix_of(first.reason),
        )
    if ignored := [item for item in unread if item.silent]:
        says = f"{len(ignored)} of {len(decoded)} records hold no reading, and are ignored; "
        says += f"{ignored[0].position}: {ignored[0].reason}"
        yield Finding("ok" if readings or invalid else "warning", says)
    if readings:
        yield Finding("ok", f"{len(readings)} records of {sensors} sensor(s) can be read")
    columns = [*zip(*(reading.values for reading in readings), strict=True)]
    missing = [sum(value != value for value in column) for column in columns]  # noqa: PLR0124 - nan
    rows = [reading.values for reading in readings]
    if resting := resting_among(decoder.channels, rows, flags):
        yield Finding("ok", at_rest(resting))
    if readings and max(missing, default=0) == len(readings):
        lost = [
            n for n, count in zip(decoder.channels, missing, strict=True) if count == len(readings)
        ]
        names = [name for name in lost if name not in flags] or lost
        newest = decoded.index(readings[-1])
        lacking = getattr(decoder, "lacking", None)
        why = "" if lacking is None else f"; in {readings[-1].position} {lacking(records[newest])}"
        in_score = names[0] not in flags
        yield Finding(
            "error" if in_score else "warning",
            f"missing everywhere: {', '.join(map(repr, names))}{why}",
            ("no event can be scored without" if in_score else "the reviewer will not see it")
            + "; fix the field in input.channels",
        )


def doubt_findings(
    config: Config,
    records: Sequence[Record],
    decoded: Sequence[Reading | Invalid],
    decoder: Decoder,
) -> Iterator[Finding]:
    """Check what can be read of the sample, column by column."""
    pairs = zip(decoded, records, strict=True)
    read = [(item, record) for item, record in pairs if isinstance(item, Reading)]
    fields = getattr(decoder, "fields", None)  # Avro and Protobuf have none that are texts alone
    rows = [] if fields is None else [fields(record) for _, record in read]
    for doubt in check_readings(config, [item for item, _ in read], rows):
        yield Finding("warning", doubt.seen, doubt.setting)


def _fix_of(reason: str) -> str:
    got = _GOT.search(reason)
    text = got[1] if got else ""
    if "UTF-8" in reason:
        return 'give input.encoding, such as "cp1252"'
    if reason.startswith("time: "):
        written = find_times([text])
        if written is None:
            return "fix input.time, or give input.time_format"
        key, value = ("format", written.format) if written.format else ("unit", written.unit)
        return f'give input.time_{key} = "{value}"'
    marks = find_marks([text])
    if "expected a number" in reason and number_reader(*marks)(text) is not None:
        marked = [f'input.thousands = "{marks.thousands}"'] if marks.thousands else []
        marked += [f'input.decimal = "{marks.decimal}"'] if marks.decimal != "." else []
        return "give " + ", ".join(marked or ['input.numbers = "text"'])
    if "expected a number" in reason and text and not any(map(str.isdigit, text)):
        return f"if it stands for no value, give input.missing = [{toml(text)}]"
    return "compare [input] with the records; `rejex-stream init` guesses it"


# -------------------------------------------------------------------------------- files
def _input(config: Config) -> Iterator[Finding]:
    if config.input.path == "-":
        yield Finding("skipped", "standard input cannot be looked at without taking from it")
        return
    source = open_source(config)
    source.close()
    path = Path(config.input.path or "")
    yield Finding("ok", f"{path} can be read, {path.stat().st_size:,} bytes")


def _sample(config: Config, sample: int, readings: list[Reading]) -> Iterator[Finding]:
    if config.input.path == "-":
        yield Finding("skipped", "standard input")
        return
    source = open_source(config)
    with closing(source):
        decoder = file_decoder(config, source)
        for change in source.changes():
            if isinstance(change, Assigned):
                source.seek(change.partition, change.earliest)
        records, decoded = decode_records(decoder, source.poll(sample, timeout_s=1.0))
        readings += [item for item in decoded if isinstance(item, Reading)]
        yield from sample_findings(records, decoded, decoder, config.input.flags)
        yield from doubt_findings(config, records, decoded, decoder)


# -------------------------------------------------------------------------------- Kafka
def _of_kafka(config: Config, sample: int, readings: list[Reading]) -> list[tuple[str, _Look]]:
    broker = _Broker(config, sample, readings)
    registry = [("registry", broker.registry)] if config.schema_registry.url is not None else []
    return [
        ("broker", broker.reachable),
        ("topics", broker.if_up(broker.topics)),
        ("access", broker.if_up(broker.access)),
        *registry,
        ("sample", broker.if_up(broker.sample)),
    ]


class _Broker:
    """The checks, in the order in which each builds upon the one before."""

    def __init__(self, config: Config, sample: int, readings: list[Reading]) -> None:
        self._config, self._settings, self._sample = config, kafka_settings(config), sample
        topics = self._settings.topics
        self._wanted = [*topics.input, *topics.others]
        self._described: dict[str, Any] = {}
        self._missing: set[tuple[str, str]] = set()
        self._up = False
        self._schemas = config.schema_registry.url is None
        self._readings = readings

    def if_up(self, look: _Look) -> _Look:
        """Return a check that is skipped where the broker did not answer."""
        away = Finding("skipped", "the broker does not answer")
        return lambda: look() if self._up else iter([away])

    def reachable(self) -> Iterator[Finding]:
        from rejex_connectors.kafka.partition_reader import admin
        from rejex_connectors.kafka.topic_admin import describe

        settings = self._settings
        try:
            client = admin(settings)
        except ConnectorError as error:
            yield Finding("error", str(error), "check [kafka]: the address, TLS and login")
            return
        with closing(client):
            self._described = describe(client, settings, self._wanted)
        self._up = True
        yield Finding("ok", f"{settings.bootstrap_servers} answers")

    def topics(self) -> Iterator[Finding]:
        from rejex_connectors.kafka.topic_admin import check_topics, plan_topics

        plans = plan_topics(self._settings)
        every_s = self._config.state.snapshot_interval_s
        for finding in check_topics(self._settings, plans, snapshot_every_s=every_s):
            message, _, fix = finding.message.partition(": ")
            if finding.level == "ok":
                message, fix = finding.message, ""
            yield Finding(finding.level, f"{finding.topic} {message}", fix)
        require_own_topics(self._settings)
        require_one_partition(self._config, Counter(p.topic for p in self._input_partitions()))

    def access(self) -> Iterator[Finding]:
        """Check the rights that a worker needs, as far as that can be read."""
        from rejex_connectors.kafka.partition_reader import admin
        from rejex_connectors.kafka.refusals import grant
        from rejex_connectors.kafka.topic_admin import missing_rights

        with closing(admin(self._settings)) as client:
            for right in missing_rights(client, self._settings, self._described):
                self._missing.add((right.name, right.operation))
                yield Finding("error", f"{right} is not allowed", grant(right, self._settings))
        if self._missing:
            return
        unknown = [name for name in self._wanted if name not in self._described]
        nothing = "nothing that a worker does is refused"
        if unknown:
            nothing = f"nothing is refused; {len(unknown)} topic(s) that do not exist were left out"
        yield Finding("ok", nothing)

    def registry(self) -> Iterator[Finding]:
        """Ask the schema registry for a schema, as the decoder will, but for one it cannot have."""
        from rejex_connectors.kafka.schema_registry import HttpSchemaRegistry

        try:
            kafka_decoder(self._config)
            HttpSchemaRegistry(self._config.schema_registry).schema(_NO_SCHEMA)
        except (ConfigError, ConnectorError) as error:
            yield Finding("error", str(error), "check input.format and [schema_registry]")
            return
        self._schemas = True
        yield Finding("ok", f"{self._config.schema_registry.url} answers")

    def sample(self) -> Iterator[Finding]:
        if not self._schemas:
            yield Finding("skipped", "records cannot be read without the schema registry")
            return
        names = self._settings.topics.input
        unread = next((name for name in names if (name, "READ") in self._missing), None)
        if unread is not None:
            yield Finding("skipped", f"{unread} may not be read")
            return
        partitions = self._input_partitions()
        if not partitions:
            yield Finding("skipped", "there is no input topic yet")
            return
        from rejex_connectors.kafka.partition_reader import newest_records

        decoder = kafka_decoder(self._config)
        newest = list(newest_records(self._settings, partitions, self._sample))
        records, decoded = decode_records(decoder, newest)
        self._readings += [item for item in decoded if isinstance(item, Reading)]
        yield from sample_findings(records, decoded, decoder, self._config.input.flags)
        yield from doubt_findings(self._config, records, decoded, decoder)
        yield from self._parted(records)

    def _parted(self, records: Sequence[Record]) -> Iterator[Finding]:
        from rejex_connectors.kafka.source import keyless

        by_key = self._config.input.partitioning == "check"
        if not by_key and budget_of_groups(self._config) is None:
            return
        if by_key and not self._config.input.mapping().sensor_from:
            every = {p.topic: p.partition + 1 for p in self._input_partitions()}
            for topic, count in keyless(records, every).items():
                yield Finding(
                    "error" if count > len(records) / 2 else "warning",
                    f"{count} of {len(records)} records have no key, and {topic} has "
                    f"{every[topic]} partitions: each sensor would be parted into as many streams, "
                    "each with a model of its own",
                    f'set input.topics = ["{topic}.keyed"] and run `rejex-stream topics rekey '
                    f'CONFIG --from {topic}`; or input.partitioning = "trust", if every sensor is '
                    "in one partition all the same",
                )
                return
        places: dict[str, set[int]] = {}
        policy = self._config.rejection.policy()
        for reading in self._readings:
            stream = of_mode(reading.stream_key)[0]
            name = reading.sensor if by_key else policy.shared_by(stream) or stream
            places.setdefault(name, set()).add(reading.position.partition)
        for name, partitions in places.items():
            if len(partitions) > 1:
                numbers = ", ".join(map(str, sorted(partitions)))
                at = f"{printable(name)} stands in partitions {numbers}"
                yield Finding("error", at + _PARTED[by_key], _PUT_TOGETHER[by_key])
                return

    def _input_partitions(self) -> list[Partition]:
        return [
            Partition(name, index)
            for name in self._settings.topics.input
            for index in range(len(self._described.get(name, {}).get("partitions", ())))
        ]


# -------------------------------------------------------------------- who hears of alarms
def _alertmanager(config: Config) -> Iterator[Finding]:
    url = config.alerts.alertmanager_url
    health = None if url is None else url.rstrip("/") + "/-/healthy"
    return _reached(health, "alerts.alertmanager_url")


def _webhook(config: Config) -> Iterator[Finding]:
    url = config.alerts.webhook_address()
    if url is not None:
        config.alerts.reveal("webhook_secret")  # of which the refusal says what to fix
    return _reached(url, "alerts.webhook_url")


def _reached(url: str | None, setting: str) -> Iterator[Finding]:
    """Send HEAD to an address, which changes nothing."""
    if url is None:
        yield Finding("skipped", f"{setting} is not set")
        return
    shown = masked(url)
    try:
        with http_request("HEAD", url, None, {}, _TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        # Many a webhook knows POST alone, or a signature: that it refuses is an answer.
        status = error.code
        error.close()
    except (OSError, ValueError) as error:
        yield Finding(
            "error",
            f"{shown} cannot be reached: {getattr(error, 'reason', None) or error}",
            f"start the receiver, or fix {setting}",
        )
        return
    if 300 <= status < 400 or status in (404, 410) or status >= 500:
        yield Finding(
            "warning", f"{shown} answers {status} to HEAD; nothing was sent to try it",
            f"check what is there, or fix {setting}",
        )  # fmt: skip
    else:
        yield Finding("ok", f"{shown} can be reached (HEAD: {status}; nothing was sent)")
