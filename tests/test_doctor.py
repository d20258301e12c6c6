"""The doctor over files: what it finds, and that each finding comes with a fix."""

from __future__ import annotations

import json
import math
import shutil
import socket
import ssl
import subprocess
import time

import pytest

from rejex_stream.cli import main
from rejex_stream.decode import JsonDecoder, decode_records
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.doctor import clock_finding, examine, sample_findings
from rejex_stream.types import Position, Reading, Record
from tests.operate.alerting import active_alerts, alertmanager
from tests.servers import WebServer
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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.toml").write_text(CONFIG)
    now = int(time.time()) - 1000
    rows = "".join(f"{now + i},{20 + i * 37 % 11 / 10}\n" for i in range(100))
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
    assert "100 records of 1 sensor(s) can be read" in found(place)["sample"].message
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


@pytest.mark.parametrize(("before", "after", "name", "said"), [
    ("feed.csv", "nowhere.csv", "input", "nowhere.csv"),
    ('["flow"]', '["level"]', "sample", "column 'level' is not in the header"),
])  # fmt: skip
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
        assert "can be reached (HEAD: 200" in check.message
        assert active_alerts(url) == {}
    check = found(place, "error")["alertmanager"]
    assert "Connection refused" in check.message
    assert "fix alerts.alertmanager_url" in check.fix


class Hook(WebServer):
    """Answers every method alike, or sends elsewhere, and remembers what it was asked."""

    def __init__(self, status=204, to=None, context=None):
        def answer(method, path, *_):
            self.seen.append((method, path))
            code = 302 if to and path == "/hook" else status
            return code, {"Location": to} if to else {}, b""

        self.seen = []
        super().__init__(answer, context)
        self.url = f"{self.address}/hook"


def hooked(place, url):
    change(place, "[detector]", f'[alerts]\nwebhook_url = "{url}"\n[detector]')
    return found(place)["webhook"]


@pytest.mark.thorough
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
    assert "fix alerts.webhook_url" in check.fix
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


def test_what_does_not_speak_http_is_named(place):
    with stranger() as url:
        alerts = f'[alerts]\nalertmanager_url = "{url}"\nwebhook_url = "{url}"\n[detector]'
        change(place, "[detector]", alerts)
        checks = found(place)
    assert checks["alertmanager"].level == checks["webhook"].level == "error"
    assert all("SSH-2.0" in checks[name].message for name in ("alertmanager", "webhook"))


@pytest.mark.thorough
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
    check = found(place, "warning")["sample"]
    assert "'t' are from 1970-01-" in check.message
    assert "input.time_unit" in check.fix


def test_a_clock_that_is_ahead_is_doubted():
    reading = Reading("a", "a", 2_000_000, (1.0,), Position("t", 0, 0))
    assert clock_finding([reading], now_s=1000.0).level == "warning"
    late = Reading("a", "a", 1_700_000_000_000, (1.0,), Position("t", 0, 0))
    assert clock_finding([late], now_s=1_700_000_100.0).level == "ok"
    assert clock_finding([late], now_s=1_699_990_000.0).level == "warning"


def test_records_that_cannot_be_read_and_channels_that_are_missing_are_found(place):
    (place / "feed.csv").write_text("t,flow\n" + "1700000000,hot\n" * 3 + "1700000001,\n" * 25)
    checks = [c for c in examine(place / "pump.toml") if c.name == "sample"]
    assert any(
        "3 of 28 records cannot be read" in c.message and "'hot'" in c.message for c in checks
    )
    assert any("missing everywhere" in c.message for c in checks)
    assert not any("has a value in" in c.message for c in checks), "which says it twice"


@pytest.mark.parametrize(("n", "gas", "flags", "is_said"), [
    (100, 0, (), True), (100, 0, ("gas",), False), (20, 0, (), False), (100, 1, (), False),
])  # fmt: skip
def test_channels_that_are_out_of_the_distance_are_named(place, n, gas, flags, is_said):
    change(place, 'channels = ["flow"]', f'channels = ["flow", "gas"]\nflags = {[*flags]}')
    rows = "".join(f"17000000{i:02d},{20 + i * 37 % 11},{gas * i}\n" for i in range(n))
    (place / "feed.csv").write_text("t,flow,gas\n" + rows)
    said = [c for c in examine(place / "pump.toml") if c.message.startswith("at rest: 'gas'")]
    assert [c.level for c in said] == ["ok"] * is_said


def test_records_without_a_reading_are_told_apart_from_those_that_cannot_be_read(place):
    """Nothing is wrong with them: they are counted and left out."""
    reading, broken, tombstone = (
        Record(Position("in", 0, i), b"a", value, (), None)
        for i, value in enumerate([b'{"t": 1700000000, "flow": 1.0}', b"{", None])
    )
    decoder = JsonDecoder(FieldMapping(["flow"], fixed_sensor="a", time="t", time_unit="s"))

    def told(*records: Record) -> list[tuple[str, str]]:
        read, decoded = decode_records(decoder, records)
        return [(one.level, one.message) for one in sample_findings(read, decoded, decoder)]

    ignored = "1 of 3 records hold no reading, and are ignored; in-0-2: the record has no value"
    unread, left_out, read = told(reading, broken, tombstone)
    assert unread[1].startswith("1 of 3 records cannot be read; in-0-1: ")
    assert (left_out[0], left_out[1].startswith(ignored)) == ("ok", True)
    assert read == ("ok", "1 records of 1 sensor(s) can be read")
    assert [level for level, _ in told(tombstone)] == ["warning"]


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


