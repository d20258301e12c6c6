"""``alerts print``, ``dashboard print`` and ``schema print``: files for other programs."""

from __future__ import annotations

import difflib
from importlib.resources import files
from typing import Annotated

import typer

from rejex_stream.cli.show import print_json
from rejex_stream.encode.schemas import SCHEMAS, json_schema
from rejex_stream.errors import ConfigError

__all__ = ["alerts", "dashboard", "schema"]

alerts = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
dashboard = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
schema = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@alerts.callback()
def _alerts() -> None:
    """Alert rules for Prometheus."""


@alerts.command("print")
def print_rules() -> None:
    """Print the rules file, to be named under rule_files in prometheus.yml."""
    print(files("rejex_stream.operate").joinpath("alerts.yml").read_text(encoding="utf-8"), end="")


@dashboard.callback()
def _dashboard() -> None:
    """Dashboard for Grafana."""


@dashboard.command("print")
def print_dashboard() -> None:
    """Print the dashboard, to be imported in Grafana."""
    from rejex_stream.operate.dashboard import dashboard_json

    print(dashboard_json(), end="")


@schema.callback()
def _schema() -> None:
    """Schemas of what is written, and of a config."""


@schema.command("print")
def print_schema(
    name: Annotated[str, typer.Argument(help=f"config, {', '.join(SCHEMAS)}.")],
) -> None:
    """Print the JSON Schema of a record that is written, or of a config."""
    if name in SCHEMAS:
        print_json(json_schema(name))
        return
    if name == "config":
        from rejex_stream.config.table import config_schema

        print_json(config_schema())
        return
    known = ("config", *SCHEMAS)
    near = difflib.get_close_matches(name, known, n=1)
    mend = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}."
    raise ConfigError(f"there is no schema {name!r}: {mend}")
