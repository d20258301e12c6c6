"""Mends two ways in which partitions of kafka-python 3.0 wait for a worker for ever.

**A join whose answer nobody takes.** A rejoin after a change of the input's partitions is no longer
"needed" as soon as the group's leader has dealt out the new ones. If the poll that began it has run
out of time by then, the next poll does not take the answer: heartbeats stay off, the group drops
the member, and the member waits for partitions that never come. Importing this module makes a join
needed until its answer is taken.

**A round that nobody asks for.** Partitions move in two rounds: whoever gives some up asks for the
second, in which they are given away. Killed in between, a worker with a name of its own comes back
to its old seat, and the group sees no reason for that round. So a fresh worker asks for one more
(:func:`ask_again`), with metadata that differ from those it joined with (:class:`Assignor`): equal
ones the broker would answer with the round that was. Nothing moves that need not.

Remove with kafka-python 3.1.
"""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.consumer import ConsumerCoordinator

__all__ = ["Assignor", "ask_again"]

_need_rejoin = ConsumerCoordinator.need_rejoin


def _need_rejoin_or_answer(self: ConsumerCoordinator) -> bool:
    return bool(self.rejoining or _need_rejoin(self))


if _need_rejoin.__name__ == "need_rejoin":  # once, however often this module is imported
    ConsumerCoordinator.need_rejoin = _need_rejoin_or_answer


class Assignor(CooperativeStickyAssignor):  # type: ignore[misc]  # untyped
    """The cooperative assignor of a worker that can be told from the one it was when it joined."""

    def metadata(self, topics: Any) -> Any:  # noqa: ANN401 - untyped
        """Return what the group is told about this worker."""
        told = super().metadata(topics)
        if self.member_assignment is not None:
            told.user_data = b"again"  # nobody reads it under this protocol
        return told


def ask_again(consumer: KafkaConsumer) -> bool:
    """Ask for another round once the worker is in the group; returns whether it is."""
    coordinator = consumer._coordinator
    if coordinator.generation_if_stable() is None:  # a join under way would overrule the request
        return False
    coordinator.request_rejoin()
    return True
