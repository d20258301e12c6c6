"""Monitors: the rolling rejection rate beside the theory, and alarms that can be trusted.

:class:`StreamMonitor` watches one stream, :class:`MonitorBank` all streams of a pipeline and the
pipeline as a whole. They read verdicts, never change one, and answer with :class:`Alarm`.

==================  ==========================================================  ==================
alarm               question                                                    guarantee
==================  ==========================================================  ==================
`health`            do the ranks follow the theory?                             one in L events [1]
`drift`             did the scores leave a frozen reference?                    one in L events [1]
`rejection_rate`    was twice the plan rejected in the last n events?           heuristic
`collapse`          is next to nothing rejected any more?                       heuristic
`stuck`             is it always the same score?                                heuristic
`review_budget`     is more rejected than people can look at, chance apart?     100 days [2]
`adwin` (option)    did the mean score change?                                  heuristic
==================  ==========================================================  ==================

[1] About one false alarm per L events for exchangeable scores; for autocorrelated ones the rate is
measured (benchmarks/results/monitors.md), not proved. Where too little can be known, the status
says "too autocorrelated to tell".

[2] At least 99 days between false alarms, in the mean, where the rate is within the budget and
rejected events are independent; a heuristic for those that come in clusters.
"""

from rejex_stream.monitor.alarm import Alarm, AlarmKind, Alternative
from rejex_stream.monitor.bank import MonitorBank
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.status import MonitorStatus
from rejex_stream.monitor.stream import StreamMonitor
from rejex_stream.monitor.theory import Theory

__all__ = [
    "Alarm",
    "AlarmKind",
    "Alternative",
    "MonitorBank",
    "MonitorConfig",
    "MonitorStatus",
    "StreamMonitor",
    "Theory",
]
