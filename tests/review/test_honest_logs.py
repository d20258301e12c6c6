"""Certificates of ordinary pipelines: no honest log is said to be forged."""

from __future__ import annotations

import itertools
import json

import pytest

from rejex_stream.cli.main import main
from rejex_stream.config import load_config
from rejex_stream.config.reviewing import named_reviewer
from tests.pump import flow, pump_toml, row
from tests.review.test_certificate import answered

ROWS = 1500
KEY = "a secret of thirty-two characters"
ONE = 'fixed_sensor = "p"'
AUDIT = """
[output]
audit_rate = { normal = 0.05, near = 0.4 }
audit_key_file = "key"
"""
REVIEW = """
[review]
settle_s = 0
"""
ADA = f'{REVIEW}reviewers = ["ada"]\n'
SERVICE = """
[[calendar]]
begin = "2023-11-14T22:23:00Z"
end = "2023-11-14T22:28:00Z"
every = "day"
"""
BY_RATE = pump_toml().replace("tolerance = 4", "review_budget = { rate = 0.05, burst = 50 }")


def csv_rows(broken=()):
    """Rows of two pumps, a second each."""
    lines = [row(i) for i in range(ROWS)]
    for i in broken:
        lines[i] = "x" + lines[i]
    return "t,id,flow\n" + "".join(lines)


def json_rows(record):
    return "".join(json.dumps(record(i)) + "\n" for i in range(ROWS))


def reading(i):
    return {"t": 1_700_000_000 + i, "id": f"p{i % 2}", "flow": flow(i)}


def late(i):
    """Every tenth record comes with the time of three seconds ago."""
    return reading(i) | {"t": 1_700_000_000 + i - (3 if i % 10 == 0 else 0)}


def tagged(i):
    """Two quantities of a pump, one after the other."""
    j = i // 2
    return {"t": 1_700_000_000 + 3 * j, "id": "p", "tag": "ab"[i % 2], "value": flow(i)}


def selecting(program, more=""):
    return pump_toml(path="feed.jsonl", source=f"sensor = 'id'\nselect = '{program}'", more=more)


HONEST = {
    "two sensors": (pump_toml(more=AUDIT + ADA), csv_rows()),
    "one sensor, and a lead": (
        pump_toml(source=ONE, more=f'{AUDIT}{REVIEW}reviewers = ["ada:lead"]\n'), csv_rows(),
    ),
    "logins of a proxy": (
        pump_toml(
            more=AUDIT + REVIEW + 'reviewers = ["eve"]\nauth = "proxy"\n'
            'proxies = ["127.0.0.1"]\n'
        ),
        csv_rows(),
    ),
    "a calendar, a limit that alarms, shares of anomalies, and broken records at either end": (
        pump_toml(
            more=AUDIT.replace("near = 0.4", "near = 0.4, anomaly = 0.5") + ADA + SERVICE
            + '[channels.flow]\nhigh = 9.9\nlimit = "alarm"\n'
        ),
        csv_rows(broken=[0, 700, ROWS - 1]),
    ),
    "two readings a record, or none": (
        selecting('if .flow > 9 then empty else ., (.id |= "q" + .) end', AUDIT + ADA),
        json_rows(reading),
    ),
    "late ones put in order": (
        pump_toml(path="feed.jsonl", source='sensor = "id"\nreorder_s = 5', more=AUDIT + ADA),
        json_rows(late),
    ),
    "tags that are joined": (
        pump_toml(path="feed.jsonl", source='sensor = "id"\ntag = "tag"', more=AUDIT + ADA).replace(
            'channels = ["flow"]', 'channels = { a = "value", b = "value" }'
        ),
        json_rows(tagged),
    ),
    "a budget that holds": (BY_RATE + AUDIT + ADA, csv_rows()),
    "operating modes": (
        pump_toml(path="feed.jsonl", source='sensor = "id"\nmode = "m"', more=AUDIT + ADA),
        json_rows(lambda i: reading(i) | {"m": "ab"[i // 300 % 2]}),
    ),
    "no key": (pump_toml(more=AUDIT.replace('audit_key_file = "key"', "") + ADA), csv_rows()),
}  # fmt: skip
VALUES = {
    "all there": reading, "rounded": lambda i: reading(i) | {"flow": round(flow(i), 1)},
    "some missing": lambda i: reading(i) | ({"flow": None} if i % 50 == 7 else {}),
    "a fault": lambda i: reading(i) | ({"flow": 500.0 + i % 7} if 900 < i < 1100 else {}),
}  # fmt: skip
SOURCES = {
    "two sensors": 'sensor = "id"',
    "one": ONE,
    "put in order": 'sensor = "id"\nreorder_s = 5',
}
SAID = {"no more": "", "a calendar": SERVICE}
HONEST |= {
    ", ".join(names): (
        pump_toml(path="feed.jsonl", source=SOURCES[names[1]], more=AUDIT + ADA + SAID[names[2]]),
        json_rows(VALUES[names[0]]),
    )
    for names in itertools.product(VALUES, SOURCES, SAID)
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_log_verifies(name, tmp_path, monkeypatch, capsys):
    config, rows = HONEST[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / ("feed.jsonl" if "feed.jsonl" in config else "feed.csv")).write_text(rows)
    (tmp_path / "pump.toml").write_text(config)
    (tmp_path / "key").write_text(KEY)
    assert main(["run", "pump.toml"]) == 0, capsys.readouterr().err
    assert main(["review", "ingest", "--config", "pump.toml"]) == 0
    reviewers = load_config(tmp_path / "pump.toml").review.reviewers
    assert answered(tmp_path, named_reviewer(reviewers[0]), but=5) > 30
    capsys.readouterr()
    assert main(["review", "certify", "--config", "pump.toml"]) == 0
    (tmp_path / "certificate.json").write_text(capsys.readouterr().out)
    verify = [
        "review", "verify-certificate", "certificate.json", "--config", "pump.toml",
        "--verdicts", "verdicts.jsonl", "--review", "review.jsonl",
    ]  # fmt: skip
    code = main(verify)
    printed = capsys.readouterr()
    assert code == 0, printed.out + printed.err
