"""``alerts print``: the alert rules for Prometheus."""

from __future__ import annotations

from importlib.resources import files

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Alert rules for Prometheus."""


@app.command("print")
def print_rules() -> None:
    """Print the rules file, to be named under rule_files in prometheus.yml."""
    print(files("rejex_stream.operate").joinpath("alerts.yml").read_text(encoding="utf-8"), end="")
