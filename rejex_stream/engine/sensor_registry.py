"""Which sensors of a partition are known: who is new, who is one too many, who is forgotten.

All of it is a function of the events in their order, so no cut of the input, no crash and no replay
changes who is known. Time is the partition's trusted clock (:mod:`rejex_stream.trusted_clock`), so
one sensor whose clock runs ahead forgets nobody. Where it has passed another eighth of
`forget_after`, those are looked for that were silent for so long.

The clock of a sensor is doubted where its time is before 1990, or more than a day ahead of the
trusted one; it is untrusted once others speak meanwhile. Where that begins and ends is a status.
Where a sensor stops sending is an incident (:mod:`rejex_stream.engine.silences`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from rejex_stream.engine.silences import Silences
from rejex_stream.errors import CheckpointError
from rejex_stream.native_core import native
from rejex_stream.trusted_clock import DAY_MS, FIRST_MS, TrustedClock
from rejex_stream.types import Incident, Reading, Status, of_mode

_LOOKS = 8
_UNTRUSTED = -1
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a sensor may be silent, and how many are known; ``None``: no limit."""

    # milliseconds of event time; looked at every eighth of it
    forget_after_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    # sensors of a partition; one that speaks in two groups, or modes, is two
    max_keys: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Gone(NamedTuple):
    """Who is forgotten: sensors of streams, and what of both has nothing left."""

    pairs: Sequence[tuple[str, str]] = ()
    streams: Collection[str] = ()
    sensors: Collection[str] = ()


class Admission(NamedTuple):
    """What became of events: heard before `end`, but for those `over_limit`."""

    end: int  # index of the first event not heard yet
    over_limit: Collection[int]  # indices of events of sensors beyond ``max_keys``
    gone: Gone  # whom to :meth:`~SensorRegistry.forget` then
    clocks: Mapping[int, Status]  # where the clock of a sensor begins, or ends, to be impossible
    silences: Mapping[int, Sequence[Incident]]  # where one of a sensor begins, or ends


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    limits: Limits
    clock: list[Any]  # the state of the trusted clock
    n_usual: int = 0  # events with a possible time, while any clock is doubted
    doubted: dict[str, int] = {}  # by sensor: since which of these; -1: it is untrusted
    silences: dict[str, Any] = {}


class _View(msgspec.Struct, array_like=True):
    streams: dict[str, _Time]
    gaps: Any = None


