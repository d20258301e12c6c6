"""Which keys are a stream's: one in each operating mode that was heard of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rejex_stream.types import of_mode

__all__ = ["Modes"]


class Modes:
    """The keys of each stream, where keys name a mode; else every stream is its own key.

    Parameters
    ----------
    told_apart
        Whether keys name a mode (:func:`~rejex_stream.types.in_mode`).

    Examples
    --------
    >>> from rejex_stream.types import in_mode
    >>> modes = Modes(told_apart=True)
    >>> modes.know([in_mode("WT-03", "idle"), in_mode("WT-03", "load")])
    >>> modes.named(in_mode("WT-03", "idle")), len(modes.of("WT-03")), modes.of("WT-04")
    (('WT-03', 'idle'), 2, [])
    """

    __slots__ = ("_keys", "_told_apart")

    def __init__(self, *, told_apart: bool) -> None:
        self._told_apart = told_apart
        self._keys: dict[str, dict[str, None]] = {}

    def named(self, key: str) -> tuple[str, str | None]:
        """Return the stream and the mode of a key."""
        return of_mode(key) if self._told_apart else (key, None)

    def know(self, keys: Iterable[str]) -> None:
        """Take note of keys."""
        if self._told_apart:
            for key in keys:
                self._keys.setdefault(of_mode(key)[0], {})[key] = None

    def of(self, stream_key: str) -> Sequence[str]:
        """Return the keys that are known of a stream."""
        return list(self._keys.get(stream_key, ())) if self._told_apart else [stream_key]

    def others(self, key: str) -> Sequence[str]:
        """Return the keys of the same stream in its other modes."""
        stream_key, mode = self.named(key)
        return [] if mode is None else [other for other in self.of(stream_key) if other != key]

    def forget(self, key: str) -> None:
        """Forget a key."""
        stream_key, _ = self.named(key)
        keys = self._keys.get(stream_key, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(stream_key, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._keys.clear()
