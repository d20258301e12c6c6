"""The config: what is read, what is refused, and how it is said."""

import ast
import re
from pathlib import Path

import pytest

from rejex_stream.config import assembly as build
from rejex_stream.config import check_config, load_config, parse_config, settings, settings_markdown
from rejex_stream.config.pipeline_config import Config
from rejex_stream.errors import ConfigError
from rejex_stream.settings import extra_of, field_at, toml

ROOT = Path(__file__).resolve().parent.parent
FILE = """
[input]
path = "water.csv"
channels = ["flow", "pressure"]
time = "t"
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 8
"""
KAFKA = """
[input]
kind = "kafka"
topics = ["readings"]
channels = ["flow"]
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 8
"""


def said(text):
    config, problems = parse_config(text)
    assert config is None
    return [str(problem) for problem in problems]


def config_of(text):
    config, problems = parse_config(text)
    assert not problems, [str(problem) for problem in problems]
    return config


# ------------------------------------------------------------------------------ what is read
@pytest.mark.parametrize("name", ["file.toml", "kafka.toml"])
def test_ten_lines_make_a_pipeline(name):
    path = ROOT / "examples" / name
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    assert len(lines) <= 10
    config = load_config(path)
    spec = build.engine_spec(config)
    assert spec.window == {"file.toml": 500, "kafka.toml": 2000}[name]
    assert spec.is_batch
    assert build.monitor_config(config).window == spec.window
    assert build.run_settings(config).lost_state == "refuse"


def test_the_mapping_falls_back_to_the_file_name_and_to_the_record_key():
    assert config_of(FILE).input.mapping().fixed_sensor == "water"
    mapping = config_of(KAFKA).input.mapping()
    assert mapping.sensor_from == "key"
    assert mapping.time is None


def test_every_feature_kind_can_be_written():
    text = (
        FILE
        + """
[[features.columns]]
kind = "raw"
channel = "flow"
[[features.columns]]
kind = "mean"
channel = "flow"
seconds = 60
[[features.columns]]
kind = "hour_of_day"
"""
    )
    names = build.engine_spec(config_of(text)).features.names
    assert names == ("flow", "flow_mean_60s", "hour_of_day_sin", "hour_of_day_cos")


def test_the_refits_follow_the_window():
    text = FILE.replace("tolerance = 8", "tolerance = 8\nwindow = 500")
    schedule = build.engine_spec(config_of(text)).schedule
    assert (schedule.first_fit_events, schedule.refit_every_events) == (250, 1000)
    assert (schedule.refit_lag_events, schedule.buffer_events) == (25, 500)
    never = build.engine_spec(config_of(text + "[refit]\nrefit_every_events = 0\n")).schedule
    assert never.refit_every_events is None


def test_a_budget_in_reviews_a_day_is_a_rate_and_an_alarm_limit():
    budget = "review_budget = { reviews_per_day = 100, events_per_day = 10000 }"
    config = config_of(FILE.replace("tolerance = 8", budget))
    assert build.engine_spec(config).policy.rate == pytest.approx(0.01)
    assert build.monitor_config(config).review_budget_per_day == 100


def test_the_environment_goes_before_the_file(monkeypatch):
    monkeypatch.setenv("REJEX_REJECTION__CONTAMINATION", "0.1")
    monkeypatch.setenv("REJEX_INPUT__CHANNELS", '["flow"]')
    monkeypatch.setenv("REJEX_DETECTOR__NAME", "IForest")
    monkeypatch.setenv("REJEX_DETECTOR__PARAMS__N_ESTIMATORS", "17")
    monkeypatch.setenv("REJEX_KAFKA__SECURITY__USERNAME", "12345")
    config = config_of(FILE)
    assert config.rejection.contamination == 0.1
    assert config.rejection.tolerance == 8
    assert config.input.channels == ("flow",)
    assert config.detector.params == {"n_estimators": 17}
    assert config.kafka.security.username == "12345"


