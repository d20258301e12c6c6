"""Laws that hold whatever people do: every count is its list, one audit row a change, replay."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from rejex_stream.config.reviewing import Review
from rejex_stream.encode.label_records import LabelRecord, active_labels, decode_label, resolve
from rejex_stream.review.queue import database, labelling
from rejex_stream.review.queue.database import Refusal, Viewer
from rejex_stream.review.queue.labelling import LabelRequest, Target
from rejex_stream.review.queue.listing import TABS, QueueFilter
from rejex_stream.review.queue.review_store import ReviewStore, rebuild, state_hash
from tests.review.conftest import Clock
from tests.review.test_review_store import item, read

PEOPLE = (Viewer("ada"), Viewer("bob"), Viewer("eve", "lead"))
SETTINGS = Review(double_review_ratio=0.5, max_age_hours=1)
WORDS = ("", "group:T01", "-group:T01", 'sensor:"T01/vib"', "why:audit", "by:ada")


def _random_items(rng: random.Random):
    items, t = [], 0.0
    for offset in range(rng.randint(4, 30)):
        t += rng.choice((1, 1, 1, 5, 400))
        sensor = rng.choice(("T01/vib", "T02/vib"))
        why = "audit" if rng.random() < 0.1 else "rejected"
        items.append(item(offset, sensor=sensor, t_s=t, why=why, confidence=rng.random()))
    return items


class Office:
    """People who do random things to a store, and what each did."""

    def __init__(self, store: ReviewStore, clock: Clock, rng: random.Random) -> None:
        self.store, self.clock, self.rng = store, clock, rng
        self.requests = 0
        self.changes = 0

    def targets(self, most: int) -> list[Target]:
        ids = read(self.store, QueueFilter("all").ids, PEOPLE[0], self.clock.now_ms)
        self.rng.shuffle(ids)
        return [Target(*row) for row in ids[:most]]

    def act(self) -> None:
        rng, store, viewer = self.rng, self.store, self.rng.choice(PEOPLE)
        self.requests += 1
        request = f"r{self.requests}"
        chosen = self.targets(rng.randint(1, 3))
        what = rng.choice(("label", "label", "label", "part", "undo", "claim", "expire"))
        try:
            if what == "label":
                done = labelling.label_cases(store, self._decision(request, chosen), viewer)
                self.changes += len(done.episodes)
                if rng.random() < 0.3:  # a retried request changes nothing
                    assert (
                        labelling.label_cases(store, self._decision(request, chosen), viewer)
                        == done
                    )
            elif what == "part" and chosen:
                with store.database.read() as connection:
                    row = connection.execute(
                        "SELECT start_ms, end_ms FROM episode WHERE episode_id = ?",
                        (chosen[0].episode_id,),
                    ).fetchone()
                span = (row[0], rng.randint(row[0], row[1]))
                labelling.label_cases(store, self._decision(request, chosen[:1], span), viewer)
                self.changes += 1
            elif what == "undo":
                self.changes += len(labelling.undo(store, request, viewer).episodes)
            elif what == "claim" and chosen:
                before = self._owner(chosen[0].episode_id)
                labelling.claim(store, chosen[0].episode_id, viewer)
                self.changes += before != viewer.reviewer
                if rng.random() < 0.5:
                    self.changes += labelling.release(store, chosen[0].episode_id, viewer)
            elif what == "expire":
                self.clock.pass_ms(rng.choice((1, 30_000, 3_000_000)))
                self.changes += len(labelling.expire_due(store))
        except Refusal:
            pass

    def _owner(self, episode: str) -> str | None:
        with self.store.database.read() as connection:
            row = connection.execute(
                "SELECT lease_owner, lease_until_ms FROM episode WHERE episode_id = ?", (episode,)
            ).fetchone()
        return row[0] if row[0] and row[1] > self.clock.now_ms else None

    def _decision(self, request, chosen, span=None) -> LabelRequest:
        verdict = random.Random(request).choice(("anomaly", "normal", "unsure"))
        return LabelRequest(
            request_id=request, verdict=verdict, targets=tuple(chosen), span_ms=span, note="=1+1"
        )


def _check(store: ReviewStore, clock: Clock, changes: int) -> None:
    with store.database.read() as connection:
        assert database.broken_link(connection) is None
        assert connection.execute("SELECT count(*) FROM audit").fetchone()[0] == changes
        for row in connection.execute("SELECT * FROM episode").fetchall():
            events = connection.execute(
                "SELECT event_id, event_time_ms FROM event WHERE episode_id = ?",
                (row["episode_id"],),
            ).fetchall()
            assert len(events) == row["n_events"]
            assert (row["status"] == "empty") == (not events)
            if not events:
                continue
            times = [event["event_time_ms"] for event in events]
            assert (row["start_ms"], row["end_ms"]) == (min(times), max(times))
            # All events of an episode have the same labels, and the status is theirs.
            standing = {
                tuple(label.label_id for label in _standing(connection, event["event_id"]))
                for event in events
            }
            assert len(standing) == 1
            found = resolve(_standing(connection, events[0]["event_id"]))
            expected = {
                "open": {"open"}, "expired": {"expired"}, "disputed": {"disputed"},
                "agreed": {"done"}, "adjudicated": {"done"}, "labelled": {"done", "needs_second"},
            }[found.state]  # fmt: skip
            assert row["status"] in expected
        # Every number on a tab is the length of the list behind it.
        for viewer in PEOPLE:
            for tab in TABS:
                for words in WORDS:
                    view = QueueFilter(tab, words)
                    count = view.count(connection, viewer, clock.now_ms)
                    asked = view.questions(connection, viewer, clock.now_ms)
                    rows = view.rows(connection, viewer, clock.now_ms)
                    assert count == len(asked)
                    assert [row["episode_id"] for row in rows] == [one[0][0] for one in asked]
            work = [QueueFilter(tab).ids(connection, viewer, clock.now_ms) for tab in TABS[:4]]
            ready, _mine, claimed, _waiting = ({row[0] for row in ids} for ids in work)
            assert not ready & claimed


def _standing(connection, event_id: int) -> list[LabelRecord]:
    rows = connection.execute(
        "SELECT record FROM label JOIN label_event USING (label_seq) WHERE event_id = ? "
        "ORDER BY label_seq",
        (event_id,),
    )
    return active_labels(decode_label(row[0]) for row in rows)


@pytest.mark.thorough
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6))
def test_random_office_days_keep_every_law_and_can_be_replayed(seed):
    rng, clock = random.Random(seed), Clock()
    with tempfile.TemporaryDirectory() as folder:
        store = ReviewStore(Path(folder) / "review.db", SETTINGS, clock_ms=clock)
        items = _random_items(rng)
        first, later = items[: len(items) // 2], items[len(items) // 2 :]
        store.add(first)
        office = Office(store, clock, rng)
        for step in range(rng.randint(1, 40)):
            office.act()
            if step == 10:
                store.add(later)
        store.add(items)
        _check(store, clock, office.changes)
        with store.database.read() as connection:
            published = [
                decode_label(row[0])
                for row in connection.execute("SELECT value FROM outbox ORDER BY seq")
            ]
        # A second delivery of everything, as after a crash, changes nothing.
        found = rebuild(
            Path(folder) / "again.db", SETTINGS, feed=lambda fresh: (fresh.add(items), None)[1],
            labels=[*published, *published[-3:]],
        )  # fmt: skip
        assert found.state_hash == state_hash(store.database)
        assert found.labels == len(published)
        store.close()


def _label(label_id: str, reviewer: str, verdict, **extra) -> LabelRecord:
    return LabelRecord(
        label_id=label_id, episode_id="E", root_id="E", stream_key="a", sensor="a", events=(),
        verdict=verdict, reviewer=reviewer, created_ms=0, from_ms=0, to_ms=0, batch_id="b", **extra,
    )  # fmt: skip


def test_labels_add_up_as_people_expect():
    ada, bob = _label("1", "ada", "normal"), _label("2", "bob", "anomaly")
    unsure = _label("3", "cy", "unsure")
    lead = _label("4", "eve", "anomaly", role="adjudication")
    gone = _label("5", "system", None, source="expired")
    assert resolve([]) == ("open", None, ())
    assert resolve([gone])[:2] == ("expired", None)
    assert resolve([gone, ada])[:2] == ("labelled", "normal")
    assert resolve([ada, bob])[:2] == ("disputed", None)
    assert resolve([ada, unsure])[:2] == ("agreed", "normal")
    assert resolve([unsure])[:2] == ("labelled", "unsure")
    assert resolve([ada, bob, lead])[:2] == ("adjudicated", "anomaly")


def test_a_record_seen_twice_counts_once_and_undo_is_exact():
    first = _label("1", "ada", "normal")
    second = _label("2", "ada", "anomaly", supersedes="1")
    back = _label("3", "ada", None, kind="retract", retracts="2")
    assert active_labels([first, second]) == [second]
    assert active_labels([first, second, second, back, back]) == [first]
