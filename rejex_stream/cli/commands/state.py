"""``state list|show|drop|export|import``: what a pipeline has stored, while nothing of it runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from rejex_stream.cli.show import As, AsOption, ConfigFile, print_facts, print_json, print_table
from rejex_stream.config import load_config
from rejex_stream.config.assembly import Stored, stored
from rejex_stream.engine.snapshot import environment, seal, unseal
from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError, explaining_os_errors
from rejex_stream.operate.logs import escaped
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.readable import utc
from rejex_stream.run.partition import Described, described
from rejex_stream.tables.column_checks import at_rest
from rejex_stream.types import Partition, of_mode, stream_name

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_KIND, _FORMAT = "exported-state", 1
_NEWEST = 2**63 - 1
_MOST_CHARS = 80  # of the parameters of a detector
_LARGEST = 10

Only = Annotated[
    list[str] | None,
    typer.Option("--partition", help="Only this one, as TOPIC-NUMBER; may be given again."),
]
DryRun = Annotated[bool, typer.Option(help="Only say what would be done.")]
StateFile = Annotated[Path, typer.Argument(help="The file.")]


class _Exported(msgspec.Struct, forbid_unknown_fields=True):
    """One partition in a file: where it stands, its parts by name, and decisions on schemas."""

    topic: str
    partition: int
    next_offset: int
    committed: int
    parts: dict[bytes, bytes]
    schemas: bytes | None
    input_is: dict[str, Any] | None = None

    @property
    def place(self) -> Partition:
        return Partition(self.topic, self.partition)


@app.command("list")
def list_state(config: ConfigFile, output: AsOption = As.TABLE) -> None:
    """Show what is stored of each partition, damaged or not."""
    rows = list[dict[str, Any]]()
    with stored(load_config(config)) as state:
        committed = state.places.committed()
        for partition in state.partitions:
            row: dict[str, Any] = {"partition": str(partition)}
            rows.append(
                row | {"committed": committed.get(partition), **_in_short(state, partition)}
            )
        where = state.where
    if output is As.JSON:
        print_json({"where": where, "partitions": rows})
        return
    print_table(
        ("partition", "committed", "snapshot at", "sensors", "MB", ""),
        [
            (
                row["partition"],
                _number(row["committed"]),
                _number(row.get("next_offset")),
                _number(row.get("sensors")),
                "–" if "bytes" not in row else f"{row['bytes'] / 1e6:.2f}",
                row["what"],
            )
            for row in rows
        ],
        left=(0, 5),
    )
    print(f"Stored in {where}.")


@app.command()
def show(config: ConfigFile, partition: Only = None, output: AsOption = As.TABLE) -> None:
    """Show how the state of partitions was made, and which sensors it is of."""
    rows = list[dict[str, Any]]()
    with stored(load_config(config)) as state:
        for chosen in _chosen(state, partition):
            loaded = state.store.load(chosen, _NEWEST)
            if loaded is None:
                rows.append({"partition": str(chosen), "what": "no snapshot"})
                continue
            summary = described(loaded[1])
            rows.append({"partition": str(chosen), "next_offset": loaded[0], **_at_length(summary)})
    if output is As.JSON:
        print_json(rows)
        return
    for facts in rows:
        print_facts([(name.replace("_", " "), _in_line(value)) for name, value in facts.items()])


@app.command()
def drop(
    config: ConfigFile,
    partition: Only = None,
    every: Annotated[bool, typer.Option("--all", help="Of every partition.")] = False,
    schemas: Annotated[
        bool, typer.Option("--schemas", help="Also what was decided about schemas.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove snapshots, damaged or not; offsets stay, and what was decided about schemas.

    The next run rebuilds the state from the input, as far as that is still there: the same
    verdicts, none twice.
    """
    if (partition is None) == (not every):
        raise ConfigError("which snapshots? Give --partition TOPIC-NUMBER, or --all.")
    with stored(load_config(config), to_change=not dry_run) as state:
        committed = state.places.committed()
        for chosen in _chosen(state, partition):
            if not dry_run:
                state.raw.drop(chosen, schemas=schemas)
            what = "would be dropped" if dry_run else "dropped"
            print(f"{chosen}: {what}; {_rebuilt(state, chosen, committed)}.")


@app.command("export")
def export_state(config: ConfigFile, file: StateFile, partition: Only = None) -> None:
    """Write the newest snapshots to a sealed file, with offsets and decisions on schemas."""
    if file.exists():
        raise ConfigError(f"{file} is there already: name a new file.")
    moved: list[_Exported] = []
    settings = load_config(config)
    # Nothing may move between the offset that is read and the snapshot.
    with stored(settings, to_change=True) as state:
        committed = state.places.committed()
        for chosen in _chosen(state, partition):
            at = committed.get(chosen)
            loaded = None if at is None else state.store.load(chosen, at)
            if at is None or loaded is None:
                print(f"{chosen}: nothing to export.")
                continue
            next_offset, parts = loaded
            schemas = state.store.load_journal(chosen)
            named = {name.encode("utf-8", "surrogatepass"): part for name, part in parts.items()}
            input_is = state.places.input_is(chosen)
            moved.append(_Exported(*chosen, next_offset, at, named, schemas, input_is))
            print(f"{chosen}: exported at offset {next_offset}, committed up to {at}.")
        if not moved:
            raise ConnectorError(f"nothing is stored in {state.where}: there is nothing to export")
        sealed = state.store.sealed_file(seal(_KIND, _FORMAT, moved))
    with explaining_os_errors(f"{file} cannot be written"):
        file.write_bytes(sealed)


