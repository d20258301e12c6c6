"""``init``: from a file or a topic to a config that reads it."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli import table_options as options
from rejex_stream.cli.show import print_facts
from rejex_stream.config import Config, name_of, parse_config
from rejex_stream.config.assembly import (
    file_decoder,
    kafka_decoder,
    kafka_settings,
    open_source,
    records_of,
)
from rejex_stream.config.input import REGISTRY_FORMATS
from rejex_stream.decode.mapping import Decoder, decode_records, printable
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.operate.logs import escaped
from rejex_stream.rejection.policy import CONTAMINATION
from rejex_stream.tables.draft import draft_config, save_draft
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import Table
from rejex_stream.tables.json_fields import Feed, infer_feed, open_file
from rejex_stream.tables.scored import judge_table
from rejex_stream.types import Reading, Reason, Record, Verdict

_SAMPLE, _FEW = 2_000, 20
_REGISTRY = "REJEX_SCHEMA_REGISTRY__URL"


@options.gathering(asked=options.known)
def init(  # noqa: PLR0917 - one parameter an option
    file: Annotated[
        Path | None, typer.Argument(help="A table or JSON Lines, plain or gzip.")
    ] = None,
    kafka: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SERVERS TOPIC", help="A topic of JSON, instead of a file."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="The config.  [default: named after the file or topic]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a config.")] = False,
    contamination: Annotated[
        float | None,
        typer.Option("--contamination", "-c", help="γ, the expected share of anomalies."),
    ] = None,
    tolerance: options.Tolerance = None,
    rate: options.Rate = None,
    window: options.Window = None,
    detector: options.Detector = None,
    *,
    asked: Asked,
) -> None:
    """Look at records, guess what they are, and write the config that reads them.

    Fields of JSON are named by their paths, data.temp. What was guessed is said, with the option
    that changes it. A broker that wants a login takes it from the environment:
    REJEX_KAFKA__SECURITY__PROTOCOL and so on; for Avro and Protobuf, the registry's address:
    REJEX_SCHEMA_REGISTRY__URL.
    """
    if (file is None) == (kafka is None):
        raise ConfigError("give one of FILE and --kafka SERVERS TOPIC: what should be read?")
    where = to or Path(name_of(file.name if file else f"{kafka[1]}.x") + ".toml")  # type: ignore[index]
    if where.exists() and not force:
        raise ConfigError(f"{where} is there already: give --force, or another name with --to.")
    source: dict[str, object]
    table: Table | Feed
    rekey_from = ""
    if kafka is not None:
        servers, topic = kafka
        table, partitions, format, sample = _of_topic(servers, topic, asked)
        split = partitions > 1 and not table.from_key and (table.keyless or table.parted)
        rekey_from, read = (topic, f"{topic}.keyed") if split else ("", topic)
        source = {"kind": "kafka", "format": format, "topics": [read], **table.settings()}
        if format in REGISTRY_FORMATS:
            source["select"] = source["select"] or "."  # read as JSON, as the sample was
        if table.guess.sensor is None:
            source["fixed_sensor"] = topic
    else:
        assert file is not None
        table = open_file(file, asked)
        source = table.settings()
    for line in table.said:
        print(f"{file.name if file else kafka[1]}: {escaped(line)}", file=sys.stderr)  # type: ignore[index]
    guessed = []
    if contamination is None:
        contamination = CONTAMINATION
        guessed = [
            f"γ: {CONTAMINATION:g} is a guess; `rejex-stream plan` says what others would do, "
            "--contamination gives it"
        ]
    if source.get("format") in REGISTRY_FORMATS:
        guessed.append(f"registry: its address stays in the environment, {_REGISTRY}")
    choice = table.suggested(
        contamination=contamination, tolerance=tolerance, rate=rate, window=window,
        detector=detector,
    )  # fmt: skip
    words = [str(file)] if file else ["--kafka", *kafka]  # type: ignore[misc]
    notes = [*table.said, *guessed, *choice.notes]
    text = draft_config(
        source,
        choice,
        name=name_of(where),
        told=table.told(),
        comments=[f"Written by rejex-stream init {shlex.join(words)}.", *map(escaped, notes)],
        kafka=None if kafka is None else {"bootstrap_servers": kafka[0]},
    )
    config, _ = parse_config(text)
    assert config is not None  # or it would not have been drafted
    if kafka is None:
        records, decoder = records_of(opened := open_source(config)), file_decoder(config, opened)
        tried = _tried(config, choice.spec, records, decoder)
    else:
        tried = _tried(config, choice.spec, iter(sample), kafka_decoder(config))
    save_draft(where, text)
    _say(where, table, source, [*guessed, *choice.notes, *tried], rekey_from)


def _tried(
    config: Config, spec: EngineSpec, records: Iterator[Record], decoder: Decoder
) -> list[str]:
    """Judge records as the config says, of a file until one is ranked; say what cannot be scored.

    Where nothing can, that is a ConfigError, and no config is written.
    """
    n_missing, n_events, ranked = Counter[str](), 0, False

    def see(readings: Sequence[Reading], verdicts: Sequence[Verdict]) -> None:
        nonlocal n_events, ranked
        n_events += len(readings)
        ranked = ranked or any(verdict.rank is not None for verdict in verdicts)
        for reading in readings:
            for name, value in zip(decoder.channels, reading.values, strict=True):
                n_missing[name] += math.isnan(value) and name not in spec.features.flags

    counts, _ = judge_table(
        spec, decoder, takewhile(lambda _: not ranked, records), see,
        rules=config.reorder_rules(),
    )  # fmt: skip
    scored = n_events - counts.reasons[Reason.UNSCORABLE]
    because = ", ".join(
        f"{printable(name)} has no value in {n:,}" for name, n in n_missing.most_common(3) if n
    )
    said = f"of {n_events:,} events {scored:,} can be scored, because {because}"
    if n_events > _FEW and not scored:
        raise ConfigError(f"{said}: --channel names those to judge, --sensor whose they are.")
    if not ranked and config.input.kind == "file":
        raise ConfigError(
            f"of {n_events:,} events none can be ranked: a window of {spec.window:,} does "
            "not fill. Give more rows, a smaller --window or a larger --contamination."
        )
    return [f"tried: {said}"] if scored < n_events / 2 else []


def of_registry(records: Sequence[Record]) -> tuple[str | None, Sequence[Record]]:
    """Return the format of records by the registry, if one is named, and the records as JSON.

    The environment names it: REJEX_SCHEMA_REGISTRY__URL.
    """
    if _REGISTRY not in os.environ:
        return None, records
    if not any((record.value or b"").startswith(b"\0") for record in records):
        return "jsonl", records
    for format in REGISTRY_FORMATS:
        config = _minimal_config(f'select = ".", format = "{format}"')
        expanded, _ = decode_records(kafka_decoder(config), records)
        read = [each for each in expanded if not getattr(each, "invalid", None)]
        if len(read) > len(records) / 2:
            return format, read
    raise ConfigError(
        f"none of {len(records)} records can be read by the registry at {os.environ[_REGISTRY]}, "
        f"neither as {' nor as '.join(REGISTRY_FORMATS)}."
    )


def _minimal_config(how: str, topic: str = "x", servers: str = "localhost:9") -> Config:
    config, problems = parse_config(
        f'input = {{ kind = "kafka", topics = ["{topic}"], channels = ["x"], {how} }}\n'
        "rejection = { contamination = 0.05, tolerance = 4 }\n"
        f'[kafka]\nbootstrap_servers = "{servers}"\n'
    )
    if config is None:
        raise ConfigError("; ".join(map(str, problems)))
    return config


def _of_topic(
    servers: str, topic: str, asked: Asked
) -> tuple[Feed, int, str | None, Sequence[Record]]:
    """Read the newest records of a topic, outside any group, and infer their fields."""
    from rejex_connectors.kafka.partition_reader import bounds_of, partitions_of, read_partition
    from rejex_connectors.kafka.topic_admin import look_at_inputs

    settings = kafka_settings(_minimal_config('format = "jsonl"', topic, servers))
    for name, said in look_at_inputs(settings).missing.items():
        raise ConfigError(f"topic {name!r} {said.partition(': ')[0]}: check the name.")
    partitions = partitions_of(settings, topic)
    bounds = bounds_of(settings, partitions)
    filled = {p: ends for p, ends in bounds.items() if ends[1] > ends[0]}
    if not filled:
        gone = sum(end for _, end in bounds.values())
        why = f"held {gone:,} records, which have expired" if gone else "is empty"
        raise ConfigError(f"topic {topic!r} {why}: send some, then look again.")
    share = -(-_SAMPLE // len(filled))
    records: list[Record] = []
    for partition, (first, end) in filled.items():
        records += read_partition(settings, partition, max(first, end - share), end)
    records.sort(key=lambda record: record.timestamp_ms or 0)
    total = sum(end - first for first, end in filled.values())
    format, read = of_registry(records)
    return infer_feed(read, asked, total=total), len(partitions), format, records


def _say(
    where: Path,
    table: Table | Feed,
    source: Mapping[str, object],
    notes: Sequence[str],
    rekey_from: str,
) -> None:
    facts = dict(table.guess.facts())
    timeless = "the record's own" if source.get("kind") == "kafka" else facts["time"]
    shown = [
        ("time", facts["time"] if table.guess.time else timeless),
        ("sensor", f"{source.get('sensor') or 'one'}, {table.n_sensors:,} seen"),
        ("channels", ", ".join(source["channels"])),  # type: ignore[arg-type]
        *((name, said) for name, _, said in (note.partition(": ") for note in notes)),
    ]
    print_facts(shown, title=f"{where}: written")
    config = shlex.quote(str(where))
    if rekey_from:
        print(
            f"The records of {rekey_from} have no key, or not the sensor's, and it has several "
            "partitions: the config reads a copy in which every sensor is in one."
        )
    steps = [f"topics rekey {config} --from {rekey_from}"] if rekey_from else []
    steps += [f"topics create {config}"] if source.get("kind") == "kafka" else []
    print("Next:")
    for step in [*steps, f"doctor {config}", f"run {config}"]:
        print(f"  rejex-stream {step}")
