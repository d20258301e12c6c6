"""A small pipeline over files as a program of its own, to be killed at any moment."""

import sys
from pathlib import Path

from rejex_connectors.files import FileSink, FileSource
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.engine import Engine
from rejex_stream.run.executors import ThreadFitExecutor
from rejex_stream.run.loop import RunSettings, run
from tests.streams import spec


def main(feed: str, out: str) -> None:
    """Judge `feed` into `out`, in small polls with many commits and snapshots."""
    folder = Path(out)
    state = folder / "state"
    source = FileSource(feed, state_dir=state)
    sink = FileSink(
        verdicts=folder / "verdicts.jsonl", review=folder / "review.jsonl",
        deadletter=folder / "dead.jsonl", state_dir=state,
    )  # fmt: skip
    recipe = spec()
    run(
        source, sink, FolderSnapshotStore(state / "snapshots"),
        lambda partition, fits: Engine(recipe, fits),
        JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t")),
        settings=RunSettings(
            commit_interval_s=0.0, max_poll_records=37, snapshot_every_events=500,
            review_context_events=4,
        ),
        executor=ThreadFitExecutor(),
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
