"""Incidents as a pipeline publishes them, and a control line that remembers what it was told."""

from __future__ import annotations

import msgspec

from rejex_stream.encode import encode_incident, encode_reply
from rejex_stream.errors import ConnectorError
from rejex_stream.types import (
    ChannelEvidence,
    CommandReply,
    Incident,
    IncidentState,
    Label,
    Position,
)
from tests.review.test_review_store import item


def incident(
    version: int = 1, state: str = "open", *, opened: int = 10, stream: str = "T07/vib",
    severity: float = 8.0, at: int | None = None, **more: object,
) -> Incident:  # fmt: skip
    """A change of the incident that event `opened` opened, by the event `at`."""
    seq = opened + version - 1 if at is None else at
    return Incident(
        position=Position("feed", 0, seq),
        id=f"feed-0-{opened}",
        version=version,
        state=IncidentState(state),
        stream_key=stream,
        sensors=(stream,),
        onset_ms=(opened - 5) * 1000,
        opened_ms=opened * 1000,
        changed_ms=seq * 1000,
        onset_seq=opened - 5,
        opened_seq=opened,
        changed_seq=seq,
        peak_severity=severity,
        peak_ms=seq * 1000 if severity else 0,  # as where no score was unusual
        channels=(ChannelEvidence("vib", 2.5, 0.1, Label.NORMAL),),
        n_events=seq - opened + 6,
        **more,  # type: ignore[arg-type]
    )


def published(*told: Incident | CommandReply) -> list[bytes]:
    return [
        encode_incident(one)
        if isinstance(one, Incident)
        else encode_reply(Position("feed", 0, 99), one)
        for one in told
    ]


def tell(store, *told: Incident | CommandReply, pipeline: str = "") -> None:
    store.ingest("incidents", published(*told), pipeline=pipeline)


def held(offset: int, opened: int = 10, severity: float = 4.0, **more):
    one = item(offset, **more)
    of = msgspec.structs.replace(
        one.verdict, held=True, incident=f"feed-0-{opened}", severity=severity
    )
    return msgspec.structs.replace(one, verdict=of)


class Line:
    """A control log that may be away."""

    def __init__(self) -> None:
        self.said, self.away = [], False

    def publish(self, *commands) -> None:
        if self.away:
            raise ConnectorError("the control log is away")
        self.said += commands
