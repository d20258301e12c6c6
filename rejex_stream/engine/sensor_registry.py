"""Which sensors of a partition are known: who is new, who is one too many, who is forgotten.

All of it is a function of the events in their order, so no cut of the input, no crash and no replay
changes who is known. Time is the partition's own: the newest event time that *two* of its sensors
have reached, so that one clock that runs ahead forgets nobody. A sensor whose own time is before
1990, or stays more than a day ahead of that while others speak, has a clock that is not believed:
where that begins and ends is said. Where that time has passed another
eighth of `forget_after`, those are looked for that were silent for so long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from rejex_stream.errors import CheckpointError
from rejex_stream.types import Reading, Status, of_mode

__all__ = ["Admission", "Gone", "Limits", "SensorRegistry", "joined"]

_LOOKS = 8
_1990_MS, _AHEAD_MS = 631_152_000_000, 86_400_000
_NEVER = -(2**63)
_ASTRAY, _MOST_FAR = -1, 64
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=_NEVER, le=2**63 - 1)]


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
    """What became of events: heard before `end`, but for those `turned_away`."""

    end: int  # index of the first event not heard yet
    turned_away: Collection[int]  # indices of events of sensors beyond ``max_keys``
    gone: Gone  # whom to :meth:`~SensorRegistry.forget` then
    clocks: Mapping[int, Status]  # where the clock of a sensor begins, or ends, to be impossible


class _Clock(msgspec.Struct, array_like=True):
    """The newest event time (of `ahead`), and the newest of all others: the partition's time."""

    ahead: str | None = None
    ahead_ms: _Time = _NEVER
    now_ms: _Time = _NEVER
    n_usual: int = 0  # events with a possible time, while any is doubted
    doubted: dict[str, int] = {}  # who is ahead: since which of these; -1: nobody believes it
    # Who is more than a day ahead of the partition's time: it moves nothing, until two agree.
    far: dict[str, _Time] = {}

    def leap(
        self, sensor: str, time_ms: int, known: tuple[str | None, int, int]
    ) -> tuple[str | None, int, int]:
        """Return who is ahead, how far, and the time, once a sensor is far ahead of that."""
        near = [
            (at, name)
            for name, at in self.far.items()
            if name != sensor and abs(at - time_ms) <= _AHEAD_MS
        ]
        if not near:
            if len(self.far) >= _MOST_FAR:
                del self.far[next(iter(self.far))]
            self.far[sensor] = time_ms
            return known
        earlier, later = sorted([max(near), (time_ms, sensor)])
        return later[1], later[0], earlier[0]

    def turned(self, sensor: str, time_ms: int, n_usual: int, *, usual: bool) -> Status | None:
        """Return whether a sensor's clock begins to be impossible with an event, or ends to be."""
        if usual:
            self.far.pop(sensor, None)
            return Status.CLOCK_ENDS if self.doubted.pop(sensor, 0) == _ASTRAY else None
        # After a stop all are ahead of what was: whose clock is wrong, is so beside others.
        since = self.doubted.setdefault(sensor, n_usual)
        if since == _ASTRAY or (time_ms >= _1990_MS and n_usual == since):
            return None
        self.doubted[sensor] = _ASTRAY
        return Status.CLOCK_BEGINS


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    limits: Limits
    clock: _Clock


