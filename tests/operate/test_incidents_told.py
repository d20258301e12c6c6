"""One incident is one alert: a real Alertmanager and a real server are told of what the run saw."""

from __future__ import annotations

import json
import math
import re
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from rejex_stream import types
from rejex_stream.config import parse_config
from rejex_stream.config.assembly import engine_spec
from rejex_stream.config.assembly.running import open_run_monitor
from rejex_stream.config.reviewing import Channel
from rejex_stream.encode.records import encode_incident
from rejex_stream.encode.schemas import INCIDENT_TYPE
from rejex_stream.incidents import state_machine
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.operate.alerts import Alertmanager, Webhook, log_incident, make_alert, make_event
from rejex_stream.operate.incident_text import (
    DisplayNames,
    describe_incident,
    how_ended,
    state_phrase,
)
from rejex_stream.readable import ChannelReading, Expected
from rejex_stream.run.review_items import TypicalValues
from rejex_stream.run.run_events import (
    IncidentsDurable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Progress,
)
from rejex_stream.types import (
    ChannelEvidence,
    Evidence,
    Incident,
    IncidentState,
    Label,
    LimitExcess,
    Outcome,
    Partition,
    Position,
    Reading,
    Record,
    Verdict,
)
from tests.operate.alerting import Receiver, alertmanager
from tests.program import command, ended, started
from tests.waiting import PATIENCE_S, until

OPEN, FAULT, RECOVERING, ADOPTING, CLOSED = IncidentState
FARM = Partition("farm", 0)
T0 = 1_700_000_000_000
CONSOLE = "https://review.example.com"
CONFIG = f"""
[pipeline]
name = "farm"
[input]
kind = "kafka"
topics = ["farm"]
channels = ["oil"]
[rejection]
contamination = 0.05
tolerance = 8
[alerts]
console_url = "{CONSOLE}"
[channels.oil]
unit = "bar"
label = "Oil pressure"
[sensors."WT-*"]
link = "https://wiki.example/{{sensor}}"
"""


def incident(offset=9, version=1, state=OPEN, **more):
    told = {
        "position": Position("farm", 0, offset + version - 1), "id": f"farm-0-{offset}",
        "version": version, "state": state, "stream_key": f"WT-{offset}",
        "sensors": (f"WT-{offset}",), "onset_ms": 1_700_000_000_000, "opened_ms": 1_700_000_009_000,
        "changed_ms": 1_700_000_009_000 + 60_000 * (version - 1), "onset_seq": 0, "opened_seq": 9,
        "changed_seq": 9, "peak_severity": 7.25, "peak_ms": 1_700_000_008_000, "n_events": 10,
        "n_anomalies": 7, "n_rejected": 2, "channels": (ChannelEvidence("oil", 3.0, None, None),),
    }  # fmt: skip
    return Incident(**told | more)


def outcome(changed):
    place = changed.position
    said = Verdict(place, changed.stream_key, changed.sensors[0], 0, 0, Label.ANOMALY)
    return Outcome(Record(place, None, b""), said, incidents=(changed,))


class _Engine:
    """What is open in a partition that was taken over."""

    def __init__(self, *found):
        self.found = found

    def __getattr__(self, _name):  # the rest of an engine is not asked
        return None

    def open_incidents(self):
        return self.found

    def streams(self):
        return ()

    def process(self, readings):
        labels = [Label.NORMAL if r.values[0] > 2 else Label.ANOMALY for r in readings]
        return [Verdict(r.position, r.stream_key, r.sensor, 0, 0, label)
                for r, label in zip(readings, labels, strict=True)]  # fmt: skip


def reading(value, offset=0):
    return Reading("WT-9", "WT-9", 0, (value,), Position("farm", 0, offset))


def told_at(usual, value, version=1, evidence=None, **more):
    """An incident that changes at the next event of its pump, which reads this."""
    said = Verdict(Position("farm", 0, 1), "WT-9", "WT-9", 1, 0, Label.ANOMALY)
    one = incident(9, version, **{"position": said.position} | more)
    said = msgspec.structs.replace(said, evidence=evidence, incident=one.id)
    usual.update([reading(value, 1)], [said], [one])
    return one


