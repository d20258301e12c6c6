"""The doctor over files: what it finds, and that each finding comes with a mend."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rejex_stream.cli import main
from rejex_stream.doctor import examine
from rejex_stream.doctor.findings import clock_finding
from rejex_stream.types import Position, Reading
from tests.operate.alerting import active_alerts, alertmanager
from tests.strangers import stranger

CONFIG = """
[pipeline]
name = "pump"
[input]
path = "feed.csv"
channels = ["flow"]
time = "t"
time_unit = "s"
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 8
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a config and a feed, which is where we are."""
    for name in [name for name in os.environ if name.startswith("REJEX_") and "__" in name]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.toml").write_text(CONFIG)
    now = int(time.time()) - 1000
    rows = "".join(f"{now + i},{i % 7}.5\n" for i in range(100))
    (tmp_path / "feed.csv").write_text("t,flow\n" + rows)
    return tmp_path


def change(place, before, after):
    text = (place / "pump.toml").read_text()
    assert before in text
    (place / "pump.toml").write_text(text.replace(before, after))


def found(place, level=None):
    checks = list(examine(place / "pump.toml"))
    return {c.name: c for c in checks if level is None or c.level == level}


def test_a_healthy_pipeline_has_no_error_and_leaves_no_trace(place):
    before = sorted(path.name for path in place.iterdir())
    checks = list(examine(place / "pump.toml"))
    assert [check.level for check in checks if check.level not in ("ok", "skipped")] == []
    assert [check.number for check in checks] == sorted(check.number for check in checks)
    assert "20 records of 1 sensor(s) can be read" in found(place)["sample"].message
    assert "s ago" in found(place)["clock"].message or "min ago" in found(place)["clock"].message
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_broken_config_ends_the_examination_with_all_its_problems(place):
    change(place, "tolerance", "tolerence")
    change(place, "0.05", "0.7")
    checks = list(examine(place / "pump.toml"))
    assert {check.name for check in checks} == {"config"}
    assert len(checks) == 2
    assert all(check.level == "error" for check in checks)
    told = {check.message: check.fix for check in checks}
    assert "less than 0.5" in told["rejection.contamination = 0.7"]
    assert told["rejection.tolerence"] == "unknown key; did you mean 'tolerance'?"


def test_a_config_that_is_not_there_is_named(tmp_path):
    (check,) = examine(tmp_path / "nowhere.toml")
    assert "nowhere.toml: " in check.message
    assert check.fix == "check the path."


@pytest.mark.parametrize(
    ("before", "after", "name", "said"),
    [
        ("feed.csv", "nowhere.csv", "input", "nowhere.csv"),
        ('["flow"]', '["level"]', "sample", "column 'level' is not in the header"),
    ],
)  # fmt: skip
def test_what_would_stop_a_run_is_an_error(place, before, after, name, said):
    change(place, before, after)
    check = found(place, "error")[name]
    assert said in check.message + check.fix
    assert check.fix


def test_a_real_alertmanager_is_asked_and_told_nothing(place, tmp_path_factory):
    with alertmanager(tmp_path_factory.mktemp("am"), "http://127.0.0.1:9/") as url:
        change(place, "[detector]", f'[alerts]\nalertmanager_url = "{url}/"\n[detector]')
        check = found(place)["alertmanager"]
        assert check.level == "ok"
        assert re.search(r"Alertmanager \d+\.\d+", check.message)
        assert active_alerts(url) == {}
    check = found(place, "error")["alertmanager"]
    assert "does not answer as it should: " in check.message
    assert "start Alertmanager" in check.fix


class Hook:
    """A web server that answers every method alike and remembers what it was asked."""

    def __init__(self, status=204, to=None, context=None):
        outer = self
        self.seen = []

        class Handler(BaseHTTPRequestHandler):
            def _answer(self):
                outer.seen.append((self.command, self.path))
                self.send_response(302 if to and self.path == "/hook" else status)
                if to:
                    self.send_header("Location", to)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = do_POST = do_OPTIONS = _answer  # noqa: N815

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "https" if context else "http"
        self.url = f"{scheme}://localhost:{self.server.server_address[1]}/hook"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def hooked(place, url):
    change(place, "[detector]", f'[alerts]\nwebhook_url = "{url}"\n[detector]')
    return found(place)["webhook"]


@pytest.mark.parametrize(
    ("status", "level"),
    [(204, "ok"), (401, "ok"), (405, "ok"), (404, "warning"), (410, "warning"), (503, "warning")],
)
def test_the_webhook_is_reached_and_gets_no_event(place, status, level):
    with Hook(status) as hook:
        check = hooked(place, hook.url)
    assert (check.level, bool(check.fix)) == (level, level != "ok")
    assert str(status) in check.message
    assert hook.seen == [("HEAD", "/hook")]


def test_a_webhook_that_is_not_there_is_an_error(place):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        check = hooked(place, f"http://127.0.0.1:{free.getsockname()[1]}/hook")
    assert check.level == "error"
    assert "Connection refused" in check.message
    assert "mend alerts.webhook_url" in check.fix
    assert "/hook" not in check.message, "what comes after the host may be a secret"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates")
def test_a_webhook_whose_certificate_nobody_trusts_is_an_error(place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout k.pem -out c.pem -subj /CN=localhost"
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "c.pem", folder / "k.pem")
    with Hook(context=context) as hook:
        check = hooked(place, hook.url)
    assert check.level == "error"
    assert "CERTIFICATE_VERIFY_FAILED" in check.message
    assert hook.seen == []


def test_something_else_at_the_address_of_alertmanager_is_an_error(place):
    with Hook(200) as other:
        url = other.url.removesuffix("/hook")
        change(place, "[detector]", f'[alerts]\nalertmanager_url = "{url}"\n[detector]')
        check = found(place)["alertmanager"]
    assert check.level == "error"
    assert "does not answer as an Alertmanager does" in check.message
    assert other.seen == [("GET", "/api/v2/status")]


def test_what_does_not_speak_http_is_named(place):
    with stranger() as url:
        alerts = f'[alerts]\nalertmanager_url = "{url}"\nwebhook_url = "{url}"\n[detector]'
        change(place, "[detector]", alerts)
        checks = found(place)
    assert checks["alertmanager"].level == checks["webhook"].level == "error"
    assert "does not answer as an Alertmanager does" in checks["alertmanager"].message
    assert "SSH-2.0" in checks["webhook"].message


def test_a_key_of_the_webhook_that_cannot_be_read_is_an_error(place):
    with Hook() as hook:
        alerts = f'[alerts]\nwebhook_url = "{hook.url}"\nwebhook_secret = "file:key"\n[detector]'
        change(place, "[detector]", alerts)
        check = found(place)["webhook"]
        assert check.level == "error"
        assert "alerts.webhook_secret" in check.message
        assert check.fix
        (place / "key").write_text("secret\n")
        assert found(place)["webhook"].level == "ok"


def test_times_in_the_wrong_unit_are_doubted(place):
    change(place, 'time_unit = "s"', 'time_unit = "ms"')
    check = found(place, "warning")["clock"]
    assert "1970" in check.message
    assert "input.time_unit" in check.fix


def test_a_clock_that_is_ahead_is_doubted():
    reading = Reading("a", "a", 2_000_000, (1.0,), Position("t", 0, 0))
    assert clock_finding([reading], now_s=1000.0).level == "warning"
    late = Reading("a", "a", 1_700_000_000_000, (1.0,), Position("t", 0, 0))
    assert clock_finding([late], now_s=1_700_000_100.0).level == "ok"
    assert clock_finding([late], now_s=1_699_990_000.0).level == "warning"


def test_records_that_cannot_be_read_and_channels_that_are_missing_are_found(place):
    (place / "feed.csv").write_text("t,flow\n" + "1700000000,hot\n" * 3 + "1700000001,\n" * 5)
    checks = [c for c in examine(place / "pump.toml") if c.name == "sample"]
    assert any(
        "3 of 8 records cannot be read" in c.message and "'hot'" in c.message for c in checks
    )
    assert any("missing everywhere" in c.message for c in checks)


def test_a_feed_without_records_is_a_warning(place):
    (place / "feed.csv").write_text("t,flow\n")
    assert found(place)["sample"].level == "warning"


def test_the_command_exits_with_1_where_a_check_fails(place, capsys):
    assert main(["doctor", "pump.toml"]) == 0
    out = capsys.readouterr().out
    assert "0 error(s)" in out
    (place / "feed.csv").unlink()
    assert main(["doctor", "pump.toml", "--output", "json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert {"number", "name", "level", "message", "fix"} == set(checks[0])
    assert any(check["level"] == "error" and check["fix"] for check in checks)
