"""The first hour: what a stranger gets wrong, and the sentence that he is told.

The failures that were found, as cases; then the table of mistakes. Those that need a broker are in
``tests/kafka/test_kafka_first_hour.py``.
"""

import json
import socket
from datetime import UTC, datetime, timedelta

import pytest
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import admin

from rejex_stream.config import load_config
from rejex_stream.errors import ConnectorError
from tests.program import here
from tests.strangers import stranger

pytestmark = pytest.mark.usefixtures("place")

BEGUN = datetime(2024, 10, 26, tzinfo=UTC)
CONFIG = """
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
window = 200
"""


def pump(place, text=CONFIG, name="pump.toml", rows=600):
    (place / name).write_text(text)
    lines = "".join(f"{1_700_000_000 + i},{i % 7}.5,1\n" for i in range(rows))
    if not (place / "feed.csv").exists():
        (place / "feed.csv").write_text("t,flow,other\n" + lines)
    return place / name


def run(capsys, *words):
    status, out, err = here(capsys, *words)
    return status, out, " ".join(err.split())


# ---------------------------------------------------------------------------- rows of a file
def test_a_run_over_a_file_counts_what_score_counts(place, capsys):
    path = pump(place)
    lines = (place / "feed.csv").read_text().splitlines()
    lines[100] = lines[99]
    lines[200], lines[201] = lines[201], lines[200]
    del lines[300:340]
    (place / "feed.csv").write_text("\n".join(lines) + "\n")
    status, _, err = run(capsys, "run", path)
    assert status == 0
    assert "pump: duplicates: 1 rows have a time that their sensor had before" in err
    assert "give input.sensor" in err
    assert "pump: disorder: 1 rows are older than the one before" in err
    assert "pump: gaps: 1, steps of more than 5 times the usual 1 s" in err
    scored = run(capsys, "score", "feed.csv", "--detector", "HBOS")[2]
    assert "disorder: 1 rows" in scored
    assert "gaps: 1, steps of more than 5 times the usual 1 s" in scored


def test_a_run_says_summer_time(place, capsys):
    local = BEGUN.replace(tzinfo=None)
    rows = "".join(
        f"{local + timedelta(minutes=15 * i):%d.%m.%Y %H:%M},{i % 7}\n" for i in range(600)
    )
    (place / "feed.csv").write_text("t,flow\n" + rows)
    text = CONFIG.replace(
        'time_unit = "s"', 'time_format = "%d.%m.%Y %H:%M"\ntime_zone = "Europe/Berlin"'
    )
    status, _, err = run(capsys, "run", pump(place, text))
    assert status == 0
    assert "summer time: 4 rows are in the hour that comes twice, read as its first" in err


def test_a_replay_never_mixes_quantities(place, capsys):
    rows = ["time,asset,parameter,reading"]
    for i in range(60):
        at = (BEGUN + timedelta(minutes=i)).isoformat()
        rows += [f"{at},{a},{q},{i * 7919 % 1009 / 10}"
                 for a in "XY" for q in ("temp", "speed")]  # fmt: skip
    (place / "t.csv").write_text("\n".join(rows))
    for command in ("score", "init"):
        status, _, err = run(capsys, command, "t.csv", "--channel", "reading")
        assert status == 2, command
        assert "different quantities cannot share one" in err


# ------------------------------------------------------------------------------ two pipelines
def test_pipelines_are_named_after_their_files_and_keep_their_outputs_apart(place, capsys):
    one = pump(place, name="one.toml")
    two = pump(place, CONFIG.replace("flow", "other"), name="zwei Ö.toml")
    assert load_config(one).pipeline.name == "one"
    assert load_config(two).pipeline.name == "zwei--"
    assert run(capsys, "run", one)[0] == 0
    before = (place / "verdicts.jsonl").read_bytes()
    status, out, err = run(capsys, "run", two)
    assert status in (1, 2)
    assert "verdicts.jsonl holds what pipeline 'one' wrote, this one is 'zwei--'" in out + err
    assert "outputs of its own in [output]" in out + err
    assert (place / "verdicts.jsonl").read_bytes() == before

    # The same pipeline under another name goes on as what it was.
    two.write_text('pipeline.name = "one"\n' + CONFIG)
    status, out, _ = run(capsys, "run", two)
    assert (status, "nothing new" in out) == (0, True)
    # Another one with outputs of its own is nobody's business.
    two.write_text(CONFIG + '[output]\nverdicts = "o/v.jsonl"\n')
    (place / "o").mkdir()
    assert run(capsys, "run", two)[0] == 0


