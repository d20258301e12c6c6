"""What plants send, and what ``init`` makes of it: the shapes of the shared cases, and others."""

from __future__ import annotations

import base64
import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rejex_stream.config import parse_config
from rejex_stream.config.assembly import kafka_decoder
from rejex_stream.decode import decode_records
from rejex_stream.decode.reorder_buffer import ReorderBuffer
from rejex_stream.errors import ConfigError
from rejex_stream.settings import toml, toml_key
from rejex_stream.tables.draft import draft_config
from rejex_stream.tables.json_fields import Feed, infer_feed
from rejex_stream.types import Invalid, Position, Reading, Record

pytest.importorskip("jq")

SHARED = Path(__file__).parents[2] / "shared" / "cases"
CASES = Path(os.environ.get("REJEX_CASES", SHARED)) / "topics"
MACHINES = {f"m{i}" for i in range(4)}
THREE = {"temp", "press", "speed"}


def case(name: str) -> list[Record]:
    path = CASES / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("the shared cases are not here")
    return [of_line(i, json.loads(line)) for i, line in enumerate(path.read_text().splitlines())]


def of_line(offset: int, line: dict[str, Any]) -> Record:
    def text(tree: Any) -> bytes | None:
        if tree is None:
            return None
        return (tree if isinstance(tree, str) else json.dumps(tree)).encode()

    value = None if line["value"] is None else json.dumps(line["value"]).encode()
    return Record(
        Position("plant", 0, offset), text(line.get("key")), value, (), line.get("time_ms")
    )


def read(
    records: list[Record], later: list[Record] | None = None
) -> tuple[Feed, list[Reading], list[Invalid]]:
    """Read records, or `later` ones, as the config does that ``init`` writes of them."""
    feed, records = infer_feed(records), later or records
    written = {name: value for name, value in feed.settings().items() if value is not None}
    if feed.guess.sensor is None:
        written["fixed_sensor"] = "plant"
    settings = {"kind": "kafka", "topics": ["plant"], **written}
    text = "[input]\n" + "".join(
        f"{name} = {toml(value)}\n" for name, value in settings.items() if value is not None
    )
    text += '[rejection]\ncontamination = 0.05\ntolerance = 4\n[kafka]\nbootstrap_servers = "b:9"\n'
    text += "".join(
        f"[channels.{toml_key(name)}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in told.items())
        for name, told in feed.told().items()
    )
    config, problems = parse_config(text)
    assert config is not None, (problems, text)
    reorder = ReorderBuffer(config.input.reorder_rules())
    readings, invalid = [], []
    for pair in zip(*decode_records(kafka_decoder(config), records), strict=True):
        for _, item in reorder.add(*pair):
            if isinstance(item, Reading):
                readings.append(item)
            else:
                invalid.append(item)
    return feed, readings, invalid


ONE_EACH = {
    "telegraf", "connect", "kepware", "tbgateway", "sparkplug", "emqx", "quality", "booleans",
    "keyjson", "late", "wide", "rbe",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ONE_EACH))
def test_a_record_of_one_reading_gives_one(name: str) -> None:
    records = case(name)
    feed, readings, invalid = read(records)
    assert len(readings) == len(records)
    assert invalid == []
    assert {reading.sensor.rpartition("/")[2] for reading in readings} == MACHINES
    assert set(feed.channels) == THREE | ({"door", "pump", "lamp"} if name == "booleans" else set())


@pytest.mark.thorough
def test_the_channels_of_every_shape_have_the_values_of_the_wide_one() -> None:
    _, wide, _ = read(case("wide"))
    want = [dict(zip(("temp", "press", "speed"), one.values, strict=True)) for one in wide]
    for name in ("telegraf", "connect", "kepware", "sparkplug", "emqx", "tbgateway", "keyjson"):
        feed, readings, _ = read(case(name))
        found = [dict(zip(feed.channels, one.values, strict=True)) for one in readings]
        assert found == want, name
        assert [o.event_time_ms for o in readings] == [o.event_time_ms for o in wide], name


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "each", "channels"), [
    ("batch", 3, THREE), ("columnar", 10, {"temp", "press"}),
])  # fmt: skip
def test_a_record_of_several_readings_gives_them_all(
    name: str, each: int, channels: set[str]
) -> None:
    records = case(name)
    feed, readings, invalid = read(records)
    assert len(readings) == each * len(records)
    assert invalid == []
    assert set(feed.channels) == channels
    times = [reading.event_time_ms for reading in readings if reading.sensor == "m0"]
    assert times == sorted(set(times)), "each has its own time"
    assert any(line.startswith("before: ") for line in feed.said)
    assert any(line.startswith("after: ") for line in feed.said)


