"""The commands ``rejex-stream review …``: the queue, its console, and what its answers are worth.

In come a store and the configs of pipelines, out go a running console, files and tables. What a
command is told goes before ``[review]`` of the configs.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from rejex_stream.cli.show import As, AsOption, number, print_facts, print_json, print_table, share
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly.control_line import (
    ControlLine,
    Published,
    published_lines,
    unread_and_bounds,
)
from rejex_stream.config.assembly.running import audit_draw
from rejex_stream.config.input import Input
from rejex_stream.config.operating import Logging
from rejex_stream.config.reviewing import AuthMode, Review, named_reviewer, networks
from rejex_stream.encode import decode_reviewed
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors, needing_extra
from rejex_stream.operate.logs import logging_to_stderr
from rejex_stream.plan.promises import Costs
from rejex_stream.review import certificate
from rejex_stream.review.certificate import Evidence
from rejex_stream.review.certificate import verify as verify_log
from rejex_stream.review.console.background import feeding, published_labels, review_feeds
from rejex_stream.review.queue import database, label_store, review_store
from rejex_stream.review.queue.database import Viewer, scalar
from rejex_stream.review.queue.ingest import IngestCounts
from rejex_stream.review.queue.label_report import Interval, Quality, pipelines_of
from rejex_stream.review.queue.label_report import report as make_report
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.types import Position, ReviewItem

if TYPE_CHECKING:
    from rejex_stream.review.console.console import Access

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The review queue and its console.",
    rich_markup_mode=None,
)
Configs = list[Config]


def _of_config(setting: str, default: str) -> str:
    return f"{default}, or review.{setting} of the config"


ConfigOption = Annotated[
    list[Path] | None,
    typer.Option("--config", help="Config of a pipeline; may be given several times."),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The review store, one file on a local disk.",
        show_default=_of_config("store", "review.db"),
    ),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="Labels file.",
        show_default="the topic output.labels (Kafka), or labels.jsonl beside the store",
    ),
]
ReviewOption = Annotated[
    list[Path] | None, typer.Option("--review", help="File of review items, JSON Lines.")
]
VerdictsOption = Annotated[
    list[Path] | None, typer.Option("--verdicts", help="File of all verdicts, JSON Lines.")
]
AuthOption = Annotated[
    AuthMode | None,
    typer.Option(
        help="How people prove who they are; none: loopback only.",
        show_default=_of_config("auth", "none"),
    ),
]
ReviewerOption = Annotated[
    list[str] | None, typer.Option(help="NAME or NAME:ROLE; with --auth token each gets a link.")
]


# ----------------------------------------------------------------------- configs and the store
def load_pipelines(paths: Sequence[Path]) -> Configs:
    """Read the configs of all pipelines; two of the same name are refused."""
    configs: Configs = []
    for path in paths:
        config = load_config(path)
        name = config.pipeline.name
        if any(name == other.pipeline.name for other in configs):
            raise ConfigError(f"Two configs name their pipeline {name!r}: give each its own name.")
        configs.append(config)
    return configs


def overridden(configs: Configs, **given: Any) -> Review:  # noqa: ANN401 - as typed
    """Return ``[review]`` of the configs, overridden by what was given; refuses two different."""
    set_ = [config.review for config in configs if config.review != Review()]
    if any(other != set_[0] for other in set_):
        raise ConfigError(
            "The configs set [review] differently, but there is one queue: keep the section in "
            "one of them."
        )
    overrides = {name: _plain(value) for name, value in given.items() if value not in (None, [])}
    section = (set_[0] if set_ else Review()).model_copy(update=overrides)
    section.check()
    topics = {
        (config.kafka.bootstrap_servers, config.output.labels)
        for config in configs
        if config.input.kind == "kafka"
    }
    if section.labels is None and len(topics) > 1:
        named = ", ".join(sorted(f"{topic!r} on {servers}" for servers, topic in topics))
        raise ConfigError(
            f"The configs send labels to different topics ({named}), but one queue has one: give "
            "them the same output.labels, a console each, or review.labels, a file."
        )
    return section


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever typer makes of an option
    if isinstance(value, list):
        return tuple(value)
    return str(value) if isinstance(value, Path) else value


def _loaded(config: list[Path] | None, **given: Any) -> tuple[Configs, Review]:  # noqa: ANN401
    configs = load_pipelines(config or ())
    return configs, overridden(configs, **given)


def _existing(section: Review | Path) -> closing[ReviewStore]:
    path = section if isinstance(section, Path) else Path(section.store)
    if not path.exists():
        raise ConfigError(
            f"There is no review store at {str(path)!r}: give --store, or make one with "
            "`rejex-stream review ingest` or `review serve`."
        )
    return closing(ReviewStore(path, None if isinstance(section, Path) else section))


def _new_store(configs: Configs, section: Review) -> ReviewStore:
    return ReviewStore(Path(section.store), section, costs=_costs_of(configs))


def _costs_of(configs: Configs) -> dict[str, Costs]:
    given = {pipeline.pipeline.name: pipeline.rejection.costs for pipeline in configs}
    return {name: Costs(it.c_fp, it.c_fn, it.c_r or 0.0) for name, it in given.items()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "reviewer"


# ---------------------------------------------------------------------------------- the console
@app.command()
def serve(
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    labels: LabelsOption = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on.", show_default=_of_config("host", "127.0.0.1")),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port; 0 takes any free one.",
            show_default=_of_config("port", "8321"),
            min=0,
            max=65535,
        ),
    ] = None,
    auth: AuthOption = None,
    reviewer: ReviewerOption = None,
) -> None:
    """Serve the console until Ctrl-C or SIGTERM; options go before [review] of the config."""
    configs, section = _loaded(
        config, store=store, labels=labels, host=host, port=port, auth=auth, reviewers=reviewer
    )
    with needing_extra("review", "The review console"):
        from rejex_stream.review.console.server import require_certificate
        from rejex_stream.review.console.server import serve as serve_console
    if section.tls_cert is not None:
        require_certificate(section.tls_cert)
    people = [Viewer(*named_reviewer(text)) for text in section.reviewers]
    people = people or [Viewer(_user(), "admin")]
    opened = _new_store(configs, section)
    try:
        fed = feeding(
            Path(section.store),
            configs=configs,
            reviews=review or (),
            verdicts=verdicts or (),
            labels=None if section.labels is None else Path(section.labels),
        )
    except BaseException:
        opened.close()
        raise
    for sentence in fed.lacks:
        print(sentence, file=sys.stderr)

    def ready(address: str, links: Sequence[tuple[str, str]]) -> None:
        for name, link in links:
            print(f"link for {name}: {link}", flush=True)
        print(f"review console: {address}", flush=True)

    logs = configs[0].logging if configs else Logging()
    with logging_to_stderr(logs.level, logs.format):
        linked = people if section.auth == "token" else ()
        serve_console(opened, fed, _access(section, people[0]), linked, ready)


@app.command()
def link(
    name: Annotated[str, typer.Argument(help="Of review.reviewers; whoever is on shift.")],
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    auth: AuthOption = None,
    reviewer: ReviewerOption = None,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="End this person's sessions and links instead.")
    ] = False,
) -> None:
    """Print a link that lets one person into a running console, once, within a day."""
    configs, section = _loaded(config, store=store, auth=auth, reviewers=reviewer)
    people = dict(map(named_reviewer, section.reviewers))
    if name not in people:
        known = ", ".join(people) or "nobody"
        raise ConfigError(f"review.reviewers has no {name!r}, but {known}: add NAME or NAME:ROLE.")
    if section.auth != "token":
        raise ConfigError(f'review.auth is "{section.auth}": links are for auth = "token".')
    with needing_extra("review", "The review console"):
        from rejex_stream.review.console.console import Sessions
    with _existing(section) as opened:
        sessions = Sessions(opened)
        if revoke:
            print(f"{name}: {sessions.revoke(name)} sessions and links ended", file=sys.stderr)
            return
        token = sessions.link(Viewer(name, people[name]))
    named = next(
        (pipeline.alerts.console_url for pipeline in configs if pipeline.alerts.console_url), None
    )
    scheme = "http" if section.tls_cert is None else "https"
    print(f"{named or f'{scheme}://{section.host}:{section.port}'}/login?token={token}")


def _access(section: Review, local: Viewer) -> Access:
    from rejex_stream.review.console.console import Access

    return Access(
        mode=section.auth,
        local=local,
        proxies=networks(section.proxies),
        roles=dict(map(named_reviewer, section.reviewers)),
        api_token=os.environ.get("REJEX_REVIEW_API_TOKEN", ""),
        secure_cookie=section.tls_cert is not None,
    )


# ------------------------------------------------------------------------------------ the store
@app.command()
def ingest(
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    output: AsOption = As.TABLE,
) -> None:
    """Take in what the files or topics hold, once; what is known already changes nothing."""
    configs, section = _loaded(config, store=store)
    if not (configs or review or verdicts):
        raise ConfigError("Nothing to take in: give --config, --review or --verdicts.")
    total = IngestCounts()
    with closing(_new_store(configs, section)) as opened:
        fed = feeding(None, configs=configs, reviews=review or (), verdicts=verdicts or ())
        for sentence in fed.lacks:
            print(sentence, file=sys.stderr)
        for feed in fed.feeds:
            total += feed.pump(opened)
            feed.close()
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


@app.command()
def rebuild(
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    review: ReviewOption = None,
    labels: LabelsOption = None,
    replace: Annotated[bool, typer.Option(help="Take the place of a store that exists.")] = False,
    check: Annotated[
        Path | None, typer.Option(help="Compare with this store; exit 1 if verdicts differ.")
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Rebuild a store from review items and labels, with the same verdict for every event."""
    configs, section = _loaded(config, store=store, labels=labels)
    if not (configs or review):
        raise ConfigError("Nothing to build from: give --config, or --review and --labels.")
    feeds = review_feeds(configs, review or ())

    def feed(fresh: ReviewStore) -> None:
        for source in feeds:
            source.pump(fresh)

    same: bool | None = None
    wanted = ""
    if check is not None:
        with _existing(check) as other:
            wanted = review_store.state_hash(other.database)
    path = Path(section.store)
    rebuilt = review_store.rebuild(
        path,
        section,
        feed=feed,
        labels=published_labels(configs, section),
        replace=replace,
        costs=_costs_of(configs),
    )
    if check is not None:
        same = wanted == rebuilt.state_hash
    if output is As.JSON:
        print_json({**rebuilt._asdict(), "same_as_checked": same})
    else:
        print_facts(
            [
                ("events", number(rebuilt.events)),
                ("labels", number(rebuilt.labels)),
                ("labels without events", number(rebuilt.labels_without_events)),
                ("verdict state", rebuilt.state_hash),
                *([("same as checked", "yes" if same else "no")] if same is not None else []),
            ]
        )
    if same is False:
        raise typer.Exit(1)


