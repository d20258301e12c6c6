"""How far a command has come: a bar on a terminal, nothing but a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich import progress

from rejex_stream.cli.show import console

_log = logging.getLogger(__name__)
QUIET_S = 10.0


class Count(Protocol):
    """Shows a number of events, and the share of the input where it is known."""

    def __call__(self, done: int, fraction: float | None = None) -> None:
        """Show the progress."""


@contextmanager
def counting(
    total: int | None,
    unit: str,
    *,
    by_share: bool = False,
    log: logging.StreamHandler[TextIO] | None = None,
) -> Iterator[Count]:
    """Show progress on standard error: how many of `total` are done, or the share of the input.

    Without a terminal, a line every ten seconds. Lines of `log` go above the bar.
    """
    where = console(stderr=True)
    if not where.is_terminal:
        yield _Lines(total, unit)
        return
    known, begun = by_share or total is not None, time.monotonic()
    columns = [
        *([progress.BarColumn()] if known else [progress.SpinnerColumn()]),
        progress.TextColumn("{task.fields[events]}")
        if by_share or not known
        else progress.MofNCompleteColumn(),
        progress.TextColumn(unit),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeElapsedColumn(),
        *([progress.TextColumn("left"), progress.TimeRemainingColumn()] if known else []),
    ]
    with progress.Progress(*columns, console=where, transient=True) as bars:
        task = bars.add_task("", total=1 if by_share else total, rate="", events="0")

        def move(done: int, fraction: float | None = None) -> None:
            rate = done / max(1e-9, time.monotonic() - begun)
            completed = (fraction or 0.0) if by_share else done
            bars.update(task, completed=completed, events=f"{done:,}", rate=f"{rate:,.0f}/s")

        plain = None if log is None else log.setStream(sys.stderr)  # which knows of the bar below
        try:
            yield move
        finally:
            if log is not None and plain is not None:
                log.setStream(plain)


class _Lines:
    """Says in the log how far it has come, not too often."""

    def __init__(self, total: int | None, unit: str) -> None:
        self._total, self._unit = total, unit
        self._begun = self._said = time.monotonic()

    def __call__(self, done: int, fraction: float | None = None) -> None:
        now = time.monotonic()
        if now - self._said < QUIET_S:
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
