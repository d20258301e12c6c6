"""Credits of review budgets that streams have in common, by owner.

A credit travels in the state of each of its streams, with a count of the events it has seen, and in
the head of a snapshot: where all streams of an owner are forgotten, its budget is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rejex_stream.engine.stream import StreamSnapshot, credit_in
from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.token_bucket import Governor
from rejex_stream.types import of_mode

__all__ = ["SharedCredits"]


class SharedCredits:
    """The governors that streams share under a policy; none where each stream has its own.

    Parameters
    ----------
    policy
        Which says who owns a budget.

    Attributes
    ----------
    kept
        Credits as the head of a snapshot had them; older than what streams know, or as old.
    """

    def __init__(self, policy: RejectionPolicy) -> None:
        self._policy = policy
        self._by_owner: dict[str, Governor] = {}
        self.kept: Mapping[str, list[Any]] = {}

    def of(self, stream_key: str) -> Governor | None:
        """Return the credit that a stream shares, if it does; O(1)."""
        owner = self._policy.shared_by(of_mode(stream_key)[0])
        return None if owner is None else self._of_owner(owner)

    def _of_owner(self, owner: str) -> Governor:
        shared = self._by_owner.get(owner)
        if shared is None:
            shared = self._by_owner[owner] = Governor(self._policy, is_shared=True)
        return shared

    def state(self) -> dict[str, list[Any]]:
        """Return all credits as plain values."""
        return dict(self.kept) | {owner: one.state() for owner, one in self._by_owner.items()}

    def renew(
        self, policy: RejectionPolicy, idle: Mapping[str, StreamSnapshot], *, asleep: bool
    ) -> None:
        """Make them anew for a policy, each from the newest that anybody knows of its owner.

        While all streams are `asleep` only snapshots count: by a decision in between a credit may
        have been cut.

        Raises
        ------
        CheckpointError
            If a snapshot is broken.
        """
        before = {} if asleep else {owner: one.state() for owner, one in self._by_owner.items()}
        self._policy, self._by_owner = policy, {}
        if policy.owner == "stream":
            return
        for known in (before, self.kept):
            for owner, credit in known.items():
                _restore(self._of_owner(owner), credit)
        for key, kept in idle.items():
            shared, known_to_it = self.of(key), credit_in(kept)
            if shared is not None and known_to_it is not None:
                _restore(shared, known_to_it)

    def drop(self) -> None:
        """Forget all of them."""
        self._by_owner, self.kept = {}, {}


def _restore(governor: Governor, credit: list[Any]) -> None:
    """Let a governor know of a credit; an older one than its own changes nothing."""
    try:
        governor.restore(credit)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"The credit in a snapshot is none ({type(error).__name__}: {error}): {WAY_OUT}."
        ) from error
