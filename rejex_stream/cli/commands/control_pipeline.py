"""``control fault|known-fault|new-normal|plan|mute|cancel|list``: what only people know."""

from __future__ import annotations

import getpass
import math
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rejex_stream.cli.show import As, AsOption, ConfigFile, print_json, print_table
from rejex_stream.cli.table_options import gathering
from rejex_stream.config import load_config
from rejex_stream.config.assembly.control_line import ControlLine, make_command
from rejex_stream.errors import ConfigError
from rejex_stream.readable import utc
from rejex_stream.rejection.window import grade
from rejex_stream.types import Box, Command, CommandKind, CommandReply, IncidentState

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

IncidentId = Annotated[str, typer.Argument(help="The incident's id, as `control list` shows it.")]
Moment = Annotated[str, typer.Option(help="A time of the events, e.g. 2024-05-01T06:00+02:00.")]

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sends a command and why, and how the reply is waited for and shown."""

    note: Annotated[str, typer.Option(help="Why, for people.")] = ""
    by: Annotated[
        str | None, typer.Option(help="Who says it; by default the name of this login.")
    ] = None
    wait: Annotated[float, typer.Option(min=0, help="Wait so many seconds for a reply.")] = 10.0
    output: AsOption = As.TABLE


@app.command()
@gathering(sender=Sender)
def fault(config: ConfigFile, incident: IncidentId, *, sender: Sender) -> None:
    """Say that an incident is a fault: what it held back stays out of every reference for good."""
    _answer(CommandKind.FAULT, config, incident, sender)


@app.command("known-fault")
@gathering(sender=Sender)
def known_fault(config: ConfigFile, incident: IncidentId, *, sender: Sender) -> None:
    """Say that a fault stays until it is repaired: it is quiet, and what comes to it is told."""
    _answer(CommandKind.KNOWN_FAULT, config, incident, sender)


@app.command("new-normal")
@gathering(sender=Sender)
def new_normal(config: ConfigFile, incident: IncidentId, *, sender: Sender) -> None:
    """Say that this is how it is from now on: the reference is rebuilt from what was held back."""
    _answer(CommandKind.NEW_NORMAL, config, incident, sender)


@app.command()
@gathering(sender=Sender)
def plan(
    config: ConfigFile,
    begin: Annotated[str, typer.Option("--from", help="A time of the events, with its zone.")],
    until: Moment,
    *,
    stream: Annotated[str | None, typer.Option(help="Whose; by default of all streams.")] = None,
    sender: Sender,
) -> None:
    """Say that work is planned: verdicts go on, nothing is learnt and nobody is told."""
    line = ControlLine(load_config(config))
    times = {"from_ms": _ms("--from", begin), "until_ms": _ms("--until", until)}
    _give(line, CommandKind.PLANNED, sender, stream_key=stream, **times)


@app.command()
@gathering(sender=Sender)
def mute(
    config: ConfigFile,
    stream: Annotated[str, typer.Argument(help="Key of the stream.")],
    *,
    channel: Annotated[
        list[str], typer.Option(help="A side of the box, NAME=LOW:HIGH; once for each channel.")
    ],
    until: Moment,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="A time of the events, with its zone; by default now."),
    ] = None,
    sender: Sender,
) -> None:
    """Say that a pattern is normal: for 90 days at most nobody is asked about it, give a --note."""
    line = ControlLine(load_config(config))
    now = time.time_ns() // 1_000_000
    times = {
        "from_ms": now if begin is None else _ms("--from", begin),
        "until_ms": _ms("--until", until),
    }
    if begin is None and times["until_ms"] <= now:
        raise ConfigError(
            f"--until is {until!r}, which is over: where events are old, give --from."
        )
    _give(line, CommandKind.MUTE, sender, stream_key=stream, box=_box(channel), **times)


@app.command()
@gathering(sender=Sender)
def cancel(
    config: ConfigFile,
    planned: Annotated[
        str, typer.Argument(help="Id of the plan or the mute, as `control list` shows it.")
    ],
    *,
    sender: Sender,
) -> None:
    """Take a plan or a mute back."""
    line = ControlLine(load_config(config))
    plans = {command.id: command for command in line.commands() if command.until_ms is not None}
    if planned not in plans:
        known = ", ".join(sorted(plans)) or "none"
        raise ConfigError(
            f"there is no plan or mute {planned!r} to take back; given were: {known}."
        )
    of = plans[planned].stream_key
    _give(line, CommandKind.CANCEL, sender, cancels=planned, stream_key=of)


@app.command("list")
def list_all(
    config: ConfigFile,
    closed: Annotated[bool, typer.Option(help="Incidents that are over, too.")] = False,
    output: AsOption = As.TABLE,
) -> None:
    """Show the incidents that are not over, and the commands with what became of them."""
    line = ControlLine(load_config(config))
    incidents = [
        incident
        for incident in line.incidents().values()
        if closed or incident.state is not IncidentState.CLOSED
    ]
    commands, replies = line.commands(), line.replies()
    if output is As.JSON:
        answered = [{"command": item, "replies": replies.get(item.id, [])} for item in commands]
        print_json({"incidents": incidents, "commands": answered})
        return
    print_table(
        ("incident", "state", "stream", "begun", "severity", "events", "version"),
        [
            (
                item.id,
                item.state,
                item.stream_key,
                _time(item.onset_ms),
                "{} of 100 ({})".format(*grade(item.peak_severity, item.n_anomalies)),
                f"{item.n_events:,}",
                f"{item.version}",
            )
            for item in incidents
        ],
        left=(0, 1, 2, 3),
    )
    print_table(
        ("command", "kind", "of", "by", "what became of it"),
        [
            (
                item.id,
                item.kind,
                _whom(item),
                item.by,
                _outcome_of(replies.get(item.id, []), item.note),
            )
            for item in commands
        ],
        left=(0, 1, 2, 3, 4),
    )


# ------------------------------------------------------------------------------ what is said
def _answer(kind: CommandKind, config: Path, id_: str, sender: Sender) -> None:
    line = ControlLine(load_config(config))
    known = line.incidents()
    incident = known.get(id_)
    still = [each.id for each in known.values() if each.state is not IncidentState.CLOSED]
    if incident is None or incident.state is IncidentState.CLOSED:
        what = "is closed" if incident is not None else "is not known"
        raise ConfigError(f"incident {id_!r} {what}; open are: {', '.join(still) or 'none'}.")
    about = {"stream_key": incident.stream_key, "version": incident.version}
    _give(line, kind, sender, incident=id_, **about)


def _give(line: ControlLine, kind: CommandKind, sender: Sender, **fields: Any) -> None:  # noqa: ANN401
    by = getpass.getuser() if sender.by is None else sender.by
    now = time.time_ns() // 1_000_000
    command = make_command(kind, by=by, note=sender.note, given_ms=now, **fields)
    since = line.mark()
    line.publish(command)
    replies: list[CommandReply] = []
    until = time.monotonic() + sender.wait
    while not replies and time.monotonic() < until:
        time.sleep(min(_LOOK_EVERY_S, max(0.0, until - time.monotonic())))
        replies = line.replies(since).get(command.id, [])
    if sender.output is As.JSON:
        print_json({"command": command, "replies": replies})
    else:
        print(f"{command.id}: {_outcome_of(replies, '')}")
    if replies and not any(reply.accepted for reply in replies):
        raise typer.Exit(1)


def _outcome_of(replies: list[CommandReply], note: str) -> str:
    accepted = [reply for reply in replies if reply.accepted]
    reasons = dict.fromkeys(reply.said for reply in accepted or replies)
    if not reasons:
        sentence = (
            "given; it holds from the next events on, once it is its turn, and is replied to then"
        )
    else:
        sentence = f"{'accepted' if accepted else 'refused'}: {'; '.join(reasons)}"
    return f"{sentence} ({note})" if note else sentence


def _whom(command: Command) -> str:
    if command.incident is not None:
        return command.incident
    of = command.cancels or command.stream_key or "all streams"
    if command.kind is CommandKind.MUTE and command.until_ms is not None:
        box = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in command.box.items())
        return f"{of}: {box} until {_time(command.until_ms)}"
    return of


def _box(sides: list[str]) -> Box:
    box: Box = {}
    for side in sides:
        name, _, values = side.rpartition("=")
        low, _, high = values.partition(":")
        try:
            box[name] = float(low), float(high)
        except ValueError:
            name = ""
        if not name or not all(map(math.isfinite, box[name])):
            raise ConfigError(
                f"--channel is {side!r}: expected NAME=LOW:HIGH, two numbers, e.g. flow=1.2:3.4."
            )
    return box


def _ms(option: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}: expected a time such as 2024-05-01T06:00+02:00."
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"{option} is {text!r}, without a zone: add one, such as Z or +02:00.")
    return int(moment.timestamp() * 1000)


def _time(ms: int) -> str:
    return f"{utc(ms):%Y-%m-%d %H:%M:%S}Z"
