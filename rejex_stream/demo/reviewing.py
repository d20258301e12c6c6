"""The review console on what the demo rejected."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from rejex_stream.build import monitor_config
from rejex_stream.demo.pipelines import Pipeline
from rejex_stream.demo.play import read_back
from rejex_stream.errors import ConfigError
from rejex_stream.review.feeds import FileFeed
from rejex_stream.review.outbox import LabelFile
from rejex_stream.review.store import ReviewStore
from rejex_stream.review.upkeep import Inflow, Upkeep
from rejex_stream.review.watching import PipelineWatch

__all__ = ["open_console"]


def open_console(
    out: Path,
    pipelines: Sequence[Pipeline],
    *,
    on_ready: Callable[[str], None],
    port: int = 0,
) -> None:
    """Fill a new review queue from the files of these pipelines and serve it until stopped.

    Parameters
    ----------
    out
        The queue lives in ``review/`` below it; an earlier one there is removed.
    pipelines
        Have run.
    on_ready
        Told the console's address once it answers.
    port
        On this machine's loopback; 0 takes any free one.

    Raises
    ------
    ConfigError
        If the extra ``review`` is not installed.
    ConnectorError
        If the port is taken.
    """
    try:
        from rejex_stream.review.web.app import make_app
        from rejex_stream.review.web.auth import Access
        from rejex_stream.review.web.console import Console
        from rejex_stream.review.web.server import ConsoleServer, listen
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The review console needs {error.name}: install the extra with "
            "pip install 'rejex-stream[review]'."
        ) from error
    folder = out / "review"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    store = ReviewStore(folder / "review.db")
    watches, inflows = {}, []
    for pipeline in pipelines:
        name = pipeline.config.pipeline.name
        watches[name] = PipelineWatch(store, name, monitor_config(pipeline.config))
        inflows += [
            Inflow(FileFeed(pipeline.review_path, "review")),
            Inflow(FileFeed(pipeline.verdicts_path, "verdicts"), watches[name]),
        ]
        _add_readings(store, pipeline)
    upkeep = Upkeep(store, inflows, LabelFile(out / "review" / "labels.jsonl"))
    listener = listen("127.0.0.1", port)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    console = Console(store, Access(mode="none"), watches, upkeep, title="demo")
    server = ConsoleServer(make_app(console), console, on_ready=lambda: on_ready(address))
    while upkeep.round():  # the queue is full before anybody looks
        pass
    upkeep.start()
    try:
        server.run(sockets=[listener])
    finally:
        if upkeep.stop():
            store.close()


def _add_readings(store: ReviewStore, pipeline: Pipeline) -> None:
    """Let the console's plots show the accepted events, too."""
    channels = tuple(channel.name for channel in pipeline.channels)
    points: dict[tuple[str, str], list[tuple[int, tuple[float | None, ...]]]] = {}
    readings, _, _ = read_back(pipeline)
    for reading in readings.values():
        values = tuple(None if math.isnan(value) else value for value in reading.values)
        points.setdefault((reading.stream_key, reading.sensor), []).append(
            (reading.event_time_ms, values)
        )
    for (stream_key, sensor), series in points.items():
        store.add_readings(stream_key, sensor, channels, series)
