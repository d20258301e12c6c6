"""What happens without anybody pressing a key: feeds in, labels out, time passing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rejex_stream.config import Config
from rejex_stream.config.assembly import file_places
from rejex_stream.config.assembly.control_line import ControlLine
from rejex_stream.config.reviewing import Review
from rejex_stream.encode.label_records import LabelRecord
from rejex_stream.errors import ConfigError, RejexError
from rejex_stream.incidents.calendar import Plan
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.incidents.incident_store import UNDO_MS, send_commands
from rejex_stream.review.incidents.readings import load_next
from rejex_stream.review.incidents.silences import Silences
from rejex_stream.review.queue import series
from rejex_stream.review.queue.label_store import LabelFile, LabelSink, read_labels
from rejex_stream.review.queue.labelling import expire_due
from rejex_stream.review.queue.pipeline_logs import (
    FEED_KINDS,
    Feed,
    FeedKind,
    FileFeed,
    KafkaLabels,
    TopicFeed,
    read_label_topic,
)
from rejex_stream.review.queue.review_store import ReviewStore

_log = logging.getLogger(__name__)
_UPKEEP_EVERY_S = 30.0
_READINGS_EVERY_S = 10.0
_SILENCES_EVERY_S = 5.0
_PUMP_S = 1.0  # how long one feed may keep the others, and the labels, waiting


_GO_ON = "wait in the store and leave by themselves once that works; people can go on."
_MEANWHILE = {
    "labels": f"Labels {_GO_ON}",
    "answers": f"Answers {_GO_ON}",
    "silences": "Shelved incidents go on paging until that works.",
}
"""What becomes of a part's work while it fails."""


@dataclass(slots=True)
class Feeding:
    """Where a store is fed from, where labels and answers go, and what is shown."""

    feeds: list[Feed] = field(default_factory=list)
    sink: LabelSink | None = None
    control_lines: dict[str, ControlLine] = field(default_factory=dict)
    shown: dict[str, DisplayNames] = field(default_factory=dict)
    inputs: dict[str, ContextLoader] = field(default_factory=dict)
    silences: dict[str, Silences] = field(default_factory=dict)
    calendars: dict[str, tuple[Plan, ...]] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)
    title: str = "review"


