"""What comes of a table that was judged: its episodes, and its rows with their verdicts."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from rejex_stream.decode.csv import split_row
from rejex_stream.plan.promises import EpisodeRule
from rejex_stream.tables.inspection import Table
from rejex_stream.types import Invalid, Label, Reason, Record, Verdict

__all__ = ["Episode", "Episodes", "Held", "ScoredCsv"]

_EPISODE = EpisodeRule()
_COLUMNS = ("label", "severity", "rank", "reason")


@dataclass(slots=True)
class Episode:
    """Events of one sensor near each other that are not normal."""

    sensor: str
    first_row: int
    last_row: int
    first_ms: int
    last_ms: int
    anomalies: int = 0
    rejected: int = 0
    severity: float | None = None
    channels: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Held:
    """Rows of one sensor for which an incident held the reference: they have no rank."""

    first_row: int  # of the last stretch
    last_row: int
    rows: int = 0
    still: bool = False  # up to the sensor's last row


class Episodes:
    """Groups verdicts in order, much as the review queue does. O(1) a verdict."""

    def __init__(self) -> None:
        self.all: list[Episode] = []
        self._seen: Counter[str] = Counter()
        self._open: dict[str, tuple[int, Episode]] = {}
        self.held: dict[str, Held] = {}

    def worst(self, n: int) -> list[Episode]:
        """Return the `n` most severe, the worst first. O(episodes log episodes)."""
        return sorted(self.all, key=lambda e: (-(e.severity or 0.0), -e.anomalies, e.first_row))[:n]

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in order; warm-up is no episode."""
        for verdict in verdicts:
            self._seen[verdict.sensor] += 1
            if verdict.held or verdict.sensor in self.held:
                self._hold(verdict)
            if verdict.label is not Label.NORMAL and verdict.reason is not Reason.WARM_UP:
                self._take(verdict)

    def _hold(self, verdict: Verdict) -> None:
        row = verdict.position.offset + 1
        held = self.held.setdefault(verdict.sensor, Held(row, row))
        if verdict.held:
            held.first_row = held.first_row if held.still else row
            held.last_row = row
            held.rows += 1
        held.still = verdict.held

    def _take(self, verdict: Verdict) -> None:
        sensor, now, row = verdict.sensor, verdict.event_time_ms, verdict.position.offset + 1
        seen, rule = self._seen[sensor], _EPISODE
        at, episode = self._open.get(sensor, (0, None))
        near = episode is not None and (
            now - episode.last_ms <= rule.gap_s * 1000 or seen - at <= rule.gap_events
        )
        if episode is None or not near:
            episode = Episode(sensor, row, row, now, now)
            self.all.append(episode)
        self._open[sensor] = seen, episode
        episode.last_row = row
        episode.last_ms = max(now, episode.last_ms)
        episode.anomalies += verdict.label is Label.ANOMALY
        episode.rejected += verdict.label is Label.REJECTED
        if verdict.severity is not None:
            episode.severity = max(verdict.severity, episode.severity or 0.0)
        if verdict.limited:
            for one in verdict.limited.channels:
                episode.channels[one.channel + " (no value)" * bool(one.missing_events)] += 1
        if verdict.evidence is not None and verdict.evidence.channels:
            episode.channels[verdict.evidence.channels[0].channel] += 1


class ScoredCsv:
    """Writes each row as it stood in the input, with label, severity, rank and reason behind it.

    A row that could not be read is there too, without a label, its reason a sentence. A column
    that the table has already gets ``rejex_`` before its name. The text is UTF-8; what blanks
    have parted is parted by commas.
    """

    def __init__(self, table: Table, out: IO[bytes]) -> None:
        self._table, self._out = table, out
        self._delimiter = "," if table.delimiter == " " else table.delimiter
        self._pending: list[Record] = []
        taken = set(table.header)
        names = [f"rejex_{name}" if name in taken else name for name in _COLUMNS]
        self._write([self._line([*table.header, *names])])

    def passing(self, records: Iterator[Record]) -> Iterator[Record]:
        """Take note of the rows on their way to the engine."""
        for record in records:
            self._pending.append(record)
            yield record

    def add(self, verdicts: Sequence[Verdict], invalid: Mapping[int, Invalid]) -> None:
        """Write the rows that passed since the last call. O(bytes)."""
        by_offset = {verdict.position.offset: verdict for verdict in verdicts}
        lines = []
        for record in self._pending:
            offset = record.position.offset
            found = _cells(by_offset.get(offset), invalid.get(offset), self._table)
            row = (record.value or b"").decode("utf-8", "replace")
            cells = self._table.cells(record)
            if len(split_row(row, self._delimiter, strict=False)) != len(cells):
                row = self._line(cells)  # without delimiters at its end, or between blanks
            padding = self._delimiter * max(0, len(self._table.header) - len(cells))
            lines.append(f"{row}{padding}{self._delimiter}{self._line(found)}")
        self._pending.clear()
        self._write(lines)

    def _line(self, cells: Sequence[str]) -> str:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="").writerow(cells)
        return text.getvalue()

    def _write(self, lines: Sequence[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines).encode())


def _cells(verdict: Verdict | None, invalid: Invalid | None, table: Table) -> list[str]:
    if verdict is None:
        return ["", "", "", "unreadable" if invalid is None else invalid.reason]
    severity = "" if verdict.severity is None else f"{verdict.severity:.2f}"
    rank = "" if verdict.rank is None else f"{verdict.rank:g}"
    decimal = table.guess.marks.decimal
    numbers = [text.replace(".", decimal) for text in (severity, rank)]
    return [str(verdict.label), *numbers, str(verdict.reason or "")]
