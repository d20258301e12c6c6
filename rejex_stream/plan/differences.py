"""A history judged in two ways, and what differs: verdicts, the queue, incidents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from rejex_stream.run.partition import PartitionState
from rejex_stream.types import Outcome, Position, Record, Verdict

__all__ = ["Differences", "compare"]

_EXAMPLES = 5


@dataclass
class Differences:
    """What two ways of judging made of the same records.

    Attributes
    ----------
    records
        How many were compared.
    labels
        By what became of a record in the first way and in the second: a label, or ``dead letter``.
    figures
        Verdicts with the same label and other figures (score, rank, reason, ...).
    reviews, incidents
        Items for people, and incidents opened, in the first way and in the second.
    other
        Records of which anything differs: verdict, review item or incident.
    sensors
        Changed labels by sensor.
    examples
        Where labels changed first.
    """

    records: int = 0
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)
    figures: int = 0
    reviews: list[int] = field(default_factory=lambda: [0, 0])
    incidents: list[int] = field(default_factory=lambda: [0, 0])
    other: int = 0
    sensors: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[Position, str, str]] = field(default_factory=list)

    @property
    def changed(self) -> int:
        """How many records have another label."""
        return sum(count for (one, other), count in self.labels.items() if one != other)

    def of(self, which: int) -> Counter[str]:
        """Return the labels of the first way (0), or of the second (1)."""
        found: Counter[str] = Counter()
        for labels, count in self.labels.items():
            found[labels[which]] += count
        return found

    def add(self, one: Outcome, other: Outcome) -> None:
        """Compare what became of one record. O(1)."""
        first, second = one.verdict, other.verdict
        labels = _label(first), _label(second)
        self.records += 1
        self.labels[labels] += 1
        for i, outcome in enumerate((one, other)):
            self.reviews[i] += outcome.review is not None
            self.incidents[i] += sum(incident.version == 1 for incident in outcome.incidents)
        if labels[0] != labels[1]:
            named = first or second
            assert named is not None
            self.sensors[named.sensor] += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append((one.record.position, *labels))
        elif first != second:
            self.figures += 1
        if one[1:] != other[1:]:
            self.other += 1

    def plain(self) -> bytes:
        """Return it for another process, which may be on another machine."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def of_plain(cls, plain: bytes) -> Differences:
        """Read what :meth:`plain` wrote."""
        # Counters are dicts on the way.
        return msgspec.msgpack.decode(plain, type=cls, dec_hook=lambda to, found: to(found))

    def join(self, more: Differences) -> None:
        """Take over what another process has found in other streams."""
        self.records += more.records
        self.labels += more.labels
        self.figures += more.figures
        self.reviews = [a + b for a, b in zip(self.reviews, more.reviews, strict=True)]
        self.incidents = [a + b for a, b in zip(self.incidents, more.incidents, strict=True)]
        self.other += more.other
        self.sensors += more.sensors
        self.examples = sorted([*self.examples, *more.examples])[:_EXAMPLES]


def compare(
    records: Sequence[Record],
    one: PartitionState,
    other: PartitionState,
    since_ms: int | None,
    found: Differences,
) -> None:
    """Judge records of one partition twice, and compare what came of those since a time.

    What lies before it is judged as well: a verdict depends on what went before. Records that
    cannot be read have no time, and count.
    """
    pairs: Iterable[tuple[Outcome, Outcome]] = zip(
        one.process(records), other.process(records), strict=True
    )
    for first, second in pairs:
        if since_ms is not None:
            verdict = first.verdict or second.verdict
            if verdict is not None and verdict.event_time_ms < since_ms:
                continue
        found.add(first, second)


def _label(verdict: Verdict | None) -> str:
    return "dead letter" if verdict is None else str(verdict.label)
