"""Which fault a telling is given to, which are false, and what is compared with what."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from benchmarks.plants.epanet import Leak
from benchmarks.plants.frame import (
    PEERS,
    Fault,
    Rows,
    Telling,
    alerts,
    assigned,
    at_once,
    binomial,
    by_chance,
    scored,
    tellings,
)

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


def test_a_telling_of_another_sensor_is_of_no_fault():
    fault = Fault("hot", "heat", BEGIN, BEGIN + DAY, "t1")
    here, there = (Telling(BEGIN, "c", False, name) for name in ("t1", "t2"))
    assert assigned([there, here, here], [fault]) == ({"hot": here}, [there, here])


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_alerts_no_more_often_than_it_may_and_finds_a_plain_fault(peer):
    X = np.random.default_rng(3).normal(size=(4000, 3))
    X[:, 2] += X[:, 1]
    X[3000:3200, 2] += 9
    rows = {"s": Rows([BEGIN + i * DAY / 144 for i in range(4000)], X)}
    found = alerts(scored(rows, PEERS[peer]), 2)
    assert 1 <= len(found) <= 2
    assert any(0 <= (one.at - BEGIN) * 144 / DAY - 3000 < 10 for one in found)


def test_incidents_at_once_are_apart_where_no_situation_holds_both():
    def incident(name, sensor, opened, changed):
        times = {"opened_ms": opened, "changed_ms": changed}
        return {"incident": name, "sensors": [sensor], "state": "closed", **times}

    last = [incident("a", "1", 0, 9), incident("b", "2", 5, 9), incident("c", "3", 6, 7),
            incident("d", "1", 20, 30)]  # fmt: skip
    assert at_once(last, {"a": "a", "b": "a", "c": "c", "d": "d"}) == (2, 1)


def test_chance_is_the_share_of_weeks_with_a_telling():
    told = [Telling(BEGIN + 10 * DAY, "", False, "t1")]
    chance = by_chance(told, ["t1", "t2"], (BEGIN, BEGIN + 28 * DAY), 7 * DAY)
    assert chance == pytest.approx(7 / 21 / 2)
    assert binomial(0, 20, chance) == 1
    assert binomial(20, 20, 0.5) == pytest.approx(0.5**20)
