"""A pipeline over a file that obeys, as a program of its own, to be killed at any moment."""

import sys
from pathlib import Path

from rejex_connectors.files import FileControl, FileSink, FileSource
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.run.loop import RunSettings, run
from tests.obedient import Obedient


def main(feed: str, out: str) -> None:
    """Judge `feed` into `out`, in small polls with many commits and snapshots."""
    folder = Path(out)
    state = folder / "state"
    source = FileSource(feed, state_dir=state)
    run(
        source,
        FileSink(
            verdicts=folder / "verdicts.jsonl", incidents=folder / "incidents.jsonl",
            deadletter=folder / "dead.jsonl", state_dir=state,
        ),
        FolderSnapshotStore(state), lambda partition, fits: Obedient(waits=2),
        JsonDecoder(FieldMapping(["x"], sensor="id", time="t")),
        control=FileControl(folder / "control.jsonl", [source.partition.topic]),
        settings=RunSettings(
            commit_interval_s=0.0, max_poll_records=7, snapshot_every_events=50, batch_s=10.0
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