@app.command()
def export(
    to: Annotated[Path, typer.Argument(help="File to write.")],
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also events that nobody has labelled.")
    ] = False,
) -> None:
    """Write labelled events to a file; cells that a spreadsheet would run are made harmless."""
    _, section = _loaded(config, store=store)
    form = next((known for known in label_store.FORMATS if to.suffix.lower() == f".{known}"), None)
    if form is None:
        raise ConfigError(f"{str(to)!r} does not tell its format: name it *.csv or *.jsonl.")
    with _existing(section) as opened:
        count = label_store.write_export(opened.database, to, form, labelled_only=not everything)
    print(f"{count:,} events written to {to}", file=sys.stderr)


@app.command()
def backup(
    to: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy the store as it is now, beside a running console."""
    _, section = _loaded(config, store=store)
    if to.exists():
        raise ConfigError(f"{str(to)!r} exists: give a new path.")
    with _existing(section) as opened:
        opened.database.back_up(to)
    print(f"copied to {to}", file=sys.stderr)


@app.command()
def verify(
    *, store: StoreOption = None, config: ConfigOption = None, output: AsOption = As.TABLE
) -> None:
    """Check the store and the chain of its audit rows; exit 1 if either is broken."""
    _, section = _loaded(config, store=store)
    with _existing(section) as opened:
        with opened.database.read() as connection:
            rows = int(scalar(connection, "SELECT count(*) FROM audit"))
            broken = database.broken_link(connection)
            waiting = label_store.pending(connection)
        damage = opened.database.integrity()
    if output is As.JSON:
        result = {"audit_rows": rows, "broken_at": broken, "database": damage}
        print_json({**result, "labels_waiting": waiting})
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


# ------------------------------------------------------------------------- what answers are worth
@app.command()
def report(
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    days: Annotated[
        float | None, typer.Option(help="Labels of the last so many days.  [default: all]", min=0)
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Say what the labels say of each pipeline: precision, misses and γ."""
    _, section = _loaded(config, store=store)
    now = database.wall_clock_ms()
    since_ms = 0 if days is None else round(now - days * 86_400_000)
    with _existing(section) as opened, opened.database.read() as connection:
        pipelines = make_report(connection, now_ms=now, since_ms=since_ms)
        proven = certificate.certificates(opened, connection)
    if output is As.JSON:
        print_json({"pipelines": pipelines, "certificates": list(proven.values())})
        return
    for name, quality in pipelines.items():
        if len(pipelines) > 1:
            print(f"\n{name or 'The pipeline'}\n")
        _print_quality(quality)
    for name, one_proven in sorted(proven.items()):
        print(f"\n{name}: {certificate.sentence(one_proven)}.")


def _print_quality(quality: Quality) -> None:
    print_table(
        ("events", "all", "judged", "anomalies among them"),
        [
            (name, number(group.events), number(group.judged), number(group.anomalous))
            for name, group in (
                ("accepted as anomaly", quality.accepted_anomaly),
                ("accepted as normal", quality.accepted_normal),
                ("rejected", quality.rejected),
            )
        ],
    )
    intervals = {
        "precision of accepted anomalies": quality.precision,
        "anomalies among accepted normals": quality.false_omission,
        "anomalies that were missed": quality.miss_rate,
        "anomalies among rejected": quality.anomalous_rejected,
        "share of anomalies, γ": quality.contamination,
    }
    print_table(
        ("what labels say", "estimate", "95 % interval"),
        [(name, *_interval(interval)) for name, interval in intervals.items()],
    )


def _interval(interval: Interval) -> tuple[str, str]:
    if interval.low is None or interval.high is None:
        return share(interval.value), "not enough labels"
    return share(interval.value), f"{share(interval.low)} to {share(interval.high)}"


@app.command()
def certify(
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="From this hour of the events on (UTC); fix it beforehand."),
    ] = None,
    sensitivity: Annotated[
        float | None,
        typer.Option(help="Share of anomalies that reviewers recognise, at least.  [default: all]"),
    ] = None,
) -> None:
    """Print, as signed JSON, how many anomalies were missed at most; valid at every look."""
    configs, section = _loaded(config, store=store)
    since_ms = 0 if since is None else round(since.replace(tzinfo=UTC).timestamp() * 1000)
    with _existing(section) as opened, opened.database.read() as connection:
        names = [pipeline.pipeline.name for pipeline in configs]
        names = names if len(names) == 1 else pipelines_of(connection)
        if len(names) != 1:
            raise ConfigError(
                f"the store holds {len(names)} pipelines ({', '.join(names) or 'none'}): give the "
                "--config of the one to certify."
            )
        certified = certificate.certify(
            certificate.tally_of_store(connection, names[0], since_ms),
            pipeline=names[0],
            since_ms=since_ms,
            sensitivity=sensitivity,
        )
    print_json(certificate.signed(certified, _draw(configs).key))
    print(f"{names[0]}: {certificate.sentence(certified)}", file=sys.stderr)


