"""``review certify`` and ``review verify-certificate``: what was missed at most, to be checked."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rejex_connectors.signed_snapshots import read_key

from rejex_stream.cli.commands.review.options import (
    Configs,
    command,
    existing,
    labels_file,
)
from rejex_stream.cli.show import print_json
from rejex_stream.config.assembly.running import audit_draw
from rejex_stream.config.reviewing import Review
from rejex_stream.errors import ConfigError
from rejex_stream.review import certificate
from rejex_stream.review.console.background import published_labels
from rejex_stream.review.queue.report import pipelines_of
from rejex_stream.run.audit_draw import AuditDraw

__all__ = ["certify", "verify_certificate"]

_Key = Annotated[
    Path | None,
    typer.Option("--key-file", help="Key of the draw.  [default: output.audit_key_file]"),
]


@command()
def certify(
    configs: Configs,
    section: Review,
    *,
    since: Annotated[
        datetime | None,
        typer.Option(help="From this time of the events on (UTC); fix it beforehand."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="How often the bound may ever be wrong.")] = 0.05,
    sensitivity: Annotated[
        float, typer.Option(help="Share of anomalies that reviewers recognise, at least.")
    ] = 1.0,
    key_file: _Key = None,
) -> None:
    """Print, as signed JSON, how many anomalies were missed at most; valid at every look."""
    name = _one_pipeline(configs, section)
    with existing(section) as opened, opened.database.read() as connection:
        found = certificate.certify(
            certificate.answers_in(connection, name),
            pipeline=name,
            since_ms=0 if since is None else round(since.replace(tzinfo=UTC).timestamp() * 1000),
            alpha=alpha,
            sensitivity=sensitivity,
        )
    print_json(certificate.signed(found, _draw(configs, key_file).key))
    print(f"{name}: {certificate.said(found)}", file=sys.stderr)


@command()
def verify_certificate(
    file: Annotated[Path, typer.Argument(help="The certificate.")],
    configs: Configs,
    section: Review,
    *,
    verdicts: Annotated[Path, typer.Option(help="All verdicts of the pipeline, JSON lines.")],
    key_file: _Key = None,
) -> None:
    """Toss every coin again over a log of verdicts and labels; exit 1 if the figures differ."""
    if len(configs) != 1:
        raise ConfigError("give the --config of the pipeline: it says which shares were drawn.")
    draw = _draw(configs, key_file)
    try:
        told = msgspec.json.decode(file.read_bytes(), type=certificate.Certificate)
        with verdicts.open("rb") as lines:
            written = published_labels(configs, Path(section.store), labels_file(section))
            again = certificate.certify(
                certificate.answers_of_log(lines, written, draw),
                pipeline=configs[0].pipeline.name,
                since_ms=told.since_ms,
                alpha=told.alpha,
                sensitivity=told.sensitivity,
            )
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror}).") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is no certificate ({error}).") from None
    apart = certificate.differences(told, again, draw.key)
    for field, (there, here) in apart.items():
        print(f"{field}: the certificate says {there}, the log {here}")
    if apart:
        raise typer.Exit(1)
    print(f"the log says the same: {certificate.said(again)}")


def _draw(configs: Configs, key_file: Path | None) -> AuditDraw:
    draw = audit_draw(configs[0]) if len(configs) == 1 else AuditDraw()
    return draw if key_file is None else replace(draw, key=read_key(str(key_file), "--key-file"))


def _one_pipeline(configs: Configs, section: Review) -> str:
    if len(configs) == 1:
        return configs[0].pipeline.name
    with existing(section) as opened, opened.database.read() as connection:
        names = pipelines_of(connection)
    if len(names) != 1:
        raise ConfigError(
            f"the store holds {len(names)} pipelines ({', '.join(names) or 'none'}): give the "
            "--config of the one to certify."
        )
    return names[0]
