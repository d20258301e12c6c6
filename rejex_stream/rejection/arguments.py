"""Checks of the numbers that the statistics take, each refused with value, limit and fix.

Floats are read as the decimals people type: ``0.29`` means 29/100, not its binary neighbour.
"""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import SupportsFloat

from rejex_stream.errors import ConfigError

_MAX_WINDOW = 10**15
# By name: above and below what it has to lie, and what is wanted.
_BETWEEN = {
    "contamination": (0.0, 0.5, "the expected share of anomalies, e.g. 0.02 for 2 %"),
    "tolerance": (  # above it no window could bear it that is to be had
        math.log(2), 1e9, "a number above ln 2 = 0.693 and below 1e9; the paper's value is 32",
    ),
    "rate": (0.0, 1.0, "a share of events between 0 and 1, e.g. 0.05 for 5 %"),
    "delta": (0.0, 1.0, "the probability with which the bound may fail, e.g. 0.1"),
    "per_day": (
        0.0, math.inf, "how many rejected events people can look at in a day, e.g. 200",
    ),
}  # fmt: skip
_COST = (
    math.nextafter(0.0, -1.0),
    math.inf,
    "a finite cost of at least 0, in any unit of your own",
)


@lru_cache(maxsize=256)  # a pipeline has a few, and a filling window asks for them at every event
def decimal(value: float) -> Fraction:
    """Return `value` as the shortest decimal that prints like it, exactly."""
    return Fraction(repr(float(value)))


def round_up(share: Fraction) -> str:
    """Return `share` in (0, 1] with two digits, rounded up: what is enough stays enough."""
    digits = 1 - math.floor(math.log10(share))
    return f"{math.ceil(share * 10**digits) / 10**digits:g}"


def round_down(share: Fraction) -> float:
    """Return the largest number of three digits below `share` in (0, 1]."""
    digits = 2 - math.floor(math.log10(share))
    return float((math.ceil(share * 10**digits) - 1) / 10**digits)


def _number(name: str, value: SupportsFloat, wanted: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} = {value!r} is not a number: give {wanted}.") from None
    except OverflowError:
        raise ConfigError(f"{name} is beyond every float: give {wanted}.") from None
    if math.isnan(number):
        raise ConfigError(f"{name} is not a number (NaN): give {wanted}.")
    return number


def check_number(name: str, value: SupportsFloat) -> float:
    """Return an argument of the method, by its name, as a float between its limits."""
    low, high, wanted = _COST if name.startswith("c_") else _BETWEEN[name]
    number = _number(name, value, wanted)
    if low < number < high:
        return number
    wrong = f"is outside ({low:g}, {high:g})" if high <= 1.0 else "cannot be used"
    raise ConfigError(f"{name} = {number:g} {wrong}: give {wanted}.")


def check_window(value: int) -> int:
    """Return the number of reference scores n if it is a whole number of at least 2."""
    wanted = "a whole number of reference scores, at least 2"
    try:
        number = operator.index(value)
    except TypeError:
        as_float = _number("window n", value, wanted)
        if not as_float.is_integer():
            raise ConfigError(f"window n = {value!r} cannot be used: give {wanted}.") from None
        number = int(as_float)
    if number < 2:
        raise ConfigError(f"window n = {number} cannot be used: give {wanted}.")
    if number > _MAX_WINDOW:  # neighbouring ranks are the same float from 2^53 on
        raise ConfigError(
            f"window n = {Decimal(number):.1e} cannot be used: give {wanted} and at most "
            f"{_MAX_WINDOW:.0e}."
        )
    return number


def check_burst(value: int) -> int:
    """Return B, the events that may be rejected at once, if it is a whole number of at least 1."""
    wanted = "a whole number of events, at least 1, e.g. what people can look at in a day"
    number = _number("burst", value, wanted)
    if not (1.0 <= number < math.inf and number.is_integer()):
        raise ConfigError(f"burst = {value!r} cannot be used: give {wanted}.")
    return int(value)
