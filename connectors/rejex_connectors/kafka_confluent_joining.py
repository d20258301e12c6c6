"""Finds partitions that nobody was given, which with librdkafka wait for a worker for ever.

Partitions move in two rounds: whoever gives some up asks for the second, in which they are given
away. Killed in between, a worker with a name of its own comes back to its old seat, and the group
sees no reason for that round. The library has no call that asks for one. So a worker that came in
by name looks whether every partition has an owner (:class:`Ownerless`); where one has none, it
leaves the group and joins it anew, and the group deals again.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from rejex_connectors.kafka_confluent_options import ASK_S, client_options
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["Ownerless"]

LOOK_EVERY_S = 3.0
"""Longer than partitions have no owner while they move."""

_log = logging.getLogger(__name__)


class Ownerless:
    """Looks every three seconds, and never waits, until every partition has an owner.

    Parameters
    ----------
    settings
        Which group, which topics, and how to connect.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = AdminClient(client_options(settings))
        self._asked: list[Future[Any]] = []
        self._before: set[Partition] = set()
        self._due_s = time.monotonic() + LOOK_EVERY_S
        self.over = False
        """Whether every partition has an owner, or some were found that have none."""

    def found(self) -> bool:
        """Return whether two looks in a row saw the same partitions without an owner."""
        if not self._asked:
            if time.monotonic() >= self._due_s:
                self._ask()
            return False
        self._admin.poll(0.0)  # renews tokens
        if not all(answer.done() for answer in self._asked):
            return False
        ownerless = self._read()
        self._asked = []
        self._due_s = time.monotonic() + LOOK_EVERY_S
        if ownerless is None:
            return False
        again = ownerless & self._before
        self._before = ownerless
        self.over = bool(again) or not ownerless
        if again:
            _log.warning("nobody was given %s: joining the group anew", _named(again))
        return bool(again)

    def _ask(self) -> None:
        group, topics = self._settings.group, list(self._settings.topics.input)
        about_group = self._admin.describe_consumer_groups([group], request_timeout=ASK_S)
        about_topics = self._admin.describe_topics(
            ck.TopicCollection(topics), request_timeout=ASK_S
        )
        self._asked = [about_group[group], *(about_topics[topic] for topic in topics)]

    def _read(self) -> set[Partition] | None:
        """Return the partitions without an owner; None where that cannot be said now."""
        try:
            group, *topics = [answer.result() for answer in self._asked]
        except ck.KafkaException as error:
            _log.info("no answer to who has which partition: %s", error.args[0].str())
            return None
        if group.state != ck.ConsumerGroupState.STABLE:  # they are being dealt out
            return None
        owned = {
            Partition(given.topic, given.partition)
            for member in group.members
            for given in member.assignment.topic_partitions
        }
        every = {Partition(topic.name, p.id) for topic in topics for p in topic.partitions}
        return every - owned


def _named(partitions: set[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))
