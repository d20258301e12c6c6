"""The queue's own laws: once each, one reviewer at a time, nothing forgotten."""

from __future__ import annotations

import math
import multiprocessing
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.encode.label_records import decode_label
from rejex_stream.errors import ConfigError
from rejex_stream.review.queue import cases, database, labelling
from rejex_stream.review.queue.database import Database, Refusal, Viewer, filesystem_of
from rejex_stream.review.queue.label_store import LabelFile, pending, read_labels, resolution_of
from rejex_stream.review.queue.labelling import LabelRequest, Target
from rejex_stream.review.queue.listing import QueueFilter
from rejex_stream.review.queue.pipeline_logs import FileFeed
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import (
    ChannelEvidence,
    ContextPoint,
    Evidence,
    Label,
    Position,
    Reason,
    ReviewItem,
    Verdict,
)

ADA, BOB, EVE = Viewer("ada"), Viewer("bob"), Viewer("eve", "lead")
LOOKER = Viewer("lou", "viewer")
T = TypeVar("T")


def item(
    offset: int, *, sensor: str = "T07/vib", t_s: float | None = None, why: str = "rejected",
    confidence: float = 0.5,
) -> ReviewItem:  # fmt: skip
    t_ms = round((offset if t_s is None else t_s) * 1000)
    verdict = Verdict(
        position=Position("feed", 0, offset), stream_key=sensor, sensor=sensor, seq=offset,
        event_time_ms=t_ms, label=Label.REJECTED if why == "rejected" else Label.NORMAL,
        reason=Reason.AMBIGUOUS if why == "rejected" else None, score=1.0, rank=960,
        window_len=1000, n_anomalies=50, band_lower=882, band_upper=987, psi=0.96, stability=0.9,
        confidence=confidence, model_epoch=0,
    )  # fmt: skip
    context = tuple(
        ContextPoint(t_ms - 1000 * k, (float(offset - k),), 0.5, Label.NORMAL) for k in (3, 2, 1)
    )
    return ReviewItem(
        verdict=verdict, channels=("vib",), values=(float(offset),), context=context, why=why
    )


def episodes(store: ReviewStore, viewer: Viewer = ADA, tab: str = "ready") -> list[Target]:
    found = read(store, QueueFilter(tab).ids, viewer, store.now_ms())
    return [Target(*row) for row in found]


def read(store: ReviewStore, what: Callable[..., T], *arguments: object, **more: object) -> T:
    with store.database.read() as connection:
        return what(connection, *arguments, **more)


def rows(store: ReviewStore, query: str, *values: object) -> list[tuple]:
    with store.database.read() as connection:
        return [tuple(row) for row in connection.execute(query, values)]


def label(store, viewer, targets, verdict="normal", request="r1", **extra):
    decision = LabelRequest(request_id=request, verdict=verdict, targets=tuple(targets), **extra)
    return labelling.label_cases(store, decision, viewer)


def unsent(store: ReviewStore) -> int:
    return read(store, pending)


def audited(store: ReviewStore) -> list[tuple[str, str, str]]:
    with store.database.read() as connection:
        assert database.broken_link(connection) is None
        rows = list(database.audit_rows(connection, limit=10_000))
    return [(row.actor, row.action, row.subject) for row in reversed(rows)]


