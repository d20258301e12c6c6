"""A join that takes longer than one poll is still a join."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import NoError
from kafka.structs import MemberState
from kafka_harness import Kafka, Workers, assert_exactly, edges, feed, member, owns
from rejex_connectors.kafka.clients import Consumer, Gained
from rejex_connectors.kafka.kafka_python_client import PythonConsumer
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.refusals import seat_taken
from rejex_connectors.kafka.sink import open_clients
from rejex_connectors.kafka.source import KafkaSource
from rejex_connectors.kafka.unassigned_partitions import SeatRepair, ownerless
from test_kafka_delivery import CLIENTS, CONFLUENT, finish

from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import Assigned, Revoked
from rejex_stream.types import Partition
from tests.waiting import pass_time, until

pytestmark = pytest.mark.kafka


class Member:
    def __init__(self, settings: KafkaSettings, poll_s: float = 0.02) -> None:
        self._consumer = open_clients(settings, settings.instance_id or "w")[0]()
        self._poll_s = poll_s
        dealt = settings.group_protocol == "classic"
        self._repair = SeatRepair(settings) if dealt and settings.instance_id else None
        self.owned: set[int] = set()

    def poll(self) -> None:
        self._consumer.poll(10, self._poll_s)
        for change in self._consumer.changes():
            partition = change.partition.partition
            (self.owned.add if isinstance(change, Gained) else self.owned.discard)(partition)

    def close(self) -> None:
        if self._repair is not None:
            self._repair.close()
        self._consumer.close()


def test_what_a_leader_gave_to_nobody_is_seen_as_without_an_owner(kafka: Kafka) -> None:
    """A member that the leader said nothing of has an assignment of no bytes at all."""

    class Silent(CooperativeStickyAssignor):
        name = "silent"

        @classmethod
        def assign(cls, cluster: object, members: object) -> dict[str, object]:
            return {}

    settings = kafka.settings(partitions=2)
    consumer = KafkaConsumer(
        *settings.topics.input, bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group, partition_assignment_strategy=[Silent],
    )  # fmt: skip
    everything = {Partition(settings.topics.input[0], number) for number in (0, 1)}
    try:
        seen: list[object] = []

        def found() -> bool:
            with contextlib.suppress(struct.error):  # the library cannot read what it was not given
                consumer.poll(timeout_ms=1_000)
            with contextlib.suppress(ConnectorError):  # a broker's first group waits for its topic
                seen.append(ownerless(settings))
            return seen[-1:] == [everything]

        until(found, lambda: seen)
    finally:
        consumer.close()


def test_a_partition_added_to_the_input_arrives_however_short_the_polls(kafka: Kafka) -> None:
    """kafka-python forgot a join that outlasted the poll that began it, and heard no more.

    How soon a partition is seen is an option that people set: it was passed over without a word.
    """
    settings = kafka.settings(partitions=1, options={"metadata.max.age.ms": 1_000})
    alone = Member(settings, poll_s=0.001)
    try:
        # Between two polls there is what a batch takes; the join is answered meanwhile.
        until(lambda: alone.poll() or alone.owned == {0}, lambda: alone.owned, every_s=0.05)
        kafka.admin.create_partitions({settings.topics.input[0]: 2})
        until(lambda: alone.poll() or alone.owned == {0, 1}, lambda: alone.owned, every_s=0.05)
    finally:
        alone.close()


def test_an_answer_that_comes_between_two_polls_is_taken(kafka: Kafka) -> None:
    """kafka-python threw it away and joined again, so that the whole group dealt once more."""
    settings = kafka.settings(partitions=1)
    with member(settings) as consumer:
        coordinator, joins = consumer._consumer._coordinator, count_joins(consumer)

        def polled_while_one_is_under_way() -> bool:
            consumer.poll(1, 0.0)
            return coordinator._join_task is not None

        until(polled_while_one_is_under_way)
        until(lambda: coordinator._join_task.is_done, "the broker wants a member id first")
        until(polled_while_one_is_under_way)
        until(lambda: coordinator._join_task.is_done, "answered between two polls")
        until(lambda: not consumer.poll(1, 0.0) and consumer.joined())
        assert len(joins) == 2


@pytest.mark.parametrize("is_thrown_out", [False, True])
def test_heartbeats_go_on_with_an_answer_that_no_poll_has_taken(
    kafka: Kafka, is_thrown_out: bool
) -> None:
    """A worker that was busy for longer than its session lost its seat: kafka-python was silent."""
    settings = kafka.settings(partitions=1, options={"session.timeout.ms": 3_000})
    here = Partition(settings.topics.input[0], 0)
    with member(settings) as consumer:
        coordinator = consumer._consumer._coordinator
        until(lambda: consumer.poll(1, 0.05) or consumer.changes() == [Gained(here)])
        coordinator.request_rejoin()

        def polled_while_one_is_under_way() -> bool:
            consumer.poll(1, 0.0)
            return bool(coordinator.rejoining)

        until(polled_while_one_is_under_way)
        until(lambda: coordinator._join_task.is_done, "answered, and nobody polls")
        before = coordinator.heartbeat.last_receive
        until(lambda: coordinator.heartbeat.last_receive > before, "a heartbeat is answered")
        if is_thrown_out:
            coordinator.reset_generation()
        until(lambda: not consumer.poll(1, 0.05) and consumer.joined() and not consumer.changes())
        assert not coordinator.rejoining
        assert consumer._consumer.group_metadata().generation_id > 0


@pytest.mark.long
def test_while_the_group_waits_for_one_that_was_killed_the_others_work(kafka: Kafka) -> None:
    """A round ends with the session of who is dead; kafka-python delivered nothing for as long."""
    settings = kafka.settings(partitions=2, options={"session.timeout.ms": 45_000})
    killed, late = (Member(settings.replace(instance_id=name)) for name in ("killed", "late"))
    taken: list[int] = []

    def turn() -> None:
        taken.extend(r.position.offset for r in source.poll(10, 0.02))
        for change in source.changes():
            if isinstance(change, Assigned):
                source.seek(change.partition, change.committed or 0)

    def state() -> str:
        return str(kafka.admin.describe_groups([settings.group])[settings.group]["group_state"])

    with edges(settings.replace(instance_id="alive")) as (source, sink), closing(late):
        until(lambda: turn() or len(source.owned) == 2, lambda: source.owned)
        until(lambda: turn() or killed.poll() or len(killed.owned) == 1, lambda: killed.owned)
        until(lambda: turn() or killed.poll() or state() == "Stable")
        killed.close()  # says nothing to the group: as a kill does
        until(lambda: turn() or late.poll() or not source.joined, state)  # a heartbeat tells it
        (ours,) = source.owned
        kafka.fill(settings, feed(settings, 20, partitions=2))
        until(lambda: turn() or taken, state)
        sink.commit({ours: 1})
        assert state() == "PreparingRebalance"
        assert source.owned == {ours: 1}


def count_joins(consumer: PythonConsumer) -> list[object]:
    manager, joins = consumer._consumer._coordinator._manager, []
    send = manager.send

    def sending(request: object, **named: object) -> object:
        if type(request).__name__ == "JoinGroupRequest":
            joins.append(request)
        return send(request, **named)

    manager.send = sending
    return joins


@CONFLUENT
@pytest.mark.long
def test_what_a_worker_gave_up_when_it_was_killed_finds_an_owner(
    kafka: Kafka, tmp_path: Path
) -> None:
    """librdkafka answers the first round while its program is busy, and asks for the next after.

    So a kill that comes while a program works through its records falls between the two.
    """
    # The seat of the killed one must outlast the start of its successor, on any machine.
    settings = kafka.settings(
        partitions=4, client="confluent", options={"session.timeout.ms": 45_000}
    )
    records = feed(settings, 400)
    kafka.fill(settings, records)

    def given() -> list[int]:
        group = kafka.admin.describe_groups([settings.group])[settings.group]
        if group["group_state"] != "Stable":
            return []
        return sorted(
            sum(len(t["partitions"]) for t in member["member_assignment"]["assigned_partitions"])
            for member in group["members"]
        )

    with Workers(tmp_path) as workers:
        busy = workers.start(settings, "a", pause_s=60.0)
        until(lambda: len(busy.owned) == 4, "the first worker has everything")
        other = workers.start(settings, "b")
        until(lambda: given() == [0, 2], "two partitions are on their way")
        busy.kill()
        again = workers.start(settings, "a")
        finish(kafka, settings, records)
        assert "nobody was given" in again.output + other.output
        assert sorted(again.owned + other.owned) == [0, 1, 2, 3]
    assert_exactly(kafka, settings, records)


@pytest.mark.parametrize("client", CLIENTS)
def test_partitions_that_wait_for_a_worker_killed_between_two_rounds_find_an_owner(
    kafka: Kafka, client: str
) -> None:
    """A worker gives partitions up in one round and asks for the next; who is killed asks nobody.

    Its successor has its name and so its seat: without a round of its own nothing would change.
    """
    settings = kafka.settings(partitions=4, client=client)
    members: dict[str, Member] = {}

    def join(name: str) -> None:
        members[name] = Member(settings.replace(instance_id=name))

    def turn(holds: Callable[[], bool], names: str = "ab") -> None:
        takers = itertools.cycle(names)
        until(
            lambda: holds() or members[next(takers)].poll() or holds(),
            lambda: {n: m.owned for n, m in members.items()},
            every_s=0,
        )

    def together(holds: Callable[[], bool]) -> None:
        """As processes do it; by turns, kafka-python forgets what it is told between its polls."""
        with ThreadPoolExecutor(2) as pool:
            until(lambda: holds() or (list(pool.map(Member.poll, members.values())) and holds()))

    try:
        join("a")
        turn(lambda: len(members["a"].owned) == 4, "a")
        join("b")
        turn(lambda: len(members["a"].owned) < 4)
        assert not members["b"].owned, "the second round came before the kill"
        members["a"].close()  # says nothing to the group: as a kill does
        join("a")
        together(lambda: len(members["a"].owned | members["b"].owned) == 4)
        assert not members["a"].owned & members["b"].owned
    finally:
        for member in members.values():
            member.close()


@CONFLUENT
def test_where_the_broker_deals_a_named_worker_is_back_once_its_session_is_over(
    kafka: Kafka, tmp_path: Path
) -> None:
    """With a seat of its own it is refused as one too many, and librdkafka waits for good."""
    settings = kafka.settings(partitions=2, client="confluent", group_protocol="consumer")
    with Workers(tmp_path) as workers:
        killed = workers.start(settings, "a")
        until(lambda: killed.owned == [0, 1], lambda: killed.output)
        killed.kill()
        back = Member(settings.replace(instance_id="a"))  # here, so that it is back at once
        try:
            until(lambda: back.poll() or back.owned == {0, 1}, lambda: back.owned)
        finally:
            back.close()


def test_partitions_given_while_the_next_round_is_under_way_are_a_seat(kafka: Kafka) -> None:
    """Else a worker that comes back to a busy group may commit nothing."""
    settings = kafka.settings(partitions=1, instance_id="back")
    here = Partition(settings.topics.input[0], 0)
    with member(settings) as consumer:
        until(lambda: consumer.poll(1, 0.05) or consumer._consumer.assignment())
        # As a heartbeat may say before we look.
        consumer._consumer._coordinator.state = MemberState.REBALANCING
        assert consumer.changes() == [Gained(here)]
        assert consumer.membership().member_id


def test_where_a_partition_ends_is_right_while_the_group_deals_again(kafka: Kafka) -> None:
    """A round on the library's thread moved the position that was asked for: the end was 0.

    A log was then taken for a new one; with ``state.lost_state = "restart"`` it was judged again.
    """
    settings = kafka.settings(partitions=1)
    kafka.fill(settings, feed(settings, 50, partitions=1))
    here, over = Partition(settings.topics.input[0], 0), threading.Event()

    def dealt_again(consumer: PythonConsumer) -> None:
        while not over.is_set():
            consumer.hold(TopicPartition(*here))

    with member(settings) as consumer, ThreadPoolExecutor(1) as rounds:
        until(lambda: consumer.poll(1, 0.05) or consumer.changes() == [Gained(here)])
        rounds.submit(dealt_again, consumer)
        try:
            assert {consumer.edge(here, "latest", 60.0) for _ in range(50)} == {50}
            assert {consumer.edge(here, "earliest", 60.0) for _ in range(5)} == {0}
        finally:
            over.set()


@pytest.mark.parametrize("session_timeout_ms", [3_000, 45_000])
def test_a_worker_thrown_out_starts_from_what_others_committed(
    kafka: Kafka, session_timeout_ms: int
) -> None:
    """kafka-python kept its partitions when it heard of it by a join: records were doubled.

    That is so where heartbeats are seconds apart; where they come often, one of them tells it.
    """
    settings = kafka.settings(
        partitions=2, instance_id="w", options={"session.timeout.ms": session_timeout_ms}
    )
    kafka.fill(settings, feed(settings, 100, partitions=2))
    first, second = (Partition(settings.topics.input[0], number) for number in (0, 1))
    changes: list[Assigned | Revoked] = []

    def polled() -> list[Assigned | Revoked]:
        source.poll(10, 0.05)
        changes.extend(source.changes())
        return changes

    with edges(settings) as (source, sink):
        begun = {first: 0, second: 0}
        until(lambda: polled() and source.joined and source.owned == begun, lambda: changes)
        sink.commit({first: 1})
        changes.clear()
        (removed,) = kafka.admin.remove_group_members(
            settings.group, [MemberToRemove(group_instance_id="w")]
        ).values()
        assert removed is NoError
        kafka.set_back(settings, second, 7)
        with pytest.raises(ConnectorError):
            sink.commit({second: 5})
        sink.abort()
        source.consumer._consumer._coordinator.request_rejoin()
        until(lambda: polled() and source.owned.get(second) == 7, lambda: changes)
        assert Revoked(second) in changes
        assert source.owned[first] == 1


def test_a_heartbeat_of_a_seat_given_up_says_nothing_about_the_seat_of_now(kafka: Kafka) -> None:
    """A worker that polled late joins again under a new id; the old id's heartbeat is refused."""
    settings = kafka.settings(partitions=2, instance_id="w")
    may_go, held, sent = threading.Event(), [], []

    async def send_late(request: object, **named: object) -> object:
        held.append(request)
        while not may_go.is_set():
            await coordinator._net.sleep(0.01)
        sent.append(request)
        return await send(request, **named)

    def sending(request: object, **named: object) -> object:
        late = type(request).__name__ == "HeartbeatRequest"
        return send_late(request, **named) if late else send(request, **named)

    with edges(settings) as (source, _):
        coordinator = source.consumer._consumer._coordinator
        send = coordinator._manager.send

        def polled(times: int = 1) -> int:
            for _ in range(times):
                owns(source)
            return len(source.owned)

        until(lambda: polled() == 2 and source.joined, lambda: source.owned)
        coordinator._manager.send = sending
        until(lambda: polled() and held, "a heartbeat is on its way")
        before = source.consumer._consumer.group_metadata().member_id
        coordinator.reset_generation()  # as where the time between two polls ran out
        until(lambda: polled() and source.joined and source.consumer._seat.member_id != before)
        may_go.set()
        until(lambda: polled() and len(sent) > 3, lambda: f"heartbeats go on: {sent}")
        assert sent[0].member_id == before
        until(lambda: ownerless(settings) == set(), "the group has it as a member")
        assert polled(3) == 2


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_said_of_a_partition_that_is_gone_meanwhile_is_not_heard(
    kafka: Kafka, client: str
) -> None:
    """The group takes partitions away on a thread of its own, between two lines of ours."""
    settings = kafka.settings(partitions=1, client=client)
    gone = Partition(settings.topics.input[0], 7)
    with member(settings) as consumer:
        consumer.stop(gone)
        consumer.start(gone, 5)
        consumer.stop(gone)
        assert consumer.end(gone) is None


