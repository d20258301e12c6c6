"""The law of one failure: whatever the store's disk does, no item is lost and none is doubled."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.errors import ConnectorError
from rejex_stream.review.console.api import exposition
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Database, StoreError
from rejex_stream.review.queue.ingest import IngestCounts, Span
from rejex_stream.review.queue.label_store import LabelFile, read_labels
from rejex_stream.review.queue.pipeline_logs import Feed, FeedKind, FileFeed, TopicFeed
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import Partition, Position, Record
from tests.review.console_server import running
from tests.review.test_review_store import ADA, audited, episodes, item, label, unsent
from tests.review.test_review_web import label as click
from tests.review.test_review_web import targets
from tests.waiting import until

N_ITEMS = 120
TOPICS = (Partition("farm.review", 0), Partition("farm.review", 1))


# ------------------------------------------------------------------------------ what comes in
def offsets(rng: random.Random) -> list[int]:
    found, at = [], rng.randrange(5)
    for _ in range(N_ITEMS):
        found.append(at)
        at += rng.choice((1, 1, 1, 1, 2, 7))
    return found


def scripts(rng: random.Random) -> dict[Partition, list[Record]]:
    return {
        topic: [
            Record(Position(*topic, offset), None, encode_review(item(2 * i + topic.partition)),
                   (), offset)
            for i, offset in enumerate(offsets(rng))
        ]
        for topic in TOPICS
    }  # fmt: skip


class ListTopic:
    """A topic in memory, as a feed reads it; the broker is away once, before some record."""

    def __init__(
        self, script: dict[Partition, list[Record]], earliest: int | None = None, away_at: int = -1
    ) -> None:
        self.script, self._earliest = script, earliest
        self._away = dict.fromkeys(script, away_at)

    def partitions(self, topic: str) -> list[Partition]:
        return list(self.script)

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        at = {p: [record.position.offset for record in self.script[p]] for p in partitions}
        first = self._earliest
        return {p: (o[0] if first is None else first, o[-1] + 1) for p, o in at.items()}

    def read(self, partition: Partition, start: int, *, settle_s: float) -> Iterator[Record]:
        for i, record in enumerate(self.script[partition]):
            if i == self._away[partition]:
                self._away[partition] = -1
                raise ConnectorError("the broker is away for a moment", retriable=True)
            if record.position.offset >= start:
                yield record

    def close(self) -> None:
        """Close nothing."""


def topic_feed(
    topic: ListTopic, kind: FeedKind = "review", log: Sequence[bytes] = (b"",)
) -> TopicFeed:
    return TopicFeed(TOPICS[0].topic, kind, topic, lambda _: log[0])


def in_a_topic(lines: list[bytes], first: int = 0) -> dict[Partition, list[Record]]:
    places = (Position(*TOPICS[0], first + i) for i in range(len(lines)))
    return {TOPICS[0]: [Record(at, None, line) for at, line in zip(places, lines, strict=True)]}


def source_feed(rng: random.Random) -> tuple[Feed, int]:
    """A feed of a topic whose earliest records were deleted, and how many items it has."""
    return topic_feed(ListTopic(scripts(rng), away_at=30)), 2 * N_ITEMS


def file_feed(folder: Path) -> tuple[Feed, int]:
    path = folder / "review.jsonl"
    path.write_bytes(b"".join(encode_review(item(i)) + b"\n" for i in range(2 * N_ITEMS)))
    return FileFeed(path, "review"), 2 * N_ITEMS


# ------------------------------------------------------------------------------ what is stored
def stored(store: ReviewStore) -> list[int]:
    with store.database.read() as connection:
        rows = connection.execute("SELECT seq FROM event ORDER BY seq")
        return [row[0] for row in rows]


def positions(store: ReviewStore) -> dict[tuple[str, int], int]:
    with store.database.read() as connection:
        rows = connection.execute("SELECT topic, partition, next_offset FROM consumed")
        return {(row[0], row[1]): row[2] for row in rows}


@contextmanager
def impatient(path: Path) -> Iterator[ReviewStore]:
    store = ReviewStore(path, Review(settle_s=0))
    store.database.close()
    store.database = Database(path, busy_timeout_s=0.01)
    try:
        yield store
    finally:
        store.database.close()


# ----------------------------------------------------------------------------------- the faults
@contextmanager
def full(store: ReviewStore, rng: random.Random) -> Iterator[None]:
    """No page more than a few."""
    with store.database.write() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + rng.randrange(3)}")
    try:
        yield
    finally:
        with store.database.write() as connection:
            connection.execute("PRAGMA max_page_count = 1073741823")


@contextmanager
def short_writes(store: ReviewStore, rng: random.Random) -> Iterator[None]:
    """The kernel takes no byte beyond one in the middle of the log: a short write, then EFBIG."""
    log = store.database.path.with_name(store.database.path.name + "-wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = log.stat().st_size if log.exists() else 0
    limit = rng.randrange(size + 40_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def locked(store: ReviewStore, rng: random.Random) -> Iterator[None]:
    other = sqlite3.connect(store.database.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


@contextmanager
def interrupted(store: ReviewStore, rng: random.Random) -> Iterator[None]:
    with store.database.read() as connection:
        left = [rng.randrange(1, 60)]

        def step() -> int:
            left[0] -= 1
            return int(left[0] < 0)

        connection.set_progress_handler(step, 40)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


FAULTS = (full, short_writes, locked, interrupted)


# ------------------------------------------------------------------------------------ the law
def once(rounds: int = 1) -> Callable[[], bool]:
    """Let a pump go so many rounds."""
    left = iter(range(rounds))
    return lambda: next(left, None) is None


def play(store: ReviewStore, feed: Feed, rng: random.Random) -> set[str]:
    """Pump with a fault in every other round; returns which faults bit."""
    bitten: set[str] = set()
    for turn in range(60):
        with ExitStack() as stack:
            fault = FAULTS[turn // 2 % len(FAULTS)] if turn % 2 else None
            if fault is not None:
                stack.enter_context(fault(store, rng))
            try:
                feed.pump(store, stop=once(rng.randrange(2, 5)))
            except (StoreError, sqlite3.OperationalError):
                assert fault is not None
                bitten.add(fault.__name__)
            except ConnectorError as error:
                if "for a moment" not in str(error):
                    raise
    return bitten


def finish(feed: Feed, store: ReviewStore) -> None:
    """Pump without faults until nothing more comes; the script's broker is away once or twice."""
    quiet = 0
    while quiet < 3:
        try:
            quiet = 0 if feed.pump(store).items else quiet + 1
        except ConnectorError as error:
            if "for a moment" not in str(error):
                raise
            quiet = 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["topic", "file"])
