"""A file of known truths, read row by row: what cannot be meant is refused in a sentence."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.types import Position

__all__ = ["Case", "Truth", "read_cases"]

Truth: TypeAlias = Literal["anomaly", "normal"]
_FIELDS = ("stream", "event", "truth")
_EVENT = re.compile(r"(.+)-(\d{1,9})-(\d{1,18})(?:\.(\d{1,9}))?")
_MOST_SHOWN = 60


class Case(NamedTuple):
    """What an event was; `line` is where the file says so, from 1 on."""

    line: int
    stream_key: str
    position: Position
    truth: Truth


def read_cases(path: Path) -> tuple[list[Case], list[str]]:
    r"""Return the cases of a file, each event once, and a sentence for each row that is none.

    An event that is given with two truths is no case at all. O(rows).

    Parameters
    ----------
    path
        CSV with the columns `stream`, `event` and `truth`, or JSON Lines with these fields; an
        `event` is written as in verdicts, ``topic-partition-offset``.

    Raises
    ------
    ConfigError
        If the file cannot be read, its name ends otherwise, or a column is missing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cases.csv"
    ...     _ = path.write_text("stream,event,truth\nT07,feed-0-9,anomaly\nT07,feed-0-12,odd\n")
    ...     cases, refused = read_cases(path)
    >>> cases[0].position, cases[0].truth
    (Position(topic='feed', partition=0, offset=9, reading=0), 'anomaly')
    >>> print(*refused)
    line 3: the truth of 'feed-0-12' is 'odd': expected anomaly or normal.
    """
    form = path.suffix.lower()
    if form not in (".csv", ".jsonl", ".ndjson", ".json"):
        raise ConfigError(
            f"{str(path)!r} does not tell its form: name it .csv, or .jsonl for JSON Lines."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error.strerror}): check the path."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} is no text in UTF-8: write it as such.") from None
    rows = _of_csv(text, path) if form == ".csv" else _of_lines(text)
    return _each_once(rows)


def _of_csv(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    missing = [name for name in _FIELDS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            f"{str(path)!r} has no column {', '.join(missing)}: its first line must be "
            f"{','.join(_FIELDS)}."
        )
    for row in reader:
        yield reader.line_num, row


def _of_lines(text: str) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line.encode())
        except msgspec.DecodeError:
            found = None
        yield number, found if isinstance(found, dict) else None


def _each_once(
    rows: Iterable[tuple[int, Mapping[str, Any] | None]],
) -> tuple[list[Case], list[str]]:
    found: dict[Position, Case] = {}
    twofold: set[Position] = set()
    refused = []
    for number, row in rows:
        case = _case(number, row)
        if isinstance(case, str):
            refused.append(f"line {number}: {case}")
            continue
        first = found.setdefault(case.position, case)
        if (first.stream_key, first.truth) != (case.stream_key, case.truth):
            twofold.add(case.position)
            refused.append(
                f"line {number}: {shown(case.position)} is {case.truth} of {shown(case.stream_key)}"
                f", and on line {first.line} {first.truth} of {shown(first.stream_key)}: an event "
                "has one truth; keep the line that is right."
            )
    return [case for case in found.values() if case.position not in twofold], refused


def _case(number: int, row: Mapping[str, Any] | None) -> Case | str:
    if row is None:
        return "it is no JSON object: expected one with stream, event and truth."
    stream, event, truth = (row.get(name) for name in _FIELDS)
    match = _EVENT.fullmatch(event.strip()) if isinstance(event, str) else None
    if match is None:
        return f"the event is {shown(event)}: expected topic-partition-offset, such as 'feed-0-7'."
    if not isinstance(stream, str) or not stream:
        return f"the stream of {shown(event)} is {shown(stream)}: expected the key of its stream."
    said = truth.strip() if isinstance(truth, str) else truth
    if said not in ("anomaly", "normal"):
        return f"the truth of {shown(event)} is {shown(truth)}: expected anomaly or normal."
    position = Position(match[1], int(match[2]), int(match[3]), int(match[4] or 0))
    return Case(number, stream, position, cast(Truth, said))


def shown(value: object) -> str:
    """Return a value of a file as a sentence can hold it."""
    text = repr(str(value) if isinstance(value, Position) else value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
