"""``warm``: a new pipeline begins with what a history teaches: its first event is ranked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rejex_connectors.files.source import named_format

from rejex_stream.cli.commands.replay import histories, moment_ms
from rejex_stream.cli.show import ConfigFile
from rejex_stream.config import Config, assembly, load_config
from rejex_stream.decode import decode_records
from rejex_stream.engine import Engine
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.operate.logs import escaped
from rejex_stream.readable import span, utc
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState, make_state
from rejex_stream.run.review_items import NO_AUDIT
from rejex_stream.tables.order import TimeOrder
from rejex_stream.threads import one_thread, seldom_collecting
from rejex_stream.types import Incident, Invalid, Partition, Reading, Reason, Record

_BATCH, _LOOKED_AT, _SHOWN, _NEWEST = 20_000, 5_000, 5, 2**63 - 1
_Taught = tuple[Engine, assembly.DecodedBefore, PartitionState]


def warm(
    config: ConfigFile,
    history: Annotated[Path, typer.Option("--from", help="A file of earlier records.")],
    without: Annotated[
        list[str] | None, typer.Option(help="START/END to leave out, ISO 8601; may be repeated.")
    ] = None,
) -> None:
    """Make the state of a new pipeline from a history, so that its first event is ranked.

    Verdicts are those of one input with the history and the stream in a row. What a review budget
    has left, and the watch over the rejection rate, begin with the stream.
    """
    settings = load_config(config)
    _require_possible(settings)
    learnt = _History(settings, history, list(map(_range, without or ())))
    with assembly.stored(settings, to_change=True) as stored:
        committed, places = stored.places.committed(), stored.partitions
        if not places:
            raise ConfigError(f"there is no topic {settings.input.topics[0]!r} yet: create it.")
        for place in places:
            if (known := stored.store.load(place, _NEWEST)) is not None:
                raise ConfigError(
                    f"{place} has a state already, at offset {known[0]:,} in {stored.where}: drop "
                    f"it (`rejex-stream state drop {config} --all`), or give the pipeline another "
                    "name and outputs of its own."
                )
        states = {place: _empty(settings, place) for place in places}
        learnt.judge(states)
        learnt.require_sound(None if committed else _begins_ms(settings))
        for place, (engine, _, state) in states.items():
            learnt.require_closed(engine)
            engine.decide(assembly.engine_spec(settings).decision)
            state.next_offset = committed.get(place, stored.places.earliest(place))
            state.n_events = 0
        for place, (_, _, state) in states.items():
            stored.store.save(place, state.snapshot().encoded())
            if place not in committed:  # last: without an offset nothing of this counts
                stored.places.begin_at(place, state.next_offset, None)
    print("\n".join(learnt.report()))


def _require_possible(config: Config) -> None:
    source, mapping, rules = config.input, config.mapping(), config.reorder_rules()
    if source.kind == "file":
        assembly.require_own_places(config)
    if mapping.sensor_from or mapping.tag_from or len(source.topics) > 1 or source.time is None:
        raise ConfigError(
            "rows of a file have no time, key, header or topic beside them: give input.time and "
            "input.sensor a field, and one topic."
        )
    if rules.reorder_ms or rules.step_ms is not None or rules.counters:
        raise ConfigError(
            "with input.reorder_s, input.step_s, joined tags or counters rows depend on their "
            "neighbours, and the last of a history on the stream: such a pipeline has to warm up."
        )


def _range(text: str) -> tuple[int, int]:
    begun, ended = (moment_ms(part, "--without") for part in text.partition("/")[::2])
    if begun >= ended:
        raise ConfigError(f"--without {text!r}: expected START/END, the first one earlier.")
    return begun, ended


def _begins_ms(config: Config) -> int | None:
    """Return the time of the first reading of the stream, as far as it is there."""
    begins: list[int] = []
    with suppress(ConfigError, ConnectorError):
        for _, (decoder,), records in histories([config.without_follow()]):
            _, items = decode_records(decoder, list(islice(records, 100)))
            begins += [item.event_time_ms for item in items if isinstance(item, Reading)][:1]
    return min(begins, default=None)


def _empty(config: Config, place: Partition) -> _Taught:
    spec = assembly.engine_spec(config)
    # Without a budget that is held: a credit that was not there before begins full.
    engine = Engine(replace(spec, policy=spec.policy.unbudgeted), InlineExecutor())
    # No item is owed a follow-up: nobody was asked.
    settings = assembly.run_settings(config).replace(review_reasons=(), audit=NO_AUDIT)
    decoded = assembly.DecodedBefore(config.mapping().channel_names)
    return engine, decoded, make_state(settings, place, decoded, engine)


@dataclass
class _History:
    config: Config
    path: Path
    left_out: Sequence[tuple[int, int]]
    times: list[int] = field(default_factory=list)
    unread: list[Invalid] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # channels with a value
    order: TimeOrder = field(default_factory=TimeOrder)
    ranked: dict[str, bool] = field(default_factory=dict)  # the last event of each sensor
    incidents: dict[str, Incident] = field(default_factory=dict)

    def judge(self, states: dict[Partition, _Taught]) -> None:
        """Judge the history as a run does, each sensor in the partition of its key."""
        from rejex_connectors.kafka.topic_to_topic import key_partition

        places = list(states)
        with one_thread(), seldom_collecting():
            for batch in self._batches():
                by_place: dict[Partition, list[tuple[Record, Reading]]] = {}
                for record, reading in batch:
                    at = key_partition(reading.sensor.encode(), len(places))
                    by_place.setdefault(places[at], []).append((record, reading))
                for place, pairs in by_place.items():
                    _, decoded, state = states[place]
                    decoded.items = {record.position: reading for record, reading in pairs}
                    for outcome in state.process([record for record, _ in pairs]):
                        self.incidents |= {change.id: change for change in outcome.incidents}
                        if (verdict := outcome.verdict) is not None:
                            self.ranked[verdict.sensor] = verdict.reason is not Reason.WARM_UP

    def _batches(self) -> Iterator[list[tuple[Record, Reading]]]:
        source, mapping = self.config.input, self.config.mapping()
        auto = source.kind == "kafka" or named_format(str(self.path))[0]
        read = {"kind": "file", "path": str(self.path), "fixed_sensor": mapping.fixed_sensor}
        read |= {"format": "auto"} if auto else {}
        config = self.config.model_copy(update={"input": source.model_copy(update=read)})
        file = assembly.open_source(config.without_follow())
        decoder, records = assembly.file_decoder(config, file), assembly.records_of(file)
        while batch := list(islice(records, _BATCH)):
            pairs = list(zip(*decode_records(decoder, batch), strict=True))
            self.unread += [i for _, i in pairs if isinstance(i, Invalid) and not i.silent]
            kept = [
                (record, item) for record, item in pairs if isinstance(item, Reading)
                and not any(begun <= item.event_time_ms < end for begun, end in self.left_out)
            ]  # fmt: skip
            for _, reading in kept[: max(0, _LOOKED_AT - len(self.times))]:
                self.order.add(reading.sensor, reading.event_time_ms)
            self.times += [reading.event_time_ms for _, reading in kept]
            columns = zip(*(reading.values for _, reading in kept), strict=True)
            named = zip(mapping.channel_names, columns, strict=False)
            self.seen |= {name for name, column in named if any(x == x for x in column)}  # noqa: PLR0124 - nan
            yield kept

    def require_sound(self, begins_ms: int | None) -> None:
        """Refuse a history that is none of this stream, or goes on into it."""
        source, n_records = self.config.input, len(self.times) + len(self.unread)
        usual_ms, step_ms = self.order.usual_step_ms, source.sample_interval_ms
        if not self.times or len(self.unread) > self.config.run.invalid_limit * n_records:
            why = f"; {self.unread[0].reason}" if self.unread else ""
            raise ConfigError(
                f"{len(self.unread):,} of {n_records:,} records of {self.path} cannot be read as "
                f"those of the stream{why}."
            )
        if lacking := set(source.mapping().channel_names) - self.seen - set(source.flags):
            raise ConfigError(f"{self.path} has no value of {', '.join(sorted(lacking))}.")
        if step_ms and usual_ms and not step_ms / 2 <= usual_ms <= 2 * step_ms:
            raise ConfigError(
                f"readings of a sensor are {span(usual_ms)} apart in {self.path}, and "
                f"{span(step_ms)} in the stream, by input.sample_interval_ms."
            )
        if begins_ms is not None and begins_ms <= max(self.times):
            raise ConfigError(
                f"{self.path} goes on while the stream begins: leave out what both hold by "
                f"--without {self._to_the_end(begins_ms)}."
            )

    def require_closed(self, engine: Engine) -> None:
        for incident in engine.open_incidents():
            raise ConfigError(
                f"{self.path} ends within an incident of {escaped(incident.sensors[0])}: leave it "
                f"out by --without {self._to_the_end(incident.onset_ms)}."
            )

    def _to_the_end(self, begun_ms: int) -> str:
        return f"{_iso(begun_ms)}/{_iso(max(self.times) + 1000)}"

    def report(self) -> Iterator[str]:
        yield (
            f"{self.path}: {len(self.times):,} readings, {_iso(min(self.times))} to "
            f"{_iso(max(self.times))}; {sum(self.ranked.values())} of {len(self.ranked)} sensors "
            "are ranked from their first event on"
        )
        if self.unread:
            yield f"not read: {len(self.unread):,} records, such as: {self.unread[0].reason}"
        for begun, ended in self.left_out:
            yield f"left out: {_iso(begun)} to {_iso(ended)}"
        for one in islice(self.incidents.values(), _SHOWN):
            where = f"{_iso(one.onset_ms)}/{_iso(one.changed_ms)}"
            yield f"incident: {escaped(one.sensors[0])}; --without {where} leaves it out"


def _iso(ms: float) -> str:
    return f"{utc(ms):%Y-%m-%dT%H:%M:%SZ}"
