"""``deadletter list|redrive``: records that could not be read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.commands.topics import kafka_config
from rejex_stream.cli.options import ConfigFile
from rejex_stream.cli.show import As, AsOption, print_json, print_table
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import file_places
from rejex_stream.decode.mapping import printable
from rejex_stream.encode import decode_dead_letter
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Record

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Newest = Annotated[int, typer.Option("--newest", min=1, help="At most about so many.")]


@app.command("list")
def list_letters(
    config: ConfigFile,
    newest: Newest = 20,
    pending: Annotated[bool, typer.Option(help="Without those that were redriven.")] = False,
    payload: Annotated[
        bool, typer.Option(help="Show the beginning of each record: it may be confidential.")
    ] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Show the newest records that could not be read, each with the reason."""
    settings = load_config(config)
    letters = list(
        _from_topic(config, newest, pending=pending)
        if settings.input.kind == "kafka"
        else _from_file(settings, newest)
    )
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


@app.command()
def redrive(
    config: ConfigFile,
    stage: Annotated[str | None, typer.Option(help="Only those that failed in this stage.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Put dead letters back into the topic they came from, each once, after mending the cause."""
    _, settings = kafka_config(config)
    from rejex_connectors.kafka.deadletters import redrive as redrive_letters

    what: Counter[str] = Counter()
    for result in redrive_letters(
        settings, select=lambda letter: stage is None or letter.stage == stage, dry_run=dry_run
    ):
        what[result.reason or result.what] += 1
    if output is As.JSON:
        print_json({"dry_run": dry_run, "counts": what})
        return
    would = "would be " if dry_run else ""
    print(f"{what.pop('redriven', 0):,} {would}redriven.")
    for reason, count in what.most_common():
        print(f"{count:,} {would}skipped: {reason}.")


def _from_topic(path: Path, newest: int, *, pending: bool) -> Iterator[tuple[Record, str, str]]:
    _, settings = kafka_config(path)
    from rejex_connectors.kafka.deadletters import list_dead_letters

    for letter in list_dead_letters(settings, newest=newest, pending_only=pending):
        yield letter.original, letter.stage, letter.reason


def _from_file(config: Config, newest: int) -> Iterator[tuple[Record, str, str]]:
    path = file_places(config).deadletter
    if path == "-":
        raise ConfigError("dead letters went to standard output: there is no file to look at.")
    try:
        with open(path, "rb") as file:
            lines = deque(file, maxlen=newest)
    except OSError as error:
        raise ConnectorError(f"cannot read {path}: {error.strerror}.") from error
    for line in lines:
        record, invalid = decode_dead_letter(line)
        yield record, invalid.stage, invalid.reason
