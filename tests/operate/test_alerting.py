"""The real program tells a real Alertmanager and a real webhook of a sensor that sticks."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from rejex_stream.operate import alerts
from rejex_stream.operate.alerts import Alert, Alertmanager, Event, Webhook
from tests.operate.alerting import Receiver, active_alerts, alertmanager
from tests.program import command, started
from tests.pump import feed, flow, pump_toml
from tests.waiting import PATIENCE_S, until

SECRET = "sesame"
STUCK = ("RejexStuck", "p1")


def stuck(i):
    """The second of two sensors repeats a value of its own."""
    return 3.25 if i % 2 else flow(i)


@contextmanager
def running(folder, alerts, path="feed.csv"):
    """The program over a feed that goes on; yields its process, and stops it in the end."""
    (folder / "pump.toml").write_text(
        pump_toml(
            path=path,
            source='sensor = "id"\nfollow = true',
            more=f"[monitor]\nstuck_events = 50\n[alerts]\n{alerts}",
        )
    )
    with (folder / "log").open("wb") as log:
        how = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": log}
        process = started(command("run", "pump.toml"), **how)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE_S)


@pytest.mark.prometheus
def test_alertmanager_sees_the_alarm_while_it_lasts_and_no_longer(tmp_path):
    told = Receiver()
    feed(tmp_path, 0, 1000)
    with (
        alertmanager(tmp_path, told.url) as url,
        running(tmp_path, f'alertmanager_url = "{url}"\nalertmanager_repeat_s = 5\n') as process,
    ):
        feed(tmp_path, 1000, 1300, stuck)
        until(lambda: STUCK in active_alerts(url))
        first = active_alerts(url)[STUCK]
        assert first["labels"] == {
            "alertname": "RejexStuck", "pipeline": "pump", "kind": "stuck", "stream": "p1",
            "direction": "repeated_score", "severity": "critical",
        }  # fmt: skip
        assert first["status"]["state"] == "active"
        assert "stuck" in first["annotations"]["summary"]
        assert first["annotations"]["guarantee"].startswith("heuristic")
        until(lambda: active_alerts(url)[STUCK]["endsAt"] > first["endsAt"], "it is posted again")
        assert active_alerts(url)[STUCK]["startsAt"] == first["startsAt"]
        assert ("RejexStuck", "p0") not in active_alerts(url)
        feed(tmp_path, 1300, 1400)
        ends = []

        def gone():
            alert = active_alerts(url).get(STUCK)
            ends.extend([] if alert is None else [datetime.fromisoformat(alert["endsAt"])])
            return alert is None

        until(gone)
        until(lambda: any(b'"resolved"' in body for _, body in told.got))
    told.close()
    assert process.returncode == 0
    (resolved,) = {
        alert["endsAt"]
        for _, body in told.got
        for alert in json.loads(body)["alerts"]
        if alert["status"] == "resolved" and alert["labels"].get("stream") == "p1"
    }
    assert datetime.fromisoformat(resolved) < max(ends)  # told so, it did not run out


@pytest.mark.prometheus
def test_an_alertmanager_that_comes_late_is_told_then(tmp_path):
    told = Receiver()
    feed(tmp_path, 0, 1000)
    feed(tmp_path, 1000, 1300, stuck)
    (tmp_path / "later").mkdir()
    with alertmanager(tmp_path / "later", told.url) as url:
        pass  # its address, and nobody there
    port = url.rpartition(":")[2]
    with running(tmp_path, f'alertmanager_url = "{url}"\nalertmanager_repeat_s = 1\n'):
        until(lambda: b"did not accept" in (tmp_path / "log").read_bytes())
        with alertmanager(tmp_path, told.url, port=int(port)):
            until(lambda: STUCK in active_alerts(url))
    told.close()


@pytest.mark.thorough
def test_the_webhook_gets_it_signed_and_again_until_it_takes_it(tmp_path):
    told = Receiver([503, 503])
    feed(tmp_path, 0, 1000)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    alerts = f'webhook_url = "{told.url}"\nwebhook_secret = "file:{tmp_path / "secret"}"\n'
    with running(tmp_path, alerts) as process:
        feed(tmp_path, 1000, 1300, stuck)
        until(lambda: len(told.got) >= 3)
    told.close()
    assert process.returncode == 0
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line.get("event") == "alarm" and line["kind"] == "stuck" for line in logged)
    for headers, body in told.got:
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(headers["X-Rejex-Signature"], f"sha256={expected}")
    refused, again, taken = told.got[:3]
    assert refused == again == taken  # the same bytes, signature and idempotency key
    events = {h["Idempotency-Key"]: json.loads(body) for h, body in told.got}
    assert all(event["id"] == key for key, event in events.items())
    kinds = [(event["data"]["kind"], event["subject"]) for event in events.values()]
    assert kinds.count(("stuck", "p1")) == 1


@pytest.mark.thorough
def test_a_channel_that_is_renamed_is_an_alarm_until_it_has_its_name_again(tmp_path):
    """An input that never ends has no exit code to tell it by."""
    hook, manager = Receiver(), Receiver()
    feed = tmp_path / "feed.jsonl"
    alerts = f'webhook_url = "{hook.url}"\nalertmanager_url = "{manager.url}"\n'

    def jsonl(numbers, name):
        with feed.open("a") as file:
            for i in numbers:
                file.write(json.dumps({"t": 1_700_000_000 + i, "id": "p0", name: i % 7}) + "\n")

    def alerted():
        told = [alert for _, body in manager.got for alert in json.loads(body)]
        return [a for a in told if a["labels"]["alertname"] == "RejexNothingScorable"]

    def now_over():
        return [a for a in alerted() if datetime.fromisoformat(a["endsAt"]) <= datetime.now(UTC)]

    jsonl(range(150), "Flow")
    with running(tmp_path, alerts, path=feed.name):
        until(alerted, "the alert")
        (raised,) = {alert["annotations"]["summary"] for alert in alerted()}
        assert "did you mean 'Flow'?" in raised
        assert alerted()[0]["labels"]["severity"] == "critical"
        assert not now_over()
        until(lambda: hook.got, "the webhook's event")
        jsonl(range(150, 160), "flow")
        until(now_over, "it is resolved")
    hook.close()
    manager.close()
    kinds = [json.loads(body)["data"]["kind"] for _, body in hook.got]
    assert kinds.count("nothing_scorable") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_follows_a_redirect_which_would_drop_the_body_or_leak_it(status, caplog):
    elsewhere = Receiver()
    sender = Receiver([status] * 9, location=elsewhere.url)
    hook = Webhook(sender.url, first_delay_s=0.01)
    hook.post(Event("e-1", b"{}"))
    manager = Alertmanager(sender.url, repeat_s=60.0)
    manager.update([Alert({"alertname": "Lasting"}, {})])
    until(lambda: manager.failures and hook.given_up, "both are refused")
    hook.close()
    manager.close()
    sender.close()
    elsewhere.close()
    assert elsewhere.got == []
    assert hook.delivered == 0
    assert f"HTTP {status}, a redirect, which is not followed: give the address" in caplog.text


@pytest.mark.thorough
def test_a_clock_that_went_back_leaves_no_alert_behind_for_as_long_as_it_was_ahead(monkeypatch):
    """An alert that ended stayed active for 400 days: its end was put behind its beginning."""
    receiver, ahead = Receiver(), timedelta(days=400)
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + ahead

    monkeypatch.setattr(alerts, "datetime", Wrong)
    manager = Alertmanager(receiver.url, repeat_s=0.05, lifetime_s=30.0)
    try:
        lasting, passing = (Alert({"alertname": name}, {}) for name in ("Lasting", "Passing"))
        manager.update([lasting])
        manager.post_ended(passing)
        until(lambda: receiver.taken, "both are told")
        ahead, seen = timedelta(), len(receiver.taken)
        manager.update([])
        until(lambda: len(receiver.taken) > seen + 2, "it is told that one is over")
    finally:
        manager.close()
        receiver.close()
    last = {
        one["labels"]["alertname"]: datetime.fromisoformat(one["endsAt"])
        for body in receiver.taken[seen:] for one in json.loads(body)
    }  # fmt: skip
    assert set(last) == {"Lasting", "Passing"}
    assert max(last.values()) < tomorrow
