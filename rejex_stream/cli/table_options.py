"""Options of commands that look at a table, and groups of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
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


_Text: TypeAlias = str | None
_Texts: TypeAlias = list[str] | None


def _guessed(help: str, *name: str) -> Any:  # noqa: ANN401 - as typer's
    return typer.Option(*name, help=f"{help}  [default: guessed]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What somebody knows about a table or a feed, option by option."""

    time: Annotated[_Texts, _guessed("Column of the time; twice for day and hour.")] = None
    sensor: Annotated[
        _Texts, _guessed("Column of the sensor; - for none, several times for a joined name.")
    ] = None
    tag: Annotated[_Text, _guessed("Column of the quantity, where a row has one value.")] = None
    mode: Annotated[
        _Text,
        typer.Option(help="Column of the operating mode: each is judged apart.  [default: none]"),
    ] = None
    channels: Annotated[_Texts, _guessed("A channel; several times.", "--channel")] = None
    flags: Annotated[
        _Texts, _guessed("A channel to keep out of the score; several times.", "--flag")
    ] = None
    angles: Annotated[
        _Texts, _guessed("A channel of degrees; - for none, several times.", "--angle")
    ] = None
    counters: Annotated[
        _Texts,
        typer.Option(
            "--counter",
            help="A channel that only adds up, judged by its rise an hour; several times.",
        ),
    ] = None
    label: Annotated[_Text, _guessed("Column of the known truth.")] = None
    delimiter: Annotated[_Text, _guessed("Between the columns.")] = None
    encoding: Annotated[_Text, _guessed("Such as cp1252 or utf-16.")] = None
    decimal: Annotated[_Text, _guessed("Decimal mark, . or ,")] = None
    thousands: Annotated[_Text, _guessed("Mark between three digits.")] = None
    missing: Annotated[
        _Texts,
        _guessed("A text where a value is missing, or NAME=NUMBER of a channel; several times."),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Does the first row name the columns?"),
    ] = None
    skip_rows: Annotated[
        int | None, typer.Option(min=0, help="Rows above the table.  [default: guessed]")
    ] = None
    sheet: Annotated[_Text, typer.Option(help="Of an Excel workbook.  [default: the first]")] = None
    time_unit: Annotated[
        TimeUnit | None, _guessed("Of times that are numbers: s, ms, excel, …")
    ] = None
    carry: Annotated[
        int | None,
        typer.Option(
            min=0, help="Rows for which a channel's last value stands.  [default: guessed]"
        ),
    ] = None
    time_format: Annotated[_Text, _guessed("Such as '%d.%m.%Y %H:%M'.")] = None
    time_zone: Annotated[
        _Text, typer.Option(help="Of times without one: Europe/Berlin.  [default: UTC]")
    ] = None

    select: Annotated[
        _Text, _guessed("A jq program that makes flat objects of records of JSON.")
    ] = None

    def known(self) -> Asked:
        """Return the options as :class:`Asked`; what was not given is guessed."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if sensors := given.pop("sensor", None):
            given |= {"sensor": sensors[0]} if len(sensors) == 1 else {"sensors": sensors}
        return Asked(**given)


def gathering(**groups: Callable[..., object]) -> Callable[[Command], Command]:
    """Expand dataclasses of options into the parameters of a command."""
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
