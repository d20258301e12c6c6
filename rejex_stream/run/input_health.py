"""Whether a feed can be read, and scored: one gone wrong should stop, or be told of, in time."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from itertools import repeat

from rejex_stream.decode import Decoder
from rejex_stream.errors import ConnectorError
from rejex_stream.monitor import Alarm, AlarmKind, Alternative
from rejex_stream.types import Invalid, Outcome, Reason, Record, Verdict

__all__ = ["UnreadableShare", "UnscorableStreak"]

_FEW_READ = 10  # what a run found at the end of a file that others had read before
_KINDS_TOLD = 3
_MOST_CHARS = 160  # of one kind in the sentence
_DIGITS = re.compile(r"('[^']*')|\d+")
_LONG = 100
_FEW_SCORED = 10  # a handful of new rows may all have gaps


class UnreadableShare:
    """Watches the share of invalid records among the last so many.

    Parameters
    ----------
    limit
        The largest share that is tolerated; 1 tolerates all.
    window_events
        How many records the share is taken over. Before there were that many it is enough that
        the first window will be above the limit whatever comes.

    Examples
    --------
    >>> from rejex_stream.types import Position, Record
    >>> watch = UnreadableShare(0.5, window_events=22)
    >>> at = Position("t", 0, 1)
    >>> broken = Outcome(Record(at, None, b"?"), invalid=Invalid(at, "decode", "not JSON"))
    >>> watch.see([broken] * 11)
    >>> watch.complaint() is None
    True
    >>> str(watch.complaint(ended=True))[:48]
    '100% of the last 11 records could not be read (t'
    >>> watch.see([broken])
    >>> str(watch.complaint())[:48]
    '100% of the last 12 records could not be read (t'
    """

    def __init__(self, limit: float, window_events: int) -> None:
        self._limit = limit
        self._window: deque[str | None] = deque(maxlen=window_events)
        self._window_events = window_events
        self._newest: Invalid | None = None

    def see(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of outcomes in order."""
        found = [outcome.invalid for outcome in outcomes]
        if found.count(None) == len(found):
            self._window.extend(repeat(None, len(found)))
            return
        read = [None if one is None or one.silent else one.reason for one in found]
        self._window.extend(read)
        failed = (one for one in reversed(found) if one is not None and not one.silent)
        self._newest = next(failed, self._newest)

    def complaint(self, *, ended: bool = False) -> ConnectorError | None:
        """Return an error to raise if too many records could not be read. O(window).

        Parameters
        ----------
        ended
            Whether no record will come any more: what there was is then the window, ten at least.
        """
        seen = len(self._window)
        if self._newest is None or not seen:
            return None
        unread = seen - self._window.count(None)
        judged_by = seen if ended and seen >= _FEW_READ else self._window_events
        if unread / judged_by <= self._limit:
            return None
        kinds = Counter(_kind(reason) for reason in self._window if reason is not None)
        told = ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common(_KINDS_TOLD))
        others = unread - sum(count for _, count in kinds.most_common(_KINDS_TOLD))
        return ConnectorError(
            f"{unread / seen:.0%} of the last {seen} records could not be read (the limit is "
            f"{self._limit:.0%}): {told}{f', {others} × other reasons' if others else ''}. The "
            f"newest is {self._newest.position}: {self._newest.reason}. Compare the field mapping "
            "with the input; everything up to here is committed"
        )


def _kind(reason: str) -> str:
    """Return a reason without what differs from record to record."""
    kind = _DIGITS.sub(lambda found: found[1] or "…", reason.partition(", got ")[0])
    return kind if len(kind) <= _MOST_CHARS else f"{kind[: _MOST_CHARS - 1]}…"


class UnscorableStreak:
    """Watches for events in a row of which none could be scored, over all sensors.

    Parameters
    ----------
    decoder
        Says what a record lacks, where it can (:meth:`~rejex_stream.decode.JsonDecoder.lacking`).

    Attributes
    ----------
    alarm
        What is wrong, from the hundredth event of a streak to its end.

    Examples
    --------
    >>> from rejex_stream.decode import JsonDecoder
    >>> from rejex_stream.decode.mapping import FieldMapping
    >>> from rejex_stream.types import Label, Position, Verdict
    >>> watch = UnscorableStreak(JsonDecoder(FieldMapping(["flow"], fixed_sensor="m", time="t")))
    >>> at = Position("t", 0, 1)
    >>> verdict = Verdict(at, "m", "m", 5, 0, Label.REJECTED, Reason.UNSCORABLE)
    >>> watch.see([Outcome(Record(at, None, b'{"t": 5, "Flow": 2}'), verdict)] * 99)
    >>> watch.see([Outcome(Record(at, None, b'{"t": 5, "Flow": 2}'), verdict)])
    >>> watch.alarm.message
    "the last 100 events could not be scored: in t-0-1 channel 'flow' (field 'flow') is missing; \
the record has t, Flow: did you mean 'Flow'?"
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.alarm: Alarm | None = None
        self._length = 0
        self._newest: tuple[Record, Verdict] | None = None
        self._any_scorable = False

    def see(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of outcomes in order. O(1) for a batch whose last event could be scored."""
        length, newest = 0, None
        for record, verdict, *_ in reversed(outcomes):
            if verdict is None:
                continue
            if verdict.reason is not Reason.UNSCORABLE:
                self._length, self.alarm, self._any_scorable = 0, None, True
                break
            newest, length = newest or (record, verdict), length + 1
        self._length += length
        self._newest = newest or self._newest
        if self.alarm is None and self._length >= _LONG:
            self.alarm = self._alarm()

    def complaint(self) -> ConnectorError | None:
        """Return an error to raise at the end of an input of which nothing could be scored."""
        if self._any_scorable or self._length < _FEW_SCORED:
            return None
        return ConnectorError(
            f"nothing could be scored; mend input.channels, and judge this input again under "
            f"another pipeline name: {self._sentence()}"
        )

    def _alarm(self) -> Alarm:
        assert self._newest is not None
        _, verdict = self._newest
        return Alarm(
            kind=AlarmKind.NOTHING_SCORABLE,
            alternative=Alternative.MORE_REJECTS,
            stream_key=None,
            position=verdict.position,
            seq=verdict.seq,
            event_time_ms=verdict.event_time_ms,
            model_epoch=verdict.model_epoch,
            evidence=self._length,
            threshold=_LONG,
            unit="events",
            guarantee="a fact, not a test",
            message=self._sentence(),
        )

    def _sentence(self) -> str:
        assert self._newest is not None
        record, _ = self._newest
        lacking = getattr(self._decoder, "lacking", None)  # decoders of one's own need not know
        why = "" if lacking is None else f": in {record.position} {lacking(record)}"
        return f"the last {self._length} events could not be scored{why}"