# --------------------------------------------------------------------- the table of suspicions
def doubted(place):
    checks = list(examine(place / "pump.toml"))
    assert [c.message for c in checks if c.level == "error"] == []
    assert any("100 records" in c.message for c in checks)
    return {c.message: c.fix for c in checks if c.name == "sample" and c.level == "warning"}


def written(place, *rows, name="feed.csv"):
    (place / name).write_text("\n".join(rows) + "\n")


def calm(i):
    return 20 + i * 37 % 11 / 10


NOW = int(time.time()) - 1000


def test_what_a_sample_is_suspected_of_is_said_with_what_to_write(place):
    change(place, '["flow"]', '["flow", "entry", "level"]')
    lines = [
        f"{NOW + i},{-999 if i % 9 == 4 else calm(i)},{7000 + i},{calm(i) if i % 4 == 0 else ''}"
        for i in range(100)
    ]
    written(place, "t,flow,entry,level", *lines)
    assert doubted(place) == {
        "'entry' only counts: it rises in 99 of 99 steps": (
            'leave it out of input.channels, make it a flag, or say kind = "counter" in [channels]'
        ),
        "'flow' is -999 in 11 of 100 rows, far from all others; the others are from 20 to 21": (
            "if it stands for no value, give missing = [-999] in [channels.flow]"
        ),
        "'level' has a value in 25 of 100 rows": (
            "leave it out of input.channels, or give features.carry_forward_events"
        ),
    }


def test_what_the_config_answers_already_is_no_doubt(place):
    change(place, '["flow"]', '["flow", "entry", "level", "total"]\nflags = ["entry"]')
    text = (place / "pump.toml").read_text()
    text = text.replace('time = "t"', 'time = "t"\nmissing = ["-999"]')
    text += "[features]\ncarry_forward_events = 5\n" + "".join(
        f"[[features.columns]]\n{column}\n"
        for column in (
            'kind = "raw"\nchannel = "flow"',
            'kind = "raw"\nchannel = "level"',
            'kind = "difference"\nchannel = "total"\nevents = 1',
        )
    )
    (place / "pump.toml").write_text(text)
    lines = [
        f"{NOW + i},{-999 if i % 9 == 4 else calm(i)},{7000 + i},{calm(i) if i % 4 == 0 else ''},"
        f"{i * 3 + i % 2}"
        for i in range(100)
    ]
    written(place, "t,flow,entry,level,total", *lines)
    assert doubted(place) == {}


def test_a_key_that_moves_as_a_measurement_and_thousands_are_doubts(place):
    change(place, 'time = "t"', 'time = "t"\nsensor = "valve"')
    valve = [50 + round(20 * math.sin(i / 15)) for i in range(100)]
    flows = ["987", "1.012", "1.530", "845"] * 25
    rows = [f"{NOW + i},{valve[i]},{flow}" for i, flow in enumerate(flows)]
    written(place, "t,valve,flow", *rows)
    assert doubted(place) == {
        "'valve' is taken for the sensor and moves as a measurement does": "fix input.sensor",
        "'flow' holds whole numbers beside such as '1.012', with exactly three digits behind the "
        "mark: it may stand between thousands": "check input.decimal and input.thousands",
    }


def test_sensors_that_come_by_turns_and_marks_that_are_given_are_no_doubt(place):
    change(place, 'time = "t"', 'time = "t"\nsensor = "id"\ndecimal = ","\nthousands = "."')
    flows = [f"{980 + i * 37 % 45:,}".replace(",", ".") for i in range(100)]
    # As batches of two partitions come: the times of each go on where it ended.
    batches = [(one, start) for start in range(0, 50, 25) for one in (1, 2)]
    rows = [
        f"{NOW + 2 * i + one},{one},{flows[i + one]}"
        for one, start in batches
        for i in range(start, start + 25)
    ]
    written(place, "t;id;flow", *(row.replace(",", ";") for row in rows))
    change(place, '["flow"]', '["flow"]\ndelimiter = ";"')
    assert doubted(place) == {}


def test_a_machine_s_number_beside_quantities_that_are_joined_is_no_doubt(place):
    change(place, '["flow"]', '{ flow = "x", level = "x" }\ntag = "tag"\nstep_s = 1\nsensor = "id"')
    of = [(NOW + i, id, tag) for i in range(25) for id in (1, 2) for tag in ("flow", "level")]
    written(place, "t,id,tag,x", *(f"{t},{id},{tag},{calm(t + id)}" for t, id, tag in of))
    assert doubted(place) == {}


def test_records_of_several_types_are_a_doubt_with_the_program(place):
    change(place, '"feed.csv"', '"feed.jsonl"\nsensor = "id"')
    rows = [
        {"t": NOW + i, "id": "a", "type": "reading", "flow": calm(i)}
        if i % 5
        else {"t": NOW + i, "id": "b", "type": "heartbeat"}
        for i in range(100)
    ]
    written(place, *map(json.dumps, rows), name="feed.jsonl")
    (found,) = doubted(place).items()
    assert "'type' tells 2 types of record apart, and only 'reading' has 'flow'" in found[0]
    assert 'select(.type == "reading")' in found[1]


def test_a_unit_that_contradicts_the_name_of_the_time_is_doubted(place):
    change(place, 'time = "t"', 'time = "t_ms"')
    written(place, "t_ms,flow", *(f"{NOW + i},{calm(i)}" for i in range(100)))
    assert doubted(place) == {
        "'t_ms' speaks of ms, and is read as s": (
            "check input.time_unit, input.time and input.time_format"
        )
    }
