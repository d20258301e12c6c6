"""The commands ``rejex-stream review …``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import As, AsOption, number, print_facts, print_json
from rejex_stream.config import Config
from rejex_stream.errors import ConfigError
from rejex_stream.planner import Costs
from rejex_stream.review import auditlog, outbox
from rejex_stream.review import export as exporting
from rejex_stream.review.binding import check_name
from rejex_stream.review.cli_serve import serve
from rejex_stream.review.ingest import IntakeCounts
from rejex_stream.review.options import (
    ConfigOption,
    GapEventsOption,
    GapOption,
    ReviewOption,
    StoreOption,
    VerdictsOption,
    load_pipelines,
    overridden,
)
from rejex_stream.review.printing import print_report
from rejex_stream.review.queue import ROLES
from rejex_stream.review.rebuild import rebuild as rebuild_store
from rejex_stream.review.rebuild import state_hash
from rejex_stream.review.report import report as make_report
from rejex_stream.review.serving import feeding, published_labels, require_web, review_feeds
from rejex_stream.review.store import ReviewStore, wall_clock_ms

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The review queue and its console.",
    rich_markup_mode=None,
)


class FormChoice(StrEnum):
    """Form of an export."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


app.command()(serve)


@app.command()
def ingest(  # noqa: PLR0917
    store: StoreOption = None,
    config: ConfigOption = None,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    gap: GapOption = None,
    gap_events: GapEventsOption = None,
    output: AsOption = As.TABLE,
) -> None:
    """Take in what the files or topics hold, once; what is known already changes nothing."""
    configs = load_pipelines(config)
    section = overridden(configs, store=store and str(store), gap_s=gap, gap_events=gap_events)
    if not (configs or review or verdicts):
        raise ConfigError("Nothing to take in: give --config, --review or --verdicts.")
    opened = ReviewStore(Path(section.store), section.settings())
    total = IntakeCounts()
    try:
        fed = feeding(
            opened, configs=configs, reviews=review or (), verdicts=verdicts or (), follow=False
        )
        for inflow in fed.inflows:
            tap = None
            if inflow.watch is not None and inflow.feed.kind == "verdicts":
                inflow.feed.pipeline = inflow.feed.pipeline or inflow.watch.pipeline
                tap = inflow.watch.observe_lines
            total += inflow.feed.pump(opened, tap=tap)
            inflow.feed.close()
        for watch in fed.watches.values():
            watch.save()
    finally:
        opened.close()
    if output is As.JSON:
        print_json(
            {
                "items": total.items,
                "verdicts": total.verdicts,
                "duplicates": total.duplicates,
                "invalid": total.invalid,
                "first_invalid": total.first_invalid,
            }
        )
        return
    print_facts(
        [
            ("new review items", number(total.items)),
            ("new verdicts", number(total.verdicts)),
            ("known already", number(total.duplicates)),
            ("unreadable", number(total.invalid)),
            *([("the first of them", total.first_invalid)] if total.invalid else []),
        ]
    )


@app.command()
def rebuild(  # noqa: PLR0917
    store: StoreOption = None,
    config: ConfigOption = None,
    review: ReviewOption = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels file.", show_default="as `review serve` chooses it"),
    ] = None,
    replace: Annotated[bool, typer.Option(help="Take the place of a store that exists.")] = False,
    check: Annotated[
        Path | None, typer.Option(help="Compare with this store; exit 1 if verdicts differ.")
    ] = None,
    gap: GapOption = None,
    gap_events: GapEventsOption = None,
    output: AsOption = As.TABLE,
) -> None:
    """Make a store anew from review items and labels, with the same verdict for every event."""
    configs = load_pipelines(config)
    section = overridden(
        configs,
        store=store and str(store),
        labels=labels and str(labels),
        gap_s=gap,
        gap_events=gap_events,
    )
    if not (configs or review):
        raise ConfigError("Nothing to build from: give --config, or --review and --labels.")
    if check is not None:
        _require_store(check)
    feeds = review_feeds(configs, review or ())

    def feed(fresh: ReviewStore) -> None:
        for one in feeds:
            one.pump(fresh)

    path = Path(section.store)
    found = rebuild_store(
        path,
        section.settings(),
        feed=feed,
        labels=published_labels(
            configs, path, Path(section.labels) if section.labels is not None else None
        ),
        replace=replace,
    )
    same: bool | None = None
    if check is not None:
        other = ReviewStore(check)
        same = state_hash(other.database) == found.state_hash
        other.close()
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


