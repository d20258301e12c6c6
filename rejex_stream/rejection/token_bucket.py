"""A budget of rejections that holds on any stream, by a credit of whole numbers.

With a fixed tolerance the rejection rate is what theory says where scores are exchangeable, and on
drifting or autocorrelated streams up to several times that. Here a stream has a credit of at most B
events. Every ranked event earns the rate ρ, every rejected one costs 1, and the band is as wide as
the credit is full: the first w ranks of the order in which ranks enter as T grows
(:func:`rejex_stream.rejection.band.nested_band`).

Theorem: in any L consecutive ranked events of any stream, at most ρL + B are rejected. Earned by
event time: at most per_day τ + B while the trusted clock (:mod:`rejex_stream.trusted_clock`)
advances by τ days. Nothing is assumed of the scores. Proof, and what stays true of the exact law:
``docs/explanation/theory.md``.

References
----------
.. [1] I. Gibbs, E. Candès: Adaptive Conformal Inference Under Distribution Shift. NeurIPS 2021.
   The credit is their update, clamped, with step 2ρ/B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any
from zlib import crc32

from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.rejection.arguments import decimal
from rejex_stream.rejection.band import RejectionBand, nested_band, widest_band
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.trusted_clock import TrustedClock
from rejex_stream.types import MODE_MARK, of_mode

DAY_MS = 86_400_000
MAX_GONE, N_OVERFLOW_BUCKETS = 4096, 1024
"""How many owners that were forgotten are known by name, and the drawers for the others."""
_OVERFLOW = 2 * MODE_MARK  # begins no name of a stream or group


class TokenBucket:
    """The credit of one owner, and the band it allows.

    Whole numbers: `credit` is there, `cost_per_rejection` is what one rejected event costs (the
    denominator of ρ, read as the decimal that was typed), `capacity` is B times that, and it begins
    full. A record that is ahead of the trusted time, be it by a century, neither earns nor keeps
    later ones from earning.

    O(1) an event, but for widths that were never met (O(log n), then cached for all streams).
    """

    __slots__ = (
        "_bands", "_clock", "_earns", "_n", "_policy", "capacity", "cost_per_rejection", "credit",
        "events_seen", "is_shared",
    )  # fmt: skip

    def __init__(self, policy: RejectionPolicy, *, is_shared: bool = False) -> None:
        assert policy.rate is not None
        assert policy.burst is not None
        earns = decimal(policy.rate)
        if policy.per_day is not None:
            earns = decimal(policy.per_day) / DAY_MS
        self._policy = policy
        self._clock = None if policy.per_day is None else TrustedClock()
        self._earns, self.cost_per_rejection = earns.numerator, earns.denominator
        self.credit = self.capacity = policy.burst * self.cost_per_rejection
        self.is_shared, self.events_seen = is_shared, 0
        self._n = 0
        self._bands: list[RejectionBand | None] = []

    @property
    def latest_ms(self) -> int | None:
        """The time that is believed."""
        return None if self._clock is None else self._clock.now_ms

    def allow(self, n: int, sensor: str, event_time_ms: int) -> RejectionBand:
        """Earn for one ranked event; return the band that the credit allows for it."""
        earned = self._earns
        self.events_seen += 1
        clock = self._clock
        if clock is not None:
            before, now = clock.now_ms, clock.advance(sensor, event_time_ms)
            earned *= 0 if before is None or now is None else max(0, now - before)
        capacity = self.capacity
        self.credit = credit = min(capacity, self.credit + earned)
        if n != self._n:
            self._n, self._bands = n, _bands(self._policy, n)
        bands = self._bands
        width = (len(bands) - 1) * credit // capacity if credit >= self.cost_per_rejection else 0
        band = bands[width]
        if band is None:
            band = bands[width] = nested_band(n, self._policy.contamination, width)
        return band

    def spend(self) -> None:
        """Pay for an event that the band of :meth:`allow` rejected: without credit it is empty."""
        self.credit -= self.cost_per_rejection

    def state(self) -> list[Any]:
        """Return what is kept in a snapshot; text, for whole numbers of any size."""
        clock = None if self._clock is None else self._clock.state()
        state = [str(self.credit), str(self.cost_per_rejection), clock]
        return [*state, self.events_seen, self._policy.owner] if self.is_shared else state

    def restore(self, state: list[Any]) -> None:
        """Go on from a state; under another budget, with as many events of credit as fit.

        One of another owner says nothing of this one. Where it is shared, the newest counts.
        """
        credit, price, clock, asked, owner = state if len(state) > 3 else (*state, 0, None)
        if not isinstance(asked, int):
            raise TypeError(f"a credit that was asked for {asked!r} events")
        had, paid = int(credit or 0), int(price or 0)
        if had < 0 or paid < 1:
            raise ValueError(f"a credit of {had} at a price of {paid}")
        if owner != (self._policy.owner if self.is_shared else None):
            return
        if self.is_shared and asked <= self.events_seen:
            return
        if self._clock is not None and clock is not None:
            self._clock.restore(clock)
        self.credit = min(self.capacity, had * self.cost_per_rejection // paid)
        self.events_seen = asked


def base_width(policy: RejectionPolicy, n: int) -> int:
    """Return the width of the band at full credit: twice the policy's own, with both labels left.

    Twice, so that a stream without a trend settles at half its credit and at the policy's own
    width; mostly that is far from the widest, which lies where tails are too small for floats.
    O(log n).
    """
    twice = 2 * policy.band(n).width
    if twice <= n and nested_band(n, policy.contamination, twice).can_accept_both:
        return twice
    return widest_band(n, policy.contamination)


@lru_cache(maxsize=1024)
def _bands(policy: RejectionPolicy, n: int) -> list[RejectionBand | None]:
    return [None] * (base_width(policy, n) + 1)


class Credits:
    """The credits of a partition that belong to no single stream in memory.

    Those that streams share, by owner: a group's, a partition's, and that of a stream whose
    operating modes (`modes`) are judged apart. And what owners left that were forgotten: who comes
    back finds it. An owner that left nothing spent is not noted.

    A shared credit travels in the state of each of its streams, with a count of the events it has
    seen, and in the head of a snapshot, which is older than what streams know, or as old.

    Memory is bounded: of more than :data:`MAX_GONE` that are gone, the oldest are known by one of
    :data:`N_OVERFLOW_BUCKETS` overflow buckets, which holds the least credit that was put into it.
    Somebody new may begin with less than a whole burst, and nobody with more than is theirs. O(1),
    but for that.
    """

    def __init__(self, policy: RejectionPolicy, *, modes: bool = False) -> None:
        self._policy, self._modes = policy, modes
        self._by_owner: dict[str, TokenBucket] = {}
        self._n_streams: Counter[str] = Counter()  # of the owners that share
        self._gone: dict[str, list[Any]] = {}  # by owner or overflow, oldest first
        self._in_snapshot: Mapping[str, list[Any]] = {}

    @property
    def are_shared(self) -> bool:
        """Whether any streams share one, so that events are judged in their order."""
        policy = self._policy
        return policy.burst is not None and (self._modes or policy.owner != "stream")

    def of(self, stream_key: str) -> TokenBucket | None:
        """Return the credit that a stream shares, if it does; O(1)."""
        owner, is_shared = self._owner(stream_key)
        return self._of_owner(owner) if is_shared else None

    def _owner(self, stream_key: str) -> tuple[str, bool]:
        stream_key = of_mode(stream_key)[0]
        owner = self._policy.shared_by(stream_key)
        if owner is not None:
            return owner, True
        return MODE_MARK + stream_key, self._modes and self._policy.burst is not None

    def _of_owner(self, owner: str) -> TokenBucket:
        shared = self._by_owner.get(owner)
        if shared is None:
            shared = self._by_owner[owner] = TokenBucket(self._policy, is_shared=True)
            left = self._take(owner, self._policy.owner)
            if left is not None:
                _restore(shared, left)
        return shared

    def _take(self, owner: str, kind: str | None) -> list[Any] | None:
        return self._gone.pop(owner, None) or self._gone.get(_overflow_bucket(owner, kind))

    def register(self, stream_key: str) -> list[Any] | None:
        """Know of a stream that is new; return the credit of its own that it left, if it did."""
        owner, is_shared = self._owner(stream_key)
        if is_shared:
            self._n_streams[owner] += 1
            return None
        return self._take(owner, None)

    def release(self, stream_key: str, credit: list[Any] | None) -> None:
        """Keep what a stream leaves that is forgotten: its credit, or one that it shared last."""
        owner, is_shared = self._owner(stream_key)
        if is_shared:
            self._n_streams[owner] -= 1
            if self._n_streams[owner] > 0:
                return
            del self._n_streams[owner]
            shared = self._by_owner.pop(owner, None)
            credit = credit if shared is None else shared.state()
        if credit is None or _events(credit) >= (self._policy.burst or 0):
            return
        self._gone[owner] = credit
        if len(self._gone) > MAX_GONE + N_OVERFLOW_BUCKETS:
            self._compact()

    def _compact(self) -> None:
        """Put the older half of those that are gone into drawers, without their clocks."""
        names = [owner for owner in self._gone if not owner.startswith(_OVERFLOW)]
        for owner in names[: len(names) // 2]:
            credit, price, _, *of = self._gone.pop(owner)
            overflow = _overflow_bucket(owner, of[1] if of else None)
            there = self._gone.get(overflow)
            if there is None or _events([credit, price]) < _events(there):
                self._gone[overflow] = [credit, price, None, *of]

    def state(self) -> dict[str, list[Any]]:
        """Return the credits of all owners, of those that are gone, too, for a snapshot."""
        return self._gone | {owner: one.state() for owner, one in self._by_owner.items()}

    def load(self, credits: Mapping[str, list[Any]]) -> None:
        """Know what :meth:`state` said, once :meth:`rebuild` says who is there."""
        self.clear()
        self._in_snapshot, self._gone = credits, dict(credits)
        if self._policy.burst is not None:
            for credit in credits.values():
                _restore(TokenBucket(self._policy, is_shared=len(credit) > 3), credit)

    def rebuild(
        self, policy: RejectionPolicy, streams: Iterable[str],
        known: Iterable[tuple[str, list[Any] | None]], *, is_lazy: bool,
    ) -> None:  # fmt: skip
        """Make them again for a policy, each from the newest that any of its streams knows.

        `streams` are all of them, `known` what those know that are not in memory. While all are
        `is_lazy` only snapshots count: by a decision in between a credit may have been cut.
        """
        self._gone = dict(self._in_snapshot) if is_lazy else self.state()
        self._policy, self._by_owner = policy, {}
        owners = [self._owner(key) for key in streams]
        self._n_streams = Counter(owner for owner, is_shared in owners if is_shared)
        for owner in self._n_streams:
            self._of_owner(owner)
        for key, credit in known:
            one = self.of(key)
            if one is not None and credit is not None:
                _restore(one, credit)

    def clear(self) -> None:
        """Forget all of them."""
        self._by_owner, self._gone, self._in_snapshot = {}, {}, {}
        self._n_streams.clear()


def _overflow_bucket(owner: str, kind: str | None) -> str:
    return f"{_OVERFLOW}{kind or ''}{crc32(owner.encode()) % N_OVERFLOW_BUCKETS}"


def _events(credit: Sequence[Any]) -> Fraction:
    return Fraction(int(credit[0]), int(credit[1]))


def _restore(bucket: TokenBucket, credit: list[Any]) -> None:
    """Let a bucket know of a credit; an older one than its own changes nothing."""
    try:
        bucket.restore(credit)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"The credit in a snapshot is none ({type(error).__name__}: {error}): {WAY_OUT}."
        ) from error
