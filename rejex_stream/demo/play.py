"""Run the demo's pipelines as ``rejex-stream run`` would, and read back what they wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from rejex_stream.build import open_edges, run_pipeline
from rejex_stream.demo.live import Board
from rejex_stream.demo.pipelines import Pipeline
from rejex_stream.encode import decode_dead_letter, decode_verdict
from rejex_stream.progress import RunEvent, RunSummary
from rejex_stream.protocols import Assigned
from rejex_stream.types import Invalid, Outcome, Partition, Position, Reading, Record, Verdict

__all__ = ["play", "read_back", "read_lines"]

_FRAME_S = 0.04


def play(board: Board, *, seconds: float = 0.0) -> RunSummary:
    """Run the pipeline of `board` to the end of its feed.

    Parameters
    ----------
    board
        Is told everything.
    seconds
        How long it should take, so that people can watch; 0 for full speed. Changes no verdict.
    """
    observer = _Unhurried(board, board.total / seconds) if seconds > 0 else board
    return run_pipeline(
        board.pipeline.config,
        observers=[observer],
        on_alarm=lambda partition, alarm: board.alarms.append(alarm),
    )


class _Unhurried:
    """Passes outcomes on at a steady rate, and holds up the run meanwhile."""

    def __init__(self, board: Board, per_s: float) -> None:
        self._board = board
        self._per_s = per_s
        self._begun = time.monotonic()
        self._shown = 0

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        frame = max(1, round(self._per_s * _FRAME_S))
        for start in range(0, len(outcomes), frame):
            batch = outcomes[start : start + frame]
            self._board.outcomes(partition, batch, replaying=replaying)
            self._shown += len(batch)
            ahead_s = self._shown / self._per_s - (time.monotonic() - self._begun)
            if ahead_s > 0:
                time.sleep(ahead_s)

    def event(self, event: RunEvent) -> None:
        self._board.event(event)


def read_back(
    pipeline: Pipeline,
) -> tuple[dict[Position, Reading], list[Verdict], list[tuple[Record, Invalid]]]:
    """Return the readings of the feed by position, its verdicts in order, and its dead letters."""
    readings = {reading.position: reading for reading in _readings(pipeline)}
    verdicts = [decode_verdict(line) for line in read_lines(pipeline.verdicts_path)]
    dead_letters = [decode_dead_letter(line) for line in read_lines(pipeline.deadletter_path)]
    return readings, verdicts, dead_letters


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that was written only if there was something to write."""
    return path.read_bytes().splitlines() if path.exists() else []


def _readings(pipeline: Pipeline) -> Iterator[Reading]:
    """Read the feed once more, through the same source and decoder."""
    edges = open_edges(pipeline.config, dry_run=True)
    with closing(edges.sink), closing(edges.source) as source:
        while not source.exhausted:
            records = source.poll(10_000, 0.0)
            for change in source.changes():
                if isinstance(change, Assigned):
                    source.seek(change.partition, change.earliest)
            for record in records:
                reading = edges.decoder.decode(record)
                if isinstance(reading, Reading):
                    yield reading
