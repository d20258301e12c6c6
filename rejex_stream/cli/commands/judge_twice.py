"""``replay``: a history judged again, with one config or with two, and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import As, AsOption, outcome_rows, print_facts, print_json, print_table
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import (
    DecodedBefore,
    Judging,
    file_decoder,
    kafka_decoder,
    kafka_settings,
    open_source,
    records_of,
)
from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.decode import Decoder, decode_records
from rejex_stream.errors import ConfigError
from rejex_stream.plan.measured import Differences
from rejex_stream.threads import one_thread, seldom_collecting
from rejex_stream.types import Invalid, Partition, Reading, Record

__all__ = ["replay"]

_BATCH = 20_000  # the more of a stream at once, the less an event costs


def replay(
    config: Annotated[Path, typer.Argument(help="The config of the history, a TOML file.")],
    new: Annotated[
        Path | None, typer.Option("--config", help="Another config to judge by; its input is that.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Compare from this event time on, ISO 8601; UTC if it says none."),
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Judge a history again, by a config and by another one, and show what would be different.

    Reads the whole file, or all that topics hold; writes nothing. Both judge all of it, as verdicts
    depend on what went before; what is compared, or counted without --config, begins with --since.
    """
    old = _without_follow(load_config(config))
    other = old if new is None else _reading_the_same(load_config(new), old)
    for each in (old, other):
        if each.input.format in REGISTRY_FORMATS:
            raise ConfigError(
                f"input.format = {each.input.format!r} is not replayed yet: expected json or csv."
            )
    since_ms = None if since is None else _time(since)
    differences = _judged(old, other, since_ms)
    if output is As.JSON:
        print_json(_as_plain(differences))
    else:
        paths = [config] if new is None else [config, new]
        same = new is not None and config.name == new.name
        _print(differences, [str(path) if same else path.name for path in paths])


def _time(given: str) -> int:
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise ConfigError(
            f"--since {given!r}: expected a time in ISO 8601, e.g. 2026-01-31T00:00."
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _without_follow(config: Config) -> Config:
    whole = config.input.model_copy(update={"follow": False})
    return config.model_copy(update={"input": whole})


def _reading_the_same(new: Config, old: Config) -> Config:
    """Return the new config with the input of the old one, and its own mapping of fields."""
    place = ("kind", "path", "topics", "format", "delimiter", "columns", "encoding", "follow")
    update = {name: getattr(old.input, name) for name in place}
    return new.model_copy(update={"input": new.input.model_copy(update=update), "kafka": old.kafka})


def _judged(old: Config, new: Config, since_ms: int | None) -> Differences:
    differences, alike = Differences(), old.input == new.input
    first, second = Judging(old), Judging(new)
    once = alike and (first.spec, first.settings) == (second.spec, second.settings)
    if once:  # nobody will look at more than labels
        first.spec = replace(first.spec, evidence=False)
        first.settings = first.settings.replace(review_context_events=0)
    with one_thread(), seldom_collecting():
        for partition, decoders, records in _histories(old, new):
            read, again = (DecodedBefore(decoder.channels) for decoder in decoders)
            state, other_state = first.state(partition, read), second.state(partition, again)
            while batch := list(islice(records, _BATCH)):
                ours, items = decode_records(decoders[0], batch)
                others = items if alike else _read_as(decoders[1], batch, ours)
                places = [record.position for record in ours]
                read.items = dict(zip(places, items, strict=True))
                again.items = read.items if alike else dict(zip(places, others, strict=True))
                outcomes = state.process(ours)
                differences.add(outcomes, outcomes if once else other_state.process(ours), since_ms)
    return differences


def _read_as(
    decoder: Decoder, batch: Sequence[Record], like: Sequence[Record]
) -> list[Reading | Invalid]:
    """Decode a batch by another config; return its readings at the positions of `like`."""
    records, items = decode_records(decoder, batch)
    by_position = {record.position: item for record, item in zip(records, items, strict=True)}
    return [
        by_position.get(expected.position)
        or Invalid(expected.position, "ignored", "no such reading")
        for expected in like
    ]


def _histories(
    old: Config, new: Config
) -> Iterator[tuple[Partition, tuple[Decoder, Decoder], Iterator[Record]]]:
    """Yield the partitions of the history, how each config reads it, and its records in order."""
    if old.input.kind == "file":
        source = open_source(old)
        decoders = file_decoder(old, source), file_decoder(new, source)
        yield source.partition, decoders, records_of(source)
        return
    from rejex_connectors.kafka.partition_reader import partitions_of, read_partition

    settings = kafka_settings(old)
    for topic in settings.topics.input:
        for partition in partitions_of(settings, topic):
            decoders = kafka_decoder(old), kafka_decoder(new)
            yield partition, decoders, read_partition(settings, partition)


def _print(differences: Differences, configs: list[str]) -> None:
    by_config = [dict(outcome_rows(counts)) for counts in differences.counts[: len(configs)]]
    names = dict.fromkeys(name for rows in by_config for name in rows)
    shown = [(name, *(rows.get(name, "0") for rows in by_config)) for name in names]
    print_table(["", *configs], shown, title=f"{differences.records:,} records judged")
    if len(configs) == 1:
        return
    facts = [
        (f"{was} → {is_}", f"{count:,}")
        for (was, is_), count in sorted(differences.labels.items())
        if was != is_
    ]
    facts += [
        ("same label, other figures", f"{differences.figures:,}"),
        ("records that differ in anything", f"{differences.other:,}"),
    ]
    if differences.sensors:
        most = ", ".join(f"{name} {count:,}" for name, count in differences.most_changed(5))
        facts.append(("sensors with most changes", most))
    facts += [
        (f"e.g. {at.topic}-{at.partition}-{at.offset}", f"{was} → {is_}")
        for at, was, is_ in differences.examples
    ]
    print_facts(facts, title=f"Changed labels: {differences.changed:,}")


def _as_plain(differences: Differences) -> dict[str, object]:
    return {
        "records": differences.records,
        "changed": differences.changed,
        "labels": {
            f"{was} > {is_}": count for (was, is_), count in sorted(differences.labels.items())
        },
        "other_figures": differences.figures,
        "differ": differences.other,
        "reviews": [counts.n_reviews for counts in differences.counts],
        "incidents": [counts.n_incidents for counts in differences.counts],
        "sensors": dict(differences.most_changed(100)),
        "examples": [
            dict(zip(("topic", "partition", "offset"), at)) | {"was": was, "is": is_}  # noqa: B905
            for at, was, is_ in differences.examples
        ],
    }
