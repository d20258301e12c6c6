"""Faults that last: evidence for them, the hold of the reference, and what a person can say of it.

In: verdicts of one stream key in their order, and commands that hold from a place in that order.
Out: whether the reference stands still, and :class:`~rejex_stream.types.Incident` records. No
clock, no thread, no file, no log. Open `state_machine` first, then `thresholds`,
what holds, and `ewma`, of what somebody is told.
"""

from rejex_stream.incidents.calendar import Mute, Mutes, Plan, Plans
from rejex_stream.incidents.incident_settings import Alarms, FalseAlarms, Hold
from rejex_stream.incidents.limits import ChannelLimits, LimitCheck, Noise, Run, limited, long_gaps
from rejex_stream.incidents.resting import RestingChannels, WakeUp
from rejex_stream.incidents.state_machine import Confirmation, IncidentTracker, Transition

__all__ = [
    "Alarms", "ChannelLimits", "Confirmation", "FalseAlarms", "Hold", "IncidentTracker",
    "LimitCheck", "Mute", "Mutes", "Noise", "Plan", "Plans", "RestingChannels", "Run", "Transition",
    "WakeUp", "limited", "long_gaps",
]  # fmt: skip
