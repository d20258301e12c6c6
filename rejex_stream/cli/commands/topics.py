"""``topics create|check|rekey``: the Kafka topics of a pipeline."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rejex_connectors.kafka.settings import KafkaSettings

from rejex_stream.cli.options import ConfigFile
from rejex_stream.cli.progress import counting
from rejex_stream.cli.show import As, AsOption, print_json, print_table
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import kafka_decoder, kafka_settings
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Reading, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka.topics import Inputs

__all__ = ["app", "kafka_config"]

_PARTITIONS = 8

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Partitions = Annotated[
    int | None,
    typer.Option(min=1, help="Partitions of every topic.  [default: those of the input]"),
]
Replication = Annotated[int, typer.Option(min=1, help="Copies of each; 3 in production.")]


def kafka_config(path: Path) -> tuple[Config, KafkaSettings]:
    """Read a config that must be one of Kafka."""
    config = load_config(path)
    if config.input.kind != "kafka":
        raise ConfigError(
            f'{path} reads a file (input.kind = "{config.input.kind}"): there are no topics.'
        )
    return config, kafka_settings(config)


@app.command()
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
    _, settings = kafka_config(config)
    from rejex_connectors.kafka.topics import create_topics, look_at_inputs, plan_topics

    inputs = look_at_inputs(settings)
    if inputs.missing and not with_input:
        raise _missing(inputs)
    n = partitions or inputs.most or _PARTITIONS
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


def _missing(inputs: Inputs) -> ConnectorError:
    told = "; ".join(f"topic {name!r} {said}" for name, said in inputs.missing.items())
    return ConnectorError(
        f"{told}. Nothing was created: the outputs have as many partitions as the input "
        "(--with-input makes it too, to try things out)."
    )


@app.command()
def check(
    config: ConfigFile,
    partitions: Partitions = None,
    replication: Replication = 1,
    output: AsOption = As.TABLE,
) -> None:
    """Compare the broker's topics with what the pipeline needs; exit status 1 on an error."""
    found, settings = kafka_config(config)
    from rejex_connectors.kafka.topics import check_topics, plan_topics

    plans = plan_topics(settings, partitions=partitions or _PARTITIONS, replication=replication)
    findings = check_topics(settings, plans, snapshot_every_s=found.state.snapshot_interval_s)
    if output is As.JSON:
        print_json(findings)
    else:
        rows = [(finding.level, finding.topic, finding.message) for finding in findings]
        print_table(("", "topic", ""), rows, left=(0, 1, 2))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


@app.command()
def rekey(
    config: ConfigFile,
    source: Annotated[str, typer.Option("--from", help="The topic whose records have no key.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Copy a topic without keys to the config's input topic, keyed by sensor, each record once.

    Stopped or killed, it goes on where it was; nothing is lost or doubled.
    """
    found, settings = kafka_config(config)
    mapping = found.input.mapping()
    if mapping.sensor_from == "key":
        raise ConfigError(
            f"{config} takes the sensor's name from the key, and there is none in {source}: give "
            "input.sensor, the field that says who measured, or input.fixed_sensor."
        )
    if len(settings.topics.input) != 1:
        raise ConfigError(f"{config} has {len(settings.topics.input)} input topics: give one.")
    from rejex_connectors.kafka.moving.rekey import rekey as copy

    from rejex_stream.cli.commands.run import stopping

    decoder, target = kafka_decoder(found), settings.topics.input[0]

    def sensor_of(record: Record) -> str | None:
        item = decoder.decode(record)
        return item.sensor if isinstance(item, Reading) else None

    stop = threading.Event()
    with stopping(stop), counting(None, "records") as progress:
        done = copy(
            settings, source, target, sensor_of, follow=follow, stop=stop, on_progress=progress
        )
    if output is As.JSON:
        print_json(dataclasses.asdict(done))
        return
    print(f"{done.copied:,} records of {source} are in {target} now, keyed by sensor.")
    if done.nameless:
        print(f"Of them {done.nameless:,} do not say who measured: they are as they were.")
    if done.left_behind:
        print(f"{done.left_behind:,} were left behind: nothing is in them that can be read.")
