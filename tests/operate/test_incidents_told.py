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
from rejex_stream.operate.alerts import Alertmanager, Webhook, make_alert, make_event
from rejex_stream.operate.incident_text import (
    DisplayNames,
    describe_incident,
    how_ended,
    state_phrase,
)
from rejex_stream.operate.run_monitor import TypicalValues
from rejex_stream.readable import ChannelReading, Expected
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
from tests.waiting import PATIENCE_S, until

OPEN, FAULT, RECOVERING, ADOPTING, CLOSED = IncidentState
FARM = Partition("farm", 0)
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

    def process(self, readings):
        labels = [Label.NORMAL if r.values[0] > 2 else Label.ANOMALY for r in readings]
        return [Verdict(r.position, r.stream_key, r.sensor, 0, 0, label)
                for r, label in zip(readings, labels, strict=True)]  # fmt: skip


def reading(value):
    return Reading("WT-9", "WT-9", 0, (value,), Position("farm", 0, 0))


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
    watch.judged(FARM, [reading(3.4)], engine.process([reading(3.4)]), 0.001)
    for _ in range(2):
        now["s"] += 61
        look(watch)
    assert metric(watch, "rejex_silent_sensors{")[0].endswith(" 2.0")
    assert {alert.labels["alertname"] for alert in active} == {"RejexIncident", "RejexSilent"}
    assert caplog.text.count("WT-9 sends nothing") == 1
    assert metric(watch, "rejex_incident_waiting_seconds{") == [], "nobody can answer it"
    watch.judged(FARM, [reading(3.4)], engine.process([reading(3.4)]), 0.001)
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
        readings = [*[reading(3.4)] * 50, reading(1.2)]
        watch.judged(FARM, readings, engine.process(readings), 0.001)
        durable(watch, incident())
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
        assert said["description"].endswith("It waits for an answer.")
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


def test_an_alert_says_what_the_others_made_one_expect_of_the_newest_event():
    told = ChannelEvidence("oil", 3.0, 0.1, Label.NORMAL, Expected(1.2, 3.5, 3.4, 3.6))
    card = Evidence((told,), "oil", 1, 0.1, 0.05, 9)
    usual = TypicalValues(("oil",))
    for value, evidence in (*[(3.4, None)] * 50, (1.2, card)):
        said = Verdict(Position("farm", 0, 1), "WT-9", "WT-9", 1, 0, Label.NORMAL)
        said = msgspec.structs.replace(said, evidence=evidence)
        if evidence is not None:
            said = msgspec.structs.replace(said, label=Label.ANOMALY)
        usual.update([reading(value)], [said])
    shown = DisplayNames("farm", channels={"oil": Channel(unit="bar")})
    told = "oil 1.2 bar, expected 3.5 bar from the others; usually 3.4 bar"
    one = usual.reading("WT-9", "oil")
    assert make_alert(incident(), shown, [one]).annotations["values"] == told
    usual.update([reading(1.3)], [msgspec.structs.replace(said, evidence=None)])
    later = shown.reading_text(usual.reading("WT-9", "oil"))
    assert later == "oil 1.3 bar, usually 3.4 bar", "nobody said what to expect of that one"


def test_the_description_says_what_the_first_channel_read_and_what_was_expected():
    oil = ChannelEvidence("oil", 3.0, 0.1, Label.NORMAL, Expected(1.2, 3.5, 3.4, 3.6))
    told = make_alert(incident(channels=(oil,)), DisplayNames("farm")).annotations
    assert "UTC: oil 1.2, expected 3.5 from the others; of 10 events" in told["description"]


def test_in_a_large_batch_an_alert_quotes_the_incidents_own_reading():
    """Of 59 readings that alerts of file runs quoted none was of the opening."""
    evidence = ChannelEvidence("oil", 3.0, 0.1, Label.NORMAL, Expected(1.2, 3.5, 3.4, 3.6))
    opened = msgspec.structs.replace(incident(), channels=(evidence,))
    usual = TypicalValues(("oil",))
    readings = [reading(3.4 + 0.001 * (k % 10)) for k in range(10_000)]
    verdicts = _Engine().process(readings)
    usual.update(readings, verdicts)
    assert opened.changed_seq != verdicts[-1].seq
    said = usual.reading_of(opened, evidence)
    assert (said.value, said.expected) == (1.2, evidence.expected)
    low, high = said.usual
    assert 3.4 <= low < high <= 3.41, "of a batch more is taken than its last reading"
    own = msgspec.structs.replace(opened, changed_seq=verdicts[-1].seq)
    assert usual.reading_of(own, evidence) == usual.reading("WT-9", "oil")


@pytest.mark.parametrize(("side", "word"), [("low", "drops"), ("high", "rises")])
def test_of_a_channel_with_one_side_it_is_said_which(side, word):
    shown = DisplayNames("farm", channels={"oil": Channel(unit="bar", side=side)})
    said = make_alert(incident(), shown, [ChannelReading("oil", 1.2, (3.0, 4.0))])
    told = f"oil 1.2 bar, usually 3 to 4 bar (only {word} are asked about)"
    assert said.annotations["values"] == told
    assert f"{told}; since" in said.annotations["summary"]


def test_what_is_usual_forgets_and_is_not_what_faults_were():
    seen = TypicalValues(["oil"])
    for value in (3.0, 1.0) * 48:
        readings = [reading(value)]
        seen.update(readings, _Engine().process(readings))
    assert seen.reading("WT-9", "oil") == ChannelReading("oil", 1.0, None), "too few say so"
    readings = [reading(3.0), reading(1.0)]
    seen.update(readings, _Engine().process(readings))
    assert seen.reading("WT-9", "oil") == ChannelReading("oil", 1.0, (3.0, 3.0))
    for _ in range(2_000):
        readings = [reading(5.0)]
        seen.update(readings, _Engine().process(readings))
    assert seen.reading("WT-9", "oil").usual == (5.0, 5.0)
    seen.forget(["WT-9"])
    assert seen.reading("WT-9", "oil") is seen.reading("WT-9", "gas") is None


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
    for ended in ends:
        one = incident(state=CLOSED, ended=ended)
        assert how_ended(one)
        assert "_" not in how_ended(one)
        assert state_phrase(one) != "is over", ended
    unanswered = incident(state=CLOSED, ended="adopted_by_age")
    for text in (how_ended(unanswered), state_phrase(unanswered), describe_incident(unanswered)):
        assert "over" not in text


def test_the_answers_say_what_becomes_of_an_incident_with_and_without_them():
    def said(**more):
        return make_alert(incident(**more), DisplayNames("farm")).annotations

    assert "Fault: What was measured since it began is never learnt." in said()["answers"]
    assert "Unanswered, it is taken for normal." in said()["answers"], "in silence it does not wait"
    dated = said(adopts_ms=1_700_259_200_000)["answers"]
    assert "taken for normal on Fri 17 November 2023, 22:13 UTC or later" in dated
    answered = said(state=FAULT)["answers"]
    assert not answered.startswith("Fault")
    assert "by itself after" not in answered, "a fault is never adopted"
    going_on = said(held=False)["answers"]
    assert "What is measured from now on is never learnt" in going_on
    assert "by itself after" not in going_on
    limit = LimitExcess("oil", 7.0, 6.0)
    assert "The limit stays" in said(limits=(limit,))["answers"]
    assert said(state=ADOPTING)["description"].endswith("by itself: nobody has answered.")
    assert said(state=ADOPTING, answer="c-1")["description"].endswith("as somebody said.")
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
