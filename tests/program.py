"""The program, and other processes, as tests start them: without the settings of who runs them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


def environment(**changes):
    """The environment without its REJEX_ variables, the sources in reach of a program."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REJEX_")}
    return clean | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"} | changes


def command(*words):
    return [sys.executable, "-m", "rejex_stream", *map(str, words)]


def ended(words, **how):
    """Wait for a process; return it with all that it said."""
    how = {"text": True, "env": environment(), "timeout": 300} | how
    return subprocess.run(words, capture_output=True, check=False, **how)


def rejex(*words, cwd=None, **changes):
    """Run the program to its end; `changes` are variables of its environment."""
    return ended(command(*words), cwd=cwd, env=environment(**changes), timeout=120)


class Said(NamedTuple):
    status: int
    stdout: str
    stderr: str


def here(capsys, *words):
    """Run the program in this process: the same, without the seconds that imports take."""
    from rejex_stream.cli import main

    capsys.readouterr()
    status = main([str(word) for word in words])
    return Said(status, *capsys.readouterr())


def started(words, **how):
    """Return a process that runs, and what it says in pipes."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | how
    return subprocess.Popen(words, **({"text": True} | how))
