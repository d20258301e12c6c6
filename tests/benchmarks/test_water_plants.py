"""Which leak a telling is given to, and which are false."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.plants.epanet import Leak
from benchmarks.plants.frame import Telling, assigned, tellings

BEGIN, DAY = datetime(2018, 1, 1, tzinfo=UTC), timedelta(days=1)
LONG = Leak("p1", BEGIN, BEGIN + 90 * DAY, 0.02, "incipient", BEGIN + 20 * DAY)
SHORT = Leak("p2", BEGIN + 30 * DAY, BEGIN + 40 * DAY, 0.02, "abrupt", BEGIN + 30 * DAY)


def told(*days):
    return [Telling(BEGIN + day * DAY, "c", False) for day in days]


def test_each_leak_is_given_one_telling_the_newest_leak_first():
    of, false = assigned(told(31, 32, 33), [LONG.fault, SHORT.fault])
    days = {name: (one.at - BEGIN) / DAY for name, one in of.items()}
    assert days == {"p2, 31 Jan": 31, "p1, 01 Jan": 32}
    assert [(one.at - BEGIN) / DAY for one in false] == [33]


def test_a_repair_is_neither_and_later_it_is_false():
    of, false = assigned(told(31, 35, 42, 44), [SHORT.fault])
    assert [*of] == [SHORT.fault.name]
    assert [(one.at - BEGIN) / DAY for one in false] == [35, 44]


def test_a_leak_grows_to_that_of_an_orifice_and_is_repaired():
    whole = 0.75 * math.pi * 0.01**2 * math.sqrt(2 * 9.81) * 3600
    assert LONG.coefficient(BEGIN + 10 * DAY) == pytest.approx(whole / 2)
    assert SHORT.coefficient(SHORT.start) == pytest.approx(whole)
    assert SHORT.coefficient(SHORT.start - DAY) == SHORT.coefficient(SHORT.end) == 0


def test_an_opening_and_each_further_channel_are_told_once():
    first = {"incident": "i", "changed_ms": 0, "channels": [{"channel": "a"}]}
    later = first | {"changed_ms": 60_000, "spread": [{"channel": "b"}]}
    found = tellings([first, later, later | {"changed_ms": 90_000}])
    assert [(one.channel, one.is_further) for one in found] == [("a", False), ("b", True)]
