"""Fleet, planner and audit: the screens about the pipeline rather than one episode."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from sqlite3 import Connection, Row
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from rejex_stream.errors import ConfigError
from rejex_stream.plan.capacity import CapacityPlan, Team, plan_for_team
from rejex_stream.plan.promises import Costs, EpisodeRule, Plan, plan, plan_doubts, plan_table
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.rejection.policy import CONTAMINATION
from rejex_stream.review import teaching
from rejex_stream.review.certificate import certificates, said
from rejex_stream.review.console import fleet, rates
from rejex_stream.review.console.console import Console, whole_number
from rejex_stream.review.console.formatting import FLEET_STATES
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.console.rates import Brief
from rejex_stream.review.incidents.incident_store import held_streams
from rejex_stream.review.queue import audit, report
from rejex_stream.review.queue.claims import Refusal
from rejex_stream.review.queue.listing import QueueFilter, Viewer, unblinded
from rejex_stream.types import of_mode

__all__ = ["routes"]

_BUCKETS = {
    "6": (900_000, 24),
    "24": (3_600_000, 24),
    "168": (7 * 3_600_000, 24),
    "720": (30 * 3_600_000, 24),
}
_FLEET_ROWS = 60


# ---------------------------------------------------------------------------------------- fleet
def _fleet(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    asked, state = (request.query_params.get(name, "") for name in ("hours", "state"))
    first = whole_number(request.query_params.get("from", ""))
    sensors = connection.execute(
        "SELECT * FROM sensor WHERE last_ms IS NOT NULL ORDER BY pipeline, grp, sensor"
    ).fetchall()
    briefs: dict[tuple[str, str], list[Brief]] = {}  # of each stream, one in each mode
    for name, watch in console.watches.items():
        for key, brief in watch.briefs().items():
            briefs.setdefault((name, of_mode(key)[0]), []).append(brief)
    known = fleet.Known(
        console.delta,
        {key: max(one.inflation for one in those) for key, those in briefs.items()},
        stuck={key for key, those in briefs.items() if {one.state for one in those} == {"stuck"}},
        held=held_streams(connection).keys(),
    )
    # A cell of a slow feed holds too few events to say anything: then a longer stretch is shown.
    for hours in (asked,) if asked in _BUCKETS else ("24", "168", "720"):
        width, buckets = _BUCKETS[hours]
        stretches, states = dict[str, fleet.Stretch](), dict[int, str]()
        for name, own in _by_pipeline(sensors).items():
            last = max(row["last_ms"] for row in own)  # each ends where its own events do
            begin = last - last % width - (buckets - 1) * width
            stretches[name] = fleet.Stretch(begin, width, buckets)
            states |= fleet.states(connection, own, stretches[name], known)
        chosen = [row for row in sensors if state in ("", states[row["sensor_id"]])]
        shown = _by_pipeline(chosen[first : first + _FLEET_ROWS])
        found = {
            name: fleet.fleet(connection, own, stretches[name], known)
            for name, own in shown.items()
        }
        cells = [cell.state for rows in found.values() for row in rows for cell in row.cells]
        told = [one for one in cells if one != "none"]
        if 2 * told.count("few") <= len(told):
            break
    counts = Counter(states.values())
    waiting = QueueFilter().waiting(connection, viewer, console.store.now_ms())
    return {
        "hours": hours,
        "bucket_ms": width,
        "sensors": len(sensors),
        "chosen": len(chosen),
        "state": state,
        "first": first,
        "width": _FLEET_ROWS,
        "states": [(one, words, counts[one]) for one, words in FLEET_STATES.items() if counts[one]],
        "state_of": states,
        "state_words": FLEET_STATES,
        "panels": [
            {
                "line": _pipeline_line(connection, name),
                "axis": [stretches[name].from_ms + i * width for i in range(buckets)],
                "groups": _groups(rows, waiting),
            }
            for name, rows in found.items()
        ],
    }


def _by_pipeline(sensors: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sensors:
        found.setdefault(row["pipeline"], []).append(row)
    return found


def _groups(
    rows: list[fleet.FleetRow], waiting: Mapping[tuple[str, str], int]
) -> list[tuple[str, list[fleet.FleetRow], str, int]]:
    """Return (group, its sensors, address of its queue, episodes there)."""
    groups: dict[str, list[fleet.FleetRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    found = []
    for group, sensors in groups.items():
        view = QueueFilter(words=shlex.quote(f"group:{group}"))
        found.append((group, sensors, view.address(), waiting["group", group]))
    return found


def _pipeline_line(connection: Connection, name: str) -> dict[str, Any]:
    row = connection.execute(
        "SELECT count(*) AS sensors, max(last_ms) AS last_ms, min(epoch) AS low, "
        "max(epoch) AS high FROM sensor WHERE pipeline = ? AND last_ms IS NOT NULL",
        (name,),
    ).fetchone()
    swap = connection.execute(
        "SELECT max(t_ms) FROM mark WHERE pipeline = ? AND kind = 'model'", (name,)
    ).fetchone()[0]
    return {"name": name, **dict(row), "swap_ms": swap}


def _cell(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    """One cell of the fleet, from the same minutes."""
    query = request.query_params
    sensor = connection.execute(
        "SELECT * FROM sensor WHERE sensor_id = ?", (request.path_params["sensor_id"],)
    ).fetchone()
    start, end = (query.get(name, "") for name in ("from", "to"))
    if not all(re.fullmatch(r"-?\d{1,15}", text) for text in (start, end)):
        raise Refusal("bad_request", f"from = {start!r}, to = {end!r}: give UTC milliseconds.")
    return {
        "sensor": sensor,
        "start_ms": int(start),
        "end_ms": int(end),
        "mix": rates.mix(
            connection,
            sensor["pipeline"] if sensor else "",
            int(start),
            to_ms=int(end),
            sensor_id=sensor["sensor_id"] if sensor else 0,
        ),
    }


# -------------------------------------------------------------------------------------- planner
class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner is asked; every field is one of the page's."""

    sensors: int = 10
    events_per_s: float = 0.1
    contamination: float = CONTAMINATION
    window: int = 2000
    tolerance: float = 8.0
    delta: float = DELTA
    reviewers: float = 1.0
    minutes: float = 60.0
    handling: float = 45.0
    events_per_episode: float = 1.0
    c_fp: float = 1.0
    c_fn: float = 1.0
    c_r: float = 0.01