@pytest.fixture
def receiver():
    told = Receiver()
    yield told
    told.close()


def watching(alertmanager=None, webhook=None, on_incident=lambda _: None):
    config, problems = parse_config(CONFIG)
    assert not problems
    opened = open_run_monitor(config, engine_spec(config), lambda *_: None, on_incident, quiet=True)
    watch = ExitStack().enter_context(opened)
    watch.alertmanager, watch.outbox = alertmanager, webhook
    return watch


def durable(watch, *changes, again=False):
    watch.event(IncidentsDurable(FARM, changes, again))


def look(watch):
    watch.progress(Progress(0, 0, 0.0, 0, {}))


def test_sensors_that_send_nothing_are_counted_and_alerted_by_incidents_and_by_the_shell(
    caplog, monkeypatch
):
    now = {"s": 5000.0}
    monkeypatch.setattr("rejex_stream.operate.run_monitor.time.monotonic", lambda: now["s"])
    active = []
    watch = watching(SimpleNamespace(update=active.extend))
    durable(watch, incident(3, id="farm-0-3-silent-0", silent=True, held=False))
    engine = watch.register_engine(FARM, _Engine())
    engine.silences = SimpleNamespace(limits=lambda: [("WT-9", 60_000)])
    look(watch)
    assert metric(watch, "rejex_silent_sensors{")[0].endswith(" 1.0")
    watch.judged(FARM, [reading(3.4)], 0.001)
    for _ in range(2):
        now["s"] += 61
        look(watch)
    assert metric(watch, "rejex_silent_sensors{")[0].endswith(" 2.0")
    assert {alert.labels["alertname"] for alert in active} == {"RejexIncident", "RejexSilent"}
    assert caplog.text.count("WT-9 sends nothing") == 1
    assert metric(watch, "rejex_incident_waiting_seconds{") == [], "nobody can answer it"
    watch.judged(FARM, [reading(3.4)], 0.001)
    now["s"] += 11
    look(watch)
    assert metric(watch, "rejex_silent_sensors{")[0].endswith(" 1.0")


def alerts_at(url):
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=PATIENCE_S) as answer:
        return {one["labels"]["incident"]: one for one in json.load(answer)}


def metric(watch, line):
    return [found for found in watch.metrics.exposition().decode().splitlines() if line in found]


def test_the_log_says_where_an_incident_stands_and_not_each_of_its_figures():
    said = []
    watch = watching(on_incident=said.append)
    durable(watch, incident(version=1), incident(version=2, n_events=20))
    durable(watch, incident(version=3, n_events=30), incident(version=4, state=RECOVERING))
    durable(watch, incident(version=5, state=OPEN), incident(version=6), incident(7))
    durable(watch, incident(version=7, state=CLOSED))
    assert [(one.id, one.version) for one in said] == [
        ("farm-0-9", 1), ("farm-0-9", 4), ("farm-0-9", 5), ("farm-0-7", 1), ("farm-0-9", 7)
    ]  # fmt: skip


