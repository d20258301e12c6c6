"""What people type to filter the queue, word by word, as SQL."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from typing import Any

__all__ = ["parse_words", "word_clause"]

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MOST = 2**53
"""More than anything here counts, and both SQLite's integers and floats hold it."""


def parse_words(text: str) -> tuple[tuple[str, str], ...]:
    """Split a filter as typed into (field, value) pairs; bare words look for the sensor.

    Examples
    --------
    >>> parse_words('gear -group:T07 age:>1h sensor:"T 7/vib" 2026-11-10')
    (('', 'gear'), ('-group', 'T07'), ('age', '>1h'), ('sensor', 'T 7/vib'), ('date', '2026-11-10'))
    """
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote while typing
        words = text.replace('"', " ").replace("'", " ").split()
    pairs = []
    for word in filter(None, words):
        no, rest = ("-", word[1:]) if word.startswith("-") and len(word) > 1 else ("", word)
        name, colon, value = rest.partition(":")
        if colon and name in _FIELDS:
            pairs.append((no + name, value))
        elif re.fullmatch(r"\d{4}-\d\d-\d\d", rest):
            pairs.append((no + "date", rest))
        else:
            pairs.append((no, rest))
    return tuple(pairs)


def _comparison(value: str, otherwise: str = ">=") -> tuple[str, str]:
    match = re.match(r"(<=|>=|<|>|=)?(.*)", value)
    assert match is not None
    return match.group(1) or otherwise, match.group(2).strip()


def _labelled(what: str) -> str:
    """Return the clause of labels that stand: one's own, and others' once it is decided."""
    return (
        "EXISTS (SELECT 1 FROM label l WHERE l.episode_id = e.episode_id AND l.kind = 'label' "
        "AND (l.reviewer = :me OR e.status IN ('done', 'expired')) AND NOT EXISTS "
        "(SELECT 1 FROM label r WHERE r.kind = 'retract' AND r.target = l.label_id) "
        f"AND {what})"
    )


_WORD_CLAUSES = {
    # Found where taking it away makes a difference: nothing in it is a wildcard.
    "": "replace(lower(s.sensor), lower(?), '') <> lower(s.sensor)",
    "group": "s.grp = ?",
    "sensor": "s.sensor = ?",
    "why": "e.why = ?",
    "verdict": "e.verdict = ?",
    "for": "e.assigned = ?",
    "reason": "EXISTS (SELECT 1 FROM event v WHERE v.episode_id = e.episode_id AND v.reason = ?)",
    "by": "EXISTS (SELECT 1 FROM label l WHERE l.episode_id = e.episode_id AND l.reviewer = ?)",
    "note": _labelled("instr(lower(json_extract(CAST(l.record AS TEXT), '$.note')), lower(?))"),
    "tag": _labelled(
        "EXISTS (SELECT 1 FROM json_each(CAST(l.record AS TEXT), '$.tags') t WHERE t.value = ?)"
    ),
}
_FIELDS = frozenset({*_WORD_CLAUSES, "age", "events", "date"}) - {""}
_DATES = {  # by the day on which an episode begins, UTC
    "=": "e.start_ms >= ? AND e.start_ms < ? + 86400000",
    ">": "e.start_ms >= ? + 86400000",
    ">=": "e.start_ms >= ?",
    "<": "e.start_ms < ?",
    "<=": "e.start_ms < ? + 86400000",
}


def word_clause(field: str, value: str) -> tuple[str, Any]:
    """Return the clause of one filter word with its value; none for what cannot be read."""
    if field in _WORD_CLAUSES:
        return _WORD_CLAUSES[field], value
    if field == "date":
        sign, text = _comparison(value, "=")
        try:
            day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            return "", None
        return f"({_DATES[sign]})", round(day.timestamp() * 1000)
    sign, text = _comparison(value)
    if field == "events" and text.isdecimal():
        return f"e.n_events {sign} ?", min(int(text), _MOST)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if field == "age" and match:
        ms = float(match[1]) * _UNITS[match[2]]
        return f":now - e.received_ms {sign} ?", round(min(ms, _MOST))
    return "", None
