"""The demo on a terminal: what the pipelines are doing, while they do it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rejex_stream.config.assembly import monitor_config, run_pipeline
from rejex_stream.config.assembly.control_line import ControlLine, make_command
from rejex_stream.demo.feeds import Feed
from rejex_stream.monitor import Alarm, Theory
from rejex_stream.report.findings import theory_at
from rejex_stream.report.plain_words import in_words, percent
from rejex_stream.run.progress import RunEvent, RunSummary
from rejex_stream.types import (
    Command,
    CommandKind,
    Incident,
    IncidentState,
    Label,
    Outcome,
    Partition,
    Reason,
    Verdict,
)

__all__ = ["Board", "picture", "play", "watched"]

_FRAME_S = 0.04
_WIDTH = 60
_RECENT = 4
_TALL = 32  # terminal rows from which on both pipelines have room
_STYLES = {
    "normal": "steel_blue",
    "anomaly": "red",
    "rejected": "yellow",
    "no score": "magenta",
    "learning": "bright_black",
}
_SIGNS = {"anomaly": "▲", "rejected": "○", "no score": "✕"}


class Board:
    """What the pipeline of one feed has said so far; watches its run.

    Attributes
    ----------
    done
        How many records have an outcome.
    kinds, unreadable
        How many outcomes of each kind.
    recent, alarms
        The last anomalies and rejected events; what the monitors said.
    incidents
        As they stand, by id, in the order in which they opened.
    theory
        Of the last band.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.alarms: list[Alarm] = []
        self.incidents: dict[str, Incident] = {}
        self.done = 0
        self.kinds: Counter[str] = Counter()
        self.unreadable = 0
        self.recent: deque[tuple[str, Verdict]] = deque(maxlen=_RECENT)
        self.theory: Theory | None = None
        self._monitors = monitor_config(feed.config)
        self._rolling: dict[str, deque[bool]] = {}

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Take note of a batch."""
        for outcome in () if replaying else outcomes:
            self.done += 1
            for incident in outcome.incidents:
                self.incidents[incident.id] = incident
            if outcome.verdict is None:
                self.unreadable += 1
            else:
                self._count(outcome.verdict)

    def event(self, event: RunEvent) -> None:
        """Nothing about the run itself is shown."""

    def _count(self, verdict: Verdict) -> None:
        kind = _kind(verdict)
        self.kinds[kind] += 1
        if kind in _SIGNS:
            self.recent.append((kind, verdict))
        theory = theory_at(verdict, self._monitors)
        if theory is None:
            return
        window = self._monitors.window
        rolling = self._rolling.setdefault(verdict.stream_key, deque(maxlen=window))
        rolling.append(verdict.reason is Reason.AMBIGUOUS)
        self.theory = theory

    @property
    def rolling_rate(self) -> float | None:
        """Share of rejected in the newest windows of all streams; ``None`` before there are any."""
        ranked = sum(map(len, self._rolling.values()))
        return sum(map(sum, self._rolling.values())) / ranked if ranked else None

    def __str__(self) -> str:
        kinds = ", ".join(f"{self.kinds[kind]:,} {kind}" for kind in _STYLES)
        return f"{self.feed.title}: {self.done:,} records: {kinds}, {self.unreadable} unreadable"


def _kind(verdict: Verdict) -> str:
    if verdict.reason is Reason.WARM_UP:
        return "learning"
    if verdict.label is not Label.REJECTED:
        return verdict.label.value
    return "rejected" if verdict.reason is Reason.AMBIGUOUS else "no score"


def play(board: Board, *, seconds: float = 0.0) -> RunSummary:
    """Run the pipeline of a board to the end of its feed, as ``rejex-stream run`` would.

    Parameters
    ----------
    board
        Is told everything.
    seconds
        How long it should take, so that people can watch; 0 for full speed. Changes no verdict.
    """
    feed = board.feed
    if feed.answer_after is None:
        return _run(board, seconds)
    path = Path(str(feed.config.input.path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: feed.answer_after]))
    first = _run(board, seconds)
    for incident in board.incidents.values():
        if incident.state is not IncidentState.CLOSED:
            ControlLine(feed.config).say(_answer(incident))
    with path.open("ab") as file:
        file.writelines(lines[feed.answer_after :])
    summary = _run(board, seconds)
    summary.labels.update(first.labels)
    summary.reasons.update(first.reasons)
    return summary


def _answer(incident: Incident) -> Command:
    """Say what the people at the turbine would."""
    return make_command(
        CommandKind.FAULT, id_=f"demo-{incident.id}", by="demo", given_ms=incident.changed_ms,
        note="The bearing was worn, and is replaced.", stream_key=incident.stream_key,
        incident=incident.id, version=incident.version,
    )  # fmt: skip


def _run(board: Board, seconds: float) -> RunSummary:
    return run_pipeline(
        board.feed.config,
        observers=[_Unhurried(board, board.feed.n_records / seconds) if seconds > 0 else board],
        on_alarm=lambda partition, alarm: board.alarms.append(alarm),
        on_incident=lambda incident: None,  # the board sees outcomes
    )


class _Unhurried:
    """Passes outcomes on at a steady rate, and holds up the run meanwhile."""

    def __init__(self, board: Board, per_s: float) -> None:
        self._board = board
        self._per_s = per_s
        self._begun = time.monotonic()

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        frame = max(1, round(self._per_s * _FRAME_S))
        for start in range(0, len(outcomes), frame):
            self._board.outcomes(partition, outcomes[start : start + frame], replaying=replaying)
            ahead_s = self._board.done / self._per_s - (time.monotonic() - self._begun)
            if ahead_s > 0:
                time.sleep(ahead_s)

    def event(self, event: RunEvent) -> None:
        self._board.event(event)


@contextmanager
def watched(console: Console, boards: Sequence[Board]) -> Iterator[None]:
    """Draw the boards ten times a second, if the console is a terminal."""
    if not console.is_terminal:
        yield
        return
    with Live(
        console=console,
        refresh_per_second=10,
        get_renderable=lambda: picture(console, boards),
        transient=True,
    ):
        yield


def picture(console: Console, boards: Sequence[Board]) -> RenderableType:
    """Return all boards; on a low terminal only the one that moves in full."""
    low = console.height < _TALL
    now = next((b for b in boards if b.done < b.feed.n_records), boards[-1])
    return Group(
        *(Padding(_panel(board, brief=low and board is not now), (1, 2, 0, 2)) for board in boards)
    )


def _panel(board: Board, *, brief: bool) -> RenderableType:
    head = Table.grid(expand=False, padding=(0, 2))
    rest = [("default", board.done), ("bright_black", board.feed.n_records - board.done)]
    head.add_row(
        Text(board.feed.title, style="bold"),
        _bar(rest, 28, "━"),
        Text(f"{board.done:,} of {board.feed.n_records:,}"),
    )
    if brief or not board.done:
        return head
    counts = Text()
    for kind, style in _STYLES.items():
        if board.kinds[kind]:
            counts.append(f"{board.kinds[kind]:,} ", style=f"bold {style}")
            counts.append(f"{kind}   ")
    mix = _bar([(style, board.kinds[kind]) for kind, style in _STYLES.items()], _WIDTH)
    parts: list[RenderableType] = [head, Text(), counts, mix]
    if board.theory is not None:
        parts += [Text(), *_gauge(board.rolling_rate or 0.0, board.theory)]
    parts.append(Text())
    parts += [_recent(kind, verdict) for kind, verdict in board.recent]
    if board.alarms:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append("! monitor   ", style="bold red").append(board.alarms[-1].message)
        parts.append(line)
    return Group(*parts)


def _gauge(rate: float, theory: Theory) -> list[Text]:
    """Draw the rolling rate as a bar, with the three lines of the theory across it."""
    paper = theory.paper_bound or 0.0
    top = max(paper, theory.frozen_bound, rate) * 1.05

    def column(share: float) -> int:
        return min(_WIDTH - 1, round(share / top * (_WIDTH - 1)))

    cells = [("━", "yellow") if k <= column(rate) else ("─", "bright_black") for k in range(_WIDTH)]
    for share, style in ((paper, "bright_black"), (theory.frozen_bound, "red")):
        cells[column(share)] = ("┃", style)
    cells[column(theory.expected_rate)] = ("┃", "bold")
    line = Text()
    for sign, style in cells:
        line.append(sign, style=style)
    words = Text()
    words.append("rejected, rolling ")
    words.append(percent(rate), style="bold yellow")
    words.append(f"   expected {percent(theory.expected_rate)}", style="bold")
    words.append(f"   frozen-window bound {percent(theory.frozen_bound)}", style="red")
    words.append(f"   paper’s bound {percent(paper)}", style="bright_black")
    return [words, line]


def _recent(kind: str, verdict: Verdict) -> Text:
    at = datetime.fromtimestamp(verdict.event_time_ms / 1000, UTC)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{_SIGNS[kind]} {kind:<9}", style=_STYLES[kind])
    line.append(f"{verdict.sensor}  {at:%d %b %H:%M}  ")
    line.append(in_words(verdict), style="bright_black")
    return line


def _bar(parts: Sequence[tuple[str, int]], width: int, block: str = "█") -> Text:
    """Draw shares as blocks; what is there at all gets at least one."""
    total = sum(count for _, count in parts) or 1
    bar, used = Text(), 0
    shown = [(style, count) for style, count in parts if count]
    for index, (style, count) in enumerate(shown):
        left = width - used - (len(shown) - index - 1)
        blocks = (
            left if index == len(shown) - 1 else min(left, max(1, round(count / total * width)))
        )
        bar.append(block * blocks, style=style)
        used += blocks
    return bar
