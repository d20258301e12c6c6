"""Log lines for people or for machines: one line each, control characters escaped, no payloads."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_REPEAT_S = 60.0
# Ports, ids, versions and waits differ from one line to the next that says the same.
_VARYING = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)*")


class JsonFormatter(logging.Formatter):
    r"""One JSON object a line: ``ts``, ``level``, ``logger``, ``message``, and the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; JSON itself escapes control characters."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "ts": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z",
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
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        text = f"{at} {logging.getLevelName(record.levelno).lower()}: {record.getMessage()}"
        line = escaped(text)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class RepeatFilter(logging.Filter):
    """Passes what Kafka's client repeats once in so many seconds.

    Of an absent broker several of its parts say the same several times a second. Lines are the same
    if their cause, which stands last, differs in numbers only.
    """

    def __init__(self, every_s: float = _REPEAT_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._written: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written: not where it repeats a recent one."""
        if record.name.partition(".")[0] != "kafka":
            return True
        if record.name == "kafka.net.selector" and record.levelno < logging.ERROR:
            return False  # how long its own loop took
        record.exc_info = None  # where in the library it was says nothing to who runs this
        cause = record.getMessage().rpartition(": ")[2].partition(". ")[0]
        key, now = _VARYING.sub("#", cause).rstrip(")."), record.created
        recent = {k: at for k, at in self._written.items() if abs(now - at) < self._every_s}
        self._written = recent if key in recent else recent | {key: now}
        return key not in recent


def escaped(text: str) -> str:
    r"""Return `text` on one line, with control characters spelled out."""
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

    Yields the handler, so that a live display can move it above itself. Libraries speak from
    warning on; unless `level` is debug, what Kafka's client repeats is left out.
    """
    handler = logging.StreamHandler(sys.stderr)
    if level != "debug":
        handler.addFilter(RepeatFilter())
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