def _question(request: Request, found: report.Measured | None, handle_s: float | None) -> Any:  # noqa: ANN401
    values: dict[str, Any] = {}
    if found is not None:
        values |= {
            "sensors": found.sensors,
            "events_per_s": round(found.events_per_day / found.sensors / 86_400, 6),
            "window": found.window or 2000,
            "events_per_episode": round(max(1.0, found.events_per_episode or 1.0), 1),
        }
        if found.tolerance is not None:
            values["tolerance"] = round(found.tolerance, 2)
        if found.window and found.n_anomalies:
            values["contamination"] = round(found.n_anomalies / found.window, 4)
    if handle_s:
        values["handling"] = round(handle_s, 1)
    known = {field.name: field.type for field in msgspec.structs.fields(Question)}
    for name, kind in known.items():
        text = request.query_params.get(name)
        if not text:
            continue
        try:
            number = float(text)
        except ValueError as error:
            raise ConfigError(f"{name} = {text[:40]!r} is not a number.") from error
        if not math.isfinite(number):
            raise ConfigError(f"{name} = {text[:40]!r} cannot be used: give a finite number.")
        values[name] = round(number) if kind is int else number
    return Question(**values)


def answer_question(asked: Question, rule: EpisodeRule) -> dict[str, Any]:
    """Return the planner's numbers, straight from the library.

    Raises
    ------
    ConfigError
        If an argument cannot be.
    """
    team = Team(
        sensors=asked.sensors,
        events_per_s=asked.events_per_s,
        reviewers=asked.reviewers,
        minutes_per_day=asked.minutes,
        handling_s=asked.handling,
        events_per_episode=asked.events_per_episode,
    )
    costs = Costs(asked.c_fp, asked.c_fn, asked.c_r)
    choice = plan(
        asked.contamination,
        asked.window,
        asked.tolerance,
        delta=asked.delta,
        costs=costs,
        events_per_day=team.events_per_day,
    )
    capacity: CapacityPlan = plan_for_team(
        team, asked.contamination, delta=asked.delta, costs=costs, rule=rule
    )
    tolerances = sorted({4.0, 8.0, 16.0, 32.0, asked.tolerance})
    windows = sorted({500, 1000, 2000, 5000, 20_000, asked.window})
    table = plan_table(
        asked.contamination,
        windows,
        tolerances,
        delta=asked.delta,
        events_per_day=team.events_per_day,
    )
    rejected = choice.promise.rejected_per_day if choice.promise is not None else None
    return {
        "asked": asked,
        "team": team,
        "choice": choice,
        "doubts": plan_doubts(choice),
        "capacity": capacity,
        "reviews_per_day": None if rejected is None else rejected / asked.events_per_episode,
        "tolerances": tolerances,
        "grid": [(n, [one for one in table if one.window == n]) for n in windows],
        "cost_limit": min((1 - asked.contamination) * asked.c_fp, asked.contamination * asked.c_fn),
    }


