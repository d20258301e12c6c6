"""The commands of ``rejex-stream``, a file each; what a command decides is decided in a room below.

In come options and a config, out goes text or JSON. Open `run` first: it reads a config, has
:mod:`rejex_stream.config.assembly` build the pipeline, and shows how it goes.
"""
