"""Numbers as people and programs write them: decimal and thousands marks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from ctypes import c_float

from rejex_stream.errors import ConfigError

__all__ = ["ANY_TEXT", "DECIMALS", "THOUSANDS", "missing_numbers", "number_reader"]

DECIMALS = (".", ",")
THOUSANDS = (",", ".", " ", "'")

MISSING_TEXTS = frozenset(("", "nan", "na", "n/a", "null", "none"))
"""What stands in a cell without a value."""

_LIKE_A_NUMBER = re.compile(r"[+-]?[.,]?\d")

# Spreadsheets write several characters where people see one.
_LOOKALIKES = {" ": " \u00a0\u2009\u202f", "'": "'’"}


ANY_TEXT = "*"
"""In the place of texts that stand for no value: all that do not begin as a number does."""


def number_reader(
    decimal: str = ".",
    thousands: str | None = None,
    missing: Iterable[str] = (),
    units: Iterable[str] = (),
) -> Callable[[str], float | None]:
    """Make what reads a text as a number, strictly: ``None`` where it is none.

    A thousands mark must stand between groups of three digits, the first no zero, so ``1,5`` is
    never fifteen and ``0,038`` never 38. An empty cell and ``nan``, ``na``, ``n/a``, ``null`` and
    ``none`` are nan, and so is infinity.

    Parameters
    ----------
    decimal
        ``.`` or ``,``.
    thousands
        ``,``, ``.``, a space (also the narrow ones), ``'``, or ``None`` for no mark.
    missing
        Other texts that are nan, in any case: ``---``, ``Bad``; a number such as ``-999`` however
        it is written; ``*`` is any text that does not begin as a number does.
    units
        What may stand behind a number, and is left out: ``°C``, ``%``.

    Examples
    --------
    >>> german = number_reader(",", ".")
    >>> german("1.234,5"), german("-,5"), german("1.5"), german("n/a")
    (1234.5, -0.5, None, nan)
    >>> number_reader()("1_000"), number_reader()("2e3"), number_reader(missing=["-999"])("-999.0")
    (None, 2000.0, nan)
    >>> number_reader(missing=["*"])("[-11059] No Good Data"), number_reader(units=["°C"])("19 °C")
    (nan, 19.0)
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
        shape += rf"|[+-]?[1-9]\d{{0,2}}(?:[{re.escape(marks)}]\d{{3}})+(?:{point}\d*)?"
    fits = re.compile(shape, re.ASCII).fullmatch
    plain = str.maketrans({**dict.fromkeys(marks), decimal: "."})

    endings = "|".join(map(re.escape, sorted(units, key=len, reverse=True)))
    cut = re.compile(rf"(?<=[\d.,])\s*(?:{endings})$").sub if endings else None
    absent = MISSING_TEXTS.union(text.strip().lower() for text in missing)
    values = frozenset(
        float(text.translate(plain)) for text in absent if fits(text)
    )  # what a table calls -999 may come as -999.0
    any_text = ANY_TEXT in absent

    def read(text: str) -> float | None:
        text = text.strip()
        if cut is not None:
            text = cut("", text)
        if fits(text):
            value = float(text.translate(plain))
            return value if math.isfinite(value) and value not in values else math.nan
        lower = text.lower()
        if lower in absent or lower.lstrip("+-") in ("inf", "infinity", "nan"):
            return math.nan
        if any_text and not _LIKE_A_NUMBER.match(text):
            return math.nan
        return None

    return read


def missing_numbers(missing: Iterable[str]) -> frozenset[float]:
    """Return those of the texts that are numbers, and stand for none; also in four bytes."""
    texts = map(number_reader(), missing)
    found = [x for x in texts if x is not None and not math.isnan(x)]
    return frozenset((*found, *(c_float(x).value for x in found)))
