"""``topics create|check``: the Kafka topics of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rejex_connectors.kafka_settings import KafkaSettings

from rejex_stream.build import kafka_settings
from rejex_stream.cli.show import As, AsOption, print_json, print_table
from rejex_stream.config import Config, load_config
from rejex_stream.errors import ConfigError

__all__ = ["app", "kafka_config"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

ConfigFile = Annotated[Path, typer.Argument(help="The config, a TOML file.")]
Partitions = Annotated[
    int, typer.Option(min=1, help="Partitions of every topic: the most workers that can share.")
]
Replication = Annotated[int, typer.Option(min=1, help="Copies of each; 3 in production.")]


def kafka_config(path: Path) -> tuple[Config, KafkaSettings]:
    """Read a config that must be one of Kafka.

    Raises
    ------
    ConfigError
        If it reads files.
    """
    config = load_config(path)
    if config.input.kind != "kafka":
        raise ConfigError(
            f'{path} reads a file (input.kind = "{config.input.kind}"): there are no topics.'
        )
    return config, kafka_settings(config)


@app.command()
def create(
    config: ConfigFile,
    partitions: Partitions = 8,
    replication: Replication = 1,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be created.")] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Create the topics that are missing; those that exist are left as they are."""
    _, settings = kafka_config(config)
    from rejex_connectors.kafka_topics import create_topics, plan_topics

    plans = plan_topics(settings, partitions=partitions, replication=replication)
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
            f"{plan.partitions}",
            f"{plan.replication}",
            ", ".join(f"{key}={value}" for key, value in plan.config.items()),
            done if plan.name in names else "exists",
        )
        for plan in plans
    ]
    columns = ("topic", "role", "partitions", "replication", "settings", "")
    print_table(columns, rows, left=(0, 1, 4, 5))


@app.command()
def check(
    config: ConfigFile,
    partitions: Partitions = 8,
    replication: Replication = 1,
    output: AsOption = As.TABLE,
) -> None:
    """Compare the broker's topics with what the pipeline needs; exit status 1 on an error."""
    found, settings = kafka_config(config)
    from rejex_connectors.kafka_topics import check_topics, plan_topics

    plans = plan_topics(settings, partitions=partitions, replication=replication)
    findings = check_topics(settings, plans, snapshot_every_s=found.state.snapshot_interval_s)
    if output is As.JSON:
        print_json(findings)
    else:
        rows = [(finding.level, finding.topic, finding.message) for finding in findings]
        print_table(("", "topic", ""), rows, left=(0, 1, 2))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)
