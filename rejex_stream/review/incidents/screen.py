"""What is wrong now: the first page, the list of incidents, a page for each, and their API."""

from __future__ import annotations

import json
from itertools import groupby
from sqlite3 import Connection
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.routing import Route

from rejex_stream.errors import RejexError
from rejex_stream.operate.incident_text import DisplayNames, choices, if_unanswered, question
from rejex_stream.review.console.api import series_json, stretch_of
from rejex_stream.review.console.console import Call, Console, answers, whole_number
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.incidents import incident_store, readings
from rejex_stream.review.incidents.incident_store import (
    AnswerRequest,
    StoredIncident,
    give_answer,
    pending_answer,
    state_sentence,
    withdraw_answer,
)
from rejex_stream.review.incidents.planned import PlanRequest, cancel_work, plan_work, planned_work
from rejex_stream.review.incidents.shift import ATTENDED_AN_HOUR, SHIFT_HOURS, last_shift
from rejex_stream.review.queue import database, labelling, series
from rejex_stream.review.queue.database import Name, Refusal, Viewer, noted, require_reviewer
from rejex_stream.review.queue.ingest import group_of
from rejex_stream.review.queue.label_store import pending
from rejex_stream.review.queue.listing import QueueFilter, queue_rows
from rejex_stream.types import Incident, IncidentState

_PAGE = 50
_CARDS = 12
_TODAY = 8
_QUIET_MS = 15 * 60_000  # of which nothing came for so long, and for three steps, is quiet
_SHELVE_HOURS = ((1, "1 hour"), (8, "8 hours"), (24, "a day"), (168, "a week"))
_REVIEWERS_SHELVE_HOURS = 24
_SECTIONS = (
    ("Open", (IncidentState.OPEN, IncidentState.FAULT)),
    ("Recovering", (IncidentState.RECOVERING, IncidentState.ADOPTING)),
    ("Closed", (IncidentState.CLOSED,)),
)


class WithdrawIn(msgspec.Struct):
    """The answer that is taken back."""

    command: Name


class CancelIn(msgspec.Struct):
    """The plan that is taken back."""

    request_id: Name
    command: Name


class SeenIn(msgspec.Struct):
    """The incident that somebody has seen, or has something to say of."""

    request_id: Name
    incident: Annotated[str, Meta(min_length=1, max_length=1000)]
    text: Annotated[str, Meta(max_length=2000)] = ""


class CareIn(msgspec.Struct):
    """Who is to look after an incident, or for how long it is shelved, and why; 0: no more."""

    incident: Annotated[str, Meta(min_length=1, max_length=1000)]
    to: Annotated[str, Meta(max_length=64)] | None = None
    shelve_hours: Annotated[float, Meta(ge=0, le=24 * 31)] | None = None
    why: Annotated[str, Meta(max_length=2000)] = ""


# ---------------------------------------------------------------------------------------- pages
def _learning(incident: Incident) -> str:
    if incident.state is IncidentState.CLOSED:
        follows = incident.ended in ("absorbed", "adopted_by_age")
        return "reference still moving" if follows else "over"
    if incident.silent:
        return "its model is kept until it is back"
    if not incident.held:
        return "reference still moving"
    if incident.state is IncidentState.ADOPTING:
        return "a reference is made of what was measured meanwhile"
    return "reference frozen"


def _seen_by(connection: Connection, incident: str) -> list[str]:
    seen = "SELECT DISTINCT actor FROM audit WHERE subject = ? AND action IN ('seen', 'answer')"
    return sorted(database.scalars(connection, seen, (incident,)))


def _quiet(connection: Connection, pipeline: str, now_ms: int) -> int | None:
    arrived = noted(connection, f"arrived:{pipeline}")
    ago = None if arrived is None else now_ms - int(arrived)
    step_ms = series.usual_step(connection, pipeline)
    return ago if ago is not None and ago > max(_QUIET_MS, 3 * step_ms) else None


