"""Metrics, rules and dashboard against promtool; alarms against a real Alertmanager and server."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import threading
import urllib.error
import urllib.request
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import ConnectorError
from rejex_stream.features import FeatureSpec
from rejex_stream.monitor import Alarm, MonitorBank, MonitorConfig
from rejex_stream.monitor.alarm import AlarmKind, Alternative
from rejex_stream.native_core import core
from rejex_stream.operate.alerts import Alertmanager, Webhook, make_alert, make_event
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.operate.probes import HealthServer
from rejex_stream.operate.run_metrics import GroupNames, RunMetrics
from rejex_stream.operate.run_monitor import Health, RunMonitor
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.run.run_events import (
    Committed,
    NothingScorable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Retrying,
)
from rejex_stream.types import Invalid, Outcome, Partition, Position, Reading, Record
from tests.operate.alerting import Receiver, tool, until
from tests.program import ended
from tests.strangers import stranger
from tests.streams import Distance
from tests.waiting import PATIENCE_S

PART = Partition("flow", 0)
RULES = files("rejex_stream.operate") / "alerts.yml"
BOARD = json.loads((files("rejex_stream.operate") / "dashboard.json").read_text("utf-8"))
CONSOLE = files("rejex_stream.review.console") / "api.py"


def outcomes(events=1500, sensors=3, **policy):
    spec = EngineSpec(
        Distance(), FeatureSpec(("x", "y")),
        RejectionPolicy(0.1, **policy or {"tolerance": 4.0}), window=100,
        schedule=RefitSchedule(first_fit_events=100, refit_every_events=400),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    readings = [
        Reading(f"s{i % sensors}", f"s{i % sensors}", 1000 * i, tuple(row), Position("flow", 0, i))
        for i, row in enumerate(rng.normal(size=(events, 2)).tolist())
    ]
    context = ReviewItems(("x", "y"))
    made = []
    for reading, verdict in zip(
        readings, Engine(spec, InlineExecutor()).process(readings), strict=True
    ):
        record = Record(reading.position, None, b"{}")
        made.append(Outcome(record, verdict, None, context.observe(reading, verdict)))
    broken = Record(Position("flow", 0, events), None, b"{")
    made.append(Outcome(broken, None, Invalid(broken.position, "decode", "not JSON")))
    return spec, made


@pytest.fixture(scope="module")
def fed():
    spec, made = outcomes()
    bank = MonitorBank(MonitorConfig(window=100, contamination=0.1, tolerance=4.0))
    metrics = RunMetrics("turbine", spec, version="7")
    metrics.watch(PART, bank)
    bank.observe(o.verdict for o in made if o.verdict is not None)
    metrics.outcomes(PART, made[:500], replaying=True)  # counted before: not again
    metrics.outcomes(PART, made, replaying=False)
    metrics.event(Committed(len(made), 0.02, {PART: len(made)}, {PART: 17}, {PART: 3}))
    metrics.lag({PART: 7})
    metrics.refresh(force=True)
    return metrics, made


def samples(metrics):
    lines = metrics.exposition().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_metrics_say_what_the_budget_had_no_credit_for():
    spec, made = outcomes(rate=0.1, burst=1, owner="partition")
    metrics = RunMetrics("turbine", spec)
    name = 'rejex_withheld_events_total{pipeline="turbine",sensor_group=""}'
    assert samples(metrics)[name] == "0.0"
    metrics.outcomes(PART, made, replaying=False)
    withheld = sum(o.verdict is not None and o.verdict.withheld for o in made)
    assert float(samples(metrics)[name]) == withheld > 0


def test_metrics_count_what_happened(fed):
    metrics, made = fed
    found = samples(metrics)
    verdicts = [o.verdict for o in made if o.verdict is not None]
    for label in ("normal", "anomaly", "rejected"):
        name = f'rejex_events_total{{pipeline="turbine",sensor_group="",verdict="{label}"}}'
        assert float(found[name]) == sum(v.label == label for v in verdicts)
    assert found['rejex_records_invalid_total{pipeline="turbine",reason="decode"}'] == "1.0"
    names = 'partition="0",pipeline="turbine",topic="flow"'
    rate = float(found[f"rejex_rejection_rate_ratio{{{names}}}"])
    assert 0 < rate < 0.5
    assert float(found[f"rejex_consumer_lag_records{{{names}}}"]) == 7
    assert float(found[f"rejex_consumer_lag_seconds{{{names}}}"]) > 0
    assert float(found['rejex_model_trained_timestamp_seconds{pipeline="turbine"}']) > 1.7e9
    assert float(found[f"rejex_committed_offset{{{names}}}"]) == len(made)
    assert float(found[f"rejex_commands_waiting{{{names}}}"]) == 17
    assert float(found[f"rejex_untrusted_clocks{{{names}}}"]) == 3
    (info,) = (name for name in found if name.startswith("rejex_model_info"))
    assert 'gamma="0.1",model_version="7",n="100",pipeline="turbine",t="4"' in info


@pytest.mark.parametrize("which", ["native", "python"])
def test_a_metric_says_which_core_judges(monkeypatch, which):
    if which == "native":
        pytest.importorskip("rejex_native", reason="the native core is not built: make native")
    monkeypatch.setenv("REJEX_CORE", "" if which == "native" else "python")
    core.cache_clear()
    try:
        assert samples(RunMetrics("p"))[f'rejex_core_info{{core="{which}"}}'] == "1.0"
    finally:
        core.cache_clear()


def test_gauges_say_what_the_monitors_know():
    _, made = outcomes()
    metrics, config = RunMetrics("p"), MonitorConfig(window=100, contamination=0.1, tolerance=4.0)
    metrics.watch(PART, bank := MonitorBank(config))
    bank.observe(o.verdict for o in made if o.verdict is not None)
    metrics.outcomes(PART, made, replaying=False)
    metrics.event(Committed(len(made), 0.02, {PART: len(made)}))
    metrics.refresh(force=True)
    found, status = samples(metrics), bank.status()
    expected = {
        "rejection_rate_ratio": status.rejection_rate, "rejection_rate_lower_ratio": status.lower,
        "rejection_rate_upper_ratio": status.upper,
        "rejection_rate_estimate_ratio": status.theory.expected_rate,
        "rejection_rate_bound_ratio": status.theory.frozen_bound,
        "rejection_rate_paper_bound_ratio": status.theory.paper_bound,
        "anomaly_rate_ratio": status.anomaly_rate, "flagged_rate_ratio": status.flagged_rate,
        "rejection_window_effective_events": status.effective_events,
        "health_log_evidence": status.health_log_evidence,
        "health_log_threshold": status.health_threshold, "review_budget_per_day": None,
    }  # fmt: skip
    names = f'{{partition="{PART.partition}",pipeline="p",topic="{PART.topic}"}}'
    for name, value in expected.items():
        exported = float(found[f"rejex_{name}{names}"])
        assert math.isnan(exported) if value is None else exported == value, name
    reviews = sum(o.review is not None for o in made)
    assert reviews > 0
    assert float(found['rejex_review_items_total{pipeline="p",sensor_group=""}']) == reviews
    assert b's0"' not in metrics.exposition(), "no sensor is a label"
    metrics.event(PartitionClosed(Partition("flow", 1)))
    assert b'partition="0"' in metrics.exposition()
    metrics.event(PartitionClosed(PART))
    assert b'partition="0"' not in metrics.exposition(), "who lost it leaves nothing behind"


# ------------------------------------------------------------------------------------ groups
def test_the_name_of_a_group_cannot_break_the_metrics():
    metrics = RunMetrics("p", outcomes(1)[0], grouped=True)
    verdict = next(o.verdict for o in outcomes(301, 1)[1] if o.verdict and not o.verdict.reason)
    names = ['a"} 1\nrejex_fake 1', "\ud800", "\x1b[31m", "pump 7"]
    record, replace = Record(verdict.position, None, b""), msgspec.structs.replace
    made = [Outcome(record, replace(verdict, stream_key=name)) for name in names]
    metrics.outcomes(PART, made, replaying=False)
    text = metrics.exposition().decode()
    told = set(re.findall(r'^rejex_limit_events_total{.*sensor_group="(.+?)"}', text, re.M))
    assert not re.search(r"^rejex_fake", text, re.M)
    assert {r"\\ud800", r"\\x1b[31m", "pump 7"} <= told
    assert len(told) == 4


def test_groups_are_a_label_where_sensors_are_grouped_and_never_too_many():
    spec, made = outcomes(400)
    metrics = RunMetrics("p", spec, grouped=True)
    metrics.outcomes(PART, made, replaying=False)
    found = samples(metrics)
    counted = {g: sum(float(v) for n, v in found.items() if n.startswith("rejex_events_total{")
                      and f'sensor_group="{g}"' in n) for g in ("s0", "s1", "s2", "")}  # fmt: skip
    assert counted == {"s0": 134, "s1": 133, "s2": 133, "": 0}
    groups = GroupNames(True)
    names = {groups.of(f"g{i}") for i in range(1000)}
    assert len(names) == 101
    assert "other" in names
    assert groups.of("g5") == "g5"


def test_the_work_of_an_engine_is_timed_and_its_first_readings_are_passed_on():
    spec, _ = outcomes(300)
    metrics = RunMetrics("p", spec)
    monitors = MonitorConfig(window=100, contamination=0.1, tolerance=4.0)
    nobody = {"on_alarm": lambda *_: None, "on_incident": lambda _: None}
    watch = RunMonitor(metrics, monitors, DisplayNames("p"), **nobody)
    shown = []
    watch.on_readings = lambda readings: shown.append(len(readings)) or len(shown) < 2
    state = PartitionState(
        PART, decoder=JsonDecoder(FieldMapping(sensor="s", channels=["x", "y"])),
        engine=watch.register_engine(PART, Engine(spec, InlineExecutor())),
        context=ReviewItems(("x", "y")), on_judged=watch.judged,
    )  # fmt: skip
    row = b'{"s": "s", "x": 1, "y": 2}'
    broken = [Record(Position("flow", 0, 0), None, b"{")]
    for batch in (
        [], broken, *([Record(Position("flow", 0, i), None, row, (), i)] for i in (1, 2, 3))
    ):  # fmt: skip
        assert len(state.process(batch)) == len(batch)
    found = samples(metrics)
    assert found['rejex_scoring_duration_seconds_count{pipeline="p"}'] == "3.0"
    assert 0 < float(found['rejex_scoring_duration_seconds_sum{pipeline="p"}']) < 3
    assert shown == [1, 1], "until somebody has seen enough"


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say_about_the_metrics(fed):
    metrics, _ = fed
    done = ended([tool("promtool"), "check", "metrics"], input=metrics.exposition(), text=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.prometheus
def test_every_alert_fires_on_its_case_and_stays_silent_on_another(tmp_path):
    shutil.copy(str(RULES), tmp_path / "alerts.yml")
    case = Path(__file__).parent / "alerts_test.yml"
    shutil.copy(case, tmp_path)
    done = ended([tool("promtool"), "test", "rules", case.name], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        (check["alertname"], bool(check.get("exp_alerts")))
        for test in yaml.safe_load(case.read_text())["tests"]
        for check in test["alert_rule_test"]
    }
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    for rule in rules:
        assert {(rule["alert"], True), (rule["alert"], False)} <= tested, rule["alert"]


@pytest.mark.prometheus
def test_every_panel_asks_what_prometheus_understands(tmp_path, fed):
    from rejex_stream.review.console.api import exposition
    from rejex_stream.review.queue.review_store import ReviewStore

    store = ReviewStore(tmp_path / "review.db")
    known = fed[0].exposition().decode() + exposition(store).decode()
    store.close()
    rules = []
    for panel in BOARD["panels"]:
        for number, query in enumerate(target["expr"] for target in panel["targets"]):
            text = query.replace("$__rate_interval", "5m").replace("$pipeline", ".*")
            name = re.sub(r"\W", "_", f"{panel['title']}_{number}")
            rules.append({"record": f"panel:{name}", "expr": text})
            for metric in re.findall(r"rejex_\w+", text):
                assert re.search(rf"^{metric}", known, re.M), f"{metric} is not exported"
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = ended([tool("promtool"), "check", "rules", file])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_name_metrics_that_exist(fed):
    known = fed[0].exposition().decode()
    console = CONSOLE.read_text()  # its own are tested in tests/review
    for metric in set(re.findall(r"rejex_[a-z_]+", RULES.read_text())):
        ours = re.search(rf"^# HELP {metric.removesuffix('_total')}", known, re.M)
        names = (metric, metric.removeprefix("rejex_review_"))
        theirs = any(f'"{name}"' in console for name in names)
        assert ours or theirs, metric


def test_the_dashboard_is_one_that_grafana_can_import():
    panels, variables = BOARD["panels"], BOARD["templating"]["list"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    assert {variable["name"] for variable in variables} == {"source", "pipeline"}
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["description"]
        assert panel["targets"]


# ------------------------------------------------------------------------------------- health
def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.thorough
def test_slow_clients_hold_up_no_probe_and_no_thread():
    health = Health()
    server = HealthServer("127.0.0.1", 0, health, lambda: b"")
    before, slow = threading.active_count(), []
    try:
        for _ in range(40):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
            client.sendall(b"GET /livez HTTP/1.1\r\nX: ")  # and never the rest
            slow.append(client)
        assert get(server.port, "/livez")[0] in (200, 503)
        until(lambda: threading.active_count() - before <= 33)
        assert slow[0].recv(1) == b"", "the oldest was closed"
    finally:
        for client in slow:
            client.close()
        server.close()


@pytest.mark.thorough
def test_live_does_not_ask_the_broker_and_ready_does():
    now = [0.0]
    health = Health(stalled_after_s=30, clock=lambda: now[0])
    server = HealthServer("127.0.0.1", 0, health, lambda: b"rejex_x 1\n")
    try:
        assert get(server.port, "/livez") == (200, "ok\n")
        assert get(server.port, "/readyz")[0] == 503  # nothing is ours yet
        health.event(PartitionOpened(PART, 0, 0, 500))
        status, text = get(server.port, "/readyz?verbose")
        assert status == 503
        assert "[-] replay: 1 still replaying" in text
        health.event(PartitionLive(PART, 500, 1.0))
        assert get(server.port, "/readyz")[0] == 200
        health.event(Retrying(ConnectorError("broker b1 is gone"), 1.0, 1))
        assert get(server.port, "/livez")[0] == 200
        status, text = get(server.port, "/readyz?verbose")
        assert (status, "[-] edge: broker b1 is gone" in text) == (503, True)
        health.event(Committed(1, 0.1, {}))
        assert get(server.port, "/readyz")[0] == 200
        now[0] = 31.0
        assert get(server.port, "/livez")[0] == 503
        assert get(server.port, "/metrics") == (200, "rejex_x 1\n")
        assert get(server.port, "/nothing")[0] == 404
        with pytest.raises(ConnectorError, match=r"choose another metrics\.port"):
            HealthServer("127.0.0.1", server.port, health, lambda: b"")
    finally:
        server.close()


# --------------------------------------------------------------------------------- notifying
def alarm(stream="pump-7", kind=AlarmKind.HEALTH):
    return Alarm(
        kind=kind, alternative=Alternative.MORE_REJECTS, stream_key=stream,
        position=Position("flow", 0, 42), seq=42, event_time_ms=1_700_000_000_000, model_epoch=1,
        evidence=14.2, threshold=13.8, unit="nats", guarantee="about one in 1e6 events",
        message="pump-7 rejects more than theory allows",
    )  # fmt: skip


def test_that_nothing_can_be_scored_is_an_active_alarm_until_it_is_over():
    metrics = RunMetrics("p")
    nothing = alarm(None, AlarmKind.NOTHING_SCORABLE)

    def shown(name):
        metrics.refresh(force=True)
        (line,) = [
            line for line in metrics.exposition().decode().splitlines()
            if line.startswith(name) and 'kind="nothing_scorable"' in line
        ]  # fmt: skip
        return float(line.rpartition(" ")[2])

    metrics.event(NothingScorable(PART, nothing))
    assert (shown("rejex_active_alarms"), shown("rejex_monitor_alarms_total")) == (1, 1)
    metrics.event(NothingScorable(PART, None))
    assert (shown("rejex_active_alarms"), shown("rejex_monitor_alarms_total")) == (0, 1)


@pytest.mark.thorough
def test_an_alarm_that_nobody_takes_is_said_in_the_log_and_the_address_is_not(caplog):
    receiver = Receiver([410])
    hook = Webhook(receiver.url + "/T0/hunter2", wait=lambda s: None)
    hook.post(make_event(alarm(), DisplayNames("turbine")))
    hook.close()
    receiver.close()
    assert len(receiver.got) == 1  # 410 Gone: the same request will be refused again
    nobody = Webhook("http://127.0.0.1:1/hunter2", attempts=2, wait=lambda s: None)
    nobody.post(make_event(alarm(), DisplayNames("turbine")))
    nobody.close()
    assert nobody.given_up == 1
    assert "HTTP 410" in caplog.text
    assert "http://127.0.0.1:1/*** did not accept event" in caplog.text
    assert "hunter2" not in caplog.text


def test_an_alertmanager_that_is_away_costs_the_run_nothing():
    # Connections are taken and never answered: a post waits its whole five seconds.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        manager = Alertmanager(f"http://127.0.0.1:{silent.getsockname()[1]}", repeat_s=0.05)
        for _ in range(3):
            manager.update([make_alert(alarm(), DisplayNames("turbine"))])
        assert manager.failures == 0, "still waiting, in the background"
    until(lambda: manager.failures > 0)
    manager.close()


@pytest.mark.thorough
def test_an_answer_that_is_not_http_ends_neither_alertmanagers_thread_nor_the_webhooks(caplog):
    with stranger() as url:
        manager = Alertmanager(url, repeat_s=0.05)
        manager.update([make_alert(alarm(), DisplayNames("turbine"))])
        until(lambda: manager.failures > 1)
        manager.close()
        hook = Webhook(url, attempts=2, wait=lambda s: None)
        hook.post(make_event(alarm(), DisplayNames("turbine")))
        hook.post(make_event(alarm("pump-8"), DisplayNames("turbine")))
        until(lambda: hook.given_up == 2)
        hook.close()
    refused = [line for line in caplog.messages if "did not accept event" in line]
    assert len(refused) == 2
    assert all("the answer is not HTTP" in line for line in refused)
