"""CloudEvents 1.0 for Kafka, binary mode: attributes in headers, data in the value.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

from rejex_stream.types import Position

__all__ = ["TRACE_HEADERS", "EventHeaders", "event_id"]

TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
"""W3C trace context, kept from the input so that traces go through."""

Headers = list[tuple[str, bytes]]


def event_id(position: Position, pipeline_version: str) -> str:
    """Identity of what the pipeline says about one event: equal for every repeat.

    Examples
    --------
    >>> event_id(Position("water", 0, 7), "3")
    'water-0-7@3'
    """
    return f"{position.topic}-{position.partition}-{position.offset}@{pipeline_version}"


class EventHeaders:
    """Makes the headers of one kind of event.

    Parameters
    ----------
    event_type
        With its version as suffix: consumers switch on it.
    pipeline, pipeline_version
        Become ``ce_source`` and part of ``ce_id``.

    Examples
    --------
    >>> headers = EventHeaders("io.rejex.verdict.v1", "turbine", "1")
    >>> dict(headers.of(Position("water", 0, 7), "pump 1", 1_700_000_000_042))["ce_time"]
    b'2023-11-14T22:13:20.042Z'
    """

    def __init__(self, event_type: str, pipeline: str, pipeline_version: str) -> None:
        self._suffix = f"@{pipeline_version}".encode()
        self._fixed: Headers = [
            ("ce_specversion", b"1.0"),
            ("ce_type", event_type.encode()),
            ("ce_source", f"/rejex-stream/{quote(pipeline, safe='')}".encode()),
            ("content-type", b"application/json"),
        ]

    def of(
        self,
        position: Position,
        subject: str,
        event_time_ms: int,
        original: tuple[tuple[str, bytes | None], ...] = (),
    ) -> Headers:
        """Return the headers for one event; trace headers of the `original` are kept."""
        topic, partition, offset = position
        minutes, ms = divmod(event_time_ms, 60_000)
        headers = [
            *self._fixed,
            ("ce_id", b"%b-%d-%d%b" % (topic.encode(), partition, offset, self._suffix)),
            ("ce_time", b"%b%02d.%03dZ" % (_minute(minutes), ms // 1000, ms % 1000)),
            ("ce_subject", subject.encode("utf-8", "replace")),
        ]
        if original:
            headers += [(n, v) for n, v in original if n in TRACE_HEADERS and v is not None]
        return headers


@lru_cache(maxsize=1024)
def _minute(minutes: int) -> bytes:
    """Render all but the seconds, which consecutive events mostly share."""
    return datetime.fromtimestamp(60 * minutes, UTC).isoformat()[:17].encode()
