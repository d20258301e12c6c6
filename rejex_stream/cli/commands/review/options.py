"""What the commands of ``review`` share: the group, its options, and the store they open."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import typer

from rejex_stream.config import Config, load_config
from rejex_stream.config.reviewing import Review
from rejex_stream.errors import ConfigError
from rejex_stream.review.queue.episodes import Costs
from rejex_stream.review.queue.store import ReviewStore

__all__ = [
    "SETTINGS",
    "Configs",
    "app",
    "command",
    "costs_of",
    "existing",
    "labels_file",
    "load_pipelines",
    "overridden",
    "require_one_topic",
    "require_store",
]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The review queue and its console.",
    rich_markup_mode=None,
)

# ---------------------------------------------------- options that go before [review] of a config
SETTINGS = {
    "store": ("--store", "The review store, one file on a local disk."),
    "labels": ("--labels", "Labels file."),
    "host": ("--host", "Address to listen on."),
    "port": ("--port", "Port; 0 takes any free one."),
    "auth": ("--auth", "How people prove who they are; none: loopback only."),
    "reviewers": ("--reviewer", "NAME or NAME:ROLE; with --auth token each gets a link."),
    "proxies": ("--proxy", "Address or network that --auth proxy trusts."),
    "leads": ("--lead", "Who is a lead with --auth proxy."),
    "allowed_hosts": ("--allow-host", "Host name that the console goes by."),
    "tls_cert": ("--tls-cert", "PEM file, to serve HTTPS."),
    "tls_key": ("--tls-key", "Its key."),
    "gap_events": ("--gap-events", "Rejected events this far apart are one case."),
    "settle_s": ("--settle", "Seconds an episode waits for what comes after it."),
    "max_age_hours": ("--max-age", "Hours after which an unreviewed episode expires."),
    "fallback": ("--fallback", "What it expires into."),
    "double_review_ratio": ("--double-review", "Share of episodes that two people judge."),
    "blind": ("--blind", "Hide model and colleagues until one has decided."),
    "priority_sensors": ("--priority", "Prefix of sensors that come first."),
}
_FILES = {"store", "labels", "tls_cert", "tls_key"}
_Config = Annotated[
    list[Path] | None,
    typer.Option("--config", help="Config of a pipeline; may be given several times."),
]
Configs: TypeAlias = list[Config]
Command: TypeAlias = Callable[..., None]


def _option(name: str) -> inspect.Parameter:
    """Return the option of one setting: its type and limits are those of the setting."""
    field = Review.model_fields[name]
    flag, says = SETTINGS[name]
    kind: Any = field.annotation
    default = field.get_default(call_default_factory=True)
    shown: str | bool = False
    if isinstance(default, str | int | float):
        shown = f"{default}, or review.{name} of the config"
    elif name == "labels":
        shown = "the topic output.labels (Kafka), or labels.jsonl beside the store"
    if get_origin(kind) is Literal:
        enumeration: Any = StrEnum
        kind = enumeration(name, {choice.upper(): choice for choice in get_args(kind)})
    elif get_origin(kind) is tuple:
        kind = list[str]
    elif name in _FILES:
        kind = Path
    limits = {end: getattr(one, end) for one in field.metadata for end in ("ge", "le")
              if hasattr(one, end)}  # fmt: skip
    option = typer.Option(
        flag, help=says, show_default=shown, min=limits.get("ge"), max=limits.get("le")
    )
    return _keyword(name, Annotated[kind | None, option])


def _keyword(name: str, kind: Any) -> inspect.Parameter:  # noqa: ANN401 - any annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def command(*settings: str) -> Callable[[Command], Command]:
    """Add a command; options for the settings stand where it takes the `section` they make.

    Where it takes `configs`, ``--store`` and ``--config`` stand.
    """

    def decorate(work: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for name, own in inspect.signature(work, eval_str=True).parameters.items():
            if name == "configs":
                parameters += [_option("store"), _keyword("config", _Config)]
            elif name == "section":
                parameters += [_option(one) for one in settings]
            else:
                parameters.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(work)
        def run(config: list[Path] | None, **given: Any) -> None:  # noqa: ANN401
            configs = load_pipelines(config or ())
            told = {name: given.pop(name) for name in ("store", *settings)}
            work(configs=configs, section=overridden(configs, **told), **given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}  # typer asks both
        return app.command()(run)

    return decorate


def load_pipelines(paths: Sequence[Path]) -> Configs:
    """Read the configs of all pipelines.

    Raises
    ------
    ConfigError
        If one is wrong, or two pipelines have the same name.
    """
    configs: Configs = []
    for path in paths:
        config = load_config(path)
        name = config.pipeline.name
        if any(name == other.pipeline.name for other in configs):
            raise ConfigError(f"Two configs name their pipeline {name!r}: give each its own name.")
        configs.append(config)
    return configs


def overridden(configs: Configs, **given: Any) -> Review:  # noqa: ANN401 - as typed
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
    told = {name: _plain(value) for name, value in given.items() if value not in (None, [])}
    section = (set_[0] if set_ else Review()).model_copy(update=told)
    section.check()
    if section.labels is None:
        require_one_topic(configs)
    return section


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever typer makes of an option
    if isinstance(value, list):
        return tuple(value)
    return str(value) if isinstance(value, Path | StrEnum) else value


def require_one_topic(configs: Configs) -> None:
    """Refuse pipelines whose labels would go to more than one topic."""
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


def require_store(path: Path) -> Path:
    """Return the path of a store that is there."""
    if not path.exists():
        raise ConfigError(
            f"There is no review store at {str(path)!r}: give --store, or make one with "
            "`rejex-stream review ingest` or `review serve`."
        )
    return path


def costs_of(configs: Configs) -> dict[str, Costs]:
    """Return what mistakes cost, by name of pipeline."""
    return {
        config.pipeline.name: Costs(config.rejection.costs.c_fp, config.rejection.costs.c_fn)
        for config in configs
    }


def existing(section: Review) -> closing[ReviewStore]:
    """Open the store that is there; it is closed in the end."""
    return closing(ReviewStore(require_store(Path(section.store)), section))


def labels_file(section: Review) -> Path | None:
    """Return the file of labels that somebody named."""
    return None if section.labels is None else Path(section.labels)