@app.command()
def dump(
    what: Annotated[Published, typer.Argument(help="What of it.")],
    to: Annotated[Path, typer.Argument(help="File to write, JSON lines.")],
    *,
    config: ConfigOption = None,
) -> None:
    """Write what a pipeline has published to a file, e.g. for verify-certificate."""
    configs, _ = _loaded(config)
    if len(configs) != 1:
        raise ConfigError("give the --config of one pipeline.")
    count, part = 0, to.with_name(to.name + ".part")
    with explaining_os_errors(f"{str(to)!r} cannot be written", kind=ConfigError):
        try:
            with part.open("wb") as file:
                for line in published_lines(configs[0], what):
                    file.write(line + b"\n")
                    count += 1
            part.replace(to)  # a dump that broke off is none
        finally:
            part.unlink(missing_ok=True)
    print(f"{count:,} records written to {to}", file=sys.stderr)


@app.command()
def verify_certificate(
    file: Annotated[Path, typer.Argument(help="The certificate.")],
    *,
    store: StoreOption = None,
    config: ConfigOption = None,
    verdicts: Annotated[Path, typer.Option(help="All verdicts of the pipeline, JSON lines.")],
    review: Annotated[
        Path | None,
        typer.Option(help="Its review items, JSON lines: each drawn event has to be among them."),
    ] = None,
) -> None:
    """Draw again over a log of verdicts and labels; exit 1 if anything differs."""
    configs, section = _loaded(config, store=store)
    if len(configs) != 1:
        raise ConfigError("give the --config of the pipeline: it says which shares were drawn.")
    draw, name = _draw(configs), configs[0].pipeline.name
    try:
        claimed = msgspec.json.decode(file.read_bytes(), type=certificate.Certificate)
        evidence = _evidence(configs[0], section, review)
        with verdicts.open("rb") as lines:
            result = verify_log(claimed, lines, draw, evidence, pipeline=name)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror}).") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is no certificate ({error}).") from None
    for sentence in (*result.premises, *result.wrong):
        print(sentence)
    if result.wrong:
        raise typer.Exit(1)
    print(f"the log says the same: {certificate.sentence(result.again)}")


