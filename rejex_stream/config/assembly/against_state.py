"""What the next run would do with what is stored, partition by partition; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

from rejex_stream.config.assembly.edges import require_own_places
from rejex_stream.config.assembly.running import DecodedBefore, engine_spec, run_settings
from rejex_stream.config.assembly.stored import NothingStoredError, Stored, stored
from rejex_stream.config.pipeline_config import Config
from rejex_stream.engine import Engine
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.protocols import Assigned
from rejex_stream.run.commit import starting_point
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import make_state
from rejex_stream.types import Partition

__all__ = ["Outlook", "against_state"]


class Outlook(NamedTuple):
    """What becomes of one partition, and why."""

    partition: str
    outcome: Literal["begins", "goes on", "is rebuilt", "restarts", "refused"]
    why: str


def against_state(config: Config) -> list[Outlook]:
    """Return what the next run would do with each partition.

    A second verdict that an output would refuse, and a control log that is gone, show in a run
    alone.
    """
    named = ", ".join(config.input.topics) or Path(config.input.path or "").name
    try:
        if config.input.kind == "file":
            require_own_places(config)
        with stored(config) as state:
            committed = state.places.committed()
            return [_outlook(config, state, at, committed.get(at)) for at in state.partitions]
    except NothingStoredError as error:
        return [Outlook(named, "begins", str(error))]
    except ConfigError as error:
        return [Outlook(named, "refused", str(error).rstrip("."))]


def _outlook(config: Config, state: Stored, place: Partition, committed: int | None) -> Outlook:
    assigned = Assigned(place, committed, state.places.earliest(place))
    lost = config.state.lost_state == "restart"
    try:
        start = starting_point(assigned, state.store, restart_if_lost=lost)
        if start.parts is not None:
            why = f"at offset {start.live_from:,}, with the state of offset {start.offset:,}"
            return Outlook(str(place), "goes on", why + _changes(config, place, start.parts))
    except CheckpointError as error:
        return Outlook(str(place), "refused", str(error).rstrip("."))
    if committed is None:
        return Outlook(str(place), "begins", "nothing is stored of it")
    if assigned.earliest == 0 and not start.is_new_log:
        why = f"records 0 to {committed:,} are judged again, silently"
        return Outlook(str(place), "is rebuilt", why)
    why = f"at offset {start.offset:,}: its state cannot be rebuilt, and models warm up again"
    return Outlook(str(place), "restarts", why)


def _changes(config: Config, place: Partition, parts: Mapping[str, bytes]) -> str:
    """Restore a snapshot as a run does, which may refuse it; return what the config changes."""
    with closing(Engine(engine_spec(config), InlineExecutor())) as engine:
        decoder = DecodedBefore(config.input.mapping().channel_names)
        state = make_state(run_settings(config), place, decoder, engine)
        environment = state.restore(parts)
        changed = state.apply_config()
    why = ""
    if changed is not None:
        why += f"; from there on by another decision ({changed.now.since(changed.was)})"
    if environment:
        why += f"; made with other versions ({', '.join(environment)})"
    return why
