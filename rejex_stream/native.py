"""The native core, where it is installed: ordinary events in one call each, the same to the bit."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

__all__ = ["core"]


@lru_cache(maxsize=1)
def core() -> Any:  # noqa: ANN401 - a module that need not be there
    """Return the native core, or None."""
    if os.environ.get("REJEX_CORE") == "python":
        return None
    try:
        import rejex_native
    except ImportError:
        return None
    return rejex_native
