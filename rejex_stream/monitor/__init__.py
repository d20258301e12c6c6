"""Monitors: the rolling rejection rate beside the theory, and alarms that can be trusted.

In: verdicts, in stream order, none of them ever changed. Out: :class:`Alarm` when something is
wrong, :class:`MonitorStatus` at any time, and bytes that a restored monitor goes on from.
Open `bank` first: all streams and the pipeline, and one of them. What the theory expects of ranked
events is in `theory`; autocorrelation is measured in `inflation`. Models come and go: all is said
of ranks, which are about every one of them alike. Each alarm has its file:

==================  ==============================================  ================  ============
alarm               question                                        guarantee         file
==================  ==============================================  ================  ============
`health`            do the ranks follow the theory?                 1 in L events[1]  `health`
`drift`             does the level of the scores move slowly?       1 in L events[1]  `drift`
`rejection_rate`    was twice the plan rejected in the last n?      heuristic         `rate`
`collapse`          is next to nothing rejected any more?           heuristic         `rate`
`stuck`             is it always the same score?                    heuristic         `bank`
==================  ==============================================  ================  ============

[1] About one false alarm per L events for exchangeable scores; for autocorrelated ones the rate is
measured (benchmarks/results/monitors.md), not proved. Where too little can be known, the status
says "too autocorrelated to tell".
"""

from rejex_stream.monitor.alarm import Alarm, AlarmKind, Alternative
from rejex_stream.monitor.bank import MonitorBank, StreamMonitor
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.status import MonitorStatus
from rejex_stream.monitor.theory import Theory

__all__ = [
    "Alarm", "AlarmKind", "Alternative", "MonitorBank", "MonitorConfig", "MonitorStatus",
    "StreamMonitor", "Theory",
]  # fmt: skip
