"""Options of commands that look at a table, and groups of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from rejex_stream.decode.mapping import TimeUnit
from rejex_stream.tables.guess import Asked

Contamination = Annotated[
    float, typer.Option("--contamination", "-c", help="γ, the expected share of anomalies.")
]
Tolerance = Annotated[
    float | None, typer.Option("--tolerance", "-T", help="T, instead of a budget.")
]
Rate = Annotated[
    float | None, typer.Option(help="Share of events that may be rejected.  [default: γ]")
]
Window = Annotated[int | None, typer.Option("--window", "-n", help="n.  [default: by the length]")]
Detector = Annotated[
    str | None,
    typer.Option(
        help="Name of the detector.  [default: Sensor; SeasonalSensor where rows hold a season, "
        "StateSensor where they hold states]"
    ),
]

Command: TypeAlias = Callable[..., None]


def _option(kind: Any, help: str, *name: str, default: str = "guessed", **more: Any) -> Any:  # noqa: ANN401 - as typer's
    help += f"  [default: {default}]" if default else ""
    return Annotated[kind | None, typer.Option(*name, help=help, **more)]


_MANY = list[str]
TABLE_OPTIONS = {
    "time": _option(_MANY, "Column of the time; twice for day and hour."),
    "sensor": _option(_MANY, "Column of the sensor; - for none, several times for a joined name."),
    "tag": _option(str, "Column of the quantity, where a row has one value."),
    "mode": _option(str, "Column of the operating mode: each is judged apart.", default="none"),
    "channels": _option(_MANY, "A channel; several times.", "--channel"),
    "flags": _option(_MANY, "A channel to keep out of the score; several times.", "--flag"),
    "angles": _option(_MANY, "A channel of degrees; - for none, several times.", "--angle"),
    "counters": _option(
        _MANY, "A channel that only adds up, judged by its rise an hour; several times.",
        "--counter", default="",
    ),
    "label": _option(str, "Column of the known truth."),
    "delimiter": _option(str, "Between the columns."),
    "encoding": _option(str, "Such as cp1252 or utf-16."),
    "decimal": _option(str, "Decimal mark, . or ,"),
    "thousands": _option(str, "Mark between three digits."),
    "missing": _option(
        _MANY, "A text where a value is missing, or NAME=NUMBER of a channel; several times."
    ),
    "header": _option(
        bool, "Does the first row name the columns?", "--header/--no-header", default=""
    ),
    "skip_rows": _option(int, "Rows above the table.", min=0),
    "sheet": _option(str, "Of an Excel workbook.", default="the first"),
    "time_unit": _option(TimeUnit, "Of times that are numbers: s, ms, excel, …"),
    "carry": _option(int, "Rows for which a channel's last value stands.", min=0),
    "time_format": _option(str, "Such as '%d.%m.%Y %H:%M'."),
    "time_zone": _option(str, "Of times without one: Europe/Berlin.", default="UTC"),
    "select": _option(str, "A jq program that makes flat objects of records of JSON."),
}  # fmt: skip
"""What somebody knows about a table or a feed, by the names of :class:`Asked`."""


def known(**given: Any) -> Asked:  # noqa: ANN401 - of whatever options
    """Return the options as :class:`Asked`; what was not given is guessed."""
    given = {name: value for name, value in given.items() if value is not None}
    if sensors := given.pop("sensor", None):
        given |= {"sensor": sensors[0]} if len(sensors) == 1 else {"sensors": sensors}
    return Asked(**given)


known.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
    for name, option in TABLE_OPTIONS.items()
])  # fmt: skip


def gathering(**groups: Callable[..., object]) -> Callable[[Command], Command]:
    """Expand what is made of groups of options into the parameters of a command."""
    options = {
        name: inspect.signature(make, eval_str=True).parameters for name, make in groups.items()
    }

    def gathered(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def called(**given: Any) -> None:  # noqa: ANN401 - of whatever options
            for name, make in groups.items():
                given[name] = make(
                    **{option: given.pop(option) for option in options[name] if option in given}
                )
            command(**given)

        flat = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, own in signature.parameters.items()
            for parameter in (options[name].values() if name in options else (own,))
        ]
        called.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
        return called

    return gathered