@pytest.mark.parametrize("client", CLIENTS)
def test_a_seat_that_is_taken_in_the_middle_of_a_commit_is_taken_back(
    kafka: Kafka, client: str
) -> None:
    """The partitions of the seat before are none of the new consumer's; asking for them crashed."""
    settings = kafka.settings(partitions=2, client=client, instance_id="w")
    kafka.fill(settings, feed(settings, 100, partitions=2))
    with edges(settings) as (source, sink):
        until(lambda: owns(source) and len(source.owned) == 2, lambda: source.owned)
        for partition in source.owned:
            source.seek(partition, 0)
        owns(source)
        source.reseat(seat_taken(settings))
        sink.abort()
        source.rewind()
        until(lambda: owns(source) and len(source.owned) == 2, lambda: source.owned)


@pytest.mark.parametrize("client", CLIENTS)
def test_who_cannot_come_back_to_a_seat_that_was_taken_tries_again(
    kafka: Kafka, client: str
) -> None:
    """The broker is away for a moment when the group is to be joined again."""
    settings = kafka.settings(partitions=1, client=client, instance_id="w")
    open_consumer, _ = open_clients(settings, "w")
    failures = [ConnectorError("Kafka is away", retriable=True)]

    def opened() -> Consumer:
        if failures:
            raise failures.pop()
        return open_consumer()

    source = KafkaSource(open_consumer(), settings, opened)

    def owned() -> bool:
        source.poll(1, 0.05)
        source.changes()
        return bool(source.owned)

    rival = None
    try:
        until(owned)
        rival = open_consumer()

        def is_thrown_out() -> bool:
            assert rival is not None
            rival.poll(1, 0.05)
            try:
                owned()
            except ConnectorError as error:
                return str(error) == "Kafka is away"
            return False

        until(is_thrown_out)
        rival.close()
        source.rewind()
        source.changes()
        until(lambda: owned() and not failures)
        source.ask()
    finally:
        source.close()
        if rival is not None:
            rival.close()