def test_kafka_settings_take_every_field_of_the_connector():
    text = (
        KAFKA
        + """
[pipeline]
name = "turbine"
version = "3"
[output]
verdicts = "v"
review = "r"
deadletter = "d"
labels = "l"
[state]
topic = "s"
[kafka]
bootstrap_servers = "a:1,b:2"
client = "confluent"
instance_id = "w0"
[kafka.options]
"client.rack" = "x"
"compression.type" = "lz4"
[kafka.security]
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "u"
password = "env:KAFKA_PASSWORD"
"""
    )
    found = build.kafka_settings(config_of(text))
    assert found.topics.input == ("readings",)
    assert (found.topics.verdicts, found.topics.review, found.topics.deadletter) == ("v", "r", "d")
    assert (found.topics.labels, found.topics.state) == ("l", "s")
    assert (found.group, found.pipeline, found.pipeline_version) == ("turbine", "turbine", "3")
    assert (found.client, found.instance_id, found.compression) == ("confluent", "w0", "lz4")
    assert found.options["client.rack"] == "x"
    assert found.security.username == "u"
    assert found.security.password.get_secret_value() == "env:KAFKA_PASSWORD"
    folder = build.kafka_settings(config_of(KAFKA + '[state]\nfolder = "here"\n'))
    assert folder.topics.state is None


# --------------------------------------------------------------------------- what is refused
def test_all_problems_of_a_file_are_said_at_once():
    text = """
[pipline]
name = "x"
[input]
kind = "fil"
chanels = ["flow"]
path = 3
[features]
columns = [{ kind = "men", channel = "flow" }]
[detector]
name = "KNNN"
[rejection]
contamination = 0.6
tolerance = 0.5
windw = 12
[refit]
refit_every_events = 100
refit_lag_events = 200
"""
    found = said(text)
    for part in (
        "pipline: unknown section; did you mean 'pipeline'?",
        "input.kind = \"fil\": expected 'file' or 'kafka'; did you mean 'file'?",
        "input.chanels: unknown key; did you mean 'channels'?", "input.path = 3: expected string",
        "input.channels: is missing", 'features.columns.0.kind = "men": expected',
        "detector: There is no detector 'KNNN'; the nearest",
        "rejection.contamination = 0.6: expected less than 0.5 (share of events); γ, the expected",
        "rejection.tolerance = 0.5: expected greater than ln 2 = 0.693",
        "rejection.windw: unknown key; did you mean 'window'?",
    ):  # fmt: skip
        assert any(line.startswith(part) for line in found), (part, found)
    assert len(found) == 10  # the refits cannot be judged without the window


@pytest.mark.parametrize(("change", "expected"), [
    (("tolerance = 8", ""), "neither is given of tolerance and review_budget"),
    (
        ("tolerance = 8", "tolerance = 8\nreview_budget = { rate = 0.1 }"),
        "both are given of tolerance and review_budget",
    ),
    (("tolerance = 8", "review_budget = { reviews_per_day = 5 }"), "the budget is incomplete"),
    (
        ("tolerance = 8", "review_budget = { reviews_per_day = 5, events_per_day = 4 }"),
        "people can look at everything",
    ),
    (("tolerance = 8", "review_budget = { rate = 0.1, events_per_day = 4 }"), "keep rate"),
    (
        ("contamination = 0.05\ntolerance = 8", "contamination = 0.005\ntolerance = 32"),
        "no score can ever be called an anomaly",
    ),
    (("tolerance = 8", "tolerance = 8\ncosts = { c_r = 0.5 }"), "c_r = 0.5 is above its limit"),
    (("tolerance = 8", "tolerance = 8\n[refit]\nrefit_every_events = 1500"), "below the window"),
    (('path = "water.csv"', ""), "path is missing"), (('time = "t"', ""), "time is missing"),
    (('time = "t"', 'time = "t"\ntopics = ["a"]'), "drop one"),
    (('time = "t"', 'time = "t"\nsensor = "s"\nfixed_sensor = "x"'), "exactly one of"),
    (('"flow", "pressure"', '"flow", "flow"'), "twice"), (('"flow", "pressure"', ""), "channels"),
    (('name = "HBOS"', 'name = "HBOS"\nparams = { bins = 3 }'), "has no parameter 'bins'"),
    (('name = "HBOS"', 'name = "COF"'), "is refused"),
    (
        ("[detector]", '[features]\ncolumns = [{ kind = "raw", channel = "flw" }]\n[detector]'),
        "unknown channel 'flw'",
    ),
    (("[detector]", "[monitor]\nstuck_events = -1\n[detector]"), "stuck_events = -1"),
    (("water.csv", "water.dat"), "does not tell its format"),
    (("[detector]", '[output]\nreview = "./verdicts.jsonl"\n[detector]'), "its own file"),
    (("[detector]", '[output]\nreview = "-"\n[state]\nfolder = "s"\n[detector]'), "taken back"),
])  # fmt: skip
def test_settings_that_do_not_fit_each_other_are_refused(change, expected):
    text = FILE.replace(*change)
    assert text != FILE
    found = said(text)
    assert any(expected in line for line in found), found


