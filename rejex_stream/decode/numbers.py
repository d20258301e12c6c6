"""Numbers as people and programs write them: decimal and thousands marks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from rejex_stream.errors import ConfigError

__all__ = ["DECIMALS", "THOUSANDS", "number_reader"]

DECIMALS = (".", ",")
THOUSANDS = (",", ".", " ", "'")

MISSING_TEXTS = frozenset(("", "nan", "na", "n/a", "null", "none"))
"""What stands in a cell without a value."""

# Spreadsheets write several characters where people see one.
_LOOKALIKES = {" ": " \u00a0\u2009\u202f", "'": "'’"}


def number_reader(
    decimal: str = ".", thousands: str | None = None, missing: Iterable[str] = ()
) -> Callable[[str], float | None]:
    """Make what reads a text as a number, strictly: ``None`` where it is none.

    A thousands mark must stand between groups of three digits, so ``1,5`` is never fifteen. An
    empty cell and ``nan``, ``na``, ``n/a``, ``null`` and ``none`` are nan, and so is infinity.

    Parameters
    ----------
    decimal
        ``.`` or ``,``.
    thousands
        ``,``, ``.``, a space (also the narrow ones), ``'``, or ``None`` for no mark.
    missing
        Other texts that are nan, in any case: ``---``, ``Bad``.

    Raises
    ------
    ConfigError
        If a mark is none of these, or both are the same.

    Examples
    --------
    >>> german = number_reader(",", ".")
    >>> german("1.234,5"), german("-,5"), german("1.5"), german("n/a")
    (1234.5, -0.5, None, nan)
    >>> number_reader()("1_000"), number_reader()("2e3")
    (None, 2000.0)
    """
    if decimal not in DECIMALS:
        raise ConfigError(f"decimal is {decimal!r}: expected '.' or ','")
    if thousands is not None and thousands not in THOUSANDS:
        raise ConfigError(
            f"thousands is {thousands!r}: expected one of ',', '.', ' ' and \"'\", or leave it out"
        )
    if thousands == decimal:
        raise ConfigError(f"decimal and thousands are both {decimal!r}: expected two marks")
    point = re.escape(decimal)
    shape = rf"[+-]?(?:\d+(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"
    marks = "" if thousands is None else _LOOKALIKES.get(thousands, thousands)
    if marks:
        shape += rf"|[+-]?\d{{1,3}}(?:[{re.escape(marks)}]\d{{3}})+(?:{point}\d*)?"
    fits = re.compile(shape, re.ASCII).fullmatch
    plain = str.maketrans({**dict.fromkeys(marks), decimal: "."})

    absent = MISSING_TEXTS.union(text.strip().lower() for text in missing)

    def read(text: str) -> float | None:
        text = text.strip()
        if fits(text):
            value = float(text.translate(plain))
            return value if math.isfinite(value) else math.nan
        lower = text.lower()
        if lower in absent or lower.lstrip("+-") in ("inf", "infinity", "nan"):
            return math.nan
        return None

    return read
