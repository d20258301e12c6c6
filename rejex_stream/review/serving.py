"""From what somebody asked for to a running console: feeds, monitors, labels, people."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rejex_stream.errors import ConfigError
from rejex_stream.review.binding import check_bind
from rejex_stream.review.feeds import Feed, FileFeed
from rejex_stream.review.labels import LabelRecord
from rejex_stream.review.outbox import LabelFile, LabelSink, read_labels
from rejex_stream.review.queue import Viewer
from rejex_stream.review.store import ReviewStore
from rejex_stream.review.upkeep import Inflow, Upkeep
from rejex_stream.review.watching import PipelineWatch

if TYPE_CHECKING:
    from rejex_stream.build import FilePlaces
    from rejex_stream.config import Config
    from rejex_stream.review.kafka import TopicFeed
    from rejex_stream.review.web.auth import Access

__all__ = [
    "Feeding",
    "feeding",
    "labels_file",
    "published_labels",
    "require_web",
    "review_feeds",
    "serve",
]

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
    configs: Sequence[Config] = (),
    reviews: Sequence[Path] = (),
    verdicts: Sequence[Path] = (),
    labels: Path | None = None,
    follow: bool = True,
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
    follow
        Whether feeds go on and labels are sent, as the console does; else what is there is taken
        once.

    Raises
    ------
    ConfigError, ConnectorError
        If an edge cannot be opened.
    """
    found = Feeding()
    for config in configs:
        _add_pipeline(store, found, config, follow=follow)
    if reviews or verdicts:
        watch = PipelineWatch(store)
        found.watches[""] = watch
        found.inflows += [Inflow(FileFeed(path, "verdicts"), watch) for path in verdicts]
        found.inflows += [Inflow(FileFeed(path, "review")) for path in reviews]
    if not found.watches:
        found.watches[""] = PipelineWatch(store)  # a store that was filled before
    found.title = next((name for name in found.watches if name), "review")
    if follow:
        topics = _labels_topic(configs, labels)
        if topics is not None:
            from rejex_stream.review.kafka import KafkaLabels

            found.sink = KafkaLabels(topics)
        else:
            found.sink = LabelFile(labels_file(store.database.path, labels))
    return found


def _labels_topic(configs: Sequence[Config], labels: Path | None) -> Config | None:
    """Return a config that names the topic of the queue's labels, unless a file takes them."""
    if labels is not None:
        return None
    return next((config for config in configs if config.input.kind == "kafka"), None)


def labels_file(store: Path, labels: Path | None) -> Path:
    """Return where the labels of a store go that has no labels topic."""
    return labels or store.with_name("labels.jsonl")


def published_labels(
    configs: Sequence[Config], store: Path, labels: Path | None
) -> Iterator[LabelRecord]:
    """Yield the labels that a console with these configs has published.

    Raises
    ------
    ConfigError, ConnectorError
        If the file or topic does not exist, or holds something else.
    """
    topics = _labels_topic(configs, labels)
    if topics is not None:
        from rejex_stream.review.kafka import read_label_topic

        yield from read_label_topic(topics)
        return
    path = labels_file(store, labels)
    if not path.exists():
        raise ConfigError(f"The labels file {str(path)!r} does not exist: give --labels FILE.")
    yield from read_labels(path)


def review_feeds(configs: Sequence[Config], reviews: Sequence[Path]) -> list[FileFeed | TopicFeed]:
    """Return feeds of all review items that there are, each to be pumped once.

    Raises
    ------
    ConfigError
        If a file does not exist.
    """
    feeds: list[FileFeed | TopicFeed] = []
    for config in configs:
        if config.input.kind == "kafka":
            from rejex_stream.review.kafka import TopicFeed

            feeds.append(TopicFeed(config, "review"))
        else:
            path = Path(_places(config).review)
            feeds.append(FileFeed(path, "review", config.pipeline.name))
    feeds += [FileFeed(path, "review") for path in reviews]
    for feed in feeds:
        if isinstance(feed, FileFeed) and not feed.path.exists():
            raise ConfigError(f"The review file {str(feed.path)!r} does not exist: check the path.")
    return feeds


def _places(config: Config) -> FilePlaces:
    from rejex_stream.build import file_places

    places = file_places(config)
    if "-" in (places.review, places.verdicts):
        raise ConfigError(
            f"Pipeline {config.pipeline.name!r} writes to standard output, which the review queue "
            "cannot read: give output.review and output.verdicts as files."
        )
    return places


def _add_pipeline(store: ReviewStore, found: Feeding, config: Config, *, follow: bool) -> None:
    from rejex_stream.build import monitor_config

    name = config.pipeline.name
    watch = PipelineWatch(store, name, monitor_config(config))
    found.watches[name] = watch
    review: Feed
    verdicts: Feed
    if config.input.kind == "kafka":
        from rejex_stream.review.kafka import TopicFeed, open_feed

        opened = open_feed if follow else TopicFeed
        review, verdicts = opened(config, "review"), opened(config, "verdicts")
    else:
        places = _places(config)
        review = FileFeed(Path(places.review), "review", name)
        verdicts = FileFeed(Path(places.verdicts), "verdicts", name)
    # Review items first: a drawn event then has its readings.
    found.inflows += [Inflow(review), Inflow(verdicts, watch)]


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
    if host in ("0.0.0.0", "::"):  # where it listens, but no name that anybody can go to
        shown = next((name for name in allowed_hosts if not name.startswith(".")), "localhost")
    else:
        shown = f"[{host}]" if ":" in host else host
    address = f"{scheme}://{shown}:{listener.getsockname()[1]}/"
    console = Console(store, access, fed.watches, upkeep, title=fed.title)

    def ready() -> None:
        links = [
            (viewer.reviewer, f"{address}login?token={console.sessions.link(viewer)}")
            for viewer in people
        ]
        on_ready(address, links)

    app = make_app(console, [shown, *allowed_hosts])
    server = ConsoleServer(app, console, on_ready=ready, certificate=certificate)
    upkeep.start()
    try:
        server.run(sockets=[listener])
    finally:
        if upkeep.stop():
            store.close()
