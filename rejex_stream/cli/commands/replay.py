"""``replay``: a history judged again, with one config or with two, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli import show
from rejex_stream.cli.bars import counting
from rejex_stream.config import Config, assembly, load_config
from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.decode import Decoder
from rejex_stream.errors import ConfigError
from rejex_stream.threads import one_thread, seldom_collecting
from rejex_stream.types import Outcome, OutcomeCounts, Partition, Position, Record

_BATCH = 20_000  # the more of a stream at once, the less an event costs
_EXAMPLES = 5
_MAX_SENSORS = 5


@dataclass
class _Comparison:
    """What became of the same records by each config, and which labels differ."""

    counts: tuple[OutcomeCounts, ...]  # of each config
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)  # by the first and the second
    sensors: Counter[str] = field(default_factory=Counter)  # of changed labels
    examples: list[tuple[Position, str, str]] = field(default_factory=list)
    _unpaired: dict[Position, Outcome] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        return sum(count for (before, after), count in self.labels.items() if before != after)

    def add(self, *by_config: Sequence[Outcome]) -> None:
        for counts, outcomes in zip(self.counts, by_config, strict=True):
            counts.add(outcomes)
        if len(by_config) == 1:
            return
        self._unpaired |= {outcome.record.position: outcome for outcome in by_config[0]}
        for after in by_config[1]:
            before = self._unpaired.pop(after.record.position, None)
            was, is_ = _label(before), _label(after)
            self.labels[was, is_] += 1
            if was != is_:
                named = after.verdict or (before and before.verdict)
                if named:
                    self.sensors[named.sensor] += 1
                if len(self.examples) < _EXAMPLES:
                    self.examples.append((after.record.position, was, is_))


def _label(outcome: Outcome | None) -> str:
    if outcome is None:
        return "no reading"
    return "dead letter" if outcome.verdict is None else str(outcome.verdict.label)


def replay(
    config: Annotated[Path, typer.Argument(help="The config of the history, a TOML file.")],
    new: Annotated[
        Path | None, typer.Option("--config", help="Another config to judge by; its input is that.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Compare from this event time on, ISO 8601; UTC if it says none."),
    ] = None,
    output: show.AsOption = show.As.TABLE,
) -> None:
    """Judge a history again, by a config and by another one, and show what would be different.

    Reads the whole file, or all that topics hold; writes nothing. Both judge all of it, as verdicts
    depend on what went before; what is compared, or counted without --config, begins with --since.
    """
    old = load_config(config).without_follow()
    configs = [old] if new is None else [old, _reading_the_same(load_config(new), old)]
    for each in configs:
        if each.input.format in REGISTRY_FORMATS:
            raise ConfigError(
                f"input.format = {each.input.format!r} is not replayed yet: expected json or csv."
            )
    comparison = _judged(configs, None if since is None else moment_ms(since, "--since"))
    if output is show.As.JSON:
        show.print_json(_as_plain(comparison))
    else:
        paths = [config] if new is None else [config, new]
        same = new is not None and config.name == new.name
        _print(comparison, [str(path) if same else path.name for path in paths])


def moment_ms(given: str, option: str) -> int:
    """Return a time that was given, in UTC milliseconds since 1970."""
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ConfigError(
            f"{option} {given!r}: expected a time in ISO 8601, e.g. 2026-01-31T00:00."
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _reading_the_same(new: Config, old: Config) -> Config:
    """Return the new config with the input of the old one, and its own mapping of fields."""
    place = ("kind", "path", "topics", "format", "delimiter", "columns", "encoding", "follow")
    update = {name: getattr(old.input, name) for name in place}
    return new.model_copy(update={"input": new.input.model_copy(update=update), "kafka": old.kafka})


def _judged(configs: Sequence[Config], since_ms: int | None) -> _Comparison:
    comparison = _Comparison(tuple(OutcomeCounts() for _ in configs))
    judges = [assembly.Judging(config) for config in configs]
    if len(judges) == 1:  # nobody will look at more than labels
        judges[0].spec = replace(judges[0].spec, evidence=False)
        judges[0].settings = judges[0].settings.replace(review_context_events=0)
    done = 0
    with one_thread(), seldom_collecting(), counting(None, "records") as progress:
        for partition, decoders, records in histories(configs):
            states = [
                judge.state(partition, decoder)
                for judge, decoder in zip(judges, decoders, strict=True)
            ]
            while batch := list(islice(records, _BATCH)):
                comparison.add(*(_since(since_ms, state.process(batch)) for state in states))
                progress(done := done + len(batch))
    return comparison


def _since(since_ms: int | None, outcomes: list[Outcome]) -> list[Outcome]:
    """Leave out what is before a time; a record that cannot be read has none, and counts."""
    if since_ms is None:
        return outcomes
    return [o for o in outcomes if o.verdict is None or o.verdict.event_time_ms >= since_ms]


def histories(
    configs: Sequence[Config],
) -> Iterator[tuple[Partition, list[Decoder], Iterator[Record]]]:
    """Yield the partitions of the history, how each config reads it, and its records in order."""
    if configs[0].input.kind == "file":
        source = assembly.open_source(configs[0])
        decoders = [assembly.file_decoder(config, source) for config in configs]
        yield source.partition, decoders, assembly.records_of(source)
        return
    from rejex_connectors.kafka.partition_reader import partitions_of, read_partition

    settings = assembly.kafka_settings(configs[0])
    for topic in settings.topics.input:
        for partition in partitions_of(settings, topic):
            decoders = list(map(assembly.kafka_decoder, configs))
            yield partition, decoders, read_partition(settings, partition)


def _print(comparison: _Comparison, configs: list[str]) -> None:
    by_config = [dict(show.outcome_rows(counts)) for counts in comparison.counts]
    names = dict.fromkeys(name for rows in by_config for name in rows)
    shown = [(name, *(rows.get(name, "0") for rows in by_config)) for name in names]
    title = f"{comparison.counts[0].n_events:,} records judged"
    show.print_table(["", *configs], shown, title=title)
    if len(configs) == 1:
        return
    facts = [
        (f"{was} → {is_}", f"{count:,}")
        for (was, is_), count in sorted(comparison.labels.items())
        if was != is_
    ]
    if comparison.sensors:
        changed = comparison.sensors.most_common(_MAX_SENSORS)
        named = ", ".join(f"{name} {count:,}" for name, count in changed)
        facts.append(("sensors with most changes", named))
    facts += [
        (f"e.g. {at.topic}-{at.partition}-{at.offset}", f"{was} → {is_}")
        for at, was, is_ in comparison.examples
    ]
    show.print_facts(facts, title=f"Changed labels: {comparison.changed:,}")


def _as_plain(comparison: _Comparison) -> dict[str, object]:
    return {
        "counts": list(map(show.outcome_facts, comparison.counts)),
        "changed": comparison.changed,
        "labels": {
            f"{was} > {is_}": count for (was, is_), count in sorted(comparison.labels.items())
        },
        "sensors": dict(comparison.sensors.most_common(100)),
        "examples": [
            {**at._asdict(), "was": was, "is": is_} for at, was, is_ in comparison.examples
        ],
    }
