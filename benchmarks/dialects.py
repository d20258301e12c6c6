"""How well dialects of CSV are found: ours beside the sniffers of DuckDB and CleverCSV.

python -m benchmarks.dialects [--tables 150] [--show]

Each table has a time, three channels of numbers and a text, written in one of the combinations of
delimiter, quotes, decimal mark, rows above, end of lines and encoding. Counted is what each reader
finds by itself: the delimiter; the row with the names; all three channels as numbers with their
values; and a first row of data that is the first. The libraries, which the project does not need
otherwise, are asked where they are installed (``pip install duckdb clevercsv``); for encodings that
they do not find they get the text as UTF-8, which is more than they find.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import io
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rejex_stream.errors import RejexError
from rejex_stream.tables.draft import opened
from rejex_stream.tables.inspection import open_table
from rejex_stream.types import Reading

ROWS = 200
NAMES = ["Zeit", "Durchfluss", "Druck", "Füllstand", "Schicht"]
ABOVE = {
    "nothing": [],
    "a title": [["Anlage 4"]],
    "settings": [["Gerät", "K-17"], ["Intervall", "60"], ["Ort", "Halle 2"]],
    "settings, padded": [["Gerät", "K-17", "", "", ""], ["Intervall", "60", "", "", ""]],
    "thirty rows": [[f"Parameter {i}", str(i)] for i in range(30)],
}
FINDINGS = ("delimiter", "names", "numbers", "first row", "all")
Found = dict[str, bool]


@dataclass(frozen=True)
class Dialect:
    """One way to write a table."""

    delimiter: str
    quotes: int
    decimal: str
    above: str
    end: str
    encoding: str

    def write(self, path: Path, chance: random.Random) -> list[list[str]]:
        """Write a table; return its channels' values as numbers with a point."""
        made = [[f"{chance.gauss(mean, 1):.{places}f}" for mean, places in
                 ((120, 2), (4.5, 3), (61, 1))] for _ in range(ROWS)]  # fmt: skip
        out = io.StringIO(newline="")
        plain = csv.writer(out, delimiter=self.delimiter, lineterminator=self.end)
        plain.writerows(ABOVE[self.above])
        quoted = csv.writer(
            out, delimiter=self.delimiter, quoting=self.quotes, lineterminator=self.end
        )
        quoted.writerow(NAMES)
        for i, values in enumerate(made):
            time = f"2025-03-{1 + i // 96:02d} {i // 4 % 24:02d}:{i % 4 * 15:02d}:00"
            cells = [value.replace(".", self.decimal) for value in values]
            quoted.writerow([time, *cells, f"Früh {i % 2 + 1}"])
        path.write_bytes(out.getvalue().encode(self.encoding))
        return made


def dialects(n: int, seed: int = 28) -> list[Dialect]:
    """Choose so many of all combinations that can be read at all."""
    every = [
        Dialect(*one)
        for one in itertools.product(
            (",", ";", "\t", "|"), (csv.QUOTE_MINIMAL, csv.QUOTE_ALL), (".", ","), ABOVE,
            ("\n", "\r\n", "\r"), ("utf-8", "utf-8-sig", "cp1252", "utf-16"),
        )
    ]  # fmt: skip
    return random.Random(seed).sample(every, n)


def ours(path: Path, dialect: Dialect, made: list[list[str]]) -> Found:
    """Ask the product, as ``score`` and ``init`` do."""
    table = open_table(path)
    decoder, records, _ = opened(table.settings(), table.told())
    rows = [reading for r in records if isinstance(reading := decoder.decode(r), Reading)]
    values = [[str(value) for value in row.values] for row in rows]
    return {
        "delimiter": table.delimiter == dialect.delimiter,
        "names": list(table.header) == NAMES,
        "numbers": list(table.guess.channels) == NAMES[1:4]
        and values == [[str(float(cell)) for cell in row] for row in made],
        "first row": table.n_rows == ROWS,
    }


