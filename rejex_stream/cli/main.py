"""The ``rejex-stream`` program: its commands, its version, and how it fails.

Results go to standard output, everything else to standard error. Exit status 0: done; 1: failed;
2: the command or the config is wrong. An error is one sentence; ``REJEX_DEBUG=1`` adds the
traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Annotated, NamedTuple

import typer

from rejex_stream.errors import ConfigError, RejexError

app = typer.Typer(
    name="rejex-stream",
    help="Streaming anomaly detection that knows when it does not know: anomaly, normal or "
    "rejected, with the rejection rate known in advance.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Part(NamedTuple):
    """A command, or a group of them, in a module of `commands`; imported when it is asked for."""

    name: str
    module: str
    about: str
    function: str = "app"  # name of the command's function, or of the group


_INTERRUPTED = 130
_COMMANDS = "rejex_stream.cli.commands"
_PARTS = (
    _Part("init", "init", "Write a config for a file or a topic.", "init"),
    _Part("run", "run_pipeline", "Run a pipeline.", "run"),
    _Part("spark", "spark", "Run a pipeline on Apache Spark.", "spark"),
    _Part("warm", "warm", "Begin with what a history teaches.", "warm"),
    _Part("replay", "replay", "Judge a history again, and compare.", "replay"),
    _Part("plan", "before_run", "What a choice of γ, n and T promises.", "plan"),
    _Part("validate", "before_run", "Check a config.", "validate"),
    _Part("doctor", "before_run", "Check a config against the world.", "doctor"),
    _Part("score", "score", "Have a quick look at any table.", "score"),
    _Part("report", "prints", "Show what a pipeline has judged.", "report"),
    _Part("settings", "prints", "Print all settings.", "settings"),
    _Part("topics", "kafka_topics", "Create or check the Kafka topics.", "topics"),
    _Part("schema", "prints", "Print the schemas of what is written.", "schema"),
    _Part("control", "control_pipeline", "Tell a running pipeline what only people know."),
    _Part("state", "state", "What is stored of a pipeline."),
    _Part("deadletter", "kafka_topics", "Records that could not be read.", "deadletter"),
    _Part("alerts", "prints", "Alert rules for Prometheus.", "alerts"),
    _Part("dashboard", "prints", "The dashboard for Grafana.", "dashboard"),
    _Part("review", "review", "The review queue and its console."),
    _Part("demo", "demo", "A water meter and a wind farm in a minute.", "demo"),
)


def main(argv: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
            # Signs that it lacks are spelled out, instead of failing.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    _mount(next((word for word in _to_complete() or arguments if not word.startswith("-")), None))
    try:
        app(arguments, prog_name="rejex-stream")
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            print("rejex-stream: interrupted.", file=sys.stderr)
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


def _to_complete() -> list[str]:
    """Return the words after the program's name that a shell wants completed, if one does."""
    if "_REJEX_STREAM_COMPLETE" not in os.environ:
        return []
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return typed.split()[1:]


def _mount(wanted: str | None) -> None:
    """Import the command that is called; the others only appear in the help."""
    app.registered_commands.clear()
    app.registered_groups.clear()
    for part in _PARTS:
        if part.name != wanted:
            app.command(part.name, help=part.about)(_only_named)
            continue
        command = getattr(importlib.import_module(f"{_COMMANDS}.{part.module}"), part.function)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=part.name, help=part.about)
        else:
            app.command(part.name)(command)


def _only_named() -> None:
    """Not run: a part that is asked for is imported."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