@pytest.mark.parametrize("name", ["debezium", "mixed", "opcsingle", "tomb"])
def test_what_is_no_reading_is_ignored_and_nothing_is_a_dead_letter(name: str) -> None:
    records = case(name)
    feed, readings, invalid = read(records)
    assert {one.stage for one in invalid} == {"ignored"}
    assert len(readings) + len(invalid) == len(records)
    assert {reading.sensor for reading in readings} == MACHINES
    assert set(feed.channels) == THREE
    values = [record.value for record in records]
    kept = {
        "debezium": sum(v is not None and b'"after": {' in v for v in values),
        "mixed": sum(b'"type": "reading"' in (v or b"") for v in values),
        "opcsingle": sum(b"ua-deltaframe" in (v or b"") for v in values),
        "tomb": sum(v is not None for v in values),
    }
    assert len(readings) == kept[name]


@pytest.mark.parametrize("name", ["long1", "longkey", "longtext"])
def test_long_records_are_joined_by_machine(name: str) -> None:
    records = case(name)
    feed, readings, invalid = read(records)
    assert set(feed.channels) == THREE
    assert {reading.sensor for reading in readings} == MACHINES
    assert {one.stage for one in invalid} <= {"joined", "ignored"}
    assert all(value == value for reading in readings for value in reading.values)  # noqa: PLR0124


@pytest.mark.thorough
def test_a_value_with_a_bad_quality_is_missing() -> None:
    for name, field in (
        ("quality", "{channel}.q"),
        ("opcsingle", "Payload.{channel}.Status.Symbol"),
    ):
        records = case(name)
        feed, readings, _ = read(records)
        assert feed.quality is not None
        assert feed.quality["field"] == field
        bad = sum((record.value or b"").count(b"Bad") for record in records)
        missing = sum(value != value for one in readings for value in one.values)  # noqa: PLR0124
        assert missing == bad > 0


def test_unchanged_is_not_missing() -> None:
    feed, readings, _ = read(case("rbe"))
    assert feed.partial
    seen: set[str] = set()
    for one in readings:
        if one.sensor in seen:
            assert all(value == value for value in one.values)  # noqa: PLR0124
        seen.add(one.sensor)


def test_flags_are_booleans_words_and_numbers() -> None:
    feed, readings, _ = read(case("booleans"))
    assert feed.settings()["flags"] == ["door", "pump", "lamp"]
    names = list(feed.channels)
    for flag in ("door", "pump", "lamp"):
        assert {one.values[names.index(flag)] for one in readings} <= {0.0, 1.0}


# --------------------------------------------------------------------- others of the same kinds
T0 = 1_795_600_000_000


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _packed(tree: object) -> str:
    return base64.b64encode(json.dumps(tree).encode()).decode()


