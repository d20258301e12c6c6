"""The screen of the incidents: a list, a page for each with the one question, and its API."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rejex_stream.review.console.api import Name, answer, json_api, read_body
from rejex_stream.review.console.console import Console, console_of, off_loop, viewer_of
from rejex_stream.review.console.formatting import spark_svg
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.incidents import incident_store
from rejex_stream.review.incidents.answers import Said
from rejex_stream.review.incidents.incident_store import Kept, Line
from rejex_stream.review.queue.claims import Refusal
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.types import Incident, IncidentState

__all__ = ["routes"]

_SECTIONS = (
    ("Open", (IncidentState.OPEN, IncidentState.FAULT)),
    ("Recovering", (IncidentState.RECOVERING, IncidentState.ADOPTING)),
    ("Closed", (IncidentState.CLOSED,)),
)
_CHOICES = (
    (
        "fault",
        "Fault",
        "The reference stands still until scores are ordinary again, and nothing that was held "
        "back is ever learnt.",
    ),
    (
        "new_normal",
        "New normal",
        "A reference is made of what was held back, and this is ordinary from then on; where "
        "nothing was, the incident is over.",
    ),
)
_HOLD = {
    IncidentState.OPEN: "reference stands still",
    IncidentState.FAULT: "reference stands still",
    IncidentState.RECOVERING: "reference stands still",
    IncidentState.ADOPTING: "a reference is made of what was held back",
    IncidentState.CLOSED: "over",
}


class AnswerIn(msgspec.Struct):
    """An answer to an incident."""

    request_id: Name
    incident: Annotated[str, Meta(min_length=1, max_length=1000)]
    version: Annotated[int, Meta(ge=1)]
    kind: Literal["fault", "new_normal"]
    note: Annotated[str, Meta(max_length=4000)] = ""


def _stands(incident: Incident) -> str:
    """Say what becomes of the reference."""
    moves_on = not incident.held and incident.state is not IncidentState.CLOSED
    return "reference moves on" if moves_on else _HOLD[incident.state]


# ---------------------------------------------------------------------------------------- pages
def _list(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    found = incident_store.standing(connection)
    return {
        "sections": [
            (title, [one for one in found if one.incident.state in states])
            for title, states in _SECTIONS
        ],
        "any_incident": bool(found),
    }


def _one(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    found = _known(connection, request)
    incident = found.incident
    return {
        "kept": found,
        "incident": incident,
        "changes": incident_store.timeline(connection, incident),
        "answers": incident_store.answers_to(connection, incident.id),
        "plots": [
            plot for line in incident_store.lines(connection, incident) for plot in _plots(line)
        ],
        "item": connection.execute(
            "SELECT episode_id, n_events, status FROM episode WHERE incident = ? "
            "AND status <> 'empty' ORDER BY rowid LIMIT 1",
            (incident.id,),
        ).fetchone(),
        "choices": [
            choice
            for choice in _CHOICES
            if not (choice[0] == "fault" and incident.state is IncidentState.FAULT)
        ],
        "heard": console.background is None or found.pipeline in console.background.tells,
        "hold_words": _stands,
    }


def _plots(line: Line) -> list[tuple[str, Any]]:
    """Return (name, picture) of each channel and of the score, where there is anything to see."""
    named = [*zip(line.series.channels, line.series.values, strict=True)]
    named.append(("score", line.series.score))
    return [
        (
            f"{line.sensor}: {name}",
            spark_svg(
                t.tolist(), v.tolist(), line.low_ms, line.high_ms, line.begin_ms, line.end_ms
            ),
        )
        for name, (t, v) in named
        if len(t) > 1
    ]


def _known(connection: Connection, request: Request) -> Kept:
    found = incident_store.kept_incident(connection, request.path_params["incident"])
    if found is None:
        raise Refusal("unknown", "There is no such incident.")
    return found


# ------------------------------------------------------------------------------------------ API
@json_api
async def post_answer(request: Request) -> Response:
    """Say what an incident is; the reply of the pipeline comes later, on its page."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, AnswerIn)
    said = Said(wanted.request_id, wanted.incident, wanted.version, wanted.kind, wanted.note)
    command = await off_loop(console.store.answer, said, viewer)
    return answer({"command": command, "message": "Given: the reply comes with the next events."})


@json_api
async def get_incidents(request: Request) -> Response:
    """Return every incident that is not over, and the last ones that are."""
    console = console_of(request)

    def work() -> list[dict[str, Any]]:
        with console.store.database.read() as connection:
            return [one._asdict() for one in incident_store.standing(connection)]

    return answer(await off_loop(work))


@json_api
async def get_incident(request: Request) -> Response:
    """Return an incident with its changes, and what was said about it here."""
    console = console_of(request)

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            found = _known(connection, request)
            changes = incident_store.timeline(connection, found.incident)
            said = incident_store.answers_to(connection, found.incident.id)
        return {
            **found._asdict(),
            "changes": [one._asdict() for one in changes],
            "answers": [one._asdict() | {"accepted": one.accepted} for one in said],
        }

    return answer(await off_loop(work))


routes = [
    Route("/incidents", page("incidents.html", _list)),
    Route("/incidents/{incident:path}", page("incident.html", _one)),
    Route("/api/incidents", get_incidents),
    Route("/api/incidents/answer", post_answer, methods=["POST"]),
    Route("/api/incidents/{incident:path}", get_incident),
]