@pytest.mark.thorough
def test_a_detector_without_an_identity_is_refused(tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(
        "class Mine:\n"
        "    name, warm_up_events = 'mine', 0\n"
        "    def start(self, names, *, seed): ...\n"
        "    def restore(self, names, state, *, seed): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = said(FILE.replace('name = "HBOS"', 'name = "of_mine.Mine"'))
    assert found.startswith("detector: ")
    assert "holds an address" in found
    assert "define __repr__" in found


@pytest.mark.parametrize(("addition", "expected"), [
    ('[output]\nreview = "readings"', "'readings' is named twice"),
    ('[kafka.security]\nprotocol = "SASL_SSL"', "needs kafka.security.mechanism"),
    ("[kafka.options]\n'max.poll.interval.ms' = 2000", "is below 'session.timeout.ms'"),
    ("[kafka.options]\n'linger.ms' = '5'", "'linger.ms' = '5': expected a whole number of at"),
    ("[kafka.options]\n'compression.type' = 'rar'", "expected one of none, gzip"),
    (
        "[kafka]\nclient = 'kafka-python'\n[kafka.options]\n'fetch.min.byte' = 1",
        "did you mean 'fetch.min.bytes'?",
    ),
    ("[kafka.options]\n'fetch.min.byte' = 1", "No such configuration property"),
    ("[kafka.options]\n'group.id' = 'a'", "set by rejex-stream itself"),
    ("[kafka.options]\n'sasl.password' = 'a'", "leave it out"),
])  # fmt: skip
def test_kafka_settings_that_contradict_are_refused(addition, expected):
    found = said(KAFKA + addition + "\n")
    assert any(expected in line for line in found), found


@pytest.mark.parametrize(("address", "expected"), [
    ("localhost:9093", "begins with http:// or https://"),
    ("http://localhost:port", "a host, and a number as its port"),
    ("http://localhost:99999", "a host, and a number as its port"),
    ("http:///hook", "a host, and a number as its port"),
    ("http://[::1", "a host, and a number as its port"),
    ("http://localhost/a b", "without spaces"),
    ("http://müller.example", "ASCII"),
    ("https://ada:hunter2@ops.example.com/hook", "without a login"),
])  # fmt: skip
@pytest.mark.parametrize("setting", ["alertmanager_url", "webhook_url"])
def test_an_address_that_cannot_be_asked_is_refused(setting, address, expected):
    (found,) = said(FILE.replace("[detector]", f'[alerts]\n{setting} = "{address}"\n[detector]'))
    assert f"alerts.{setting} = " in found
    assert expected in found
    assert "hunter2" not in found


def test_a_topic_must_be_named():
    assert any("topics is missing" in line for line in said(KAFKA.replace('"readings"', "")))


def test_a_variable_of_the_environment_is_named_in_its_problem(monkeypatch):
    monkeypatch.setenv("REJEX_REJECTION__WINDOW", "many")
    monkeypatch.setenv("REJEX_REJECTIN__WINDOW", "5")
    monkeypatch.setenv("REJEX_RUN__MAX_POL_RECORDS", "5")
    found = said(FILE)
    assert found[0].startswith("REJEX_REJECTIN__WINDOW")
    assert any(
        line.startswith('REJEX_REJECTION__WINDOW (rejection.window) = "many": expected integer')
        for line in found
    )
    assert any(
        line == "REJEX_RUN__MAX_POL_RECORDS (run.max_pol_records): unknown key; did you mean "
        "'max_poll_records'?"
        for line in found
    )


@pytest.mark.parametrize(("content", "expected"), [
    (b"[input\n", "Expected a TOML file"), (b"\xff\xfe", "not UTF-8"),
    (b"", "input: the section is missing"), (None, "No such file"),
])  # fmt: skip
def test_a_file_that_is_no_config_is_one_sentence(tmp_path, content, expected):
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load_config(path)
    config, problems = check_config(path)
    assert config is None
    assert problems


# -------------------------------------------------------------------------------- secrets
def test_no_secret_is_ever_shown(monkeypatch):
    text = (
        KAFKA
        + """
[alerts]
webhook_url = "http://localhost:1"
webhook_secret = "hunter2"
[kafka]
client = "confluent"
[kafka.options]
"client.rack" = "hunter2"
[kafka.security]
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "u"
password = "hunter2"
"""
    )
    config = config_of(text)
    assert build.kafka_settings(config).security.reveal("password") == "hunter2"
    shown = repr(config) + str(config.redacted()) + repr(build.kafka_settings(config).security)
    assert "hunter2" not in shown


@pytest.mark.parametrize("addition", [
    '[kafka.security]\npasword = "hunter2"', '[kafka.security]\npassword = ["hunter2"]',
    '[kafka.options]\nlibrdkafka = { a = ["hunter2"] }',
    '[alerts]\nwebhook_secret = { a = "hunter2" }',
])  # fmt: skip
def test_no_problem_quotes_a_secret(addition):
    found = said(KAFKA + addition + "\n")
    assert found
    assert "hunter2" not in "".join(found)


# ---------------------------------------------------------------------------- the table
def test_every_setting_has_a_sentence_a_type_and_a_default():
    rows = list(settings())
    assert len(rows) > 90
    for row in rows:
        assert row.says.endswith("."), row
        assert row.type, row
        assert row.default, row
        if row.key.endswith(("_s", "_ms", "_events", "_bytes", "_per_day")):
            assert row.unit, row


def test_every_example_of_a_setting_is_accepted_by_it():
    from pydantic import TypeAdapter

    checked = 0
    for row in settings():
        field = field_at(Config, row.key.split("."))
        assert field is not None, row
        example = extra_of(field).get("example")
        if example is not None:
            TypeAdapter(field.annotation).validate_python(example)
            checked += 1
    assert checked > 30


def messages():
    """Every text in the program that is no docstring: where it stands, values as {}."""
    for folder in ("rejex_stream", "connectors/rejex_connectors"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            skip = {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    skip |= set(node.values)
                    parts = [getattr(part, "value", "{}") for part in node.values]
                    text = "".join(part if isinstance(part, str) else "{}" for part in parts)
                elif isinstance(node, ast.Constant) and node not in skip:
                    text = node.value
                else:
                    continue
                if isinstance(text, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


FILE_ENDINGS = {"db", "html", "json", "jsonl", "toml", "yml"}
NOT_SETTINGS = {
    "data_format": "Telegraf's", "kafka.bootstrap.servers": "Spark's",
    "kafka.isolation.level": "Spark's", "kafka.net": "a module",
    "kafka.net.selector": "a module", "kafka.librdkafka": "a logger", "run.executors": "a module",
    "review.example.com": "a host",
}  # fmt: skip


@pytest.mark.thorough
def test_every_setting_that_a_message_names_exists():
    names = {name for row in settings() for name in row.key.split(".")}
    sections, checked = "|".join(Config.model_fields), 0
    for where, text in messages():
        keys = re.findall(rf"(?<![\w./:-])((?:{sections})(?:\.[a-z_]+)+)\b(?![(/{{])", text)
        keys += map(".".join, re.findall(rf"\[({sections})\] ([a-z_]+) =", text))
        keys = [key for key in keys if key.rpartition(".")[2] not in FILE_ENDINGS]
        for key in set(keys) - set(NOT_SETTINGS):
            checked += 1
            assert field_at(Config, key.split(".")) is not None, f"{where} names {key}: {text}"
        for name in re.findall(r"(?<![\w.])([a-z][a-z_]+) = [\"'][\w-]+[\"']", text):
            if not re.search(r"\b(SELECT|UPDATE|WHERE)\b", text) and name not in NOT_SETTINGS:
                assert name in names, f"{where} names {name}: {text}"
    assert checked > 150


def test_the_page_of_settings_is_in_step():
    page = ROOT / "docs" / "reference" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings_markdown(), (
        f"out of date: rejex-stream settings > {page.relative_to(ROOT)}"
    )


def test_values_are_written_as_toml():
    import tomllib

    value = {"a b": [1, 2.5, True], "c": 'quote " and \n', "d": {"e": "x"}}
    assert tomllib.loads(f"value = {toml(value)}")["value"] == value