class Background:
    """A thread that keeps a store up to date until it is stopped."""

    def __init__(
        self,
        store: ReviewStore,
        fed: Feeding | None = None,
        *,
        undo_ms: int = UNDO_MS,
        pause_s: float = 0.5,
    ) -> None:
        self._store = store
        self._fed = fed or Feeding()
        self.control_lines = self._fed.control_lines
        self._pause_s = pause_s
        self._undo_ms = undo_ms
        self._tried: set[str] = set()
        self._due_s = dict.fromkeys(("expiry", "upkeep", "silences", "readings"), 0.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review-background", daemon=True)
        self.problems: dict[str, str] = {}
        self.invalid: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        self._due_s["upkeep"] = time.monotonic() + _UPKEEP_EVERY_S
        self._thread.start()

    def stop(self, patience_s: float = 1.0) -> bool:
        """Finish the round, and let go of feeds and sink."""
        # Says whether that was possible in time: supervisors have little patience. A thread that
        # waits for a broker that is away is left behind; every change is one transaction, and
        # labels wait in the store.
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._thread.is_alive():
                return False
        for feed in self._fed.feeds:
            feed.close()
        if self._fed.sink is not None:
            self._fed.sink.close()
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.round():
                self._stop.wait(self._pause_s)
        self._send()  # what was decided while the last round ran

    def round(self) -> bool:
        """Do everything once; returns whether anything came in."""
        busy = False
        for number, feed in enumerate(self._fed.feeds):
            if self._stop.is_set():
                return busy
            busy |= self._try(f"feed {number}", partial(self._pump, feed))
        if not self._stop.is_set():
            busy |= self._send()
        if self._is_due("expiry", _UPKEEP_EVERY_S):
            self._try("expiry", lambda: expire_due(self._store))
        if self._is_due("upkeep", _UPKEEP_EVERY_S):
            self._try("upkeep", self._forget)
        if self._is_due("silences", _SILENCES_EVERY_S):
            for pipeline, silences in self._fed.silences.items():
                self._try(f"silences {pipeline}", partial(silences.bring_in_line, self._store))
        if self._fed.inputs and self._is_due("readings", _READINGS_EVERY_S):
            look = partial(load_next, self._store, self._fed.inputs, self._tried)
            if self._try("readings", look):
                self._due_s["readings"] = 0.0
        return busy

    def _is_due(self, name: str, every_s: float) -> bool:
        now_s = time.monotonic()
        due = now_s >= self._due_s[name]
        if due:
            self._due_s[name] = now_s + every_s
        return due

    def _send(self) -> bool:
        sink, store = self._fed.sink, self._store
        busy = sink is not None and self._try("labels", lambda: store.send_labels(sink))
        for pipeline, log in self.control_lines.items():
            send = partial(send_commands, store, pipeline, log, wait_ms=self._undo_ms)
            busy |= self._try(f"answers {pipeline}", send)
        return busy

    def _pump(self, feed: Feed) -> bool:
        until_s = time.monotonic() + _PUMP_S
        counts = feed.pump(
            self._store, stop=lambda: self._stop.is_set() or time.monotonic() > until_s
        )
        if counts.invalid:
            before, _ = self.invalid.get(feed.kind, (0, ""))
            self.invalid[feed.kind] = (before + counts.invalid, counts.first_invalid)
            _log.warning(
                "%d lines of the %s feed could not be read: %s",
                counts.invalid,
                feed.kind,
                counts.first_invalid,
            )
        return bool(counts.items or counts.verdicts or counts.incidents)

    def _forget(self) -> None:
        with self._store.database.write() as connection:
            series.forget(connection)

    def _try(self, name: str, work: Callable[[], object]) -> bool:
        """Run one part; a failure is shown on every page until the part works again."""
        try:
            has_worked = bool(work())
        except RejexError as error:
            problem = f"{error} {_MEANWHILE.get(name.partition(' ')[0], '')}".rstrip()
            if self.problems.get(name) != problem:
                _log.error("%s", error)
            self.problems[name] = problem
            return False
        except Exception as error:
            # The queue must stay workable: the failure is shown, and tried again.
            problem = f"{name}: {type(error).__name__}: {error}"
            if self.problems.get(name) != problem:
                _log.exception("the background of the review store failed at: %s", name)
            self.problems[name] = problem
            return False
        if self.problems.pop(name, None) is not None:
            _log.warning("the background of the review store works again at: %s", name)
        return has_worked

    def failing(self) -> dict[str, bool]:
        parts = [f"feed {number}" for number in range(len(self._fed.feeds))]
        parts += [f"answers {pipeline}" for pipeline in self.control_lines]
        parts += [f"silences {pipeline}" for pipeline in self._fed.silences]
        parts += ["labels", "expiry", "upkeep"] + ["readings"] * bool(self._fed.inputs)
        return {name: name in self.problems for name in parts}


def feeding(
    store: Path | None,
    *,
    configs: Sequence[Config] = (),
    reviews: Sequence[Path] = (),
    verdicts: Sequence[Path] = (),
    labels: Path | None = None,
) -> Feeding:
    """Return the feeds of pipelines named by their configs, and of plain files."""
    # They go on, and labels leave, for a console with a `store`; else what is there is taken once.
    fed = Feeding()
    for config in configs:
        _add_pipeline(fed, config, follow=store is not None)
    fed.feeds += [FileFeed(path, "verdicts") for path in verdicts]
    fed.feeds += [FileFeed(path, "review") for path in reviews]
    fed.title = next(iter(fed.shown), "review") if len(fed.shown) < 2 else "review"
    if store is not None:
        topics = _labels_topic(configs, labels)
        fed.sink = LabelFile(labels_file(store, labels)) if topics is None else KafkaLabels(topics)
    return fed


def _labels_topic(configs: Sequence[Config], labels: Path | None) -> Config | None:
    """Return a config that names the topic of the queue's labels, unless a file takes them."""
    if labels is not None:
        return None
    return next((config for config in configs if config.input.kind == "kafka"), None)


def labels_file(store: Path, labels: Path | None) -> Path:
    return labels or store.with_name("labels.jsonl")


def published_labels(configs: Sequence[Config], section: Review) -> Iterator[LabelRecord]:
    """Yield the labels that a console with these configs has published."""
    labels = None if section.labels is None else Path(section.labels)
    topics = _labels_topic(configs, labels)
    if topics is not None:
        yield from read_label_topic(topics)
        return
    path = labels_file(Path(section.store), labels)
    if not path.exists():
        raise ConfigError(f"The labels file {str(path)!r} does not exist: give --labels FILE.")
    yield from read_labels(path)


def review_feeds(configs: Sequence[Config], reviews: Sequence[Path]) -> list[Feed]:
    """Return feeds of all review items that there are, each to be pumped once."""
    fed = feeding(None, configs=configs, reviews=reviews)
    feeds = [feed for feed in fed.feeds if feed.kind == "review"]
    for feed in feeds:
        if isinstance(feed, FileFeed) and not feed.path.exists():
            raise ConfigError(f"The review file {str(feed.path)!r} does not exist: check the path.")
    return feeds


def _add_pipeline(fed: Feeding, config: Config, *, follow: bool) -> None:
    name, lean = config.pipeline.name, config.output.form == "lean"
    fed.shown[name] = DisplayNames(name, None, config.channels, config.sensors)
    fed.calendars[name] = tuple(entry.plan() for entry in config.calendar)
    with suppress(ConfigError):  # what passes by cannot be read again
        fed.inputs[name] = ContextLoader(config)
    if config.alerts.alertmanager_url is not None:
        fed.silences[name] = Silences(config.alerts.alertmanager_url, name)
    if lean:
        fed.lacks.append(
            f"{name} writes lean verdicts: nothing is known here of its rates, scores and accepted "
            'events, only items and incidents; output.form = "full" brings the rest.'
        )
    # Review items first: a drawn event then has its readings.
    kinds: tuple[FeedKind, ...] = ("review", "incidents", "control") if lean else FEED_KINDS
    if config.input.kind == "kafka":
        fed.feeds += [TopicFeed.of(config, kind, follow=follow) for kind in kinds]
    else:
        places = file_places(config)
        if "-" in (places.review, places.verdicts):
            raise ConfigError(
                f"Pipeline {name!r} writes to standard output, which the review queue cannot read: "
                "give output.review and output.verdicts as files."
            )
        paths = {kind: getattr(places, kind) for kind in kinds}
        fed.feeds += [
            FileFeed(Path(at), kind, name) for kind, at in paths.items() if at not in ("-", None)
        ]
    with suppress(ConfigError):  # it follows no commands
        fed.control_lines[name] = ControlLine(config)
