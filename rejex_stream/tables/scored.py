"""What comes of a table that was judged: its episodes, and its rows with their verdicts."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import IO

from rejex_stream.decode import Decoder, decode_records
from rejex_stream.decode.csv import split_row
from rejex_stream.decode.reorder_buffer import ReorderBuffer, ReorderRules
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import FitFailed
from rejex_stream.incidents.situations import Onset, find_situations
from rejex_stream.plan.promises import EPISODE_GAP_EVENTS, EPISODE_GAP_S
from rejex_stream.readable import ChannelReading, TypicalRows
from rejex_stream.rejection.window import joint_severity
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.tables.inspection import Table
from rejex_stream.threads import one_thread, seldom_collecting
from rejex_stream.types import (
    Incident,
    Invalid,
    Label,
    OutcomeCounts,
    Reading,
    Reason,
    Record,
    Verdict,
)

_COLUMNS = ("label", "severity", "rank", "reason")
_MAX_NAMED = 2
_MAX_USUAL = 1_000
_BATCH = 20_000  # the more of a stream at once, the less an event costs


def judge_table(
    spec: EngineSpec,
    decoder: Decoder,
    records: Iterator[Record],
    on_judged: Callable[[Sequence[Reading], Sequence[Verdict]], object],
    on_progress: Callable[[int], object] = int,
    *,
    on_unread: Callable[[Mapping[int, Invalid]], object] = len,
    on_told: Callable[[Sequence[Incident]], object] = len,
    rules: ReorderRules | None = None,
) -> tuple[OutcomeCounts, list[FitFailed]]:
    """Judge the rows of a table in order; return what came of them, and the fits that failed.

    Where a fit failed, the model before went on.
    """
    engine, counts, done = Engine(spec, InlineExecutor()), OutcomeCounts(), 0
    rows = ReorderBuffer(rules) if rules and rules.any else None
    failures = list[FitFailed]()
    with one_thread(), seldom_collecting():
        while batch := list(islice(records, _BATCH)):
            taken, items = decode_records(decoder, batch)
            pairs = [*zip(taken, items, strict=True)]
            on_unread({one.position.offset: i for one, i in pairs if isinstance(i, Invalid)})
            if rows is not None:
                items = [item for pair in pairs for _, item in rows.add(*pair)]
            readings = [item for item in items if isinstance(item, Reading)]
            counts.n_invalid += sum(isinstance(i, Invalid) and not i.silent for i in items)
            verdicts = engine.process(readings)
            counts.add_verdicts(verdicts)
            failures += engine.take_failures()
            on_judged(readings, verdicts)
            on_told(engine.take_incidents())
            done += len(batch)
            on_progress(done)
    engine.close()
    return counts, failures


@dataclass(slots=True)
class Episode:
    """Events of one sensor near each other that are not normal, or those of one incident."""

    sensor: str
    first_row: int
    last_row: int
    first_ms: int
    last_ms: int
    peak_row: int
    anomalies: int = 0
    rejected: int = 0
    severity: float | None = None  # the highest
    departure: float = 0.0  # of the row of the peak, from what was expected there
    incident: str | None = None
    channels: Counter[str] = field(default_factory=Counter)
    reads: tuple[ChannelReading, ...] = ()  # at the peak, once all is seen
    opened_ms: int = 0  # of its incident
    together: tuple[str, ...] = ()  # whose incidents began with it, by one cause
    further: Mapping[str, int] = field(default_factory=dict)  # channels that joined it, and when

    def merge(self, later: Episode) -> bool:
        """Merge a later episode into this one; return whether it holds the new peak."""
        self.last_row = later.last_row
        self.last_ms = max(later.last_ms, self.last_ms)
        self.anomalies += later.anomalies
        self.rejected += later.rejected
        if self.incident is None:
            self.incident, self.opened_ms = later.incident, later.opened_ms
        self.channels += later.channels
        # Rolling columns stay odd after a fault, so scores may be higher than in it.
        own = self.departure, self.severity or 0.0
        other = later.departure, later.severity or 0.0
        if later.severity is not None:
            self.severity = max(own[1], other[1])
        if other > own:
            self.departure, self.peak_row = later.departure, later.peak_row
        return other > own


class Episodes:
    """Groups verdicts in order, much as the review queue does. O(1) a verdict.

    Runs of events near each other by their number come first: one in which an incident opens is
    that incident, and the others that are near in time, too, are one episode.
    """

    def __init__(self, channels: Sequence[str]) -> None:
        self._at = {name: i for i, name in enumerate(channels)}
        self._channel = dict[str, str]()  # by what is said of it, where it has no value
        self._usual = defaultdict[str, TypicalRows](lambda: TypicalRows(_MAX_USUAL))
        self._seen: Counter[str] = Counter()
        self._times: dict[str, tuple[int, int]] = {}  # the first and the last
        self._runs: dict[str, tuple[int, list[Episode]]] = {}  # how many the last had seen
        self._peaks: dict[tuple[str, int], tuple[tuple[float, ...], Verdict]] = {}
        self._further = defaultdict[str, dict[str, int]](dict)  # of incidents

    def take_told(self, changes: Iterable[Incident]) -> None:
        """Note which further faults were told of while an incident was open."""
        for change in changes:
            for one in change.spread:
                self._further[change.id].setdefault(one.channel, one.since_ms)
            if change.within and change.channels:
                channel = change.channels[0].channel
                self._further[change.within].setdefault(channel, change.onset_ms)

    def add(self, readings: Iterable[Reading], verdicts: Iterable[Verdict]) -> None:
        """Add readings and verdicts in order; warm-up is no episode."""
        for reading, verdict in zip(readings, verdicts, strict=True):
            self._seen[verdict.sensor] += 1
            first_ms, _ = self._times.get(verdict.sensor, (verdict.event_time_ms, 0))
            self._times[verdict.sensor] = first_ms, verdict.event_time_ms
            if verdict.label is Label.NORMAL and verdict.incident is None:
                self._usual[verdict.sensor].update(reading.values)
            elif verdict.reason is not Reason.WARM_UP:
                self._take(verdict, reading.values)

    def most_severe(self, top: int) -> tuple[list[Episode], list[Episode]]:
        """Return incidents and other episodes, the most severe first. O(runs log runs).

        Incidents that began together are one, the most severe of them. The `top` of either say what
        was read.
        """
        incidents, others = list[Episode](), list[Episode]()
        for _, runs in self._runs.values():
            last: Episode | None = None
            for run in runs:
                if run.incident is not None:
                    incidents.append(run)
                elif last is None or run.first_ms - last.last_ms > EPISODE_GAP_S * 1000:
                    last = replace(run, channels=run.channels.copy())
                    others.append(last)
                else:
                    last.merge(run)
        for episodes in incidents, others:
            episodes.sort(
                key=lambda e: (-joint_severity(e.severity or 0.0, e.anomalies), e.first_row)
            )
        incidents = self._by_cause(incidents)
        for episode in [*incidents[:top], *others[:top]]:
            episode.reads = tuple(self._reads(episode))
            episode.further = self._further.get(episode.incident or "", {})
        return incidents, others

    def _by_cause(self, incidents: Sequence[Episode]) -> list[Episode]:
        onsets = list[Onset]()
        for one in incidents:
            first_ms, last_ms = self._times[one.sensor]
            step_ms = max(0, last_ms - first_ms) / max(1, self._seen[one.sensor] - 1)
            onsets.append(
                Onset(str(one.incident), one.sensor, False, one.first_ms, one.opened_ms, step_ms)
            )
        of = {id_: situation.members for situation in find_situations(onsets, self._seen)
              for id_ in situation.members}  # fmt: skip
        found = dict[tuple[str, ...], Episode]()
        for one in incidents:
            worst = found.setdefault(of[str(one.incident)], one)
            if worst is not one:
                worst.together += (one.sensor,)
        return list(found.values())

    def _reads(self, episode: Episode) -> Iterator[ChannelReading]:
        usual = self._usual[episode.sensor]
        values, verdict = self._peaks[episode.sensor, episode.peak_row]
        for named, _ in episode.channels.most_common(_MAX_NAMED):
            at = self._at[self._channel.get(named, named)]
            yield ChannelReading(named, values[at], usual.range(at), verdict.expected(named))

    def _take(self, verdict: Verdict, values: tuple[float, ...]) -> None:
        row, ms, label = verdict.position.offset + 1, verdict.event_time_ms, verdict.label
        channels = Counter[str]()
        if verdict.limited:
            for one in verdict.limited.channels:
                gone = " (no value)" if one.missing_events else ""
                if one.units:
                    gone = " (unit was {}, is {})".format(*one.units)
                channels[one.channel + gone] += 1
                self._channel[one.channel + gone] = one.channel
        said = () if verdict.evidence is None else verdict.evidence.channels
        if said:
            channels[said[0].channel] += 1
        departure = max((one.expected.departure for one in said if one.expected), default=0.0)
        event = Episode(
            verdict.sensor, row, row, ms, ms, row,
            int(label is Label.ANOMALY), int(label is Label.REJECTED),
            verdict.severity, departure, verdict.incident, channels, opened_ms=ms,
        )  # fmt: skip
        seen, runs = self._runs.get(event.sensor, (0, list[Episode]()))
        n = self._seen[event.sensor]
        self._runs[event.sensor] = n, runs
        run = runs[-1] if runs else None
        if run is None or (
            n - seen > EPISODE_GAP_EVENTS
            or (run.incident is not None and run.incident != event.incident)
        ):
            runs.append(event)
        else:
            peak_row = run.peak_row
            if not run.merge(event):
                return
            if peak_row not in [one.peak_row for one in runs[-2:]]:  # a record's readings share it
                del self._peaks[event.sensor, peak_row]
        self._peaks[event.sensor, row] = values, verdict


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
        self._verdicts: dict[int, Verdict] = {}
        self._invalid: dict[int, Invalid] = {}
        self._joined = table.guess.value is not None
        taken = set(table.header)
        names = [f"rejex_{name}" if name in taken else name for name in _COLUMNS]
        self._write([self._line([*table.header, *names])])

    def passing(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            self._pending.append(record)
            yield record

    def add(self, verdicts: Sequence[Verdict], invalid: Mapping[int, Invalid]) -> None:
        self._verdicts |= {verdict.position.offset: verdict for verdict in verdicts}
        self._invalid |= invalid
        # What ends a joined row may come with the next batch.
        self._write_rows(len(self._pending) - self._joined * _BATCH)

    def finish(self) -> None:
        self._write_rows(len(self._pending))

    def _write_rows(self, n: int) -> None:
        lines = []
        for record in self._pending[: max(0, n)]:
            offset = record.position.offset
            verdict, invalid = self._verdicts.pop(offset, None), self._invalid.pop(offset, None)
            verdict_cells = _cells(verdict, invalid, self._table)
            row = (record.value or b"").decode("utf-8", "replace")
            cells = self._table.cells(record)
            if len(split_row(row, self._delimiter, strict=False)) != len(cells):
                row = self._line(cells)  # without delimiters at its end, or between blanks
            padding = self._delimiter * max(0, len(self._table.header) - len(cells))
            lines.append(f"{row}{padding}{self._delimiter}{self._line(verdict_cells)}")
        del self._pending[: max(0, n)]
        self._write(lines)

    def _line(self, cells: Sequence[str]) -> str:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="").writerow(cells)
        return text.getvalue()

    def _write(self, lines: Sequence[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines).encode())


def _cells(verdict: Verdict | None, invalid: Invalid | None, table: Table) -> list[str]:
    if verdict is None:
        part = "unreadable" if table.guess.value is None else "part of a joined row"
        return ["", "", "", part if invalid is None else invalid.reason]
    severity = "" if verdict.severity is None else f"{verdict.severity:.2f}"
    rank = "" if verdict.rank is None else f"{verdict.rank:g}"
    decimal = table.guess.marks.decimal
    numbers = [text.replace(".", decimal) for text in (severity, rank)]
    return [str(verdict.label), *numbers, str(verdict.reason or "")]
