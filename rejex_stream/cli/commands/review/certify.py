"""``review certify`` and ``review verify-certificate``: what was missed at most, to be checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
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
from rejex_stream.config import Config
from rejex_stream.config.assembly.control_line import ControlLine
from rejex_stream.config.assembly.running import audit_draw
from rejex_stream.config.reviewing import Review
from rejex_stream.encode import decode_reviewed
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.review import certificate
from rejex_stream.review.console.background import published_labels
from rejex_stream.review.gold_cases.reviewer_errors import known_cases
from rejex_stream.review.queue.report import pipelines_of
from rejex_stream.review.verification import Said, verify
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.types import Position, ReviewItem

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
        typer.Option(help="From this hour of the events on (UTC); fix it beforehand."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="How often either bound may ever be wrong, together.")
    ] = 0.05,
    sensitivity: Annotated[
        float | None,
        typer.Option(
            help="Share of anomalies that reviewers recognise, at least.  [default: the limit that "
            "known cases give; without any, all]"
        ),
    ] = None,
    key_file: _Key = None,
) -> None:
    """Print, as signed JSON, how many anomalies were missed at most; valid at every look."""
    name = _one_pipeline(configs, section)
    since_ms = 0 if since is None else round(since.replace(tzinfo=UTC).timestamp() * 1000)
    with existing(section) as opened, opened.database.read() as connection:
        found = certificate.certify(
            certificate.tally_of_store(connection, name, since_ms),
            pipeline=name,
            since_ms=since_ms,
            alpha=alpha,
            sensitivity=sensitivity,
            known=known_cases(connection, pipeline=name).all,
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
    review: Annotated[
        Path | None,
        typer.Option(help="Its review items, JSON lines: each drawn event has to be among them."),
    ] = None,
    key_file: _Key = None,
) -> None:
    """Toss every coin again over a log of verdicts and labels; exit 1 if anything differs."""
    if len(configs) != 1:
        raise ConfigError("give the --config of the pipeline: it says which shares were drawn.")
    draw, name = _draw(configs, key_file), configs[0].pipeline.name
    try:
        told = msgspec.json.decode(file.read_bytes(), type=certificate.Certificate)
        said = _said(configs[0], section, review)
        with verdicts.open("rb") as lines:
            found = verify(told, lines, draw, said, pipeline=name)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror}).") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is no certificate ({error}).") from None
    for sentence in (*found.premises, *found.wrong):
        print(sentence)
    if found.wrong:
        raise typer.Exit(1)
    print(f"the log says the same: {certificate.said(found.again)}")


def _said(config: Config, section: Review, review: Path | None) -> Said:
    """Gather what stands beside the verdicts, as far as it is there."""
    said = Said(reviewers=tuple(section.reviewers))
    said.labels = published_labels([config], Path(section.store), labels_file(section))
    with suppress(ConfigError, ConnectorError):
        line = ControlLine(config)
        replies = line.replies()
        said.incidents = line.incidents()
        said.commands = [
            one for one in line.given() if any(r.accepted for r in replies.get(one.id, ()))
        ]
    if review is not None:
        said.items = _drawn_items(review)
    return said


def _drawn_items(path: Path) -> Mapping[Position, ReviewItem]:
    with path.open("rb") as lines:
        items = [decode_reviewed(line) for line in lines]
    return {
        one.verdict.position: one
        for one in items
        if isinstance(one, ReviewItem) and one.why == "audit"
    }


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