@app.command()
def export(
    to: Annotated[Path, typer.Argument(help="File to write.")],
    store: StoreOption = None,
    config: ConfigOption = None,
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
        raise ConfigError(
            f"{str(to)!r} does not tell its format: give --format csv, jsonl or parquet."
        )
    opened = _existing(store, load_pipelines(config))
    try:
        count = exporting.write(opened.database, to, wanted, labelled_only=not everything)
    finally:
        opened.close()
    print(f"{count:,} events written to {to}", file=sys.stderr)


@app.command()
def backup(
    to: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy the store as it is now, beside a running console."""
    if to.exists():
        raise ConfigError(f"{str(to)!r} exists: give a new path.")
    opened = _existing(store, load_pipelines(config))
    try:
        opened.database.back_up(to)
    finally:
        opened.close()
    print(f"copied to {to}", file=sys.stderr)


@app.command()
def verify(
    store: StoreOption = None, config: ConfigOption = None, output: AsOption = As.TABLE
) -> None:
    """Check the store and the chain of its audit rows; exit 1 if either is broken."""
    opened = _existing(store, load_pipelines(config))
    try:
        with opened.database.read() as connection:
            rows = int(connection.execute("SELECT count(*) FROM audit").fetchone()[0])
            broken = auditlog.broken_link(connection)
        damage = opened.database.integrity()
        waiting = outbox.pending(opened.database)
    finally:
        opened.close()
    if output is As.JSON:
        print_json(
            {
                "audit_rows": rows,
                "broken_at": broken,
                "database": damage,
                "labels_waiting": waiting,
            }
        )
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


def _require_store(path: Path) -> Path:
    if not path.exists():
        raise ConfigError(
            f"There is no review store at {str(path)!r}: give --store, or make one with "
            "`rejex-stream review ingest` or `review serve`."
        )
    return path


def _existing(store: Path | None, configs: Sequence[Config]) -> ReviewStore:
    section = overridden(configs, store=store and str(store))
    return ReviewStore(_require_store(Path(section.store)), section.settings())


@app.command()
def report(  # noqa: PLR0917
    store: StoreOption = None,
    config: ConfigOption = None,
    days: Annotated[
        float | None, typer.Option(help="Labels of the last so many days.  [default: all]", min=0)
    ] = None,
    contamination: Annotated[
        float | None,
        typer.Option(
            help="The configured γ.", show_default="as the config says, or r / n of the verdicts"
        ),
    ] = None,
    c_fp: Annotated[
        float | None,
        typer.Option(help="Cost of a false alarm.", show_default="as the config says, or 1"),
    ] = None,
    c_fn: Annotated[
        float | None,
        typer.Option(help="Cost of a missed anomaly.", show_default="as the config says, or 1"),
    ] = None,
    c_r: Annotated[
        float | None,
        typer.Option(help="Cost of a rejected event.", show_default="as the config says, or 0"),
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Say what the labels say: precision, misses, cost, γ, agreement, and the queue itself."""
    configs = load_pipelines(config)
    if len(configs) == 1:
        rejection = configs[0].rejection
        c_fp = rejection.costs.c_fp if c_fp is None else c_fp
        c_fn = rejection.costs.c_fn if c_fn is None else c_fn
        c_r = rejection.costs.c_r if c_r is None else c_r
    gammas = {config.pipeline.name: config.rejection.contamination for config in configs}
    opened = _existing(store, configs)
    now = wall_clock_ms()
    try:
        with opened.database.read() as connection:
            if contamination is not None:
                names = connection.execute("SELECT DISTINCT pipeline FROM sensor")
                gammas = dict.fromkeys((row[0] for row in names), contamination)
            found = make_report(
                connection,
                now_ms=now,
                since_ms=0 if days is None else round(now - days * 86_400_000),
                costs=Costs(
                    1.0 if c_fp is None else c_fp,
                    1.0 if c_fn is None else c_fn,
                    0.0 if c_r is None else c_r,
                ),
                contamination=gammas,
            )
    finally:
        opened.close()
    if output is As.JSON:
        print_json(found)
    else:
        print_report(found)


@app.command()
def user(
    users: Annotated[Path, typer.Argument(help="The users file; made if missing.")],
    name: Annotated[str, typer.Argument(help="Who.")],
    role: Annotated[str, typer.Option(help="viewer, reviewer, lead or admin.")] = "reviewer",
    password: Annotated[
        str,
        typer.Option(
            prompt=True,
            hide_input=True,
            confirmation_prompt=True,
            envvar="REJEX_REVIEW_PASSWORD",
            help="Asked for on a terminal.",
        ),
    ] = "",
) -> None:
    """Add a person to a users file, or give them a new password or role."""
    require_web()
    from rejex_stream.review.web.auth import hash_password

    if role not in ROLES:
        raise ConfigError(f"role {role!r} is unknown: give one of {', '.join(ROLES)}.")
    check_name(name)
    if len(password) < 8:
        raise ConfigError("The password is too short: give at least 8 characters.")
    table = json.loads(users.read_text(encoding="utf-8")) if users.exists() else {}
    table[name] = {"role": role, "password": hash_password(password)}
    fresh = users.with_name(users.name + ".new")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    fresh.replace(users)
    print(f"{name} is {role} in {users}", file=sys.stderr)
