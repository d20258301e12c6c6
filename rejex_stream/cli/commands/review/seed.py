"""``review seed``: cases whose truth is known, in a queue where nobody can tell them apart."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.commands.review.options import Configs, command, existing
from rejex_stream.cli.show import As, AsOption, number, print_facts, print_json
from rejex_stream.config.assembly.running import audit_draw
from rejex_stream.config.reviewing import SYSTEM, Review
from rejex_stream.errors import ConfigError
from rejex_stream.review.gold_cases.seeding import Case, Found, make_items, read_cases, unknown
from rejex_stream.review.gold_cases.seeding import seed as seed_store

__all__ = ["seed"]


@command()
def seed(
    cases: Annotated[
        Path, typer.Argument(help="CSV or JSON Lines: stream, event, truth (anomaly or normal).")
    ],
    configs: Configs,
    section: Review,
    *,
    verdicts: Annotated[
        Path | None,
        typer.Option(help="All verdicts of the pipeline, JSON lines: for accepted events."),
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Put known cases into the queue, to measure reviewers alone; exit 1 if a row was refused.

    They look like all others: rejected events that wait, and, with --verdicts and one --config,
    accepted ones that no audit has drawn. Every row that can go in does.
    """
    found, refused = read_cases(cases)
    with existing(section) as opened:
        made: Found = {}
        if verdicts is not None:
            with opened.database.read() as connection:
                lacking = unknown(connection, found)
            made = _made(configs, lacking, verdicts)
        done = seed_store(opened, found, by=_who(), made=made)
    refused += done.refused
    if output is As.JSON:
        print_json({"new": done.new, "known": done.known, "refused": refused})
    else:
        for sentence in refused:
            print(sentence, file=sys.stderr)
        print_facts(
            [
                ("new known cases", number(done.new)),
                ("known already", number(done.known)),
                ("refused", number(len(refused))),
            ]
        )
    if refused:
        raise typer.Exit(1)


def _made(configs: Configs, cases: list[Case], verdicts: Path) -> Found:
    if len(configs) != 1:
        raise ConfigError("give one --config with --verdicts: of the pipeline that wrote them.")
    if not cases:
        return {}
    try:
        with verdicts.open("rb") as lines:
            return make_items(configs[0], cases, lines, audit_draw(configs[0]))
    except OSError as error:
        raise ConfigError(f"{str(verdicts)!r} cannot be read ({error.strerror}).") from None


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return SYSTEM