def duckdb(path: Path, dialect: Dialect, made: list[list[str]]) -> Found:
    """Ask DuckDB's ``sniff_csv``, and read with what it found."""
    db = importlib.import_module("duckdb")
    as_utf8(path, dialect)
    delimiter, columns = db.sql(f"SELECT Delimiter, Columns FROM sniff_csv('{path}')").fetchall()[0]
    types = {column["name"]: column["type"] for column in columns}
    rows = db.sql(f"SELECT * FROM read_csv('{path}')").fetchall()
    return {
        "delimiter": delimiter == dialect.delimiter,
        "names": list(types) == NAMES,
        "numbers": [types.get(name) for name in NAMES[1:4]] == ["DOUBLE"] * 3
        and [[str(cell) for cell in row[1:4]] for row in rows]
        == [[str(float(cell)) for cell in row] for row in made],
        "first row": len(rows) == ROWS,
    }


def clevercsv(path: Path, dialect: Dialect, made: list[list[str]]) -> Found:
    """Ask CleverCSV for the dialect and the header; it types no column and skips no row above."""
    module = importlib.import_module("clevercsv")
    text = as_utf8(path, dialect)
    found = module.Sniffer().sniff(text[:20_000])
    rows = list(module.reader(io.StringIO(text, newline=""), dialect=found))
    header = module.Sniffer().has_header(text[:20_000])
    body = rows[1:] if header else rows
    cells = [row[1:4] for row in body]
    return {
        "delimiter": found.delimiter == dialect.delimiter,
        "names": header and rows[0] == NAMES,
        "numbers": dialect.decimal == "." and cells == made,
        "first row": len(body) == ROWS,
    }


def as_utf8(path: Path, dialect: Dialect) -> str:
    """Write a table again in UTF-8 for those who find no encodings, and return its text."""
    text = path.read_bytes().decode(dialect.encoding)
    path.write_bytes(text.encode())
    return text


READERS: dict[str, Callable[[Path, Dialect, list[list[str]]], Found]] = {
    "rejex-stream": ours, "duckdb": duckdb, "clevercsv": clevercsv,
}  # fmt: skip


def results(n: int, *, show: bool) -> Iterator[tuple[str, Counter[str]]]:
    """Yield for each reader that is installed how often it was right, by what was to be found."""
    chosen = dialects(n)
    for name, reader in READERS.items():
        if name != "rejex-stream" and importlib.util.find_spec(name) is None:
            continue
        right: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            for i, dialect in enumerate(chosen):
                path = Path(folder) / f"{i}.csv"
                made = dialect.write(path, random.Random(i))
                try:
                    found = reader(path, dialect, made)
                except (RejexError, ValueError, TypeError, LookupError) as error:
                    found = {}
                    why = f"{type(error).__name__}: {error}"
                except Exception as error:
                    found, why = {}, f"{type(error).__name__}"
                else:
                    why = ", ".join(what for what, good in found.items() if not good)
                right.update(what for what, good in found.items() if good)
                right["all"] += len(found) == 4 and all(found.values())
                if show and why:
                    print(f"{name}: {dialect}: {why[:160]}")
        yield name, right


def main() -> None:
    """Print the table of all readers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=150)
    parser.add_argument("--show", action="store_true", help="print each table that was read wrong")
    parser.add_argument("--out", type=Path, help="write the counts there, as JSON")
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    print(f"| of {asked.tables} dialects | {' | '.join(FINDINGS)} |")
    print(f"|---|{'---|' * len(FINDINGS)}")
    for name, right in results(asked.tables, show=asked.show):
        found[name] = {what: right[what] for what in FINDINGS}
        print(f"| {name} | {' | '.join(str(right[what]) for what in FINDINGS)} |")
    if asked.out is not None:
        asked.out.write_text(json.dumps({"tables": asked.tables, "right": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