def _tag(i: int) -> str:
    return ("temp", "press")[i // 4 % 2]


OTHERS: dict[str, Any] = {
    "SenML, its base in the first record": lambda i, m, t, a, b: [
        {"bn": f"urn:dev:{m}/", "bt": t / 1000, "n": "temp", "v": a}, {"n": "press", "v": b}],
    "SenML, its base alone": lambda i, m, t, a, b: [
        {"bn": f"urn:dev:{m}:", "bt": t / 1000}, {"n": "temp", "v": a}, {"n": "press", "v": b}],
    "SiteWise": lambda i, m, t, a, b: {"entries": [
        {"entryId": f"{i}{k}", "propertyAlias": f"/plant/{m}/{k}", "propertyValues": [
            {"value": {"doubleValue": v}, "timestamp": {"timeInSeconds": t // 1000},
             "quality": "GOOD"}]} for k, v in (("temp", a), ("press", b))]},
    "OPC UA NetworkMessage": lambda i, m, t, a, b: {
        "MessageId": str(i), "MessageType": "ua-data", "PublisherId": "p", "Messages": [
            {"DataSetWriterName": m, "SequenceNumber": i, "Timestamp": iso(t),
             "Payload": {"temp": {"Value": a}, "press": {"Value": b}}}]},
    "OPC Publisher": lambda i, m, t, a, b: {
        "NodeId": f"ns=2;s=Line.{m}.{_tag(i)}",
        "Value": {"Value": a if _tag(i) == "temp" else b, "SourceTimestamp": iso(t)}},
    "NGSI": lambda i, m, t, a, b: {"subscriptionId": "s", "data": [
        {"id": m, "type": "Machine", "temp": {"type": "Number", "value": a, "metadata": {}},
         "press": {"type": "Number", "value": b, "metadata": {}},
         "TimeInstant": {"type": "DateTime", "value": iso(t)}}]},
    "Telegraf in batches": lambda i, m, t, a, b: {"metrics": [
        {"fields": {"temp": a, "press": b}, "name": "cnc", "tags": {"host": "e", "machine": m},
         "timestamp": t // 1000}]},
    "ThingsBoard, several machines": lambda i, m, t, a, b: {
        m: [{"ts": t, "values": {"temp": a, "press": b}}]},
    "EMQX with pairs": lambda i, m, t, a, b: {
        "clientid": m, "topic": f"plant/{m}/data", "qos": 0, "payload": json.dumps(
            {"ts": t, "readings": [{"name": "temp", "value": a}, {"name": "press", "value": b}]})},
    "base64": lambda i, m, t, a, b: {
        "SystemProperties": {"connectionDeviceId": m, "enqueuedTime": iso(t)},
        "Body": _packed({"temp": a, "press": b})},
    "columns with times": lambda i, m, t, a, b: {
        "machine": m, "time": [t, t + 100], "temp": [a, a + 0.1], "press": [b, b]},
    "columns at a rate": lambda i, m, t, a, b: {
        "id": m, "start": iso(t), "rate_hz": 10, "data": {"temp": [a, a], "press": [b, b + 0.1]}},
    "a table": lambda i, m, t, a, b: {
        "series": [{"name": "cnc", "tags": {"machine": m}, "columns": ["time", "temp", "press"],
                    "values": [[t, a, b], [t + 100, a, b]]}]},
    "Kepware": lambda i, m, t, a, b: {"timestamp": t, "values": [
        {"id": f"Ch1.{m}.{k}", "v": v, "q": True, "t": t} for k, v in (("temp", a), ("press", b))]},
    "Sparkplug, typed": lambda i, m, t, a, b: {"timestamp": t, "seq": i % 256, "metrics": [
        {"name": f"{m}/temp", "alias": 1, "timestamp": t, "datatype": 9, "float_value": a},
        {"name": f"{m}/press", "alias": 2, "timestamp": t, "datatype": 9, "float_value": b}]},
    "Debezium with its schema": lambda i, m, t, a, b: {"schema": {}, "payload": {
        "before": None, "after": {"id": i, "machine": m, "ts": t, "temp": a, "press": b},
        "source": {"name": "pg", "lsn": i}, "op": "c", "ts_ms": t}},
    "Maxwell": lambda i, m, t, a, b: {
        "database": "p", "table": "r", "type": "insert", "ts": t // 1000, "xid": i,
        "data": {"id": i, "machine": m, "temp": a, "press": b}},
    "CloudEvents": lambda i, m, t, a, b: {
        "specversion": "1.0", "id": str(i), "source": m, "type": "reading", "time": iso(t),
        "data": {"temp": a, "press": b}},
    "The Things Network": lambda i, m, t, a, b: {
        "end_device_ids": {"device_id": m}, "received_at": iso(t), "uplink_message": {
            "f_cnt": i, "decoded_payload": {"temp": a, "press": b},
            "rx_metadata": [{"rssi": -80 - i % 5, "snr": 7.5}]}},
    "a shadow": lambda i, m, t, a, b: {
        "state": {"reported": {"temp": a, "press": b}}, "version": i, "timestamp": t // 1000,
        "metadata": {"reported": {"temp": {"timestamp": t // 1000}}}, "thing": m},
    "Node-RED": lambda i, m, t, a, b: {
        "topic": f"plant/{m}/{_tag(i)}", "payload": a if _tag(i) == "temp" else b, "ts": t},
    "machines as keys": lambda i, m, t, a, b: {"ts": t, "machines": {
        m: {"temp": a, "press": b}}},
    "pairs with numbers as texts": lambda i, m, t, a, b: {
        "device": m, "time": iso(t), "measurements": [
            {"key": "temp", "val": str(a), "unit": "C"},
            {"key": "press", "val": str(b), "unit": "bar"}]},
    "pairs of k and v": lambda i, m, t, a, b: {
        "deviceId": m, "ts": t, "measurements": [{"k": "temp", "v": a}, {"k": "press", "v": b}]},
    "pairs of paramName": lambda i, m, t, a, b: {
        "station": m, "when": iso(t), "params": [
            {"paramName": k, "paramValue": v} for k, v in (("temp", a), ("press", b))]},
    "machines as keys beside a time": lambda i, m, t, a, b: {
        "ts": t, m: {"temp": a, "press": b}, f"m{(i + 1) % 4}": {"temp": a, "press": b}},
    "Home Assistant": lambda i, m, t, a, b: {
        "entity_id": f"sensor.{m}_{_tag(i)}", "state": str(a if _tag(i) == "temp" else b),
        "last_changed": iso(t)},
    "German names": lambda i, m, t, a, b: {
        "Anlage": m, "Messgröße": _tag(i), "Zeit": iso(t), "Wert": a if _tag(i) == "temp" else b},
    "samples in devices": lambda i, m, t, a, b: {"gateway": "g1", "devices": [
        {"id": m, "samples": [{"ts": t, "temp": a, "press": b},
                              {"ts": t + 100, "temp": a, "press": b}]}]},
    "a path in a field that is called tag": lambda i, m, t, a, b: {
        "tag": f"[default]Line1/{m}/{_tag(i)}", "value": a if _tag(i) == "temp" else b,
        "quality": 192, "timestamp": t},
    "SiteWise, a property each": lambda i, m, t, a, b: {
        "propertyAlias": f"/plant/{m}/{_tag(i)}", "propertyValues": [
            {"value": {"doubleValue": a if _tag(i) == "temp" else b}, "quality": "GOOD",
             "timestamp": {"timeInSeconds": t // 1000, "offsetInNanos": i * 1000}}]},
    "Prometheus": lambda i, m, t, a, b: {
        "labels": {"__name__": _tag(i), "instance": m, "job": "plc"}, "name": _tag(i),
        "timestamp": iso(t), "value": str(a if _tag(i) == "temp" else b)},
    "unions of Avro": lambda i, m, t, a, b: {
        "machine": {"string": m}, "ts": {"long": t}, "temp": {"double": a},
        "press": {"double": b}},
    "OpenTelemetry": lambda i, m, t, a, b: {"resourceMetrics": [{
        "resource": {"attributes": [{"key": "machine", "value": {"stringValue": m}}]},
        "scopeMetrics": [{"metrics": [
            {"name": k, "gauge": {"dataPoints": [{"timeUnixNano": str(t * 10**6), "asDouble": v}]}}
            for k, v in (("temp", a), ("press", b))]}]}]},
    "attributes with capitals": lambda i, m, t, a, b: {
        "Dimensions": [{"Name": "machine", "Value": m}], "MeasureValues": [
            {"Name": "temp", "Value": str(a), "Type": "DOUBLE"},
            {"Name": "press", "Value": str(b), "Type": "DOUBLE"}], "Time": str(t)},
    "numbers with units in arrays": lambda i, m, t, a, b: {
        "device": m, "epoch": t / 1000, "m": {"temp": [a, "C"], "press": [b, "bar"]}},
    "a number in a text that is an array": lambda i, m, t, a, b: {
        "ts": t // 1000, "device": m, "name": _tag(i), "addr": 30001,
        "data": f"[{a if _tag(i) == 'temp' else b}]", "ok": 1},
    "units of channels beside them": lambda i, m, t, a, b: {
        "Timestamp": iso(t), "Device": m, "Values": {"temp": a, "press": b},
        "MetaData": {"temp": {"unit": "C"}, "press": {"unit": "bar"}}},
    "the machine in each pair": lambda i, m, t, a, b: [
        {"NodeId": k, "DataSetWriterName": f"line/{m}", "DisplayName": k,
         "Value": {"Value": v, "SourceTimestamp": iso(t)}}
        for k, v in (("temp", a), ("press", b))],
    "before and after": lambda i, m, t, a, b: {
        "thing": m, "timestamp": t // 1000, "previous": {"reported": {"temp": a - 9, "press": 0.1}},
        "current": {"reported": {"temp": a, "press": b}}},
    "an old and a new state": lambda i, m, t, a, b: {"event_type": "changed", "data": {
        "entity_id": f"sensor.{m}_{_tag(i)}", "old_state": {"state": "1"},
        "new_state": {"state": str(a if _tag(i) == "temp" else b), "last_changed": iso(t)}}},
    "a name that nobody calls a tag": lambda i, m, t, a, b: {
        "data": a if _tag(i) == "temp" else b, "dateTime": iso(t // 2000 * 2000),
        "device": {"id": m}, "diagnostic": {"id": _tag(i)}, "version": f"{i:016x}"},
    "fields by turns under one time": lambda i, m, t, a, b: {
        "fields": {_tag(i): a if _tag(i) == "temp" else b, "Quality": "OK (0x0)"}, "name": "opcua",
        "tags": {"id": f"ns=2;s={m}.{_tag(i)}", "machine": m}, "timestamp": t // 2000 * 2},
    "DynamoDB": lambda i, m, t, a, b: {"eventName": "INSERT", "dynamodb": {
        "SequenceNumber": str(10**20 + i), "NewImage": {
            "machine": {"S": m}, "ts": {"N": str(t)}, "temp": {"N": str(a)},
            "press": {"N": str(b)}}}},
    "answers of Prometheus": lambda i, m, t, a, b: {"status": "success", "data": {
        "resultType": "vector", "result": [
            {"metric": {"__name__": k, "instance": m}, "value": [t / 1000, str(v)]}
            for k, v in (("temp", a), ("press", b))]}},
    "SensorThings": lambda i, m, t, a, b: {
        "Datastream": {"@iot.id": i // 4 % 2, "name": _tag(i), "Thing": {"name": m}},
        "phenomenonTime": iso(t), "resultTime": iso(t + 300), "@iot.id": i + 900,
        "result": a if _tag(i) == "temp" else b},
    "Zabbix, a number for each item": lambda i, m, t, a, b: {
        "host": {"host": m, "name": m}, "groups": ["g"], "itemid": 100 + i // 4 % 2,
        "name": _tag(i), "clock": t // 1000, "ns": 123456, "type": 0,
        "value": a if _tag(i) == "temp" else b},
    "Litmus, a register beside its name": lambda i, m, t, a, b: {
        "success": True, "datatype": "float64", "timestamp": t, "registerId": f"r{_tag(i)}",
        "value": a if _tag(i) == "temp" else b, "deviceID": f"A7-{m}",
        "tagName": _tag(i), "deviceName": m},
    "a connection": lambda i, m, t, a, b: {"seq": i, "connection": m, "vals": [
        {"id": "temp", "qc": 3, "ts": iso(t), "val": a},
        {"id": "press", "qc": 3, "ts": iso(t), "val": b}]},
    "a number of the device beside its name": lambda i, m, t, a, b: {
        "time": iso(t), "deviceName": m, "devEui": f"0101{m[1]}", "object": {
            "temp": a, "press": b}},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_shapes_of_the_same_kinds(name: str) -> None:
    chance = random.Random(1)
    records = []
    for i in range(200):
        m, t = f"m{i % 4}", T0 + i // 4 * 1000
        a, b = round(60 + chance.gauss(0, 0.3), 2), round(5 + chance.gauss(0, 0.05), 3)
        tree = OTHERS[name](i, m, t, a, b)
        records.append(of_line(i, {"key": None, "value": tree, "time_ms": t}))
    feed, readings, invalid = read(records)
    assert set(feed.channels) == {"temp", "press"}, feed.said
    assert {one.sensor[-2:] for one in readings} == MACHINES
    assert {one.stage for one in invalid} <= {"joined"}
    assert len(readings) >= 90
    assert all(T0 <= one.event_time_ms <= T0 + 51_000 for one in readings)
    temp, press = (list(feed.channels).index(c) for c in ("temp", "press"))
    assert all(58 < one.values[temp] < 62 and 4.5 < one.values[press] < 5.5
               for one in readings if one.values[temp] == one.values[temp]
               and one.values[press] == one.values[press])  # fmt: skip


def test_headers_may_say_whose_a_reading_is() -> None:
    records = []
    for i in range(200):
        value = {"temp": 60 + i % 7 / 10, "press": 5 + i % 3 / 10}
        whose = ("ce_source", b"/plant/m%d" % (i % 4))
        headers = (("ce_id", b"%d" % i), ("ce_type", b"reading"), whose)
        records.append(of_line(i, {"value": value, "time_ms": T0 + i})._replace(headers=headers))
    feed, readings, invalid = read(records)
    assert feed.settings()["sensor"] == "header:ce_source"
    assert {one.sensor for one in readings} == {f"/plant/m{i}" for i in range(4)}
    assert invalid == []
    records[7] = records[7]._replace(headers=())
    assert infer_feed(records).settings()["sensor"] is None, "one lacks the header"


def test_a_field_whose_name_begins_as_the_key_does_is_a_channel_as_any() -> None:
    lines = [
        {
            "key": f"m{i % 4}",
            "value": {"key_temp": 60 + i % 7 / 10, "keyence": 5 + i % 3 / 10},
            "time_ms": T0,
        }
        for i in range(200)
    ]
    feed, readings, _ = read([of_line(i, line) for i, line in enumerate(lines)])
    assert set(feed.channels) == {"key_temp", "keyence"}
    assert {one.sensor for one in readings} == MACHINES


def test_a_field_called_key_is_none_of_the_record_s_key() -> None:
    lines = [
        {"key": f"m{i % 4}", "value": {"key": _tag(i), "value": 60 + i % 7 / 10, "ts": T0 + i * 9}}
        for i in range(200)
    ]
    feed, readings, _ = read([of_line(i, line) for i, line in enumerate(lines)])
    assert feed.settings()["tag"] == "key"
    assert feed.settings()["sensor"] == "key"
    assert set(feed.channels) == {"temp", "press"}
    assert {one.sensor for one in readings} == MACHINES


def test_places_in_arrays_without_names_have_names_that_say_so() -> None:
    rows = [[f"m{i % 4}", T0 + i * 1000, 60 + i % 7 / 10, 5.0 + i % 3] for i in range(200)]
    alone = [of_line(i, {"value": row, "time_ms": row[1]}) for i, row in enumerate(rows)]
    grouped = [
        of_line(i // 4, {"value": {"site": "A", "readings": rows[i : i + 4]}, "time_ms": T0})
        for i in range(0, 200, 4)
    ]
    bare = [of_line(i // 4, {"value": rows[i : i + 4]}) for i in range(0, 200, 4)]
    for records in (alone, grouped, bare):
        feed, readings, invalid = read(records)
        assert invalid == []
        assert list(feed.channels) == ["v2", "v3"]
        assert [(one.sensor, one.event_time_ms, *one.values) for one in readings] == [
            tuple(row) for row in rows
        ]


@pytest.mark.parametrize("odd", [["m0", 1.0], ["m0", T0, {"v": 1}, 2.0]])
def test_arrays_of_several_widths_or_depths_have_no_places(odd: object) -> None:
    from rejex_stream.errors import ConfigError

    rows = [["m0", T0 + i * 1000, 60 + i % 7 / 10, 5.0] for i in range(50)]
    with pytest.raises(ConfigError):
        infer_feed([of_line(i, {"value": row}) for i, row in enumerate([*rows, odd])])


@pytest.mark.parametrize("beside", [
    lambda v, ok: {"v": v, "v_q": 192 if ok else 0},
    lambda v, ok: {"v": v, "v_q": 216 if ok else 24},
    lambda v, ok: {"v": {"value": v, "valid": ok}},
    lambda v, ok: {"v": {"value": v, "statusCode": 0 if ok else 0x80340000}},
    lambda v, ok: {"v": v, "quality": "good" if ok else "bad"}, lambda v, ok: {"v": v, "v_ok": ok},
    lambda v, ok: {"v": {"val": v, "st": 0 if ok else 0x80010000}},
    lambda v, ok: {"v": {"v": v, "s": "GOOD" if ok else "BAD"}},
    lambda v, ok: {"values": [{"n": "v", "x": v, "q": "G" if ok else "B"}]},
])  # fmt: skip
def test_a_value_that_is_said_to_be_bad_is_missing(beside: Any) -> None:
    chance = random.Random(2)
    records, wrong = [], [i % 20 == 7 for i in range(200)]
    for i, bad in enumerate(wrong):
        v = 0.0 if bad else round(60 + chance.gauss(0, 0.3), 2)
        tree = {"machine": "m0", "ts": T0 + i * 1000, **beside(v, not bad)}
        tree |= {} if "values" in tree else {"w": chance.random()}
        records.append(of_line(i, {"key": None, "value": tree, "time_ms": T0}))
    feed, readings, invalid = read(records)
    assert not invalid
    at = next(i for i, name in enumerate(feed.channels) if name != "w")
    assert len(set(feed.channels) - {"w"}) == 1
    assert [one.values[at] != one.values[at] for one in readings] == wrong


@pytest.mark.parametrize(("value", "said"), [
    (b"cnc,machine=m0 temp=60.1,press=5 1795600000000000000", "line protocol"),
    (b"\0\0\0\0\7abc", "Avro and Protobuf of a schema registry"),
    (b"<reading><t>1</t></reading>", "XML"), (b"m0;60.1;5.0", "looks like CSV"),
])  # fmt: skip
def test_what_is_no_json_is_named_with_the_next_step(value: bytes, said: str) -> None:
    from rejex_stream.errors import ConfigError

    records = [Record(Position("in", 0, i), None, value) for i in range(20)]
    with pytest.raises(ConfigError, match=said):
        infer_feed(records)


# --------------------------------------------------------------- the same of a schema registry
@pytest.mark.thorough
@pytest.mark.parametrize("registered", [True, False])
def test_shapes_in_avro_are_proposed_as_those_of_json(
    monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    """The registry is a real HTTP server; the records are what fastavro writes."""
    pytest.importorskip("fastavro")
    from rejex_stream.cli.commands.init import of_registry
    from tests.test_decode_registry import avro, avro_schema
    from tests.test_schema_registry import Server

    reading = {"type": "record", "name": "R", "fields": [
        {"name": "k", "type": "string"}, {"name": "v", "type": ["null", "double"]}]}  # fmt: skip
    schema = avro_schema(
        ("machine", "string"), ("ts", "long"), ("values", {"type": "array", "items": reading})
    )
    chance, records = random.Random(4), []
    for i in range(200):
        pairs = [{"k": k, "v": round(chance.gauss(60, 1), 2)} for k in ("temp", "press")]
        tree = {"machine": f"m{i % 4}", "ts": T0 + i // 4 * 1000, "values": pairs}
        records.append(Record(Position("plant", 0, i), None, avro(schema, tree), (), T0))
    server = Server()
    try:
        if registered:
            answer = {"schema": schema.text, "schemaType": "AVRO"}
            server.answers["/schemas/ids/1"] = (200, answer)
        monkeypatch.setenv("REJEX_SCHEMA_REGISTRY__URL", server.url)
        if not registered:
            with pytest.raises(ConfigError, match="neither as avro nor as protobuf"):
                of_registry(records)
            return
        format, found = of_registry(records)
    finally:
        server.close()
    assert format == "avro"
    feed = infer_feed(found)
    assert set(feed.channels) == {"temp", "press"}
    assert feed.guess.sensor == "machine"
    source = {"kind": "kafka", "format": format, "topics": ["plant"], **feed.settings()}
    choice = feed.suggested()
    draft_config(source, choice, name="p", told={}, kafka={"bootstrap_servers": "localhost:9"})
    assert source["select"] is not None


def test_without_a_registry_records_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from rejex_stream.cli.commands.init import of_registry

    records = [of_line(0, {"value": {"a": 1}})]
    assert of_registry(records) == (None, records)
    monkeypatch.setenv("REJEX_SCHEMA_REGISTRY__URL", "http://localhost:9")
    assert of_registry(records) == ("jsonl", records)


@pytest.mark.thorough
def test_series_behind_each_other_in_a_record_are_put_in_the_order_of_time() -> None:
    chance = random.Random(2)
    values = {
        (m, k): [[T0 / 1000 + i, str(round(chance.gauss(mean, 0.01), 4))] for i in range(90)]
        for m in sorted(MACHINES)
        for k, mean in (("temp", 60), ("press", 5))
    }
    records = [
        of_line(part, {"key": None, "time_ms": T0, "value": {"status": "success", "data": {
            "resultType": "matrix", "result": [
                {"metric": {"__name__": k, "instance": m}, "values": found[part * 45:][:45]}
                for (m, k), found in values.items()]}}})
        for part in range(2)
    ]  # fmt: skip
    feed, readings, _ = read(records)
    assert "sort_by(.t)" in str(feed.select)
    assert {one.sensor for one in readings} == MACHINES
    assert len(readings) == 4 * 90
    temp = list(feed.channels).index("temp")
    assert all(59 < one.values[temp] < 61 and 4 < one.values[1 - temp] < 6 for one in readings)


def test_readings_in_the_order_of_time_are_left_so() -> None:
    records = [
        of_line(i, {"key": f"m{i % 4}", "time_ms": T0, "value": [
            {"ts": T0 + i * 10 + j, "temp": 60 + j / 7, "press": 5 - i / 900} for j in range(3)]})
        for i in range(60)
    ]  # fmt: skip
    assert read(records)[0].select == ".[]"


def test_units_of_channels_are_no_machines() -> None:
    shape = OTHERS["units of channels beside them"]
    records = [
        of_line(i, {"key": None, "time_ms": T0,
                    "value": shape(i, f"m{i % 4}", T0 + i, 60 + i / 7, 5 + i / 9)})
        for i in range(40)
    ]  # fmt: skip
    feed, readings, _ = read(records)
    assert (feed.select, len(readings)) == (None, 40)


def test_of_two_names_in_nested_pairs_the_id_says_whose_and_no_name_hides_the_time():
    """A gateway sends machines, and of each its quantities; one of them is called t."""
    trees = [
        {
            "gw": "g",
            "devices": [
                {
                    "id": f"n{k}",
                    "at": f"2025-03-04T06:{i // 60:02}:{i % 60:02}Z",
                    "readings": [
                        {"k": "t", "v": 20.5 + i * i % 7},
                        {"k": "h", "v": 50.5 + i * i % 5 + k},
                    ],
                }
                for k in range(3)
            ],
        }
        for i in range(200)
    ]
    feed, found, invalid = read([of_line(i, {"value": tree}) for i, tree in enumerate(trees)])
    assert not invalid
    assert sorted(feed.channels) == ["h", "t"]
    assert {reading.sensor for reading in found} == {"n0", "n1", "n2"}
    assert len(found) == 600
    assert [dict(zip(feed.channels, r.values, strict=True))["h"] for r in found[:3]] == [
        50.5, 51.5, 52.5,
    ]  # fmt: skip
    assert feed.settings()["time"] == "time"


def test_the_signals_of_a_vehicle_are_its_channels_though_they_have_names() -> None:
    def signal(name: str, i: int, level: int) -> dict[str, Any]:
        samples = [[T0 + i * 1000 + k * 100, level + (i * i + k * k) % 7 + 0.5] for k in range(3)]
        return {"name": name, "samples": samples}

    trees = [
        {"vin": f"W{i % 3}", "signals": [signal("rpm", i // 3, 900), signal("temp", i // 3, 60)]}
        for i in range(150)
    ]
    feed = infer_feed([of_line(i, {"value": tree}) for i, tree in enumerate(trees)])
    assert (feed.settings()["sensor"], feed.settings()["tag"]) == ("vin", "name")
    assert list(feed.channels) == ["rpm", "temp"]


def test_records_that_no_rule_reads_name_the_field_and_select_not_how_a_table_is_written() -> None:
    from rejex_stream.errors import ConfigError

    trees = [{"dev": "d", "ts": T0 + i, "line": f"{i * i % 7};{i % 5};x"} for i in range(50)]
    with pytest.raises(
        ConfigError, match=r"no field holds .* input\.select.*'line': not numbers"
    ) as e:
        infer_feed([of_line(i, {"value": tree}) for i, tree in enumerate(trees)])
    assert "--delimiter" not in str(e.value)