def close_before_it_is_called(settings: KafkaSettings) -> None:
    """Come in and close, again and again, each time with what the group gave not taken yet."""
    from rejex_connectors.kafka.confluent_client import FastConsumer

    open_consumer, _ = open_clients(settings, "m")
    for _ in range(8):
        consumer = open_consumer()
        assert isinstance(consumer, FastConsumer)
        until(consumer._consumer.memberid)
        pass_time(0.3, "the answer to who has what is on its way to the library")
        consumer.close()


@CONFLUENT
@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_consumer_that_closes_before_it_took_what_the_group_gave_it_ends(
    kafka: Kafka, named: bool
) -> None:
    """The library once held the interpreter for good: so in a process of its own."""
    settings = kafka.settings(partitions=4, client="confluent")
    rest = Member(settings.replace(instance_id="rest"))
    closing = multiprocessing.get_context("spawn").Process(
        target=close_before_it_is_called,
        args=(settings.replace(instance_id="m" if named else None),),
        daemon=True,
    )
    closing.start()
    try:

        def ended() -> bool:
            rest.poll()
            return closing.exitcode is not None

        until(ended, "the consumer that closes")
        assert closing.exitcode == 0
        # A seat is kept, so its partitions wait for whoever sits there; otherwise they are dealt.
        until(lambda: rest.poll() or len(rest.owned) == (2 if named else 4), lambda: rest.owned)
    finally:
        closing.kill()
        rest.close()
