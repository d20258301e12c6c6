"""Small tables as plants send them: what is read is right, or what is doubtful is said.

The files are kept beside the repository; the kinds that matter most are made here as well.
"""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import math
import random
import re
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from rejex_stream.decode.mapping import to_epoch_ms
from rejex_stream.errors import ConfigError, RejexError
from rejex_stream.readable import Expected
from rejex_stream.rejection.window import grade
from rejex_stream.tables.draft import opened
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import open_table
from rejex_stream.tables.scored import Episodes, judge_table
from rejex_stream.types import ChannelEvidence, Evidence, Label, Position, Reading, Verdict

BEGUN = datetime(2025, 2, 3, tzinfo=UTC)
N = 2000


@pytest.fixture
def case(shared_cases):
    return lambda name: shared_cases / "tables" / name


def readings(table):
    decoder, source, _ = opened(table.settings(), table.told())
    return [x for record in source if isinstance(x := decoder.decode(record), Reading)]


def judged(table):
    """Rows from 1 on that are flagged or rejected after warm-up."""
    choice = table.suggested(contamination=0.05)
    read = opened(table.settings(), table.told(), pooled=choice.pooled)
    verdicts = []
    judge_table(
        choice.spec, read.decoder, read.records,
        lambda _, judged: verdicts.extend(judged), rules=read.rules,
    )  # fmt: skip
    return {v.position.offset + 1: v for v in verdicts}


def found(table, first=1600, last=1619):
    verdicts = judged(table)
    return sum(verdicts[row + 1].label is not Label.NORMAL for row in range(first, last + 1))


def said(table):
    return "\n".join(table.said)


# ---------------------------------------------------------------------- the files beside the repo
@pytest.mark.thorough
def test_a_sentinel_is_said_and_declared_or_not_the_fault_is_found(case):
    for asked in (Asked(), Asked(missing=["-999"])):
        table = open_table(case("sentinel.csv"), asked)
        rows = readings(table)
        assert sum(math.isnan(row.values[0]) for row in rows) == 154
        assert found(table) >= 18
    assert "'temp' is -999 in 154 of 2,000 rows" in said(open_table(case("sentinel.csv")))
    kept = open_table(case("sentinel.csv"), Asked(missing=[""]))
    assert min(row.values[0] for row in readings(kept)) == -999


@pytest.mark.thorough
def test_channels_by_turns_are_carried_and_the_fault_is_found(case):
    table = open_table(case("wide_async.csv"))
    assert "report by turns" in said(table)
    verdicts = judged(table)
    assert sum(v.rank is not None for v in verdicts.values()) > 1000
    assert sum(verdicts[row + 1].label is Label.ANOMALY for row in range(1600, 1620)) >= 10


@pytest.mark.thorough
def test_a_sparse_channel_is_set_aside_aloud(case):
    table = open_table(case("wide_slow.csv"))
    assert table.guess.channels == ("temp", "flow")
    assert "left out: lab has a value in 34 of 2,000 rows; --carry" in said(table)
    assert found(table) == 20


def test_thousands_beside_whole_numbers_are_said(case):
    table = open_table(case("eu_mix.csv"))
    values = [row.values[0] for row in readings(table)]
    assert (round(min(values)), round(max(values))) == (789, 1530)
    assert "--decimal and --thousands say which" in said(table)


@pytest.mark.parametrize(("name", "channels"), [
    ("numeric_names_t.csv", ("10", "15", "20", "35")), ("toa5.dat", ("Batt", "Temp")),
    ("influx.csv", ("_value",)), ("grafana_unit.csv", ("temp", "humidity")),
    ("nul_tail.csv", ("temp", "flow")), ("pi_many.csv", ("TI101.PV", "FI202.PV")),
    ("hour24.csv", ("load",)),
])  # fmt: skip
def test_formats_are_read(case, name, channels):
    table = open_table(case(name))
    assert table.guess.channels == channels
    assert table.guess.time is not None
    assert len(readings(table)) == 400


@pytest.mark.thorough
def test_24_is_the_midnight_of_the_next_day(case):
    times = [row.event_time_ms for row in readings(open_table(case("hour24.csv")))]
    assert {b - a for a, b in itertools.pairwise(times)} == {3_600_000}


# --------------------------------------------------------------------------- and the kinds of them
RNG = random.Random(11)
NOISE = [round(20 + RNG.gauss(0, 0.5) + (8 if 1600 <= i < 1620 else 0), 2) for i in range(N)]
FLOW = [round(50 + 3 * math.sin(i / 40) + RNG.gauss(0, 0.4), 2) for i in range(N)]


def stamp(i, step_s=60):
    return (BEGUN + timedelta(seconds=step_s * i)).isoformat(timespec="seconds")[:19]


def write(path, header, *columns, delimiter=",", n=N, text=None):
    rows = [delimiter.join(header)]
    rows += [delimiter.join(str(column[i]) for column in columns) for i in range(n)]
    content = "\n".join([*rows, ""])
    path.write_text(content if text is None else text(content), encoding="utf-8")
    return path


