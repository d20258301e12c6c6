"""The command line, ``rejex-stream``: words of a user in, calls of the rooms below, text out.

Open `main` first: the table of commands, and how the program fails. Each command is a file of
`commands`, imported when it is asked for; `show` has the tables that several of them print.
"""

from rejex_stream.cli.main import app, main

__all__ = ["app", "main"]
