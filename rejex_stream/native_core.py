"""Which core works: the native one beside Python's, where it is installed and believed.

Who takes :func:`native` as an argument can be told to go without, as the core's self-test does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["SEAM", "core", "native"]

SEAM = 4
"""Grows with what the two say to each other: a core of another tree is left aside."""


@lru_cache(maxsize=1)
def core() -> tuple[Any, str]:
    """Return the native core, ``None`` without one, and a sentence on which core judges."""
    try:
        import rejex_native
    except ImportError:
        return None, "Python judges all events: no native core is installed (`make native`)"
    if getattr(rejex_native, "SEAM", None) != SEAM:
        return None, "Python judges all events: the native core is of another tree (`make native`)"
    return rejex_native.believed()  # type: ignore[no-any-return]


def native(name: str) -> Any:  # noqa: ANN401 - a class of its own
    """Return what the native core has by that name; ``None`` where Python works alone."""
    if core()[0] is None:
        return None
    import rejex_native

    return getattr(rejex_native, name)
