"""Whether the records of a sensor stay together: without keys, a topic's partitions part them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rejex_stream.errors import ConnectorError
from rejex_stream.types import Record

__all__ = ["KeyWatch", "keyless"]

_FEW = 10  # somebody may have tried something by hand
_LOOKED_AT = 1_000


def keyless(records: Sequence[Record], partitions: Mapping[str, int]) -> dict[str, int]:
    """Count records without a key by topic, where the topic has several partitions. O(records)."""
    counts: dict[str, int] = {}
    for record in records:
        topic = record.position.topic
        if record.key is None and partitions.get(topic, 1) > 1:
            counts[topic] = counts.get(topic, 0) + 1
    return counts


class KeyWatch:
    """Ends a run that begins with records without keys, before models are made of them.

    Parameters
    ----------
    partitions
        How many each input topic has.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> watch = KeyWatch({"pumps": 4})
    >>> watch.see([Record(Position("pumps", 0, i), None, b"{}") for i in range(10)])
    Traceback (most recent call last):
    rejex_stream.errors.ConnectorError: 10 of the first 10 records have no key, and 'pumps' has 4 \
partitions: each sensor would be parted into as many streams, each with a model of its own. Key \
them (`rejex-stream topics rekey` makes a keyed copy), or say by input.order = "as_it_comes" that \
every sensor is in one partition
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions
        self._seen = 0
        self._keyless: dict[str, int] = {}

    def see(self, records: Sequence[Record]) -> None:
        """Look at what was polled; after a thousand records, no more. O(records).

        Raises
        ------
        ConnectorError
            If more than half of what came has no key.
        """
        if self._seen >= _LOOKED_AT or not records:
            return
        self._seen += len(records)
        for topic, count in keyless(records, self._partitions).items():
            total = self._keyless[topic] = self._keyless.get(topic, 0) + count
            if total >= _FEW and total > self._seen / 2:
                raise ConnectorError(
                    f"{total} of the first {self._seen} records have no key, and {topic!r} has "
                    f"{self._partitions[topic]} partitions: each sensor would be parted into as "
                    "many streams, each with a model of its own. Key them (`rejex-stream topics "
                    'rekey` makes a keyed copy), or say by input.order = "as_it_comes" that every '
                    "sensor is in one partition"
                )
