"""How far a command has come: a bar on a terminal, nothing but a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from rejex_stream.cli.show import console
from rejex_stream.config import Config
from rejex_stream.config.assembly import Edges
from rejex_stream.run.run_events import (
    ControlUnread,
    DecisionChanged,
    EnvironmentChanged,
    FitFailure,
    NothingScorable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Progress,
    Retrying,
    RunEvent,
)
from rejex_stream.types import Outcome, Partition

__all__ = ["counting", "following"]

_log = logging.getLogger(__name__)
_QUIET_S = 10.0


@contextmanager
def counting(total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done; yields the function to tell it.

    Goes to standard error. Without a terminal, a line every ten seconds.
    """
    where = console(stderr=True)
    if not where.is_terminal:
        yield _Lines(total, unit)
        return
    with _bars(where, total, unit) as (bars, task):
        yield _Bar(bars, task, by_share=False)


@contextmanager
def following(config: Config, handler: logging.StreamHandler[TextIO]) -> Iterator[RunDisplay]:
    """Show a run as it goes on; yields its observer."""
    where = console(stderr=True)
    _log.info(
        "%s: reading %s",
        config.pipeline.name,
        config.input.path or ", ".join(config.input.topics),
    )
    if not where.is_terminal:
        yield RunDisplay(_Lines(None, "events"))
        return
    ends = config.input.kind == "file" and config.input.path != "-" and not config.input.follow
    with _bars(where, 1 if ends else None, "events", by_share=ends) as (bars, task):
        plain = handler.setStream(sys.stderr)  # the one that knows of the bar below it
        try:
            yield RunDisplay(_Bar(bars, task, by_share=ends))
        finally:
            if plain is not None:
                handler.setStream(plain)


class _Teller(Protocol):
    """Shows a number of events, and the share of the input where it is known."""

    def __call__(self, done: int, fraction: float | None = None) -> None: ...


class RunDisplay:
    """Shows the progress of a run, and says in the log what happens to it."""

    def __init__(self, tell: _Teller) -> None:
        self._tell = tell
        self._edges: Edges | None = None
        self._said = time.monotonic()
        self._warned: set[tuple[str, ...]] = set()

    def opened(self, edges: Edges) -> None:
        """Know how much of the input there is."""
        self._edges = edges

    def progress(self, progress: Progress) -> None:
        """Take a look at the run."""
        replays, now = progress.replays.values(), time.monotonic()
        if replays and now - self._said >= _QUIET_S:  # one that is quick says when it is over
            self._said = now
            _log.info(
                "replaying in %d partition(s): %s of %s",
                len(replays),
                f"{sum(replay.next_offset - replay.begun_at for replay in replays):,}",
                f"{sum(replay.live_from - replay.begun_at for replay in replays):,}",
            )
        self._tell(progress.n_events, None if self._edges is None else self._edges.fraction)

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """See outcomes; they are counted by the run itself."""

    def event(self, event: RunEvent) -> None:
        """Say what people want to know."""
        match event:
            case PartitionOpened(partition, None, next_offset, _):
                _log.info("%s-%d: starting at offset %s", *partition, f"{next_offset:,}")
            case PartitionOpened(partition, snapshot, _, live_from):
                _log.info(
                    "%s-%d: from the snapshot at %s, live from %s",
                    *partition,
                    f"{snapshot:,}",
                    f"{live_from:,}",
                )
            case DecisionChanged(partition, offset, was, now):
                _log.warning(
                    "%s-%d: verdicts from offset %s on are given by another decision (%s); state "
                    "goes on, those before stand",
                    *partition,
                    f"{offset:,}",
                    now.since(was),
                )
            case EnvironmentChanged(_, changes) if changes not in self._warned:
                self._warned.add(changes)
                _log.warning(
                    "going on from snapshots that were made with other versions (%s): refitted "
                    "models may differ in the last bit",
                    ", ".join(changes),
                )
            case PartitionLive(partition, replayed, seconds) if replayed:
                _log.info("%s-%d: replayed %s in %.1f s", *partition, f"{replayed:,}", seconds)
            case PartitionClosed(partition):
                _log.debug("%s-%d: closed", *partition)
            case NothingScorable(_, alarm) if alarm is not None:
                _log.error("%s", alarm.message)
            case NothingScorable():
                _log.info("events can be scored again")
            case ControlUnread(why):
                lost = f"nobody can tell the pipeline anything, and it goes on: {why}"
                _log.warning("%s", "the control log can be read again" if why is None else lost)
            case FitFailure(partition, failed):
                _log.warning("%s-%d: a fit failed: %s", *partition, failed)
            case Retrying(error, delay_s, attempt):
                _log.warning("attempt %d failed, next in %.1f s: %s", attempt, delay_s, error)


class _Bar:
    """Moves a bar: by events, or by the share of the input where only that is known."""

    def __init__(self, bars: Bars, task: TaskID, *, by_share: bool) -> None:
        self._bars, self._task, self._by_share = bars, task, by_share
        self._begun = time.monotonic()

    def __call__(self, done: int, fraction: float | None = None) -> None:
        per_s = done / max(1e-9, time.monotonic() - self._begun)
        self._bars.update(
            self._task,
            completed=(fraction or 0.0) if self._by_share else done,
            events=f"{done:,}",
            rate=f"{per_s:,.0f}/s",
        )


class _Lines:
    """Says in the log how far it has come, not too often."""

    def __init__(self, total: int | None, unit: str) -> None:
        self._total, self._unit = total, unit
        self._begun = self._said = time.monotonic()

    def __call__(self, done: int, fraction: float | None = None) -> None:
        now = time.monotonic()
        if now - self._said < _QUIET_S:
            return
        self._said = now
        spent = now - self._begun
        fraction = done / self._total if self._total else fraction
        how_far = ""
        if fraction is not None and fraction >= 1:  # what is in hand may have to wait all the same
            how_far = " (the input is read to its end)"
        elif fraction:
            how_far = f" ({fraction:.0%} of the input, {spent / fraction - spent:,.0f} s left)"
        _log.info("%s %s%s, %s/s", f"{done:,}", self._unit, how_far, f"{done / spent:,.0f}")


@contextmanager
def _bars(
    where: Console, total: int | None, unit: str, *, by_share: bool = False
) -> Iterator[tuple[Bars, TaskID]]:
    known = total is not None
    columns = [
        *([BarColumn()] if known else [SpinnerColumn()]),
        TextColumn("{task.fields[events]}") if by_share or not known else MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if known else []),
    ]
    with Bars(*columns, console=where, transient=True) as bars:
        yield bars, bars.add_task("", total=total, rate="", events="0")