class SensorRegistry:
    """Knows the sensors of one partition, and since when each is silent.

    O(1) an event, O(sensors) a look; about 400 bytes a sensor.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._clock = _Clock()
        self._last_seen: dict[str, dict[str, int]] = {}  # by sensor and stream: when, at least
        self._sensors_of: Counter[str] = Counter()  # how many sensors a stream has
        self._n_pairs = 0
        self.n_untrusted = 0  # sensors that have a clock that is not believed

    def admit(self, items: Sequence[object], start: int = 0) -> Admission:
        """Take note of events in order, up to the first before which anybody is to be forgotten.

        What is no reading is passed over. O(events).
        """
        clock, heard = self._clock, self._last_seen
        ahead, ahead_ms, now = clock.ahead, clock.ahead_ms, clock.now_ms
        forget_after, most = self.limits.forget_after_ms, self.limits.max_keys
        step = None if forget_after is None else max(1, forget_after // _LOOKS)
        turned_away: list[int] = []
        clocks: dict[int, Status] = {}
        doubted, n_usual = clock.doubted, clock.n_usual
        end, gone = len(items), Gone()
        for i in range(start, end):
            item = items[i]
            if type(item) is not Reading:
                continue
            key, sensor, time_ms, _, _ = item
            before = now
            usual = now == _NEVER or (
                time_ms - now <= _AHEAD_MS and (time_ms >= _1990_MS or now < _1990_MS)
            )
            if not usual and time_ms > now:
                ahead, ahead_ms, now = clock.leap(sensor, time_ms, (ahead, ahead_ms, now))
            elif sensor == ahead:
                ahead_ms = max(ahead_ms, time_ms)
            elif time_ms > ahead_ms:
                ahead, ahead_ms, now = sensor, time_ms, ahead_ms
            elif time_ms > now:
                now = time_ms
            if (
                now > before
                and step is not None
                and forget_after is not None
                and now // step > before // step
            ):
                gone = self._silent_since(now - forget_after)
                if gone.pairs:
                    end = i
                    break
            streams = heard.get(sensor)
            if streams is None or key not in streams:
                if most is not None and self._n_pairs >= most:
                    turned_away.append(i)
                    continue
                self._n_pairs += 1
                self._sensors_of[key] += 1
                streams = heard.setdefault(sensor, {})
            streams[key] = time_ms if time_ms > now else now
            if doubted or not usual:
                n_usual = n_usual + usual if doubted else 0
                if status := clock.turned(sensor, time_ms, n_usual, usual=usual):
                    clocks[i] = status
                    self.n_untrusted += 1 if status is Status.CLOCK_BEGINS else -1
        self._clock = _Clock(ahead, ahead_ms, now, n_usual, doubted, clock.far)
        return Admission(end, turned_away, gone, clocks)

    def _silent_since(self, before_ms: int) -> Gone:
        """Return whoever was heard of last before that time. O(sensors)."""
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
            self._clock.doubted.pop(sensor, None)
            self._clock.far.pop(sensor, None)
        for key in gone.streams:
            del self._sensors_of[key]
        self._n_pairs -= len(gone.pairs)
        self._count_untrusted()

    def __len__(self) -> int:
        return self._n_pairs

    @property
    def now_ms(self) -> int | None:
        """The partition's time: that of its only sensor, or what two of them have reached."""
        clock = self._clock
        now_ms = clock.ahead_ms if len(self._last_seen) == 1 else clock.now_ms
        return None if now_ms == _NEVER else now_ms

    def _count_untrusted(self) -> None:  # O(those that are doubted)
        self.n_untrusted = list(self._clock.doubted.values()).count(_ASTRAY)

    def view(self, sensor: str) -> dict[str, int]:
        """Return when a sensor was heard of last, by stream."""
        return dict(self._last_seen.get(sensor, {}))

    def head(self) -> dict[str, Any]:
        """Return, as plain values, what belongs to no single sensor."""
        head: dict[str, Any] = msgspec.to_builtins(_Head(self.limits, self._clock))
        return head

    def restore(self, head: object, views: Mapping[str, object]) -> None:
        """Take over :meth:`head` and every :meth:`view`; the limits of then hold."""
        try:
            found = msgspec.convert(head, _Head)
            heard = msgspec.convert(dict(views), dict[str, dict[str, _Time]])
        except msgspec.ValidationError as error:
            raise CheckpointError(f"What is known of sensors is broken: {error}.") from None
        self.limits, self._clock = found.limits, found.clock
        self._last_seen = {sensor: streams for sensor, streams in heard.items() if streams}
        self._sensors_of = Counter(key for each in self._last_seen.values() for key in each)
        self._n_pairs = self._sensors_of.total()
        self._count_untrusted()


def joined(heads: Iterable[object]) -> dict[str, Any]:
    """Return the head of parts whose streams were known apart; limits are those of the last."""
    try:
        found = [msgspec.convert(head, _Head) for head in heads]
    except msgspec.ValidationError as error:
        raise CheckpointError(f"What is known of sensors is broken: {error}.") from None
    clocks = [head.clock for head in found]
    newest = max(clocks, key=lambda clock: clock.ahead_ms)
    others = [clock.ahead_ms for clock in clocks if clock.ahead != newest.ahead]
    far = {name: at for clock in clocks for name, at in clock.far.items()}
    now_ms = max([clock.now_ms for clock in clocks] + others)
    doubted = {name: since for clock in clocks for name, since in clock.doubted.items()}
    usual = max(clock.n_usual for clock in clocks)
    clock = _Clock(newest.ahead, newest.ahead_ms, now_ms, usual, doubted, far)
    head: dict[str, Any] = msgspec.to_builtins(_Head(found[-1].limits, clock))
    return head


def _silent(streams: Mapping[str, int], before_ms: int) -> Iterable[str]:
    """Return the keys heard of last before that time; one in another mode is heard of as well."""
    silent = [key for key, last_ms in streams.items() if last_ms < before_ms]
    if not 0 < len(silent) < len(streams):
        return silent
    heard = {of_mode(key)[0] for key in streams.keys() - silent}
    return [key for key in silent if of_mode(key)[0] not in heard]
