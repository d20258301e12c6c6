"""Why the queue says no to a reviewer: always with who, what and what to do now."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rejex_stream.errors import RejexError

__all__ = ["Refusal", "RefusalCode"]

RefusalCode: TypeAlias = Literal[
    "leased", "changed", "unknown", "not_yours", "lapsed", "forbidden", "bad_request", "nothing"
]


class Refusal(RejexError):  # noqa: N818 - a refused action is an answer, not a failure
    """An action on the queue that is not possible now; nothing was written.

    Parameters
    ----------
    code
        ``leased`` (somebody else holds it), ``changed`` (decided or grown meanwhile), ``unknown``,
        ``not_yours``, ``lapsed`` (the claim ran out), ``forbidden`` (role), ``bad_request``,
        ``nothing`` (nothing to undo or to claim).
    message
        One sentence for the reviewer.
    episode_id
        The episode it is about, where there is one.
    """

    def __init__(self, code: RefusalCode, message: str, episode_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.episode_id = episode_id
