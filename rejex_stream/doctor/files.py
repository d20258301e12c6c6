"""The checks of a pipeline that reads a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from rejex_stream.config import Config
from rejex_stream.config.assembly import file_decoder, file_places, open_source, require_own_places
from rejex_stream.decode import decode_records
from rejex_stream.doctor.findings import (
    Finding,
    clock_finding,
    folder_finding,
    sample_findings,
)
from rejex_stream.protocols import Assigned
from rejex_stream.types import Reading

__all__ = ["checks"]


def checks(config: Config, sample: int) -> list[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Return the checks by name, in order; they share the records that were read."""
    readings: list[Reading] = []
    return [
        ("input", lambda: _input(config)),
        ("sample", lambda: _sample(config, sample, readings)),
        ("clock", lambda: _clock(readings)),
        ("outputs", lambda: _outputs(config)),
        ("state", lambda: _state(config)),
    ]


def _input(config: Config) -> Iterator[Finding]:
    if config.input.path == "-":
        yield Finding("skipped", "standard input cannot be looked at without taking from it")
        return
    source = open_source(config)
    source.close()
    path = Path(config.input.path or "")
    yield Finding("ok", f"{path} can be read, {path.stat().st_size:,} bytes")


def _sample(config: Config, sample: int, readings: list[Reading]) -> Iterator[Finding]:
    if config.input.path == "-":
        yield Finding("skipped", "standard input")
        return
    source = open_source(config)
    with closing(source):
        decoder = file_decoder(config, source)
        for change in source.changes():
            if isinstance(change, Assigned):
                source.seek(change.partition, change.earliest)
        records, decoded = decode_records(decoder, source.poll(sample, timeout_s=1.0))
        readings += [item for item in decoded if isinstance(item, Reading)]
        yield from sample_findings(records, decoded, decoder, config.input.flags)


def _clock(readings: list[Reading]) -> Iterator[Finding]:
    if readings:
        yield clock_finding(readings, time.time())
    else:
        yield Finding("skipped", "no record was read")


def _outputs(config: Config) -> Iterator[Finding]:
    places = file_places(config)
    require_own_places(config)
    folders: dict[Path, str] = {}
    for role, path in places.outputs.items():
        if path != "-":
            folders.setdefault(Path(path).absolute().parent, role)
    for folder, role in folders.items():
        if folder.is_dir():
            yield folder_finding(folder, "folder", f"output.{role}")
        else:
            yield Finding("error", f"folder {folder} does not exist", f"make it, for {role}")
    if not folders:
        yield Finding("ok", "standard output")


def _state(config: Config) -> Iterator[Finding]:
    folder = file_places(config).state
    if folder is None:
        yield Finding("skipped", "nothing is kept: every run begins anew")
        return
    yield folder_finding(folder, "folder", "state.folder")
