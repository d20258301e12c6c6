"""The ``rejex-stream`` program: its commands, its version, and how it fails.

Results go to standard output, everything else to standard error. Exit status 0: done; 1: failed;
2: the command or the config is wrong. An error is one sentence; ``REJEX_DEBUG=1`` adds the
traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, NamedTuple

import typer

from rejex_stream.errors import ConfigError, RejexError

__all__ = ["app", "main"]

app = typer.Typer(
    name="rejex-stream",
    help="Streaming anomaly detection that knows when it does not know: anomaly, normal or "
    "rejected, with the rejection rate known in advance.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Part(NamedTuple):
    """A command, or a group of them, in a module of its own; imported when it is asked for."""

    name: str
    module: str
    about: str
    function: str = ""
    """Name of the command's function; empty for a group, whose name is ``app``."""


_PARTS = (
    _Part("run", "rejex_stream.cli.run", "Run a pipeline.", "run"),
    _Part("plan", "rejex_stream.cli.plan", "What a choice of γ, n and T promises.", "plan"),
    _Part("validate", "rejex_stream.cli.validate", "Check a config.", "validate"),
    _Part("doctor", "rejex_stream.cli.doctor", "Check a config against the world.", "doctor"),
    _Part("score", "rejex_stream.cli.score", "Have a quick look at any CSV.", "score"),
    _Part("settings", "rejex_stream.cli.validate", "Print all settings.", "settings"),
    _Part("topics", "rejex_stream.cli.topics", "Create or check the Kafka topics."),
    _Part("schema", "rejex_stream.cli.schema", "Print the schemas of what is written."),
    _Part("deadletter", "rejex_stream.cli.deadletter", "Records that could not be read."),
    _Part("alerts", "rejex_stream.cli.alerts", "Alert rules for Prometheus."),
    _Part("dashboard", "rejex_stream.cli.dashboard", "The dashboard for Grafana."),
    _Part("review", "rejex_stream.review.cli", "The review queue and its console."),
    _Part("demo", "rejex_stream.demo.cli", "A water meter and a wind farm in a minute.", "demo"),
)


def main(argv: list[str] | None = None) -> int:
    """Run the program; return its exit status.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process by default.

    Examples
    --------
    >>> main(["plan", "--contamination", "0.7"])
    2
    """
    arguments = sys.argv[1:] if argv is None else argv
    _mount(next((word for word in arguments if not word.startswith("-")), None))
    try:
        app(arguments, prog_name="rejex-stream")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except ConfigError as error:
        return _fail(error, 2)
    except RejexError as error:
        return _fail(error, 1)
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        what = f"unexpected {type(error).__name__}: {error}; REJEX_DEBUG=1 shows where"
        return _fail(error, 1, what)
    return 0


def _fail(error: Exception, status: int, message: str | None = None) -> int:
    if os.environ.get("REJEX_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"rejex-stream: {message or error}", file=sys.stderr)
    return status


def _mount(wanted: str | None) -> None:
    """Import the part that is asked for; the others only lend their name to the help."""
    app.registered_commands.clear()
    app.registered_groups.clear()
    for part in _PARTS:
        if not _exists(part.module):
            continue
        if part.name != wanted:
            app.command(part.name, help=part.about)(_only_named)
            continue
        module = importlib.import_module(part.module)
        if part.function and hasattr(module, part.function):
            app.command(part.name)(getattr(module, part.function))
        else:
            app.add_typer(module.app, name=part.name, help=part.about)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def _only_named() -> None:
    """Never runs: a part that is asked for is imported."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rejex-stream {version('rejex-stream')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass
