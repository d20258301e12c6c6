"""From a file that nobody described to a config that runs: what is guessed, said and asked."""

import gzip
import json
import tomllib

import pytest

from rejex_stream.config import load_config
from rejex_stream.encode import decode_verdict
from rejex_stream.errors import ConfigError
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.json_fields import infer_feed
from rejex_stream.types import Position, Record
from tests.program import here

pytestmark = pytest.mark.usefixtures("place")

T0 = 1_704_500_000


def table(n=1200):
    rows = (f"{T0 + 60 * i},P-{k},{i * 7919 % 1009 / 10},{i * 31 % 17}"
            for i in range(n) for k in "AB")  # fmt: skip
    return "\n".join(["time,Sensor ID,flow,pressure", *rows]) + "\n"


def nested(i, k, *, number=float, time=T0):
    return {
        "meta": {"pump": f"pump-{k}", "site": "north"},
        "data": {
            "temp": {"value": number(20 + i * 7919 % 1009 / 100)},
            "vib": {"value": number(i * 31 % 17 / 10)},
            "running": True,
        },
        "ts": time + i,
    }


def lines(n=1200, **how):
    return "".join(json.dumps(nested(i, k, **how)) + "\n" for i in range(n) for k in (1, 2))


def records(*values, keys=None, partitions=1):
    return [
        Record(
            Position("t", i % partitions, i), keys and keys[i % len(keys)], json.dumps(v).encode()
        )
        for i, v in enumerate(values)
    ]


# ------------------------------------------------------------------------------------- files
@pytest.mark.thorough
def test_a_table_gets_a_config_that_validate_doctor_and_run_pass(place, capsys):
    (place / "pump house.csv").write_text(table())
    status, out, err = here(capsys, "init", "pump house.csv", "--detector", "HBOS")
    assert status == 0, err
    assert "rejex-stream doctor pump-house.toml" in out
    assert "topics" not in out
    text = (place / "pump-house.toml").read_text()
    written = text.split("\n", 1)[0]
    assert written == "# Written by rejex-stream init 'pump house.csv'."
    assert "# γ, the expected share of anomalies.\ncontamination = 0.05\n" in text
    config = load_config(place / "pump-house.toml")
    assert (config.input.sensor, config.input.time_unit) == ("Sensor ID", "s")
    assert config.pipeline.name == "pump-house"
    assert here(capsys, "validate", "pump-house.toml")[0] == 0
    assert here(capsys, "doctor", "pump-house.toml")[0] == 0
    assert here(capsys, "run", "pump-house.toml")[0] == 0
    verdicts = (place / "pump-house.verdicts.jsonl").read_bytes().splitlines()
    assert {decode_verdict(line).sensor for line in verdicts} == {"P-A", "P-B"}


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_nested_json_with_numbers_as_texts(place, capsys, packed):
    body = lines(number=str).encode()
    name = "plant.jsonl.gz" if packed else "plant.jsonl"
    (place / name).write_bytes(gzip.compress(body) if packed else body)
    status, _, err = here(capsys, "init", name, "--detector", "HBOS", "--to", "p.toml")
    assert status == 0, err
    assert "left out: data.running: never changes" in err
    source = load_config(place / "p.toml").input
    assert source.sensor == "meta.pump"
    assert source.channels == {"temp": "data.temp.value", "vib": "data.vib.value"}
    assert (source.time, source.time_unit, source.numbers) == ("ts", "s", "text")
    assert here(capsys, "doctor", "p.toml")[0] == 0
    assert here(capsys, "run", "p.toml")[0] == 0
    verdicts = [decode_verdict(v) for v in (place / "p.verdicts.jsonl").read_bytes().splitlines()]
    assert len(verdicts) == 2400
    assert {verdict.sensor for verdict in verdicts} == {"pump-1", "pump-2"}
    assert verdicts[-1].event_time_ms == (T0 + 1199) * 1000
    assert sum(verdict.rank is not None for verdict in verdicts) > 1200


@pytest.mark.thorough
def test_two_configs_in_one_folder_share_no_output(place, capsys):
    for name in "ab":
        (place / f"{name}.csv").write_text(table())
        assert here(capsys, "init", f"{name}.csv", "--detector", "HBOS")[0] == 0
        assert here(capsys, "run", f"{name}.toml")[0] == 0
    a, b = (tomllib.loads((place / f"{name}.toml").read_text()) for name in "ab")
    assert set(a["output"]) >= {"verdicts", "review", "incidents", "deadletter"}
    assert not set(a["output"].values()) & set(b["output"].values())
    assert a["input"]["control"] != b["input"]["control"]


@pytest.mark.thorough
def test_a_config_that_is_there_is_not_written_over(place, capsys):
    (place / "a.csv").write_text(table())
    (place / "a.toml").write_text("mine")
    status, _, err = here(capsys, "init", "a.csv", "--detector", "HBOS")
    assert status == 2
    assert "a.toml is there already: give --force, or another name with --to" in err
    assert (place / "a.toml").read_text() == "mine"
    assert here(capsys, "init", "a.csv", "--force", "--detector", "HBOS")[0] == 0


@pytest.mark.parametrize(("words", "said"), [
    ([], "give one of FILE and --kafka SERVERS TOPIC"),
    (["x.csv", "--kafka", "a:1", "t"], "give one of FILE and --kafka SERVERS TOPIC"),
    (["none.csv"], "No such file"), (["x.csv", "--sensor", "who"], "there is no column 'who'"),
    (["x.jsonl"], "none of 1 records is a JSON object"),
], ids=["nothing", "both", "absent", "no such column", "broken json"])  # fmt: skip
def test_what_cannot_be_is_one_sentence(place, capsys, words, said):
    (place / "x.csv").write_text(table())
    (place / "x.jsonl").write_text("{broken\n")
    status, _, err = here(capsys, "init", *words)
    assert status in (1, 2)
    assert said in err


@pytest.mark.thorough
def test_a_guessed_share_of_anomalies_is_said(place, capsys):
    (place / "a.csv").write_text(table())
    said = "0.05 is a guess; `rejex-stream plan` says what others would do"
    out = here(capsys, "init", "a.csv")[1]
    assert said in " ".join(out.split())
    assert f"# γ: {said}, --contamination gives it" in (place / "a.toml").read_text()
    assert "is a guess" not in here(capsys, "init", "a.csv", "--force", "-c", "0.1")[1]


# ------------------------------------------------------------------------------------- feeds
def test_keys_are_the_sensor_where_no_field_is():
    values = [{"flow": i * 7 % 13 / 2} for i in range(60)]
    feed = infer_feed(records(*values, keys=[b"a", b"b"]))
    assert feed.from_key
    assert feed.settings()["sensor"] == "key"
    assert (feed.n_sensors, feed.keyless, feed.parted) == (2, False, False)
    assert "time: no field found, the record's own is taken" in "\n".join(feed.said)


def test_records_without_keys_and_sensors_in_several_partitions_are_seen():
    values = [nested(i, i % 2) for i in range(60)]
    feed = infer_feed(records(*values, partitions=3))
    assert (feed.keyless, feed.parted, feed.n_sensors) == (True, True, 2)
    feed = infer_feed(records(*values, keys=[b"x"], partitions=2))
    assert (feed.keyless, feed.parted) == (False, False)


@pytest.mark.parametrize(
    ("time", "unit"),
    [(lambda i: T0 + i, "s"), (lambda i: 1000 * (T0 + i), "ms"),
     (lambda i: f"2024-01-06T{i // 60:02}:{i % 60:02}:00Z", "iso8601"),
     (lambda i: str(1000 * (T0 + i)), "ms")],
    ids=["s", "ms", "iso", "ms as text"],
)  # fmt: skip
def test_the_unit_of_time_is_seen(time, unit):
    feed = infer_feed(records(*({"ts": time(i), "v": i * 7 % 11} for i in range(100))))
    assert (feed.settings()["time"], feed.settings()["time_unit"]) == ("ts", unit)


def test_fields_keep_their_whole_path_where_ends_are_alike_and_dots_are_escaped():
    values = [
        {"a": {"v": i * i % 17, "x.y": i * i % 13}, "b": {"v": i * i % 11}} for i in range(50)
    ]
    found = infer_feed(records(*values)).settings()["channels"]
    assert found == {"a.v": "a.v", "x\\.y": "a.x\\.y", "b.v": "b.v"}


def test_what_is_asked_for_by_path_is_taken():
    values = [nested(i, i % 2) for i in range(60)]
    feed = infer_feed(records(*values), Asked(channels=["data.vib.value"], sensor="meta.site"))
    assert feed.settings()["channels"] == {"vib": "data.vib.value"}
    assert feed.settings()["sensor"] == "meta.site"
    with pytest.raises(ConfigError, match=r"there is no column .data\.nothing."):
        infer_feed(records(*values), Asked(channels=["data.nothing"]))


def test_a_short_feed_is_planned_as_if_it_went_on():
    feed = infer_feed(records(*(nested(i, i % 2) for i in range(60))))
    assert feed.suggested().spec.window == 2000
    assert not feed.suggested().pooled
    long = infer_feed(records(*(nested(i, i % 2) for i in range(60))), total=4000)
    assert long.suggested().spec.window == 500


@pytest.mark.thorough
def test_a_day_and_a_time_of_day_in_two_fields_are_joined(place, capsys):
    rows = [
        {"at": {"date": f"2024-01-{1 + i // 96:02}", "time": f"{i // 4 % 24}:{i % 4 * 15:02}"},
         "flow": "Bad" if i % 40 == 7 else str(i * 7919 % 1009 / 10)}
        for i in range(1200)
    ]  # fmt: skip
    (place / "plant.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, err = here(capsys, "init", "plant.jsonl", "--detector", "HBOS")
    assert status == 0, err
    assert "the time is made of 'date' and 'time'; --time says otherwise" in err
    assert "'Bad' is taken for no value" in err
    source = load_config(place / "plant.toml").input
    assert (source.time, source.missing) == (("at.date", "at.time"), ("Bad",))
    assert here(capsys, "run", "plant.toml")[0] == 0
    verdicts = [decode_verdict(v) for v in (place / "plant.verdicts.jsonl").read_bytes().split()]
    assert len(verdicts) == 1200
    assert verdicts[-1].event_time_ms - verdicts[0].event_time_ms == 1199 * 900_000