class SensorRegistry:
    """Knows the sensors of one partition, and since when each is silent.

    O(1) an event, O(sensors) a look; about 1,400 bytes a sensor.
    """

    def __init__(self, limits: Limits | None = None, native: Callable[[str], Any] = native) -> None:
        self.limits, self._native = limits or Limits(), native("admit")
        self._clock = TrustedClock()
        self._n_usual, self._doubted = 0, dict[str, int]()
        self._last_seen: dict[str, dict[str, int]] = {}  # by sensor and stream: when, at least
        self._sensors_of: Counter[str] = Counter()  # how many sensors a stream has
        self._n_pairs = 0
        self.n_untrusted = 0  # sensors that have a clock that is not believed
        self.silences = Silences()
        self.sees_all = True  # the events of all sensors of the partition: else nobody is silent

    def admit(self, items: Sequence[object], start: int = 0) -> Admission:
        """Take note of events in order, up to the first before which anybody is to be forgotten.

        What is no reading is passed over. O(events).
        """
        clock, last_seen, limits = self._clock, self._last_seen, self.limits
        forget_after, max_keys = limits.forget_after_ms, limits.max_keys
        over_limit: list[int] = []
        clocks: dict[int, Status] = {}
        silences: dict[int, Sequence[Incident]] = {}
        at, end = start, len(items)
        while at < end:
            if self._native is not None and (at := self._native(self, items, at)) == end:
                break
            i, item, at = at, items[at], at + 1
            if type(item) is not Reading:
                continue
            key, sensor, time_ms, _, _ = item
            before, now = clock.now_ms, clock.advance(sensor, time_ms)
            if forget_after is not None and now is not None and now != before:
                step = max(1, forget_after // _LOOKS)
                if before is None or now // step > before // step:
                    gone = self._silent_since(now - forget_after)
                    if gone.pairs:  # this event comes again, once they are forgotten
                        return Admission(i, over_limit, gone, clocks, silences)
            streams = last_seen.get(sensor)
            if streams is None or key not in streams:
                if max_keys is not None and self._n_pairs >= max_keys:
                    over_limit.append(i)
                    continue
                self._n_pairs += 1
                self._sensors_of[key] += 1
                streams = last_seen.setdefault(sensor, {})
            streams[key] = time_ms if now is None or time_ms > now else now
            if now is not None:
                turned = self.silences.hear(
                    item, now, by_others=self.sees_all and not clock.is_by_one
                )
                if turned:
                    silences[i] = turned
            is_usual = before is None or (
                time_ms - before <= DAY_MS and (time_ms >= FIRST_MS or before < FIRST_MS)
            )
            if self._doubted or not is_usual:
                status = self._clock_status(sensor, time_ms, is_usual=is_usual)
                if status is not None:
                    clocks[i] = status
        return Admission(len(items), over_limit, Gone(), clocks, silences)

    def _clock_status(self, sensor: str, time_ms: int, *, is_usual: bool) -> Status | None:
        """Return whether a sensor's clock begins to be untrusted with an event, or ends to be."""
        doubted = self._doubted
        self._n_usual = self._n_usual + is_usual if doubted else 0
        if is_usual:
            if doubted.pop(sensor, 0) != _UNTRUSTED:
                return None
            self.n_untrusted -= 1
            return Status.CLOCK_ENDS
        # After a stop all are ahead of what was: whose clock is wrong, is so beside others.
        since = doubted.setdefault(sensor, self._n_usual)
        if since == _UNTRUSTED or (time_ms >= FIRST_MS and self._n_usual == since):
            return None
        doubted[sensor] = _UNTRUSTED
        self.n_untrusted += 1
        return Status.CLOCK_BEGINS

    def _silent_since(self, before_ms: int) -> Gone:
        ended = [
            (key, sensor)
            for sensor, streams in self._last_seen.items()
            for key in _silent(streams, before_ms)
        ]
        by_key, by_sensor = Counter(key for key, _ in ended), Counter(name for _, name in ended)
        return Gone(
            ended,
            {key for key, n in by_key.items() if n == self._sensors_of[key]},
            {sensor for sensor, n in by_sensor.items() if n == len(self._last_seen[sensor])},
        )

    def forget(self, gone: Gone) -> None:
        """Forget whom :meth:`hear` told of. O(those)."""
        for key, sensor in gone.pairs:
            del self._last_seen[sensor][key]
            self._sensors_of[key] -= 1
        for sensor in gone.sensors:
            del self._last_seen[sensor]
            self._doubted.pop(sensor, None)
            self.silences.forget(sensor)
        for key in gone.streams:
            del self._sensors_of[key]
        self._n_pairs -= len(gone.pairs)
        self._count_untrusted()

    def __len__(self) -> int:
        return self._n_pairs

    @property
    def now_ms(self) -> int | None:
        """The partition's time; ``None`` before any is believed."""
        return self._clock.now_ms

    def _count_untrusted(self) -> None:  # O(those that are doubted)
        self.n_untrusted = list(self._doubted.values()).count(_UNTRUSTED)

    def view(self, sensor: str) -> list[Any]:
        """Return when a sensor was heard of last, by stream, and how long its gaps are."""
        return [dict(self._last_seen.get(sensor, {})), self.silences.view(sensor)]

    def head(self) -> dict[str, Any]:
        """Return, as plain values, what belongs to no single sensor."""
        head: dict[str, Any] = msgspec.to_builtins(
            _Head(
                self.limits, self._clock.state(), self._n_usual, self._doubted, self.silences.head()
            )
        )
        return head

    def restore(self, head: object, views: Mapping[str, object]) -> None:
        """Take over :meth:`head` and every :meth:`view`; the limits of then hold."""
        try:
            found = msgspec.convert(head, _Head)
            heard = msgspec.convert(dict(views), dict[str, _View])
            self._clock.restore(found.clock)
            gaps = {sensor: view.gaps for sensor, view in heard.items()}
            self.silences.restore(found.silences, gaps)
        except msgspec.ValidationError as error:
            raise CheckpointError(f"What is known of sensors is broken: {error}.") from None
        self.limits, self._n_usual, self._doubted = found.limits, found.n_usual, found.doubted
        self._last_seen = {sensor: view.streams for sensor, view in heard.items() if view.streams}
        self._sensors_of = Counter(key for each in self._last_seen.values() for key in each)
        self._n_pairs = self._sensors_of.total()
        self._count_untrusted()


def _silent(streams: Mapping[str, int], before_ms: int) -> Iterable[str]:
    """Return the keys heard of last before that time; one in another mode is heard of as well."""
    silent = [key for key, last_ms in streams.items() if last_ms < before_ms]
    if not 0 < len(silent) < len(streams):
        return silent
    heard = {of_mode(key)[0] for key in streams.keys() - silent}
    return [key for key in silent if of_mode(key)[0] not in heard]