def test_a_state_folder_has_one_pipeline(place, capsys):
    text = CONFIG + '[state]\nfolder = "state"\n'
    assert run(capsys, "run", pump(place, text, "one.toml"))[0] == 0
    outputs = '[output]\nverdicts = "v2.jsonl"\nreview = "r2.jsonl"\ndeadletter = "d2.jsonl"\n'
    status, _, err = run(capsys, "run", pump(place, text + outputs, "two.toml"))
    assert status == 2
    assert "the state folder state is that of pipeline 'one', this one is 'two'" in err


def test_the_environment_names_a_pipeline_before_its_file(place, monkeypatch):
    monkeypatch.setenv("REJEX_PIPELINE__NAME", "third")
    assert load_config(pump(place)).pipeline.name == "third"


# ------------------------------------------------------------------------ brokers that are away
def failing(address):
    with pytest.raises(ConnectorError) as caught:
        admin(KafkaSettings(bootstrap_servers=address))
    assert caught.value.retriable
    return str(caught.value)


@pytest.mark.thorough
def test_a_broker_that_is_not_there_is_told_with_the_cause_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = failing(f"127.0.0.1:{port}")
    assert said == (
        f"Kafka at 127.0.0.1:{port}, while connecting: nobody listens at 127.0.0.1:{port} "
        "(connection refused); start the broker, or check the port"
    )


@pytest.mark.thorough
def test_a_name_that_nobody_knows_is_told():
    said = failing("kafka.invalid:9092")
    assert "the name kafka.invalid is not known (DNS: " in said
    assert said.count("kafka.invalid") == 2
    assert "Error" not in said


@pytest.mark.thorough
def test_somebody_else_at_the_address_is_told():
    with stranger() as url:
        said = failing(url.removeprefix("http://"))
    assert "does not answer as a broker does here" in said
    assert "check kafka.security: the protocol (TLS or not) and the login" in said


# ------------------------------------------------------------------------- the table of mistakes
KAFKA = """
[input]
kind = "kafka"
topics = ["pumps"]
channels = ["flow"]
[rejection]
contamination = 0.05
tolerance = 8
"""


def changed(before, after, text=CONFIG):
    assert before in text
    return text.replace(before, after)


