"""Undo: the reviewer's latest action that still stands, then the one before, as far back as wanted.

It is the store that remembers, so undo survives a reload, another tab and another day.
"""

from __future__ import annotations

import json
from typing import Any

from rejex_stream.review import auditlog, episodes
from rejex_stream.review.actions import Done, remember, repeated
from rejex_stream.review.labels import LabelRecord, active_labels, decode_label, label_id
from rejex_stream.review.queue import Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.snooze import undo_snooze
from rejex_stream.review.standing import publish, records_of, refresh_status
from rejex_stream.review.storage import Connection

__all__ = ["undo"]


def undo(
    connection: Connection,
    request_id: str,
    viewer: Viewer,
    settings: ReviewSettings,
    now_ms: int,
) -> Done:
    """Take back all of the reviewer's latest action that still stands; again, the one before.

    Raises
    ------
    Refusal
        ``nothing`` when there is nothing left.
    """
    before_now = repeated(connection, request_id, viewer)
    if before_now is not None:
        return before_now
    action = connection.execute(
        "SELECT * FROM action WHERE reviewer = ? AND undone = 0 ORDER BY action_seq DESC LIMIT 1",
        (viewer.reviewer,),
    ).fetchone()
    if action is None:
        raise Refusal("nothing", "There is nothing of yours left to undo.")
    payload = json.loads(action["payload"])
    if action["kind"] == "label":
        changed, n_events = _undo_labels(connection, request_id, payload, viewer, settings, now_ms)
    else:
        changed, n_events = undo_snooze(connection, payload, viewer, now_ms)
    connection.execute("UPDATE action SET undone = 1 WHERE action_seq = ?", (action["action_seq"],))
    what = json.loads(action["result"])["message"]
    done = Done("undo", f"Undone: {what}", tuple(changed), n_events)
    remember(connection, request_id, viewer, done, now_ms=now_ms, payload={})
    return done


def _undo_labels(  # noqa: PLR0917
    connection: Connection,
    request_id: str,
    payload: dict[str, Any],
    viewer: Viewer,
    settings: ReviewSettings,
    now_ms: int,
) -> tuple[list[str], int]:
    parts = dict(payload["parts"])
    changed, n_events = [], 0
    for target in payload["labels"]:
        found = connection.execute(
            "SELECT record FROM label WHERE label_id = ?", (target,)
        ).fetchone()
        record = decode_label(found["record"])
        episode = record.episode_id
        retraction = LabelRecord(
            label_id=label_id(request_id, "undo", target),
            kind="retract",
            episode_id=episode,
            root_id=record.root_id,
            stream_key=record.stream_key,
            sensor=record.sensor,
            events=record.events,
            verdict=None,
            why=record.why,
            role=record.role,
            reviewer=viewer.reviewer,
            created_ms=now_ms,
            from_ms=record.from_ms,
            to_ms=record.to_ms,
            retracts=target,
            batch_id=request_id,
        )
        publish(connection, retraction, handle_ms=None, sent=False)
        events = [
            row[0]
            for row in connection.execute(
                "SELECT event_id FROM label_event JOIN label USING (label_seq) WHERE label_id = ?",
                (target,),
            )
        ]
        parent = parts.get(episode)
        if parent is not None and _can_rejoin(connection, episode, parent):
            episodes.merge_back(connection, episode, parent)
            episode = parent
        # Somebody may have split it further in between.
        for holder in episodes.holding(connection, events):
            refresh_status(connection, holder, settings, now_ms)
        auditlog.append(
            connection,
            at_ms=now_ms,
            actor=viewer.reviewer,
            action="undo",
            subject=record.episode_id,
            detail={
                "label_id": retraction.label_id,
                "retracts": target,
                "events": len(record.events),
            },
        )
        changed.append(episode)
        n_events += len(record.events)
    return changed, n_events


def _can_rejoin(connection: Connection, child: str, parent: str) -> bool:
    """Say whether a part and the rest have the same labels again, and nobody holds the rest."""
    row = connection.execute(
        "SELECT status FROM episode WHERE episode_id = ?", (parent,)
    ).fetchone()
    return row["status"] != "empty" and active_labels(
        records_of(connection, child)
    ) == active_labels(records_of(connection, parent))