# ---------------------------------------------------------------------------- Alertmanager
@pytest.mark.prometheus
def test_an_incident_is_one_alert_that_fires_is_updated_and_resolved(tmp_path, receiver):
    with alertmanager(tmp_path, receiver.url) as url:
        manager = Alertmanager(url, repeat_s=60)
        watch = watching(manager)
        engine = watch.register_engine(FARM, _Engine())
        typical = TypicalValues(["oil"])
        engine.told = typical.told
        readings = [reading(3.4)] * 50
        typical.update(readings, engine.process(readings), ())
        durable(watch, told_at(typical, 1.2))
        look(watch)
        until(lambda: "farm-0-9" in alerts_at(url))
        alert = alerts_at(url)["farm-0-9"]
        assert alert["labels"] == {
            "alertname": "RejexIncident", "pipeline": "farm", "stream": "WT-9",
            "incident": "farm-0-9", "severity": "critical",
        }  # fmt: skip
        assert alert["startsAt"].startswith("2023-11-14T22:13:29")
        said = alert["annotations"]
        assert said["link"] == f"{CONSOLE}/incidents/farm-0-9"
        odd = DisplayNames("farm", CONSOLE).incident_url(incident(id="line 3 #2 100%.csv-0-9"))
        assert odd == f"{CONSOLE}/incidents/line%203%20%232%20100%25.csv-0-9"
        assert (said["channels"], said["onset"]) == ("oil", "2023-11-14T22:13:20+00:00")
        assert said["description"].endswith("It is not answered yet.")
        assert said["summary"] == (
            "WT-9: Oil pressure 1.2 bar, usually 3.4 bar; since Tue 14 November 2023, "
            "22:13 UTC; severity 81 of 100 (extreme)"
        )
        assert said["severity"] == "81 of 100 (extreme)"  # 7.25, and seven anomalies
        assert said["runbook_url"] == "https://wiki.example/WT-9"

        durable(watch, incident(version=2, state=FAULT))
        look(watch)
        until(lambda: alerts_at(url)["farm-0-9"]["annotations"]["state"] == "fault")
        assert list(alerts_at(url)) == ["farm-0-9"], "the same alert"

        durable(watch, incident(version=3, state=CLOSED))
        look(watch)
        until(lambda: not alerts_at(url))
        until(lambda: any(b'"resolved"' in body for _, body in receiver.got))
        manager.close()


def severities(url):
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=PATIENCE_S) as answer:
        labels = [one["labels"] for one in json.load(answer)]
    return sorted((one["incident"], one["severity"]) for one in labels)


@pytest.mark.parametrize(
    ("peak", "anomalies", "word"),
    [(2.4, 1, "warning"), (4.9, 1, "warning"), (4.0, 10, "critical"), (9.0, 1, "critical")],
)
def test_an_alert_is_as_severe_as_its_incident_whoever_tells_of_it(peak, anomalies, word):
    one = incident(peak_severity=peak, n_anomalies=anomalies)
    assert make_alert(one, DisplayNames("farm")).labels["severity"] == word
    watch = watching()
    durable(watch, one)
    look(watch)
    (waits,) = metric(watch, "rejex_incident_waiting_seconds{")
    assert f'severity="{word}"' in waits
    beyond = msgspec.structs.replace(one, limits=(LimitExcess("oil", 7.0, 6.0),))
    assert make_alert(beyond, DisplayNames("farm")).labels["severity"] == "critical"
    silent = msgspec.structs.replace(one, limits=(LimitExcess("oil", None, 10.0, 11),))
    assert make_alert(silent, DisplayNames("farm")).labels["severity"] == word, (
        "people set no limit there"
    )


@pytest.mark.prometheus
def test_what_gets_worse_is_told_as_critical_and_what_ends_is_not(tmp_path, receiver):
    with alertmanager(tmp_path, receiver.url) as url:
        manager = Alertmanager(url, repeat_s=60)
        watch = watching(manager)
        slight = {"peak_severity": 2.0, "n_anomalies": 1}
        before = {"onset_ms": 1_699_990_000_000, "opened_ms": 1_699_990_009_000}  # another cause
        durable(watch, incident(**slight), incident(20, **slight, **before))
        look(watch)
        until(lambda: severities(url) == [("farm-0-20", "warning"), ("farm-0-9", "warning")])
        durable(watch, incident(changed_seq=20))
        look(watch)
        worse = [("farm-0-20", "warning"), ("farm-0-9", "critical")]
        until(lambda: severities(url) == worse, "of its figures alone: it turned nowhere since")
        assert alerts_at(url)["farm-0-9"]["startsAt"].startswith("2023-11-14T22:13:29")
        durable(watch, incident(changed_seq=19, **slight))
        durable(watch, incident(20, version=2, state=CLOSED))
        look(watch)
        until(lambda: severities(url) == worse[1:], "what comes late takes nothing back")
        until(
            lambda: all(posted.ends_s == math.inf for posted in list(manager._posted.values())),
            "nobody is called for its end, though it was critical by then",
        )
        manager.close()