def _planner(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    now = console.store.now_ms()
    names = report.pipelines_of(connection)
    name = request.query_params.get("pipeline", names[0] if names else "")
    found = report.measured(connection, name) if name in names else None
    load = report.workload(connection, now)
    settings = console.store.settings
    rule = EpisodeRule(
        gap_s=settings.gap_ms / 1000,
        gap_events=settings.gap_events,
        max_events=settings.max_events,
        max_s=settings.max_duration_ms / 1000,
    )
    context: Context = {
        "measured": found,
        "load": load,
        "pipelines": names,
        "problem": "",
        "predicted": _predicted(found, rule),
    }
    try:
        asked = _question(request, found, load.handle_s)
        return context | answer_question(asked, rule)
    except ConfigError as error:
        return context | {"problem": str(error), "asked": _asked_anyway(request)}


def _asked_anyway(request: Request) -> dict[str, str]:
    return {
        field.name: request.query_params.get(field.name, str(field.default))
        for field in msgspec.structs.fields(Question)
    }


def _predicted(found: report.Measured | None, rule: EpisodeRule) -> Plan | None:
    if found is None or not found.window or not found.n_anomalies or found.tolerance is None:
        return None
    gamma = round(found.n_anomalies / found.window, 6)
    try:
        return plan(gamma, found.window, found.tolerance, events_per_day=found.events_per_day)
    except ConfigError:
        return None


# ---------------------------------------------------------------------------------------- audit
def _audit(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    query = request.query_params
    before = query.get("before", "")
    rows = list(
        audit.rows(
            connection,
            actor=query.get("actor") or None,
            action=query.get("action") or None,
            subject=query.get("subject") or None,
            before_seq=int(before) if before.isdecimal() and len(before) < 16 else None,
            limit=201,
        )
    )
    now = console.store.now_ms()
    told = report.report(connection, now_ms=now, since_ms=now - 30 * 86_400_000)
    proven = certificates(console.store, connection)
    return {
        "lines": unblinded(connection, console.store.settings, rows[:200], viewer),
        "more": rows[199].seq if len(rows) > 200 else None,
        "chosen": {name: query.get(name, "") for name in ("actor", "action", "subject")},
        "actors": _distinct(connection, "actor"),
        "actions": _distinct(connection, "action"),
        "places": {
            row["label_id"]: row["place"] or ("waiting" if row["sent_ms"] is None else "sent")
            for row in connection.execute(
                "SELECT label_id, place, sent_ms FROM outbox ORDER BY seq DESC LIMIT 2000"
            )
        },
        "quality": told.quality,
        "agreement": told.agreement,
        "load": told.workload,
        "told": told,
        "proven": {name: said(found) for name, found in sorted(proven.items())},
        "lessons": [
            (name, teaching.lessons(connection, name))
            for name in (console.background.learns if console.background else ())
        ],
        "pending": connection.execute(
            "SELECT count(*) FROM outbox WHERE sent_ms IS NULL"
        ).fetchone()[0],
    }


def _distinct(connection: Connection, column: str) -> list[str]:
    return [row[0] for row in connection.execute(f"SELECT DISTINCT {column} FROM audit ORDER BY 1")]


routes = [
    Route("/fleet", page("fleet.html", _fleet)),
    Route("/fleet/{sensor_id:int}", page("cell.html", _cell)),
    Route("/planner", page("planner.html", _planner)),
    # The answer alone, while numbers are being changed.
    Route("/planner/answer", page("_plan.html", _planner)),
    Route("/audit", page("audit.html", _audit)),
]
