"""Excel and Parquet as records: cell by cell, sheet by sheet, and the same after going back."""

import zipfile
from datetime import date, datetime, time
from decimal import Decimal

import pytest
from rejex_connectors.files import FileSource
from rejex_connectors.files.workbooks import workbook_of

from rejex_stream.config.assembly import records_of
from rejex_stream.errors import ConfigError, ConnectorError

AT = datetime(2024, 1, 6, 12, 30)


def values(source):
    return [record.value.decode() for record in records_of(source)]


@pytest.fixture
def book(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    sheet = made.active
    sheet.append(["t", "day", "n", "on", "text", "last"])
    sheet.append([AT, AT.date(), 0.1, True, 'two\nlines, "quoted"', "x"])
    sheet.append([AT, None, 12, False, "1,5"])
    sheet.append([])
    sheet.append([time(12, 30), "#DIV/0!", 1e-9, None, "ü", "y"])
    sheet.cell(60, 9).font = openpyxl.styles.Font(bold=True)
    other = made.create_sheet("Other")
    other.append(["Title"])
    other.append(["t", "v"])
    other.append([1, None])
    made.save(tmp_path / "b.xlsx")
    return tmp_path / "b.xlsx"


def test_every_cell_has_one_text_and_the_sheet_ends_with_its_last(book):
    source = FileSource(book)
    assert source.header == b"t,day,n,on,text,last"
    expected = [
        '2024-01-06T12:30:00,2024-01-06T00:00:00,0.1,1,"two\nlines, ""quoted""",x',
        '2024-01-06T12:30:00,,12,0,"1,5",', ",", "12:30:00,,1e-09,,ü,y",
    ]  # fmt: skip
    assert values(source) == expected
    assert workbook_of(str(book)) == "excel"
    named = book.rename(book.with_name("export"))  # standard input has no ending either
    assert values(FileSource(named, format="excel")) == expected


def test_another_sheet_below_its_title(book):
    source = FileSource(book, sheet="Other", skip_rows=1)
    assert (source.header, values(source)) == (b"t,v", ["1,"])
    with pytest.raises(ConfigError, match="has no sheet 'Othr': it has 'Sheet', 'Other'"):
        _ = FileSource(book, sheet="Othr").header


def test_a_workbook_is_read_again_from_any_record(book):
    source = FileSource(book)
    (assigned,) = source.changes()
    source.seek(assigned.partition, 0)
    first = source.poll(10, timeout_s=0)
    for offset in (3, 1, 0):
        source.seek(assigned.partition, offset)
        assert source.poll(10, timeout_s=0) == first[offset:]
    assert source.exhausted
    source.close()


def test_every_type_of_a_parquet_file_has_one_text(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "ns": pa.array([AT, None], pa.timestamp("us")).cast(pa.timestamp("ns")),
        "odd": pa.array([1_704_544_200_000_000_001, 1], pa.timestamp("ns", "UTC")),
        "day": [date(2024, 1, 6), None], "price": [Decimal("1.50"), None], "on": [True, None],
        "f": pa.array([0.5, float("nan")], pa.float32()), "who": pa.array([b"p-1", b"\xff"]),
        "list": [[1, 2], None], "last": [None, 7],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path := tmp_path / "p.parquet")
    source = FileSource(path)
    assert source.header == b"ns,odd,day,price,on,f,who,list,last"
    assert values(source) == [
        '2024-01-06T12:30:00,2024-01-06T12:30:00+00:00,2024-01-06,1.50,1,0.5,p-1,"[1, 2]",',
        ",1970-01-01T00:00:00+00:00,,,,nan,\\xff,,7",
    ]


@pytest.mark.parametrize(("name", "content", "said"), [
    ("no.xlsx", None, "cannot be opened: No such file or directory"),
    ("bad.xlsx", b"PK\x03\x04", "bad.xlsx cannot be read: "),
    ("bad.parquet", b"PAR1", "bad.parquet cannot be read: "),
])  # fmt: skip
def test_a_broken_one_is_one_sentence(name, content, said, tmp_path):
    pytest.importorskip("openpyxl")
    pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConnectorError, match=said) as caught:
        _ = FileSource(tmp_path / name).header
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part", "name"), [("xl/worksheets/sheet1.xml", b"sheetData"), ("xl/styles.xml", b"styleSheet")]
)
def test_a_small_file_that_unpacks_to_hundreds_of_megabytes_is_refused(part, name, book, tmp_path):
    """588 kB took 1.25 GB."""
    bomb = tmp_path / "bomb.xlsx"
    row = b'<row><c t="n"><v>1</v></c></row>'
    with zipfile.ZipFile(book) as parts, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as out:
        for other in parts.namelist():
            content = parts.read(other)
            if other == part:
                end = b"</" + name + b">"
                content = content.replace(end, row * (70_000_000 // len(row)) + end)
            out.writestr(other, content)
    assert bomb.stat().st_size < 1_000_000
    with pytest.raises(ConnectorError, match=f"unpacks {part} to 7. MB, .* times its size"):
        _ = FileSource(bomb).header


def test_what_is_no_text_cannot_be_followed(book):
    with pytest.raises(ConfigError, match="cannot be followed: write it as CSV"):
        FileSource(book, follow=True)
