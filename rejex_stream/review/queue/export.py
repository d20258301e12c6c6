"""Labels and their events as CSV or JSON Lines, row by row in constant memory.

One row is one label of one event. Sensor names and notes come from outside: a spreadsheet must not
take them for formulas, so such cells begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import active_labels, resolve
from rejex_stream.review.queue.database import Database
from rejex_stream.review.queue.labels import LabelCache

__all__ = ["FORMATS", "ExportFormat", "ExportRow", "as_csv", "as_jsonl", "cell", "rows", "write"]

ExportFormat: TypeAlias = Literal["csv", "jsonl"]
FORMATS: tuple[ExportFormat, ...] = ("csv", "jsonl")
_BATCH = 500


class ExportRow(NamedTuple):
    """One event with what people decided about it.

    Attributes
    ----------
    state, verdict
        What all labels add up to; `verdict` is empty where there is none.
    model_label, rank, window_len, score, severity
        What the model said: ``rejected``, or the accepted label of an audit.
    reviewers, tags, fault_codes, notes
        Of the labels that stand, in their order, separated by ``; ``.
    readings
        The reading itself, a JSON object by channel: nothing has to be joined.
    """

    topic: str
    partition: int
    offset: int
    stream_key: str
    sensor: str
    event_time_ms: int
    episode_id: str
    why: str
    state: str
    verdict: str
    model_label: str
    reason: str
    score: float | None
    severity: float | None
    rank: int | None
    window_len: int
    model_epoch: int | None
    reviewers: str
    tags: str
    fault_codes: str
    notes: str
    decided_ms: int | None
    readings: str


def rows(
    database: Database, *, labelled_only: bool = True, final_only: bool = False
) -> Iterator[ExportRow]:
    """Yield events in order of arrival; constant memory, a short read per batch.

    A known case stands among those that nobody has labelled, and is left out once somebody has.

    Parameters
    ----------
    labelled_only
        Leave out events that nobody has labelled.
    final_only
        Leave out events that wait for a second opinion, whose reviewer must not see the first.
    """
    last, cache = 0, LabelCache(512)
    while True:
        with database.read() as connection:
            batch = connection.execute(
                "SELECT v.*, s.stream_key, s.sensor, e.why, e.status, "
                "EXISTS (SELECT 1 FROM known WHERE event_id = v.event_id) AS known FROM event v "
                "JOIN sensor s USING (sensor_id) JOIN episode e USING (episode_id) "
                "WHERE v.event_id > ? ORDER BY v.event_id LIMIT ?",
                (last, _BATCH),
            ).fetchall()
            found = [
                one
                for row in batch
                if not (final_only and row["status"] == "needs_second")
                for one in [_row(connection, row, cache)]
                if not (row["known"] and one.reviewers)
            ]
        if not batch:
            return
        last = batch[-1]["event_id"]
        for one in found:
            if one.state != "open" or not labelled_only:
                yield one


def _row(connection: Connection, row: Row, cache: LabelCache) -> ExportRow:
    standing = active_labels(
        cache.get(*tuple(found))
        for found in connection.execute(
            "SELECT l.label_seq, l.record FROM label_event JOIN label l USING (label_seq) "
            "WHERE event_id = ? ORDER BY label_seq",
            (row["event_id"],),
        )
    )
    found = resolve(standing)
    item = decode_review(row["item"])
    verdict = item.verdict

    def joined(parts: list[str]) -> str:
        return "; ".join(dict.fromkeys(part for part in parts if part))

    return ExportRow(
        row["topic"],
        row["partition"],
        row["offset"],
        row["stream_key"],
        row["sensor"],
        row["event_time_ms"],
        row["episode_id"],
        row["why"],
        found.state,
        found.verdict or "",
        str(verdict.label),
        str(verdict.reason or ""),
        verdict.score,
        verdict.severity,
        verdict.rank,
        verdict.window_len,
        verdict.model_epoch,
        joined([label.reviewer for label in standing]),
        joined([tag for label in standing for tag in label.tags]),
        joined([label.fault_code for label in standing]),
        joined([label.note for label in standing]),
        standing[-1].created_ms if standing else None,
        json.dumps(dict(zip(item.channels, item.values, strict=False)), ensure_ascii=False),
    )


def cell(value: Any) -> str:  # noqa: ANN401 - whatever a row holds
    r"""Return a value for a spreadsheet; text that would start a formula gets an apostrophe first.

    Also after a semicolon, tab or line's end: a spreadsheet that splits there would begin a cell.

    Examples
    --------
    >>> cell("=1+1"), cell("@SUM(A1)"), cell(-3.5), cell("-3.5 V"), cell(None)
    ("'=1+1", "'@SUM(A1)", '-3.5', "'-3.5 V", '')
    >>> cell("\t=1+1"), cell("warm; =1+1"), cell("rose by 2 - 3 V, -1 V later")
    ("'\t'=1+1", "warm; '=1+1", 'rose by 2 - 3 V, -1 V later')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    harmless = _STARTS.sub(r"\1'\2", value)
    return f"'{harmless}" if harmless[:1] in {"\t", "\r", "\n"} else harmless


# Spreadsheets skip what cannot be seen before they look for a sign; some know the wide signs too.
_UNSEEN = " \\t\\r\\n\\x0b\\x0c\\x00\\ufeff\\u00a0\\u200b"
_STARTS = re.compile(f"((?:^|[;\\t\\r\\n])[{_UNSEEN}]*)([=+\\-@|＝＋－＠])")


def as_csv(found: Iterator[ExportRow]) -> Iterator[str]:
    """Yield CSV (RFC 4180) in pieces, the header first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(ExportRow._fields)
    for count, row in enumerate(found, 1):
        writer.writerow([cell(value) for value in row])
        if count % 200 == 0:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def as_jsonl(found: Iterator[ExportRow]) -> Iterator[str]:
    """Yield JSON Lines, values as they are."""
    for row in found:
        yield msgspec.json.encode(row._asdict()).decode() + "\n"


def write(database: Database, path: Path, form: ExportFormat, *, labelled_only: bool = True) -> int:
    """Write an export to `path`; returns the number of rows."""
    count = 0

    def counted() -> Iterator[ExportRow]:
        nonlocal count
        for row in rows(database, labelled_only=labelled_only):
            count += 1
            yield row

    pieces = as_csv(counted()) if form == "csv" else as_jsonl(counted())
    with path.open("w", encoding="utf-8", newline="") as file:
        for piece in pieces:
            file.write(piece)
    return count
