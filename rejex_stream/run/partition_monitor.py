"""The monitors of one partition, as a run wants them: state that travels, alarms that are told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from rejex_stream.errors import CheckpointError
from rejex_stream.monitor import Alarm, MonitorBank, MonitorConfig
from rejex_stream.types import Outcome, Partition, spoken

__all__ = ["PartitionMonitor", "log_alarm"]

_log = logging.getLogger(__name__)


class PartitionMonitor:
    """A :class:`~rejex_stream.monitor.MonitorBank` in the place of a run's monitor.

    Parameters
    ----------
    partition
        Whose outcomes it sees.
    config
        Settings of the monitors.
    on_alarm
        Told of every alarm, but not of those raised again by a silent replay.

    Attributes
    ----------
    bank
        The monitors, for metrics and the live view.
    """

    def __init__(
        self,
        partition: Partition,
        config: MonitorConfig,
        on_alarm: Callable[[Partition, Alarm], None],
    ) -> None:
        self.bank = MonitorBank(config)
        self._partition = partition
        self._on_alarm = on_alarm

    def observe(self, outcomes: Sequence[Outcome], *, replaying: bool) -> None:
        """See outcomes in order."""
        alarms = self.bank.observe(
            [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        )
        if not replaying:
            for alarm in alarms:
                self._on_alarm(self._partition, alarm)

    def head(self) -> bytes:
        """Encode what all streams have in common."""
        return self.bank.head()

    def view(self, stream_key: str) -> bytes | None:
        """Encode what is known of one stream, if anything is."""
        return self.bank.stream(stream_key).snapshot() if stream_key in self.bank else None

    def forget(self, stream_key: str) -> None:
        """Drop what is known of one stream, if anything is."""
        self.bank.forget(stream_key)

    def restore(self, blob: bytes, streams: Mapping[str, bytes]) -> bool:
        """Take over a state; monitors whose settings were changed since start anew."""
        try:
            self.bank.restore(blob, streams)
        except CheckpointError as error:
            _log.warning("%s-%d: %s", *self._partition, error)
            return False
        return True


def log_alarm(partition: Partition, alarm: Alarm) -> None:
    """Say an alarm in the log."""
    _log.warning(
        "alarm %s on %s: %s",
        alarm.kind,
        spoken(alarm.stream_key, alarm.mode),
        alarm.message,
        extra={
            "event": "alarm",
            "kind": str(alarm.kind),
            "stream": alarm.stream_key,
            "mode": alarm.mode,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": alarm.position.offset,
        },
    )
