"""``[review]`` of the config: settings like all others, and the command line goes before them."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rejex_stream.cli.commands.review import load_pipelines, overridden
from rejex_stream.cli.main import main
from rejex_stream.config import load_config, parse_config
from rejex_stream.config.reviewing import check_bind
from rejex_stream.errors import ConfigError
from rejex_stream.review.console.background import feeding
from rejex_stream.review.queue.label_store import read_labels
from rejex_stream.review.queue.labelling import LEASE_MS
from rejex_stream.review.queue.review_store import ReviewStore
from tests.review.test_review_cli import serving
from tests.waiting import PATIENCE_S, until

GROUPS = ("accepted_anomaly", "accepted_normal", "rejected")
PIPELINE = """
[pipeline]
name = "farm"
[input]
path = "readings.csv"
channels = ["temp"]
time = "t"
[rejection]
contamination = 0.12
tolerance = 8
window = 500
[output]
verdicts = "verdicts.jsonl"
review = "review.jsonl"
"""


@pytest.fixture
def folder(farm, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    farm.write(tmp_path)
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    return tmp_path


def test_every_setting_of_the_queue_comes_from_the_config(tmp_path, monkeypatch):
    path = tmp_path / "p.toml"
    path.write_text(
        PIPELINE
        + """
[review]
gap_events = 3
capacity = { questions_per_day = 240 }
settle_s = 1.5
max_age_hours = 0.5
default_answer = "model"
double_review_ratio = 0.2
blind = "always"
priority_sensors = ["T07/"]
"""
    )
    monkeypatch.setenv("REJEX_REVIEW__SETTLE_S", "2.5")
    config = load_config(path)
    told = config.review
    assert told.settle_ms == 2_500
    assert told.max_age_ms == 1_800_000
    assert (told.gap_events, told.capacity.questions_per_day) == (3, 240)
    assert (told.default_answer, told.blind, told.double_review_ratio) == ("model", "always", 0.2)
    assert told.priority_sensors == ("T07/",)
    over = overridden([config], port=9, reviewers=["ada"], host=None, labels=None)
    assert (over.port, over.reviewers, over.default_answer) == (9, ("ada",), "model")


@pytest.mark.parametrize(("text", "sentence"), [
    ('[review]\nhost = "0.0.0.0"', "would let anybody in: set auth to token or proxy"),
    ('[review]\nauth = "magic"', "expected 'none', 'token' or 'proxy'"),
    (
        '[review]\nreviewers = ["ada:boss"]',
        "give NAME:ROLE with one of viewer, reviewer, lead, admin",
    ),
    ('[review]\nreviewers = ["system"]', "cannot be a reviewer's name"),
    ('[review]\nproxies = ["gateway"]', "is no address or network"),
    (
        "[review]\ndouble_review_ratio = 7",
        "review.double_review_ratio = 7: expected less than or equal",
    ),
    ('[review]\ndefault_answer = "normal"', "review.default_answer"),
    ("[review]\nsetle_s = 3", "did you mean 'settle_s'?"),
    ("[channels.tmp]\nunit = 'C'", "channels.tmp: the input has no such channel; did you mean"),
    ("[channels.temp]\nunti = 'C'", "channels.temp.unti: unknown key; did you mean 'unit'?"),
    ("[channels.temp]\nlow = 3\nhigh = 2", "low = 3.0 is not below high = 2.0"),
    ("[sensors.'T*']\nlink = 'javascript:alert(1)'", "sensors.T*.link"),
])  # fmt: skip
def test_what_cannot_work_is_refused_in_a_sentence(text, sentence):
    config, problems = parse_config(f"{PIPELINE}\n{text}\n")
    assert config is None
    assert sentence in " ".join(str(problem) for problem in problems)


def test_what_is_told_of_channels_and_sensors_reaches_the_console(folder):
    text = "[channels.temp]\nunit = '°C'\n[sensors.'T*']\nlink = 'https://w/{sensor}'\n"
    (folder / "told.toml").write_text(PIPELINE + text, encoding="utf-8")
    store = ReviewStore(folder / "r.db")
    (shown,) = feeding(None, configs=[load_config("told.toml")]).shown.values()
    store.close()
    assert shown.channels["temp"].unit == "°C"
    assert (shown.runbook_url("T7"), shown.runbook_url("P7")) == ("https://w/T7", "")


def test_one_queue_has_one_section(tmp_path):
    first, second, third = (tmp_path / f"{name}.toml" for name in "abc")
    first.write_text(PIPELINE + "[review]\ngap_events = 30\n")
    second.write_text(PIPELINE.replace("farm", "other"))
    third.write_text(PIPELINE.replace("farm", "third") + "[review]\ngap_events = 31\n")
    assert overridden(load_pipelines([first, second])).gap_events == 30
    with pytest.raises(ConfigError, match="there is one queue"):
        overridden(load_pipelines([first, second, third]))
    with pytest.raises(ConfigError, match="Two configs name their pipeline 'farm'"):
        load_pipelines([first, first])


def test_one_queue_sends_its_labels_to_one_topic(tmp_path, capsys, monkeypatch):
    pytest.importorskip("rejex_connectors")
    monkeypatch.chdir(tmp_path)
    topics = '[input]\nkind = "kafka"\ntopics = ["readings"]\nchannels = ["temp"]\n'
    rest = "[rejection]\ncontamination = 0.12\ntolerance = 8\nwindow = 500\n"
    words = []
    for name in ("north", "south"):
        path = tmp_path / f"{name}.toml"
        labels = f'[output]\nlabels = "{name}.labels"\n'
        path.write_text(f'[pipeline]\nname = "{name}"\n{topics}{rest}{labels}')
        words += ["--config", str(path)]
    for command in (["serve", "--port", "0"], ["rebuild"]):
        assert main(["review", *command, *words]) == 2
        said = capsys.readouterr().err
        assert "'north.labels' on" in said
        assert "one queue has one" in said


def _claim_next(base: str) -> dict:
    request = urllib.request.Request(
        f"{base}/api/claim-next",
        data=b"{}",
        headers={"origin": base, "content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))


@pytest.mark.thorough
def test_serve_takes_its_settings_from_the_command_line_first(folder):
    config = folder / "pipeline.toml"
    config.write_text(f'{PIPELINE}[review]\nstore = "queue/r.db"\nport = 1\n')
    with serving("--config", config, "--store", "queue/s.db", folder=folder) as (process, base, _):
        until(lambda: json.load(urllib.request.urlopen(f"{base}/api/summary"))["counts"]["ready"])
        begun_ms = int(time.time() * 1000)
        assert _claim_next(base)["until_ms"] >= begun_ms + LEASE_MS
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert {path.name for path in (folder / "queue").iterdir()} >= {"s.db", "labels.jsonl"}
    assert not (folder / "queue" / "r.db").exists()


@pytest.mark.thorough
def test_what_nobody_reviews_leaves_with_the_fallback_and_never_as_a_persons_word(folder, capsys):
    config = folder / "pipeline.toml"
    review = 'store = "queue/r.db"\nport = 1\nmax_age_hours = 0\ndefault_answer = "anomaly"\n'
    config.write_text(f"{PIPELINE}[review]\n{review}")
    labels = folder / "queue" / "labels.jsonl"  # beside the store
    with serving("--config", config, folder=folder) as (process, base, _):
        until(lambda: labels.exists() and labels.stat().st_size)
        done = json.load(urllib.request.urlopen(f"{base}/api/queue/ids?tab=done"))["targets"]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    assert (folder / "queue" / "r.db").exists()
    records = list(read_labels(labels))
    assert len(records) == len(done) > 10
    assert {(r.source, r.reviewer, r.verdict) for r in records} == {
        ("expired", "system", "anomaly")
    }
    assert main(["review", "report", "--config", str(config), "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one[group]["judged"] for one in found["pipelines"].values() for group in GROUPS] == [
        0, 0, 0,
    ]  # fmt: skip
    assert main(["review", "export", "out.jsonl", "--config", str(config)]) == 0
    states = {json.loads(line)["state"] for line in (folder / "out.jsonl").read_text().splitlines()}
    assert states == {"expired"}


@pytest.mark.thorough
def test_a_proxy_names_who_comes_in(folder):
    config = folder / "pipeline.toml"
    config.write_text(
        f'{PIPELINE}[review]\nauth = "proxy"\nproxies = ["127.0.0.0/8"]\n'
        'reviewers = ["grace:lead"]\n'
        'allowed_hosts = ["review.example.com"]\n'
    )
    with serving("--config", config, folder=folder) as (_, base, _):
        named = {"x-forwarded-user": "grace", "host": "review.example.com"}
        request = urllib.request.Request(f"{base}/queue", headers=named)
        with urllib.request.urlopen(request) as answer:
            assert "grace" in answer.read().decode()
        with urllib.request.urlopen(f"{base}/queue") as answer:
            assert answer.url.endswith("/login?next=%2Fqueue")


def test_a_network_bind_without_authentication_is_refused_wherever_it_is_written(folder, capsys):
    config = folder / "pipeline.toml"
    assert main(["review", "serve", "--config", str(config), "--host", "0.0.0.0"]) == 2
    assert "would let anybody in" in capsys.readouterr().err
    config.write_text(f'{PIPELINE}[review]\nhost = "0.0.0.0"\nauth = "token"\n')
    assert main(["review", "serve", "--config", str(config), "--auth", "none"]) == 2
    assert "would let anybody in" in capsys.readouterr().err
    assert not (folder / "review.db").exists(), "refused before anything is made"
    check_bind("0.0.0.0", "token")
    check_bind("::1", "none")


@pytest.mark.thorough
def test_one_config_is_enough_for_every_command(folder, capsys):
    words = ("--config", "pipeline.toml")
    assert main(["review", "ingest", *words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == 11_400
    assert main(["review", "report", *words, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["pipelines"]) == ["farm"]
    assert main(["review", "export", "out.csv", *words, "--all"]) == 0
    assert main(["review", "rebuild", *words, "--store", "b.db"]) == 2
    assert "labels file 'labels.jsonl' does not exist" in capsys.readouterr().err
    (folder / "labels.jsonl").touch()
    assert main(["review", "rebuild", *words, "--store", "b.db", "--check", "review.db"]) == 0
    assert "same as checked" in capsys.readouterr().out
