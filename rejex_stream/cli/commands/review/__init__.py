"""The commands ``rejex-stream review …``: the queue, its console, and what its answers are worth.

In come a store and the configs of pipelines, out go a running console, files and tables. Open
`options` first: how an option of a command stands before the same setting of a config.
"""

from rejex_stream.cli.commands.review import certify, report, seed, store
from rejex_stream.cli.commands.review.options import app, load_pipelines, overridden

__all__ = ["app", "certify", "load_pipelines", "overridden", "report", "seed", "store"]
