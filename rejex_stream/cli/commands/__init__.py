"""The commands of ``rejex-stream``, by what goes together; all is decided in a room below.

In come options and a config, out goes text or JSON. Open `run_pipeline` first: it reads a config,
has :mod:`rejex_stream.config.assembly` build the pipeline, and shows how it goes.
"""
