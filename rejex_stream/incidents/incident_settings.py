"""The settings of the hold, stated once."""

from __future__ import annotations

from rejex_stream.settings import Section, setting

__all__ = ["Alarms", "FalseAlarms", "Hold"]


class FalseAlarms(Section):
    """How many false alarms people are willing to see."""

    table = "incidents.false_alarms"

    per_sensor_month: float = setting(
        1.0,
        unit="alarms",
        says="So many incidents a stream and 30 days of event time may open where nothing is "
        "wrong; the stream's own past says at how much evidence that is.",
        gt=0,
        le=1000,
        example=0.2,
    )


class Alarms(Section):
    """When somebody is told of a fault, and how often of what became of it."""

    table = "incidents"

    false_alarms: FalseAlarms = setting(
        FalseAlarms, says="How many false alarms people are willing to see."
    )
    update_s: float = setting(
        300.0,
        unit="s",
        says="While an incident is open its counts are published at most so often, in event time.",
        gt=0,
        example=3600.0,
    )


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
        says="An incident that nobody answers becomes the new normal after so many events held; 0: "
        "never, it is held until it recovers or somebody answers.",
        otherwise="one window, and three days of event time at least",
        ge=0,
        example=100_000,
    )
