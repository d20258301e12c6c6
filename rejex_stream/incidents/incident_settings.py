"""The settings of the hold, stated once."""

from __future__ import annotations

from rejex_stream.settings import Section, setting


class FalseAlarms(Section):
    """How many false alarms people are willing to see."""

    table = "incidents.false_alarms"

    per_sensor_month: float = setting(1.0, unit="alarms", gt=0, le=1000, example=0.2)
    """So many incidents a stream and 30 days of event time may open where nothing is wrong; the
    stream's own past says at how much evidence that is."""


class Alarms(Section):
    """When somebody is told of a fault."""

    table = "incidents"

    false_alarms: FalseAlarms = setting(FalseAlarms)
    """How many false alarms people are willing to see."""


class Hold(Section):
    """What happens while a fault lasts."""

    table = "hold"

    enabled: bool = setting(True)
    """Whether the reference stands still while an incident is open: what is judged then enters no
    window and trains no model. Off: what stays becomes its own reference."""
    recover_events: int = setting(50, unit="events", ge=1, example=200)
    """About so many ordinary events end an incident by themselves; more where the scores are
    autocorrelated."""
    adopt_after_events: int | None = setting(
        None,
        unit="events",
        otherwise="one window, and three days of event time at least",
        ge=0,
        example=100_000,
    )
    """An incident that nobody answers becomes the new normal after so many events held; 0: never,
    it is held until it recovers or somebody answers."""
