"""From what somebody asked for to a running console: feeds, monitors, labels, people."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rejex_stream.errors import ConfigError
from rejex_stream.review.feeds import FileFeed, SourceFeed
from rejex_stream.review.outbox import LabelFile, LabelSink
from rejex_stream.review.queue import Viewer
from rejex_stream.review.store import ReviewStore
from rejex_stream.review.upkeep import Inflow, Upkeep
from rejex_stream.review.watching import PipelineWatch

if TYPE_CHECKING:
    from rejex_stream.config import Config
    from rejex_stream.review.web.auth import Access

__all__ = ["Feeding", "feeding", "require_web", "serve"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Feeding:
    """Where a store is fed from, and where its labels go."""

    inflows: list[Inflow] = field(default_factory=list)
    watches: dict[str, PipelineWatch] = field(default_factory=dict)
    sink: LabelSink | None = None
    title: str = "review"


def feeding(
    store: ReviewStore,
    *,
    configs: Sequence[Path] = (),
    reviews: Sequence[Path] = (),
    verdicts: Sequence[Path] = (),
    labels: Path | None = None,
    with_labels: bool = True,
) -> Feeding:
    """Return the feeds of pipelines named by their configs, and of plain files.

    Parameters
    ----------
    configs
        Pipelines: their review and verdict files, or topics, and the settings of their monitors.
    reviews, verdicts
        JSON Lines files besides those.
    labels
        The labels file; by default ``labels.jsonl`` beside the store, for a pipeline on Kafka its
        labels topic.
    with_labels
        Whether labels are sent at all; an import leaves them to the console.

    Raises
    ------
    ConfigError, ConnectorError
        If a config is wrong, or an edge cannot be opened.
    """
    found = Feeding()
    topics: Config | None = None
    for path in configs:
        config = _add_pipeline(store, found, path)
        topics = config if config.input.kind == "kafka" and topics is None else topics
    if reviews or verdicts:
        watch = PipelineWatch(store)
        found.watches[""] = watch
        found.inflows += [Inflow(FileFeed(path, "verdicts"), watch) for path in verdicts]
        found.inflows += [Inflow(FileFeed(path, "review")) for path in reviews]
    if not found.watches:
        found.watches[""] = PipelineWatch(store)  # a store that was filled before
    found.title = next((name for name in found.watches if name), "review")
    if with_labels:
        if topics is not None and labels is None:
            from rejex_stream.review.kafka import KafkaLabels

            found.sink = KafkaLabels(topics)
        else:
            found.sink = LabelFile(labels or store.database.path.with_name("labels.jsonl"))
    return found


def _add_pipeline(store: ReviewStore, found: Feeding, path: Path) -> Config:
    from rejex_stream.build import file_places, monitor_config
    from rejex_stream.config import load_config

    config = load_config(path)
    name = config.pipeline.name
    if name in found.watches:
        raise ConfigError(f"Two configs name their pipeline {name!r}: give each its own name.")
    watch = PipelineWatch(store, name, monitor_config(config))
    found.watches[name] = watch
    review: FileFeed | SourceFeed
    verdicts: FileFeed | SourceFeed
    if config.input.kind == "kafka":
        from rejex_stream.review.kafka import open_feed

        review, verdicts = open_feed(config, "review"), open_feed(config, "verdicts")
    else:
        places = file_places(config)
        if "-" in (places.review, places.verdicts):
            raise ConfigError(
                f"{str(path)!r} writes to standard output, which the console cannot follow: give "
                "output.review and output.verdicts as files."
            )
        review = FileFeed(Path(places.review), "review", name)
        verdicts = FileFeed(Path(places.verdicts), "verdicts", name)
    # Review items first: a drawn event then has its readings.
    found.inflows += [Inflow(review), Inflow(verdicts, watch)]
    return config


def require_web() -> None:
    """Refuse to go on without the extra.

    Raises
    ------
    ConfigError
        Naming what is missing and how to get it.
    """
    try:
        import jinja2
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The review console needs {error.name}: install the extra with "
            "pip install 'rejex-stream[review]'."
        ) from error
    del jinja2, starlette, uvicorn


def serve(
    store: ReviewStore,
    fed: Feeding,
    access: Access,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    people: Sequence[Viewer] = (),
    allowed_hosts: Sequence[str] = (),
    certificate: tuple[str, str] | None = None,
    on_ready: Callable[[str, Sequence[tuple[str, str]]], None],
) -> None:
    """Serve the console until a signal comes; closes feeds, labels and store.

    Parameters
    ----------
    people
        In mode ``token``: who gets a link.
    on_ready
        Told the address, and (name, link) of everybody who got one.

    Raises
    ------
    ConfigError
        If the extra is missing, or the bind would let anybody in.
    ConnectorError
        If the port is taken.
    """
    require_web()
    from rejex_stream.review.web.app import make_app
    from rejex_stream.review.web.auth import check_bind
    from rejex_stream.review.web.console import Console
    from rejex_stream.review.web.server import ConsoleServer, listen

    upkeep = Upkeep(store, fed.inflows, fed.sink)
    try:
        check_bind(host, access.mode)
        listener = listen(host, port)
    except BaseException:
        upkeep.stop()
        store.close()
        raise
    scheme = "https" if certificate else "http"
    shown = f"[{host}]" if ":" in host else host
    address = f"{scheme}://{shown}:{listener.getsockname()[1]}/"
    console = Console(store, access, fed.watches, upkeep, title=fed.title)

    def ready() -> None:
        links = [
            (viewer.reviewer, f"{address}login?token={console.sessions.link(viewer)}")
            for viewer in people
        ]
        on_ready(address, links)

    bound = [host] if host not in ("0.0.0.0", "::") else []
    app = make_app(console, [shown for shown in bound] + list(allowed_hosts))
    server = ConsoleServer(app, console, on_ready=ready, certificate=certificate)
    upkeep.start()
    try:
        server.run(sockets=[listener])
    finally:
        upkeep.stop()
        store.close()
