"""A partition's snapshot taken apart by stream, and put together again, for who keeps them apart.

Of a partition whose streams share nothing, each stream can be judged on by a state of its own
(:func:`apart`), on any machine; what they have become is one snapshot again (:func:`together`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rejex_stream.engine.checkpoint import seal, unseal
from rejex_stream.engine.sensor_registry import joined as joined_lives
from rejex_stream.engine.snapshot_manifest import joined as joined_heads
from rejex_stream.engine.snapshot_manifest import of_stream
from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.run.incremental_snapshot import HEAD, HEAD_FORMAT, HEAD_KIND, of_streams

__all__ = ["apart", "together"]


def apart(parts: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Return a snapshot of each stream; under ``""``, one of what belongs to none. O(bytes).

    Each stands where the whole one does. Monitors watch whole partitions and are left out.

    Raises
    ------
    CheckpointError
        If it is no snapshot of a partition.
    """
    head = unseal(HEAD_KIND, HEAD_FORMAT, parts.get(HEAD, b""))
    found: dict[str, dict[str, bytes]] = {"": {}}
    for stream, name in of_streams(parts):
        found.setdefault(stream, {})[name] = parts[name]
    for stream, own in found.items():
        of_it = {
            "n_events": 0 if stream else head["n_events"],  # who is none has judged all so far
            "engine": of_stream(head["engine"], stream),
            "monitor": None,
        }
        own[HEAD] = seal(HEAD_KIND, HEAD_FORMAT, head | of_it)
    return found


def together(snapshots: Sequence[Mapping[str, bytes]]) -> tuple[int, dict[str, bytes]]:
    """Return where the partition stands whose streams these are of, and its snapshot. O(bytes).

    It decides as the newest of them does. A sensor is as silent as its own stream knows, which
    has no clock but its own.

    Raises
    ------
    CheckpointError
        If one is no snapshot, or they are of several partitions, or made by other settings.
    """
    parts: dict[str, bytes] = {}
    for own in snapshots:
        parts |= own
    heads = [unseal(HEAD_KIND, HEAD_FORMAT, own.get(HEAD, b"")) for own in snapshots]
    heads.sort(key=lambda head: int(head["next_offset"]))
    newest: dict[str, Any] = heads[-1]
    for name in ("partition", "channels"):
        for head in heads:
            if head[name] != newest[name]:
                raise CheckpointError(
                    f"Streams are for the {name} {head[name]!r} and {newest[name]!r}, and make no "
                    f"partition: {WAY_OUT}."
                )
    of_all = {
        "n_events": sum(head["n_events"] for head in heads),
        "engine": joined_heads([head["engine"] for head in heads]),
        "lives": joined_lives([head["lives"] for head in heads]),
    }
    parts[HEAD] = seal(HEAD_KIND, HEAD_FORMAT, newest | of_all)
    return newest["next_offset"], parts