@pytest.mark.parametrize(("words", "said"), [
    (("score", "one.csv"), "one.csv has one row: there is nothing to compare it with."),
    (("init", "feed.csv", "--to", "no/p.toml"), "cannot write no/p.toml: No such file"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_before_it_is_begun(words, said, place, capsys):
    pump(place)
    (place / "one.csv").write_text("t,flow,other\n1,2,3\n")
    status, out, err = run(capsys, *words)
    assert status in (1, 2)
    assert said in err
    assert "judged" not in err
    assert out == ""


def test_ctrl_c_is_answered_with_a_word(place, capsys, monkeypatch):
    pump(place)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("rejex_stream.cli.commands.score.judge_table", interrupted)
    status, _, err = run(capsys, "score", "feed.csv")
    assert status == 130
    assert err.endswith("rejex-stream: interrupted.")


# name: (config, command, exit status, what is said)
MISTAKES = {
    "key typo": (
        changed("tolerance", "tolerence"), "validate", 2, ["tolerence", "did you mean 'tolerance'?"]
    ),
    "window as a word": (
        changed("window = 200", 'window = "big"'), "validate", 2, ["window", "integer"],
    ),
    "contamination too large": (
        changed("0.05", "0.6"), "validate", 2, ["expected less than 0.5", "e.g. 0.02"]
    ),
    "contamination in per cent": (
        changed("0.05", "2"),
        "validate", 2, ["expected less than 0.5 (share of events)", "e.g. 0.02"]
    ),
    "tolerance too large for the window": (
        changed("tolerance = 8\nwindow = 200", "tolerance = 32\nwindow = 1000")
        .replace("0.05", "0.02"),
        "validate", 0, ["Doubtful: only"],
    ),
    "unknown client": (
        KAFKA + '[kafka]\nclient = "conflent"\n', "validate", 2, ["did you mean 'confluent'?"]
    ),
    "no TOML": (changed("[rejection]", "[rejection"), "validate", 2, ["line", "column"]),
    "YAML": ("input:\n  path: feed.csv\n", "validate", 2, ["a TOML file", "line 1"]),
    "no file": (None, "validate", 2, ["readable TOML file", "check the path"]),
    "unknown detector": (changed('"HBOS"', '"HBSO"'), "validate", 2, ["HBOS"]),
    "metrics port": (CONFIG + "[metrics]\nport = 99999\n", "validate", 2, ["65535"]),
    "seconds for milliseconds": (
        changed('time_unit = "s"', 'time_unit = "ms"'),
        "doctor", 0, ["1970", "check input.time_unit"]
    ),
    "milliseconds for seconds": (
        changed('time = "t"', 'time = "ms"'),
        "doctor", 1, ["outside the years 1 to 9999", 'input.time_unit = "ms"']
    ),
    "wrong channel": (
        changed('channels = ["flow"]', 'channels = { flow = "Flow" }').replace(
            "feed.csv", "feed.jsonl"), "doctor", 1,
        ["missing everywhere: 'flow'", "(field 'Flow')", "did you mean 'flow'?", "fix the field"],
    ),
    "wrong channel, run": (
        changed('channels = ["flow"]', 'channels = { flow = "Flow" }').replace(
            "feed.csv", "feed.jsonl"), "run", 1,
        ["nothing could be scored; fix input.channels", "did you mean 'flow'?"],
    ),
    "wrong column": (
        changed('["flow"]', '["Flow"]'), "doctor", 1, ["Flow", "flow"]
    ),
    "sensor is an object": (
        changed('time = "t"', 'time = "t"\nsensor = "who"').replace("feed.csv", "feed.jsonl"),
        "doctor", 1, ["sensor", "object with 1 field"],
    ),
    "numbers as texts": (
        changed('["flow"]', '["text"]').replace("feed.csv", "feed.jsonl"), "doctor", 1,
        ["expected a number", 'input.numbers = "text"'],
    ),
    "decimal comma": (
        changed("feed.csv", "german.csv").replace('"t"', '"t"\ndelimiter = ";"'), "doctor", 1,
        ["expected a number, got '1,5'", 'input.decimal = ","'],
    ),
    "a text for no value": (
        changed("feed.csv", "gaps.csv"), "doctor", 1,
        ["expected a number, got 'Bad'", 'input.missing = ["Bad"]'],
    ),
    "a time in two columns": (
        changed('time = "t"\ntime_unit = "s"', 'time = ["day", "at"]').replace(
            "feed.csv", "parts.csv"), "validate", 2,
        ["several fields make a text", "give time_format"],
    ),
    "dd.mm.yyyy": (
        changed("feed.csv", "dates.csv"),
        "doctor", 1, ["06.01.2014 00:00", 'input.time_format = "%d.%m.%Y %H:%M"']
    ),
    "latin-1": (
        changed("feed.csv", "latin.csv").replace('["flow"]', '["größe"]'),
        "doctor", 1, ["UTF-8", "input.encoding"]
    ),
    "time zone": (
        changed('time_unit = "s"', 'time_format = "%d.%m.%Y"\ntime_zone = "Berlin"'), "validate", 2,
        ["time_zone is 'Berlin'", "Europe/Berlin"],
    ),
}  # fmt: skip


@pytest.fixture
def feeds(place):
    pump(place)
    rows = [{"t": 1_700_000_000 + i, "ms": 1_700_000_000_000 + i, "flow": i % 7, "text": f"{i}.5",
             "who": {"id": 1}} for i in range(300)]  # fmt: skip
    (place / "feed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = (place / "feed.csv").read_text().splitlines()
    extended = [
        f"{line},{'ms' if i == 0 else 1_700_000_000_000 + i}" for i, line in enumerate(lines)
    ]
    (place / "feed.csv").write_text("\n".join(extended) + "\n")
    (place / "german.csv").write_text("t;flow\n" + "1700000000;1,5\n" * 30)
    (place / "gaps.csv").write_text("t,flow\n" + "1700000000,Bad\n" * 30)
    (place / "parts.csv").write_text("day,at,flow\n" + "06.01.2014,00:00,1\n" * 30)
    (place / "dates.csv").write_text("t,flow\n" + "06.01.2014 00:00,1\n" * 30)
    (place / "latin.csv").write_bytes("t,größe\n".encode("latin-1") + b"1700000000,1\n" * 30)
    return place


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_mend(name, feeds, capsys):
    text, command, expected, said = MISTAKES[name]
    path = feeds / "pump.toml"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    status, out, err = run(capsys, command, path)
    told = " ".join((out + " " + err).split())
    for words in said:
        assert words in told, told
    assert status == expected, told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [("REJEX_RUN__RETRYFOR", "1", "REJEX_RUN__RETRYFOR"),
     ("REJEX_RUNS__RETRY_FOR_S", "1", "did you mean 'run'?"),
     ("REJEX_RUN__RETRY_FOR_S", "long", "REJEX_RUN__RETRY_FOR_S")],
    ids=["key", "section", "value"],
)  # fmt: skip
def test_a_mistake_in_the_environment_names_the_variable(
    variable, value, said, place, capsys, monkeypatch
):
    monkeypatch.setenv(variable, value)
    status, _, err = run(capsys, "validate", pump(place))
    assert status == 2
    assert said in err