def test_events_of_one_sensor_that_are_close_are_one_case(new_store):
    store = new_store(gap_events=5)
    store.add([item(i) for i in (0, 1, 2, 8)])
    store.add([item(500), item(504, t_s=9_000), item(600, t_s=9_500)])
    store.add([item(700, sensor="T08/vib", t_s=9_501)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 1, 1, 2, 3]


def seen(offset, scores, labels):
    """An item whose context has these scores and labels, one event a second."""
    context = tuple(
        ContextPoint(1000 * (offset - len(scores) + k), (0.0,), score, label)
        for k, (score, label) in enumerate(zip(scores, labels, strict=True))
    )
    return msgspec.structs.replace(item(offset), context=context)


def test_what_remembers_itself_is_one_case_and_noise_is_not(new_store):
    store = new_store()
    slow = [math.sin(t / 12) for t in range(32)]
    noise = [(-1.0) ** t for t in range(32)]
    normal = [Label.NORMAL] * 32
    store.add([seen(100, slow, normal), seen(115, slow, normal)])
    assert [t.n_events for t in episodes(store)] == [2]
    other = new_store("noise.db")
    other.add([seen(100, noise, normal), seen(115, noise, normal)])
    assert [t.n_events for t in episodes(other)] == [1, 1]


def test_anomalies_between_two_rejected_events_join_them(new_store):
    noise, calm = [(-1.0) ** t for t in range(30)], [Label.NORMAL] * 30
    store = new_store()
    store.add([seen(100, noise, calm)])
    clear = [Label.ANOMALY if k in range(4, 26) else Label.NORMAL for k in range(30)]
    store.add([seen(130, noise, clear)])
    assert [t.n_events for t in episodes(store)] == [2]
    broken = [Label.ANOMALY if k in range(4, 16) else Label.NORMAL for k in range(30)]
    store.add([seen(160, noise, broken)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 2]


@pytest.mark.thorough
def test_a_store_made_anew_has_the_same_cases_whatever_else_it_knows(new_store, farm):
    lines = [encode_review(one) for one in farm.items]
    store, again = new_store(), new_store("again.db")
    store.ingest("verdicts", [encode_verdict(one) for one in farm.verdicts])
    for start in range(0, len(lines), 7):
        store.ingest("review", lines[start : start + 7])
    again.ingest("review", lines)
    query = "SELECT episode_id, n_events, worth, start_ms, end_ms FROM episode ORDER BY 1"
    assert rows(store, query) == rows(again, query)
    assert len(rows(store, query)) < len(lines)


def test_a_case_that_is_full_is_continued_by_another(new_store, monkeypatch):
    monkeypatch.setattr(cases, "MOST_EVENTS", 10)
    store = new_store()
    store.add([item(i) for i in range(25)])
    assert sorted(t.n_events for t in episodes(store)) == [5, 10, 10]
    monkeypatch.undo()
    monkeypatch.setattr(cases, "LONGEST_MS", 9_000)
    store = new_store("long.db")
    store.add([item(i) for i in range(25)])
    assert sorted(t.n_events for t in episodes(store)) == [5, 10, 10]


def test_audits_stand_alone(new_store):
    store = new_store()
    store.add([item(0), item(1, why="audit"), item(2, why="audit"), item(3)])
    assert sorted(t.n_events for t in episodes(store)) == [1, 1, 2]


@pytest.mark.thorough
def test_redelivered_records_change_neither_rows_nor_order(new_store, farm, tmp_path):
    verdicts, review = farm.write(tmp_path)
    store = new_store()
    first = FileFeed(review, "review").pump(store)
    FileFeed(verdicts, "verdicts").pump(store)
    before = episodes(store)
    again = store.ingest("review", review.read_bytes().splitlines())
    again_verdicts = store.ingest("verdicts", verdicts.read_bytes().splitlines())
    assert (again.items, again.duplicates) == (0, first.items)
    assert (again_verdicts.verdicts, again_verdicts.duplicates) == (0, len(farm.verdicts))
    assert episodes(store) == before
    assert FileFeed(review, "review").pump(store).duplicates == 0, "the place in the file is kept"


def test_a_file_that_grows_is_followed_and_an_unfinished_line_waits(new_store, tmp_path):
    store, path = new_store(), tmp_path / "review.jsonl"
    feed = FileFeed(path, "review")
    assert feed.pump(store).items == 0
    line = encode_review(item(0)) + b"\n"
    path.write_bytes(line + encode_review(item(1))[:50])
    assert feed.pump(store).items == 1
    path.write_bytes(line + encode_review(item(1)) + b"\n" + b"{broken\n\n")
    counts = feed.pump(store)
    assert (counts.items, counts.invalid) == (1, 1)
    assert "{broken" in counts.first_invalid


def test_a_verdict_for_an_episode_is_one_for_each_of_its_events(new_store):
    store = new_store()
    store.add([item(i) for i in range(4)])
    done = label(store, ADA, episodes(store), "anomaly", tags=("process",), note="oil change")
    assert done.message == "1 case (4 events) marked anomaly"
    assert episodes(store) == []
    record = decode_label(rows(store, "SELECT record FROM label")[0][0])
    assert read(store, resolution_of, done.episodes[0]).verdict == "anomaly"
    assert record.events == tuple(Position("feed", 0, i) for i in range(4))
    assert (record.note, record.tags) == ("oil change", ("process",))
    assert (record.from_ms, record.to_ms) == (0, 3000)


def test_the_same_request_twice_writes_once(new_store):
    store = new_store()
    store.add([item(0)])
    targets = episodes(store)
    first, second = label(store, ADA, targets), label(store, ADA, targets)
    assert first == second
    assert len(audited(store)) == 1
    with pytest.raises(Refusal, match="somebody else"):
        label(store, BOB, targets)


def test_undo_goes_back_three_levels_and_restores_the_order(new_store):
    store = new_store()
    store.add([item(1000 * i) for i in range(5)])
    before = episodes(store)
    for i in (0, 2, 4):
        label(store, ADA, [before[i]], request=f"r{i}")
    assert episodes(store) == [before[1], before[3]]
    for i in range(3):
        labelling.undo(store, f"u{i}", ADA)
    assert episodes(store) == before
    with pytest.raises(Refusal, match="nothing"):
        labelling.undo(store, "u9", ADA)
    with pytest.raises(Refusal, match="nothing"):
        labelling.undo(store, "u10", BOB)


def test_undo_of_a_changed_mind_brings_the_first_verdict_back(new_store):
    store = new_store()
    store.add([item(0)])
    label(store, ADA, episodes(store), "normal", request="a")
    label(store, ADA, episodes(store, tab="done"), "anomaly", request="b")
    episode = episodes(store, tab="done")[0].episode_id
    assert read(store, resolution_of, episode).verdict == "anomaly"
    labelling.undo(store, "u", ADA)
    assert read(store, resolution_of, episode).verdict == "normal"


def test_a_marked_range_labels_exactly_the_events_inside_it(new_store):
    store = new_store()
    store.add([item(i) for i in range(10)])
    done = label(store, ADA, episodes(store), "anomaly", span_ms=(3000, 6000))
    assert done.events == 4
    query = "SELECT offset FROM event WHERE episode_id = ? ORDER BY 1"
    assert rows(store, query, done.episodes[0]) == [(3,), (4,), (5,), (6,)]
    assert [t.n_events for t in episodes(store)] == [6]
    labelling.undo(store, "u", ADA)
    assert [t.n_events for t in episodes(store)] == [10]
    with pytest.raises(Refusal, match="No event"):
        label(store, ADA, episodes(store), span_ms=(3100, 3200), request="x")


def test_events_that_arrived_after_the_reviewer_looked_are_not_judged(new_store):
    store = new_store()
    store.add([item(i) for i in range(3)])
    seen = episodes(store)
    store.add([item(3), item(4)])
    assert label(store, ADA, seen).events == 3
    assert [t.n_events for t in episodes(store)] == [2]


def test_a_batch_with_one_refusal_writes_nothing(new_store):
    store = new_store()
    store.add([item(1000 * i) for i in range(3)])
    targets = episodes(store)
    labelling.claim(store, targets[1].episode_id, BOB)
    with pytest.raises(Refusal, match="bob is working on"):
        label(store, ADA, targets)
    assert [t.status for t in episodes(store, tab="all")] == ["open"] * 3
    assert audited(store) == [("bob", "claim", targets[1].episode_id)]


def test_what_somebody_decided_meanwhile_is_not_overwritten(new_store):
    store = new_store()
    store.add([item(0)])
    seen = episodes(store)
    label(store, ADA, seen)
    with pytest.raises(Refusal, match=r"ada decided E-.* as normal meanwhile") as refused:
        label(store, BOB, seen, "anomaly", request="r2")
    assert refused.value.code == "changed"


def test_a_claim_holds_is_renewed_lapses_and_is_released(new_store, clock):
    store = new_store()
    store.add([item(0)])
    (target,) = episodes(store)
    labelling.claim(store, target.episode_id, ADA)
    assert episodes(store, BOB) == []
    assert [t.episode_id for t in episodes(store, BOB, "claimed")] == [target.episode_id]
    with pytest.raises(Refusal, match="ada is working on"):
        labelling.claim(store, target.episode_id, BOB)
    clock.pass_ms(590_000)
    again = labelling.claim(store, target.episode_id, ADA)
    assert again.until_ms == clock.now_ms + labelling.LEASE_MS
    clock.pass_ms(600_001)
    labelling.claim(store, target.episode_id, BOB)
    with pytest.raises(Refusal, match="bob is working on"):
        label(store, ADA, [target])
    assert labelling.release(store, target.episode_id, BOB)
    assert not labelling.release(store, target.episode_id, BOB)
    label(store, ADA, [target])


def test_a_viewer_may_look_only(new_store):
    store = new_store()
    store.add([item(0)])
    with pytest.raises(Refusal, match="role reviewer"):
        label(store, LOOKER, episodes(store))


def test_a_filter_word_chooses_what_it_says(new_store, clock):
    store = new_store(settle_s=0)
    store.add([item(0, sensor="T01/vib"), item(1, sensor="T01/vib")])
    clock.pass_ms(60_000)
    store.add([item(2, sensor="T02/gear"), item(900, sensor="t01%", t_s=9, why="audit")])

    def chosen(words):
        with store.database.read() as connection:
            rows = QueueFilter("all", words).rows(connection, ADA, clock.now_ms)
            return sorted(row["sensor"] for row in rows)

    everything = ["T01/vib", "T02/gear", "t01%"]
    assert chosen("") == everything
    assert chosen("t01") == ["T01/vib", "t01%"]
    assert chosen("%") == chosen("why:audit") == ["t01%"]
    assert chosen("group:T02") == chosen("sensor:T02/gear") == ["T02/gear"]
    assert chosen("why:rejected gear") == chosen("-t01") == ["T02/gear"]
    assert chosen("-verdict:normal") == everything, "what has none is not normal"


@pytest.mark.parametrize("priority", ["T01", "T01/temp/oil", "*/oil"])
def test_an_episode_settles_before_it_is_ready_unless_it_has_priority(new_store, clock, priority):
    store = new_store(settle_s=30, priority_sensors=(priority,))
    now_s = clock.now_ms / 1000
    first = item(1, sensor="T01/temp", t_s=now_s)
    oil = Evidence((ChannelEvidence("oil", 3.0, 0.1, Label.NORMAL),), None, 1, 0.1, 0.05, 9)
    first = msgspec.structs.replace(
        first, verdict=msgspec.structs.replace(first.verdict, evidence=oil)
    )
    store.add([item(0, t_s=now_s), first, item(2, sensor="old")])
    with store.database.read() as connection:
        names = [r["sensor"] for r in QueueFilter().rows(connection, ADA, clock.now_ms)]
    assert names == ["T01/temp", "old"]
    clock.pass_ms(30_001)
    assert len(episodes(store)) == 3


def test_expiry_never_looks_like_a_person(new_store, clock):
    store = new_store(max_age_hours=1 / 3600, default_answer="model")
    store.add([item(0)])
    assert labelling.expire_due(store) == []
    clock.pass_ms(1001)
    (episode,) = labelling.expire_due(store)
    assert labelling.expire_due(store) == []
    found = read(store, resolution_of, episode)
    record = decode_label(rows(store, "SELECT record FROM label")[0][0])
    assert (found.state, found.verdict, found.reviewers) == ("expired", "anomaly", ())
    assert (record.source, record.reviewer) == ("expired", "system")
    label(store, ADA, episodes(store, tab="done"), "normal")
    assert read(store, resolution_of, episode).state == "labelled"
    labelling.undo(store, "u", ADA)
    assert [t.status for t in episodes(store, tab="done")] == ["expired"]


def test_two_reviewers_agree_or_a_lead_settles_it(new_store):
    store = new_store(double_review_ratio=1.0)
    store.add([item(0), item(1000)])
    first, second = episodes(store)
    label(store, ADA, [first, second], "normal", request="a")
    assert episodes(store, ADA) == [], "not one's own second opinion"
    waiting = episodes(store, BOB)
    assert [t.status for t in waiting] == ["needs_second"] * 2
    label(store, BOB, [waiting[0]], "normal", request="b")
    label(store, BOB, [waiting[1]], "anomaly", request="c")
    (disputed,) = episodes(store, EVE, "disputed")
    with pytest.raises(Refusal, match="ada and bob disagree"):
        label(store, Viewer("mia"), [disputed], "normal", request="m")
    label(store, EVE, [disputed], "anomaly", request="d")
    assert read(store, resolution_of, first.episode_id).state == "agreed"
    assert read(store, resolution_of, second.episode_id).state == "adjudicated"
    assert audited(store)[-1][:2] == ("eve", "adjudicate")


def test_rows_of_the_record_cannot_be_changed_even_by_hand(new_store):
    store = new_store()
    store.add([item(0)])
    label(store, ADA, episodes(store))
    raw = sqlite3.connect(store.database.path)
    for statement in (
        "UPDATE audit SET actor = 'x'", "DELETE FROM audit", "UPDATE label SET verdict = 'anomaly'",
        "DELETE FROM label_event",
    ):  # fmt: skip
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            raw.execute(statement)
    raw.execute("DROP TRIGGER audit_no_update")
    raw.execute("UPDATE audit SET actor = 'mallory'")
    raw.commit()
    raw.close()
    assert read(store, database.broken_link) == 1


def test_labels_leave_by_the_outbox_in_order_and_a_torn_line_is_mended(new_store, tmp_path):
    store, path = new_store(), tmp_path / "labels.jsonl"
    store.add([item(1000 * i) for i in range(3)])
    targets = episodes(store)
    label(store, ADA, targets[:2])
    sink = LabelFile(path)
    assert store.send_labels(sink) == 2
    sink.close()
    with path.open("ab") as file:
        file.write(b'{"label_id": "torn')
    labelling.undo(store, "u", ADA)
    sink = LabelFile(path)
    assert store.send_labels(sink) == 2
    assert store.send_labels(sink) == 0
    sink.close()
    records = list(read_labels(path))
    assert [record.kind for record in records] == ["label", "label", "retract", "retract"]
    assert {r.retracts for r in records[2:]} == {r.label_id for r in records[:2]}
    places = [(f"labels.jsonl@{i}",) for i in range(4)]
    assert rows(store, "SELECT place FROM outbox ORDER BY seq") == places


def test_a_crash_between_sending_and_noting_it_repeats_the_same_ids(new_store, tmp_path):
    store, path = new_store(), tmp_path / "labels.jsonl"
    store.add([item(0)])
    label(store, ADA, episodes(store))

    class Dies(LabelFile):
        def publish(self, rows):
            super().publish(rows)
            raise KeyboardInterrupt

    sink = Dies(path)
    with pytest.raises(KeyboardInterrupt):
        store.send_labels(sink)
    sink.close()
    sink = LabelFile(path)
    assert store.send_labels(sink) == 1
    sink.close()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert len(list(read_labels(path))) == 1


def test_network_file_systems_are_refused(monkeypatch, tmp_path):
    table = f"22 1 8:1 / / rw - ext4 /dev/a rw\n30 22 0:5 / {tmp_path} rw - nfs4 host:/x rw"
    assert filesystem_of(tmp_path / "review.db", table) == "nfs4"
    monkeypatch.setattr("rejex_stream.review.queue.database.filesystem_of", lambda _: "nfs4")
    with pytest.raises(ConfigError, match="network file system"):
        Database(tmp_path / "review.db")


def test_tables_are_strict_and_the_log_is_written_ahead(new_store):
    store = new_store()
    raw = sqlite3.connect(store.database.path)
    assert raw.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    tables = raw.execute(
        "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        "AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    raw.close()
    assert len(tables) > 15
    assert all(strict for _, strict in tables)


def test_a_file_that_is_no_store_is_refused(tmp_path):
    path = tmp_path / "review.db"
    path.write_text("hello, I am a diary. " * 100)
    with pytest.raises(ConfigError, match="cannot be used as a review store"):
        Database(path)


def test_a_backup_is_a_working_store(new_store, tmp_path):
    store = new_store()
    store.add([item(0)])
    store.database.back_up(tmp_path / "copy.db")
    copy = new_store("copy.db")
    assert episodes(copy) == episodes(store)


@pytest.mark.thorough
def test_counts_of_verdicts_are_exact_and_by_event_time(new_store, farm):
    store = new_store()
    store.ingest("verdicts", [encode_verdict(v) for v in farm.verdicts])
    labels = [v.label for v in farm.verdicts]
    counts = tuple(labels.count(one) for one in (Label.NORMAL, Label.ANOMALY, Label.REJECTED))
    assert rows(store, "SELECT sum(normal), sum(anomaly), sum(rejected) FROM hour") == [counts]


# ------------------------------------------------------------------------- several processes
def _claim_until_empty(path: Path, name: str, start, out) -> None:
    store = ReviewStore(path, Review())
    viewer = Viewer(name)
    mine = []
    while True:
        start.wait(60)  # all claim at once, every time: alone, a quick one would take everything
        try:
            lease = labelling.claim_next(store, QueueFilter(), viewer)
        except Refusal:
            break
        mine.append(lease.episode_id)
        if len(mine) % 2:
            decision = LabelRequest(
                request_id=f"{name}-{len(mine)}",
                verdict="normal",
                targets=(Target(lease.episode_id, 1, "open"),),
            )
            labelling.label_cases(store, decision, viewer)
    store.close()
    out.put((name, mine))


@pytest.mark.thorough
def test_processes_that_claim_at_once_never_get_the_same_episode(new_store):
    store = new_store()
    store.add([item(1000 * i, confidence=i / 300) for i in range(240)])
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(4), context.Queue()
    workers = [
        context.Process(target=_claim_until_empty, args=(store.database.path, f"w{i}", start, out))
        for i in range(4)
    ]
    for worker in workers:
        worker.start()
    claimed = dict(out.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    everything = [episode for mine in claimed.values() for episode in mine]
    assert len(everything) == len(set(everything)) == 240
    assert [len(mine) for mine in claimed.values()] == [60] * 4
    labelled = 4 * 30
    assert sum(action == "label" for _, action, _ in audited(store)) == labelled
    assert sum(action == "claim" for _, action, _ in audited(store)) == 240


def test_structs_of_the_label_contract_are_frozen():
    record = decode_label(
        msgspec.json.encode(
            {
                "label_id": "1", "episode_id": "E", "root_id": "E", "stream_key": "a",
                "sensor": "a", "events": [["t", 0, 1]], "verdict": "normal", "reviewer": "ada",
                "created_ms": 0, "from_ms": 0, "to_ms": 0, "batch_id": "b", "added_later": True,
            }
        )
    )  # fmt: skip
    assert record.events == (Position("t", 0, 1),)
    with pytest.raises(AttributeError):
        record.verdict = "anomaly"
