"""``schema print``: what is written, as JSON Schema or AsyncAPI."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import print_json
from rejex_stream.contract import SCHEMAS, asyncapi, json_schema
from rejex_stream.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Schemas of what is written."""


@app.command("print")
def print_schema(
    name: Annotated[
        str, typer.Argument(help=f"asyncapi, or the JSON Schema of {', '.join(SCHEMAS)}.")
    ] = "asyncapi",
    config: Annotated[
        Path | None, typer.Option(help="With asyncapi: take the names of the topics from here.")
    ] = None,
) -> None:
    """Print an AsyncAPI 3 document of the topics, or the JSON Schema of one kind of record."""
    if name in SCHEMAS:
        print_json(json_schema(name))
        return
    if name != "asyncapi":
        near = difflib.get_close_matches(name, ("asyncapi", *SCHEMAS), n=1)
        mend = f"did you mean {near[0]}?" if near else f"use asyncapi, {', '.join(SCHEMAS)}."
        raise ConfigError(f"there is no schema {name!r}: {mend}")
    if config is None:
        print_json(asyncapi())
        return
    from rejex_stream.cli.topics import kafka_config

    _, settings = kafka_config(config)
    topics = {
        role: topic for role, topic in asdict(settings.topics).items() if isinstance(topic, str)
    }
    topics.pop("state", None)
    print_json(asyncapi(topics, settings.bootstrap_servers))
