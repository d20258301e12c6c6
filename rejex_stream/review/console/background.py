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
from rejex_stream.config.reviewing import Shown
from rejex_stream.encode.label_records import LabelRecord
from rejex_stream.errors import ConfigError, RejexError
from rejex_stream.review import teaching
from rejex_stream.review.context_loader import Wider
from rejex_stream.review.incidents.answers import UNDO_MS, CommandLog, send_commands
from rejex_stream.review.incidents.readings import load_next
from rejex_stream.review.queue import series
from rejex_stream.review.queue.decisions import expire_due
from rejex_stream.review.queue.feeds import Feed, FileFeed
from rejex_stream.review.queue.labels import LabelFile, LabelSink, read_labels
from rejex_stream.review.queue.store import ReviewStore

if TYPE_CHECKING:
    from rejex_stream.config import Config
    from rejex_stream.config.assembly import FilePlaces
    from rejex_stream.review.queue.feeds import TopicFeed

__all__ = [
    "Background",
    "Feeding",
    "feeding",
    "labels_file",
    "published_labels",
    "review_feeds",
]

_log = logging.getLogger(__name__)
_EXPIRE_EVERY_S = 30.0
_UPKEEP_EVERY_S = 30.0
_READINGS_EVERY_S = 10.0
_PUMP_S = 1.0
"""How long one feed may keep the others, and the labels, waiting."""


class Background:
    """A thread that keeps a store up to date until it is stopped.

    Parameters
    ----------
    feeds
        Pumped in turn.
    sink
        Where labels go; ``None`` keeps them in the store's outbox.
    tells
        Where answers to incidents go, by name of pipeline; others keep them in the store.
    learns
        Those of them that learn from what people say of events.
    inputs
        Where readings of incidents are found, by name of pipeline.
    undo_ms
        So long an answer to an incident can be taken back.
    pause_s
        Between two rounds that found nothing.
    """

    def __init__(
        self,
        store: ReviewStore,
        feeds: Sequence[Feed] = (),
        sink: LabelSink | None = None,
        *,
        tells: Mapping[str, CommandLog] | None = None,
        learns: Collection[str] = (),
        inputs: Mapping[str, Wider] | None = None,
        undo_ms: int = UNDO_MS,
        pause_s: float = 0.5,
    ) -> None:
        self._store = store
        self._feeds = tuple(feeds)
        self._sink = sink
        self.tells = dict(tells or {})
        self.learns = sorted(self.tells.keys() & set(learns))
        self._pause_s = pause_s
        self._undo_ms = undo_ms
        self._inputs = dict(inputs or {})
        self._tried: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review-background", daemon=True)
        self._next_expiry_s = self._next_upkeep_s = self._next_readings_s = 0.0
        self.problems: dict[str, str] = {}
        self.invalid: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        """Begin, in the background."""
        self._next_upkeep_s = time.monotonic() + _UPKEEP_EVERY_S
        self._thread.start()

    def stop(self, patience_s: float = 1.0) -> bool:
        """Finish the round, and let go of feeds and sink.

        Says whether that was possible in time: supervisors have little patience. A thread that
        waits for a broker that is away is left behind; every change is one transaction, and labels
        wait in the store.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._thread.is_alive():
                return False
        for feed in self._feeds:
            feed.close()
        if self._sink is not None:
            self._sink.close()
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.round():
                self._stop.wait(self._pause_s)
        self._send()  # what was decided while the last round ran

    def round(self) -> bool:
        """Do everything once; says whether anything came in."""
        busy = False
        for number, feed in enumerate(self._feeds):
            if self._stop.is_set():
                return busy
            busy |= self._try(f"feed {number}", partial(self._pump, feed))
        if not self._stop.is_set():
            busy |= self._send()
        now_s = time.monotonic()
        if now_s >= self._next_expiry_s:
            self._next_expiry_s = now_s + _EXPIRE_EVERY_S
            self._try("expiry", lambda: bool(expire_due(self._store)))
        if now_s >= self._next_upkeep_s:
            self._next_upkeep_s = now_s + _UPKEEP_EVERY_S
            self._try("upkeep", self._forget)
        if self._inputs and now_s >= self._next_readings_s:
            more = self._try("readings", self._load_readings)
            self._next_readings_s = now_s + (0.0 if more else _READINGS_EVERY_S)
        return busy

    def _load_readings(self) -> bool:
        return load_next(self._store, self._inputs, self._tried)

    def _send(self) -> bool:
        sink, store = self._sink, self._store
        busy = sink is not None and self._try("labels", lambda: bool(store.relay(sink)))
        for pipeline in self.learns:
            busy |= self._try(f"teaching {pipeline}", partial(self._collect, pipeline))
        for pipeline, log in self.tells.items():
            busy |= self._try(f"answers {pipeline}", partial(self._send_commands, pipeline, log))
        return busy

    def _collect(self, pipeline: str) -> bool:
        store = self._store
        wait_ms = store.settings.teach_after_ms
        return teaching.collect(store.database, pipeline, store.now_ms(), wait_ms=wait_ms)

    def _send_commands(self, pipeline: str, log: CommandLog) -> bool:
        return bool(send_commands(self._store, pipeline, log, wait_ms=self._undo_ms))

    def _pump(self, feed: Feed) -> bool:
        until_s = time.monotonic() + _PUMP_S
        counts = feed.pump(
            self._store, stop=lambda: self._stop.is_set() or time.monotonic() > until_s
        )
        if counts.invalid:
            name = feed.kind
            before, _ = self.invalid.get(name, (0, ""))
            self.invalid[name] = (before + counts.invalid, counts.first_invalid)
            _log.warning(
                "%d lines of the %s feed could not be read: %s",
                counts.invalid,
                name,
                counts.first_invalid,
            )
        return bool(counts.items or counts.verdicts or counts.incidents)

    def _forget(self) -> bool:
        with self._store.database.write() as connection:
            series.forget(connection)
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
        parts = [f"feed {number}" for number in range(len(self._feeds))]
        parts += [f"answers {pipeline}" for pipeline in self.tells]
        parts += [f"teaching {pipeline}" for pipeline in self.learns]
        parts += ["labels", "expiry", "upkeep"] + ["readings"] * bool(self._inputs)
        return {name: name in self.problems for name in parts}


@dataclass(slots=True)
class Feeding:
    """Where a store is fed from, where labels and answers go, and what is shown."""

    feeds: list[Feed] = field(default_factory=list)
    pipelines: list[str] = field(default_factory=list)
    sink: LabelSink | None = None
    tells: dict[str, CommandLog] = field(default_factory=dict)
    learns: list[str] = field(default_factory=list)
    shown: dict[str, Shown] = field(default_factory=dict)
    inputs: dict[str, Wider] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)
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
        Pipelines: their review and verdict files, or topics.
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
        _add_pipeline(found, config, follow=follow)
    if reviews or verdicts:
        found.feeds += [FileFeed(path, "verdicts") for path in verdicts]
        found.feeds += [FileFeed(path, "review") for path in reviews]
    found.title = next(iter(found.pipelines), "review")
    if follow:
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


def _add_pipeline(found: Feeding, config: Config, *, follow: bool) -> None:
    name = config.pipeline.name
    found.pipelines.append(name)
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
    found.feeds += [feed for feed in (review, verdicts, incidents) if feed is not None]
    with suppress(ConfigError):  # it hears no commands
        found.tells[name] = ControlLine(config)
    if config.learning.enabled:
        found.learns.append(name)
