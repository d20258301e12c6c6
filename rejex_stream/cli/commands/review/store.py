"""``review serve`` and what is done to the store: fill it, build it anew, copy and check it."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rejex_stream.cli.commands.review.options import (
    SETTINGS,
    Configs,
    command,
    costs_of,
    existing,
    labels_file,
    require_store,
)
from rejex_stream.cli.show import As, AsOption, number, print_facts, print_json
from rejex_stream.config.assembly.control_line import ControlLine
from rejex_stream.config.operating import Logging
from rejex_stream.config.reviewing import Review, named_reviewer, networks
from rejex_stream.errors import ConfigError
from rejex_stream.operate.logs import logging_to_stderr
from rejex_stream.review import teaching
from rejex_stream.review.console.background import feeding, published_labels, review_feeds
from rejex_stream.review.incidents.answers import send_commands
from rejex_stream.review.queue import audit, labels
from rejex_stream.review.queue import export as exporting
from rejex_stream.review.queue.ingest import IntakeCounts
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.review.queue.store import ReviewStore, state_hash
from rejex_stream.review.queue.store import rebuild as rebuild_store

if TYPE_CHECKING:
    from rejex_stream.review.console.auth import Access


__all__ = ["serve"]

ReviewOption = Annotated[
    list[Path] | None, typer.Option("--review", help="File of review items, JSON Lines.")
]
VerdictsOption = Annotated[
    list[Path] | None, typer.Option("--verdicts", help="File of all verdicts, JSON Lines.")
]


class FormChoice(StrEnum):
    """Form of an export."""

    CSV = "csv"
    JSONL = "jsonl"


@command(*(name for name in SETTINGS if name != "store"))
def serve(
    configs: Configs,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    *,
    section: Review,
) -> None:
    """Serve the console until Ctrl-C or SIGTERM; options go before [review] of the config."""
    try:
        from rejex_stream.review.console.server import serve as serve_console
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The review console needs {error.name}: install the extra with "
            "pip install 'rejex-stream[review]'."
        ) from error
    people = [Viewer(*named_reviewer(text)) for text in section.reviewers]
    people = people or [Viewer(_own_name(), "admin")]
    opened = ReviewStore(Path(section.store), section, costs=costs_of(configs))
    try:
        fed = feeding(
            opened,
            configs=configs,
            reviews=review or (),
            verdicts=verdicts or (),
            labels=labels_file(section),
        )
    except BaseException:
        opened.close()
        raise

    for said in fed.lacks:
        print(said, file=sys.stderr)

    def ready(address: str, links: Sequence[tuple[str, str]]) -> None:
        for name, link in links:
            print(f"link for {name}: {link}", flush=True)
        print(f"review console: {address}", flush=True)

    logs = configs[0].logging if configs else Logging()
    with logging_to_stderr(logs.level, logs.format):
        serve_console(
            opened,
            fed,
            _access(section, people[0]),
            host=section.host,
            port=section.port,
            people=people if section.auth == "token" else (),
            allowed_hosts=section.allowed_hosts,
            certificate=(section.tls_cert, section.tls_key)
            if section.tls_cert and section.tls_key
            else None,
            on_ready=ready,
        )


def _access(section: Review, local: Viewer) -> Access:
    from rejex_stream.review.console.auth import Access

    return Access(
        mode=section.auth,
        local=local,
        proxies=networks(section.proxies),
        leads=section.leads,
        api_token=os.environ.get("REJEX_REVIEW_API_TOKEN", ""),
        secure_cookie=section.tls_cert is not None,
    )


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "reviewer"


@command("gap_events")
def ingest(
    configs: Configs,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    *,
    section: Review,
    output: AsOption = As.TABLE,
) -> None:
    """Take in what the files or topics hold, once; what is known already changes nothing."""
    if not (configs or review or verdicts):
        raise ConfigError("Nothing to take in: give --config, --review or --verdicts.")
    total = IntakeCounts()
    with closing(ReviewStore(Path(section.store), section, costs=costs_of(configs))) as opened:
        fed = feeding(
            opened, configs=configs, reviews=review or (), verdicts=verdicts or (), follow=False
        )
        for said in fed.lacks:
            print(said, file=sys.stderr)
        for one in fed.feeds:
            total += one.pump(opened)
            one.close()
    if output is As.JSON:
        print_json(total)
        return
    print_facts(
        [
            ("new review items", number(total.items)),
            ("new verdicts", number(total.verdicts)),
            *([("new changes of incidents", number(total.incidents))] if total.incidents else []),
            ("known already", number(total.duplicates)),
            ("unreadable", number(total.invalid)),
            *([("the first of them", total.first_invalid)] if total.invalid else []),
        ]
    )


@command("labels", "gap_events")
def rebuild(
    configs: Configs,
    review: ReviewOption = None,
    *,
    section: Review,
    replace: Annotated[bool, typer.Option(help="Take the place of a store that exists.")] = False,
    check: Annotated[
        Path | None, typer.Option(help="Compare with this store; exit 1 if verdicts differ.")
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Make a store anew from review items and labels, with the same verdict for every event."""
    if not (configs or review):
        raise ConfigError("Nothing to build from: give --config, or --review and --labels.")
    if check is not None:
        require_store(check)
    feeds = review_feeds(configs, review or ())

    def feed(fresh: ReviewStore) -> None:
        for one in feeds:
            one.pump(fresh)

    path = Path(section.store)
    found = rebuild_store(
        path,
        section,
        feed=feed,
        labels=published_labels(configs, path, labels_file(section)),
        replace=replace,
        costs=costs_of(configs),
    )
    same: bool | None = None
    if check is not None:
        with closing(ReviewStore(check)) as other:
            same = state_hash(other.database) == found.state_hash
    if output is As.JSON:
        print_json({**found._asdict(), "same_as_checked": same})
    else:
        print_facts(
            [
                ("events", number(found.events)),
                ("labels", number(found.labels)),
                ("labels without events", number(found.labels_without_events)),
                ("verdict state", found.state_hash),
                *([("same as checked", "yes" if same else "no")] if same is not None else []),
            ]
        )
    if same is False:
        raise typer.Exit(1)


