"""``run``: a pipeline, until its input ends or somebody stops it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Annotated

import typer

from rejex_stream.cli import show
from rejex_stream.cli.bars import QUIET_S, Count, counting
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import Edges, run_pipeline
from rejex_stream.decode.written import is_repeated, zone_of
from rejex_stream.errors import ConfigError
from rejex_stream.operate.logs import logging_to_stderr
from rejex_stream.run import run_events
from rejex_stream.tables.order import TimeOrder
from rejex_stream.types import Outcome, Partition, Reading

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_WITHIN_S = 4.0
_FIRST = 1_000  # readings that a run checks
_log = logging.getLogger(__name__)


def run(
    config: show.ConfigFile,
    dry_run: Annotated[
        bool, typer.Option(help="Judge and write nothing, then show the mix against theory.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="With --dry-run: stop once so many records are judged."),
    ] = None,
    output: show.AsOption = show.As.TABLE,
) -> None:
    """Run a pipeline until its input ends; Ctrl-C or SIGTERM stops it after what is in hand.

    What was done is durable: the next run goes on from there.
    """
    if limit is not None and not dry_run:
        raise ConfigError("--limit goes with --dry-run: a real run leaves no record unread.")
    settings = load_config(config)
    stop = threading.Event()
    looks = _Looks(settings)
    log = settings.logging
    source = settings.input
    ends = source.kind == "file" and source.path != "-" and not source.follow
    with (
        logging_to_stderr(log.level, log.format) as handler,
        stopping(stop),
        counting(None, "events", by_share=ends, log=handler) as count,
    ):
        _log.info("%s: reading %s", settings.pipeline.name, source.path or ", ".join(source.topics))
        display = RunDisplay(count)
        summary = run_pipeline(
            settings,
            observers=[display, looks, *([] if limit is None else [_Limit(stop, limit)])],
            on_progress=display.progress,
            on_open=display.opened,
            on_readings=looks.readings,
            stop=stop,
            dry_run=dry_run,
        )
        looks.report()
    for line in looks.remarks():
        print(f"{settings.pipeline.name}: {line}", file=sys.stderr)
    # Where verdicts go to standard output, nothing else may.
    aside = settings.output.verdicts == "-" and not dry_run and settings.input.kind == "file"
    if output is show.As.JSON and not aside:
        more = {name.removeprefix("n_"): getattr(summary, name) for name in _COUNTS}
        show.print_json(show.outcome_facts(summary) | more)
    else:
        _print_summary(settings, summary, dry_run=dry_run, stderr=aside)


class RunDisplay:
    """Shows the progress of a run, and says in the log what happens to it."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._edges: Edges | None = None
        self._said = time.monotonic()
        self._warned: set[tuple[str, ...]] = set()

    def opened(self, edges: Edges) -> None:
        """Remember the edges, for the share of the input that was read."""
        self._edges = edges

    def progress(self, progress: run_events.Progress) -> None:
        replays, now = progress.replays.values(), time.monotonic()
        if replays and now - self._said >= QUIET_S:  # one that is quick says when it is over
            self._said = now
            _log.info(
                "replaying in %d partition(s): %s of %s",
                len(replays),
                f"{sum(replay.next_offset - replay.begun_at for replay in replays):,}",
                f"{sum(replay.live_from - replay.begun_at for replay in replays):,}",
            )
        self._count(progress.n_events, None if self._edges is None else self._edges.fraction)

    def event(self, event: run_events.RunEvent) -> None:
        match event:
            case run_events.PartitionOpened(partition, None, next_offset, _):
                _log.info("%s-%d: starting at offset %s", *partition, f"{next_offset:,}")
            case run_events.PartitionOpened(partition, snapshot, _, live_from):
                _log.info(
                    "%s-%d: from the snapshot at %s, live from %s",
                    *partition,
                    f"{snapshot:,}",
                    f"{live_from:,}",
                )
            case run_events.DecisionChanged(partition, offset, was, now):
                _log.warning(
                    "%s-%d: verdicts from offset %s on are given by another decision (%s); state "
                    "goes on, those before stand",
                    *partition,
                    f"{offset:,}",
                    now.since(was),
                )
            case run_events.EnvironmentChanged(_, changes) if changes not in self._warned:
                self._warned.add(changes)
                _log.warning(
                    "going on from snapshots that were made with other versions (%s): refitted "
                    "models may differ in the last bit",
                    ", ".join(changes),
                )
            case run_events.PartitionLive(partition, replayed, seconds) if replayed:
                _log.info("%s-%d: replayed %s in %.1f s", *partition, f"{replayed:,}", seconds)
            case run_events.PartitionClosed(partition):
                _log.debug("%s-%d: closed", *partition)
            case run_events.NothingScorable(_, alarm) if alarm is not None:
                _log.error("%s", alarm.message)
            case run_events.NothingScorable():
                _log.info("events can be scored again")
            case run_events.ControlUnread(why):
                lost = f"nobody can tell the pipeline anything, and it goes on: {why}"
                _log.warning("%s", "the control log can be read again" if why is None else lost)
            case run_events.FitFailure(partition, failed):
                _log.warning("%s-%d: a fit failed: %s", *partition, failed)
            case run_events.Retrying(error, delay_s, attempt):
                _log.warning("attempt %d failed, next in %.1f s: %s", attempt, delay_s, error)