@pytest.mark.prometheus
def test_who_takes_over_goes_on_telling_and_who_gave_it_up_ends_nothing(tmp_path, receiver):
    with alertmanager(tmp_path, receiver.url) as url:
        manager = Alertmanager(url, repeat_s=60)
        watch = watching(manager)
        watch.register_engine(FARM, _Engine(incident(version=4, state=FAULT)))
        watch.event(PartitionOpened(FARM, 5, 7, 9))
        assert watch._situations.incidents == [], "what is open at a snapshot may be over by now"
        watch.event(PartitionLive(FARM, 2, 0.1))
        look(watch)
        until(lambda: "farm-0-9" in alerts_at(url))
        heir = Alertmanager(url, repeat_s=60)
        after = watching(heir)
        after.register_engine(FARM, _Engine(incident(version=4, state=FAULT)))
        after.event(PartitionLive(FARM, 2, 0.1))
        watch.event(PartitionClosed(FARM))
        kept = {name for name, value in vars(watch).items() if isinstance(value, dict) and value}
        assert kept <= {"_overdue"}, "of a partition that is another's nothing stays"
        look(watch)
        look(after)
        assert not manager._posted, "it goes on: whose it is now says when it ends"
        assert list(alerts_at(url)) == ["farm-0-9"], "one alert, whoever tells of it"
        durable(after, incident(version=5, state=CLOSED))
        look(after)
        until(lambda: not alerts_at(url))
        manager.close()
        heir.close()


@pytest.mark.prometheus
def test_an_incident_that_is_over_before_anybody_looked_is_told_all_the_same(tmp_path, receiver):
    """As in a worker that catches up: it opened and closed between two looks."""
    with alertmanager(tmp_path, receiver.url) as url:
        manager = Alertmanager(url, repeat_s=0.2, lifetime_s=8)
        watch = watching(manager)
        durable(watch, incident(), incident(version=2, state=CLOSED))
        look(watch)
        until(lambda: any(b'"firing"' in body for _, body in receiver.got), "somebody is called")
        (told,) = {
            alert["annotations"]["description"]
            for _, body in receiver.got
            for alert in json.loads(body)["alerts"]
        }
        assert told.endswith("It is over.")
        until(lambda: not alerts_at(url), "and it ends by itself")
        durable(watch, incident(20))
        look(watch)
        durable(watch, incident(20, version=2, state=CLOSED))
        look(watch)
        until(lambda: not manager._posted, "who was told of it hears the end as ever")
        manager.close()


# --------------------------------------------------------------------------------- webhook
@pytest.mark.thorough
def test_the_webhook_gets_every_state_once_and_as_soon_as_it_is_durable(receiver):
    hook = Webhook(receiver.url)
    watch = watching(webhook=hook)
    changes = [incident(), incident(version=2, state=RECOVERING)]
    durable(watch, *changes)
    watch.outbox.flush(PATIENCE_S)
    hook.close()
    events = [json.loads(body) for _, body in receiver.got]
    assert [event["data"]["version"] for event in events] == [1, 2]
    assert len({event["id"] for event in events}) == 2
    first = events[0]
    assert first["type"] == "io.rejex.incident.v1"
    assert (first["subject"], first["source"]) == ("WT-9", "/rejex-stream/farm")
    record = json.loads(encode_incident(changes[0]))
    assert first["type"] == INCIDENT_TYPE, "as in the topic, and so is what it holds"
    assert {name: first["data"][name] for name in record} == record
    assert first["data"]["severity"] == {"of_100": 81, "word": "extreme"}
    assert first["data"]["link"] == f"{CONSOLE}/incidents/farm-0-9"
    assert first["data"]["runbook"] == "https://wiki.example/WT-9"