def test_faults_at_any_write_lose_nothing_and_double_nothing(tmp_path, monkeypatch, kind, seed):
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._MAX_RECORDS", 7)
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._CHUNK_BYTES", 4_000)
    rng = random.Random(seed)
    feed, n_items = source_feed(rng) if kind == "topic" else file_feed(tmp_path)
    with impatient(tmp_path / "review.db") as store:
        assert play(store, feed, rng) == {fault.__name__ for fault in FAULTS}
        assert stored(store), "and what came between was taken"
        finish(feed, store)
        assert stored(store) == list(range(n_items))
        assert store.database.integrity() == "ok"


@pytest.mark.thorough
def test_kills_at_any_statement_lose_nothing_and_double_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._MAX_RECORDS", 7)
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._CHUNK_BYTES", 8_000)
    rng = random.Random(5)
    for made in (lambda: source_feed(random.Random(6)), lambda: file_feed(tmp_path)):
        path = tmp_path / f"{rng.random()}.db"
        ReviewStore(path, Review(settle_s=0)).close()
        for _ in range(6):
            status = _in_a_child(path, made()[0], rng.randrange(50, 400))
            assert os.WTERMSIG(status) == signal.SIGKILL
        with impatient(path) as store:
            feed, n_items = made()
            assert 0 < len(stored(store)) < n_items
            finish(feed, store)
            assert stored(store) == list(range(n_items))