def _evidence(config: Config, section: Review, review: Path | None) -> Evidence:
    evidence = Evidence(
        # A proxy lets in whom it knows, named here or not.
        reviewers=[]
        if section.auth == "proxy"
        else [*dict(map(named_reviewer, section.reviewers))],
        calendar=[entry.plan() for entry in config.calendar],
        gaps=_why_gaps(config.input),
    )
    evidence.unread, evidence.bounds = unread_and_bounds(config)
    evidence.labels = published_labels([config], section)
    with suppress(ConfigError, ConnectorError):
        line = ControlLine(config)
        replies = line.replies()
        evidence.incidents = line.incidents()
        evidence.commands = [
            command
            for command in line.commands()
            if any(r.accepted for r in replies.get(command.id, ()))
        ]
    if review is not None:
        evidence.items = _drawn_items(review)
    return evidence


def _why_gaps(input_: Input) -> str:
    if input_.select is not None:
        return "input.select may ignore them"
    if isinstance(input_.channels, dict) and input_.tag is not None:
        return "they are joined to rows"
    return "transactions and compaction leave gaps" if input_.kind == "kafka" else ""


def _drawn_items(path: Path) -> Mapping[Position, ReviewItem]:
    with path.open("rb") as lines:
        items = [decode_reviewed(line) for line in lines]
    return {
        item.verdict.position: item
        for item in items
        if isinstance(item, ReviewItem) and item.why == "audit"
    }


def _draw(configs: Configs) -> AuditDraw:
    return audit_draw(configs[0]) if len(configs) == 1 else AuditDraw()
