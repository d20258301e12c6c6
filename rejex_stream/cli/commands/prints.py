"""Files for others: ``report``, ``settings``, ``alerts``, ``dashboard`` and ``schema print``."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import print_json
from rejex_stream.encode.schemas import SCHEMAS, json_schema
from rejex_stream.errors import ConfigError
from rejex_stream.settings import nearest

_OPERATE = files("rejex_stream.operate")

alerts = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
dashboard = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
schema = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
for _group in (alerts, dashboard, schema):
    _group.callback()(lambda: None)  # a group of one command stays a group


@alerts.command("print")
def print_rules() -> None:
    """Print the rules file, to be named under rule_files in prometheus.yml."""
    print(_OPERATE.joinpath("alerts.yml").read_text(encoding="utf-8"), end="")


@dashboard.command("print")
def print_dashboard() -> None:
    """Print the dashboard, to be imported in Grafana."""
    print(_OPERATE.joinpath("dashboard.json").read_text(encoding="utf-8"), end="")


@schema.command("print")
def print_schema(
    name: Annotated[str, typer.Argument(help=f"config, {', '.join(SCHEMAS)}.")],
) -> None:
    """Print the JSON Schema of a record that is written, or of a config."""
    if name in SCHEMAS:
        print_json(json_schema(name))
    elif name == "config":
        from rejex_stream.config.pipeline_config import config_schema

        print_json(config_schema())
    else:
        near = nearest(name, ("config", *SCHEMAS))
        raise ConfigError(f"there is no schema {name!r}: did you mean {near}?")


def settings() -> None:
    """Print the table of all settings, in Markdown."""
    from rejex_stream.config import settings_markdown

    print(settings_markdown(), end="")


def report(
    config: Annotated[Path, typer.Argument(help="The config of a pipeline that has run.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a report of what a pipeline has judged, to open in any browser.

    One self-contained file: verdicts over the readings, scores beside the rejection
    band, the rejection rate beside theory, what is for review and why.
    """
    from rejex_stream.config import load_config
    from rejex_stream.report import analyse_run, read_run, write_report

    run = read_run(load_config(config))
    write_report(out, [analyse_run(run)], shlex.join(["rejex-stream", "report", str(config)]))
    print(f"report: {out.resolve().as_uri()}")