def _in_a_child(path: Path, feed: Feed, statements: int) -> int:
    """Pump in a process that is killed before its so manieth statement."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that the child has no use for
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        store, left = ReviewStore(path, Review(settle_s=0)), [statements]

        def dies(_: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        with store.database.read() as connection:
            connection.set_trace_callback(dies)
        finish(feed, store)
    finally:
        os._exit(1)


def test_verdicts_are_counted_once_whatever_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._MAX_RECORDS", 11)
    rng = random.Random(3)
    lines = [encode_verdict(item(i).verdict) for i in range(400)]
    topic = ListTopic(in_a_topic(lines))
    with impatient(tmp_path / "review.db") as store:
        feed = topic_feed(topic, "verdicts")
        assert play(store, feed, rng)
        feed.pump(store)
        feed.pump(store)
        with store.database.read() as connection:
            counted = "SELECT sum(rejected), sum(normal) FROM hour"
            assert tuple(connection.execute(counted).fetchone()) == (400, 0)


# ---------------------------------------------------------------------------- what may be skipped
LINES = [encode_review(item(i)) for i in range(3)]


def test_the_store_refuses_what_does_not_follow_what_it_holds(new_store):
    store = new_store()
    with pytest.raises(ConnectorError, match="up to position None"):
        store.ingest("review", LINES[:1], {TOPICS[0]: Span(0, 1)})
    assert store.begin(TOPICS[0], 10) == 10
    store.ingest("review", LINES[:1], {TOPICS[0]: Span(10, 25)})
    with pytest.raises(ConnectorError, match=r"up to position 25, and was given what follows 26"):
        store.ingest("review", LINES[1:], {TOPICS[0]: Span(26, 30)})
    assert stored(store) == [0], "not even the items"
    assert store.ingest("review", LINES[1:], {TOPICS[0]: Span(25, 40)}).items == 2
    # A second reader may be behind, and takes nobody back.
    assert store.ingest("review", LINES[:1], {TOPICS[0]: Span(10, 25)}).duplicates == 1
    assert store.begin(TOPICS[0], 10) == 40


def test_what_was_deleted_unread_is_told_and_kept_in_the_audit(new_store, caplog):
    store = new_store()
    here = Partition(f"source:{TOPICS[0].topic}", 0)
    store.begin(here, 0)
    script = [Record(Position(*TOPICS[0], 700), None, LINES[0], (), 700)]
    feed = topic_feed(ListTopic({TOPICS[0]: script}, earliest=650))
    assert feed.pump(store).items == 1
    assert store.begin(here, 0) == 701
    assert "records 0 to 649 were deleted before the console read them" in caplog.text
    assert ("system", "lost", "source:farm.review-0") in audited(store)


def test_a_topic_of_another_log_is_read_from_its_start(new_store, caplog, monkeypatch):
    """Where no id is known any more, nothing is said of the log."""
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._LOOK_EVERY_S", 0.0)
    log = [b"old"]

    def items(first: int) -> dict[Partition, list[Record]]:
        return in_a_topic([encode_review(item(first + i)) for i in range(6)])

    topic = ListTopic(items(0))
    feed, store = topic_feed(topic, log=log), new_store()
    finish(feed, store)
    assert stored(store) == list(range(6))
    for log[0], wanted in ((b"", []), (b"new", [*range(100, 106)]), (b"", []), (b"new", [])):
        before = stored(store)
        if log == [b"new"]:
            topic.script = items(100)
        finish(feed, store)
        assert stored(store) == before + wanted
    assert caplog.text.count("source:farm.review-0 is new: it is read from its start") == 1
    assert audited(store).count(("system", "restarted", "source:farm.review-0")) == 1


def test_a_file_that_is_shorter_than_before_is_read_from_its_start(new_store, tmp_path):
    store, path = new_store(), tmp_path / "review.jsonl"
    feed = FileFeed(path, "review")
    path.write_bytes(b"".join(line + b"\n" for line in LINES))
    assert feed.pump(store).items == 3
    path.write_bytes(encode_review(item(9)) + b"\n" + LINES[0] + b"\n")
    counts = feed.pump(store)
    assert (counts.items, counts.duplicates) == (1, 1)
    assert feed.pump(store) == IngestCounts()


# ------------------------------------------------------------------------------- what is said
def test_a_full_disk_is_told_once_and_all_is_read_when_there_is_room(
    small_disk, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("rejex_stream.review.queue.pipeline_logs._MAX_RECORDS", 20)
    review, n_items = source_feed(random.Random(0))
    with impatient(small_disk / "review.db") as store:
        background = Background(store, Feeding([review]))
        for _ in range(30):
            background.round()
        problem = background.problems["feed 0"]
        assert f"make room on the file system that holds {str(small_disk)!r}" in problem
        assert caplog.text.count("make room on") <= 2, "the feed, and the monitors' own upkeep"
        assert b'rejex_review_failing{part="feed 0"} 1.0' in exposition(store, background.failing())
        assert 0 < len(stored(store)) < n_items
        subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
        until(lambda: background.round() or len(stored(store)) == n_items)
        for _ in range(5):
            background.round()
        assert stored(store) == list(range(n_items))
        assert "works again at: feed 0" in caplog.text
        assert background.problems == {}
        assert b'rejex_review_failing{part="feed 0"} 0.0' in exposition(store, background.failing())


def test_a_locked_store_says_by_whom(tmp_path):
    holds = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()"
    )
    with impatient(tmp_path / "review.db") as store:
        with subprocess.Popen(
            [sys.executable, "-c", holds, str(store.database.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other:  # fmt: skip
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(StoreError, match=f"locked by process {other.pid} .*import sqlite3"):
                store.begin(TOPICS[0], 0)
            other.stdin.close()
        assert store.begin(TOPICS[0], 5) == 5
        with store.database.write(), pytest.raises(StoreError, match="another action of this con"):
            store.begin(TOPICS[1], 0)


def test_a_store_that_was_removed_takes_nothing_into_a_file_that_nobody_can_open(tmp_path):
    path, aside = tmp_path / "review.db", tmp_path / "aside.db"
    feed, n_items = file_feed(tmp_path)
    with impatient(path) as store:
        store.add([item(0)])
        path.rename(aside)
        with pytest.raises(StoreError, match="was removed or replaced while it was open"):
            feed.pump(store)
        assert not path.exists(), "nor is an empty one made in its place"
        aside.rename(path)
        finish(feed, store)
        assert stored(store) == list(range(n_items))


# ------------------------------------------------------------------------------------- labels
@contextmanager
def no_more_than(size: int) -> Iterator[None]:
    """Files end here: a write goes short, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def labelled(store: ReviewStore, n: int) -> None:
    store.add([item(1000 * i) for i in range(n)])
    label(store, ADA, episodes(store))


