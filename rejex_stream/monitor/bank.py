"""The monitors of a pipeline: one set for each stream, and one for all streams together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rejex_stream.errors import CheckpointError
from rejex_stream.monitor.alarm import Alarm
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.ranks import RankMonitors, RankState
from rejex_stream.monitor.status import MonitorStatus, Unranked, summarise
from rejex_stream.monitor.stream_monitor import StreamMonitor, decode, encode
from rejex_stream.monitor.theory import mean_theory
from rejex_stream.types import Verdict, in_mode

__all__ = ["MonitorBank"]


class _Snapshot(msgspec.Struct):
    config: MonitorConfig
    pooled: RankState
    unranked: Unranked
    streams: dict[str, bytes]


class MonitorBank:
    """Watches all verdicts of a pipeline, stream by stream and pooled.

    The pooled health detector sees the events of all streams in the order of arrival, so a change
    common to many streams shows long before it does in any one of them. What streams have in common
    without a fault (weather, load) makes their rejects come together: that raises the pooled
    variance inflation like autocorrelation does, measured over blocks that are as many times longer
    as there are streams. Slow drift belongs to single streams, since models have no score in
    common. While there is only one stream, alarms of the pipeline
    that repeat the stream's are not returned.

    Parameters
    ----------
    config
        Settings, the same for every stream.

    Examples
    --------
    >>> from rejex_stream.types import Label, Position
    >>> bank = MonitorBank(MonitorConfig(window=1000, contamination=0.05, tolerance=32))
    >>> verdicts = [
    ...     Verdict(
    ...         position=Position("readings", 0, i), stream_key=f"pump-{i % 2}", sensor="pump",
    ...         seq=i // 2, event_time_ms=1_000 * i, label=Label.NORMAL, score=0.1 * i,
    ...         rank=i % 800, window_len=1000, n_anomalies=50, band_lower=882, band_upper=987,
    ...         model_epoch=0)
    ...     for i in range(100)]
    >>> bank.observe(verdicts)
    []
    >>> bank.status().events, sorted(bank), bank.stream("pump-1").status().events
    (100, ['pump-0', 'pump-1'], 50)
    """

    __slots__ = ("_config", "_pooled", "_streams", "_unranked")

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._streams: dict[str, StreamMonitor] = {}
        self._pooled = RankMonitors(config, None)
        self._unranked = Unranked()

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def observe(self, verdicts: Iterable[Verdict]) -> list[Alarm]:
        """Take note of verdicts, in order; return the alarms they raised.

        Never raises, whatever the verdicts hold. O(log n) an event, about 5 µs.
        """
        alarms: list[Alarm] = []
        streams, pooled = self._streams, self._pooled
        for verdict in verdicts:
            key = verdict.stream_key
            if verdict.mode is not None:
                key = in_mode(key, verdict.mode)
            monitor = streams.get(key)
            if monitor is None:
                monitor = self._add(key)
            raised = monitor.observe(verdict)
            if raised:
                alarms.extend(raised)
            law = monitor.law
            if monitor.ranked and law is not None:
                raised = pooled.observe(verdict, law, monitor.shown_cell, monitor.drawn_cell)
                if raised and len(streams) > 1:  # of a single stream it would be said twice
                    alarms.extend(raised)
            else:
                self._unranked.count(verdict)
        return alarms

    def _add(self, stream_key: str) -> StreamMonitor:
        monitor = self._streams[stream_key] = StreamMonitor(self._config, stream_key)
        self._pooled.health.streams = len(self._streams)
        return monitor

    def stream(self, stream_key: str) -> StreamMonitor:
        """Return the monitors of one stream, made new if it was never seen."""
        return self._streams.get(stream_key) or self._add(stream_key)

    def status(self) -> MonitorStatus:
        """Return the pooled status, in O(streams); bounds are event-weighted means of theirs."""
        parts = [
            (theory, monitor.ranks.rate.events)
            for monitor in self._streams.values()
            if (theory := monitor.theory) is not None
        ]
        return summarise(
            self._pooled,
            self._config,
            stream_key=None,
            unranked=self._unranked,
            theory=mean_theory(parts),
        )

    def active_alarms(self) -> list[Alarm]:
        """Return the alarms that are not withdrawn: the pipeline's and every stream's."""
        every = [self._pooled, *(monitor.ranks for monitor in self._streams.values())]
        return [alarm for ranks in every for alarm in ranks.active.at(ranks.rate.events)]

    def drop(self, stream_key: str) -> bytes | None:
        """Forget a stream (idle, or gone to another process); return its snapshot, if it was here.

        It comes back with ``bank.stream(key).restore(blob)``.
        """
        kept = self._streams[stream_key].snapshot() if stream_key in self._streams else None
        self.forget(stream_key)
        return kept

    def forget(self, stream_key: str) -> None:
        """Forget a stream, if it is here."""
        self._streams.pop(stream_key, None)
        self._pooled.health.streams = max(1, len(self._streams))

    def __contains__(self, stream_key: object) -> bool:
        return stream_key in self._streams

    def snapshot(self) -> bytes:
        """Return everything as bytes; a restored bank raises the same alarms ever after."""
        return self._encoded({key: monitor.snapshot() for key, monitor in self._streams.items()})

    def head(self) -> bytes:
        """Return as bytes what all streams have in common; each has a snapshot of its own."""
        return self._encoded({})

    def _encoded(self, streams: dict[str, bytes]) -> bytes:
        return encode(
            _Snapshot(
                config=self._config,
                pooled=self._pooled.state,
                unranked=self._unranked,
                streams=streams,
            )
        )

    def restore(self, blob: bytes, streams: Mapping[str, bytes] | None = None) -> None:
        """Go on from :meth:`snapshot`, or from :meth:`head` and `streams`, in place of all here.

        Raises
        ------
        CheckpointError
            If the bytes are foreign, damaged, of another version or of other settings; the bank is
            then unchanged.
        """
        state = decode(blob, _Snapshot)
        if state.config != self._config or len(state.pooled.rate.ring) != self._config.rolling:
            raise CheckpointError(
                "The monitor snapshot was written with other settings: start the monitors anew."
            )
        kept = state.streams | dict(streams or {})
        monitors = {key: StreamMonitor(self._config, key) for key in kept}
        for key, monitor in monitors.items():
            monitor.restore(kept[key])
        self._streams = monitors
        self._pooled = RankMonitors(self._config, None)
        self._pooled.restore(state.pooled)
        self._pooled.health.streams = max(1, len(monitors))
        self._unranked = state.unranked
