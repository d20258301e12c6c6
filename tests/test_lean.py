"""Lean verdicts: the same judgements in fewer bytes, and a clear word where those are too few."""

import json
import subprocess

import jsonschema
import pytest
from hypothesis import given
from rejex_connectors.files.sink import lines_of
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import OutcomeMessages

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.config.load import parse_config
from rejex_stream.encode import decode_verdict, encode_lean_verdict, encode_verdict
from rejex_stream.encode.schemas import json_schema
from rejex_stream.errors import ConnectorError
from rejex_stream.review.certificate import Evidence, read_log
from rejex_stream.review.console.background import Background, feeding
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.spark.frames import Recipe, _messages
from rejex_stream.types import Label, Outcome, Position, Record, ReviewItem, Verdict
from tests.program import command, started
from tests.pump import feed, pump_toml
from tests.test_encode import verdicts
from tests.waiting import until

LEAN = '[output]\nform = "lean"\n'
SCHEMA = jsonschema.Draft202012Validator(json_schema("lean-verdict"))
FIELDS = [
    "id", "stream_key", "sensor", "mode", "event_time_ms", "label", "reason", "severity",
]  # fmt: skip
ONE = Verdict(Position("feed", 0, 7), "m", "m", 5, 7, Label.ANOMALY, score=9.5, severity=3.0)


def of_full(line):
    full = json.loads(line)
    return {name: full[name] for name in FIELDS}


@pytest.fixture
def ran(tmp_path, capsys, monkeypatch):
    def run(name, *stops, more=LEAN):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "pump.toml").write_text(pump_toml(more=more))
        start = 0
        monkeypatch.chdir(folder)
        for stop in stops:
            if stop:
                feed(folder, start, stop)
            assert main(["run", "pump.toml"]) == 0, capsys.readouterr().err
            start = stop
        capsys.readouterr()
        return folder

    return run


@pytest.mark.thorough
@given(verdicts)
def test_a_lean_verdict_says_what_the_full_one_says_in_one_line_of_its_schema(verdict):
    line = encode_lean_verdict(verdict)
    assert b"\n" not in line
    assert list(json.loads(line)) == FIELDS
    assert json.loads(line) == of_full(encode_verdict(verdict))
    SCHEMA.validate(json.loads(line))
    with pytest.raises(ConnectorError, match=r'lean .* output.form = "full"'):
        decode_verdict(line)


@pytest.mark.thorough
def test_a_run_in_pieces_and_one_that_is_killed_give_the_lean_bytes_of_a_run_in_one(ran):
    whole = ran("whole", 3000)
    lean = (whole / "verdicts.jsonl").read_bytes()
    pieces = ran("pieces", 700, 1900, 3000)
    killed = ran("killed")
    feed(killed, 0, 3000)
    (killed / "pump.toml").write_text(pump_toml(more=LEAN + "[run]\nmax_poll_records = 100\n"
                                                "commit_interval_s = 0\n"))  # fmt: skip
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = started(command("run", "pump.toml"), cwd=killed, **silent)
    out = killed / "verdicts.jsonl"
    until(lambda: (out.exists() and out.stat().st_size) or process.poll() is not None, "a verdict")
    process.kill()
    process.wait()
    ran("killed", 0)
    full = ran("full", 3000, more="")
    for name in ("verdicts.jsonl", "review.jsonl", "deadletter.jsonl", "incidents.jsonl"):
        same = (whole / name).read_bytes()
        assert (pieces / name).read_bytes() == same, name
        assert (killed / name).read_bytes() == same, name
        assert name == "verdicts.jsonl" or (full / name).read_bytes() == same, name
    judged = (full / "verdicts.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lean.splitlines()] == list(map(of_full, judged))
    assert 2 * len(lean) < len(b"\n".join(judged))


def test_a_changed_form_holds_from_the_next_verdict_on(ran):
    folder = ran("turns", 500, more="")
    feed(folder, 500, 700)
    ran("turns", 0, more=LEAN)
    lines = (folder / "verdicts.jsonl").read_bytes().splitlines()
    assert [("topic" in json.loads(line)) for line in lines] == [True] * 500 + [False] * 200


def test_a_report_says_that_lean_verdicts_are_too_little_for_it(ran, capsys):
    folder = ran("told", 600)
    assert main(["report", "pump.toml", "--out", str(folder / "r.html")]) == 1
    assert 'output.form = "full"' in capsys.readouterr().err
    assert not (folder / "r.html").exists()


def test_a_certificate_is_not_checked_against_lean_verdicts():
    with pytest.raises(ConnectorError, match="lean"):
        read_log([encode_lean_verdict(ONE)], AuditDraw(), Evidence())


@pytest.mark.thorough
def test_the_console_of_a_lean_pipeline_has_items_and_says_what_it_lacks(
    ran, tmp_path, capsys, monkeypatch
):
    folder = ran("pump", 2000)
    store = ReviewStore(tmp_path / "review.db")
    try:
        fed = feeding(store.database.path, configs=[load_config(folder / "pump.toml")])
        (said,) = fed.lacks
        assert said.startswith("pump writes lean verdicts")
        background = Background(store, fed)
        assert background.round()
        assert background.invalid == {}
        assert background.stop()
        told = load_config(ran("full", 1, more="") / "pump.toml")
        assert feeding(None, configs=[told]).lacks == []
    finally:
        store.close()
    monkeypatch.chdir(folder)
    taken = main(["review", "ingest", "--config", "pump.toml", "--store", str(tmp_path / "b.db")])
    captured = capsys.readouterr()
    assert taken == 0, captured.err
    assert said in captured.err


def test_a_page_of_the_console_says_what_it_lacks(tmp_path):
    from tests.review.console_server import running

    store = ReviewStore(tmp_path / "review.db")
    with running(store) as console:
        console.console.lacks = ["<pump> writes lean verdicts"]
        page = console.ask("/incidents").text
    store.close()
    assert "&lt;pump&gt; writes lean verdicts" in page


def outcome():
    record = Record(ONE.position, b"k", b"{}", (), 1)
    item = ReviewItem(verdict=ONE, channels=("flow",), values=(1.0,))
    return Outcome(record, ONE, None, item)


def test_a_topic_gets_lean_verdicts_of_a_type_of_their_own_and_whole_items():
    settings = KafkaSettings(form="lean", pipeline="turbine")
    first, second = OutcomeMessages(settings, lambda _: 1).of([outcome()])
    assert first.value == encode_lean_verdict(ONE)
    assert dict(first.headers)["ce_type"] == b"io.rejex.lean-verdict.v1"
    full_first, full_second = OutcomeMessages(
        KafkaSettings(pipeline="turbine"), lambda _: 1
    ).of([outcome()])  # fmt: skip
    assert second == full_second
    assert full_first.value == encode_verdict(ONE)
    told = dict(full_first.headers) | {"ce_type": b"io.rejex.lean-verdict.v1"}
    assert dict(first.headers) == told


@pytest.mark.parametrize("form", ["full", "lean"])
def test_topics_and_spark_take_the_form_of_the_config(form):
    config, problems = parse_config(
        f'[output]\nform = "{form}"\n[input]\nkind = "kafka"\ntopics = ["a"]\nchannels = ["flow"]\n'
        "[rejection]\ncontamination = 0.05\ntolerance = 4\nwindow = 200\n"
    )
    assert config is not None, problems
    settings = kafka_settings(config)
    assert settings.form == form
    roles = settings.topics.verdicts, settings.topics.review
    rest = settings.topics.deadletter, settings.topics.incidents
    partitions = dict.fromkeys((*roles, *rest), 1)
    on_topics = [value for *_, value, _ in _messages(Recipe("a", config, partitions))(outcome())]
    expected = [message.value for message in OutcomeMessages(settings, lambda _: 1).of([outcome()])]
    assert on_topics == expected
    in_files = [
        (role, line) for role, _, _, line, _ in _messages(Recipe("b", config, None))(outcome())
    ]
    assert in_files == list(lines_of([outcome()], form=form))
    assert (b'"topic"' in in_files[0][1]) == (form == "full")
