"""What each reviewer set for themselves: keys, theme, clock."""

from __future__ import annotations

from typing import Literal

import msgspec

from rejex_stream.review.refusals import Refusal
from rejex_stream.review.storage import Connection

__all__ = ["DEFAULT_KEYS", "KEY_LABELS", "Preferences", "load", "save"]

DEFAULT_KEYS: dict[str, tuple[str, ...]] = {
    "anomaly": ("1", "a"),
    "normal": ("2", "n"),
    "unsure": ("3", "m"),
    "snooze": ("s",),
    "claim": ("c",),
    "undo": ("z",),
    "next": ("j", "ArrowDown"),
    "previous": ("k", "ArrowUp"),
    "select": ("x",),
    "open": ("Enter",),
    "back": ("Escape",),
    "filter": ("/",),
    "tags": ("t",),
    "note": ("i",),
    "refresh": ("r",),
    "pan_left": ("h", "ArrowLeft"),
    "pan_right": ("l", "ArrowRight"),
    "zoom_in": ("+", "="),
    "zoom_out": ("-",),
    "reset": ("0",),
    "mark_start": ("[",),
    "mark_end": ("]",),
    "whole": ("e",),
    "overlay": ("o",),
    "help": ("?",),
}

KEY_LABELS: dict[str, str] = {
    "anomaly": "Anomaly, and go on",
    "normal": "Normal, and go on",
    "unsure": "Unsure, and go on",
    "snooze": "Snooze for 30 minutes",
    "claim": "Claim the next one; in an episode: claim or release it",
    "undo": "Undo the last action, again and again",
    "next": "Next row or episode",
    "previous": "Previous row or episode",
    "select": "Select the row; with Shift: all rows from the last one",
    "open": "Open the row",
    "back": "Back; clear a selection or a marked range first",
    "filter": "Filter the list",
    "tags": "Go to the tags",
    "note": "Go to the note",
    "refresh": "Show what is new",
    "pan_left": "Plot: earlier",
    "pan_right": "Plot: later",
    "zoom_in": "Plot: closer",
    "zoom_out": "Plot: wider",
    "reset": "Plot: as at the beginning",
    "mark_start": "Mark a part: leave out one more event at the start",
    "mark_end": "Mark a part: leave out one more event at the end",
    "whole": "Mark the whole episode again",
    "overlay": "Lay the most similar case over the plot",
    "help": "Show the keys",
}


class Preferences(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one reviewer.

    Attributes
    ----------
    keys_on
        Whether single keys do anything (WCAG 2.1.4: they can be switched off).
    keys
        Action to keys, where they differ from the default.
    theme, clock
        Light or dark as the system says, or always; UTC or local time.

    Examples
    --------
    >>> Preferences(keys={"normal": ("q",)}).effective_keys["normal"]
    ('q',)
    """

    keys_on: bool = True
    keys: dict[str, tuple[str, ...]] = {}
    theme: Literal["system", "light", "dark"] = "system"
    clock: Literal["utc", "local"] = "utc"

    @property
    def effective_keys(self) -> dict[str, tuple[str, ...]]:
        """Every action with its keys."""
        return {action: self.keys.get(action, keys) for action, keys in DEFAULT_KEYS.items()}


def load(connection: Connection, reviewer: str) -> Preferences:
    """Return a reviewer's settings, the defaults where there are none or none that fit."""
    row = connection.execute(
        "SELECT value FROM preference WHERE reviewer = ?", (reviewer,)
    ).fetchone()
    if row is None:
        return Preferences()
    try:
        return msgspec.json.decode(row["value"], type=Preferences)
    except msgspec.DecodeError:  # of an earlier release
        return Preferences()


def save(connection: Connection, reviewer: str, wanted: Preferences) -> None:
    """Keep a reviewer's settings.

    Raises
    ------
    Refusal
        ``bad_request``: an unknown action, or one key for two actions.
    """
    unknown = set(wanted.keys) - set(DEFAULT_KEYS)
    if unknown:
        raise Refusal("bad_request", f"There is no action {sorted(unknown)[0]!r}.")
    taken: dict[str, str] = {}
    for action, keys in wanted.effective_keys.items():
        for key in keys:
            if not key or len(key) > 20:
                raise Refusal("bad_request", f"{key[:20]!r} is not a key.")
            if key in taken:
                raise Refusal(
                    "bad_request",
                    f"The key {key!r} is set for “{KEY_LABELS[taken[key]]}” and for "
                    f"“{KEY_LABELS[action]}”: give one of them another key.",
                )
            taken[key] = action
    connection.execute(
        "INSERT INTO preference VALUES (?,?) "
        "ON CONFLICT (reviewer) DO UPDATE SET value = excluded.value",
        (reviewer, msgspec.json.encode(wanted).decode()),
    )
