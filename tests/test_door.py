"""What comes through the door is read right, or what is doubtful is said: never wrong in silence.

Tables and records of JSON are made here as plants write them, each standing for a kind.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from test_shapes import read

from rejex_stream.cli import main
from rejex_stream.config import parse_config
from rejex_stream.decode.reorder_buffer import ReorderBuffer
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec, SensorFeatures
from rejex_stream.features.spec import MissingChannelError
from rejex_stream.operate.run_monitor import ClockWatch
from rejex_stream.tables.draft import opened
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import Table, open_table
from rejex_stream.tables.json_fields import Feed, infer_feed, open_file
from rejex_stream.types import Position, Reading, Record, unit_change

pytest.importorskip("jq")

BEGUN = datetime(2026, 3, 4, 1, tzinfo=UTC)


def walk(n: int, level: float = 60.0, seed: int = 1) -> list[float]:
    """A measurement that moves a little about its level."""
    numbers, x, values = random.Random(seed), 0.0, []
    for _ in range(n):
        x = 0.9 * x + numbers.gauss(0, 0.3)
        values.append(round(level + x, 2))
    return values


def table(where: Path, header: str, rows: Iterable[Sequence[object]], **asked: Any) -> Table:
    path = where / "t.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return open_table(path, Asked(**asked))


def records(trees: Iterable[object], keys: Iterable[str] | None = None) -> list[Record]:
    values = [json.dumps(tree).encode() for tree in trees]
    of = [None] * len(values) if keys is None else [key.encode() for key in keys]
    return [
        Record(Position("plant", 0, i), key, value)
        for i, (key, value) in enumerate(zip(of, values, strict=True))
    ]


def readings(table: Table) -> list[Reading]:
    decoder, source, rules = opened(table.settings(), table.told())
    rows = ReorderBuffer(rules)
    made = [x for record in source for _, x in rows.add(record, decoder.decode(record))]
    return [x for x in made if isinstance(x, Reading)]


def said(table: Table) -> str:
    return "\n".join(table.said)


# ------------------------------------------------------------------------------------- when it was
@pytest.mark.parametrize(("written", "step"), [
    ("%Y%m%d", timedelta(days=1)), ("%Y%j", timedelta(days=1)), ("%Y%j%H%M", timedelta(minutes=1)),
    ("%Y%m%d%H", timedelta(hours=1)), ("%Y%m%d%H%M", timedelta(minutes=1)),
])  # fmt: skip
def test_digits_of_a_date_are_read_at_their_full_width(
    tmp_path: Path, written: str, step: timedelta
) -> None:
    times = [datetime(2023, 1, 1, tzinfo=UTC) + i * step for i in range(300)]
    rows = [(t.strftime(written), x) for t, x in zip(times, walk(300), strict=True)]
    found = readings(table(tmp_path, "date,temp", rows))
    assert [x.event_time_ms for x in found] == [round(t.timestamp() * 1000) for t in times]


@pytest.mark.parametrize(("name", "written", "months"), [
    ("year", "{y}", 12), ("Jahr", "{y}", 12), ("date", "{y}", 12), ("period", "{y}-Q{q}", 3),
    ("quarter", "{y}q{q}", 3), ("when", "Q{q} {y}", 3), ("month", "{y}-{m:02}", 1),
])  # fmt: skip
def test_years_quarters_and_months_are_times(
    tmp_path: Path, name: str, written: str, months: int
) -> None:
    begins = [(1992 + i // 12, i % 12 + 1) for i in range(0, 30 * 12, months)]
    at = [written.format(y=y, m=m, q=m // 3 + 1) for y, m in begins]
    rows = [(who, t, x) for who in "ab" for t, x in zip(at, walk(len(at)), strict=True)]
    found = readings(table(tmp_path, f"station,{name},flow", rows))
    times = [round(datetime(*begin, 1, tzinfo=UTC).timestamp() * 1000) for begin in begins]
    assert [x.event_time_ms for x in found] == 2 * times
    made = [(f"{t:%Y-%m-%d %H:%M}", 2010 + i // 90, x)  # when a machine was built is no time
            for i, (t, x) in enumerate(zip([BEGUN] * 300, walk(300), strict=True))]  # fmt: skip
    assert table(tmp_path, "time,year,flow", made).guess.times == ("time",)


@pytest.mark.thorough
@pytest.mark.parametrize(("date", "time"), [
    ("%Y-%m-%d", "%H:%M:%S"), ("%d.%m.%Y", "%H:%M"), ("%d-%b-%Y", "%H:%M:%S"),
])  # fmt: skip
def test_a_day_and_a_time_of_day_are_one_time_beside_one_channel(date: str, time: str) -> None:
    times = [BEGUN + timedelta(minutes=i) for i in range(400)]
    trees = [
        {"machine": machine, "date": t.strftime(date), "time": t.strftime(time), "temp": x}
        for t, x in zip(times, walk(400), strict=True)
        for machine in ("m0", "m1")
    ]
    _, found, _ = read(records(trees))
    assert {x.sensor for x in found} == {"m0", "m1"}
    of_one = [x.event_time_ms for x in found if x.sensor == "m1"]
    assert of_one == [round(t.timestamp() * 1000) for t in times]


# ----------------------------------------------------------------------------- arrays side by side
@pytest.mark.thorough
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("within", [True, False])
def test_arrays_side_by_side_are_all_read(named: bool, within: bool) -> None:
    def element(name: str, t: int, value: float) -> list[dict[str, object]]:
        one: dict[str, object] = {"timestamp": t, "value": value}
        return [{"dataItemId": name, **one} if named else one]

    trees = []
    for i, (x, y) in enumerate(zip(walk(300), walk(300, 5, 2), strict=True)):
        t = 1_770_000_000_000 + 1000 * i
        samples = {"Position": element("Xact", t, x), "Load": element("Xload", t, y)}
        trees.append({"dev": "m0", "comp": [samples]} if within else {"dev": "m0", **samples})
    feed, found, invalid = read(records(trees))
    assert len(feed.channels) == 2
    assert [x.values for x in found] == [*zip(walk(300), walk(300, 5, 2), strict=True)]
    assert invalid == []


def test_of_two_arrays_that_differ_one_is_read_and_the_other_named() -> None:
    trees = [
        {"dev": "m0", "t": 1_770_000_000_000 + 1000 * i, "samples": [{"temp": x, "press": x / 9}],
         "events": [{"code": i % 3}, {"code": i % 5}]}
        for i, x in enumerate(walk(300))
    ]  # fmt: skip
    feed, found, _ = read(records(trees))
    assert len(found) == 300
    assert set(feed.channels) == {"temp", "press"}
    assert any("left out" in line and "array" in line for line in feed.said)


def test_names_of_resources_name_quantities() -> None:
    trees = [
        {"readings": [
            {"origin": 1_770_000_000_000_000_000 + i * 10**9, "deviceName": "m0",
             "resourceName": name, "value": str(x)} for name in ("temp", "press")
        ]} for i, x in enumerate(walk(200))
    ]  # fmt: skip
    feed, found, _ = read(records(trees))
    assert set(feed.channels) == {"temp", "press"}
    assert len(found) == 200


# ----------------------------------------------------------------------------------- whose x what
def long_rows(n: int = 300, machines: Sequence[str] = ("m0", "m1")) -> list[dict[str, object]]:
    """Long rows of two machines: two measurements, and an energy that only adds up."""
    values = {"temp": walk(n), "press": walk(n, 5, 2), "energy": [1000 + i * 0.3 for i in range(n)]}
    return [
        {"ts": f"{BEGUN + timedelta(minutes=i):%Y-%m-%dT%H:%M:%SZ}", "machine": machine, "tag": tag,
         "value": round(x[i], 2)}
        for i in range(n) for machine in machines for tag, x in values.items()
    ]  # fmt: skip


@pytest.mark.thorough
def test_long_tables_and_long_records_are_joined_to_the_same_rows(tmp_path: Path) -> None:
    rows = long_rows()
    long = table(tmp_path, "ts,machine,tag,value", [row.values() for row in rows])
    feed, of_json, _ = read(records(rows))
    assert long.guess.channels == tuple(feed.channels) == ("temp", "press")
    assert "left out: energy only counts" in said(long)
    assert [(x.sensor, x.event_time_ms, x.values) for x in readings(long)] == [
        (x.sensor, x.event_time_ms, x.values) for x in of_json
    ]
    assert (long.n_rows, long.n_events, len(of_json)) == (1800, 600, 600)
    alone = table(tmp_path, "ts,machine,tag,value", [r.values() for r in rows], channels=["value"])
    assert {x.sensor for x in readings(alone)} == {
        f"{machine}/{tag}" for machine in ("m0", "m1") for tag in ("temp", "press", "energy")
    }


QUANTITIES = {"temp": walk(300), "press": walk(300, 5, 2), "speed": walk(300, 1500, 3)}
OF_EACH = [(i, m, q) for i in range(300) for m in ("m0", "m1") for q in QUANTITIES]
AT = 1_770_000_000_000


def one(i: int, quantity: str, **fields: object) -> dict[str, object]:
    return {"value": QUANTITIES[quantity][i], "ts": AT + 1000 * i, **fields}


NAMED: dict[str, tuple[Any, Any]] = {
    "historian": (lambda i, m, q: {"timestamp_ms": AT + 1000 * i, q: QUANTITIES[q][i]},
                  lambda m, q: f"umh.v1.acme.line1.{m}._historian.{q}"),
    "bare number": (lambda i, m, q: QUANTITIES[q][i], lambda m, q: f"plant/{m}/{q}"),
    "value and time": (lambda i, m, q: one(i, q), lambda m, q: f"plant/{m}/{q}"),
    "name and key": (lambda i, m, q: one(i, q, name=f"plant/{m}/{q}"), lambda m, q: f"p/{m}/{q}"),
    "topic in the record": (
        lambda i, m, q: {"topic": f"acme/{m}/{q}", "ts": AT + 1000 * i, q: QUANTITIES[q][i]}, None),
    "alias": (lambda i, m, q: {"propertyAlias": f"/plant/{m}/{q}", "propertyValues": [
        {"value": {"doubleValue": QUANTITIES[q][i]}, "timestamp": {"timeInSeconds": AT // 1000 + i}}
    ]}, None),
    "register": (lambda i, m, q: one(i, q, unit=int(m[1]), addr=40001 + [*QUANTITIES].index(q)),
                 None),
    "entity": (lambda i, m, q: one(i, q, entity_id=f"sensor.{m}_{q}", friendly_name=f"{m} {q}"),
               None),
    "tag alone is strong": (lambda i, m, q: one(i, q, m=m, tag=q), None),
    "host and name": (lambda i, m, q: one(i, q, name=q, host=m), None),
    "quantities by turns": (lambda i, m, q: one(i, q, device=m, metric=q) | {
        "ts": AT + 1000 * i + 37 * [*QUANTITIES].index(q)}, None),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("named", sorted(NAMED))
def test_who_and_what_are_found_wherever_they_are_named(named: str) -> None:
    value, key = NAMED[named]
    trees = [value(i, m, q) for i, m, q in OF_EACH]
    keys = None if key is None else [key(m, q) for _, m, q in OF_EACH]
    stamped = [r._replace(timestamp_ms=AT + i) for i, r in enumerate(records(trees, keys))]
    feed, found, invalid = read(stamped)
    assert {one.stage for one in invalid} == {"joined"}
    assert len(feed.channels) == 3
    assert len({x.sensor for x in found}) == 2
    for sensor in {x.sensor for x in found}:
        rows = [sorted(x.values) for x in found if x.sensor == sensor]
        assert rows == [sorted(row) for row in zip(*QUANTITIES.values(), strict=True)]


def test_a_wide_record_s_key_of_two_parts_is_one_name() -> None:
    trees = [
        {"temp": x, "press": y, "ts": AT + 1000 * i}
        for i, (x, y) in enumerate(zip(walk(200), walk(200, 5), strict=True)) for _ in range(4)
    ]  # fmt: skip
    keys = [f"{site}/{machine}" for _ in range(200) for site in "AB" for machine in ("m0", "m1")]
    feed, found, _ = read(records(trees, keys))
    assert feed.settings()["sensor"] == "key"
    assert len({x.sensor for x in found}) == 4


@pytest.mark.parametrize(("spec", "wrong"), [
    ("key:(", "no regular expression"), ("key:abc", "no group"), ("keys:(a)", "expected key:"),
    ("topics:(a)", "expected key:"), ("headers:x", "expected key:"),
])  # fmt: skip
def test_a_pattern_that_is_none_is_refused(spec: str, wrong: str) -> None:
    for role in ("sensor", "tag"):
        given = f'{role} = "{spec}"\n' + ('sensor = "key"\n' if role == "tag" else "")
        text = (
            f'[input]\nkind = "kafka"\ntopics = ["x"]\nchannels = ["a"]\n{given}'
            '[rejection]\ncontamination = 0.05\ntolerance = 4\n[kafka]\nbootstrap_servers = "b:9"'
        )
        config, problems = parse_config(text)
        assert config is None
        assert wrong in "; ".join(map(str, problems))


def test_a_file_has_no_keys() -> None:
    config, problems = parse_config(
        '[input]\npath = "x.jsonl"\ntime = "t"\nchannels = ["a"]\nsensor = "key:(.)"\n'
        "[rejection]\ncontamination = 0.05\ntolerance = 4\n"
    )
    assert config is None
    assert "read beside a record of Kafka" in "; ".join(map(str, problems))


def test_a_quantity_of_some_machines_alone_is_left_out_aloud(tmp_path: Path) -> None:
    rows = [
        r.values() for r in long_rows() if (r["machine"], r["tag"]) != ("m1", "press")
        and r["tag"] != "energy"
    ]  # fmt: skip
    rows += [
        (r["ts"], r["machine"], "flow", r["value"]) for r in long_rows() if r["tag"] == "press"
    ]
    rows = sorted(map(tuple, rows), key=lambda row: row[0])
    found = table(tmp_path, "ts,machine,tag,value", rows)
    assert found.guess.channels == ("temp", "flow")
    assert "left out: press is not of every sensor" in said(found)


@pytest.mark.thorough
def test_units_of_a_long_table_are_a_quantity_s_own(tmp_path: Path) -> None:
    units = {"temp": "°C", "press": "bar", "energy": "kWh"}
    rows = [(*list(r.values())[:3], f"{r['value']} {units[str(r['tag'])]}") for r in long_rows()]
    found = table(tmp_path, "ts,machine,tag,value", rows)
    assert found.guess.channels == ("temp", "press")
    assert readings(found)[0].values == (walk(1)[0], walk(1, 5, 2)[0])


@pytest.mark.parametrize("every", [5, 30, 60])
def test_a_total_that_rises_seldom_is_left_out_aloud(tmp_path: Path, every: int) -> None:
    rows = [
        (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x, 24940 + i // every)
        for i, x in enumerate(walk(1200))
    ]
    found = table(tmp_path, "time,temp,AccumFlow", rows)
    assert found.guess.channels == ("temp",)
    assert "left out: AccumFlow only counts" in said(found)


def test_a_gas_that_comes_once_is_no_total(tmp_path: Path) -> None:
    rows = [
        (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x, max(0, i - 1020) * 2.2)
        for i, x in enumerate(walk(1200))
    ]
    assert table(tmp_path, "time,temp,co_ppm", rows).guess.channels == ("temp", "co_ppm")


def test_a_level_that_also_falls_is_no_total(tmp_path: Path) -> None:
    levels = [50 + i // 20 - 12 * (i // 200) for i in range(1200)]  # fills, and is let out by half
    rows = [
        (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x, level + (i % 7 == 0))
        for i, (x, level) in enumerate(zip(walk(1200), levels, strict=True))
    ]
    assert table(tmp_path, "time,temp,level", rows).guess.channels == ("temp", "level")


def test_a_file_is_planned_for_the_rows_it_has_and_a_topic_for_those_to_come() -> None:
    trees = [
        {"machine": machine, "ts": 1_770_000_000_000 + 1000 * i, "temp": x, "press": x / 12}
        for i, x in enumerate(walk(300)) for machine in ("m0", "m1")
    ]  # fmt: skip
    file, topic = (infer_feed(records(trees), live=live) for live in (False, True))
    assert file.suggested(contamination=0.05).spec.window == 75
    assert topic.suggested(contamination=0.05).spec.window == 2000


def test_what_stands_for_no_value_is_a_channels_own(tmp_path: Path) -> None:
    """Far below zero is an outage in one channel, and what the other feeds into the grid."""
    powers = [round(300 * x - 6_500) for x in walk(900, 20, 4)]
    powers[::150] = [-999] * 6
    temps = [-999 if i % 40 in range(3) else x for i, x in enumerate(walk(900, 20, 2))]
    flows = [-12.5 if i % 50 in range(4) else x for i, x in enumerate(walk(900, 8, 3))]
    times = [f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}" for i in range(900)]
    rows = [*zip(times, temps, powers, flows, strict=True)]
    found = table(tmp_path, "time,temp,power,flow", rows)
    columns = zip(*(one.values for one in readings(found)), strict=True)
    n_lost = [sum(map(math.isnan, column)) for column in columns]
    assert n_lost == [temps.count(-999), 0, 0]
    assert "--missing 'temp=' says that it is one" in said(found)
    assert "--missing 'flow=-12.5' says it stands for no value" in said(found)
    kept = table(tmp_path, "time,temp,power,flow", rows, missing=["temp="])
    assert readings(kept)[0].values[0] == -999
    config = tmp_path / "t.toml"
    words = [str(tmp_path / "t.csv"), "--missing", "flow=-12.5", "--detector", "HBOS"]
    assert main(["init", *words, "--to", str(config)]) == 0
    (parsed, _) = parse_config(config.read_text())
    assert parsed is not None
    assert {n: c.missing for n, c in parsed.channels.items()} == {"temp": (-999,), "flow": (-12.5,)}
    scored = open_table(tmp_path / "t.csv", Asked(missing=["flow=-12.5"]))
    assert scored.told()["flow"] == {"missing": [-12.5]}
    assert main(["init", str(tmp_path / "t.csv"), "--missing", "flw=1", "--to", "-"]) == 2
    with pytest.raises(ConfigError, match="'off' is no number"):
        open_table(tmp_path / "t.csv", Asked(missing=["flow=off"]))


# ------------------------------------------------------------------------------------ what is said
def test_zero_is_what_rests_and_is_never_advised_as_missing(tmp_path: Path) -> None:
    xs = [0 if i % 40 in range(3) else x for i, x in enumerate(walk(800))]
    pump = table(tmp_path, "time,flow,press", [
        (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x, y)
        for i, (x, y) in enumerate(zip(xs, walk(800, 5, 3), strict=True))
    ])  # fmt: skip
    assert "--missing" not in said(pump)
    assert min(x.values[0] for x in readings(pump)) == 0


def test_a_mode_is_offered_as_one_and_a_name_as_a_sensor(tmp_path: Path) -> None:
    rows = [
        (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x, ("AUTO", "MANUAL")[i // 50 % 2])
        for i, x in enumerate(walk(400))
    ]
    assert "--mode 'mode'" in said(table(tmp_path, "time,temp,mode", rows))
    assert "--mode 'gear'" in said(table(tmp_path, "time,temp,gear", rows))


@pytest.mark.parametrize("blocks", [False, True])
def test_quantities_in_units_of_their_own_are_one_machine_s_where_nobody_is_named(
    tmp_path: Path, blocks: bool
) -> None:
    units = {"AHU1.SAT": "°C", "AHU1.SAP": "bar"}
    rows = [(f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", path, f"{x[q]} {unit}")
            for i, x in enumerate(zip(walk(300, 21), walk(300, 3, 2), strict=True))
            for q, (path, unit) in enumerate(units.items())]  # fmt: skip
    rows.sort(key=lambda row: row[1] if blocks else row[0])
    made = table(tmp_path, "time,Name Path Reference,Object Value", rows)
    assert made.guess.tag == "Name Path Reference"
    assert made.guess.channels == (("Object Value",) if blocks else tuple(units))
    found = readings(made)
    assert len(found) == 300 * (1 + blocks)
    assert {x.sensor for x in found} == ({f"t/{path}" for path in units} if blocks else {"t"})
    assert "behind the numbers of" in said(made)
    apart = table(
        tmp_path, "time,Name Path Reference,Object Value", rows, channels=["Object Value"]
    )
    assert len(readings(apart)) == 600
    mixed = [(*row[:2], row[2].replace("bar", "kPa") if i % 9 < 4 else row[2])
             for i, row in enumerate(rows)]  # fmt: skip
    if blocks:
        with pytest.raises(ConfigError, match="in several units"):
            table(tmp_path, "time,Name Path Reference,Object Value", mixed)


def test_a_unit_beside_the_values_of_one_machine_says_that_these_are_quantities(
    tmp_path: Path,
) -> None:
    units = {"T": "K", "P": "bar", "n": "1/min"}
    each = zip(walk(300), walk(300, 5), walk(300, 1500), strict=True)
    rows = [(f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", q, x, units[q])
            for i, row in enumerate(each) for q, x in zip(units, row, strict=True)]  # fmt: skip
    made = table(tmp_path, "time,signal,value,unit", rows)
    assert (made.guess.sensor, made.guess.tag, len(readings(made))) == (None, "signal", 300)
    assert made.told() == {name: {"unit": unit} for name, unit in units.items()}
    for unit_of in (lambda i, u: "bar", lambda i, u: "°C" if u == "K" and i > 600 else u):
        changed = [(*row[:3], unit_of(i, row[3])) for i, row in enumerate(rows)]
        assert table(tmp_path, "time,signal,value,unit", changed).guess.sensor == "signal"


def test_what_says_where_a_value_is_from_names_no_machine(tmp_path: Path) -> None:
    each = zip(walk(300), walk(300, 5), strict=True)
    rows = [(f"{BEGUN + timedelta(hours=i):%Y-%m-%d %H:%M}", x, "EB"[i % 7 // 6], y, "BAE"[i % 3])
            for i, (x, y) in enumerate(each)]  # fmt: skip
    made = table(tmp_path, "time,GHI (W/m^2),GHI source,Hgt (m),Hgt source", rows)
    assert (made.guess.sensor, len(made.guess.channels)) == (None, 2)


def test_a_unit_that_changes_within_a_series_is_said(tmp_path: Path) -> None:
    def rows(unit_of: Any) -> list[tuple[object, ...]]:
        return [
            (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", m, x, unit_of(i, m))
            for i, x in enumerate(walk(300)) for m in ("m0", "m1")
        ]  # fmt: skip

    changes = table(tmp_path, "time,machine,value,unit", rows(lambda i, m: "CF"[i > 200]))
    assert "unit: 'unit' changes within a series, between 'C' and 'F'" in said(changes)
    assert (changes.told(), changes.n_missing) == ({}, 0)  # nobody knows which is right
    own = table(tmp_path, "time,machine,value,unit", rows(lambda i, m: "CF"[m == "m1"]))
    assert "changes within" not in said(own)
    steady = table(tmp_path, "time,machine,value,unit", rows(lambda i, m: "C"))
    decoder, position = opened(steady.settings(), steady.told()).decoder, Position("t", 0, 0)
    found = [decoder.decode(Record(position, None, f"2026-03-05,m0,20,{unit}".encode()))
             for unit in ("C", "F", "")]  # fmt: skip
    assert [x.values == (20.0,) for x in found] == [True, False, True]
    assert unit_change(found[1].values[0]) == ("C", "F")
    lacking = decoder.lacking(Record(position, None, b"2026-03-05,m0,68,F"))
    assert "(field 'value') is missing, beside unit = 'F'" in lacking


UNITS = {"temp": "°C", "press": "bar"}
WITH_UNITS = {
    "beside": lambda n, t, u, m: [
        {"t": t, "m": m, **{q: {"value": n[q], "unit": u[q]} for q in u}}
    ],
    "wide": lambda n, t, u, m: [{"t": t, "m": m, **n, **{f"{q}_unit": u[q] for q in u}}],
    "long": lambda n, t, u, m: [{"t": t, "m": m, "tag": q, "v": n[q], "unit": u[q]} for q in u],
    "pairs": lambda n, t, u, m: [
        {"t": t, "m": m, "values": [{"name": q, "value": n[q], "uom": u[q]} for q in u]}
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", WITH_UNITS)
def test_each_quantity_has_its_own_unit_and_another_is_known_by_both(kind: str) -> None:
    def made(units: dict[str, str], at: int = AT) -> list[object]:
        each = zip(walk(300), walk(300, 5), strict=True)
        return [one for i, (x, y) in enumerate(each) for m in ("m0", "m1") for one in
                WITH_UNITS[kind]({"temp": x, "press": y}, at + 1000 * i, units, m)]  # fmt: skip

    # A unit that another quantity has is none of its own.
    feed, found, _ = read(records(made(UNITS)), records(made({**UNITS, "temp": "bar"}, AT + 10**6)))
    assert feed.told() == {name: {"unit": unit} for name, unit in UNITS.items()}
    assert {unit_change(x.values[0]) for x in found} == {("°C", "bar")}
    assert {unit_change(x.values[1]) for x in found} == {None}


def test_another_clock_and_the_hours_of_a_day_are_said(tmp_path: Path) -> None:
    pairs = [
        (f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x,
         f"{BEGUN + timedelta(minutes=i, seconds=7):%Y-%m-%d %H:%M:%S}", y)
        for i, (x, y) in enumerate(zip(walk(300), walk(300, 5), strict=True))
    ]  # fmt: skip
    assert "another clock: 'Time2'" in said(table(tmp_path, "Time1,TIC1,Time2,PIC2", pairs))
    days = [(f"{BEGUN + timedelta(days=i):%Y-%m-%d}", *walk(24, seed=i)) for i in range(200)]
    hours = ",".join(f"h{i:02d}" for i in range(24))
    assert "a row a day: 24 columns, h00 to h23" in said(table(tmp_path, f"Date,{hours}", days))


@pytest.mark.parametrize(("name", "zone_hours"), [
    ("Europe/Amsterdam (+01:00)", 1), ("Time (UTC+2)", 2), ("time (America/New_York)", -5),
    ("time (s)", 0), ("time", 0), ("when,power\nEurope/Amsterdam (+01:00)", 1),
])  # fmt: skip
def test_a_zone_in_the_header_is_used(tmp_path: Path, name: str, zone_hours: int) -> None:
    rows = [(f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x) for i, x in enumerate(walk(200))]
    found = readings(table(tmp_path, f"{name},temp", rows))[0]
    assert found.event_time_ms == round((BEGUN - timedelta(hours=zone_hours)).timestamp() * 1000)


def test_a_status_in_braces_is_a_quality(tmp_path: Path) -> None:
    rows = [
        (
            f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}",
            *(("{ok}", x), ("{fault}", 0))[i % 50 == 7],
        )
        for i, x in enumerate(walk(400))
    ]
    found = table(tmp_path, "Timestamp,Status,Value", rows)
    assert sum(x.values[0] != x.values[0] for x in readings(found)) == 8


def test_a_total_in_json_is_said_once_with_what_to_do() -> None:
    trees = [
        {"ts": 1_700_000_000 + 60 * i, "energy": 5.0 * i, "temp": t}
        for i, t in enumerate(walk(300))
    ]
    (line,) = (line for line in infer_feed(records(trees)).said if "energy" in line)
    assert "--counter 'energy' reads its rise an hour" in line


@pytest.mark.thorough
def test_a_counter_may_be_judged_by_its_rise(tmp_path: Path) -> None:
    chance, total, rows = random.Random(5), 900, []
    for i, x in enumerate(walk(900)):
        total += chance.choice((0, 2, 3)) + 40 * (600 <= i < 615)  # a leak
        rows.append((f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", x, total))
    aside = table(tmp_path, "time,temp,energy", rows)
    assert aside.guess.channels == ("temp",)
    assert "--counter 'energy' reads its rise an hour" in said(aside)
    rising = table(tmp_path, "time,temp,energy", rows, counters=["energy"])
    assert [x.values[1] for x in readings(rising)][600:615] == pytest.approx(
        [60 * (b[2] - a[2]) for a, b in itertools.pairwise(rows[599:615])]
    )
    config = tmp_path / "t.toml"
    assert main(["init", str(tmp_path / "t.csv"), "--counter", "energy", "--to", str(config)]) == 0
    (parsed, problems) = parse_config(config.read_text())
    assert parsed is not None, problems
    assert parsed.reorder_rules() == opened(rising.settings(), rising.told()).rules
    assert main(["score", str(tmp_path / "t.csv"), "--counter", "temps"]) == 2


@pytest.mark.thorough
def test_a_program_that_somebody_gives_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = tmp_path / "t.jsonl", tmp_path / "t.toml"
    file.write_text("".join(
        json.dumps({"ts": AT + 60_000 * i, "raw": [x, y]}) + "\n"
        for i, (x, y) in enumerate(zip(walk(400), walk(400, 5, 2), strict=True))
    ))  # fmt: skip
    program = "{ts, oil: .raw[0], air: .raw[1]}"
    words = [str(file), "--select", program, "--detector", "HBOS"]
    assert main(["init", *words, "--to", str(config)]) == 0
    (parsed, _) = parse_config(config.read_text())
    assert parsed is not None
    assert (parsed.input.select, parsed.input.channels) == (program, ("oil", "air"))
    capsys.readouterr()
    assert main(["score", *words, "--verdicts", str(tmp_path / "scored"), "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["events"] == 400
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["run", str(config)]) == 0
    scored, run = ((tmp_path / name).read_text() for name in ("scored", "t.verdicts.jsonl"))
    brief = ("event_time_ms", "label", "reason", "score")
    assert [[json.loads(v)[k] for k in brief] for v in scored.splitlines()] == [
        [json.loads(v)[k] for k in brief] for v in run.splitlines()
    ]
    assert main(["score", *words, "--out", "-"]) == 2
    assert main(["init", str(file), "--select", "input", "--to", str(config), "--force"]) == 2
    assert "may depend on the record alone" in capsys.readouterr().err


_ADVICE = re.compile(r"--(missing|mode|sensor|counter|channel|carry)[ =]'?([\w.*=-]+)")


def n_scorable(table: Table | Feed) -> int:
    given, states, n = table.settings(), dict[str, SensorFeatures](), 0
    spec = FeatureSpec(
        tuple(given["channels"]), carry_forward_events=table.guess.carry, preset="raw",
        flags=tuple(given.get("flags") or ()),
    )  # fmt: skip
    for one in readings(table):
        with suppress(MissingChannelError):
            states.setdefault(one.sensor, spec.start()).extract(one.event_time_ms, one.values)
            n += 1
    return n


@pytest.mark.thorough
def test_no_advice_leaves_fewer_rows_to_judge(shared_cases: Path, tmp_path: Path) -> None:
    followed = set()
    for path in sorted([*shared_cases.glob("tables/*"), *shared_cases.glob("topics/*")]):
        kind, file = path.parent.name, path
        if kind == "topics":
            file = tmp_path / path.name
            trees = map(json.loads, path.read_text().splitlines())
            values = [tree["value"] if "key" in tree else tree for tree in trees]
            file.write_text("".join(json.dumps(v) + "\n" for v in values if v is not None))
        plain = open_file(file, Asked())
        advice = set(_ADVICE.findall("\n".join(plain.said)))
        before = n_scorable(plain) if advice else 0
        for name, value in advice:
            given: Any = {"carry": 60, "mode": value, "sensor": value}.get(name, [value])
            if value not in {"names", "takes", "or", "says", "reads", "-"}:  # no advice
                role = name if name in {"missing", "mode", "sensor", "carry"} else f"{name}s"
                mended = open_file(file, Asked(**{role: given}))
                first = mended.n_sensors if name == "counter" else 0  # values have no rise yet
                followed.add((kind, name))
                assert n_scorable(mended) >= before - first, (path.name, name, value)
    assert {("tables", name) for name in ("missing", "counter", "mode", "carry")} <= followed
    assert {("topics", name) for name in ("sensor", "counter", "mode", "channel")} <= followed


# -------------------------------------------------------------------------------- clocks of a run
def at(sensor: str, *times_ms: int) -> list[Reading]:
    return [Reading(sensor, sensor, t, (1.0,), Position("t", 0, i)) for i, t in enumerate(times_ms)]


@pytest.mark.parametrize(("times", "kind", "words"), [
    ([AT + 1000, AT - 3 * 3_600_000], "behind", "3 h behind the newest"),
    ([AT + 1000, AT // 1000], "unit", "before 1990"),
    ([AT + 1000, AT + 3 * 86_400_000], "ahead", "ahead of all before"),
])  # fmt: skip
def test_times_are_watched_for_the_whole_run(times: list[int], kind: str, words: str) -> None:
    now = [0.0]
    watch = ClockWatch(lambda: now[0], per_day=True)
    usual = [AT + 1000 * i for i in range(3)]
    assert [*watch.see([*at("a", *usual), *at("b", *usual), *at("c", *usual)])] == []
    (odd,) = watch.see(at("a", *times))
    assert (odd.kind, odd.n) == (kind, 1)
    assert "a: times of 1 event(s)" in odd.said
    assert words in odd.said
    assert ("a review budget per_day earns nothing" in odd.said) == (kind == "behind")
    (again,) = watch.see(at("a", times[1]))
    assert (again.n, again.said) == (1, "")
    now[0] = 3601.0
    (later,) = watch.see(at("a", times[1]))
    assert later.said
    assert [*watch.see(at("b", AT + 5000, AT + 4000))] == [], "a little disorder is none"


@pytest.mark.thorough
def test_a_run_says_when_times_go_back_and_counts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n = 1500
    times = [BEGUN + timedelta(minutes=i) - timedelta(hours=3 * (i >= 1300)) for i in range(n)]
    (tmp_path / "t.csv").write_text("time,temp\n" + "".join(
        f"{t:%Y-%m-%d %H:%M},{x}\n" for t, x in zip(times, walk(n), strict=True)
    ))  # fmt: skip
    config = tmp_path / "t.toml"
    assert main(["init", str(tmp_path / "t.csv"), "--to", str(config), "--detector", "HBOS"]) == 0
    config.write_text(config.read_text().replace("rate = 0.05 }", "rate = 0.05, per_day = 20 }"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["run", str(config)]) == 0
    said = capsys.readouterr().err
    assert "behind the newest and a review budget per_day earns nothing before they pass it" in said


# ------------------------------------------------------------------------------- kinds of tables
N = 120
FINE = {"channels": ("temp",), "n_missing": 0, "later_h": 0, "said": ""}
KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "hhmm": ("Date,HHMM,temp", lambda t, i, x: f"{t:%m/%d/%Y},{int(f'{t:%H%M}')},{x}", {}),
    "day of year": ("Year,DOY,Time,temp", lambda t, i, x: f"{t:%Y,%j},{int(f'{t:%H%M}')},{x}", {}),
    "an hour by its zone": ("DATE,MST,temp", lambda t, i, x:
                            f"{t:%m/%d/%Y},{int(f'{t:%H%M}')},{x}", {"later_h": 7}),
    "parts": ("Year,Month,Day,Time,temp", lambda t, i, x: f"{t:%Y,%m,%d,%H:%M},{x}", {}),
    "Korean": ("일시,temp", lambda t, i, x: f"{t:%Y-%m-%d} {'오전' if t.hour < 12 else '오후'} "
               f"{t:%I:%M:%S},{x}", {}),
    "month first": ("DATE,temp", lambda t, i, x: f"{t:%b-%d-%Y %H:%M},{x}", {}),
    "interval": ("when,temp", lambda t, i, x: f"{t:%Y-%m-%dT%H:%MZ}/{t:%Y-%m-%dT%H:59Z},{x}", {}),
    "from to": ("MTU,temp", lambda t, i, x: f"{t:%d.%m.%Y %H:%M} - {t:%d.%m.%Y} 24:00,{x}", {}),
    "letters": ("Time (EST),temp", lambda t, i, x: f"{t:%Y-%m-%d %H:%M},{x}",
                {"later_h": 5, "said": "time zone: -05:00, of the header"}),
    "one name": ("time temp flow", lambda t, i, x: f"{t:%Y-%m-%d %H:%M:%S} {x} {x + i % 7}",
                 {"channels": ("temp", "flow")}),
    "header alone": ("time,temp,", lambda t, i, x: f"{t:%Y-%m-%d %H:%M},{x}", {}),
    "milliseconds": ("Date,Time,Millisecond,temp", lambda t, i, x:
                     f"{t:%d.%m.%Y,%H:%M:%S},{i * 137 % 1000},{x}", {}),
    "qualities": ("time,temp,Quality,OPCQuality", lambda t, i, x:
                  f"{t:%Y-%m-%d %H:%M},{x},{int(i % 9 < 1)},{192 * (i % 9 > 0)}",
                  {"channels": ("temp", "Quality"), "n_missing": 14, "said": "OPCQuality says"}),
    "kvalitet": ("time,temp,Kvalitet", lambda t, i, x:
                 f"{t:%Y-%m-%d %H:%M},{x},{'G' if i % 9 else 'Y'}", {"n_missing": 14}),
    "substitutes": ("time,temp,temp Status", lambda t, i, x:
                    f"{t:%Y-%m-%d %H:%M},{x},{'gemessen' if i % 9 else 'Ersatzwert'}",
                    {"n_missing": 14}),
    "a code of bits": ("time,temp,temp_status", lambda t, i, x:
                       f"{t:%Y-%m-%d %H:%M},{x},{128 * (i % 9 < 1)}", {"n_missing": 14}),
    "a unit": ("time,temp,unit", lambda t, i, x: f"{t:%Y-%m-%d %H:%M},{x},°C",
               {"said": "unit says in which unit a value is (°C)"}),
    "no name": ("time,,temp", lambda t, i, x: f"{t:%Y-%m-%d %H:%M},{x + i % 7},{x}",
                {"channels": ("column_2", "temp"), "said": "some column has no name"}),
    "two marks": ("time;temp;flow", lambda t, i, x:
                  f"{t:%Y-%m-%d %H:%M};{x};{str(x).replace('.', ',')}",
                  {"said": "flow by another decimal mark"}),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tables_are_read_right_or_what_is_doubtful_is_said(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, row, given = KINDS[kind]
    right = FINE | given
    times = [BEGUN.replace(hour=0) + timedelta(minutes=15 * i) for i in range(N)]
    path = tmp_path / "t.csv"
    lines = [row(t, i, x) for i, (t, x) in enumerate(zip(times, walk(N), strict=True))]
    path.write_text("\n".join([header, *lines]) + "\n")
    found = open_table(path)
    rows = readings(found)
    later_ms = 3_600_000 * right["later_h"]
    assert found.guess.channels == right["channels"]
    assert [r.event_time_ms for r in rows] == [
        round(t.timestamp() * 1000) + later_ms for t in times
    ]
    assert sum(r.values[0] != r.values[0] for r in rows) == right["n_missing"]
    assert right["said"] in said(found)
    config = tmp_path / "t.toml"
    assert main(["init", str(path), "--to", str(config), "--detector", "HBOS"]) == 0
    assert parse_config(config.read_text())[0] is not None


@pytest.mark.parametrize(("name", "text", "words"), [
    ("t.csv", "time," + ",".join(f"2025-05-05 {i:02}:00" for i in range(24)) + "\n"
     + "temp," + ",".join(map(str, walk(24))) + "\nflow," + ",".join(map(str, walk(24))) + "\n",
     "stand in the first row"),
    ("t.jsonl", "", "or JSON"), ("u.jsonl", "[\n", "holds [ and no more: it was cut off"),
    ("t.json", json.dumps({"data": [{"time": AT, "temp": 1.5}] * 9}, indent=1), "several lines"),
    ("t.csv", "Date/Time,temp\n" + " 07/21  01:15:00,5.5\n" * 9, "without a year"),
    ("t.txt", "boiler,machine=m0 temp=21.3,press=4.1 1746403200000000000\n" * 9, "line protocol"),
])  # fmt: skip
def test_what_is_no_table_is_named_with_the_next_step(
    name: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    for command in "init", "score":
        assert main([command, str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("tree", [
    {"latitude": 52.5, "hourly": {"time": [AT + i for i in range(N)], "temp": walk(N)}},
    [[{"entity": "temp", "state": str(x), "when": AT + i} for i, x in enumerate(walk(N))]] * 2,
])  # fmt: skip
def test_a_document_of_one_line_is_read(tree: Any, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(tree))
    feed = open_file(tmp_path / "t.json", Asked())
    assert feed.n_rows in {1, 2}
    assert feed.guess.channels in {("temp",), ("state",)}


def test_calls_in_arrays_are_read_a_line_each(tmp_path: Path) -> None:
    calls = [[2, f"{i}", "Values", {"when": AT + i, "temp": x}] for i, x in enumerate(walk(N))]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, calls)))
    feed = open_file(tmp_path / "t.jsonl", Asked())
    assert isinstance(feed, Feed)
    assert (feed.n_rows, feed.select, list(feed.channels)) == (N, ".[3] | objects", ["temp"])


def test_a_tag_that_is_no_number_is_named(tmp_path: Path) -> None:
    rows = [(AT + i, m, tag, value) for i, x in enumerate(walk(N)) for m in "ab"
            for tag, value in (("temp", x), ("flow", x + i % 3), ("state", "AUTO"))]  # fmt: skip
    assert "not read: 'state'" in said(table(tmp_path, "ts,machine,tag,value", rows))


def test_parts_of_a_day_beside_a_day_are_said(tmp_path: Path) -> None:
    rows = [(45782 + i // 96, i % 96 / 96, x) for i, x in enumerate(walk(N))]
    assert "'Time' is from 0 to 1, as parts of a day" in said(table(tmp_path, "Date,Time,x", rows))


def test_a_rise_that_says_nothing_is_not_offered(tmp_path: Path) -> None:
    rows = [(f"{BEGUN + timedelta(minutes=i):%Y-%m-%d %H:%M}", 7 * i, i * i, x)
            for i, x in enumerate(walk(N))]  # fmt: skip
    found = said(table(tmp_path, "time,at,sum,x", rows))
    assert "--counter 'sum'" in found
    assert "--counter 'at'" not in found


# --------------------------------------------------------------------------------- kinds of JSON
def many(make: Any, *things: Any) -> list[Any]:
    return [make(m, i, *each) for i in range(N) for m in range(3) for each in things or ((),)]


TWO = (("temp", 1), ("flow", 3))
JSON_KINDS: dict[str, tuple[list[Any], int]] = {  # what the machines send; values of temp missing
    "status code in an object": (many(lambda m, i: {"ts": AT + 60_000 * i, "plc": f"m{m}", **{
        n: {"Value": k + i % 7 / 10, "StatusCode": {"Code": 2**31 * (i % 9 == 0)}} for n, k in TWO
    }}), 14),
    "qc of Siemens": (many(lambda m, i: {"plc": f"m{m}", "vals": [
        {"id": n, "qc": 3 * (i % 9 > 0), "ts": AT + 60_000 * i, "val": k + i % 7 / 10}
        for n, k in TWO]}), 14),
    "units and ids": (many(lambda m, i: {
        "source": {"id": f"100{m}"}, "id": f"9{m}{i:05}", "time": AT + 60_000 * i, "M": {
            n: {"value": k + i % 7 / 10, "unit": "bar"} for n, k in TWO}}), 0),
    "bad values of one tag": (many(lambda m, i, n, k: {
        "ts": AT + 60_000 * i, "asset": f"m{m}", "property": n, "value": k + i % 7 / 10,
        "quality": "GOOD" if i % 9 else "BAD"}, *TWO), 14),
    "a batch a tag": ([
        {"metric": n, "host": f"m{m}",
         "points": [[AT // 1000 + 60 * (i + k), v + (i + k) % 7 / 10] for k in range(4)]}
        for i in range(0, N + 4, 4) for m in range(3) for n, v in TWO], 0),
    "nothing good": (many(lambda m, i, n, k: {"timestamp": AT + 60_000 * i, "values": [
        {"id": f"Ch1.m{m}.{n}", "v": k + i % 7 / 10, "q": i % 9 > 0}]}, *TWO), 14),
    "objects of BACnet": (many(lambda m, i: {"deviceInstance": 100 + m, "time": AT + 60_000 * i,
        "objects": {n: {"presentValue": k + i % 7 / 10} for n, k in TWO}}), 0),
    "slaves": (many(lambda m, i, n, k: {"ts": AT + 60_000 * i, "slave": m + 1, "address": 100 + k,
        "value": k + i % 7 / 10}, *TWO), 0),
    "one marked type": (many(lambda m, i: {"at": {"$date": "2026-03-04T01:00:00Z"}, "ts":
        AT + 60_000 * i, "dev": f"m{m}", "temp": {"$numberDouble": f"{1 + i % 7 / 10}"},
        "flow": 3 + i % 7 / 10}), 0),
    "a code that nobody knows": (many(lambda m, i: {"ts": AT + 60_000 * i, "dev": f"m{m}",
        "temp": 1 + i % 7 / 10, "flow": 3 + i % 7 / 10, "qf": (0, 2, 5, 7)[i % 4]}), 0),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("kind", JSON_KINDS)
def test_kinds_of_records_are_read_right(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, n_missing = JSON_KINDS[kind]
    feed, made, _ = read(records(trees))
    by_machine: dict[str, list[Reading]] = {}
    for one in made:
        by_machine.setdefault(one.sensor, []).append(one)
    assert len(by_machine) == 3
    assert len(feed.channels) == 2
    assert {"temp", "flow"} == {*feed.channels} or kind in {"slaves", "units and ids"}
    rows = next(iter(by_machine.values()))[:N]
    assert [r.event_time_ms for r in rows] == [AT + 60_000 * i for i in range(N)]
    i = 0 if min(rows[1].values) == rows[1].values[0] else 1
    values = [r.values[i] for r in rows]
    good = [round(1 + k % 7 / 10, 1) if not n_missing or k % 9 else None for k in range(N)]
    assert [None if x != x else round(x, 1) for x in values] == good  # noqa: PLR0124
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, trees)))
    assert main(["score", str(tmp_path / "t.jsonl"), "--detector", "HBOS"]) == 0
