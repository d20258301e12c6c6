"""Where tables begin in the files that loggers, historians and clouds write; each line of a kind.

The heads are those of real files and manuals, the values are invented.
"""

import random
from datetime import datetime, timedelta

import pytest

from rejex_stream.errors import ConfigError
from rejex_stream.tables.draft import opened
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import open_table
from rejex_stream.tables.place import delimiter_of
from rejex_stream.types import Reading

RNG = random.Random(11)
N = 300
BEGUN = datetime(2025, 2, 3, 8)
A = [RNG.gauss(21, 1) for _ in range(N)]
B = [RNG.gauss(48, 3) for _ in range(N)]


def at(i, step_s=60):
    return BEGUN + timedelta(seconds=i * step_s)


def made(path, head, row, **asked):
    lines = [*head, *(row(i) for i in range(N))]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return open_table(path, Asked(**asked))


def first(table):
    decoder, source, _ = opened(table.settings(), table.told())
    return next(x for record in source if isinstance(x := decoder.decode(record), Reading))


HEADS = {
    "padded": (
        ["# Site: X,,", "# Version: 2,,", "TIME,TA,RH"],
        lambda i: f"{at(i):%Y%m%d%H%M},{A[i]:.2f},{B[i]:.1f}",
        ("TIME", ["TA", "RH"], ","),
    ),
    "settings": (
        ["Lat (deg N):,39.73,,", "Elev (m):,1819.6,,", "Losses:,14,,", ",,,",
         "Time,Beam (W/m^2),Cell (C),Kind"],
        lambda i: f"{at(i)},{A[i]:.2f},{B[i]:.1f},ok", ("Time", ["Beam (W/m^2)", "Cell (C)"], ","),
    ),
    "seven rows": (
        ["Date,Time,1,2", ",,point1,point2", ",,COM1,COM1", ",,DT100,DT101", ",,INT,UINT",
         ",,S16,US16", ",,°C,%"],
        lambda i: f"{at(i):%Y/%m/%d,%H:%M:%S},{A[i] * 10:.0f},{B[i] * 10:.0f}",
        (("Date", "Time"), ["1", "2"], ","),
    ),
    "types": (
        ["[LOGGING],L1,3,4", "TEST,,,", "DATETIME[YYYY/MM/DD hh:mm:ss],INDEX,SHORT[DEC.0],FLOAT[2]",
         "TIME,INDEX,D100,D102"],
        lambda i: f"{at(i):%Y/%m/%d %H:%M:%S},{i + 1},{A[i] * 10:.0f},{B[i]:.2f}",
        ("TIME", ["D100", "D102"], ","),
    ),
    "recorder": (
        ['"File name","AUTO1.CSV","V 1"', '"CH","U1-1","U1-2"', '"Mode","Voltage","Tc"',
         '"Ratio","1.0E+00","1.0E+00"', '"Offset","0.0E+00","0.0E+00"',
         '"Time","U1-1[V]","U1-2[C]"'],
        lambda i: f"{i / 10:.1f},{A[i]:.5E},{B[i]:.5E}", ("Time", ["U1-1[V]", "U1-2[C]"], ","),
    ),
    "groups": (
        [",Project,Project", ",Station 1,Station 1", 'Timestamp,"Station 1, Sun","Station 1, T"',
         ",W/m^2,°F"],
        lambda i: f"{at(i):%-m/%-d/%y %-H:%M},{A[i]:.4f},{B[i]:.4f}",
        ("Timestamp", ["Station 1, Sun", "Station 1, T"], ","),
    ),
    "identifiers": (
        [",/cpu/0/load/0,/cpu/0/power/0", "Time,CPU Total,Package"],
        lambda i: f"{at(i):%m/%d/%Y %H:%M:%S},{A[i]:.4f},{B[i]:.4f}",
        ("Time", ["CPU Total", "Package"], ","),
    ),
    "long head": (
        ["EC-Lab ASCII FILE", "Nb header lines : 68", *(f"set {i}  {i / 2}" for i in range(66)),
         "mode\ttime/s\tEwe/V\tI/mA"],
        lambda i: f"{1 + i % 2}\t{i * 60.5:.6E}\t{A[i]:.7E}\t{B[i]:.7E}".replace(".", ","),
        ("time/s", ["mode", "Ewe/V", "I/mA"], "\t"),
    ),
    "device": (
        ["Name;Long;Lat;Type", '"Indoor";13,4;52,5;main', "Timestamp;Zone;Temperature;Humidity"],
        lambda i: f"{1738569600 + i * 60};{at(i):%Y/%m/%d %H:%M:%S};{A[i]:.1f};{B[i]:.0f}",
        ("Timestamp", ["Temperature", "Humidity"], ";"),
    ),
    "model": (
        ["#1", "double Measured(300, 3)", "#time_in_s\tT_return\tT_supply"],
        lambda i: f"{i}.0\t{A[i]}\t{B[i]}",
        ("#time_in_s", ["T_return", "T_supply"], "\t"),
    ),
    "blanks in texts": (
        ["Name:\tcell 1", "", "Rec\tTestTime\tAmps\tVolts\tDPt Time"],
        lambda i: f"{i + 1}\t  0d 00:{i % 60}\t{A[i]:.5f}\t{B[i]:.5f}\t{at(i):%m/%d/%Y %H:%M:%S}",
        ("DPt Time", ["Amps", "Volts"], "\t"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_a_table_begins_where_rows_look_like_its_middle(tmp_path, name):
    head, row, (time, channels, delimiter) = HEADS[name]
    table = made(tmp_path / "t.csv", head, row)
    found = (table.guess.time, list(table.guess.channels), table.delimiter, table.n_rows)
    assert found == (time, channels, delimiter, N)
    assert not any(line.startswith("unreadable") for line in table.said)
    scales = (10, 10) if name == "seven rows" else (10, 1) if name == "types" else (1, 1)
    wanted = [x * scale for x, scale in zip((A[0], B[0]), scales, strict=True)]
    assert first(table).values[-2:] == pytest.approx(wanted, rel=0.02)


def test_a_status_in_the_first_rows_is_no_header(tmp_path):
    def row(i):
        odd = i in (0, 1, 200)
        return f"{at(i)},Calibrating,Calibrating" if odd else f"{at(i)},{A[i]:.2f},{B[i]:.1f}"

    table = made(tmp_path / "t.csv", ["time,a,b"], row)
    assert (table.n_rows, table.skip_rows, table.has_header) == (N, 0, True)


@pytest.mark.parametrize("mark", [",", " "])
def test_a_quote_over_several_lines_above_a_table_is_one_row_of_the_file(tmp_path, mark):
    head = [f'about{mark}"these', "are", 'free"', "more", f"time{mark}a{mark}b"]
    table = made(
        tmp_path / "t.csv", head, lambda i: f"{at(i).isoformat()}{mark}{A[i]:.2f}{mark}{B[i]:.1f}"
    )
    assert (table.n_rows, table.guess.channels) == (N, ("a", "b"))
    assert first(table).values == pytest.approx((A[0], B[0]), rel=0.01)


def test_columns_without_names_may_be_a_calendar_and_a_clock(tmp_path):
    def calendar(i):
        return f" {at(i):%Y %-j %-m %-d %-H %-M} {A[i]:.2f} 0 {B[i]:.1f} 0"

    table = made(tmp_path / "t.dat", [" Alamosa", "   37.70  105.92 2317 m version 1"], calendar)
    assert table.guess.times == tuple(f"column_{i}" for i in (1, 3, 4, 5, 6))
    clock = made(tmp_path / "u.csv", ['"","a","b"'],
                   lambda i: f'"{1738569600 + i * 10}","{A[i]:.2f}","{B[i]:.2f}"')  # fmt: skip
    assert (clock.guess.time, clock.guess.channels) == ("column_1", ("a", "b"))
    assert first(clock).event_time_ms == 1738569600000


@pytest.mark.thorough
def test_a_calendar_goes_before_a_time_since_a_start_and_a_share_is_none(tmp_path):
    table = made(tmp_path / "t.csv", ["Test_Time,DateTime,a,b"],
                   lambda i: f"{i * 1.5},{1738569600.5 + i * 1.5},{A[i]},{B[i]}")  # fmt: skip
    assert (table.guess.time, table.guess.channels) == ("DateTime", ("a", "b"))
    counters = made(tmp_path / "u.csv", ['"(PDH-CSV 4.0)","\\\\S\\% Processor Time","x"'],
                      lambda i: f'"{at(i):%m/%d/%Y %H:%M:%S}.123","{A[i]}","{B[i]}"')  # fmt: skip
    assert counters.guess.time == "(PDH-CSV 4.0)"
    assert len(counters.guess.channels) == 2


def test_a_calendar_without_a_year_stops(tmp_path):
    with pytest.raises(
        ConfigError, match=r"'Month' and 'Day' and 'Hour'.*without a year.*--time -"
    ):
        made(tmp_path / "t.csv", ["Month,Day,Hour,a"],
               lambda i: f"{1 + i // 240},{1 + i // 24 % 28},{i % 24},{A[i]}")  # fmt: skip


def test_what_is_the_same_at_all_times_of_a_machine_is_left_out_aloud(tmp_path):
    serial = [40017, 40118, 41003]
    table = made(tmp_path / "t.csv", ["time,machine,serial_no,rated_kw,a"],
                   lambda i: f"{at(i // 3)},m{i % 3},{serial[i % 3]},{55 + i % 3 // 2},{A[i]}",
                   )  # fmt: skip
    assert (table.guess.sensor, table.guess.channels) == ("machine", ("a",))
    assert "left out: serial_no the same at all times of a sensor; --channel" in str(table.said)
    asked = open_table(tmp_path / "t.csv", Asked(channels=["serial_no", "a"]))
    assert asked.guess.channels == ("serial_no", "a")


def test_a_cycle_that_begins_anew_shows_whose_rows_are(tmp_path):
    units = [unit for unit, length in enumerate((70, 90, 60, 80), 1) for _ in range(length)]
    cycles = [cycle for length in (70, 90, 60, 80) for cycle in range(1, length + 1)]
    row = lambda i: f"{units[i]} {cycles[i]} {A[i]:.4f} {B[i]:.2f}"  # noqa: E731
    table = made(tmp_path / "t.txt", [], row)
    assert (table.guess.sensor, table.guess.channels) == ("column_1", ("column_3", "column_4"))
    hours = made(tmp_path / "u.txt", [], lambda i: f"{1 + i // 24} {i % 24} {A[i]:.4f} {B[i]:.2f}")
    assert hours.guess.sensor is None


@pytest.mark.parametrize("unit", ["C", "kWh"])
def test_a_unit_of_measure_is_no_unit_of_a_plant(tmp_path, unit):
    table = made(tmp_path / "t.csv", ["Date/Time,Unit,Value"], lambda i: f"{at(i)},{unit},{A[i]}")
    assert (table.guess.sensor, table.guess.channels) == (None, ("Value",))


def test_a_code_of_quality_that_nobody_explains_is_no_channel(tmp_path):
    table = made(tmp_path / "t.csv", ["date,H_1,qc_H_1,LE_1,qc_LE_1"],
                   lambda i: f"{at(i)},{A[i]},{(0, 6, 9)[i % 3]},{B[i]},{(0, 0, 9)[i % 3]}",
                   )  # fmt: skip
    assert table.guess.channels == ("H_1", "LE_1")
    assert "qc_H_1 a code of quality, and nobody says which is good" in str(table.said)
    status = made(tmp_path / "u.csv", ["date,pump,pump_status"],
                    lambda i: f"{at(i)},{A[i]},{(0, 1, 2)[i % 3]}")  # fmt: skip
    assert status.guess.channels == ("pump", "pump_status")
    words = made(tmp_path / "v.csv", ["date,pump,pump_status"],
                 lambda i: f"{at(i)},{A[i]},{('OK', 'FAIL')[i % 9 // 8]}")  # fmt: skip
    assert "pump_status says whether a value is good (OK)" in str(words.said)


@pytest.mark.thorough
def test_a_zone_before_the_year_is_read(tmp_path):
    table = made(tmp_path / "t.csv", ["a,t_stamp"],
                   lambda i: f"{A[i]},{at(i):%a %b %d %H:%M:%S} CET {at(i).year}")  # fmt: skip
    assert table.guess.time == "t_stamp"
    assert first(table).event_time_ms == 1738566000000


@pytest.mark.parametrize(("lines", "delimiter"), [
    (["2025-01-01;12,5"] * 9, ";"), (["Zeit;Wert", *["2025-01-01 10:00;12,5"] * 9], ";"),
    (["t,a", *["shift 1 of 5,0.25"] * 9], ","),
    (["date time a", *["2025-01-01 10:00 12,5"] * 9], " "),
    (["a;b", *["1 234,5;2 345,6"] * 9], ";"), (["1", "2", "3"], ","),
])  # fmt: skip
def test_blanks_and_decimal_commas_are_no_delimiters(lines, delimiter):
    assert delimiter_of(lines) == delimiter


def test_returns_end_rows_where_all_cells_are_quoted(tmp_path):
    lines = ['"time","a\r1","b"', *(f'"{at(i)}","{A[i]}","{B[i]}"' for i in range(N))]
    (tmp_path / "t.csv").write_bytes("\r".join([*lines, ""]).encode())
    table = open_table(tmp_path / "t.csv")
    assert (table.n_rows, table.guess.time, len(table.guess.channels)) == (N, "time", 2)
    assert first(table).values == (A[0], B[0])