@command()
def export(
    to: Annotated[Path, typer.Argument(help="File to write.")],
    configs: Configs,
    section: Review,
    form: Annotated[
        FormChoice | None, typer.Option("--format", help="By default as the file's name says.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also events that nobody has labelled.")
    ] = False,
) -> None:
    """Write labelled events to a file; cells that a spreadsheet would run are made harmless."""
    named = form.value if form is not None else to.suffix.lstrip(".").lower()
    wanted = next((one for one in exporting.FORMATS if one == named), None)
    if wanted is None:
        raise ConfigError(f"{str(to)!r} does not tell its format: give --format csv or jsonl.")
    with existing(section) as opened:
        count = exporting.write(opened.database, to, wanted, labelled_only=not everything)
    print(f"{count:,} events written to {to}", file=sys.stderr)


@command()
def teach(configs: Configs, section: Review, output: AsOption = As.TABLE) -> None:
    """Tell pipelines that learn what people said of the events they asked about; each once."""
    learning = [config for config in configs if config.learning.enabled]
    if not learning:
        raise ConfigError("No pipeline here learns from answers: give --config with [learning].")
    told = {}
    with existing(section) as opened:
        for config in learning:
            line, name = ControlLine(config), config.pipeline.name
            while teaching.collect(opened.database, name, opened.now_ms()):
                pass
            sent = send_commands(opened, name, line)
            told[name] = [command for command in sent if command.answers]
    if output is As.JSON:
        print_json({"commands": told})
        return
    for name, commands in told.items():
        count = sum(len(one.answers) for one in commands)
        print(f"{name}: {count:,} answers in {len(commands):,} commands")


@command()
def backup(
    to: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    configs: Configs,
    section: Review,
) -> None:
    """Copy the store as it is now, beside a running console."""
    if to.exists():
        raise ConfigError(f"{str(to)!r} exists: give a new path.")
    with existing(section) as opened:
        opened.database.back_up(to)
    print(f"copied to {to}", file=sys.stderr)


@command()
def verify(configs: Configs, section: Review, output: AsOption = As.TABLE) -> None:
    """Check the store and the chain of its audit rows; exit 1 if either is broken."""
    with existing(section) as opened:
        with opened.database.read() as connection:
            rows = int(connection.execute("SELECT count(*) FROM audit").fetchone()[0])
            broken = audit.broken_link(connection)
        damage = opened.database.integrity()
        waiting = labels.pending(opened.database)
    if output is As.JSON:
        found = {"audit_rows": rows, "broken_at": broken, "database": damage}
        print_json({**found, "labels_waiting": waiting})
    else:
        print_facts(
            [
                ("audit rows", number(rows)),
                ("their chain", "whole" if broken is None else f"broken at row {broken}"),
                ("database", damage),
                ("labels not yet published", number(waiting)),
            ]
        )
    if broken is not None or damage != "ok":
        raise typer.Exit(1)
