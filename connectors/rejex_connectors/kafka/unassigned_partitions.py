"""Partitions that the group gave to nobody: seen, so that somebody asks for another round."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as ke
from kafka.admin import MemberToRemove

from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import asking
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition

LOOK_EVERY_S = 3.0  # longer than partitions have no owner while they move

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


class SeatRepair:
    """Has the group deal again where it forgot partitions, which would wait for ever.

    Partitions move in two rounds: whoever gives some up asks for the second, in which they are
    given away. Killed in between, a worker with a name of its own comes back to its old seat, and
    the group sees no reason for that round. So a named worker looks every three seconds until every
    partition has an owner; where two looks see the same ones without, it gives its seat up, and
    joins again as any worker that was put out.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._closed = threading.Event()
        # By a client of kafka-python: librdkafka 2.16 ends the process where a question about a
        # group outlasts its deadline.
        threading.Thread(target=self._run, name="kafka seat repair", daemon=True).start()

    def close(self) -> None:
        """Look no more; a look under way is not waited for."""
        self._closed.set()

    def _run(self) -> None:
        before: set[Partition] = set()
        while not self._closed.wait(LOOK_EVERY_S):
            try:
                unowned = ownerless(self._settings)
                if unowned is None:
                    continue
                if again := unowned & before:
                    named = ", ".join(f"{topic}-{number}" for topic, number in sorted(again))
                    _log.warning("nobody was given %s: joining the group again", named)
                    self._give_seat_up()
            except (ConnectorError, OSError) as error:  # of no descriptors, too
                _log.info("no answer to who has which partition: %s", error)
                continue
            if not unowned:
                return
            before = unowned - before

    def _give_seat_up(self) -> None:
        group, name = self._settings.group, self._settings.instance_id
        with asking(self._settings, f"giving the seat {name!r} in group {group} up") as client:
            client.remove_group_members(group, [MemberToRemove(group_instance_id=name)])
