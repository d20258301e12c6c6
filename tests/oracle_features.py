"""What the features of a reading should be: looked up in the whole history of a sensor."""

import math
import statistics

from rejex_stream.features.preset import AT_ONCE
from rejex_stream.types import Reason


class NaiveSensor:
    def __init__(self, features, *, partial=False):
        """With `partial`, once windows are full, the channels that are there make a row."""
        self.features, self.seen, self.past = features, [], []
        self.partial = partial and features.preset in AT_ONCE
        spans = [
            (f.events or 0) - (f.kind not in ("lag", "difference", "raw")) for f in features.columns
        ]
        self.reach = max(spans, default=0)

    def row(self, time_ms, values):
        """Return the row of features, or why there is none."""
        self.seen.append(values)
        carried = [self.carried(channel) for channel in range(len(values))]
        if None in carried and not (
            self.partial and len(self.past) >= self.reach and carried != [None] * len(carried)
        ):
            return Reason.UNSCORABLE
        now = max([time_ms, *(t for t, _ in self.past)])
        self.past.append((now, carried))
        kinds, n = self.features.columns, len(values)
        channels = [[v[at] for _, v in self.past if v[at] is not None] for at in range(n)]
        parts = [self.feature(kind, now, channels) for kind in kinds] if kinds else [carried]
        if None in parts:
            return Reason.WARM_UP
        row = [number for part in parts for number in part]
        absurd = any(abs(number) > 1e150 for number in row)
        return Reason.UNSCORABLE if absurd else row

    def carried(self, channel):
        """Return the newest value that is at most `carry_forward_events` readings old."""
        newest = self.seen[::-1][: self.features.carry_forward_events + 1]
        return next((v[channel] for v in newest if math.isfinite(v[channel])), None)

    def feature(self, feature, now, channels):
        if not feature.channel:  # 1970-01-01 was a Thursday
            days, phase = (1, 0) if feature.kind == "hour_of_day" else (7, 3)
            angle = 2 * math.pi * ((now / 86_400_000 + phase) % days) / days
            return [math.sin(angle), math.cos(angle)]
        at = self.features.channels.index(feature.channel)
        if self.past[-1][1][at] is None:
            return [math.nan]
        values, span = channels[at], feature.events
        if feature.kind == "raw":
            return values[-1:]
        if feature.kind in ("lag", "difference"):
            before = values[-1 - span] if len(values) > span else math.nan
            found = before if feature.kind == "lag" else values[-1] - before
            return None if math.isnan(found) else [found]
        if span is None:
            times, span_ms = [t for t, _ in self.past], feature.seconds * 1000
            span = sum(t > now - span_ms for t in times)
            ready = span >= 2 and now - times[0] >= span_ms
        else:
            ready = len(values) >= span
        if not ready:
            return None
        statistic = {"mean": statistics.mean, "std": statistics.stdev, "min": min, "max": max}
        statistic["deviation"] = lambda window: window[-1] - statistics.mean(window)
        return [statistic[feature.kind](values[-span:])]