TIMES = [stamp(i) for i in range(N)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "value",
    ["-999", "-9999.0", "9999", "-7999", "65535", "-999,9", "99999", "-273.15", "3276.7", "1e+20"],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_any_sentinel_is_taken_for_none(tmp_path, value, delimiter):
    if "," in value and delimiter == ",":
        value = value.replace(",", ".")
    comma = "," in value
    cells = [value if i % 13 == 4 else str(x).replace(".", "," if comma else ".")
             for i, x in enumerate(NOISE)]  # fmt: skip
    table = open_table(write(tmp_path / "s.csv", ["time", "x"], TIMES, cells, delimiter=delimiter))
    assert sum(math.isnan(row.values[0]) for row in readings(table)) == cells.count(value)
    assert "it is taken for no value" in said(table)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["id", "machine", "device_id", "pump", "host", "Messstelle"])
@pytest.mark.parametrize("keys", [["a", "b", "c"], ["1", "2", "3"]])
def test_rows_side_by_side_have_a_key(tmp_path, name, keys):
    rows = [(TIMES[i], key, NOISE[(i * 7 + k) % N]) for i in range(600) for k, key in
            enumerate(keys)]  # fmt: skip
    table = open_table(write(tmp_path / "k.csv", ["time", name, "x"], *zip(*rows, strict=True),
                             n=len(rows)))  # fmt: skip
    assert (table.guess.sensor, table.guess.channels, table.n_sensors) == (name, ("x",), 3)
    assert f"sensor: {name}, 3 named" in said(table)


@pytest.mark.thorough
def test_a_constant_name_never_wins_over_a_machine(tmp_path):
    rows = [(TIMES[i], "plant", f"m{k}", NOISE[i]) for i in range(600) for k in range(3)]
    header = ["time", "name", "machine", "x"]
    table = open_table(write(tmp_path / "k.csv", header, *zip(*rows, strict=True), n=len(rows)))
    assert table.guess.sensor == "machine"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["valve", "tank", "motor", "pump", "line", "batch_id", "HE"])
