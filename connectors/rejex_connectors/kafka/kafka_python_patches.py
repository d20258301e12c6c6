"""What kafka-python 3.0 still needs fixed; the one place that touches what it does not promise.

Importing this module patches the library. Each fix names the defect that it is for; with a newer
minor of the library, which is pinned for this, take them out one by one and run ``tests/kafka``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from kafka import KafkaConsumer, KafkaProducer
from kafka import errors as ke
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.future import Future
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.record.default_records import DefaultRecordBatch

from rejex_connectors.kafka.unpacking import LARGEST_RECORD, unpack

# ------------------------------------------------------------------------- leaks of file handles
# Defect: what belongs to a connection that failed stays open. Sockets, and for a client that never
# came up its thread too, are left to the garbage collector or for ever, so a worker that waits
# through a long outage runs out of file descriptors. So does the socket of a connection that had
# something left to write when its client was closed.

_connect = KafkaNetSocket.sock_connect
_handshake = KafkaSSLTransport.handshake
_bootstrap = KafkaConnectionManager.bootstrap
_make_transport = KafkaTCPTransport.__init__
_close_selector = NetworkSelector.close


async def _connect_or_close(
    self: KafkaNetSocket, net: Any, sock: Any, *arguments: Any, **named: Any
) -> Any:
    try:
        return await _connect(self, net, sock, *arguments, **named)
    except BaseException:
        sock.close()
        raise


async def _handshake_or_close(self: KafkaSSLTransport) -> None:
    try:
        await _handshake(self)
    except BaseException:
        self.close()
        raise


def _bootstrap_or_close(self: KafkaConnectionManager, *arguments: Any, **named: Any) -> None:
    """Bootstrap; clients do it in their constructor, so nobody else could close what they hold."""
    try:
        _bootstrap(self, *arguments, **named)
    except BaseException:
        self.close()
        self._net.close()
        raise


def _made_transport(self: KafkaTCPTransport, net: Any, *arguments: Any, **named: Any) -> None:
    _make_transport(self, net, *arguments, **named)
    net.__dict__.setdefault("transports", WeakSet()).add(self)


def _close_selector_and_sockets(self: NetworkSelector) -> None:
    _close_selector(self)
    for transport in self.__dict__.pop("transports", ()):
        if transport._sock is not None:
            transport._sock.close()


# ------------------------------------------------------------- the last words of a connection
# Defect: what has come together with the end of a connection is thrown away, such as why a broker
# refuses a login: the client tries for ever, and no error names the wrong password. So the
# end is found at the next look.


def _end_later(receive: Callable[[Any], tuple[bytes, Any]]) -> Callable[[Any], tuple[bytes, Any]]:
    def received(self: Any) -> tuple[bytes, Any]:
        data, error = receive(self)
        return data, None if data else error

    return received


# --------------------------------------------------------------------- a join that nobody finishes
# Defect: a rejoin after a change of the input's partitions is no longer "needed" as soon as the
# group's leader has dealt out the new ones. If the poll that began it has run out of time by then,
# the next poll does not take the answer: heartbeats stay off, the group drops the member, and the
# member waits for partitions that never come. So a join is needed until its answer is taken.
# And an answer that comes between two polls is thrown away by the next, which asks again: the whole
# group deals once more, and where polls are short a busy member might never be in it. So what was
# answered is taken.
# Nor are heartbeats sent before a poll has taken it: who works through a batch for longer than a
# session meanwhile loses its seat. So they go on with the answer.

_need_rejoin = ConsumerCoordinator.need_rejoin
_join_group = ConsumerCoordinator.join_group_async
_join_and_sync = ConsumerCoordinator._do_join_and_sync_async
_is_stable = ConsumerCoordinator.stable


def _need_rejoin_or_answer(self: ConsumerCoordinator) -> bool:
    return bool(self.rejoining or _need_rejoin(self))


class _Answered:
    """A join that is over, as one still to be waited for."""

    is_done = False

    def __init__(self, join: Future) -> None:
        self.add_callback, self.add_errback = join.add_callback, join.add_errback


async def _join_or_take_answer(self: ConsumerCoordinator, timeout_ms: float | None = None) -> bool:
    join = self._join_task
    if join is not None and join.is_done and (join.failed() or self.answered == self._generation):
        self._join_task = _Answered(join)
    return bool(await _join_group(self, timeout_ms))


async def _join_and_beat(self: ConsumerCoordinator) -> Any:
    assignment = await _join_and_sync(self)
    self.answered = self._generation
    self._enable_heartbeat()
    return assignment


def _is_stable_or_answered(self: ConsumerCoordinator) -> bool:
    """Whether the group gave us the seat that we have now, and has not taken it back."""
    return bool(_is_stable(self) or self.answered == self._generation)


# ------------------------------------------------------------------ a join in which nobody works
# Defect: until every member has answered, for as long as the session of one that was killed, a poll
# waits for the round and delivers nothing; under the cooperative protocol, members keep what they
# have meanwhile. So a member with partitions looks for the answer, and fetches.

_LOOK_S = 0.05
_poll_group = ConsumerCoordinator.poll
_time_to_heartbeat = ConsumerCoordinator.time_to_next_heartbeat


def _poll_group_and_go_on(self: ConsumerCoordinator, timeout_ms: float | None = None) -> bool:
    if self.need_rejoin() and self._subscription.assigned_partitions():
        _poll_group(self, 0)
        return True
    return bool(_poll_group(self, timeout_ms))


def _time_to_look(self: ConsumerCoordinator) -> float:
    return _LOOK_S if self.need_rejoin() else float(_time_to_heartbeat(self))


# --------------------------------------------------------------------- rounds that were not ours
# Defect: a member that was away for some rounds of the group does not learn it: others may have had
# its partitions. The number of the round alone does not say it, rounds follow each other quickly.

_join_answered = ConsumerCoordinator._process_join_group_response


def _join_answered_in(self: ConsumerCoordinator, *arguments: Any) -> Any:
    response = _join_answered(self, *arguments)
    seat = (response.member_id, response.generation_id)
    self.__dict__.setdefault("rounds", deque()).append(seat)
    return response


def take_rounds(consumer: KafkaConsumer) -> list[tuple[str, int]]:
    """Return the rounds of the group since the last call, as member id and generation."""
    rounds = consumer._coordinator.__dict__.setdefault("rounds", deque())
    return [rounds.popleft() for _ in range(len(rounds))]


# ----------------------------------------------------------------- partitions of one thrown out
# Defect: a member that learns of its removal from the group in the middle of a join (it was frozen
# there, say) does not learn that its partitions are lost: that preparation is over.
# It joins again claiming them, the leader gives some back to it at once, without the round in which
# their owner of today would give them up, and it goes on from where it stood: records are written
# twice. So whoever loses its membership prepares again.

_reset_generation = ConsumerCoordinator.reset_generation


def _reset_and_prepare(self: ConsumerCoordinator, *arguments: Any, **named: Any) -> None:
    _reset_generation(self, *arguments, **named)
    self.rejoining = False


# ------------------------------------------------------------------ answers that came too late
# Defect: what was committed is asked for once, and the answer shared by all who ask meanwhile: one
# that comes after its time was up is given to whoever asks next, be it after others have committed.
# The worker then goes on from where it stood, and records are judged twice. So each asks again.

_ask_committed = ConsumerCoordinator.fetch_committed_offsets_async


async def _ask_committed_anew(self: ConsumerCoordinator, *arguments: Any, **named: Any) -> Any:
    self._offset_fetch_futures.clear()
    return await _ask_committed(self, *arguments, **named)


# ------------------------------------------------------------------ heartbeats of another seat
# Defect: a heartbeat that is told of another member under our name ends the heartbeats, and nobody
# hears of it: a worker that has nothing to commit polls on as a ghost for ever. And the answer to
# a heartbeat is taken for news of the seat we have now, be it of one we gave up meanwhile: a busy
# worker that polled late and joined again, under a new id, loses its heartbeats to the last one of
# its old id, then its seat, and waits for partitions that never come.

_send_heartbeat = ConsumerCoordinator._send_heartbeat_request
_heartbeat_answered = ConsumerCoordinator._handle_heartbeat_response


async def _send_heartbeat_as(self: ConsumerCoordinator) -> None:
    self.beating_as = self._generation
    await _send_heartbeat(self)


def _heartbeat_answered_as(self: ConsumerCoordinator, *answer: Any) -> None:
    if self._generation != self.beating_as:  # the next one tells about the seat of now
        return
    try:
        _heartbeat_answered(self, *answer)
    except ke.FencedInstanceIdError:
        self.is_fenced = True
        raise


def is_fenced(consumer: KafkaConsumer) -> bool:
    """Whether a heartbeat was answered that another member has our name."""
    return bool(getattr(consumer._coordinator, "is_fenced", False))


# -------------------------------------------------------------------- batches unpacked as one piece
# Defect: a compressed batch is unpacked whole, and copied, before its first record is delivered:
# 389 kB of gzip take 1.3 GB. And a record that cannot be taken apart (a header whose name is not
# UTF-8, say) ends in CorruptRecordError for ever, with all the records behind it.

_records_of = DefaultRecordBatch.__iter__


def _unpacked(self: DefaultRecordBatch) -> Any:
    if self.is_control_batch:
        return _records_of(self)
    return unpack(self, self._buffer, self._pos)


# ------------------------------------------------------------------- polls without a bound in bytes
# Defect: a poll is bounded in records, and by what was fetched, but records of many megabytes come
# out of a kilobyte. So a poll ends with the record that makes it large.

_append = Fetcher._append


def _take(self: Any, n: int) -> list[Any]:
    self._maybe_raise_next_inline_exception()
    records: list[Any] = []
    held = 0
    waiting: Iterator[Any] = self.record_iterator
    while len(records) < n and held < LARGEST_RECORD:
        record = next(waiting, None)
        if record is None:
            break
        records.append(record)
        held += record.serialized_value_size + record.serialized_key_size
    self.is_large = held >= LARGEST_RECORD
    return records


def _append_or_end(
    self: Any, drained: Any, part: Any, max_records: int, update_offsets: bool
) -> int:
    part.is_large = False
    taken: int = _append(self, drained, part, max_records, update_offsets)
    return max_records if part.is_large else taken


# ------------------------------------------------------------------ a rest that nobody ends
# Defect: what was fetched of a partition that pauses is put aside, and taken up again once nothing
# is in line; but a fetch of another partition that was used up stays in line until the next one.
# While there is none, the others being at their end, the partition that goes on gives no record,
# and none is fetched of it either. So what is used up is in line no more.

_fetched = Fetcher.fetched_records


def _fetched_or_put_aside(self: Fetcher, *arguments: Any, **named: Any) -> Any:
    if not self._next_partition_records:
        self._next_partition_records = None
    return _fetched(self, *arguments, **named)


# ------------------------------------------------------------- a question without a pause
# Defect: the offset of a partition that is unknown is asked for again at once, by old metadata.

_list_offsets = Fetcher._send_list_offsets_requests


async def _list_offsets_or_pause(self: Fetcher, timestamps: Any) -> Any:
    offsets, unknown = await _list_offsets(self, timestamps)
    if unknown:
        self._manager.cluster.request_update()
        await self._manager._net.sleep(self.config["retry_backoff_ms"] / 1000)
    return offsets, unknown


if _connect.__name__ == "sock_connect":  # once, however often this module is imported
    KafkaNetSocket.sock_connect = _connect_or_close
    KafkaSSLTransport.handshake = _handshake_or_close
    for transport in (KafkaTCPTransport, KafkaSSLTransport):
        transport._sock_recv = _end_later(transport._sock_recv)
    KafkaConnectionManager.bootstrap = _bootstrap_or_close
    KafkaTCPTransport.__init__ = _made_transport
    NetworkSelector.close = _close_selector_and_sockets
    DefaultRecordBatch.__iter__ = _unpacked
    Fetcher.PartitionRecords.take = _take
    Fetcher._append = _append_or_end
    Fetcher.fetched_records = _fetched_or_put_aside
    Fetcher._send_list_offsets_requests = _list_offsets_or_pause
    ConsumerCoordinator.need_rejoin = _need_rejoin_or_answer
    ConsumerCoordinator.join_group_async = _join_or_take_answer
    ConsumerCoordinator.answered = None
    ConsumerCoordinator._do_join_and_sync_async = _join_and_beat
    ConsumerCoordinator.stable = _is_stable_or_answered
    ConsumerCoordinator.poll = _poll_group_and_go_on
    ConsumerCoordinator.time_to_next_heartbeat = _time_to_look
    ConsumerCoordinator._process_join_group_response = _join_answered_in
    ConsumerCoordinator.reset_generation = _reset_and_prepare
    ConsumerCoordinator.fetch_committed_offsets_async = _ask_committed_anew
    ConsumerCoordinator._send_heartbeat_request = _send_heartbeat_as
    ConsumerCoordinator._handle_heartbeat_response = _heartbeat_answered_as


# ------------------------------------------------------------------------- a thread that lives on
# Defect: KafkaProducer.close(timeout=0) flushes first, and gives up there when the broker is gone,
# before it has told its thread to end.


def end_thread(producer: KafkaProducer) -> None:
    """End the sending thread of a producer that was closed; what is not sent is dropped."""
    producer._sender.force_close()


# --------------------------------------------------------------------- refusals that raise nothing
# Defect: that a subscribed topic may not even be looked at is logged, and raised where nobody is
# waiting; the consumer's polls return nothing for ever. And that the offset of a topic may not be
# committed in a transaction stands in the text of a general error.


def refused_topics(consumer: KafkaConsumer) -> list[str]:
    """Return which of its topics a consumer may not look at."""
    return sorted(consumer._cluster.unauthorized_topics)


def is_refused_offset(error: Exception) -> bool:
    """Whether a transaction failed since we may not read a topic whose offset we commit."""
    text = str(error)
    return "TxnOffsetCommitResponse" in text and ke.TopicAuthorizationFailedError.__name__ in text
