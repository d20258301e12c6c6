"""The audit page: what the labels say, what is proven, and who did what."""

from __future__ import annotations

from sqlite3 import Connection

from starlette.requests import Request
from starlette.routing import Route

from rejex_stream.review import teaching
from rejex_stream.review.certificate import certificates, said
from rejex_stream.review.console.console import Console
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.queue import audit, report
from rejex_stream.review.queue.listing import Viewer, unblinded

__all__ = ["routes"]


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
    found = report.report(connection, now_ms=now, since_ms=now - 30 * 86_400_000)
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
        "quality": found.quality,
        "agreement": found.agreement,
        "load": found.workload,
        "advice": found.advice,
        "pipelines": found.pipelines,
        "proven": {name: said(one) for name, one in sorted(proven.items())},
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


routes = [Route("/audit", page("audit.html", _audit))]
