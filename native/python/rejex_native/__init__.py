"""The native core of rejex-stream; :mod:`rejex_stream.native_core` says whether it is used.

:func:`poll` takes the events of any streams in one call, as :class:`rejex_stream.engine.Engine`
asks for, by the fast path that :func:`fast_path_of` makes of each.
"""

from functools import lru_cache

from rejex_native._core import (
    REACHED,
    Cells,
    FastPath,
    Flat,
    Lines,
    Messages,
    Points,
    admit,
    beside,
    fast_path_of,
    note,
    plain,
    poll,
    written,
)

__all__ = [
    "REACHED", "Cells", "FastPath", "Flat", "Lines", "Messages", "Points", "admit", "beside",
    "fast_path_of", "lines", "note", "plain", "poll", "written",
]  # fmt: skip

lines = lru_cache(Lines)
"""What encodes verdicts in a form; one of each."""
