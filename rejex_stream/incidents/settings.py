"""The settings of the hold, stated once."""

from __future__ import annotations

from rejex_stream.settings import Section, setting

__all__ = ["Hold"]


class Hold(Section):
    """What happens while a fault lasts."""

    table = "hold"

    enabled: bool = setting(
        True,
        says="Whether the reference stands still while an incident is open: what is judged then "
        "enters no window and trains no model. Off: what stays becomes its own reference.",
    )
    recover_events: int = setting(
        50,
        unit="events",
        says="About so many ordinary events end an incident by themselves; more where the scores "
        "are autocorrelated.",
        ge=1,
        example=200,
    )
    adopt_after_events: int | None = setting(
        None,
        unit="events",
        says="An incident that nobody answers becomes the new normal after so many events.",
        otherwise="never: it is held until it recovers or somebody answers",
        ge=1,
        example=100_000,
    )
