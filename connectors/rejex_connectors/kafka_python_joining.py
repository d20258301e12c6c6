"""Mends a worker of kafka-python 3.0 that goes silent for ever: a join whose answer nobody takes.

A rejoin after a change of the input's partitions is no longer "needed" as soon as the group's
leader has dealt out the new ones. If the poll that began it has run out of time by then, the next
poll does not take the answer: heartbeats stay off, the group drops the member, and the member waits
for partitions that never come. Importing this module makes a join needed until its answer is taken.
Remove with kafka-python 3.1.
"""

from __future__ import annotations

from kafka.coordinator.consumer import ConsumerCoordinator

__all__: list[str] = []

_need_rejoin = ConsumerCoordinator.need_rejoin


def _need_rejoin_or_answer(self: ConsumerCoordinator) -> bool:
    return bool(self.rejoining or _need_rejoin(self))


if _need_rejoin.__name__ == "need_rejoin":  # once, however often this module is imported
    ConsumerCoordinator.need_rejoin = _need_rejoin_or_answer
