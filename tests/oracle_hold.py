"""The hold from its formulas: a copy of the stream before every event, and back to it; slow."""

import math
from collections import Counter
from itertools import pairwise

ORDINARY = 0.75


def severities(scores):
    """Return the severities of scores among themselves, less their mean."""
    n = len(scores)
    x = [math.log10((n + 1) / sum(other >= s for other in scores)) for s in scores]
    mean = math.fsum(x) / n
    return [value - mean for value in x]


def inflation(scores):
    """Return the larger of an AR(1) estimate and of the variances of means of blocks."""
    if len(scores) < 50 or len(set(scores)) == 1:
        return None
    return inflation_of(severities(scores))


def inflation_of(x):
    n = len(x)
    variance = math.fsum(value * value for value in x) / n
    r = math.fsum(a * b for a, b in pairwise(x)) / n / variance
    r = min(r + (1 + 4 * r) / n, 1 - 1 / n)
    found = [1.0, (1 + r) / (1 - r)]
    for blocks in (40, 20, 10):
        size = n // blocks
        if size > 1:
            sums = [math.fsum(x[i * size : (i + 1) * size]) for i in range(blocks)]
            squares = math.fsum(s * s for s in sums)
            found.append(squares / (blocks * size * variance) * (1 + 1 / blocks))
    return max(found)


def rises(scores):
    """Whether a line through the severities rises by more than 2.33 standard errors."""
    n = len(scores)
    if n < 50 or len(set(scores)) == 1:
        return False
    x, t = severities(scores), [i - (n - 1) / 2 for i in range(n)]
    squares = math.fsum(at * at for at in t)
    slope = math.fsum(a * b for a, b in zip(x, t, strict=True)) / squares
    left = [a - slope * b for a, b in zip(x, t, strict=True)]
    variance = math.fsum(value * value for value in left) / n
    return slope > 2.33 * math.sqrt(variance * inflation_of(left) / squares)


