"""What a quick look takes the columns of a table for."""

import gzip
import itertools
import statistics
from datetime import datetime

import pytest

from rejex_stream.decode.mapping import parse_moment
from rejex_stream.errors import ConfigError
from rejex_stream.plan.suggest import suggest
from rejex_stream.tables import dialect
from rejex_stream.tables.dialect import find_times
from rejex_stream.tables.draft import opened
from rejex_stream.tables.guess import Asked, guess_table
from rejex_stream.tables.inspection import open_table
from rejex_stream.tables.place import delimiter_of, split_all
from rejex_stream.tables.scored import judge_table
from rejex_stream.types import is_ranked


def table(header, *columns):
    return header.split(","), list(zip(*columns, strict=True))


@pytest.mark.parametrize(("cells", "unit"), [
    (["2024-01-01T00:00:00", "2024-01-01 00:01:00"], "iso8601"),
    (["2024-01-01T00:00:00+01:00", ""], "iso8601"), (["0", "1"], "s"),
    (["1700000000", "1700000001"], "s"), (["1700000000000", "1700000001000"], "ms"),
    (["1700000000000000", "1700000001000000"], "us"),
    (["1700000000000000000", "1700000001000000000"], "ns"),
])  # fmt: skip
def test_the_unit_of_the_time_goes_by_its_size(cells, unit):
    guess = guess_table(*table("timestamp,v", cells, ["1.5", "2.5"]))
    assert (guess.time, guess.time_unit) == ("timestamp", unit)


def test_a_column_that_is_called_time_and_holds_none_stops_with_what_to_write():
    header, rows = table("time,v", ["soon", "later", "soon"], ["1.5", "2.5", "3"])
    with pytest.raises(ConfigError, match=r"'time' \(such as 'soon'\).*--time-format.*--time -"):
        guess_table(header, rows)
    assert guess_table(header, rows, Asked(time=["-"])).time is None
    beside = guess_table(header, rows, timed=True)  # a record of a topic has a time of its own
    assert beside.time is None
    assert "time" in beside.aside


def test_constants_counters_texts_and_empty_columns_are_left_out_with_the_reason():
    n = 20
    guess = guess_table(
        *table(
            "index,same,words,nothing,row_count,v", [str(i) for i in range(n)], ["7"] * n,
            ["a", "b"] * (n // 2), [""] * n, [str(i) for i in range(n)],
            [str(i % 7) for i in range(n)],
        )
    )  # fmt: skip
    assert guess.channels == ("v",)
    assert guess.aside == {
        "index": "not a measurement, by its name", "same": "never changes",
        "words": "not numbers, such as 'a'", "nothing": "empty", "row_count": "counts the rows",
    }  # fmt: skip


def test_what_is_said_beats_what_is_guessed():
    header, rows = table("a,b,c,d", ["1", "2"] * 5, ["x", "y"] * 5, ["0", "1"] * 5, ["3", "4"] * 5)
    guess = guess_table(header, rows, Asked(sensor="b", label="c", channels=["d"]))
    assert (guess.sensor, guess.label, guess.channels) == ("b", "c", ("d",))
    with pytest.raises(ConfigError, match="no column 'e': the columns are a, b, c, d"):
        guess_table(header, rows, Asked(channels=["e"]))
    with pytest.raises(ConfigError, match=r"'b' .*holds no time"):
        guess_table(header, rows, Asked(time=["b"]))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter):
    lines = [delimiter.join(row) for row in (["t", "a, b;c"], ["1", '"x,y"'], ["2", "z"])]
    if delimiter in ",;":
        lines[0] = delimiter.join(["t", '"a, b;c"'])
    assert delimiter_of(lines) == delimiter
    assert split_all(lines, delimiter)[0] == ["t", "a, b;c"]


def test_a_table_too_short_for_any_window_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="60 rows a stream are too few"):
        suggest(60, 1, ("v",))
    assert suggest(2000, 1, ("v",), window=100, tolerance=4, contamination=0.1).spec.window == 100


SOURCES = {
    "asd": ("t", "label", None), "batadal": ("timestamp", "label", None),
    "cmapss": ("t", "label", "unit"), "gecco2018": ("timestamp", "label", None),
    "leakdb_sim": ("timestamp", "label", None), "nab": ("timestamp", "label", None),
    "river_waterflow": ("timestamp", "label", None), "skab": ("timestamp", "label", None),
    "smap_msl": ("t", "label", None), "smd": ("t", "label", None),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("source", sorted(SOURCES))
def test_real_sensor_tables_are_understood(source, evaluation_data, tmp_path):
    path = sorted((evaluation_data / "sensors" / source).glob("*.csv.gz"))[0]
    with gzip.open(path, "rb") as whole:
        (tmp_path / "head.csv").write_bytes(b"".join(itertools.islice(whole, 2000)))
    found = open_table(tmp_path / "head.csv")
    time, label, sensor = SOURCES[source]
    assert (found.guess.time, found.guess.label, found.guess.sensor) == (time, label, sensor)
    assert found.guess.channels
    assert not set(found.guess.channels) & {"label", "split", "changepoint", "RUL", time}


def test_a_real_water_meter_keeps_to_the_predicted_rate(evaluation_data):
    table = open_table(evaluation_data / "sensors" / "river_waterflow" / "water_flow.csv.gz")
    choice = suggest(table.n_rows, table.n_sensors, table.guess.channels)
    expected = []

    def add(_, verdicts):
        expected.extend(
            (v.band_upper - v.band_lower + 1) / (v.window_len + 1) for v in verdicts if is_ranked(v)
        )

    counts, failures = judge_table(choice.spec, *opened(table.settings(), table.told())[:2], add)
    assert counts.n_events == table.n_rows == 1268
    assert not failures
    assert counts.rejection_rate == pytest.approx(statistics.mean(expected), rel=0.5)


# ------------------------------------------------------------------ what a format is asked for
@pytest.mark.parametrize("zone", ["+0000", "-09:30", "Z"])
def test_no_format_is_passed_over_for_a_time_that_is_written_in_it(zone):
    for moment in (datetime(2031, 11, 23, 13, 45, 56, 7000), datetime(2001, 2, 3)):
        for written in dialect._FORMATS:
            text = moment.strftime(written.replace("%z", "")) + zone * ("%z" in written)
            assert dialect._may_be(text, written), (text, written)
            assert dialect._may_be(text.upper(), written), (text, written)


def test_few_formats_are_asked_for_a_time(monkeypatch):
    asked = []
    monkeypatch.setattr(
        dialect, "parse_moment", lambda text, form: asked.append(form) or parse_moment(text, form)
    )
    assert find_times(["06.01.2014 00:00"] * 3).format == "%d.%m.%Y %H:%M"
    assert len(set(asked)) < len(dialect._FORMATS) / 8