class _Limit:
    def __init__(self, stop: threading.Event, limit: int) -> None:
        self._stop, self._left = stop, limit

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        self._left -= len(outcomes)
        if self._left <= 0:
            self._stop.set()

    def event(self, event: run_events.RunEvent) -> None:
        """See what happened to the run; nothing to count."""


class _Looks:
    """Looks at the first readings once, as ``score`` does at all: at their order too."""

    def __init__(self, config: Config) -> None:
        source, self._config = config.input, config
        self._first: list[Reading] | None = []  # until they are looked at, if they are
        self._order, self._of = TimeOrder(), ""
        self._timed = source.time is not None
        local = source.time_zone is not None and "%z" not in (source.time_format or "")
        self._zone = zone_of(source.time_zone) if local and source.time_zone else None

    def event(self, event: run_events.RunEvent) -> None:
        """Check the first readings only of a run without a snapshot."""
        if isinstance(event, run_events.PartitionOpened) and self._first is not None:
            self._first = [] if event.snapshot_offset is None else None

    def readings(self, readings: Sequence[Reading]) -> bool:
        if self._first is not None:
            self._first += readings
            if len(self._first) >= _FIRST:
                self.report()
        return self._first is not None

    def report(self) -> None:
        """Warn once of what is doubtful about the first readings; no verdict depends on it."""
        if self._first is None:
            return
        # A start is sooner without.
        from rejex_stream.tables.column_checks import at_rest, check_readings, resting_among

        first, self._first = self._first[:_FIRST], None
        for reading in first:
            self._order.add(reading.sensor, reading.event_time_ms)
            if self._zone is not None:
                local = datetime.fromtimestamp(reading.event_time_ms / 1000, self._zone)
                self._order.repeated += is_repeated(local.replace(tzinfo=None), self._zone)
        self._of = f" (of the first {_FIRST:,} events)" if len(first) == _FIRST else ""
        for doubt in check_readings(self._config, first):
            _log.warning("%s; %s", doubt.seen, doubt.setting)
        source, rows = self._config.input, [reading.values for reading in first]
        names = source.mapping().channel_names
        if resting := resting_among(names, rows, source.flags):
            _log.info("%s", at_rest(resting, f" in the first {len(rows):,} events"))

    def remarks(self) -> Iterator[str]:
        for line in self._order.remarks("input.sensor", gaps=self._timed):
            yield line + self._of


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first SIGINT or SIGTERM; a second one, later, ends the program at once.

    What comes within a second is the same wish: a terminal and a wrapper such as ``timeout`` or
    ``make`` may each pass it on. Where the end takes longer than four seconds (a broker that does
    not answer a last commit, say) the program ends without it: as after a crash, nothing is lost.
    """
    asked_at: float | None = None

    def handle(number_: int, frame: FrameType | None) -> None:
        nonlocal asked_at
        now = time.monotonic()
        if asked_at is None:
            asked_at = now
            stop.set()
        elif now - asked_at > 1.0:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {which: signal.signal(which, handle) for which in _SIGNALS}
    ended = threading.Event()
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    woken = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(ear, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(woken)
        mouth.close()
        for which, handler in before.items():
            signal.signal(which, handler)


def _end_in_time(ear: socket.socket, ended: threading.Event) -> None:
    """End the program some seconds after a signal, on a thread: the main one may be in C."""
    with ear:
        while heard := ear.recv(64):
            if not set(heard).isdisjoint(_SIGNALS) and not ended.wait(_END_WITHIN_S):
                _log.warning(
                    "stopping took longer than %.0f s: ending without what was in hand; the next "
                    "run goes on from what is durable",
                    _END_WITHIN_S,
                )
                os._exit(0)


def _print_summary(
    config: Config, summary: run_events.RunSummary, *, dry_run: bool, stderr: bool
) -> None:
    from rejex_stream.doctor import promised

    promise = promised(config).promise
    rows = show.outcome_rows(summary, None if promise is None else promise.expected_rate)
    happened = (
        ("replayed", summary.n_replayed, ""),
        ("failed fits", summary.n_fit_failures, ""),
        ("waits for a fit", summary.fit_waits, f", {summary.fit_wait_s:.1f} s"),
    )
    rows += [(name, f"{count:,}{more}") for name, count, more in happened if count]
    rate = summary.n_events / summary.seconds if summary.seconds else None
    rows.append(("time", f"{summary.seconds:.1f} s, {show.number(rate)} events/s"))
    done = "stopped; the next run goes on from here" if summary.stopped else "done"
    if dry_run:
        done = "nothing was written"
    elif not (summary.n_events or summary.n_ignored or summary.stopped):
        done = "nothing new"
    show.print_facts(rows, title=f"{config.pipeline.name}: {done}", stderr=stderr)


_COUNTS = (
    "n_replayed", "n_commits", "n_snapshots", "n_retries", "n_fit_failures", "fit_waits",
    "fit_wait_s", "seconds", "stopped",
)  # fmt: skip