def test_what_moves_is_no_key(tmp_path, name):
    values = {
        "motor": [i // 30 % 2 for i in range(N)],
        "pump": ["ON" if i // 45 % 2 else "OFF" for i in range(N)],
        "batch_id": [f"B{i // 100}" for i in range(N)],
        "HE": [i // 60 % 24 + 1 for i in range(N)],
    }.get(name, [round(50 + 20 * math.sin(i / 50)) for i in range(N)])
    table = open_table(write(tmp_path / "v.csv", ["time", name, "x"], TIMES, values, NOISE))
    assert table.guess.sensor is None
    assert found(table) >= 18
    assert (name != "valve") or "valve: called as a sensor may be" in said(table)


MS = [1_738_540_800_000 + 60_000 * i for i in range(400)]
EPOCHS = {
    "s": [ms // 1000 for ms in MS], "ms": MS, "us": [ms * 1000 for ms in MS],
    "ns": [ms * 1_000_000 for ms in MS], "excel": [f"{ms / 86_400_000 + 25_569:.9f}" for ms in MS],
    "matlab": [f"{ms / 86_400_000 + 719_529:.9f}" for ms in MS],
    "labview": [ms // 1000 + 2_082_844_800 for ms in MS],
    "filetime": [(ms + 11_644_473_600_000) * 10_000 for ms in MS],
    "dotnet": [(ms + 62_135_596_800_000) * 10_000 for ms in MS],
}  # fmt: skip


@pytest.mark.parametrize("unit", EPOCHS)
@pytest.mark.parametrize("name", ["time", "Timestamp"])
def test_clocks_of_other_systems_are_read_and_said(tmp_path, unit, name):
    table = open_table(write(tmp_path / "t.csv", [name, "x"], EPOCHS[unit], NOISE, n=400))
    assert table.guess.time_unit == unit
    times = [row.event_time_ms for row in readings(table)]
    assert max(abs(a - b) for a, b in zip(times, MS, strict=True)) <= 1
    assert ("--time-unit" in said(table)) is (unit not in ("s", "ms", "us", "ns"))


@pytest.mark.thorough
@pytest.mark.parametrize("written", [
    "%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S GMT", "%Y%m%d%H%M", "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S +0000", "%d/%b/%Y:%H:%M:%S +0000", "%y/%m/%d %H:%M",
    "%y.%m.%d %H:%M:%S", "%Y-%m-%d %H:%M:%S +0000 UTC", "%m/%d/%y %I:%M%p",
])  # fmt: skip
def test_times_are_read_as_they_are_written(tmp_path, written):
    times = [(BEGUN + timedelta(minutes=i)).strftime(written) for i in range(400)]
    path = tmp_path / "t.csv"
    rows = [f'"{t}",{x}' for t, x in zip(times, NOISE, strict=False)]
    path.write_text("\n".join(["time,x", *rows, ""]), encoding="utf-8")
    assert [row.event_time_ms for row in readings(open_table(path))] == [
        MS[0] + 60_000 * i for i in range(400)
    ]


OTHER_EPOCHS = {
    "jd": [f"{ms / 86_400_000 + 2_440_587.5:.9f}" for ms in MS],
    "mjd": [f"{ms / 86_400_000 + 40_587:.9f}" for ms in MS],
    "gps": [ms // 1000 - 315_964_782 for ms in MS],
}


@pytest.mark.parametrize(("name", "values", "unit"), [
    ("datenum", EPOCHS["matlab"], "matlab"), ("FileTime", EPOCHS["filetime"], "filetime"),
    ("Ticks", EPOCHS["dotnet"], "dotnet"), ("JD", OTHER_EPOCHS["jd"], "jd"),
    ("MJD", OTHER_EPOCHS["mjd"], "mjd"), ("gps_seconds", OTHER_EPOCHS["gps"], "gps"),
    ("unixtime", EPOCHS["s"], "s"),
])  # fmt: skip
def test_a_name_says_of_which_system_a_clock_is(tmp_path, name, values, unit):
    table = open_table(write(tmp_path / "t.csv", [name, "x"], values, NOISE, n=400))
    assert (table.guess.time, table.guess.time_unit) == (name, unit)
    times = [row.event_time_ms for row in readings(table)]
    assert max(abs(a - b) for a, b in zip(times, MS, strict=True)) <= 1


def test_seconds_of_the_nineties_are_doubted_and_read_as_told(tmp_path):
    values = [ms // 1000 - 946_684_800 for ms in MS]
    path = write(tmp_path / "t.csv", ["time", "x"], values, NOISE, n=400)
    assert "from 2000 on is unit s2000" in said(open_table(path))
    times = [row.event_time_ms for row in readings(open_table(path, Asked(time_unit="s2000")))]
    assert times == MS


@pytest.mark.parametrize(("name", "begun", "step", "unit"), [
    ("time", 1920, 1 / 12, "year"), ("time", 1749, 0.25, "year"), ("Year", 1600, 1, "year"),
    ("time", 1700, 0.1, "s"),
])  # fmt: skip
def test_years_and_their_parts_are_no_seconds(tmp_path, name, begun, step, unit):
    values = [round(begun + i * step, 9) for i in range(400)]
    table = open_table(write(tmp_path / "t.csv", [name, "x"], values, NOISE, n=400))
    assert table.guess.time_unit == unit
    if unit == "year":
        assert f"the times of '{name}' are from 1" in said(table)
        assert abs(table.step_ms - step * 365.2425 * 86_400_000) < 1e6


@pytest.mark.parametrize(("name", "step", "apart_ms"), [
    ("time_min", 1, 60_000), ("Zeit [min]", 0.5, 30_000), ("Time (h)", 1, 3_600_000),
    ("days", 1, 86_400_000), ("Zeit [s]", 0.1, 100), ("t_us", 1000, 1), ("Zeit (ms)", 250, 250),
])  # fmt: skip
@pytest.mark.parametrize("mark", [".", ","])
def test_the_unit_behind_a_name_is_that_of_the_time(tmp_path, name, step, apart_ms, mark):
    times = [str(round(i * step, 3)).replace(".", mark) for i in range(400)]
    cells = [str(x).replace(".", mark) for x in NOISE]
    table = open_table(write(tmp_path / "t.csv", [name, "x"], times, cells, delimiter=";", n=400))
    found = [row.event_time_ms for row in readings(table)]
    assert found == [i * apart_ms for i in range(400)]


PARTS = ("year", "month", "day", "hour", "minute", "second")


@pytest.mark.parametrize("names", [
    "Year Month Day Hour Minute", "YY MM DD hh mm ss", "Jahr Monat Tag Stunde Minute",
    "annee mois jour heure minute", "anno mese giorno ora minuti", "año mes día hora minuto",
])  # fmt: skip
def test_parts_of_a_time_are_put_together(tmp_path, names):
    moments = [BEGUN + timedelta(minutes=i) for i in range(400)]
    columns = [[getattr(m, part) for m in moments] for part in PARTS][: len(names.split())]
    header = [*names.split(), "x"]
    table = open_table(write(tmp_path / "t.csv", header, *columns, NOISE, n=400))
    assert table.guess.channels == ("x",)
    assert [row.event_time_ms for row in readings(table)] == MS


@pytest.mark.parametrize(("header", "columns"), [
    (["Year", "DOY", "x"], [["2025"] * 400, [f"{34 + i / 1440:.6f}" for i in range(400)]]),
    (["Uhrzeit", "x"], [[f"{i // 60:02}:{i % 60:02}" for i in range(400)]]),
    (["elapsed", "x"], [[f"{i // 60}:{i % 60:02}:00" for i in range(400)]]),
])  # fmt: skip
def test_a_time_without_a_day_or_in_part_stops(tmp_path, header, columns):
    why = "times of day without a date" if ":" in columns[0][0] else "none that can be read"
    with pytest.raises(ConfigError, match=f"is called a time, and holds {why}"):
        open_table(write(tmp_path / "t.csv", header, *columns, NOISE, n=400))


@pytest.mark.thorough
@pytest.mark.parametrize(("texts", "written"), [
    ("3. März 2025 {}", "%H:%M:%S"), ("03 Dez 2024 {}", "%H:%M"), ("3 août 2024 {}", "%H:%M"),
    ("03-Mar-25 {}", "%I.%M.%S.000000 %p"), ("Monday, March 03, 2025 {}", "%H:%M"),
    ("2025-062 {}", "%H:%M"), ("03.03.2025 {} Uhr", "%H:%M"), ("2025:03:03 {}", "%H:%M:%S"),
    ("03/03/2025 {}", "%I:%M:%S"), ("03/03/2025 {}", "%H:%M:%S:000"), ("2025062{}", "%H%M"),
])  # fmt: skip
def test_other_ways_to_write_a_time(tmp_path, texts, written):
    half = " a. m." if written == "%I:%M:%S" else ""
    moments = [BEGUN + timedelta(minutes=i) for i in range(400)]
    cells = [f'"{texts.format(m.strftime(written))}{half}"' for m in moments]
    table = open_table(write(tmp_path / "t.csv", ["time", "x"], cells, NOISE, n=400))
    times = [row.event_time_ms for row in readings(table)]
    assert {b - a for a, b in itertools.pairwise(times)} <= {60_000, -660 * 60_000}
    assert 2024 <= datetime.fromtimestamp(times[0] / 1000, UTC).year <= 2025


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("x_quality", "GOOD", "BAD"), ("x.Quality", 192, 0), ("q", 216, 24), ("valid", "true", "false"),
    ("x Q", "G", "B"), ("StatusCode", 0, 2150891520), ("Qualität", "gut", "schlecht"),
])  # fmt: skip
def test_words_and_codes_of_quality_are_believed(tmp_path, name, good, bad):
    wrong = [i % 20 == 7 for i in range(400)]
    values = [0.0 if w else x for w, x in zip(wrong, NOISE, strict=False)]
    flags = [bad if w else good for w in wrong]
    table = open_table(write(tmp_path / "t.csv", ["time", "x", name], TIMES, values, flags, n=400))
    assert table.guess.channels == ("x",)
    assert [math.isnan(row.values[0]) for row in readings(table)] == wrong


@pytest.mark.thorough
def test_a_channel_that_comes_each_second_row_is_carried(tmp_path):
    half = [x if i % 2 == 0 else "" for i, x in enumerate(FLOW)]
    table = open_table(write(tmp_path / "t.csv", ["time", "x", "y"], TIMES, NOISE, half))
    assert table.guess.carry == 1
    lost = [x if RNG.random() < 0.7 else "" for x in FLOW]  # what fails is not made up
    assert (
        open_table(write(tmp_path / "t.csv", ["time", "x", "y"], TIMES, NOISE, lost)).guess.carry
        == 0
    )


def test_two_columns_make_a_key_where_one_alone_does_not(tmp_path):
    rows = [(TIMES[i], site, m, NOISE[i * 4 + k]) for i in range(400)
            for k, (site, m) in enumerate((("A", 1), ("A", 2), ("B", 1), ("B", 2)))]  # fmt: skip
    header = ["time", "site", "machine", "x"]
    table = open_table(write(tmp_path / "t.csv", header, *zip(*rows, strict=True), n=len(rows)))
    assert (table.guess.sensors, table.n_sensors) == (("site", "machine"), 4)
    assert "site and machine together, 4 named" in said(table)


@pytest.mark.parametrize("title", ['"Plot Title: cellar"', "Name:,run1\nOwner:,x"])
def test_titles_with_blanks_do_not_part_a_table(tmp_path, title):
    rows = [f"{i},{t[:10]} {t[11:]} AM,{x},{y}" for i, (t, x, y) in
            enumerate(zip(TIMES[:400], NOISE, FLOW, strict=False))]  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("\n".join([title, "#,Date Time,Temp,Flow", *rows, ""]).replace(" AM", ""))
    assert open_table(path).guess.channels == ("Temp", "Flow")


def test_a_time_that_cannot_be_read_stops(tmp_path):
    cells = [f"shift {i % 3} of {i}" for i in range(400)]
    path = write(tmp_path / "t.csv", ["time", "x"], cells, NOISE, n=400)
    with pytest.raises(ConfigError, match=r"'time'.*--time-format"):
        open_table(path)
    assert open_table(path, Asked(time=["-"])).guess.time is None


@pytest.mark.parametrize("header", [["10", "15", "20"], ["101", "7", "33"], ["1", "2", "3"]])
@pytest.mark.parametrize("first", ["time", ""])
def test_numbers_name_columns(tmp_path, header, first):
    table = open_table(
        write(tmp_path / "n.csv", [first, *header], range(0, 400 * 3600, 3600), NOISE, FLOW,
              [x / 3 for x in FLOW], n=400)
    )  # fmt: skip
    assert table.guess.channels == tuple(header)
    assert table.n_rows == 400


@pytest.mark.parametrize("unit", ["°C", " °C", "%", " kW", " m³/h", " bar", " % RH"])
@pytest.mark.parametrize("mark", [".", ","])
def test_units_behind_numbers_are_left_out(tmp_path, unit, mark):
    cells = [str(x).replace(".", mark) + unit for x in NOISE[:400]]
    table = open_table(write(tmp_path / "u.csv", ["time", "x"], TIMES, cells, delimiter=";", n=400))
    assert [row.values[0] for row in readings(table)] == NOISE[:400]
    assert "units:" in said(table)


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("ending", [*PACKED, "zip"])
@pytest.mark.parametrize("named", [True, False])
def test_packed_tables_are_read(tmp_path, ending, named):
    plain = write(tmp_path / "p.csv", ["time", "x"], TIMES, NOISE)
    path = tmp_path / (f"q.csv.{ending}" if named else "q.csv")
    if ending == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(plain, "p.csv")
    else:
        path.write_bytes(PACKED[ending](plain.read_bytes()))
    assert [r.values for r in readings(open_table(path))] == [(x,) for x in NOISE]


def test_a_zip_of_several_names_them(tmp_path):
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("a.csv", "x")
        archive.writestr("b.csv", "y")
    with pytest.raises(RejexError, match=r"2 files \(a.csv, b.csv\)"):
        open_table(tmp_path / "z.zip")


def test_returns_end_lines_and_bytes_of_a_power_loss_are_no_rows(tmp_path):
    path = write(tmp_path / "r.csv", ["time", "x"], TIMES, NOISE)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\n", b"\r"))
    assert len(readings(open_table(path))) == N
    cut = data.find(b"\n", len(data) // 2) + 1
    path.write_bytes(data[:cut] + b"\0" * 4096 + data[cut:] + b"\0" * 100_000)
    table = open_table(path)
    assert len(readings(table)) == N
    assert "NUL bytes" in said(table)


@pytest.mark.thorough
def test_loggers_write_tables(tmp_path):
    rdb = "\n".join(["# a remark"] * 40 + ["agency\tsite\tdatetime\tflow", "5s\t15s\t20d\t14n"])
    rdb += "\n" + "\n".join(f"USGS\t0123\t{t[:16]}\t{x}" for t, x in zip(TIMES, NOISE, strict=True))
    (tmp_path / "r.txt").write_text(rdb)
    lvm = "LabVIEW Measurement\t\nSeparator\tTab\nDecimal_Separator\t.\nDate\t2025/02/03\n"
    lvm += "Time\t10:00:00\n***End_of_Header***\t\nChannels\t1\nX_Dimension\tTime\n"
    lvm += "***End_of_Header***\nX_Value\tForce\tComment\n"
    lvm += "\n".join(f"{i / 10:.6f}\t{x}" for i, x in enumerate(NOISE))
    (tmp_path / "l.lvm").write_text(lvm)
    for name, channels in (("r.txt", ("flow",)), ("l.lvm", ("Force",))):
        table = open_table(tmp_path / name)
        assert table.guess.channels == channels
        assert table.guess.time is not None
        assert [row.values[0] for row in readings(table)] == NOISE
    lvm = lvm.replace("Time\t10", "X_Columns\tNo\nTime\t10").replace("X_D", "Delta_X\t0.5\nX_D")
    (tmp_path / "l.lvm").write_text(re.sub(r"(?m)^[\d.]+\t(?=-?\d)", "\t", lvm))
    assert "Delta_X = 0.5 s apart" in "\n".join(open_table(tmp_path / "l.lvm").said)


@pytest.mark.parametrize(
    ("begun", "word"),
    [(b"\x89HDF\r\n", "HDF5"), (b"SQLite format 3\0", "SQLite"), (b"<!DOCTYPE html><p>", "HTML"),
     (b"\x28\xb5\x2f\xfd123", "zstd"), (b'[{"a": 1}]', "init"), (b"%PDF-1.7", "PDF")],
)  # fmt: skip
def test_what_is_no_table_is_named_with_the_next_step(tmp_path, begun, word):
    (tmp_path / "x.bin").write_bytes(begun)
    with pytest.raises(RejexError, match=word):
        open_table(tmp_path / "x.bin")


def test_an_energy_total_alone_is_judged_by_its_change(tmp_path):
    total, cells = 1000.0, []
    for x in NOISE:
        total += x / 10
        cells.append(round(total, 3))
    table = open_table(write(tmp_path / "e.csv", ["time", "energy"], TIMES, cells))
    assert table.guess.counters == ("energy",)
    assert found(table) >= 18


def test_a_lot_of_statuses_are_all_missing_those_to_come_too(tmp_path):
    names = ["Bad", "Shutdown", "I/O Timeout", "[-11059] No Good Data", "Configure", "Scan Off"]
    cells = [names[i % 6] if i % 9 == 4 else x for i, x in enumerate(NOISE)]
    cells[N - 1] = "Never seen before"
    table = open_table(write(tmp_path / "p.csv", ["time", "x"], TIMES, cells))
    rows = readings(table)
    assert len(rows) == N
    assert sum(math.isnan(r.values[0]) for r in rows) == sum(isinstance(c, str) for c in cells)


@pytest.mark.thorough
def test_arrays_of_json_are_read_by_init(tmp_path, monkeypatch, capsys):
    from rejex_stream.cli import main

    monkeypatch.chdir(tmp_path)
    rows = [{"time": t, "x": x, "why": 'a ] } "'} for t, x in zip(TIMES, NOISE, strict=True)]
    Path("a.json").write_text(json.dumps(rows, indent=1))
    assert main(["init", "a.json", "-c", "0.05"]) == 0
    assert main(["run", "a.toml"]) == 0
    assert len(Path("a.verdicts.jsonl").read_text().splitlines()) == N


def test_the_worst_episodes_come_first(tmp_path, capsys):
    from rejex_stream.cli import main

    bursts = (900, 1300, 1700)
    cells = [x + 300 if any(b <= i < b + 3 for b in bursts) else x for i, x in enumerate(NOISE)]
    path = write(tmp_path / "b.csv", ["time", "x"], TIMES, cells)
    assert main(["score", str(path), "--top", "3", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["episodes"]) == 3 < found["n_episodes"]
    shown = [(one["first_row"], one["last_row"]) for one in found["incidents"] + found["episodes"]]
    assert all(any(first <= b + 4 <= last for first, last in shown) for b in bursts)
    (lasting,) = found["incidents"]
    assert 1580 < lasting["first_row"] <= 1601


@pytest.mark.thorough
def test_a_table_in_which_nothing_is_ranked_is_an_error(tmp_path, capsys):
    from rejex_stream.cli import main

    a = [x if i % 2 else "" for i, x in enumerate(NOISE)]
    b = ["" if i % 2 else x for i, x in enumerate(FLOW)]
    path = write(tmp_path / "w.csv", ["time", "a", "b"], TIMES, a, b)
    assert main(["score", str(path)]) == 0
    assert main(["score", str(path), "--carry", "0"]) == 2
    assert "--carry ROWS" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "preset"), [(61, "raw"), (60, "sensor")])
def test_a_wide_table_is_judged_by_its_levels_aloud_and_the_saved_config_agrees(
    tmp_path, monkeypatch, capsys, width, preset
):
    from rejex_stream.cli import main
    from rejex_stream.encode import decode_verdict

    monkeypatch.chdir(tmp_path)
    names = [f"c{i}" for i in range(width)]
    columns = [[round(RNG.gauss(20, 1), 2) for _ in range(400)] for _ in names]
    path = write(Path("w.csv"), ["time", *names], TIMES, *columns, n=400)
    assert open_table(path).suggested().spec.features.preset == preset
    words = ["--save-config", "s.toml", "--verdicts", "a.jsonl"]
    assert main(["score", "w.csv", *words]) == 0
    assert ("the levels alone are judged" in capsys.readouterr().out) is (preset == "raw")
    assert main(["run", "s.toml"]) == 0
    found = [
        [(v.label, v.score) for v in map(decode_verdict, Path(p).read_bytes().splitlines())]
        for p in ("a.jsonl", "s.verdicts.jsonl")
    ]
    assert repr(found[0]) == repr(found[1])


def of_one_sensor(*labels):
    """Readings of one sensor, a value each that is its number, and verdicts with incidents."""
    readings, verdicts = [], []
    for i, (label, incident) in enumerate(labels):
        position = Position("t", 0, i)
        readings.append(Reading("a", "a", 60_000 * i, (float(i),), position))
        said = Verdict(position, "a", "a", 60_000 * i, i, label, incident=incident)
        verdicts.append(said if label is Label.NORMAL else replace(said, severity=1.0 + i / 100))
    return readings, verdicts


def test_what_comes_right_after_an_incident_is_none_of_it():
    episodes = Episodes(("x",))
    ok, bad = (Label.NORMAL, None), (Label.ANOMALY, None)
    held = [(Label.ANOMALY, "t-0-12"), (Label.NORMAL, "t-0-12")] * 5
    episodes.add(*of_one_sensor(*[ok] * 10, bad, bad, *held, ok, ok, bad, *[ok] * 20, bad))
    incidents, others = episodes.most_severe(top=9)
    assert [(e.first_row, e.last_row, e.anomalies) for e in incidents] == [(11, 22, 7)]
    assert sorted((e.first_row, e.last_row) for e in others) == [(25, 25), (46, 46)]


def test_what_is_graded_higher_stands_first():
    """A last lone event is the worst of all, and ten that lasted are graded higher."""
    episodes = Episodes(("x",))
    ok, bad = (Label.NORMAL, None), (Label.ANOMALY, None)
    episodes.add(*of_one_sensor(*[ok] * 10, *[bad] * 10, *[ok] * 30, bad))
    _, others = episodes.most_severe(top=9)
    points = [(e.first_row, grade(e.severity, e.anomalies)[0]) for e in others]
    assert points == [(11, 22), (51, 15)]


def test_the_usual_is_that_of_all_normal_events_not_of_the_first():
    episodes = Episodes(("x",))
    readings, verdicts = of_one_sensor(*[(Label.NORMAL, None)] * 5_000, (Label.ANOMALY, None))
    given = Expected(5_000.0, 40.0, 30.0, 50.0)
    told = ChannelEvidence("x", 1.0, 0.0, Label.NORMAL, given)
    evidence = Evidence((told,), None, 1, None, 0.05, 1)
    verdicts[-1] = replace(verdicts[-1], evidence=evidence)
    for at in range(0, len(readings), 700):
        episodes.add(readings[at : at + 700], verdicts[at : at + 700])
    (episode,) = episodes.most_severe(top=1)[1]
    (reads,) = episode.reads
    assert (reads.channel, reads.value) == ("x", 5_000.0)
    assert reads.usual == pytest.approx((125, 4_875), rel=0.05)
    assert reads.expected == given


def test_readings_of_one_record_share_its_row():
    episodes = Episodes(("x",))
    bad, held = (Label.ANOMALY, None), (Label.ANOMALY, "t-0-2")
    readings, verdicts = of_one_sensor(bad, bad, held, bad, bad)
    verdicts = [replace(v, position=Position("t", 0, 7 + i // 4)) for i, v in enumerate(verdicts)]
    for at in range(len(verdicts)):
        episodes.add(readings[at : at + 1], verdicts[at : at + 1])
    incidents, others = episodes.most_severe(top=9)
    assert [(e.peak_row, e.anomalies) for e in (*incidents, *others)] == [(8, 3), (9, 2)]


# ------------------------------------------------------------- tables that nobody here had seen
RNG = random.Random(3)
NOISY = [round(20 + 3 * math.sin(i / 30) + RNG.gauss(0, 0.3), 2) for i in range(900)]


def seconds(i, step=60):
    return f"{BEGUN + timedelta(seconds=i * step):%Y-%m-%d %H:%M:%S}"


def made(tmp_path, header, row, n=300, sep=",", asked=None):
    path = tmp_path / "plant.csv"
    lines = [header, *(sep.join(map(str, row(i))) for i in range(n))]
    path.write_text("\n".join(lines) + "\n")
    return open_table(path, asked)


def test_a_quality_beside_a_value_has_its_stem_not_its_name(tmp_path):
    def row(i):
        bad = i % 20 == 7
        return seconds(i), 0 if bad else NOISY[i], "BAD" if bad else "GOOD", NOISY[i + 99], "GOOD"

    table = made(tmp_path, "time,TI1.PV,TI1.Q,FI2.PV,FI2.Q", row)
    assert table.guess.channels == ("TI1.PV", "FI2.PV")
    assert sum(math.isnan(one.values[0]) for one in readings(table)) == 15
    assert not any(math.isnan(one.values[1]) for one in readings(table))


def test_counters_beside_nothing_else_are_measured_by_their_change(tmp_path):
    def row(i):
        return seconds(i), round(900 + i * 0.3 + i // 7 * 0.1, 2), 40 + i // 6

    guess = made(tmp_path, "time,energy,rejects", row).guess
    assert guess.counters == guess.channels == ("energy", "rejects")
    beside = made(tmp_path, "time,energy,seq", lambda i: (*row(i)[:2], 500 + i)).guess
    assert beside.channels == beside.counters == ("energy",)
    assert "only counts" in beside.aside["seq"]


def test_milliseconds_beside_a_clock_name_no_sensor(tmp_path):
    def row(i):
        return seconds(i // 10, 1), i % 10 * 100, NOISY[i], NOISY[i + 50]

    guess = made(tmp_path, "time,ms,amps,volts", row).guess
    assert (guess.sensor, guess.channels) == (None, ("amps", "volts"))


@pytest.mark.parametrize(("header", "first", "time", "why"), [
    (",a,b", lambda i: f"{i * 0.01:.2f}", 10, "rises by 0.01 from row to row"),
    ("x,a,b", lambda i: f"{1741068000 + i * 5}.25", 5_000, "is called no time, and holds"),
])  # fmt: skip
def test_a_first_column_that_goes_on_as_a_time_is_one_and_said(tmp_path, header, first, time, why):
    table = made(tmp_path, header, lambda i: (first(i), NOISY[i], NOISY[i + 9]))
    assert why in said(table)
    assert "--time -" in said(table)
    assert [r.event_time_ms for r in readings(table)[:2]] == pytest.approx(
        [readings(table)[0].event_time_ms, readings(table)[0].event_time_ms + time]
    )
    none = made(tmp_path, header, lambda i: (first(i), NOISY[i], NOISY[i + 9]),
                  asked=Asked(time=["-"]))  # fmt: skip
    assert none.guess.time is None


@pytest.mark.parametrize("first", [lambda i: i * 2, lambda i: round(i * 0.1 + i % 3 * 0.01, 2)])
def test_a_first_column_that_counts_otherwise_is_no_time(tmp_path, first):
    table = made(tmp_path, "x,a,b", lambda i: (first(i), NOISY[i], NOISY[i + 9]))
    assert (table.guess.time, table.guess.channels) == (None, ("a", "b"))
    assert "rows are taken as 1 s apart" in said(table)


def test_a_header_that_lacks_its_last_name_calls_the_time_by_its_own(tmp_path):
    table = made(tmp_path, "time,a,b", lambda i: (seconds(i), NOISY[i], NOISY[i + 9], NOISY[i]))
    assert table.header == ("time", "a", "b", "column_4")
    assert (table.guess.time, table.guess.channels) == ("time", ("a", "b", "column_4"))
    assert "some column has no name" in said(table)
    rows = made(tmp_path, "a,b", lambda i: (i + 1, NOISY[i], NOISY[i + 9]))  # as R writes rows
    assert rows.guess.channels == ("a", "b")


def test_a_second_table_behind_the_first_is_unreadable_and_the_first_is_read(tmp_path):
    def row(i):
        if i < 300:
            return seconds(i), NOISY[i], NOISY[i + 9]
        return ("time", "c", "d", "e") if i == 300 else (seconds(i), *NOISY[i : i + 3])

    table = made(tmp_path, "time;a;b", row, n=361, sep=";")
    assert table.guess.channels == ("a", "b")
    assert len(readings(table)) == 300
    assert "unreadable: 61 of 361 rows" in said(table)


@pytest.mark.parametrize(("point", "sep", "day"), [(",", ";", 4), (".", ",", 3)])
def test_who_writes_a_decimal_comma_writes_the_day_first(tmp_path, point, sep, day):
    def row(i):
        return f"04/03/2025 {i // 60:02}:{i % 60:02}", str(NOISY[i]).replace(".", point)

    table = made(tmp_path, f"date{sep}v", row, sep=sep)
    assert datetime.fromtimestamp(readings(table)[0].event_time_ms / 1000, UTC).day == day
    assert "if it is" in said(table)


def test_a_zone_by_name_behind_its_offset_is_no_hindrance(tmp_path):
    table = made(
        tmp_path,
        "when,v",
        lambda i: (
            f"{BEGUN + timedelta(minutes=i):%Y-%m-%dT%H:%M:%S}+01:00[Europe/Berlin]",
            NOISY[i],
        ),
    )
    first = readings(table)[0].event_time_ms
    assert first == to_epoch_ms(BEGUN.isoformat(), "iso8601") - 3_600_000
    assert len(readings(table)) == 300


def test_a_column_of_numbers_in_part_is_left_out_aloud(tmp_path):
    def row(i):
        return (
            seconds(i), f"{NOISY[i]}{'*' * (i % 3 == 0)}", NOISY[i],
            f"{i} {'cm' if i % 2 else 'm'}",
        )  # fmt: skip

    table = made(tmp_path, "time,starred,v,level", row)
    assert table.guess.channels == ("v",)
    assert "left out: starred numbers in part, such as" in said(table)
    assert "left out: level in several units, 'm' and 'cm'" in said(table)


def test_rows_of_one_time_that_nobody_wrote_are_no_key(tmp_path):
    table = made(tmp_path, "unit,cycle,v", lambda i: (i // 60 + 1, i % 60 + 1, NOISY[i]))
    assert (table.guess.sensor, table.guess.channels) == (None, ("v",))
    assert "--sensor unit says otherwise" in said(table)


# ------------------------------------------------------------- others, invented in November 2026
@pytest.mark.parametrize(
    ("encoding", "names"),
    [("cp932", "日時,温度(℃),圧力"), ("gb18030", "时间,温度,压力"), ("cp1252", "Zeit,Größe,°C")],
)
def test_names_in_the_encodings_of_east_asia_and_of_the_west(tmp_path, encoding, names):
    rows = [f"{seconds(i)},{NOISY[i]},{NOISY[i + 99]}" for i in range(300)]
    path = tmp_path / "plant.csv"
    path.write_bytes("\r\n".join([names, *rows, ""]).encode(encoding))
    table = open_table(path)
    assert table.guess.channels == tuple(names.split(",")[1:])
    assert f"encoding: {encoding}" in said(table)
    assert [one.values[0] for one in readings(table)] == NOISY[:300]


@pytest.mark.thorough
@pytest.mark.parametrize(("header", "written"), [
    ("时间,x", "{0.year}年{0.month}月{0.day}日 {0.hour}时{0.minute:02}分{0.second:02}秒"),
    ("日付,時刻,x", "{0:%Y年%m月%d日},{0:%H時%M分}"),
    ("Time stamp,x", "{0.month}/{0.day}/{0.year} {0:%I:%M:%S}.000 {0:%p}"),
    ("YYYYMMDD,HH,x", "{0:%Y%m%d},{0.hour}"),
])  # fmt: skip
def test_times_of_other_vendors_and_places(tmp_path, header, written):
    moments = [BEGUN + timedelta(hours=i) for i in range(300)]
    table = made(tmp_path, header, lambda i: (written.format(moments[i]), NOISY[i]))
    assert [one.event_time_ms for one in readings(table)] == [
        int(moment.timestamp() * 1000) for moment in moments
    ]
    assert table.guess.channels == ("x",)


def test_the_last_hour_of_a_day_is_its_24th(tmp_path):
    def row(i):
        day = BEGUN + timedelta(days=i // 24)
        return f"{260}", f"{day:%Y%m%d}", f"{i % 24 + 1:5}", NOISY[i], NOISY[i + 99]

    table = made(tmp_path, "# wind in 0.1 m/s\n# STN,YYYYMMDD,   HH,   FH,    T", row)
    assert table.guess.channels == ("FH", "T")
    begun = int(BEGUN.timestamp() * 1000)
    assert [one.event_time_ms for one in readings(table)][:25:12] == [
        begun + 3_600_000 * hour for hour in (1, 13, 25)
    ]


def test_a_confidence_of_0_says_that_a_value_is_none(tmp_path):
    def row(i):
        bad = i % 20 == 7
        return seconds(i // 2), ("FI", "TI")[i % 2], 0 if bad else NOISY[i], 0 if bad else 100

    table = made(tmp_path, "Timestamp,Tag,Value,Confidence", row, n=600)
    assert table.guess.channels == ("Value",)
    assert sum(math.isnan(one.values[0]) for one in readings(table)) == 30
    assert "quality: Confidence says whether a value is good (100)" in said(table)


def test_a_rule_of_dashes_below_a_header_names_nothing(tmp_path):
    def row(i):
        return f"| {seconds(i)}", NOISY[i], f"{NOISY[i + 99]} |"

    table = made(tmp_path, "| time | temp | press |\n|---|---|---|", row, sep=" | ")
    assert table.guess.channels == ("temp", "press")
    assert len(readings(table)) == 300


def test_a_header_that_is_a_remark_names_all_columns(tmp_path):
    """As ``numpy.savetxt`` writes one."""
    table = made(tmp_path, "# t a b", lambda i: (i * 0.5, NOISY[i], NOISY[i + 99]), sep=" ")
    assert table.guess.channels == ("a", "b")
    assert [one.values for one in readings(table)][:2] == [
        (NOISY[i], NOISY[i + 99]) for i in (0, 1)
    ]


def test_true_and_false_in_one_letter_are_a_flag(tmp_path):
    table = made(tmp_path, "time,v,running", lambda i: (seconds(i), NOISY[i], "ft"[i // 50 % 2]))
    assert table.guess.flags == ("running",)
    assert {one.values[1] for one in readings(table)} == {0.0, 1.0}


def test_a_minus_behind_numbers_is_their_sign_and_that_is_said(tmp_path):
    def row(i):
        x = round(NOISY[i] - 20, 2)
        return seconds(i), f"{abs(x):.2f}{'-' * (x < 0)}".replace(".", ","), f"{NOISY[i]:.0f}"

    table = made(tmp_path, "Zeit;Wert;v", row, sep=";")
    assert "minus: behind numbers of 'Wert' it is their sign" in said(table)
    assert min(one.values[0] for one in readings(table)) < -2
