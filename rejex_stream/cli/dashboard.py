"""``dashboard print``: the dashboard for Grafana."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Dashboard for Grafana."""


@app.command("print")
def print_dashboard() -> None:
    """Print the dashboard, to be imported in Grafana."""
    from rejex_stream.operate.dashboard import dashboard_json

    print(dashboard_json(), end="")