def test_a_label_counts_as_sent_when_it_is_whole_in_the_file(new_store, tmp_path):
    store, path = new_store(settle_s=0, double_review_ratio=0.0), tmp_path / "labels.jsonl"
    labelled(store, 5)
    sink = LabelFile(path)
    store.send_labels(sink)
    whole = path.stat().st_size
    labelling.undo(store, "u", ADA)
    with no_more_than(whole + 700), pytest.raises(ConnectorError, match="wait in the store"):
        store.send_labels(sink)
    assert path.stat().st_size == whole, "no half of a batch"
    assert unsent(store) == 5
    assert store.send_labels(sink) == 5
    sink.close()
    lines = path.read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == len(list(read_labels(path))) == 10
    with store.database.read() as connection:
        places = [row[0] for row in connection.execute("SELECT place FROM outbox ORDER BY seq")]
    assert places == [f"labels.jsonl@{i}" for i in range(10)]


def test_labels_follow_the_path_when_the_file_is_taken_away(new_store, tmp_path):
    store, path = new_store(settle_s=0), tmp_path / "labels.jsonl"
    sink = LabelFile(path)
    path.rename(tmp_path / "rotated.jsonl")
    labelled(store, 3)
    assert store.send_labels(sink) == 3
    sink.close()
    assert len(list(read_labels(path))) == 3


def test_a_store_that_cannot_note_what_was_sent_does_not_send_it_again_and_again(tmp_path):
    path = tmp_path / "labels.jsonl"
    with impatient(tmp_path / "review.db") as store:
        labelled(store, 4)
        sink = LabelFile(path)
        with locked(store, random.Random(0)):
            for _ in range(3):
                with pytest.raises(StoreError):
                    store.send_labels(sink)
        assert unsent(store) == 4, "it is sent, and yet nobody knows"
        assert store.send_labels(sink) == 4
        assert (store.send_labels(sink), unsent(store)) == (0, 0)
        sink.close()
        assert len(path.read_bytes().splitlines()) == 4


def test_a_verdict_that_cannot_be_stored_is_answered_with_what_to_do(tmp_path):
    with impatient(tmp_path / "review.db") as store:
        store.add([item(0)])
        with running(store) as console:
            chosen = targets(console)
            with locked(store, random.Random(0)):
                refused = click(console, chosen)
                assert refused.status == 503
                assert "is locked by" in refused.json["message"]
            assert click(console, chosen).status == 200


def test_another_event_at_a_known_position_is_said_and_is_no_duplicate(new_store):
    """Of an input that was new the first thousands were passed over without a word."""
    store = new_store()
    store.add([item(5)])
    made_anew = [item(5, t_s=9_000), item(5, sensor="b"), item(5), item(6)]
    counts = store.ingest("review", map(encode_review, made_anew))
    assert (counts.items, counts.duplicates, counts.invalid) == (1, 1, 2)
    assert counts.first_invalid.startswith("feed-0-5 was another event before, so its topic or")
    assert "review.store" in counts.first_invalid
