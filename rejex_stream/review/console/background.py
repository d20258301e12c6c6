"""What happens without anybody pressing a key: feeds in, labels out, time passing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rejex_stream.config.assembly.control_line import ControlLine
from rejex_stream.config.assembly.watching import open_webhook
from rejex_stream.config.reviewing import Shown
from rejex_stream.encode.labels import LabelRecord
from rejex_stream.errors import ConfigError, RejexError
from rejex_stream.operate.alert_channels import Webhook
from rejex_stream.review import teaching
from rejex_stream.review.console.rates import PipelineWatch
from rejex_stream.review.context_loader import Wider
from rejex_stream.review.incidents.answers import Tells
from rejex_stream.review.queue.feeds import Feed, FileFeed
from rejex_stream.review.queue.labels import LabelFile, LabelSink, read_labels
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.review.team.notices import Notices

if TYPE_CHECKING:
    from rejex_stream.config import Config
    from rejex_stream.config.assembly import FilePlaces
    from rejex_stream.review.queue.feeds import TopicFeed

__all__ = [
    "Background",
    "Feeding",
    "Inflow",
    "feeding",
    "labels_file",
    "published_labels",
    "review_feeds",
]

_log = logging.getLogger(__name__)
_EXPIRE_EVERY_S = 30.0
_SAVE_EVERY_S = 30.0
_TELL_EVERY_S = 2.0
_PUMP_S = 1.0
"""How long one feed may keep the others, and the labels, waiting."""


@dataclass(frozen=True, slots=True)
class Inflow:
    """One feed, and the monitors that watch its pipeline."""

    feed: Feed
    watch: PipelineWatch | None = None


class Background:
    """A thread that keeps a store up to date until it is stopped.

    Parameters
    ----------
    inflows
        Pumped in turn; verdicts are shown to their monitors too.
    sink
        Where labels go; ``None`` keeps them in the store's outbox.
    tells
        Where answers to incidents go, by name of pipeline; others keep them in the store.
    learns
        Those of them that learn from what people say of events.
    notices
        Tells those who do not look at the screen.
    pause_s
        Between two rounds that found nothing.
    """

    def __init__(
        self,
        store: ReviewStore,
        inflows: Sequence[Inflow] = (),
        sink: LabelSink | None = None,
        *,
        tells: Mapping[str, Tells] | None = None,
        learns: Collection[str] = (),
        notices: Notices | None = None,
        pause_s: float = 0.5,
    ) -> None:
        self._store = store
        self._inflows = tuple(inflows)
        for inflow in self._inflows:
            # Streams are found under the pipeline whose monitors watch them.
            if inflow.watch is not None and not inflow.feed.pipeline:
                inflow.feed.pipeline = inflow.watch.pipeline
        self._sink = sink
        self.tells = dict(tells or {})
        self.learns = sorted(self.tells.keys() & set(learns))
        self._notices = notices
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review-background", daemon=True)
        self._next_expiry_s = self._next_save_s = self._next_notice_s = 0.0
        self.problems: dict[str, str] = {}
        self.invalid: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        """Begin, in the background."""
        self._next_save_s = time.monotonic() + _SAVE_EVERY_S
        self._thread.start()

    def stop(self, patience_s: float = 1.0) -> bool:
        """Finish the round, keep the monitors' state, and let go of feeds and sink.

        Says whether that was possible in time: supervisors have little patience. A thread that
        waits for a broker that is away is left behind; every change is one transaction, and labels
        wait in the store.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._thread.is_alive():
                return False
        for inflow in self._inflows:
            inflow.feed.close()
        if self._sink is not None:
            self._sink.close()
        return True

    def _watches(self) -> set[PipelineWatch]:
        return {inflow.watch for inflow in self._inflows if inflow.watch is not None}

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.round():
                self._stop.wait(self._pause_s)
        self._try("monitors", self._save)  # before the labels, which may have to wait for a broker
        self._send()  # what was decided while the last round ran

    def round(self) -> bool:
        """Do everything once; says whether anything came in."""
        busy = False
        for number, inflow in enumerate(self._inflows):
            if self._stop.is_set():
                return busy
            busy |= self._try(f"feed {number}", partial(self._pump, inflow))
        if not self._stop.is_set():
            busy |= self._send()
        now_s = time.monotonic()
        if now_s >= self._next_expiry_s:
            self._next_expiry_s = now_s + _EXPIRE_EVERY_S
            self._try("expiry", lambda: bool(self._store.expire_due()))
        if now_s >= self._next_save_s:
            self._next_save_s = now_s + _SAVE_EVERY_S
            self._try("monitors", self._save)
        if self._notices is not None and now_s >= self._next_notice_s:
            self._next_notice_s = now_s + _TELL_EVERY_S
            self._try("notices", self._notices.round)
        return busy

    def _send(self) -> bool:
        sink, store = self._sink, self._store
        busy = sink is not None and self._try("labels", lambda: bool(store.relay(sink)))
        for pipeline in self.learns:
            busy |= self._try(f"teaching {pipeline}", partial(self._collect, pipeline))
        for pipeline, line in self.tells.items():
            busy |= self._try(f"answers {pipeline}", partial(self._tell, pipeline, line))
        return busy

    def _collect(self, pipeline: str) -> bool:
        store = self._store
        wait_ms = store.settings.teach_after_ms
        return teaching.collect(store.database, pipeline, store.now_ms(), wait_ms=wait_ms)

    def _tell(self, pipeline: str, line: Tells) -> bool:
        return bool(self._store.tell(pipeline, line))

    def _pump(self, inflow: Inflow) -> bool:
        watch = inflow.watch
        tap = watch.observe_lines if watch is not None and inflow.feed.kind == "verdicts" else None
        until_s = time.monotonic() + _PUMP_S
        counts = inflow.feed.pump(
            self._store,
            tap=tap,
            stop=lambda: self._stop.is_set() or time.monotonic() > until_s,
        )
        if counts.invalid:
            name = inflow.feed.kind
            before, _ = self.invalid.get(name, (0, ""))
            self.invalid[name] = (before + counts.invalid, counts.first_invalid)
            _log.warning(
                "%d lines of the %s feed could not be read: %s",
                counts.invalid,
                name,
                counts.first_invalid,
            )
        return bool(counts.items or counts.verdicts or counts.incidents)

    def _save(self) -> bool:
        for watch in self._watches():
            watch.save()
        self._store.forget_old_points()
        return False

    def _try(self, name: str, work: Callable[[], bool]) -> bool:
        """Run one part; a failure is shown on every page until the part works again."""
        try:
            result = work()
        except RejexError as error:
            if self.problems.get(name) != str(error):
                _log.error("%s", error)
            self.problems[name] = str(error)
            return False
        except Exception as error:
            # The queue must stay workable: the failure is shown, and tried again.
            told = f"{name}: {type(error).__name__}: {error}"
            if self.problems.get(name) != told:
                _log.exception("the background of the review store failed at: %s", name)
            self.problems[name] = told
            return False
        if self.problems.pop(name, None) is not None:
            _log.warning("the background of the review store works again at: %s", name)
        return result

    def failing(self) -> dict[str, bool]:
        """Return every part of the work, and whether it fails now."""
        parts = [f"feed {number}" for number in range(len(self._inflows))]
        parts += [f"answers {pipeline}" for pipeline in self.tells]
        parts += [f"teaching {pipeline}" for pipeline in self.learns]
        parts += ["labels", "expiry", "monitors"] + ["notices"] * (self._notices is not None)
        return {name: name in self.problems for name in parts}


