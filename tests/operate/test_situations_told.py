"""One cause is one alert and few events: a run, a real Alertmanager and a real server are told."""

from __future__ import annotations

import csv
import json

import msgspec
import numpy as np
import pytest

from rejex_stream.cli import main
from rejex_stream.encode import decode_incidents
from rejex_stream.operate.alerts import Alertmanager
from rejex_stream.operate.open_situations import OpenSituations
from rejex_stream.run.run_events import PartitionClosed
from rejex_stream.types import Incident, LimitExcess, Partition, Position, Spread
from tests.operate.alerting import Receiver, alertmanager
from tests.operate.test_incidents_told import (
    CLOSED,
    FARM,
    FAULT,
    OPEN,
    RECOVERING,
    alerts_at,
    durable,
    incident,
    look,
    watching,
)
from tests.waiting import until

MINUTE = 60_000
T0 = 1_700_000_000_000


def meter(k, version=1, state=OPEN, *, group="gw7", minute=0.0, **more):
    """An incident of a meter that reads once a minute, told of two minutes after its onset."""
    onset_ms = T0 + round(MINUTE * (minute + k / 10))
    name = f"{group}/meter-{k:02d}"
    told = {"stream_key": name, "sensors": (name,), "onset_ms": onset_ms,
            "opened_ms": onset_ms + 2 * MINUTE, "opened_seq": 2, "changed_seq": 2}  # fmt: skip
    return incident(100 + k, version, state, **told | more)


class Hook:
    def __init__(self):
        self.events = []

    def post(self, event, _incident):
        self.events.append(json.loads(event.body)["data"])

    @property
    def said(self):
        return [(one["stream_key"], one["state"]) for one in self.events]


def fired(receiver):
    bodies = [json.loads(body) for _, body in receiver.got]
    return {one["labels"]["incident"] for body in bodies for one in body["alerts"]}


@pytest.mark.prometheus
def test_one_cause_is_one_alert_that_counts_its_incidents_and_ends_with_the_last(tmp_path):
    receiver = Receiver()
    with alertmanager(tmp_path, receiver.url) as url:
        manager = Alertmanager(url, repeat_s=60)
        watch = watching(manager)
        durable(watch, meter(0))
        look(watch)
        until(lambda: list(alerts_at(url)) == ["farm-0-100"])
        durable(watch, *map(meter, range(1, 14)), meter(40, group="gw8", minute=20))
        look(watch)
        until(lambda: "14 of 14" in alerts_at(url)["farm-0-100"]["annotations"]["summary"])
        assert set(alerts_at(url)) == {"farm-0-100", "farm-0-140"}, "another's fault is its own"
        said = alerts_at(url)["farm-0-100"]["annotations"]
        assert said["summary"].startswith(
            "14 of 14 gw7/*; first gw7/meter-00: Oil pressure is not as usual"
        )
        assert said["sensors"].count("gw7/meter-") == 14
        durable(watch, meter(0, 2, CLOSED), *(meter(k, 2, RECOVERING) for k in range(1, 13)))
        look(watch)
        assert set(alerts_at(url)) == {"farm-0-100", "farm-0-140"}, "its first is over; it is not"
        durable(watch, *(meter(k, 3, CLOSED) for k in range(1, 14)))
        look(watch)
        until(lambda: list(alerts_at(url)) == ["farm-0-140"])
        until(lambda: fired(receiver) == {"farm-0-100", "farm-0-140"}, "and nobody of another")
        manager.close()
    receiver.close()


def test_events_tell_of_a_situation_at_once_when_it_is_eight_times_as_large_and_of_its_states():
    hook = Hook()
    watch = watching(webhook=hook)
    durable(watch, *map(meter, range(12)))
    assert hook.said == [("gw7/meter-00", "open"), ("gw7/meter-07", "open")]
    assert "situation" not in hook.events[0], "as any incident"
    assert hook.events[1]["summary"].startswith("8 of 8 gw7/*; first gw7/meter-07")
    assert hook.events[1]["situation"]["id"] == "farm-0-100"
    del hook.events[:]
    limits = (LimitExcess("oil", 9.0, 6.0),)
    durable(watch, *(meter(k, 2, limits=limits) for k in (3, 4)))
    soon = T0 + 20 * 60 * MINUTE
    for k in (5, 6):
        durable(watch, meter(k, 2, adopts_ms=soon, changed_ms=soon - 60 * MINUTE))
    assert hook.said == [("gw7/meter-03", "open"), ("gw7/meter-05", "open")], "a limit, a date"
    del hook.events[:]
    durable(watch, *(meter(k, 3, FAULT) for k in range(12)))
    assert hook.said == [("gw7/meter-11", "fault")], "once all of them are"
    durable(watch, *(meter(k, 4, CLOSED) for k in range(12)))
    assert hook.said[1:] == [("gw7/meter-11", "closed")]


