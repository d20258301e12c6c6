"""Checks of the numbers that the statistics take, each refused with value, limit and mend.

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

__all__ = [
    "check_burst",
    "check_contamination",
    "check_cost",
    "check_delta",
    "check_per_day",
    "check_rate",
    "check_tolerance",
    "check_window",
    "decimal",
    "round_up",
]


_MOST_TOLERANCE = 1e9
_MOST_WINDOW = 10**15


@lru_cache(maxsize=256)  # a pipeline has a few, and a filling window asks for them at every event
def decimal(value: float) -> Fraction:
    """Return `value` as the shortest decimal that prints like it, exactly.

    Examples
    --------
    >>> decimal(0.29)
    Fraction(29, 100)
    """
    return Fraction(repr(float(value)))


def round_up(share: Fraction) -> str:
    """Return `share` in (0, 1] with two digits, rounded up: what is enough stays enough.

    Examples
    --------
    >>> round_up(Fraction(1, 31)), f"{1 / 31:.2g}"
    ('0.033', '0.032')
    """
    digits = 1 - math.floor(math.log10(share))
    return f"{math.ceil(share * 10**digits) / 10**digits:g}"


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


def check_contamination(value: float) -> float:
    """Return γ, the expected share of anomalies, if it lies in (0, 0.5).

    Examples
    --------
    >>> check_contamination(0.6)
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: contamination = 0.6 is outside (0, 0.5): give the expected \
share of anomalies, e.g. 0.02 for 2 %.
    """
    wanted = "the expected share of anomalies, e.g. 0.02 for 2 %"
    number = _number("contamination", value, wanted)
    if not 0.0 < number < 0.5:
        raise ConfigError(f"contamination = {number:g} is outside (0, 0.5): give {wanted}.")
    return number


def check_tolerance(value: float) -> float:
    """Return the tolerance T if it is above ln 2, where the band stops being empty, and usable."""
    wanted = "a number above ln 2 = 0.693 and below 1e9; the paper's value is 32"
    number = _number("tolerance", value, wanted)
    if not math.log(2) < number < _MOST_TOLERANCE:  # windows that could bear it are not to be had
        raise ConfigError(f"tolerance = {number:g} cannot be used: give {wanted}.")
    return number


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
    if number > _MOST_WINDOW:  # neighbouring ranks are the same float from 2^53 on
        raise ConfigError(
            f"window n = {Decimal(number):.1e} cannot be used: give {wanted} and at most "
            f"{_MOST_WINDOW:.0e}."
        )
    return number


def check_rate(value: float) -> float:
    """Return a rejection rate if it lies in (0, 1)."""
    wanted = "a share of events between 0 and 1, e.g. 0.05 for 5 %"
    number = _number("rate", value, wanted)
    if not 0.0 < number < 1.0:
        raise ConfigError(f"rate = {number:g} is outside (0, 1): give {wanted}.")
    return number


def check_delta(value: float) -> float:
    """Return δ, the probability that a bound may fail, if it lies in (0, 1)."""
    wanted = "the probability with which the bound may fail, e.g. 0.1"
    number = _number("delta", value, wanted)
    if not 0.0 < number < 1.0:
        raise ConfigError(f"delta = {number:g} is outside (0, 1): give {wanted}.")
    return number


def check_cost(name: str, value: float) -> float:
    """Return a cost if it is finite and not negative."""
    wanted = "a finite cost of at least 0, in any unit of your own"
    number = _number(name, value, wanted)
    if not 0.0 <= number < math.inf:
        raise ConfigError(f"{name} = {number:g} cannot be used: give {wanted}.")
    return number


def check_burst(value: int) -> int:
    """Return B, the events that may be rejected at once, if it is a whole number of at least 1."""
    wanted = "a whole number of events, at least 1, e.g. what people can look at in a day"
    number = _number("burst", value, wanted)
    if not (1.0 <= number < math.inf and number.is_integer()):
        raise ConfigError(f"burst = {value!r} cannot be used: give {wanted}.")
    return int(value)


def check_per_day(value: float) -> float:
    """Return a budget of events a day if it is finite and positive."""
    wanted = "how many rejected events people can look at in a day, e.g. 200"
    number = _number("per_day", value, wanted)
    if not 0.0 < number < math.inf:
        raise ConfigError(f"per_day = {number:g} cannot be used: give {wanted}.")
    return number
