"""``topics create|rekey`` and ``deadletter list``."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rejex_connectors.kafka.kafka_settings import KafkaSettings

from rejex_stream.cli.bars import counting
from rejex_stream.cli.show import As, AsOption, ConfigFile, print_json, print_table
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import file_places, kafka_decoder, kafka_settings
from rejex_stream.decode.mapping import printable
from rejex_stream.encode import decode_dead_letter
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors
from rejex_stream.features.spec import group_of
from rejex_stream.types import Reading, Record

_PARTITIONS = 8

topics = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
deadletter = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Partitions = Annotated[
    int | None,
    typer.Option(min=1, help="Partitions of every topic.  [default: those of the input]"),
]
Replication = Annotated[int, typer.Option(min=1, help="Copies of each; 3 in production.")]


def _kafka_config(path: Path) -> tuple[Config, KafkaSettings]:
    config = load_config(path)
    if config.input.kind != "kafka":
        raise ConfigError(
            f'{path} reads a file (input.kind = "{config.input.kind}"): there are no topics.'
        )
    return config, kafka_settings(config)


@topics.command()
def create(  # noqa: PLR0917 - one parameter an option
    config: ConfigFile,
    partitions: Partitions = None,
    replication: Replication = 1,
    with_input: Annotated[
        bool, typer.Option("--with-input", help="Create the input too, to try things out.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be created.")] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Create the output topics that are missing; those that exist are left as they are.

    The input is its producer's: a misspelled one would be made, and wait for ever.
    """
    _, settings = _kafka_config(config)
    from rejex_connectors.kafka.topic_admin import create_topics, look_at_inputs, plan_topics

    inputs = look_at_inputs(settings)
    if inputs.missing and not with_input:
        problems = "; ".join(
            f"topic {name!r} {problem}" for name, problem in inputs.missing.items()
        )
        raise ConnectorError(
            f"{problems}. Nothing was created: the outputs have as many partitions as the input "
            "(--with-input makes it too, to try things out)."
        )
    n = partitions or max(inputs.partitions.values(), default=0) or _PARTITIONS
    plans = [
        plan
        for plan in plan_topics(settings, partitions=n, replication=replication)
        if with_input or plan.role != "input"
    ]
    created = create_topics(settings, plans, dry_run=dry_run)
    names = {plan.name for plan in created}
    if output is As.JSON:
        print_json({"dry_run": dry_run, "created": sorted(names), "topics": plans})
        return
    done = "to create" if dry_run else "created"
    rows = [
        (
            plan.name,
            plan.role,
            f"{plan.partitions}" if plan.name in names else "",
            f"{plan.replication}" if plan.name in names else "",
            ", ".join(f"{key}={value}" for key, value in plan.config.items()),
            done if plan.name in names else "exists",
        )
        for plan in plans
    ]
    columns = ("topic", "role", "partitions", "replication", "settings", "")
    print_table(columns, rows, left=(0, 1, 4, 5))


@topics.command()
def rekey(
    config: ConfigFile,
    source: Annotated[str, typer.Option("--from", help="The topic whose records have no key.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Copy a topic without keys to the config's input topic, keyed by sensor, each record once.

    Siblings (input.siblings) lie in one partition of it. Stopped or killed, it goes on where it
    was; nothing is lost or doubled.
    """
    loaded, settings = _kafka_config(config)
    mapping = loaded.input.mapping()
    if mapping.sensor_from == "key":
        raise ConfigError(
            f"{config} takes the sensor's name from the key, and there is none in {source}: give "
            "input.sensor, the field that says who measured, or input.fixed_sensor."
        )
    if len(settings.topics.input) != 1:
        raise ConfigError(f"{config} has {len(settings.topics.input)} input topics: give one.")
    from rejex_connectors.kafka.topic_to_topic import rekey as copy

    from rejex_stream.cli.commands.run_pipeline import stopping

    # A key of parts, one of them the sensor, is read from the copy as well.
    by_parts = any(
        (spec or "").startswith("key") for spec in (mapping.sensor_from, mapping.tag_from)
    )
    decoder, target = kafka_decoder(loaded), settings.topics.input[0]

    def sensor_of(record: Record) -> str | None:
        item = decoder.decode(record)
        return item.sensor if isinstance(item, Reading) else None

    stop = threading.Event()
    with stopping(stop), counting(None, "records") as progress:
        done = copy(
            settings, source, target, sensor_of, group_of(loaded.input.siblings_said()),
            follow=follow, keep_keys=by_parts, stop=stop, on_progress=progress,
        )  # fmt: skip
    if output is As.JSON:
        print_json(dataclasses.asdict(done))
        return
    print(f"{done.copied:,} records of {source} are in {target} now, keyed by sensor.")
    if done.nameless:
        print(f"Of them {done.nameless:,} do not say who measured: they are as they were.")
    if done.left_behind:
        print(f"{done.left_behind:,} were left behind: nothing is in them that can be read.")


# ---------------------------------------------------------------------- dead letters
Newest = Annotated[int, typer.Option("--newest", min=1, help="About so many.")]


@deadletter.command("list")
def list_letters(
    config: ConfigFile,
    newest: Newest = 20,
    payload: Annotated[
        bool, typer.Option(help="Show the beginning of each record: it may be confidential.")
    ] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Show the newest records that could not be read, each with the reason."""
    settings = load_config(config)
    from_topic = settings.input.kind == "kafka"
    letters = list((_from_topic if from_topic else _from_file)(settings, newest))
    if output is As.JSON:
        print_json(
            [
                {
                    "id": str(record.position),
                    "stage": stage,
                    "reason": reason,
                    "timestamp_ms": record.timestamp_ms,
                    **({"value": printable(record.value, 2000)} if payload else {}),
                }
                for record, stage, reason in letters
            ]
        )
        return
    rows = [
        (str(record.position), stage, reason, *([printable(record.value, 60)] if payload else []))
        for record, stage, reason in letters
    ]
    columns = ("record", "stage", "reason", *(["value"] if payload else []))
    print_table(columns, rows, left=(0, 1, 2, 3))
    print(f"{len(rows)} dead letters shown.")


def _from_topic(config: Config, newest: int) -> Iterator[tuple[Record, str, str]]:
    from rejex_connectors.kafka.topic_to_topic import list_dead_letters

    return list_dead_letters(kafka_settings(config), newest=newest)


def _from_file(config: Config, newest: int) -> Iterator[tuple[Record, str, str]]:
    path = file_places(config).deadletter
    if path == "-":
        raise ConfigError("dead letters went to standard output: there is no file to look at.")
    with explaining_os_errors(f"{path} cannot be read"), open(path, "rb") as file:
        lines = deque(file, maxlen=newest)
    for line in lines:
        record, invalid = decode_dead_letter(line)
        yield record, invalid.stage, invalid.reason
