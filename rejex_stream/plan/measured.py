"""What a run really did, beside what theory said: on history or live input, in one way or two."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from rejex_stream.decode import Decoder, decode_records
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import FitFailed
from rejex_stream.monitor.rate import BATCHES, batch_means
from rejex_stream.monitor.theory import RankLaw, rank_law
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.run_events import RunEvent
from rejex_stream.threads import one_thread
from rejex_stream.types import (
    Invalid,
    Label,
    Outcome,
    OutcomeCounts,
    Partition,
    Position,
    Reading,
    Record,
    Verdict,
    is_ranked,
    policy_band,
)

__all__ = [
    "Counting", "Differences", "Measured", "Measurement", "NothingSink", "Replayed", "replay",
]  # fmt: skip

_CONFIDENCE = 0.99
_BATCH = 5_000
_EXAMPLES = 5


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. Rates are shares of ranked events: those the theory speaks of.

    Attributes
    ----------
    events, invalid
        Readable records and unreadable ones.
    normal, anomaly, rejected
        Verdicts by label.
    reasons
        Rejected verdicts by reason.
    ranked
        Verdicts with a rank among enough scores, so neither warm-up nor unscorable nor constant.
    rejection_rate, expected_rate
        Measured, and the mean of w / (n + 1) over the very windows that were used.
    lower, upper
        99 % limits of the measured rate that allow for autocorrelation (batch means); ``None``
        below 60 ranked events.
    anomaly_rate
        Share of accepted anomalies.
    withheld_rate
        Share that the policy's own band would have rejected and the review budget had no credit
        for.
    inflation
        How much more the rate varies than that of independent events would.
    """

    events: int
    invalid: int
    normal: int
    anomaly: int
    rejected: int
    reasons: dict[str, int]
    ranked: int
    rejection_rate: float | None
    expected_rate: float | None
    lower: float | None
    upper: float | None
    anomaly_rate: float | None
    withheld_rate: float | None
    inflation: float | None