@app.command("import")
def import_state(
    config: ConfigFile, file: StateFile, partition: Only = None, dry_run: DryRun = False
) -> None:
    """Put exported snapshots in the place of what is stored, and go on where they stand.

    A partition that nothing was committed of begins at the exported offset; one that stands behind
    it is refused, one ahead of it replays what lies in between.
    """
    with explaining_os_errors(f"{file} cannot be read"):
        sealed = file.read_bytes()
    with stored(load_config(config), to_change=True) as state:
        chosen, committed = _chosen(state, partition), state.places.committed()
        exported = _unpacked(state.store.opened_file(sealed))
        imported = [moved for moved in exported if moved.place in chosen]
        if not imported:
            raise ConfigError(f"{file} holds no partition of this pipeline's input.")
        for moved in imported:
            at = committed.get(moved.place)
            if at is not None and at < moved.next_offset:
                raise CheckpointError(
                    f"{moved.place} is committed up to offset {at}, before the {moved.next_offset} "
                    f"of the state in {file}: what lies in between would not be judged. Nothing "
                    "was changed; import into a pipeline that nothing was committed of."
                )
        for moved in imported:
            if not dry_run:
                _put(state, moved, begins=moved.place not in committed)
            at = committed.get(moved.place, moved.committed)
            print(
                f"{moved.place}: {'would be ' if dry_run else ''}imported at offset "
                f"{moved.next_offset}; the next run goes on at {at}."
            )


def _put(state: Stored, moved: _Exported, *, begins: bool) -> None:
    parts = {name.decode("utf-8", "surrogatepass"): part for name, part in moved.parts.items()}
    state.raw.drop(moved.place, schemas=False)
    if moved.schemas is not None and begins:  # else its own are of what it has committed
        state.store.save_journal(moved.place, moved.schemas)
    state.store.save(moved.place, SnapshotPiece(moved.next_offset, None, parts))
    if begins:  # last: without an offset, what is there is told apart from what was lost
        state.places.begin_at(moved.place, moved.committed, moved.input_is)


def _unpacked(content: bytes) -> list[_Exported]:
    try:
        return msgspec.convert(unseal(_KIND, _FORMAT, content), list[_Exported])
    except ValueError as error:
        raise CheckpointError(f"The exported state is broken ({error}): export it again.") from None


def _chosen(state: Stored, names: Sequence[str] | None) -> list[Partition]:
    by_name = {str(partition): partition for partition in state.partitions}
    unknown = [name for name in names or () if name not in by_name]
    if unknown:
        there = ", ".join(by_name)
        raise ConfigError(
            f"there is no partition {', '.join(map(repr, unknown))}; there are {there}."
        )
    return [by_name[name] for name in names or by_name]


def _rebuilt(state: Stored, partition: Partition, committed: Mapping[Partition, int]) -> str:
    at = committed.get(partition)
    if at is None:
        return "nothing was committed: the next run begins with its first record"
    earliest = state.places.earliest(partition)
    if earliest == 0:
        return f"the next run judges records 0 to {at} again, silently, and goes on"
    return (
        f"its records before {earliest} are gone, so its state cannot be rebuilt: the next run "
        'needs state.lost_state = "restart" (models warm up again), or an import'
    )


def _in_short(state: Stored, partition: Partition) -> dict[str, Any]:
    try:
        loaded = state.store.load(partition, _NEWEST)
        if loaded is None:
            return {"what": "no snapshot"}
        offset, parts = loaded
        description = described(parts)
    except CheckpointError as error:
        return {"what": str(error)}
    summary: dict[str, Any] = {"next_offset": offset, "bytes": sum(map(len, parts.values()))}
    same = description.origin.environment == environment()
    what = "" if same else "made with other versions or another kind of processor: state show"
    return summary | {"sensors": len(description.sensors), "what": what}


def _at_length(summary: Described) -> dict[str, Any]:
    heard = {
        sensor: max(streams.values(), default=None)
        for sensor, streams in summary.sensors.items()
        if isinstance(streams, dict)
    }
    largest = sorted(summary.streams, key=lambda key: (-summary.streams[key], key))[:_LARGEST]
    silent = sorted((ms, sensor) for sensor, ms in heard.items() if ms is not None)[:_LARGEST]
    return {
        "events": summary.n_events,
        "sensors": len(summary.sensors),
        "channels": list(summary.channels),
        **({"out_of_the_distance": at_rest(summary.resting)} if summary.resting else {}),
        "limits": dict(summary.limits),
        "made_with": dict(summary.origin.environment),
        "state": dict(summary.origin.state),
        "decision": dict(summary.origin.decision),
        "largest_streams": {
            escaped(stream_name(*of_mode(key))): summary.streams[key] for key in largest
        },
        "silent_for_longest": {
            escaped(sensor): utc(ms).isoformat(timespec="seconds") for ms, sensor in silent
        },
    }


def _in_line(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(each)}" for name, each in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return _number(value)


def _number(value: object) -> str:
    if isinstance(value, str):  # what state is made of is compared as Python writes it
        with suppress(ValueError, SyntaxError):
            known = ast.literal_eval(value)
            value = value if isinstance(known, float) else known  # a version may look like one
    if value is None or value == ():
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and not all(isinstance(one, str) for one in value):
        return f"{len(value):,}"  # incidents, say: --output json has them
    if isinstance(value, dict | list | tuple):
        return f"({_in_line(value)})"
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.partition("(")[0] if len(text) > _MOST_CHARS and "=" in text else text
