"""Log lines for people or for machines: one line each, control characters escaped, no payloads."""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TextIO

__all__ = ["JsonFormatter", "TextFormatter", "ThinningHandler", "logging_to_stderr"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_REPEAT_S = 60.0
# Ports, ids, versions and waits differ from one line to the next that says the same.
_VARYING = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)*")


class JsonFormatter(logging.Formatter):
    r"""One JSON object a line: ``ts``, ``level``, ``logger``, ``message``, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; JSON itself escapes control characters."""
        entry: dict[str, object] = {
            "ts": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    r"""Time, level and message on one line, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, control characters escaped."""
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        text = f"{at} {logging.getLevelName(record.levelno).lower()}: {record.getMessage()}"
        line = escaped(text)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


@dataclass(slots=True)
class _Said:
    """A line that was let through, and how many like it were not."""

    record: logging.LogRecord
    last: float
    repeats: int = 0


class ThinningHandler(logging.StreamHandler[TextIO]):
    """Writes what Kafka's client repeats at most once in so many seconds, with a count.

    A broker that is away makes the client say the same several times a second. Lines are the same
    if they differ in numbers only.
    """

    def __init__(self, stream: TextIO, every_s: float = _REPEAT_S) -> None:
        super().__init__(stream)
        self._every_s = every_s
        self._said: dict[tuple[str, str], _Said] = {}

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the record, unless it only repeats what was written a moment ago."""
        if record.name.partition(".")[0] != "kafka":
            return super().handle(record)
        key = (record.name, _VARYING.sub("#", record.getMessage()))
        self.acquire()
        try:
            said = self._said.get(key)
            if said and self._recent(said, record.created):
                said.repeats, said.last = said.repeats + 1, max(said.last, record.created)
                return False
            self._said[key] = _Said(record, record.created)
            self._forget(record.created)
            if said and said.repeats:
                record = _counted(said, record, record.created)
            return super().handle(record)
        finally:
            self.release()

    def _recent(self, said: _Said, now: float) -> bool:
        # Of two threads the one that was first to make its line may be the second to bring it.
        return abs(now - said.record.created) < self._every_s

    def finish(self) -> None:
        """Tell what was left out and not yet told."""
        self._forget(None)

    def _forget(self, now: float | None) -> None:
        """Drop what was said longer ago than `every_s`, telling how often it was repeated."""
        self.acquire()
        try:
            for key, said in list(self._said.items()):
                if now is None or not self._recent(said, now):
                    del self._said[key]
                    if said.repeats:
                        super().handle(_counted(said, said.record, said.last))
        finally:
            self.release()


def _counted(said: _Said, record: logging.LogRecord, created: float) -> logging.LogRecord:
    told = copy.copy(record)
    passed = max(1.0, created - said.record.created)
    told.msg = f"{record.getMessage()} (and {said.repeats:,} more like it in {passed:,.0f} s)"
    told.args, told.created = (), created
    return told


def escaped(text: str) -> str:
    r"""Return `text` on one line, with control characters spelled out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


@contextmanager
def logging_to_stderr(
    level: str = "info",
    style: Literal["auto", "text", "json"] = "auto",
) -> Iterator[logging.StreamHandler[TextIO]]:
    """Log to standard error from `level` on; ``auto`` is text on a terminal, else JSON.

    Yields the handler, so that a live display can move it above itself. Libraries speak from
    warning on; unless `level` is debug, what Kafka's client repeats is counted.
    """
    thinned = level != "debug"
    handler = ThinningHandler(sys.stderr) if thinned else logging.StreamHandler(sys.stderr)
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    levels = {
        "": "WARNING",
        "rejex_stream": level.upper(),
        "rejex_connectors": level.upper(),
    }
    before = {name: logging.getLogger(name).level for name in levels}
    logging.getLogger().addHandler(handler)
    for name, its_level in levels.items():
        logging.getLogger(name).setLevel(its_level)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
        for name, number in before.items():
            logging.getLogger(name).setLevel(number)
        if isinstance(handler, ThinningHandler):
            handler.finish()


def _timestamp(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
