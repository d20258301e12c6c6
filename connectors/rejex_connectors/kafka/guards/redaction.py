"""Client libraries log at debug what they send, passwords and tokens among it; this hides them.

A filter on each of their loggers, so it holds for whatever handlers a host has put up. Content of
requests goes by its length, what is given as authentication not at all, and a secret that was
revealed to a library is hidden wherever it stands.
"""

from __future__ import annotations

import logging
import re

__all__ = ["guard_logs", "hide"]

HIDDEN = "***"
SHORTEST = 4
"""Characters; anything shorter stands in too many words to be looked for."""
_AUTHENTICATION = re.compile(r"""(auth_bytes=)(b'(?:\\.|[^'\\])*'|b"(?:\\.|[^"\\])*"|[^,)\s]+)""")
_OPTION = re.compile(
    r"""(['"][\w.]*(?:password|secret|token)[\w.]*['"]\s*[:=]\s*)"""
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,}\s]+)"""
)
_secrets: set[str] = set()


def hide(secret: str | None) -> None:
    """Hide a secret from now on, as it is and as it looks escaped."""
    if secret is not None and len(secret) >= SHORTEST:
        _secrets.update((secret, repr(secret)[1:-1], repr(secret.encode())[2:-1]))


def guard_logs(*names: str) -> None:
    """Put the filter on the loggers of these names and on all there are below them; once each."""
    below = tuple(f"{name}." for name in names)
    known = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    for name in (*names, *known):
        logging.getLogger(name).addFilter(_redact)  # the same one twice is one


def _redact(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_by_length, record.args))
    text = _AUTHENTICATION.sub(rf"\1{HIDDEN}", record.getMessage())
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    record.msg, record.args = text, None
    return True


def _by_length(value: object) -> object:
    """Say of bytes how many there are: a request that logs in holds the password somewhere."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return value
