"""The doctor over files: what it finds, and that each finding comes with a mend."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rejex_connectors.kafka import opening

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.doctor import examine
from rejex_stream.doctor import kafka as doctor_of_kafka
from rejex_stream.doctor.findings import clock_finding
from rejex_stream.engine import snapshot_manifest as head_module
from rejex_stream.engine.checkpoint import environment
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
        ("[detector]", '[output]\nverdicts = "no/such/v.jsonl"\n[detector]', "outputs", "no/such"),
        ("[detector]", '[metrics]\nhost = "192.0.2.1"\nport = 9\n[detector]', "metrics port", ""),
    ],
)  # fmt: skip
def test_what_would_stop_a_run_is_an_error(place, before, after, name, said):
    change(place, before, after)
    check = found(place, "error")[name]
    assert said in check.message + check.fix
    assert check.fix


def test_a_port_that_is_taken_is_named(place):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        change(place, "[detector]", f"[metrics]\nport = {port}\n[detector]")
        check = found(place, "error")["metrics port"]
        assert f"127.0.0.1:{port} is taken" in check.message
        assert "metrics.port" in check.fix
    assert found(place)["metrics port"].level == "ok"


def test_a_real_alertmanager_is_asked_and_told_nothing(place, tmp_path_factory):
    with alertmanager(tmp_path_factory.mktemp("am"), "http://127.0.0.1:9/") as url:
        change(place, "[detector]", f'[alerts]\nalertmanager_url = "{url}/"\n[detector]')
        check = found(place)["alertmanager"]
        assert check.level == "ok"
        assert re.search(r"Alertmanager \d+\.\d+", check.message)
        assert active_alerts(url) == {}
    check = found(place, "error")["alertmanager"]
    assert "does not answer: " in check.message
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


def test_a_webhook_that_is_sent_on_would_get_nothing(place):
    with Hook(to="/new") as hook:
        check = hooked(place, hook.url)
    assert check.level == "warning"
    assert "/new" in check.message
    assert {method for method, _ in hook.seen} == {"HEAD"}


def test_a_webhook_that_is_not_there_is_an_error(place):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        check = hooked(place, f"http://127.0.0.1:{free.getsockname()[1]}/hook")
    assert check.level == "error"
    assert "Connection refused" in check.message
    assert "mend alerts.webhook_url" in check.fix


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


def test_a_tolerance_that_means_little_is_doubted(place):
    change(place, "tolerance = 8", "tolerance = 1.5")
    assert "flip with a probability of up to 22%" in found(place, "warning")["verdicts"].message


def test_an_incremental_detector_is_tried_too(place):
    change(place, '"HBOS"', '"HalfSpaceTrees"')
    assert "scores and learns" in found(place)["detector"].message


def test_the_age_of_the_newest_snapshot_is_told(place, capsys):
    assert "no snapshot yet" in found(place)["state"].message
    assert main(["run", "pump.toml"]) == 0
    capsys.readouterr()
    assert "the newest snapshot is" in found(place)["state"].message


# ------------------------------------------------------------------- environment and codecs
def made_by(monkeypatch, place, **versions):
    """Run the pipeline as another machine would; then be this one again."""
    with monkeypatch.context() as patch:
        patch.setattr(head_module, "environment", lambda: environment() | versions)
        assert main(["run", "pump.toml"]) == 0


def test_the_environment_of_the_state_is_that_of_this_machine(place, capsys):
    check = found(place)["environment"]
    assert check.level == "ok"
    assert "nothing is stored yet; here are python 3." in check.message
    assert main(["run", "pump.toml"]) == 0
    capsys.readouterr()
    check = found(place)["environment"]
    assert check.level == "ok"
    assert f"1 partition(s) was made with what is here: python {environment()['python']}" in (
        check.message
    )
    assert environment()["blas"] in check.message


@pytest.mark.parametrize(("mode", "level"), [("accept", "warning"), ("refuse", "error")])
def test_a_state_of_another_machine_is_told_with_what_a_run_will_do(
    place, monkeypatch, capsys, mode, level
):
    change(place, "[detector]", f'[state]\nenvironment = "{mode}"\n[detector]')
    made_by(monkeypatch, place, numpy="2.0.1", blas="openblas Zen")
    capsys.readouterr()
    check = found(place)["environment"]
    assert check.level == level
    here = environment()
    assert f"numpy 2.0.1 there, {here['numpy']} here" in check.message
    assert f"blas openblas Zen there, {here['blas']} here" in check.message
    assert "scipy" not in check.message, "only what differs"
    assert f'state.environment = "{mode}"' in check.message
    assert "constraints.txt" in check.fix
    assert ("accept" in check.fix) == (mode == "refuse")
    feed = place / "feed.csv"
    feed.write_text(feed.read_text() + "1800000000,1.5\n")
    assert main(["run", "pump.toml"]) == (0 if mode == "accept" else 1)  # as was told
    capsys.readouterr()


def test_a_broken_snapshot_is_an_error_with_a_mend(place, capsys):
    assert main(["run", "pump.toml"]) == 0
    capsys.readouterr()
    (path,) = place.rglob("*-snapshots.db")
    with closing(sqlite3.connect(path)) as kept, kept:
        kept.execute("UPDATE records SET value = substr(value, 1, length(value) - 1)")
    check = found(place, "error")["environment"]
    assert "altered or cut short" in check.message
    assert check.fix


def codec_checks(place, client, more=""):
    text = (
        (place / "pump.toml")
        .read_text()
        .replace('path = "feed.csv"', 'kind = "kafka"\ntopics = ["feed"]')
    )
    text += f'[kafka]\nbootstrap_servers = "127.0.0.1:1"\nclient = "{client}"\n{more}'
    (place / "pump.toml").write_text(text)
    config = load_config(place / "pump.toml")
    checks = dict(doctor_of_kafka.checks(config, 20))
    return list(checks["codecs"]())


@pytest.mark.parametrize("client", ["kafka-python", "confluent", "auto"])
def test_the_client_is_asked_for_its_codecs(place, client):
    name = "kafka-python" if client == "kafka-python" else "confluent-kafka"
    (check,) = codec_checks(place, client)
    assert check.level == "ok"
    assert check.message == f"{name} reads gzip, snappy, lz4, zstd"


def test_a_codec_that_is_missing_is_named(place, monkeypatch):
    """As where somebody installed without what the client needs for it."""
    from kafka import codec

    monkeypatch.setattr(codec, "snappy", None)
    monkeypatch.setattr(codec, "zstd", None)
    snappy, zstd = codec_checks(place, "kafka-python", "options.'compression.type' = 'zstd'")
    assert (snappy.level, zstd.level) == ("warning", "error")
    assert snappy.message == "kafka-python cannot read records compressed with snappy"
    assert zstd.message.endswith("with zstd, nor write by kafka.options.'compression.type'")
    assert zstd.fix == "pip install 'kafka-python[zstd]'"


def test_a_librdkafka_without_a_codec_is_told_of():
    import confluent_kafka

    assert opening._built_in(confluent_kafka, "zstd")
    assert not opening._built_in(confluent_kafka, "brotli")


def test_the_command_exits_with_1_where_a_check_fails(place, capsys):
    assert main(["doctor", "pump.toml"]) == 0
    out = capsys.readouterr().out
    assert "0 error(s)" in out
    (place / "feed.csv").unlink()
    assert main(["doctor", "pump.toml", "--output", "json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert {"number", "name", "level", "message", "fix"} == set(checks[0])
    assert any(check["level"] == "error" and check["fix"] for check in checks)
