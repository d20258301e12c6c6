"""CloudEvents 1.0 for Kafka, binary mode: attributes in headers, data in the value.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote

from rejex_stream.types import Position

__all__ = ["TRACE_HEADERS", "EventHeaders", "event_id", "pipeline_of"]

TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
"""W3C trace context, kept from the input so that traces go through."""

_TRACE_BYTES = 512
"""What the specification has everybody carry on; whoever writes more loses a trace, not events."""

Headers = list[tuple[str, bytes]]
_SOURCE = "/rejex-stream/"


def pipeline_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """Return the name of the pipeline that wrote an event, if one did."""
    source = (dict(headers).get("ce_source") or b"").decode("utf-8", "replace")
    return unquote(source.removeprefix(_SOURCE)) if source.startswith(_SOURCE) else None


def event_id(position: Position, pipeline_version: str) -> str:
    """Identity of what the pipeline says about one event: equal for every repeat."""
    return f"{position}@{pipeline_version}"


class EventHeaders:
    """Makes the headers of one kind of event."""

    def __init__(self, event_type: str, pipeline: str, pipeline_version: str) -> None:
        self._version = f"@{pipeline_version}"
        self._fixed: Headers = [
            ("ce_specversion", b"1.0"),
            ("ce_type", event_type.encode()),
            ("ce_source", f"{_SOURCE}{quote(pipeline, safe='')}".encode()),
            ("content-type", b"application/json"),
        ]

    def named(self, id_: str, subject: str) -> Headers:
        """Return the headers of what is told from others by an id of its own, and has no time."""
        return [
            *self._fixed,
            ("ce_id", f"{id_}{self._version}".encode("utf-8", "replace")),
            ("ce_subject", subject.encode("utf-8", "replace")),
        ]

    def of(
        self,
        position: Position,
        subject: str,
        event_time_ms: int,
        original: tuple[tuple[str, bytes | None], ...] = (),
    ) -> Headers:
        """Return the headers for one event; of trace headers, the first of each kind is kept."""
        topic, partition, offset, index = position
        minute, ms = divmod(event_time_ms, 60_000)
        place = f"{offset}.{index}" if index else offset
        headers = [
            *self._fixed,
            ("ce_id", f"{topic}-{partition}-{place}{self._version}".encode()),
            ("ce_time", _minute(minute) + _SECONDS[ms // 1000] + _MILLISECONDS[ms % 1000]),
            ("ce_subject", subject.encode("utf-8", "replace")),
        ]
        if original:
            kept: dict[str, bytes] = {}
            for name, value in original:
                if name in TRACE_HEADERS and value is not None and len(value) <= _TRACE_BYTES:
                    kept.setdefault(name, value)
            headers += kept.items()
        return headers

    def like(self, headers: Headers) -> Headers:
        """Return the headers of one event as of this kind, which were made as of another."""
        return [*self._fixed, *headers[len(self._fixed) :]]


_SECONDS = [b"%02d." % s for s in range(60)]
_MILLISECONDS = [b"%03dZ" % ms for ms in range(1000)]


@lru_cache(maxsize=1024)
def _minute(minutes: int) -> bytes:
    """Render all but the seconds, which consecutive events mostly share."""
    return datetime.fromtimestamp(60 * minutes, UTC).isoformat()[:17].encode()