@pytest.mark.thorough
def test_what_is_left_is_what_nobody_took_and_is_told_again_with_its_id():
    receiver = Receiver([503] * 1_000)
    hook = Webhook(receiver.url, first_delay_s=0.01, attempts=10_000)
    watch = watching(webhook=hook)
    change, later = incident(), incident(version=2, state=RECOVERING)
    durable(watch, change)
    until(lambda: receiver.got)
    assert watch.outbox.pending(FARM, [later]) == [change, later]
    assert watch.outbox.pending(Partition("farm", 1)) == []
    durable(watch, change, again=True)  # given up and taken back, say
    assert watch.outbox.pending(FARM) == [change], "it is on its way already"
    receiver.answers.clear()
    watch.outbox.flush(PATIENCE_S)
    assert watch.outbox.pending(FARM) == []
    after = watching(webhook=hook)  # another process, after a kill
    after.register_engine(FARM, _Engine(change))
    after.event(PartitionOpened(FARM, 5, 9, 9))
    durable(after, change, again=True)
    after.outbox.flush(PATIENCE_S)
    last = watching(webhook=hook)  # and one to which nothing was left to tell
    last.register_engine(FARM, _Engine(change))
    last.event(PartitionOpened(FARM, 5, 9, 9))
    durable(last, again=True)
    durable(last, msgspec.structs.replace(change, version=2, held=not change.held))
    assert last.outbox.pending(FARM) == [], "that it is held is no news after a restart either"
    hook.close()
    assert len({json.loads(body)["id"] for _, body in receiver.got}) == 1
    assert hook.delivered == 2
    receiver.close()


def test_what_nobody_takes_is_left_no_longer_once_it_is_given_up():
    hook = Webhook("http://127.0.0.1:1/x", attempts=1)
    watch = watching(webhook=hook)
    durable(watch, incident())
    watch.outbox.flush(PATIENCE_S)
    assert watch.outbox.pending(FARM) == []
    assert hook.given_up == 1
    hook.close()


def test_two_pipelines_events_are_not_the_same():
    assert (
        make_event(incident(), DisplayNames("a")).id != make_event(incident(), DisplayNames("b")).id
    )


# --------------------------------------------------------------------------------- metrics
def test_metrics_say_what_is_open():
    watch = watching()
    assert metric(watch, "rejex_held_streams{") == ['rejex_held_streams{pipeline="farm"} 0.0']
    for changed in (incident(), incident(20), incident(30, state=ADOPTING)):
        durable(watch, changed)
        watch.metrics.outcomes(FARM, [outcome(changed)], replaying=False)
    look(watch)
    assert metric(watch, 'rejex_open_incidents{pipeline="farm",state="open"}')[0].endswith(" 2.0")
    assert metric(watch, "rejex_held_streams{")[0].endswith(" 2.0"), "who adopts is not held"
    over = incident(version=2, state=CLOSED)
    durable(watch, over)
    watch.metrics.outcomes(FARM, [outcome(over)], replaying=False)
    look(watch)
    assert metric(watch, 'rejex_open_incidents{pipeline="farm",state="open"}')[0].endswith(" 1.0")


def test_each_incident_waits_for_itself():
    watch = watching()
    waits = "rejex_incident_waiting_seconds{"
    for changed in (incident(), incident(20, opened_ms=1_700_000_009_000 - 3_600_000)):
        durable(watch, changed)
    newest = Verdict(Position("farm", 0, 30), "WT-9", "WT-9", 1_700_000_009_000, 0, Label.NORMAL)
    watch.metrics.outcomes(FARM, [Outcome(Record(newest.position, None, b""), newest)],
                           replaying=False)  # fmt: skip
    look(watch)
    found = {line.split('incident="')[1].split('"')[0]: float(line.split()[-1])
             for line in metric(watch, waits)}  # fmt: skip
    assert found["farm-0-20"] >= 3600 > found["farm-0-9"]
    durable(watch, incident(20, version=2, state=FAULT))
    look(watch)
    (left,) = metric(watch, waits)
    assert 'incident="farm-0-9"' in left, "what was answered does not wait"