def test_who_was_open_before_repeats_neither_itself_nor_what_the_situation_shows():
    """Its reference is held from now on, and its noise goes with that of the others."""
    hook = Hook()
    watch = watching(webhook=hook)
    before = {"minute": -90, "held": False}
    durable(watch, meter(20, **before), meter(21, minute=-300), *map(meter, range(12)))
    del hook.events[:]
    at_ms = T0 + 100 * MINUTE
    durable(watch, meter(20, 2, **before | {"held": True}))
    assert not hook.said, "nothing that people have not heard"
    gone = (LimitExcess("oil", 0.0, 0.1, quiet_events=128),)
    durable(watch, *(meter(k, 2, limits=gone, changed_ms=at_ms) for k in range(12)),
            meter(20, 3, limits=gone, changed_ms=at_ms + MINUTE, **before))  # fmt: skip
    assert not hook.said, "it is of the same cause"
    own = (LimitExcess("gas", 0.0, 0.1, quiet_events=128),)
    durable(watch, meter(20, 4, limits=(*gone, *own), changed_ms=at_ms + 2 * MINUTE, **before))
    durable(watch, meter(21, 2, limits=gone, changed_ms=at_ms + 60 * MINUTE, minute=-300))
    durable(watch, meter(20, 5, changed_ms=at_ms + 90 * MINUTE, **before,
                         spread=(Spread("gas", at_ms),)))  # fmt: skip
    assert hook.said == [(f"gw7/meter-{k}", "open") for k in (20, 21, 20)], "each is its own"


def test_a_members_own_further_fault_is_told_and_has_an_alert_of_its_own():
    hook = Hook()
    watch = watching(webhook=hook)
    durable(watch, *map(meter, range(6)))
    del hook.events[:]
    spread = (Spread("gas", T0 + 60 * MINUTE),)
    durable(watch, meter(0, 2, spread=spread))
    assert hook.said == [("gw7/meter-00", "open")]
    alerts = {one.situation.id: len(one.open) for one in watch._situations}
    assert alerts == {"farm-0-100": 5, f"farm-0-100-{T0 + 60 * MINUTE}": 1}


def test_who_takes_some_of_a_situation_over_leaves_the_others_to_us():
    manager = Alertmanager("http://127.0.0.1:1", repeat_s=600)
    watch = watching(manager)
    elsewhere = [msgspec.structs.replace(meter(k), position=Position("farm", 1, k)) for k in (0, 1)]
    durable(watch, *elsewhere, meter(2), meter(50, group="gw9", minute=30))
    look(watch)
    watch.event(PartitionClosed(Partition("farm", 1)))
    look(watch)
    assert [key for key in manager._posted if ("incident", "farm-0-100") in key]
    watch.event(PartitionClosed(FARM))
    look(watch)
    assert not manager._posted, "handed over, not ended"
    manager.close()


def test_nothing_is_kept_of_what_is_over():
    known = OpenSituations()
    for k in range(5):
        known.update(meter(k), ())
        known.is_news(meter(k))
    over = [meter(k, 2, CLOSED) for k in range(5)]
    for one in over:
        known.update(one, ())
        known.forget([one])
    assert (list(known), known._firsts, known._told) == ([], {}, {})
    known.update(meter(60, minute=60 * 24 * 60), ())
    assert set(known._onsets) == {"farm-0-160"}, "a month later"


def gateway(path, minutes=1_600, at=1_500):
    """Ten meters of one gateway that step at once, and one of another twenty minutes later."""
    draw = np.random.default_rng(4)
    levels = np.zeros((11, 2))
    with path.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "sensor", "a", "b"])
        for i in range(minutes):
            levels = 0.8 * levels + draw.normal(size=levels.shape) * 0.6
            shown = levels.copy()
            shown[:10, 0] += 4 * (i >= at)
            shown[10, 1] -= 8 * (i >= at + 20)
            for k, values in enumerate(shown):
                name = f"gw7/meter-{k:02d}" if k < 10 else "gw8/meter-00"
                rows.writerow([T0 + i * MINUTE + 2_500 * k, name, *values.round(4)])


@pytest.mark.thorough
def test_ten_meters_of_one_gateway_are_one_page_by_the_config_that_init_writes(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    gateway(tmp_path / "gateway.csv")
    assert main(["init", "gateway.csv"]) == 0
    receiver = Receiver()
    config = tmp_path / "gateway.toml"
    config.write_text(config.read_text() + f'\n[alerts]\nwebhook_url = "{receiver.url}"\n')
    assert main(["run", "gateway.toml"]) == 0
    until(lambda: receiver.got)
    (written,) = tmp_path.glob("*incidents*.jsonl")
    changes = [decode_incidents(line) for line in written.read_bytes().splitlines()]
    opened = [
        one.stream_key for one in changes
        if isinstance(one, Incident) and one.version == 1 and one.onset_ms > T0 + 1_400 * MINUTE
    ]  # fmt: skip
    assert len({one for one in opened if one.startswith("gw7/")}) >= 8
    told = [json.loads(body) for body in receiver.taken]
    pages = [
        one["data"] for one in told
        if one["type"].endswith("incident.v1") and one["data"]["onset_ms"] > T0 + 1_400 * MINUTE
    ]  # fmt: skip
    assert 1 <= sum(one["stream_key"].startswith("gw7/") for one in pages) <= 3
    assert any(one["stream_key"] == "gw8/meter-00" for one in pages)
    receiver.close()
    assert main(["report", "gateway.toml", "--out", "report.html"]) == 0
    assert (tmp_path / "report.html").read_text().count("that began together") >= 8
    capsys.readouterr()
    assert main(["score", "gateway.csv", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["incidents"]
    (worst,) = [one for one in found if len(one["together"]) >= 2]
    assert worst["sensor"].startswith("gw7/")
    assert [one["together"] for one in found if one["sensor"] == "gw8/meter-00"] == [[]]
