"""Tables as plants export them: read, said, judged, and read again by the config that was saved."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import math
import os
import random
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import engine_spec
from rejex_stream.encode import decode_verdict
from rejex_stream.errors import ConfigError, RejexError
from rejex_stream.plan.suggest import suggest
from rejex_stream.tables.draft import opened
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import open_table
from tests.program import command, ended

BEGUN = datetime(2024, 1, 6, tzinfo=UTC)
N = 1200


def level(i):
    """A number that varies, with spikes; the same every time."""
    return (900.0 if i % 173 == 172 else 0.0) + 1500 + 40 * math.sin(i / 7) + i * 7919 % 101 / 10


def when(i, minutes=15):
    return BEGUN + timedelta(minutes=minutes * i)


def comma(number):
    return number.translate(str.maketrans(",.", ".,"))


def german():
    rows = ["Zeitstempel;Messstelle;Füllstand;Druck;Bemerkung;"]
    for i in range(N):
        values = f"{comma(f'{level(i):,.2f}')};{comma(f'{i * 31 % 17 / 10:.1f}')}"
        rows += [f"{when(i):%d.%m.%Y %H:%M};Becken {k};{values};;" for k in "AB"]
    return "\r\n".join([*rows, ""]).encode("latin-1")


def american():
    rows = ["Date/Time,Sensor ID,Flow Rate,Status"]
    for i in range(N):
        at = when(i)
        hour = at.hour % 12 or 12
        text = f"{at.month}/{at.day}/{at.year} {hour}:{at.minute:02d} {at:%p}"
        rows += [f'{text},P-{k},"{level(i + k):,.1f}",OK' for k in (1, 2)]
    return "\n".join([*rows, ""]).encode()


def utf16():
    rows = ["Timestamp\tTemp\tVibration"]
    rows += [f"{when(i):%Y/%m/%d %H:%M:%S}\t{level(i):.3f}\t{i * 31 % 17}" for i in range(N)]
    return "\r\n".join([*rows, ""]).encode("utf-16")


def headerless():
    rows = [f"{int(when(i).timestamp())},{level(i):.3f},{i * 31 % 17}" for i in range(N)]
    return "\n".join([*rows, ""]).encode()


def long_layout():
    rows = ["time,asset,parameter,reading"]
    for i in range(N):
        at = f"{when(i):%Y-%m-%dT%H:%M:%SZ}"
        for asset in "XY":
            rows += [f"{at},{asset},temp,{level(i) / 20:.2f}", f"{at},{asset},speed,{level(i + 9)}"]
    return "\n".join([*rows, ""]).encode()


def offsets():
    rows = ["when;level"]
    for i in range(N):
        local = when(i) + timedelta(hours=2)
        rows.append(f"{local:%Y-%m-%dT%H:%M:%S}+02:00;{level(i):.2f}")
    return "\n".join([*rows, ""]).encode()


def excel():
    rows = ["Datum;Pumpe;Wert"]
    rows += [f"{when(i):%d.%m.%Y %H:%M:%S};7;{comma(f'{level(i):.2f}')}" for i in range(N)]
    return b"\xef\xbb\xbf" + "\r\n".join([*rows, ";;", ";;", ";;", ""]).encode()


def spaced():
    rows = ["ts|a|b"]
    for i in range(N):
        value = f"{level(i) * 10:,.1f}".replace(",", "\u202f").replace(".", ",")
        rows.append(f"{int(when(i).timestamp() * 1000)}|{value}|{i * 31 % 17}")
    return "\n".join([*rows, ""]).encode()


def swiss():
    rows = ["Datum;Zähler;Wert;Druck"]
    for i in range(N):
        value = f"{level(i):,.2f}".replace(",", "'")
        rows += [f"{when(i):%d.%m.%Y %H:%M:%S};Z{k};{value};{i * 31 % 17}" for k in (1, 2)]
    return "\n".join([*rows, ""]).encode()


def french():
    rows = ["Horodatage;Débit (m³/h);Pression"]
    for i in range(N):
        value = f"{level(i):,.2f}".translate(str.maketrans(",.", "\xa0,"))
        rows.append(f"{when(i):%d/%m/%Y %H:%M};{value};{i * 31 % 17}")
    return "\r\n".join([*rows, ""]).encode("cp1252")


def titled():
    rows = ["sep=;", "# logger 7, serial 123", "", "time;flow;pressure"]
    rows += [f"{when(i).isoformat()};{level(i):.2f};{i * 31 % 17}" for i in range(N)]
    return "\n".join([*rows, ""]).encode()


def statistics():
    rows = ["obs\tt\tflow"]
    rows += [f"{i}\t{when(i):%d%b%Y %H:%M:%S}\t{level(i):.6e}" for i in range(N)]
    return gzip.compress("\n".join([*rows, ""]).encode())


def workbook():
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Daten"
    for row in (["Plant report"], [], ["Zeit", "Pumpe", "Fluss", "Druck", "Läuft", "Notiz"]):
        sheet.append(row)
    for i in range(N):
        at, odd = when(i).replace(tzinfo=None), {5: "#N/A", 7: None}
        values = [at, level(i), odd.get(i, i * 31 % 17 / 10), i % 3 == 0]
        sheet.append([at, "P-1", *values[1:], None if i % 50 else 'a "note",\nof two lines'])
    sheet.cell(N + 40, 9).font = openpyxl.styles.Font(bold=True)  # formatted, and empty
    book.create_sheet("Zweites")
    book.save(file := io.BytesIO())
    return file.getvalue()


def parquet():
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "ts": pa.array([when(i) for i in range(N)], pa.timestamp("ns", "UTC")),
        "pump": pa.array(["a"] * N).dictionary_encode(),
        "flow": pa.array([level(i) for i in range(N)], pa.float32()),
        "bar": pa.array([None if i == 7 else i * 31 % 17 for i in range(N)], pa.int16()),
    }
    pq.write_table(pa.table(columns), file := io.BytesIO())
    return file.getvalue()


def clocked():
    rows = ["Datum;Uhrzeit;Menge;Druck"]  # the rows end with a delimiter, the header does not
    for i in range(N):
        value = "---" if i % 40 == 7 else comma(f"{level(i):,.2f}")
        rows.append(f"{when(i):%d.%m.%Y};{when(i):%H:%M};{value};{i * 31 % 17};")
    return "\r\n".join([*rows, f"Summe;;{comma('1,800,000.00')};;", ""]).encode("cp1252")


def units():
    rows = ["Time, Flow, Pressure", '"s", "m3/h", "bar"']
    rows += [f'{when(i).isoformat()}, "{level(i):,.1f}", "{i * 31 % 17}"' for i in range(N)]
    return "\n".join([*rows, ""]).encode()


def grouped():
    rows = ["Report of January", ",Pump 1,,Pump 2,", "Time,Flow,Bar,Flow,Bar"]
    for i in range(N):
        values = f"{level(i):.1f},{i * 31 % 17},{level(i + 9):.1f},{i * 37 % 19}"
        rows.append(f'"{when(i):%B %d, %Y %I:%M:%S %p}",{values}')
    return "\n".join([*rows, ""]).encode()


def calendar():
    rows = ["No,year,month,day,hour,minute,pm2.5,wind"]
    for i in range(N):
        at = when(i)
        rows.append(f"{i},{at.year},{at.month},{at.day},{at.hour},{at.minute},{level(i):.0f},NW")
    return "\n".join([*rows, ""]).encode()


def blanks():
    rows = ["date        time       flow  flow"]
    rows += [f"{when(i):%Y-%m-%d  %H:%M:%S}  {level(i):9.2f}  {i * 31 % 17:4d}" for i in range(N)]
    return "\n".join([*rows, ""]).encode()


def microseconds():
    rows = ["ts;asset;temp;" + ";".join(f"S{k:02d}" for k in range(40))]
    for i in range(N):
        wide = ";".join(f"{level(i + 11 * k):.1f}" for k in range(40))
        rows.append(f"{when(i).timestamp() * 1e6:.1f};A;{level(i) / 20:.2f};{wide}")
    return "\n".join([*rows, ""]).encode()


def mixed_offsets():
    rows = ["time,level"]
    for i in range(N):
        local = when(i).astimezone(ZoneInfo("America/New_York") if i % 2 else UTC)
        rows.append(f"{local.isoformat(sep=' ')},{level(i):.1f}")
    return "\n".join([*rows, ""]).encode()


def two_cells():
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (["", "Pump 1", "", "Pump 2"], ["Datum", "Zeit", "Fluss", "Fluss"]):
        sheet.append(row)
    for i in range(N):
        at = when(i).replace(tzinfo=None)
        day = at.replace(hour=0, minute=0)
        sheet.append([day, at.time(), level(i), None if i < 3 else i * 31 % 17])
    book.save(file := io.BytesIO())
    return file.getvalue()


TABLES = {
    "clocked.csv": (
        clocked, {"time": ["Datum", "Uhrzeit"], "channels": ["Menge", "Druck"], "missing": ["---"]},
        [
            "the time is made of 'Datum' and 'Uhrzeit'; --time says otherwise",
            "'---' is taken for no value; --missing says",
            "unreadable: 1 of 1,201 rows, which are not judged; the first is row 1,201: time: ",
            "Menge has no value in 30 of 1,201 rows",
        ],
        N,
    ),
    "units.csv": (
        units, {"time": "Time", "channels": ["Flow", "Pressure"]},
        ["header: two rows, read as 'Time', 'Flow', 'Pressure'; --header takes the first alone"], N,
    ),
    "grouped.csv": (
        grouped,
        {"time": "Time", "channels": ["Pump 1 Flow", "Pump 1 Bar", "Pump 2 Flow", "Pump 2 Bar"]},
        ["above the table: 1 rows, from", "header: two rows", "%B %d, %Y %I:%M:%S %p"], N,
    ),
    "calendar.csv": (
        calendar, {"time": ["year", "month", "day", "hour", "minute"], "channels": ["pm2.5"]},
        ["time format: %Y %m %d %H %M", "the time is made of 'year' and 'month'"], N,
    ),
    "blanks.txt": (
        blanks, {"time": ["date", "time"], "channels": ["flow", "flow (2)"]},
        ["delimiter: ' '", "header: some column has no name, or that of another; they are read as"],
        N,
    ),
    "microseconds.csv": (
        microseconds,
        {"time": "ts", "sensor": "asset", "channels": ["temp", *(f"S{k:02d}" for k in range(40))]},
        ["delimiter: ';'"], N,
    ),
    "mixed-offsets.csv": (mixed_offsets, {"time": "time", "channels": ["level"]}, [], N),
    "two-cells.xlsx": (
        two_cells, {"time": ["Datum", "Zeit"], "channels": ["Pump 1 Fluss", "Pump 2 Fluss"]},
        ["header: two rows", "Pump 2 Fluss has no value in 3 of 1,200 rows"], N,
    ),
    "swiss.csv": (
        swiss, {"time": "Datum", "sensor": "Zähler", "channels": ["Wert", "Druck"]},
        ['thousands "\'"', "%d.%m.%Y %H:%M:%S"], 2 * N,
    ),
    "french.csv": (
        french, {"time": "Horodatage", "sensor": None, "channels": ["Débit (m³/h)", "Pression"]},
        ["encoding: cp1252", "decimal mark ','", "thousands ' '", "%d/%m/%Y %H:%M"], N,
    ),
    "titled.csv": (
        titled, {"time": "time", "sensor": None, "channels": ["flow", "pressure"]},
        ["above the table: 2 rows, from 'sep=;'; --skip-rows says how many"], N,
    ),
    "statistics.tsv.gz": (
        statistics, {"time": "t", "sensor": None, "channels": ["flow"]}, ["%d%b%Y %H:%M:%S"], N,
    ),
    "plant.xlsx": (
        workbook, {"time": "Zeit", "sensor": "Pumpe", "channels": ["Fluss", "Druck", "Läuft"]},
        [
            "sheet: 'Daten', the first of 2", "above the table: 2 rows, from 'Plant report'",
            "flags: Läuft", "Druck has no value in 2 of 1,200 rows",
        ],
        N,
    ),
    "historian.bin": (
        parquet, {"time": "ts", "sensor": "pump", "channels": ["flow", "bar"]},
        ["bar has no value in 1 of 1,200 rows"], N,
    ),
    "german.csv": (
        german, {"time": "Zeitstempel", "sensor": "Messstelle", "channels": ["Füllstand", "Druck"]},
        ["encoding: cp1252", "delimiter: ';'", "decimal mark ','", "%d.%m.%Y %H:%M", "UTC"], 2 * N,
    ),
    "american.csv": (
        american, {"time": "Date/Time", "sensor": "Sensor ID", "channels": ["Flow Rate"]},
        ["thousands ','", "%m/%d/%Y %I:%M %p", "time zone: none"], 2 * N,
    ),
    "utf16.txt": (
        utf16, {"time": "Timestamp", "sensor": None, "channels": ["Temp", "Vibration"]},
        ["delimiter: '\\t'", "%Y/%m/%d %H:%M:%S"], N,
    ),
    "headerless.csv": (
        headerless, {"time": "column_1", "sensor": None, "channels": ["column_2", "column_3"]},
        ["header: none, the first row is data"], N,
    ),
    "long.csv": (
        long_layout,
        {"time": "time", "sensor": "asset", "tag": "parameter", "channels": ["temp", "speed"]},
        ["joined: rows of one value each, named by parameter, become rows with temp, speed"], 2 * N,
    ),
    "offsets.csv": (
        offsets, {"time": "when", "sensor": None, "channels": ["level"]}, ["delimiter: ';'"], N,
    ),
    "excel.csv": (
        excel, {"time": "Datum", "sensor": "Pumpe", "channels": ["Wert"]},
        ["empty rows: 3 hold only delimiters", "%d.%m.%Y %H:%M:%S"], N,
    ),
    "spaced.psv": (
        spaced, {"time": "ts", "sensor": None, "channels": ["a", "b"]},
        ["thousands ' '", "delimiter: '|'"], N,
    ),
}  # fmt: skip


def judged(verdict):
    """Everything of a verdict that a run has to repeat."""
    v = verdict
    return v.position, v.sensor, v.event_time_ms, v.label, v.reason, v.score, v.rank


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_table_of_any_dialect_is_scored_and_its_config_runs_to_the_same(
    name, tmp_path, capsys, monkeypatch
):
    make, meant, said, n = TABLES[name]
    path, saved, out = tmp_path / name, tmp_path / "my plant.toml", tmp_path / "scored.csv"
    path.write_bytes(make())
    verdicts = tmp_path / "score.jsonl"
    words = ["score", str(path), "--detector", "HBOS", "--output", "json"]
    words += ["--verdicts", str(verdicts), "--save-config", str(saved), "--out", str(out)]
    assert main(words) == 0
    shown, err = capsys.readouterr()
    found = json.loads(shown)
    guess = found["guess"]
    assert {key: guess[key] for key in meant} == meant
    for words in said:
        assert words in err, err
    assert found["measured"]["events"] - found["measured"]["invalid"] == n
    scored = [decode_verdict(line) for line in verdicts.read_bytes().splitlines()]
    assert scored[0].event_time_ms == BEGUN.timestamp() * 1000
    assert max(v.event_time_ms for v in scored) == when(N - 1).timestamp() * 1000
    wild = [v for v in scored if v.rank is not None and v.rank == v.window_len]
    assert wild

    # What was saved is valid, and a run of it says the same of every row.
    assert main(["validate", str(saved)]) == 0
    config = load_config(saved)
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(saved)]) == 0
    again = [decode_verdict(v) for v in Path(config.output.verdicts).read_bytes().splitlines()]
    assert [judged(verdict) for verdict in again] == [judged(verdict) for verdict in scored]

    # The table comes back with its own columns, and a verdict in every row.
    capsys.readouterr()
    table = open_table(path)
    parted = "," if table.delimiter == " " else table.delimiter
    text = io.StringIO(out.read_text("utf-8"))
    rows = list(csv.reader(text, delimiter=parted, skipinitialspace=True))
    assert rows[0] == [*table.header, "label", "severity", "rank", "reason"]
    assert len(rows) - 1 == table.n_rows
    assert [row[-4] for row in rows[1:] if row[-4]] == [str(v.label) for v in scored]
    assert [row[:-4] for row in rows[1:]] == [
        table.cells(r) for r in opened(table.settings(), table.told()).records
    ]


def test_the_saved_config_decides_as_score_does(tmp_path, capsys):
    path, saved = tmp_path / "t.csv", tmp_path / "t.toml"
    path.write_bytes(offsets())
    assert main(["score", str(path), "--detector", "HBOS", "--save-config", str(saved)]) == 0
    table = open_table(path)
    spec = suggest(table.n_rows, 1, table.guess.channels, detector="HBOS").spec
    found = engine_spec(load_config(saved))
    for part in ("features", "policy", "window", "schedule", "seed"):
        assert getattr(found, part) == getattr(spec, part), part
    assert "delimiter: ';'" in saved.read_text()


# ---------------------------------------------------------------------- whose row is it?
def mixed(column, names):
    rows = [f"time,{column},flow"]
    rows += [f"{when(i).isoformat()},{name},{level(i)}" for i in range(400) for name in names]
    return "\n".join(rows)


@pytest.mark.parametrize("column", ["Sensor ID", "Messstelle", "Pumpe", "whatever", "Asset-Name"])
def test_two_sensors_are_never_merged(tmp_path, column):
    path = tmp_path / "t.csv"
    path.write_text(mixed(column, ["north", "south"]))
    table = open_table(path)
    assert (table.guess.sensor, table.n_sensors) == (column, 2)


def test_series_that_lie_behind_each_other_are_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    rows = ["time,place,flow"]
    for i in range(400):  # not in lockstep: each has times of its own
        at = (when(i - 3 * (i % 2)) + timedelta(minutes=i % 2)).isoformat()
        rows.append(f"{at},{'north' if i % 2 else 'south'},{level(i)}")
    path.write_text("\n".join(rows))
    with pytest.raises(ConfigError, match="give --sensor, one of place; or --sensor -"):
        open_table(path)
    assert open_table(path, Asked(sensor="place")).n_sensors == 2
    assert open_table(path, Asked(sensor="-")).guess.sensor is None


def test_a_column_of_texts_that_come_back_is_left_out_aloud(tmp_path):
    path = tmp_path / "t.csv"
    rows = [
        "time,mode,flow",
        *(f"{when(i)},{'heat' if i % 3 else 'cool'},{level(i)}" for i in range(400)),
    ]
    path.write_text("\n".join(rows))
    table = open_table(path)
    assert table.guess.sensor is None
    assert "mode holds 2 texts that come back and is left out" in "\n".join(table.said)


# -------------------------------------------------------------------- what is odd is said
def test_duplicates_disorder_gaps_and_missing_values_are_counted(tmp_path):
    lines = [f"{when(i):%Y-%m-%dT%H:%M:%SZ},{level(i)},{i % 7},5" for i in range(600)]
    lines[100] = lines[99]
    lines[200], lines[201] = lines[201], lines[200]
    del lines[300:340]
    lines[400] = lines[400].replace(lines[400].split(",")[1], "")
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["time,flow,step,same", *lines]))
    table = open_table(path)
    said = "\n".join(table.said)
    assert "duplicates: 1 rows" in said
    assert "disorder: 1 rows" in said
    assert "newest" not in said
    assert "gaps: 1, steps of more than 5 times the usual 900 s; the longest 36900 s" in said
    assert "missing: flow has no value in 1 of 560 rows" in said
    assert table.guess.aside == {"same": "never changes"}


def test_summer_time_is_said_aloud(tmp_path):
    begun = datetime(2024, 10, 26)
    lines = [
        f"{begun + timedelta(minutes=15 * i):%d.%m.%Y %H:%M};{level(i):.1f}" for i in range(400)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["Datum;Wert", *lines]))
    said = "\n".join(open_table(path, Asked(time_zone="Europe/Berlin")).said)
    assert "summer time: 4 rows are in the hour that comes twice" in said
    assert "time zone" not in said


def test_months_for_days_are_parts_of_by_the_order_or_doubted(tmp_path):
    path = tmp_path / "t.csv"
    days = [datetime(2024, 1, 1) + timedelta(hours=i) for i in range(24 * 12)]
    rows = [f"{day:%d/%m/%Y %H:%M},{level(day.hour)}" for day in days]
    path.write_text("\n".join(["date,v", *rows]))
    assert open_table(path).guess.time_format == "%d/%m/%Y %H:%M"
    path.write_text("\n".join(["date,v", *rows[:20]]))
    table = open_table(path)
    assert table.guess.time_format == "%m/%d/%Y %H:%M"
    assert "give --time-format '%d/%m/%Y %H:%M'" in "\n".join(table.said)


@pytest.mark.thorough
def test_a_day_alone_is_taken_where_somebody_says_so(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(clocked())
    table = open_table(path, Asked(time=("Datum",)))
    assert (table.guess.time, table.guess.time_format) == ("Datum", "%d.%m.%Y")
    said = "\n".join(open_table(path, Asked(time=("Datum", "Uhrzeit"), missing=["-"])).said)
    assert "the time is made of" not in said
    assert "unreadable: 31 of 1,201 rows" in said
    assert "got '---'" in said


def test_a_table_with_the_newest_row_first_is_said_to_be(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{when(i).isoformat()},{level(i)}\n" for i in range(99, 0, -1)]
    path.write_text("time,v\n" + "".join(rows))
    assert "the newest seems to be first: turn the table round" in "\n".join(open_table(path).said)


@pytest.mark.parametrize(("content", "said"), [
    (b"PK\x03\x04rest", "is a zip that cannot be read"),
    (b"\xd0\xcf\x11\xe0rest", "an old Excel workbook (.xls): save it as .xlsx or CSV"),
    (b"PAR1rest", "t.csv cannot be read: "), (b'{"a": 1}\n', "holds JSON"),
    (b"t;x\n1;wet\n2;dry\n3;wet\n", "--delimiter, --decimal, --thousands and --encoding"),
])  # fmt: skip
def test_what_is_no_table_is_said_with_the_mend(tmp_path, content, said):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(RejexError, match=re.escape(said)):
        open_table(path)


# ----------------------------------------------------------------------------- the answer
@pytest.mark.thorough
def test_score_says_which_rows_when_and_which_channels(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_bytes(utf16())
    words = ["score", str(path), "--detector", "KNN"]
    assert main([*words, "--output", "json"]) == 0
    shown, err = capsys.readouterr()
    assert f"{N:,} rows judged in" in err
    spike = 3 * 173  # the rows are counted from 1
    episodes = json.loads(shown)["episodes"]
    (found,) = [e for e in episodes if e["first_row"] <= spike <= e["last_row"]]
    assert found["severity"] > 1.5
    assert found["channels"]["Temp"]
    assert main(words) == 0
    out, _ = capsys.readouterr()
    assert "Episodes: " in out
    line = next(line for line in out.splitlines() if f"{found['first_row']:,}" in line[40:])
    assert f"{when(found['first_row'] - 1):%Y-%m-%d %H:%M:%S}" in line
    assert "Temp" in line


@pytest.mark.thorough
def test_a_fault_is_seen_while_another_channel_is_missing_and_so_is_that(tmp_path, capsys):
    chance, rows = random.Random(2), ["time,temp,vib,flow"]
    for i in range(4000):
        temp = chance.gauss(60, 1) + 8 * (3300 <= i < 3330)
        vib = "" if 3000 <= i < 3400 else f"{chance.gauss(2, 0.1):.3f}"
        rows.append(f"{1_700_000_000 + 10 * i},{temp:.2f},{vib},{chance.gauss(100, 3):.1f}")
    (tmp_path / "plant.csv").write_text("\n".join(rows))
    assert main(["score", str(tmp_path / "plant.csv"), "--output", "json"]) == 0
    worst = json.loads(capsys.readouterr()[0])["incidents"][0]
    assert 3000 < worst["first_row"] <= 3011
    assert 3400 <= worst["last_row"] < 3460  # with its recovery
    assert worst["severity"] > 50, "the fault's own"
    assert worst["channels"]["vib (no value)"] == 390
    assert worst["channels"]["temp"] >= 30


@pytest.mark.thorough
def test_standard_input_to_standard_output(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(american())
    words = command("score", "-", "--detector", "HBOS", "--out", "-")
    result = ended(words, input=path.read_bytes(), text=False)
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout.decode())))
    assert len(rows) == 2 * N
    assert list(rows[0]) == [
        "Date/Time", "Sensor ID", "Flow Rate", "Status", "label", "severity", "rank", "reason",
    ]  # fmt: skip
    assert b"Episodes" in result.stderr


def test_quantities_never_share_a_model(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\n".join(long_layout().splitlines()[:401]))
    assert main(["score", str(path), "--detector", "HBOS", "--channel", "reading"]) == 2
    assert "different quantities cannot share one" in capsys.readouterr().err


@pytest.mark.thorough
def test_an_incident_reads_what_departed_most_and_no_echo_after_the_repair(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    table = Path(__file__).parent.parent / "examples" / "readings.csv"
    assert main(["score", str(table)]) == 0
    shown = capsys.readouterr().out
    # The leak; at its highest score, 45 minutes after its end, the flow read as at any such hour.
    assert "pressure 4.510, expected" in shown


def test_a_pipe_is_read_once(tmp_path, capsys):
    path, pipe = tmp_path / "t.csv", tmp_path / "pipe"
    path.write_bytes(offsets())
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", str(path), str(pipe)]):
        assert main(["score", str(pipe), "--detector", "HBOS", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["events"] == N


def test_a_row_that_cannot_be_read_stays_in_the_scored_table(tmp_path, capsys):
    lines = offsets().decode().splitlines()
    lines[500] = "nonsense"
    lines[0] = "when;label"
    path, out = tmp_path / "t.csv", tmp_path / "o.csv"
    path.write_text("\n".join(lines))
    words = ["score", str(path), "--detector", "HBOS", "--out", str(out), "--channel", "label"]
    assert main(words) == 0
    rows = list(csv.reader(out.read_text().splitlines(), delimiter=";"))
    assert rows[0] == ["when", "label", "rejex_label", "severity", "rank", "reason"]
    assert rows[500] == ["nonsense", "", "", "", "", "expected 2 cells as in the header, got 1"]


@pytest.mark.thorough
def test_several_columns_make_the_key_aloud_and_the_saved_config_runs_to_the_same(
    tmp_path, capsys, monkeypatch
):
    rows = ["time,plant,unit,flow"]
    rows += [
        f"{when(i).isoformat()},{plant},{unit},{level(i + 7 * k)}"
        for i in range(400)
        for k, (plant, unit) in enumerate(itertools.product("NS", "12"))
    ]
    path = tmp_path / "plants.csv"
    path.write_text("\n".join([*rows, ""]))
    monkeypatch.chdir(tmp_path)
    words = ["--sensor", "plant", "--sensor", "unit", "--detector", "GaussianScorer"]
    out = ["--save-config", "saved.toml", "--verdicts", "scored.jsonl"]
    assert main(["score", str(path), *words, *out]) == 0
    assert "sensor: plant and unit together, 4 named 'N/1', 'N/2', 'S/1', …" in (
        capsys.readouterr().err
    )
    assert load_config("saved.toml").input.sensor == ("plant", "unit")
    assert main(["run", "saved.toml"]) == 0
    scored, ran = (
        [decode_verdict(line) for line in Path(name).read_bytes().splitlines()]
        for name in ("scored.jsonl", "saved.verdicts.jsonl")
    )
    assert {verdict.sensor for verdict in scored} == {"N/1", "N/2", "S/1", "S/2"}
    assert [(v.sensor, v.label, v.rank) for v in scored] == [
        (v.sensor, v.label, v.rank) for v in ran
    ]
    assert main(["score", str(path), "--sensor", "plant", "--sensor", "-"]) == 2
    assert "there is no column '-'" in capsys.readouterr().err
    feed = tmp_path / "feed.jsonl"
    feed.write_text('{"t": 1700000000000, "plant": "N", "unit": "1", "flow": 1.5}\n' * 30)
    assert main(["init", str(feed), "--sensor", "plant", "--sensor", "unit"]) == 2
    assert 'input.sensor = ["plant", "unit"]' in capsys.readouterr().err


def flagged(path, columns, *, blank=False):
    """Write a table of two channels, 0 where the column beside one says that it is not good."""
    bad_temp, good_temp, bad_flow, good_flow = ("Bad", "Good", "0", "192")
    rows = [",".join(columns)]
    for i in range(900):
        wrong, off = i % 97 == 5, i % 61 == 7
        temp = "" if wrong and blank else 0.0 if wrong else level(i)
        flow = "" if off and blank else 0.0 if off else level(i + 9)
        cells = {
            "time": when(i).isoformat(), "temp": temp, "flow": flow,
            "temp_q": bad_temp if wrong else good_temp, "flow_q": bad_flow if off else good_flow,
            "Quality": bad_temp if wrong else good_temp,
            **dict.fromkeys(("temp_status", "status"), "FAULT" if wrong else "OK"),
        }  # fmt: skip
        rows.append(",".join(str(cells[name]) for name in columns))
    path.write_text("\n".join([*rows, ""]))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(("columns", "measured"), [
    (["time", "temp", "temp_q", "flow", "flow_q"], ["time", "temp", "flow"]),
    (["time", "temp", "Quality"], ["time", "temp"]),
])  # fmt: skip
def test_a_value_that_is_said_to_be_bad_is_missing_and_the_saved_config_agrees(
    tmp_path, capsys, monkeypatch, columns, measured
):
    monkeypatch.chdir(tmp_path)
    words = ["--detector", "GaussianScorer", "--verdicts"]
    flagged(Path("readings.csv"), columns)
    assert main(["score", "readings.csv", *words, "a.jsonl", "--save-config", "saved.toml"]) == 0
    assert "says whether a value is good (" in capsys.readouterr().err
    assert main(["run", "saved.toml"]) == 0
    flagged(Path("readings.csv"), measured, blank=True)
    assert main(["score", "readings.csv", *words, "b.jsonl"]) == 0
    found, ran, blank = (
        [
            (v.label, v.score, v.reason)
            for v in map(decode_verdict, Path(p).read_bytes().splitlines())
        ]
        for p in ("a.jsonl", "saved.verdicts.jsonl", "b.jsonl")
    )
    assert repr(found) == repr(blank) == repr(ran)


@pytest.mark.thorough
def test_the_status_of_a_machine_is_no_quality_and_what_is_asked_for_is_a_channel(tmp_path):
    status = open_table(flagged(tmp_path / "a.csv", ["time", "temp", "status", "flow"]))
    assert status.guess.quality is None
    beside = open_table(flagged(tmp_path / "c.csv", ["time", "temp", "temp_status", "flow"]))
    assert beside.guess.quality.field == {"temp": "temp_status"}
    path = flagged(tmp_path / "b.csv", ["time", "temp", "flow", "flow_q"])
    assert open_table(path).guess.channels == ("temp", "flow")
    asked = open_table(path, Asked(flags=["flow_q"]))
    assert asked.guess.quality is None
    assert asked.guess.channels == ("temp", "flow", "flow_q")