def _now(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    store, now = console.store, console.store.now_ms()
    all_open = [
        (one, incident_store.care_of(connection, one.incident, now))
        for one in incident_store.open_incidents(connection)
    ]
    not_shelved = [(one, care) for one, care in all_open if not care.shelved_until_ms]
    cards = dict[str, list[tuple[StoredIncident, incident_store.Care]]]()
    for one, care in not_shelved:
        cards.setdefault(one.situation, []).append((one, care))
    names = DisplayNames(priority=store.settings.priority_sensors)
    first = {one.situation for one, _ in not_shelved if names.has_priority(one.incident)}
    cards = dict(sorted(cards.items(), key=lambda card: card[0] not in first))
    asked = QueueFilter()
    pipelines = connection.execute(
        "SELECT pipeline, count(*) AS sensors FROM sensor WHERE last_ms IS NOT NULL GROUP BY 1"
    ).fetchall()
    clocks = {row["pipeline"]: series.pipeline_clock(connection, row["pipeline"])
              for row in pipelines}  # fmt: skip
    newest_ms = {name: clock.now_ms for name, clock in clocks.items() if clock is not None}
    return {
        "cards": [
            (
                readings.card(connection, one),
                pending_answer(connection, one.incident.id),
                _seen_by(connection, one.incident.id),
                care,
                [other.incident for other, _ in others],
                incident_store.group_size(connection, one),
            )
            for (one, care), *others in list(cards.values())[:_CARDS]
        ],
        "priority": first,
        "shelved": [(one, care) for one, care in all_open if care.shelved_until_ms],
        "yours": sum(care.assigned == viewer.reviewer for _, care in not_shelved),
        "planned": planned_work(connection, console.calendars, newest_ms),
        "can_plan": [] if console.background is None else sorted(console.background.control_lines),
        "more_incidents": max(0, len(cards) - _CARDS),
        "shown_of": lambda pipeline: console.shown.get(pipeline, DisplayNames()),
        "choices_of": choices,
        "question_of": question,
        "if_unanswered": if_unanswered,
        "learning": _learning,
        "flagged": readings.flagged(connection),
        "today": list(queue_rows(connection, asked, store.settings, viewer, now, limit=_TODAY)),
        "health": [
            {
                "name": row["pipeline"],
                "sensors": row["sensors"],
                "quiet_ms": _quiet(connection, row["pipeline"], now),
                "clock": clocks[row["pipeline"]],
            }
            for row in pipelines
        ],
        "labels_waiting": pending(connection),
        "shift": last_shift(connection, now, newest_ms),
        "attended_an_hour": ATTENDED_AN_HOUR,
        "shift_hours": SHIFT_HOURS,
    }


def _list(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    words = request.query_params.get("q", "")[:200]
    now = console.store.now_ms()
    first = whole_number(request.query_params.get("from", "")) or 0
    rows = dict[tuple[str, str], list[StoredIncident]]()
    for one in incident_store.standing(connection):
        names = [one.incident.stream_key, _plant(one.incident), *one.incident.sensors]
        names += [channel.channel for channel in one.incident.channels]
        if words.lower() in "\n".join(names).lower():
            rows.setdefault((_title(one.incident), one.situation), []).append(one)
    listed = [those[0] for those in rows.values()]
    shown = listed[first : first + _PAGE]
    return {
        "words": words,
        "first": first,
        "width": _PAGE,
        "total": len(listed),
        "sections": [
            (
                title,
                [
                    (
                        one,
                        _plant(one.incident),
                        readings.published(one.incident)
                        if one.incident.state is IncidentState.CLOSED
                        else readings.counted(connection, one.incident),
                        console.shown.get(one.pipeline, DisplayNames()),
                        incident_store.care_of(connection, one.incident, now),
                        len(rows[title, one.situation]) - 1,
                    )
                    for one in those
                ],
            )
            for title, those in groupby(shown, key=lambda one: _title(one.incident))
        ],
        "any_incident": bool(listed),
    }


def _plant(incident: Incident) -> str:
    return group_of(incident.stream_key, (*incident.sensors, incident.stream_key)[0])


def _title(incident: Incident) -> str:
    return next(title for title, states in _SECTIONS if incident.state in states)


def _one(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    stored = _known(connection, request.path_params["incident"])
    incident = stored.incident
    card = readings.card(connection, stored)
    begin, end = incident.onset_ms, card.counted.end_ms
    together = incident_store.members(connection, stored.situation)
    width = max(60_000, end - begin)
    shown = console.shown.get(stored.pipeline, DisplayNames())
    return {
        "stored": stored,
        "card": card,
        "incident": incident,
        "together": together if len(together) > 1 else [],
        "group": incident_store.group_size(connection, stored),
        "choices_of": choices,
        "changes": incident_store.timeline(connection, incident.id),
        "answers": incident_store.answers_to(connection, incident.id),
        "pending": pending_answer(connection, incident.id),
        "seen_by": _seen_by(connection, incident.id),
        "care": incident_store.care_of(connection, incident, console.store.now_ms()),
        "people": labelling.people(connection, console.store.settings, viewer),
        "shelve_hours": _SHELVE_HOURS,
        "comments": list(
            database.audit_rows(connection, subject=incident.id, action="comment", limit=50)
        ),
        "item": connection.execute(
            "SELECT episode_id, n_events, status FROM episode WHERE incident = ? "
            "AND status <> 'empty' ORDER BY why = 'extreme', rowid LIMIT 1",
            (incident.id,),
        ).fetchone(),
        "choices": choices(incident),
        "has_priority": DisplayNames(priority=console.store.settings.priority_sensors).has_priority(
            incident
        ),
        "may_renew": viewer.has_role(console.store.settings.new_normal),
        "question": question(incident),
        "if_unanswered": if_unanswered,
        "can_answer": console.background is None
        or stored.pipeline in console.background.control_lines,
        "quiet_ms": _quiet(connection, stored.pipeline, console.store.now_ms()),
        "learning": _learning,
        "shown": shown,
        "runbook": shown.runbook_url((*incident.sensors, incident.stream_key)[0]),
        "table": _table(connection, stored, begin, end),
        "incident_data": {
            **{name: getattr(incident, name) for name in ("id", "version", "held", "passed_limit")},
            **card.counted._asdict(),
            "start_ms": begin,
            "from_ms": begin - width // 2,
            "to_ms": end + width // 20,
            "ranked": [(one.sensor, one.reads.channel) for one in card.deviations],
            "can_load": stored.pipeline in console.inputs,
            "shown": {name: one.model_dump() for name, one in shown.channels.items()},
        },
    }


def _table(
    connection: Connection, stored: StoredIncident, begin_ms: int, end_ms: int
) -> list[tuple[str, list[str], list[tuple[int, list[float], float | None]]]]:
    """Return (sensor, channels, rows) of at most 100 readings each, evenly of the whole stretch."""
    tables = []
    for row in incident_store.sensors_of(connection, stored.incident):
        rows = connection.execute(
            "SELECT t_ms, channel_values, score FROM point WHERE sensor_id = ? "
            "AND t_ms BETWEEN ? AND ? AND channel_values IS NOT NULL ORDER BY t_ms",
            (row["sensor_id"], begin_ms, end_ms),
        ).fetchall()
        shown = rows[:: max(1, -(-len(rows) // 100))]
        names = json.loads(row["channels"])
        tables.append(
            (row["sensor"], names, [(one[0], series.values_of(one[1]), one[2]) for one in shown])
        )
    return tables


def _known(connection: Connection, incident: str) -> StoredIncident:
    stored = incident_store.stored_incident(connection, incident)
    if stored is None:
        raise Refusal("unknown", "There is no such incident.")
    return stored


# ------------------------------------------------------------------------------------------ API
@answers(AnswerRequest)
def post_answer(call: Call, wanted: AnswerRequest) -> object:
    command = give_answer(call.store, wanted, call.viewer)
    return {"command": command, "message": "Answered: it leaves in a few seconds."}


@answers(WithdrawIn)
def post_withdraw(call: Call, wanted: WithdrawIn) -> object:
    incident = withdraw_answer(call.store, wanted.command, call.viewer)
    return {"incident": incident, "message": "Taken back: nothing was answered."}


@answers(PlanRequest)
def post_plan(call: Call, wanted: PlanRequest) -> object:
    """Plan work: verdicts go on, nothing is learnt and nobody is told."""
    background = call.console.background
    pipelines = () if background is None else background.control_lines
    command = plan_work(call.store, wanted, call.viewer, pipelines)
    return {"command": command.id, "message": "Planned: it leaves in a few seconds."}


@answers(CancelIn)
def post_cancel(call: Call, wanted: CancelIn) -> object:
    cancel_work(call.store, wanted.request_id, wanted.command, call.viewer)
    return {"message": "Taken back."}


@answers(SeenIn)
def post_seen(call: Call, wanted: SeenIn) -> object:
    with call.store.acting(call.viewer) as act:
        stored = _known(act.connection, wanted.incident)
        for one in [stored] if wanted.text.strip() else _together(act.connection, stored):
            version = one.incident.version
            labelling.add_note(act, wanted.request_id, one.incident.id, wanted.text, version)
    return {"by": call.viewer.reviewer, "text": wanted.text.strip()}


@answers(CareIn)
def post_care(call: Call, wanted: CareIn) -> object:
    done = []
    require_reviewer(call.viewer)
    if wanted.shelve_hours:
        _may_shelve(wanted.shelve_hours, wanted.why, call.viewer)
    with call.store.acting(call.viewer) as act:
        stored = _known(act.connection, wanted.incident)
        if stored.incident.state is IncidentState.CLOSED:
            raise Refusal("changed", f"It needs no care. {state_sentence(stored.incident)}")
        those = [one.incident for one in _together(act.connection, stored)]
        to, hours = wanted.to, wanted.shelve_hours
        if to is not None:
            labelling.require_known(act, call.store.settings, to)
            for incident in those:
                act.record("assign", incident.id, to=to)
            done.append(f"given {f'to {to}' if to else 'back to everybody'}")
        if hours is not None:
            until_ms = act.now_ms + round(3_600_000 * hours)
            for incident in those:
                seen = {"state": str(incident.state), "limits": len(incident.limits),
                        "why": wanted.why.strip()}  # fmt: skip
                act.record("shelve", incident.id, until_ms=until_ms, **seen)
            done.append(f"shelved for {hours:g} h" if hours else "not shelved any more")
    whose = stored.incident.stream_key + (f" and {len(those) - 1} others" if those[1:] else "")
    return {"message": f"{whose}: {' and '.join(done)}."}


def _may_shelve(hours: float, why: str, viewer: Viewer) -> None:
    if not why.strip():
        raise Refusal("bad_request", "Say why it is shelved: the next shift reads it.")
    if hours > _REVIEWERS_SHELVE_HOURS and not viewer.has_role("lead"):
        raise Refusal("forbidden", "A lead shelves for longer than a day.")


def _together(connection: Connection, stored: StoredIncident) -> list[StoredIncident]:
    """Return an incident and those of its situation that are not over."""
    others = incident_store.members(connection, stored.situation)
    return [stored] + [
        one for one in others
        if one.incident.id != stored.incident.id and one.incident.state is not IncidentState.CLOSED
    ]  # fmt: skip


@answers()
def post_load(call: Call) -> object:
    with call.store.database.read() as connection:
        stored = _known(connection, call.place("incident"))
        before = readings.counted(connection, stored.incident).known
    source = call.console.inputs.get(stored.pipeline)
    if source is None:
        raise Refusal("nothing", "The console does not know the input of this pipeline.")
    try:
        cut = readings.load(call.store, source, stored)
    except RejexError as error:
        raise Refusal("nothing", str(error)) from error
    with call.store.database.read() as connection:
        card = readings.card(connection, stored)
    known, events = card.counted.known, card.counted.events
    return {"known": known, "events": events, "new": known - before, "cut": cut}


@answers()
def get_readings(call: Call) -> object:
    stretch = stretch_of(call.request)
    with call.store.database.read() as connection:
        incident = _known(connection, call.place("incident")).incident
        return [
            series_json(connection, row, stretch, incident.onset_ms, with_score=True)
            for row in incident_store.sensors_of(connection, incident)
        ]


routes = [
    Route("/now", page("now.html", _now)),
    Route("/incidents", page("incidents.html", _list)),
    Route("/incidents/{incident:path}", page("incident.html", _one)),
    Route("/api/incidents/answer", post_answer, methods=["POST"]),
    Route("/api/incidents/withdraw", post_withdraw, methods=["POST"]),
    Route("/api/incidents/care", post_care, methods=["POST"]),
    Route("/api/incidents/plan", post_plan, methods=["POST"]),
    Route("/api/incidents/cancel", post_cancel, methods=["POST"]),
    Route("/api/incidents/seen", post_seen, methods=["POST"]),
    Route("/api/incident-readings/{incident:path}", get_readings),
    Route("/api/incident-readings/{incident:path}", post_load, methods=["POST"]),
]
