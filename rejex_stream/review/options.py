"""Options that several review commands share, and how they go before the config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rejex_stream.config import Config, load_config
from rejex_stream.config.reviewing import Review
from rejex_stream.errors import ConfigError

__all__ = [
    "ConfigOption",
    "GapEventsOption",
    "GapOption",
    "ReviewOption",
    "StoreOption",
    "VerdictsOption",
    "load_pipelines",
    "or_config",
    "overridden",
]


def or_config(name: str) -> str:
    """Return how the help names the default of an option that the config may set."""
    field = Review.model_fields[name]
    return f"{field.get_default(call_default_factory=True)}, or review.{name} of the config"


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The review store, one file on a local disk.",
        show_default=or_config("store"),
    ),
]
ConfigOption = Annotated[
    list[Path] | None,
    typer.Option("--config", help="Config of a pipeline; may be given several times."),
]
ReviewOption = Annotated[
    list[Path] | None, typer.Option("--review", help="File of review items, JSON Lines.")
]
VerdictsOption = Annotated[
    list[Path] | None, typer.Option("--verdicts", help="File of all verdicts, JSON Lines.")
]
GapOption = Annotated[
    float | None,
    typer.Option(
        help="Rejected events this many seconds apart are one episode.",
        min=0,
        show_default=or_config("gap_s"),
    ),
]
GapEventsOption = Annotated[
    int | None,
    typer.Option(
        help="Or with so few other events between them.",
        min=0,
        show_default=or_config("gap_events"),
    ),
]


def load_pipelines(paths: Sequence[Path] | None) -> list[Config]:
    """Read the configs of all pipelines.

    Raises
    ------
    ConfigError
        If one is wrong, or two pipelines have the same name.
    """
    configs: list[Config] = []
    for path in paths or ():
        config = load_config(path)
        name = config.pipeline.name
        if any(name == other.pipeline.name for other in configs):
            raise ConfigError(f"Two configs name their pipeline {name!r}: give each its own name.")
        configs.append(config)
    return configs


def overridden(configs: Sequence[Config], **given: Any) -> Review:  # noqa: ANN401 - as typed
    """Return ``[review]`` of the configs, with what the command line says in its place.

    Parameters
    ----------
    given
        By name of the setting; ``None`` and empty lists were not given.

    Raises
    ------
    ConfigError
        If two configs set ``[review]`` differently, or the whole does not fit together.
    """
    set_ = [config.review for config in configs if config.review != Review()]
    if any(one != set_[0] for one in set_):
        raise ConfigError(
            "The configs set [review] differently, but there is one queue: keep the section in "
            "one of them."
        )
    section = set_[0] if set_ else Review()
    told = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None and value != []
    }
    section = section.model_copy(update=told)
    section.check()
    if section.labels is None:
        _require_one_topic(configs)
    return section


def _require_one_topic(configs: Sequence[Config]) -> None:
    topics = {
        (config.kafka.bootstrap_servers, config.output.labels)
        for config in configs
        if config.input.kind == "kafka"
    }
    if len(topics) > 1:
        named = ", ".join(sorted(f"{topic!r} on {servers}" for servers, topic in topics))
        raise ConfigError(
            f"The configs send labels to different topics ({named}), but one queue has one: give "
            "them the same output.labels, a console each, or review.labels, a file."
        )