@dataclass(slots=True)
class Feeding:
    """Where a store is fed from, where labels and answers go, who is told, and what is shown."""

    inflows: list[Inflow] = field(default_factory=list)
    watches: dict[str, PipelineWatch] = field(default_factory=dict)
    sink: LabelSink | None = None
    tells: dict[str, Tells] = field(default_factory=dict)
    learns: list[str] = field(default_factory=list)
    shown: dict[str, Shown] = field(default_factory=dict)
    inputs: dict[str, Wider] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)
    webhook: Webhook | None = None
    console_url: str | None = None
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
        alerts = next((one.alerts for one in configs if one.alerts.webhook_url is not None), None)
        if alerts is not None:
            found.webhook, found.console_url = open_webhook(alerts), alerts.console_url
        topics = _labels_topic(configs, labels)
        if topics is not None:
            from rejex_stream.review.queue.feeds import KafkaLabels

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
        from rejex_stream.review.queue.feeds import read_label_topic

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
            from rejex_stream.review.queue.feeds import TopicFeed

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
    from rejex_stream.config.assembly import file_places

    places = file_places(config)
    if "-" in (places.review, places.verdicts):
        raise ConfigError(
            f"Pipeline {config.pipeline.name!r} writes to standard output, which the review queue "
            "cannot read: give output.review and output.verdicts as files."
        )
    return places


def _add_pipeline(store: ReviewStore, found: Feeding, config: Config, *, follow: bool) -> None:
    from rejex_stream.config.assembly import monitor_config

    name = config.pipeline.name
    watch = PipelineWatch(store, name, monitor_config(config))
    found.watches[name] = watch
    found.shown[name] = Shown(config.channels, config.sensors)
    with suppress(ConfigError):  # what passes by cannot be read again
        found.inputs[name] = Wider(config)
    review: Feed
    verdicts: Feed | None = None
    incidents: Feed | None = None
    lean = config.output.form == "lean"
    if lean:
        found.lacks.append(
            f"{name} writes lean verdicts: nothing is known here of its rates, scores and accepted "
            'events, only items and incidents; output.form = "full" brings the rest.'
        )
    if config.input.kind == "kafka":
        from rejex_stream.review.queue.feeds import TopicFeed, open_feed

        opened = open_feed if follow else TopicFeed
        review, verdicts = opened(config, "review"), None if lean else opened(config, "verdicts")
        incidents = opened(config, "incidents")
    else:
        places = _places(config)
        review = FileFeed(Path(places.review), "review", name)
        verdicts = None if lean else FileFeed(Path(places.verdicts), "verdicts", name)
        if places.incidents != "-":
            incidents = FileFeed(Path(places.incidents), "incidents", name)
    # Review items first: a drawn event then has its readings.
    found.inflows.append(Inflow(review))
    if verdicts is not None:
        found.inflows.append(Inflow(verdicts, watch))
    if incidents is not None:
        found.inflows.append(Inflow(incidents))
    with suppress(ConfigError):  # it hears no commands
        found.tells[name] = ControlLine(config)
    if config.learning.enabled:
        found.learns.append(name)