# ---------------------------------------------------------------------------------- wording
def test_a_channel_that_is_missing_or_not_known_yet_is_said_in_words():
    said = make_alert(
        incident(), DisplayNames("farm"), [ChannelReading("oil", math.nan, (3.0, 4.0))]
    ).annotations
    assert said["summary"].startswith("WT-9: oil missing, usually 3 to 4; since")
    said = make_alert(incident(), DisplayNames("farm"), [ChannelReading("oil", 1.25, None)])
    assert said.annotations["values"] == "oil 1.25"
    said = make_alert(incident(), DisplayNames("farm")).annotations
    assert said["summary"].startswith("WT-9: oil is not as usual; since")
    shown = DisplayNames("farm", channels={"oil": Channel(label="Oil pressure")})
    said = make_alert(incident(), shown).annotations
    assert said["summary"].startswith("WT-9: Oil pressure is not as usual; since")


def test_an_alert_says_what_the_others_made_one_expect_of_the_event_that_changed_it():
    told = ChannelEvidence("oil", 3.0, 0.1, Label.NORMAL, Expected(1.2, 3.5, 3.4, 3.6))
    usual = TypicalValues(("oil",))
    for value in [3.4] * 50:
        usual.update([reading(value)], _Engine().process([reading(value)]), ())
    first = told_at(usual, 1.2, evidence=Evidence((told,), "oil", 1, 0.1, 0.05, 9))
    later = told_at(usual, 1.3, changed_seq=10)
    shown = DisplayNames("farm", channels={"oil": Channel(unit="bar")})
    told = "oil 1.2 bar, expected 3.5 bar from the others; usually 3.4 bar"
    assert make_alert(first, shown, usual.told(first)).annotations["values"] == told
    (later,) = usual.told(later)
    said = "oil 1.3 bar, usually 3.4 bar"
    assert shown.reading_text(later) == said, "nobody said what to expect of that one"


def test_the_description_says_what_the_first_channel_read_and_what_was_expected(caplog):
    oil = ChannelEvidence("oil", 3.0, 0.1, Label.NORMAL, Expected(1.2, 3.5, 3.4, 3.6))
    log_incident(incident(channels=(oil,)), DisplayNames(channels={"oil": Channel(unit="bar")}))
    assert "oil 1.2 bar, expected 3.5 bar from the others; of 10 events" in caplog.text
    told = make_alert(incident(channels=(oil,)), DisplayNames("farm")).annotations
    assert "UTC: oil 1.2, expected 3.5 from the others; of 10 events" in told["description"]


@pytest.mark.parametrize(("side", "word"), [("low", "drops"), ("high", "rises")])
def test_of_a_channel_with_one_side_it_is_said_which(side, word):
    shown = DisplayNames("farm", channels={"oil": Channel(unit="bar", side=side)})
    said = make_alert(incident(), shown, [ChannelReading("oil", 1.2, (3.0, 4.0))])
    told = f"oil 1.2 bar, usually 3.0 to 4.0 bar (only {word} are asked about)"
    assert said.annotations["values"] == told
    assert f"{told}; since" in said.annotations["summary"]


def test_what_is_usual_forgets_and_is_not_what_faults_were():
    seen = TypicalValues(["oil"])

    def judge(*values):
        readings = [reading(value) for value in values]
        seen.update(readings, _Engine().process(readings), ())

    for _ in range(32):
        judge(3.0, 1.0)
    assert seen.told(told_at(seen, 1.0)) == [ChannelReading("oil", 1.0, None)], "too few say so"
    judge(*[3.0, 1.0] * 20)
    assert seen.told(told_at(seen, 1.0)) == [ChannelReading("oil", 1.0, (3.0, 3.0))]
    for _ in range(2_000):
        judge(5.0)
    one = told_at(seen, 1.0, changed_seq=11)
    assert seen.told(one)[0].usual == (5.0, 5.0)
    seen.forget("WT-9")
    assert not seen.told(one)


