"""The stored state beside this machine: which libraries and kind of processor made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from rejex_stream.config import Config
from rejex_stream.config.assembly import sealing
from rejex_stream.doctor.findings import Finding
from rejex_stream.engine.checkpoint import environment
from rejex_stream.errors import CheckpointError
from rejex_stream.protocols import SnapshotStore
from rejex_stream.run.partition import described
from rejex_stream.types import Partition

__all__ = ["environment_findings", "has_snapshots", "stored_environments"]

_NEWEST = 2**63 - 1


def has_snapshots(folder: Path) -> bool:
    """Whether a folder holds any."""
    return any(folder.glob("*-snapshots.db"))


def stored_environments(
    config: Config, store: SnapshotStore, partitions: Iterable[Partition], *, written: bool = False
) -> Iterator[tuple[Partition, Mapping[str, str] | str]]:
    """Return with what the newest snapshot of each partition was made, or why nobody can say.

    Where something is known to have been `written`, to find nothing whole is an error.
    """
    with closing(sealing(config)(store)) as opened:
        for partition in partitions:
            try:
                kept = opened.load(partition, _NEWEST)
                if kept is None and written:
                    yield (
                        partition,
                        "what is stored is altered or cut short: no snapshot in it is whole",
                    )
                found = None if kept is None else described(kept[1])
                if found is not None:
                    yield partition, found.origin.environment
            except CheckpointError as error:
                yield partition, str(error)


def environment_findings(
    config: Config, stored: Iterable[tuple[Partition, Mapping[str, str] | str]]
) -> Iterator[Finding]:
    """Compare the stored states with this machine; say what ``state.environment`` will do."""
    here = environment()
    told = ", ".join(f"{name} {version}" for name, version in here.items())
    alike, others = 0, dict[str, list[str]]()
    for partition, then in stored:
        name = f"{partition.topic}-{partition.partition}"
        if isinstance(then, str):
            yield Finding(
                "error",
                f"{name}: {then}",
                "rejex-stream state import (of one that was exported), or rejex-stream state drop",
            )
        elif then == here:
            alike += 1
        else:
            changes = ", ".join(
                f"{what} {then.get(what, 'absent')} there, {here.get(what, 'absent')} here"
                for what in {**then, **here}
                if then.get(what) != here.get(what)
            )
            others.setdefault(changes, []).append(name)
    accepts = config.state.environment == "accept"
    for changes, names in others.items():
        yield Finding(
            "warning" if accepts else "error",
            f"the state of {', '.join(names)} was made with other versions: {changes}; "
            + (
                'by state.environment = "accept" a run goes on, with a warning: refitted models '
                "may differ in the last bit"
                if accepts
                else 'by state.environment = "refuse" a run ends there'
            ),
            "install those versions (constraints.txt)"
            + ("" if accepts else ', or accept them: state.environment = "accept"'),
        )
    if alike:
        yield Finding("ok", f"the state of {alike} partition(s) was made with what is here: {told}")
    elif not others:
        yield Finding("ok", f"nothing is stored yet; here are {told}")