@dataclass(slots=True)
class Measurement:
    """Counts outcomes as they come; two bytes an event, O(1) each."""

    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    _cells: bytearray = field(default_factory=bytearray)  # of the policy's own band
    _rejected: bytearray = field(default_factory=bytearray)
    _expected: float = 0.0

    def add(self, verdicts: Iterable[Verdict], *, invalid: int = 0) -> None:
        """Count verdicts in order, and how many records beside them could not be read."""
        verdicts = list(verdicts)
        self.counts.add_verdicts(verdicts)
        self.counts.n_invalid += invalid
        for verdict in filter(is_ranked, verdicts):
            law = _law_of(verdict)
            assert verdict.rank is not None
            self._cells.append(law.cell(verdict.rank))
            self._rejected.append(verdict.label is Label.REJECTED)
            self._expected += law.rejection_rate

    def measured(self) -> Measured:
        """Return everything counted so far. O(events)."""
        counts, ranked = self.counts, self.counts.n_ranked
        means = batch_means(bytes(self._rejected), _CONFIDENCE)
        # Of the batches from the first event on; those of the limits end with the last one.
        whole = batch_means(bytes(self._cells[: ranked // BATCHES * BATCHES]), _CONFIDENCE)
        return Measured(
            events=counts.labels.total(), invalid=counts.n_invalid,
            normal=counts.labels[Label.NORMAL], anomaly=counts.labels[Label.ANOMALY],
            rejected=counts.labels[Label.REJECTED],
            reasons={str(reason): count for reason, count in sorted(counts.reasons.items())},
            ranked=ranked, rejection_rate=counts.rejection_rate,
            expected_rate=_share(self._expected, ranked),
            lower=None if means is None else means.lower,
            upper=None if means is None else means.upper,
            anomaly_rate=_share(counts.labels[Label.ANOMALY], ranked),
            withheld_rate=_share(counts.n_withheld, ranked),
            inflation=None if whole is None else whole.inflation,
        )  # fmt: skip


def _law_of(verdict: Verdict) -> RankLaw:
    lower, upper = policy_band(verdict)
    assert lower is not None
    assert upper is not None
    return rank_law(verdict.window_len, verdict.n_anomalies, lower, upper)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# ------------------------------------------------------- history, or a run without output
@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay; where a fit failed, the model before went on."""

    counts: OutcomeCounts
    measured: Measured
    failures: tuple[FitFailed, ...]
    first_invalid: Invalid | None


def replay(
    spec: EngineSpec, decoder: Decoder, records: Iterable[Record], *,
    on_judged: Callable[[Sequence[Reading], Sequence[Verdict]], object] | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> Replayed:  # fmt: skip
    """Judge records in order and count what comes of them."""
    engine = Engine(spec, InlineExecutor())
    measurement = Measurement()
    failures: list[FitFailed] = []
    first_invalid: Invalid | None = None
    done = 0
    source = iter(records)
    with one_thread():
        while batch := list(islice(source, _BATCH)):
            _, decoded = decode_records(decoder, batch)
            readings = [item for item in decoded if isinstance(item, Reading)]
            unread = [item for item in decoded if isinstance(item, Invalid) and not item.silent]
            first_invalid = first_invalid or next(iter(unread), None)
            verdicts = engine.process(readings)
            measurement.add(verdicts, invalid=len(unread))
            failures += engine.take_failures()
            if on_judged is not None:
                on_judged(readings, verdicts)
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
    engine.close()
    return Replayed(measurement.counts, measurement.measured(), tuple(failures), first_invalid)


class NothingSink:
    """A sink that writes nothing and commits nothing; see :class:`~.protocols.Sink`."""

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes and forget them."""

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Make nothing durable."""

    def abort(self) -> None:
        """Forget nothing."""

    def close(self) -> None:
        """Let go of nothing."""


class Counting:
    """An observer that counts outcomes, and sets `stop` after `limit` of them, if there is one."""

    def __init__(self, stop: threading.Event, limit: int | None = None) -> None:
        self.measurement = Measurement()
        self._stop, self._left = stop, limit

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Count a batch, up to the limit."""
        if replaying:
            return
        if self._left is not None:
            outcomes = outcomes[: self._left]
            self._left -= len(outcomes)
            if self._left <= 0:
                self._stop.set()
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        self.measurement.add(verdicts, invalid=len(outcomes) - len(verdicts))

    def event(self, event: RunEvent) -> None:
        """See what happened to the run; nothing to count."""


# ---------------------------------------------------------------- two ways to judge
@dataclass
class Differences:
    """What two ways of judging made of the same records."""

    records: int = 0
    counts: tuple[OutcomeCounts, OutcomeCounts] = field(
        default_factory=lambda: (OutcomeCounts(), OutcomeCounts())
    )
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By what became of a record in the first way and in the second: a label or `dead letter`."""
    figures: int = 0
    """Verdicts with the same label and other figures (score, rank, reason, ...)."""
    other: int = 0
    """Records of which anything differs: verdict, review item or incident."""
    sensors: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[Position, str, str]] = field(default_factory=list)

    @property
    def changed(self) -> int:
        """How many records have another label."""
        return sum(count for (before, after), count in self.labels.items() if before != after)

    def most_changed(self, n: int) -> list[tuple[str, int]]:
        """Return the sensors with most changes. O(s log s)."""
        return sorted(self.sensors.items(), key=lambda item: (-item[1], item[0]))[:n]

    def add(
        self, first: Sequence[Outcome], second: Sequence[Outcome], since_ms: int | None = None
    ) -> None:
        """Compare what became of the same records since a time. O(records).

        What lies before it was judged as well: a verdict depends on what went before. Records that
        cannot be read have no time, and count.
        """
        pairs = list(zip(first, second, strict=True))
        if since_ms is not None:
            pairs = [pair for pair in pairs if _is_since(since_ms, *pair)]
        self.records += len(pairs)
        for counts, outcomes in zip(self.counts, zip(*pairs, strict=True), strict=False):
            counts.add(outcomes)
        labels = [(_label(before[1]), _label(after[1])) for before, after in pairs]
        self.labels.update(labels)
        for (before, after), (was, is_) in zip(pairs, labels, strict=True):
            if before is after or before[1:] == after[1:]:
                continue
            self.other += 1
            if was != is_:
                named = before.verdict or after.verdict
                assert named is not None
                self.sensors[named.sensor] += 1
                if len(self.examples) < _EXAMPLES:
                    self.examples.append((before.record.position, was, is_))
            elif before.verdict != after.verdict:
                self.figures += 1


def _is_since(since_ms: int, first: Outcome, second: Outcome) -> bool:
    verdict = first.verdict or second.verdict
    return verdict is None or verdict.event_time_ms >= since_ms


def _label(verdict: Verdict | None) -> str:
    return "dead letter" if verdict is None else str(verdict.label)
