"""The demo on a terminal: what the pipelines are doing, while they do it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rejex_stream.build import monitor_config
from rejex_stream.demo.pipelines import Pipeline
from rejex_stream.demo.words import in_words, percent
from rejex_stream.monitor import Alarm, Theory
from rejex_stream.monitor.cells import cell_table
from rejex_stream.monitor.theory import theory_of
from rejex_stream.progress import RunEvent
from rejex_stream.types import Label, Outcome, Partition, Reason, Verdict

__all__ = ["Board", "LiveView"]

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
    """What one pipeline has said so far; watches its run.

    Parameters
    ----------
    pipeline
        Which one.

    Attributes
    ----------
    total, done
        Records of its feed, and how many of them have an outcome.
    kinds, unreadable
        How many outcomes of each kind.
    recent, alarms
        The last anomalies and rejected events; what the monitors said.
    theory
        Of the last band.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.total = pipeline.feed.n_records
        self.alarms: list[Alarm] = []
        self.done = 0
        self.kinds: Counter[str] = Counter()
        self.unreadable = 0
        self.recent: deque[tuple[str, Verdict]] = deque(maxlen=_RECENT)
        self.theory: Theory | None = None
        self._monitors = monitor_config(pipeline.config)
        self._rolling: dict[str, deque[bool]] = {}

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Take note of a batch."""
        for outcome in outcomes:
            self.done += 1
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
        if verdict.band_lower is None or verdict.band_upper is None:
            return
        window = self._monitors.window
        rolling = self._rolling.setdefault(verdict.stream_key, deque(maxlen=window))
        rolling.append(verdict.reason is Reason.AMBIGUOUS)
        table = cell_table(
            verdict.window_len, verdict.n_anomalies, verdict.band_lower, verdict.band_upper
        )
        self.theory = theory_of(table, self._monitors)

    @property
    def rolling_rate(self) -> float | None:
        """Share of rejected in the newest windows of all streams; ``None`` before there are any."""
        ranked = sum(map(len, self._rolling.values()))
        return sum(map(sum, self._rolling.values())) / ranked if ranked else None


def _kind(verdict: Verdict) -> str:
    if verdict.reason is Reason.WARM_UP:
        return "learning"
    if verdict.label is not Label.REJECTED:
        return verdict.label.value
    return "rejected" if verdict.reason is Reason.AMBIGUOUS else "no score"


class LiveView:
    """Draws the boards ten times a second on a terminal; elsewhere a plain line for each end.

    Parameters
    ----------
    console
        Where to draw.
    boards
        One for each pipeline, in order.
    """

    def __init__(self, console: Console, boards: Sequence[Board]) -> None:
        self._console = console
        self._boards = boards
        self._begun = time.monotonic()
        self._live = (
            Live(
                console=console,
                refresh_per_second=10,
                get_renderable=self.render,
                transient=True,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_terminal(self) -> bool:
        """Whether somebody watches."""
        return self._live is not None

    def ended(self, board: Board, seconds: float) -> None:
        """Say that a pipeline has come to the end of its feed."""
        if self._live is None:
            kinds = ", ".join(f"{board.kinds[kind]:,} {kind}" for kind in _STYLES)
            self._console.print(
                f"{board.pipeline.title}: {board.done:,} records in {seconds:.1f} s: {kinds}, "
                f"{board.unreadable} unreadable"
            )

    def render(self) -> RenderableType:
        """Return the whole picture."""
        low = self._console.height < _TALL
        now = next((b for b in self._boards if b.done < b.total), self._boards[-1])
        return Group(
            *(
                Padding(_panel(board, brief=low and board is not now), (1, 2, 0, 2))
                for board in self._boards
            )
        )


def _panel(board: Board, *, brief: bool) -> RenderableType:
    head = Table.grid(expand=False, padding=(0, 2))
    rest = [("default", board.done), ("bright_black", board.total - board.done)]
    head.add_row(
        Text(board.pipeline.title, style="bold"),
        _bar(rest, 28, "━"),
        Text(f"{board.done:,} of {board.total:,}"),
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
    top = max(paper, theory.exact_bound, rate) * 1.05

    def column(share: float) -> int:
        return min(_WIDTH - 1, round(share / top * (_WIDTH - 1)))

    cells = [("━", "yellow") if k <= column(rate) else ("─", "bright_black") for k in range(_WIDTH)]
    for share, style in ((paper, "bright_black"), (theory.exact_bound, "red")):
        cells[column(share)] = ("┃", style)
    cells[column(theory.expected_rate)] = ("┃", "bold")
    line = Text()
    for sign, style in cells:
        line.append(sign, style=style)
    words = Text()
    words.append("rejected, rolling ")
    words.append(percent(rate), style="bold yellow")
    words.append(f"   expected {percent(theory.expected_rate)}", style="bold")
    words.append(f"   exact bound {percent(theory.exact_bound)}", style="red")
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
