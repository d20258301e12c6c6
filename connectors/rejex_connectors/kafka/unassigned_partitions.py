"""Partitions that the group gave to nobody: seen, so that somebody asks for another round."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from kafka import errors as ke

from rejex_connectors.kafka.partition_reader import asking
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from rejex_connectors.kafka.kafka_settings import KafkaSettings

__all__ = ["Ownerless", "group_of", "ownerless"]

LOOK_EVERY_S = 3.0
"""Longer than partitions have no owner while they move."""

_SETTLING = (
    ke.CoordinatorLoadInProgressError, ke.CoordinatorNotAvailableError, ke.NotCoordinatorError,
)  # fmt: skip
"""What a new cluster says as well, until it has made its coordinators."""

_log = logging.getLogger(__name__)


def group_of(client: KafkaAdminClient, group: str, settle_s: float = 0.0) -> dict[str, Any]:
    """Return what the coordinator says of a group; raises where there is none after `settle_s`."""
    deadline = time.monotonic() + settle_s
    while True:
        try:
            described: dict[str, Any] = client.describe_groups([group])[group]
            error = described["error"]  # "[Error 16] …"; the members of an error are none
            code = int(error.split()[1].rstrip("]")) if error else 0
            if code in (0, ke.GroupIdNotFoundError.errno):
                return described
            raise ke.for_code(code)
        except _SETTLING:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ownerless(settings: KafkaSettings) -> set[Partition] | None:
    """Return the input's partitions that no member of the group has; None while they move."""
    doing = f"asking who has which partition in group {settings.group}"
    with asking(settings, doing) as client:
        group = group_of(client, settings.group)
        topics = client.describe_topics(list(settings.topics.input))
    if group["group_state"] != "Stable" or not all(topic["partitions"] for topic in topics):
        return None
    owned = {
        Partition(topic["topic"], number)
        for member in group["members"]
        if member["member_assignment"]  # empty where the leader said nothing of a member
        for topic in member["member_assignment"]["assigned_partitions"]
        for number in topic["partitions"]
    }
    every = {
        Partition(topic["name"], partition["partition_index"])
        for topic in topics
        for partition in topic["partitions"]
    }
    return every - owned


class Ownerless:
    """Finds partitions that nobody was given, and that would wait for a worker for ever.

    Partitions move in two rounds: whoever gives some up asks for the second, in which they are
    given away. Killed in between, a worker with a name of its own comes back to its old seat, and
    the group sees no reason for that round. The library has no call that asks for one. So a worker
    that came in by name looks every three seconds, and never waits, until every partition has an
    owner; where one has none, it leaves the group and joins it again, and the group deals again.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._asked: Future[set[Partition] | None] | None = None
        self._before: set[Partition] = set()
        self._due_s = time.monotonic() + LOOK_EVERY_S
        self.over = False  # every partition has an owner, or some were found that have none

    def found(self) -> bool:
        """Return whether two looks in a row saw the same partitions without an owner."""
        if self._asked is None:
            if time.monotonic() >= self._due_s:
                self._ask()
            return False
        if not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        self._due_s = time.monotonic() + LOOK_EVERY_S
        try:
            ownerless = asked.result()
        except ConnectorError as error:
            _log.info("no answer to who has which partition: %s", error)
            return False
        if ownerless is None:
            return False
        again = ownerless & self._before
        self._before = ownerless
        self.over = bool(again) or not ownerless
        if again:
            named = ", ".join(f"{topic}-{number}" for topic, number in sorted(again))
            _log.warning("nobody was given %s: joining the group again", named)
        return bool(again)

    def _ask(self) -> None:
        """Ask on a thread of its own, and by kafka-python."""
        # librdkafka 2.16 ends the process (`rd_kafka_enq_once_del_source_return: Assertion`) where
        # a question about a group outlasts its deadline because no coordinator answers.
        asked = self._asked = Future()

        def ask() -> None:
            try:
                asked.set_result(ownerless(self._settings))
            except BaseException as error:  # read on the thread that polls
                asked.set_exception(error)

        threading.Thread(target=ask, name="kafka who has which partition", daemon=True).start()
