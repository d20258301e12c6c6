"""A pipeline tried on what there is already: history replayed, or live input without an output."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rejex_stream.decode import Decoder, decode_records
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.model import FitFailed
from rejex_stream.plan.measured import Measured, Measurement
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.progress import RunEvent
from rejex_stream.threads import one_thread
from rejex_stream.types import Invalid, Outcome, Partition, Reading, Record, Verdict

__all__ = [
    "Counting",
    "NothingSink",
    "Replayed",
    "replay",
]

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay.

    Attributes
    ----------
    measured
        Counts, rates, episodes.
    failures
        Fits that failed; the model before each went on.
    first_invalid
        The first record that could not be read.
    """

    measured: Measured
    failures: tuple[FitFailed, ...]
    first_invalid: Invalid | None


def replay(
    spec: EngineSpec,
    decoder: Decoder,
    records: Iterable[Record],
    *,
    on_verdicts: Callable[[Sequence[Verdict]], object] | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> Replayed:
    """Judge records in order and count what comes of them."""
    engine = Engine(spec, InlineExecutor())
    measurement = Measurement()
    failures: list[FitFailed] = []
    first_invalid: Invalid | None = None
    done = 0
    source = iter(records)
    with one_thread():
        while batch := list(itertools.islice(source, _BATCH)):
            _, decoded = decode_records(decoder, batch)
            readings = [item for item in decoded if isinstance(item, Reading)]
            unread = [item for item in decoded if isinstance(item, Invalid) and not item.silent]
            first_invalid = first_invalid or next(iter(unread), None)
            verdicts = engine.process(readings)
            measurement.add(verdicts, invalid=len(unread))
            failures += engine.take_failures()
            if on_verdicts is not None:
                on_verdicts(verdicts)
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
    engine.close()
    return Replayed(measurement.measured(), tuple(failures), first_invalid)


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
    """An observer that counts outcomes, and ends the run after `limit` of them.

    Attributes
    ----------
    measurement
        The counts.
    """

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