def test_what_is_usual_of_a_day_meets_each_of_its_hours():
    """Rows every 32 events apart know three hours of a day, and call the others unusual."""
    seen = TypicalValues(["oil"])
    for n in range(60, 3_000, 97):
        readings = [reading(3.0 + hour % 24) for hour in range(97)]
        seen.update(readings, _Engine().process(readings), ())
        (told,) = seen.told(told_at(seen, 1.0, changed_seq=n))
        low, high = told.usual
        assert low < 5.5, (n, low)
        assert high > 23.5, (n, high)


def test_of_each_version_the_first_change_and_the_newest_are_known_and_no_more_than_is_needed():
    seen = TypicalValues(["oil"])
    seen.update([reading(3.4)], _Engine().process([reading(3.4)]), ())
    figures = [told_at(seen, float(n), changed_seq=n) for n in range(100)]
    changes = [told_at(seen, 100.0 + v, v, changed_seq=98 + v) for v in range(2, 40)]
    said = [seen.told(one)[0].value for one in (figures[0], figures[99], *changes)]
    assert said == [0, 99, *range(102, 140)]
    assert seen.told(figures[50])[0].value == 139, "as far as is known"
    assert seen.told(changes[0])[0].value == 139, "long told of"
    again = TypicalValues(["oil"])
    again.restore({"WT-9": seen.view("WT-9")()})
    assert [again.told(one) for one in changes[-12:]] == [seen.told(one) for one in changes[-12:]]
    assert again.view("WT-9")() == seen.view("WT-9")()


FAULTS = range(2_000, 2_200)


def line_of_pumps(n):
    """A second of three pumps, of which one has a fault after the restart of the worker."""
    draw = np.random.default_rng(n)
    flow = 40 + 8 * np.sin(n / 100) + draw.normal(size=3)
    load = flow / 2 + draw.normal(size=3) * 0.3
    load[0] += 9 * (n in FAULTS)
    return [{"t": T0 + 1000 * n + k, "id": f"WT-{k}", "flow": a, "load": b}
            for k, (a, b) in enumerate(zip(flow.round(3), load.round(3), strict=True))]  # fmt: skip


def told_by(receiver):
    """What was said of incidents, by the id of each event."""
    events = map(json.loads, receiver.taken)
    return {one["id"]: one["data"] for one in events if one["type"] == "io.rejex.incident.v1"}


@pytest.mark.thorough
def test_after_a_kill_and_in_large_batches_an_alert_says_the_same_byte_for_byte(tmp_path):
    """Of 12 alerts after a restart 12 named a range that was too narrow; of 59 0 the opening."""
    taken = []
    for how in ("at once", "killed"):
        receiver, folder = Receiver(), tmp_path / how
        folder.mkdir()
        (folder / "farm.toml").write_text(f"""
[pipeline]
name = "farm"
[input]
path = "farm.jsonl"
time = "t"
sensor = "id"
channels = ["flow", "load"]
follow = {str(how == "killed").lower()}
[rejection]
contamination = 0.02
tolerance = 6
window = 500
[state]
snapshot_every_events = 1500
[run]
max_poll_records = {10_000 if how == "at once" else 400}
[alerts]
webhook_url = "{receiver.url}"
""")
        feed = folder / "farm.jsonl"

        def add(begin, end, feed=feed):
            with feed.open("a") as file:
                for n in range(begin, end):
                    file.writelines(json.dumps(row) + "\n" for row in line_of_pumps(n))

        if how == "at once":
            add(0, 2_400)
            assert ended(command("run", "farm.toml"), cwd=folder).returncode == 0
        else:
            for begin, end in ((0, 1_990), (1_990, 2_400)):
                add(begin, end)
                due = {id_ for id_, told in taken[0].items() if told["offset"] < 3 * end}
                with started(command("run", "farm.toml"), cwd=folder) as process:
                    until(lambda due=due, to=receiver: due <= told_by(to).keys())
                    process.kill()
        taken.append(told_by(receiver))
        receiver.close()
    assert taken[0] == taken[1]
    said = [told for told in taken[0].values() if told["opened_ms"] >= T0 + 1000 * FAULTS[0]]
    values = [one for told in said for one in told["values"]]
    assert min(one["high"] - one["low"] for one in values) > 6, values


