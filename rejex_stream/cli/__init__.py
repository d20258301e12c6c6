"""The command line, ``rejex-stream``."""

from rejex_stream.cli.main import app, main

__all__ = ["app", "main"]