class Hold:
    """What a stream knows of its incident."""

    def __init__(self, hold, window):
        self.hold, self.n, self.quarter = hold, window, max(1, window // 4)
        self.level, self.limit, self.inflated, self.since = 0.0, math.inf, None, []
        self.usual, self.looked, self.measured = [], -1, 0
        self.open, self.told, self.changes = None, None, []
        self.later = None  # what an event is told with that waited for it

    def measure(self, window, due=False):
        """Measure without what is under suspicion; a single measurement is a guess."""
        entered = sum(before.entered for before, _ in self.since)
        seen = self.usual or len(window) == self.n or due
        self.measured = len(window) if seen else 0
        self.inflated = inflation(window[: len(window) - entered]) if seen else None
        if self.inflated is not None:
            if len(window) == self.n:
                mean, k = self.usual[-1] if self.usual else 0.0, min(len(self.usual) + 1, 16)
                self.usual.append(mean + (self.inflated - mean) / k)
            self.inflated = max(self.inflated, *self.usual[-1:], 0.0)
        known = self.inflated is not None and len(window) >= 10 * self.inflated
        self.limit = 2.5 + 5 * self.inflated if known else math.inf
        if not known:
            self.level, self.since = 0.0, []

    def renew(self, window):
        if self.hold.enabled:
            self.level, self.since = 0.0, []
            self.measure(window)

    def look(self, rows, window, asked):
        """Measure where it is time to; a window that had time to fill counts as one that did."""
        due = rows % ((16 if self.measured == self.n else 1) * self.quarter) == 0
        if self.hold.enabled and due and rows != self.looked:
            self.looked = rows
            self.measure(window, asked is not None and rows >= asked + self.n)

    def step(self, severity):
        return min(severity, math.log10(self.n + 1)) - ORDINARY

    def suspect(self, before, verdict, severity, beside=None, reach=None):
        """Weigh an event of a quiet stream; return whether an incident opens.

        Where an earlier reference is kept a row counts once rows are made of none before it.
        """
        low = (severity or 0) <= ORDINARY if reach is None else severity is None
        if not self.hold.enabled or (
            self.level <= 0 and (low or (self.limit == math.inf and reach is None))
        ):
            return False
        if reach and severity is not None:
            reach = min(reach, self.quarter)
            severity = self.since[-reach][1].severity if len(self.since) >= reach else None
        if beside is not None and severity is not None:
            severity = min(severity, beside)
        self.level += self.step(severity) if severity is not None else 0
        if self.level <= 0 or self.limit == math.inf:
            self.level, self.since = 0.0, [*self.since, (before, verdict)][-reach:] if reach else []
            return False
        self.since = [*self.since, (before, verdict)][-self.quarter :]
        if self.level < self.limit:
            return False
        window = [*before.window, verdict.score][-self.n :] if before.entered else before.window
        entered = sum(before.entered for before, _ in self.since)
        if len(window) == self.n and rises(window[: len(window) - entered]):  # till one does not
            self.level, self.since, self.inflated, self.limit = 0.0, [], None, math.inf
            return False
        return True

    def n_before(self):
        """Count the first suspects that two means put below the others, by a factor of ten."""
        x = [0.0 if v.muted else min(v.severity or 0.0, math.log10(self.n + 1))
             for _, v in self.since]  # fmt: skip
        best, found = 0.0, 0
        for k in range(1, len(x)):
            low, high = sum(x[:k]) / k, sum(x[k:]) / (len(x) - k)
            gain = k * (len(x) - k) * (high - low) ** 2
            if high - low >= 1 and gain > best:
                best, found = gain, k
        return found

    def begin(self, verdict):
        events = [event for _, event in self.since]
        self.level, self.since = 0.0, []
        self.open = {
            "id": str((self.later or verdict).position), "state": "open", "version": 0,
            "ordinary": 0.0,
            "relapses": 0, "held": 0, "fault": False, "onset": events[0].seq, "n": Counter(),
            "answer": None, "by_age": False, "opened_ms": verdict.event_time_ms,
        }  # fmt: skip
        for event in events:
            self.open["n"][event.label] += 1
        self.tell(verdict)

    def tell(self, verdict, ended=None, counted=False):
        kept = self.open
        kept["version"] += not counted
        told = self.later or verdict
        self.told = told.seq
        n = kept["n"]
        self.changes.append(
            (told.position, kept["id"], kept["version"], kept["state"], kept["onset"],
             n.total(), n["anomaly"], n["rejected"], kept["answer"], ended)
        )  # fmt: skip
        if kept["state"] == "closed":
            self.open = None

    @property
    def recovery(self):
        worth = min(10 * (self.inflated or 1.0), 2 * self.quarter)
        return max(self.hold.recover_events, worth) * (ORDINARY - 1 / math.log(10))

    def watch(self, verdict, severity):
        """Weigh an event of a held stream; return the state it turns to, if any."""
        kept, age = self.open, self.hold.adopt_after_events
        age = self.n if age is None else age or None
        kept["n"][verdict.label] += 1
        kept["held"] += 1
        if severity is not None:
            kept["ordinary"] = max(0.0, kept["ordinary"] - self.step(severity))
        ordinary, state = kept["ordinary"], kept["state"]
        if state == "adopting" or (self.later or verdict).seq == self.told:
            return None
        if ordinary >= self.recovery:
            return "closed"
        until = kept["opened_ms"] + 3 * 86_400_000
        is_late = self.hold.adopt_after_events is not None or verdict.event_time_ms >= until
        if state == "open" and age is not None and kept["held"] >= age and is_late:
            return "adopting"
        if state == "recovering":
            return ("fault" if kept["fault"] else "open") if ordinary <= 0 else None
        looks = ordinary >= self.recovery / 2 and kept["relapses"] < 10
        return "recovering" if looks else None