@pytest.mark.parametrize("state", IncidentState)
def test_every_state_has_words(state):
    told = make_alert(incident(state=state), DisplayNames("farm")).annotations
    is_over = "was not as usual from" if state is CLOSED else "is not as usual since"
    begun = f"WT-9 (oil) {is_over} Tue 14 November 2023, 22:13 UTC"
    assert told["description"].startswith(begun)
    assert ": of 10 events" in told["description"]
    assert ("answers" in told) == (state not in {ADOPTING, CLOSED}), "what an answer will do"
    assert told["summary"].startswith("WT-9: over after") == (state is CLOSED)


def test_every_end_has_its_sentence():
    """Those of a record's documentation, and every one that the state machine gives."""
    source = Path(types.__file__).read_text(encoding="utf-8")
    documented = source.split("Why it is over, for ``closed`` ones:")[1].split('"""')[0]
    ends = {*re.findall(r"``([a-z_]+)``", documented)} - {"levels"}
    source = Path(state_machine.__file__).read_text(encoding="utf-8")
    assert {*re.findall(r'self\._end\([^()]*"(\w+)"', source)} <= ends
    for end in ends:
        one = incident(state=CLOSED, ended=end)
        assert how_ended(one)
        assert "_" not in how_ended(one)
        assert state_phrase(one) != "is over", ended
    unanswered = incident(state=CLOSED, ended="adopted_by_age")
    for text in (how_ended(unanswered), state_phrase(unanswered), describe_incident(unanswered)):
        assert "over" not in text


def test_the_answers_say_what_becomes_of_an_incident_with_and_without_them():
    def said(**more):
        return make_alert(incident(**more), DisplayNames("farm")).annotations

    stays = "Fault: The alarm stays until readings return to normal. What was measured since it"
    assert f"{stays} began is no reference." in said()["answers"]
    assert "Unanswered, it is taken for normal." in said()["answers"], "in silence it does not wait"
    dated = said(adopts_ms=1_700_259_200_000)["answers"]
    assert "taken for normal on Fri 17 November 2023, 22:13 UTC or later" in dated
    answered = said(state=FAULT)["answers"]
    assert not answered.startswith("Fault")
    assert "by itself after" not in answered, "a fault is never adopted"
    going_on = said(held=False)["answers"]
    assert "What is measured from now on is no reference" in going_on
    assert "by itself after" not in going_on
    limit = LimitExcess("oil", 7.0, 6.0)
    assert "The limit stays" in said(limits=(limit,))["answers"]
    assert said(state=ADOPTING)["description"].endswith("by itself: nobody has answered.")
    assert said(state=ADOPTING, answer="c-1")["description"].endswith("as was answered.")
    assert said(state=CLOSED, ended="adopted_by_age")["summary"].startswith(
        "WT-9: not answered in 9 s, and taken for normal; severity"
    )


def test_a_group_is_named_as_one_and_its_sensors_are_listed():
    sensors = tuple(f"WT-{i}" for i in range(25))
    alert = make_alert(incident(stream_key="north", sensors=sensors), DisplayNames("farm"))
    assert alert.labels["sensor_group"] == "north"
    assert "stream" not in alert.labels
    assert alert.annotations["sensors"].endswith("WT-19 and 5 more")
    assert "link" not in alert.annotations, "nobody said where the console is"


def test_alarms_and_incidents_never_share_an_alert():
    assert not any(kind.value == "incident" for kind in AlarmKind)
