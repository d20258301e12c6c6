"""Log lines for people or for machines: one line each, control characters escaped, no payloads."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TextIO

__all__ = ["JsonFormatter", "TextFormatter", "logging_to_stderr"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    r"""One JSON object a line: ``ts``, ``level``, ``logger``, ``message``, and the extra fields.

    Examples
    --------
    >>> record = logging.makeLogRecord(
    ...     {"msg": "sensor %s", "args": ("a\n\x1b[31m",), "created": 0.0, "levelname": "INFO",
    ...      "name": "rejex_stream", "partition": 3})
    >>> print(JsonFormatter().format(record))  # doctest: +NORMALIZE_WHITESPACE
    {"ts": "1970-01-01T00:00:00.000Z", "level": "info", "logger": "rejex_stream",
     "message": "sensor a\n\u001b[31m", "partition": 3}
    """

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
    r"""Time, level and message on one line, whatever the message holds.

    Examples
    --------
    >>> record = logging.makeLogRecord({"msg": "a\x1b[31m\nb", "created": 0.0, "levelno": 30})
    >>> TextFormatter().format(record).partition("warning")[2]
    ': a\\x1b[31m\\nb'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, control characters escaped."""
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        text = f"{at} {logging.getLevelName(record.levelno).lower()}: {record.getMessage()}"
        line = escaped(text)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def escaped(text: str) -> str:
    r"""Return `text` on one line, with control characters spelled out.

    Examples
    --------
    >>> print(escaped("a\tb\x00"))
    a\tb\x00
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


@contextmanager
def logging_to_stderr(
    level: str = "info", style: Literal["auto", "text", "json"] = "auto"
) -> Iterator[logging.StreamHandler[TextIO]]:
    """Log to standard error from `level` on; ``auto`` is text on a terminal, else JSON.

    Yields the handler, so that a live display can move it above itself. Libraries speak only from
    warning on.
    """
    handler: logging.StreamHandler[TextIO] = logging.StreamHandler(sys.stderr)
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    levels = {"": "WARNING", "rejex_stream": level.upper(), "rejex_connectors": level.upper()}
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


def _timestamp(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
