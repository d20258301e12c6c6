"""What the engine should say, from the formulas: lists, ``sorted``, a fit in place; slow.

Nothing of the engine is imported but the types.
"""

import hashlib
import math
from dataclasses import replace as replace_in
from fractions import Fraction
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from rejex_stream.types import Label, Limited, LimitExcess, Reason, Verdict
from tests.oracle_bands import allowed, band, log_tails
from tests.oracle_features import NaiveSensor
from tests.oracle_hold import Hold, rises


def reference_verdicts(spec, readings):
    """Return one verdict per reading; `spec` is read as data, its detector fits and scores."""
    return reference(spec, readings, {})[0]


def reference(spec, readings, answers):
    """Return one verdict per reading, and what became of incidents.

    `answers` has, by the number of the reading before which they hold, the kind and the id of
    answers to what is open then.
    """
    streams = {reading.stream_key: _Stream(spec, reading.stream_key) for reading in readings}
    verdicts, changes = [], []
    for i, reading in enumerate(readings):
        for key, kind, name in answers.get(i, ()):
            streams[key].answer(kind, name)
        stream = streams[reading.stream_key]
        verdicts.append(within_limits(spec, reading, stream.verdict(reading), stream.came))
        changes += stream.hold.changes
        stream.hold.changes = []
    return verdicts, changes


def within_limits(spec, reading, verdict, came):
    """Return the verdict, an anomaly where a value is beyond a limit, or missing for too long.

    `came` has the readings of each sensor of the stream so far; this one is added.
    """
    came.setdefault(reading.sensor, []).append((verdict.seq, reading.values))
    values = dict(zip(spec.features.channels, reading.values, strict=True))
    found = [
        (channel, values[channel], limit)
        for channel, low, high in spec.limits
        for limit, is_beyond in ((low, float.__lt__), (high, float.__gt__))
        if limit is not None and is_beyond(values[channel], float(limit))
    ]
    for i, channel in enumerate(spec.features.channels):
        least, longest, beyond, now = max(10, spec.features.carry_forward_events), 0, 0, -1
        for seq, values in came[reading.sensor]:
            usual = max(least, 3 * longest)
            if values[i] != values[i]:
                now += now >= 0
                continue
            beyond += now if now > usual else 0
            if now <= usual or beyond > seq / 10:
                longest = max(longest, now)
            now = 0
        usual = max(least, 3 * longest)
        if now > usual and verdict.seq >= 10 * usual:
            found.append((channel, None, float(usual), now))
    if not found:
        return verdict
    known = Limited(tuple(LimitExcess(*one) for one in found), verdict.label, verdict.reason)
    return replace(verdict, label=Label.ANOMALY, reason=Reason.LIMIT, limited=known)


def cluster(scores):
    """Return how many scores of a sixteenth or an eighth exceed the largest of another one."""
    sizes = []
    for blocks in (16, 8):
        length = len(scores) // blocks
        if length < 2:
            return 1
        parts = [scores[i * length : (i + 1) * length] for i in range(blocks)]
        pairs = [(a, b) for a in range(blocks) for b in range(blocks) if a != b]
        sizes.append(sum(s > max(parts[b]) for a, b in pairs for s in parts[a]) / len(pairs))
    size = sum(sizes) / 2
    return round(4 * size) / 4 if size >= 2 else 2 if size >= 1.5 else 1


def severity(ordered, score):
    """Return -log10 of the tail probability, by exact sums."""
    n, largest = len(ordered), ordered[-1]
    at_or_above = sum(s >= score for s in ordered)
    if at_or_above:
        return math.log10((n + 1) / (at_or_above + 1))
    k = max(math.isqrt(n), ordered.count(largest))
    scale = sum(Fraction(s) - Fraction(ordered[n - k - 1]) for s in ordered[n - k :]) / k
    beyond = (Fraction(score) - Fraction(largest)) / scale
    return min(1e6, math.log10(n + 1) + min(1e9, beyond) / math.log(10))


def shape(ordered, c):
    """Return the shape of a generalised Pareto tail of the largest tenth, less two errors."""
    k = max(len(ordered) // 10, 40)
    if len(ordered) <= k + 1 or ordered[-1] == ordered[-1 - k]:
        return 0
    over = [Fraction(s) - Fraction(ordered[-1 - k]) for s in ordered[-k:]]
    mean = sum(over) / k
    twice = sum(2 * Fraction(k - i, k - 1) * s for i, s in enumerate(over, 1)) / k
    found = float(2 - mean / (mean - twice)) - 2 * math.sqrt(c / k) if twice < mean else 0
    return min(max(0, found), 0.9)


@cache  # it is asked of every score of a window, again and again
def in_order(tail, score):
    """Return the same among scores that stand still, where extremes may come in clusters of c."""
    ordered, c = tail
    n = len(ordered)

    def rare(at_or_above):
        return math.log10((n + 1) / min(n + 1, at_or_above + (1 if c == 1 else c - 1)))

    below = [s for s in ordered if s < score]
    if len(below) == n:
        k = max(math.isqrt(n), ordered.count(ordered[-1]))
        xi, start = shape(ordered, c), Fraction(ordered[n - k - 1])
        mean = sum(Fraction(s) - start for s in ordered[n - k :]) / k * Fraction(1 + 1.5 * c / k)
        sigma = Fraction(1 - xi) * mean + Fraction(xi) * (Fraction(ordered[-1]) - start)
        nats = float(min(Fraction(10) ** 300, (Fraction(score) - Fraction(ordered[-1])) / sigma))
        beyond = (math.log1p(xi * nats) / xi if xi else nats) / math.log(10)
        return min(1e6, math.log10((n + 1) / min(c, n + 1)) + beyond)
    found = rare(n - len(below))
    if not below:
        return found
    a, b = Fraction(below[-1]), Fraction(ordered[len(below)])
    step = found - rare(n - len(below) + 1)
    return found - (1e-6 if c == 1 else 1) * float((b - Fraction(score)) / (b - a)) * step


class Credit:
    """What a stream remembers beside its window: what is left of a budget, in events."""

    def __init__(self, policy):
        self.policy, self.left = policy, Fraction(policy.burst or 0)
        self.constant, self.came, self.believed = False, [], None

    def believes(self, sensor, time_ms):
        """Return the time that two sensors have reached, or the last eight events of the only one.

        As long as no ten thousand events of one sensor are in a row; none of these feeds has them.
        """
        self.came.append((sensor, time_ms))
        latest = sorted(max(t for s, t in self.came if s == name) for name in dict(self.came))
        last = [t for _, t in self.came[-8:]]
        reached = latest[-2] if len(latest) > 1 else min(last) if len(last) == 8 else None
        if reached is not None and (self.believed is None or reached > self.believed):
            self.believed = reached
        return self.believed

    def earn(self, sensor, time_ms):
        policy, earned = self.policy, Fraction(repr(self.policy.rate))
        if policy.per_day is not None:
            before, now = self.believed, self.believes(sensor, time_ms)
            earned = Fraction(repr(float(policy.per_day))) * (0 if before is None else now - before)
            earned /= 24 * 3600 * 1000
        self.left = min(self.left + earned, Fraction(policy.burst))


def judge(said, policy, window, tail, score, epoch, credit, time_ms):
    """Rank the score among the reference scores and compare."""
    ordered, n = sorted(window), len(window)
    if not math.isfinite(score):
        return said(Label.REJECTED, Reason.UNSCORABLE, window_len=n, model_epoch=epoch)
    below, at_or_below = sum(s < score for s in window), sum(s <= score for s in window)
    rank = (below + at_or_below) // 2 if policy.ties == "mid" else at_or_below
    known = {"rank": rank, "ties": at_or_below - below, "window_len": n, "model_epoch": epoch}
    said = partial(said, score=score, **known)
    r, lower, upper, tolerance = band(policy, n)
    if not (r and tolerance and lower > 0 and upper < n):
        return said(Label.REJECTED, Reason.WARM_UP)
    label, reason = (Label.ANOMALY if rank >= n - r + 1 else Label.NORMAL), None
    constant = len(set(window)) == 1
    if constant != credit.constant:
        said = partial(said, status="constant_begins" if constant else "constant_ends")
        credit.constant = constant
    if not constant:
        rare = severity(ordered, score) if tail is None else in_order(tail, score)
        said = partial(said, severity=rare)
    if policy.burst is not None:
        own_lower, own_upper = lower, upper
        said = partial(said, policy_lower=lower, policy_upper=upper)
        if not constant:
            credit.earn(said.args[2], time_ms)
            lower, upper, tolerance = allowed(policy, n, credit.left)
    if constant:
        label, reason = Label.REJECTED, Reason.CONSTANT_WINDOW
    elif lower <= rank <= upper:
        label, reason = Label.REJECTED, Reason.AMBIGUOUS
        credit.left -= 1
    elif policy.burst is not None:
        said = partial(said, withheld=own_lower <= rank <= own_upper)
    p_anomaly = math.exp(log_tails(rank, n, r)[0])
    return said(
        label, reason, n_anomalies=r, band_lower=lower, band_upper=upper, tolerance=tolerance,
        psi=rank / n, stability=p_anomaly, confidence=abs(2 * p_anomaly - 1),
        threshold=ordered[n - r], score_lower=ordered[lower - 1] if lower >= 1 else None,
        score_upper=ordered[upper] if upper < n else None,
    )  # fmt: skip


FORTNIGHT = 14 * 86_400_000


class Before(NamedTuple):
    """What a stream was before an event, and whether its score entered the window."""

    window: list
    rows: int
    entered: bool


class _Stream:
    def __init__(self, spec, key):
        self.spec, self.key, self.seq, self.rows, self.window = spec, key, 0, [], []
        self.credit = Credit(spec.policy)
        self.fits, self.epochs, self.epoch, self.model, self.sensors = [], 0, None, None, {}
        self.asked = None  # when the model that speaks was, as far as its window goes
        self.learns, self.left_out = hasattr(spec.detector, "start"), []
        self.hold, self.waiting, self.held, self.origin = Hold(spec.hold, spec.window), [], [], 0
        self.warm_until = getattr(spec.detector, "warm_up_events", 0)
        guarded = not self.learns and (spec.schedule.guard_quantile or 1.0) < 1
        self.partial = guarded and getattr(spec.detector, "allow_nan", False)
        self.came = {}
        self.began, self.tail, self.extreme = 0, None, []
        self.interim, self.is_interim = None, False  # another stream, of the rows held back
        self.earlier, self.kept = None, None  # the one before; how long, and how far rows fit it
        self.late = []  # rows that wait until what comes is made of none of them
        back = [0, *((c.events or 0) - (c.kind not in ("lag", "difference"))
                     for c in spec.features.columns)]  # fmt: skip
        self.reach = max(back)  # readings before its own that a row is made of
        if self.learns:
            self.epoch, self.model = 0, spec.detector.start(spec.features.names, seed=self.seed(0))

    def seed(self, epoch):
        text = f"{self.spec.seed}\x1f{self.key}\x1f{epoch}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1

    def verdict(self, reading):
        _, name, time_ms, values, position = reading
        said = partial(Verdict, position, self.key, name, time_ms, self.seq)
        self.seq += 1
        hold = self.hold
        at_once = hold.open and hold.open["state"] == "adopting"
        if not self.learns:
            at_once = at_once and self.interim is not None and self.interim.model is not None
        if hold.open and not at_once and hold.open.pop("untold", False):
            hold.tell(said(Label.NORMAL), counted=True)
        sensor = NaiveSensor(self.spec.features, partial=self.partial)
        row = self.sensors.setdefault(name, sensor).row(time_ms, values)
        if isinstance(row, Reason):
            incident = hold.open["id"] if hold.open else None
            return said(Label.REJECTED, row, held=hold.open is not None, incident=incident)
        return self.weighed(said, np.array(row), time_ms)

    def begin_interim(self):
        """Begin a reference of what was held back, and know how the stream varies."""
        spec = replace_in(self.spec, policy=replace_in(self.spec.policy, burst=None, per_day=None))
        new = self.interim = _Stream(spec, self.key)
        whole = [row for row in self.held[self.reach :] if not np.isnan(row).any()]
        new.rows, new.began, new.epochs = [*self.rows, *whole], len(self.rows), self.epochs
        new.left_out, new.is_interim = [False] * len(new.rows), True
        new.origin = len(new.rows) - min(len(whole), spec.schedule.first_fit_events - 1)
        new.hold.usual, new.hold.looked = [*self.hold.usual], self.hold.looked
        self.held = []

    def look_at_interim(self, said):
        """Begin an interim reference, or let it speak for the stream, where it is time."""
        hold, schedule = self.hold, self.spec.schedule
        if self.learns or self.is_interim or hold.open is None:
            return
        enough = min(schedule.first_fit_events, schedule.buffer_events) - 1 + self.reach
        if self.interim is None and len(self.held) >= enough:
            self.drop_earlier()
            self.begin_interim()
        new, verdict = self.interim, said(Label.NORMAL)
        if new is None:
            return
        if new.model is None or new.hold.open is None:
            new.swap()
        beside = new.hold.open
        if (
            new.model is not None and beside and beside["state"] == "adopting"
            and len(new.held) >= enough and new.hold.told != verdict.seq
        ):  # fmt: skip
            self.held, self.interim = new.held[-self.most :], None
            new.turn("closed", verdict, "adopted")
            hold.changes += new.hold.changes
            return
        if new.model is None or hold.open["state"] != "adopting" or hold.told == verdict.seq:
            return
        is_new = "renewed" not in hold.open
        if new.hold.open is None and is_new and rises(new.window):
            hold.open["renewed"] = True
            if hold.open.pop("untold", False):
                hold.tell(verdict, counted=True)
            self.held = new.rows[new.began :][-self.most :]
            self.interim = None
            return
        self.turn("closed", verdict, "adopted")
        self.exchange(new, verdict, hold.changes[-1])

    def exchange(self, new, verdict, told):
        """Let another reference speak, and keep this one for a fortnight."""
        old = object.__new__(_Stream)
        old.__dict__ |= vars(self)
        new.hold.changes = [*old.hold.changes, *new.hold.changes]
        old.hold.changes, old.hold.level, old.hold.since = [], 0.0, []
        kept = {"credit": self.credit, "sensors": self.sensors, "came": self.came}
        kept |= {"seq": self.seq, "spec": self.spec, "interim": None, "is_interim": False}
        kept |= {"late": [], "earlier": old}
        kept["kept"] = [verdict.event_time_ms + FORTNIGHT, told, 0, 0]
        self.__dict__ |= vars(new) | kept

    def drop_earlier(self):
        self.earlier = self.kept = None
        if self.hold.level <= 0:
            self.hold.since = []

    def look_at_earlier(self, row, time_ms):
        """Return how rare a row is by the reference before, where one is kept."""
        if self.kept is not None and time_ms >= self.kept[0]:
            self.drop_earlier()
        if self.earlier is None:
            return None
        score = self.earlier.score_of(row)
        return in_order(self.earlier.tail, score) if math.isfinite(score) else None

    def weigh_earlier(self, rare, verdict):
        """Let the reference before speak again once rows fit it."""
        hold, kept = self.hold, self.kept
        if rare is None:
            return
        kept[2] = max(0.0, kept[2] - self.earlier.hold.step(rare))
        kept[3] = kept[3] + 1 if kept[2] else 0
        if kept[2] < self.earlier.hold.recovery:
            return
        if hold.open is None:
            n = min(kept[3] + self.reach, hold.quarter, len(self.window) // 4)
            self.window = self.window[: len(self.window) - n]
        else:
            self.turn("closed", verdict)
        self.held, (*_, told, _, _) = [], kept
        ended = "adopted" if told[-1] == "as_before" else "as_before"
        told = (verdict.position, told[1], told[2] + 1, *told[3:-1], ended)
        self.exchange(self.earlier, verdict, told)
        self.hold.changes.append(told)

    def said_in_interim(self, verdict, row, state):
        """Add how rare the row is by the interim reference, where that ranks it."""
        new = self.interim
        score = None if new is None or state == "open" else new.score_of(row)
        if score is None or not math.isfinite(score) or new.tail is None:
            return verdict
        return replace(verdict, interim_severity=in_order(new.tail, score))

    def judged_in_interim(self, said, row, time_ms, severity, state):
        """Let the interim reference judge what was held, unless it ends here."""
        new = self.interim
        if new is None or state == "open":
            return
        if state != "closed":
            new.late.append((said, row, time_ms, severity))
            if new.model is None or len(new.late) > self.reach:
                *first, before = new.late.pop(0)
                known = [s for s in (before, severity) if s is not None]
                new.hold.later = said(Label.NORMAL)
                new.weighed(*first, min(known, default=None))
                new.hold.later = None
        elif self.interim.hold.open is not None:
            self.interim.turn("closed", said(Label.NORMAL))
        self.hold.changes += self.interim.hold.changes
        self.interim.hold.changes = []
        if state == "closed":
            self.interim = None

    def weighed(self, said, row, time_ms, trusted=None):
        """Score, judge, and let the row and its score in, unless the reference stands still."""
        self.look_at_interim(said)
        bare = said
        hold, policy = self.hold, self.spec.policy
        beside = self.look_at_earlier(row, time_ms)
        learns = hold.open is None or (self.learns and hold.open["state"] == "adopting")
        if learns and not self.learns:
            self.swap()
        if learns:
            hold.look(len(self.rows), self.window, self.asked)
        if hold.open and hold.open["state"] == "adopting" and self.learns:
            self.turn("closed", said(Label.NORMAL), "adopted")
        score = self.score_of(row)
        extreme = score is not None and self.is_extreme(float(score))
        crowded = extreme and self.is_crowded()
        entered = score is not None and math.isfinite(score) and not crowded
        before = Before(self.window, len(self.rows), entered)
        still = hold.open is not None
        said = partial(said, held=still, incident=hold.open["id"] if still else None)
        if score is None:
            verdict = said(Label.REJECTED, Reason.WARM_UP)
        else:
            args = policy, self.window, self.tail, float(score), self.epoch, self.credit, time_ms
            verdict = judge(said, *args)
        rare = None  # by the window, which is not what the verdict's severity goes by
        if score is not None and verdict.severity is not None:
            rare = severity(sorted(before.window), float(score))
            rare = rare if trusted is None else min(rare, trusted)
        if still:
            self.held = [*self.held, row][-self.most :] if self.interim is None else []
        else:
            extreme &= not still
            if not still and score is not None and not crowded:
                self.window = self.finite([*self.window, score])
            self.extreme += [len(self.rows)] * extreme
            self.rows.append(row)
            self.left_out.append(self.leaves_out(score, before.window, extreme))
            self.waiting.append(row)
        state = None
        if score is not None and still:
            state = hold.watch(verdict, rare)
        elif score is not None and hold.suspect(
            before, verdict, rare, beside, None if self.earlier is None else self.reach
        ):
            state = "open"
        rarity = verdict.severity
        if state is not None:
            verdict = self.turn(state, verdict)
        elif not still:
            self.request()
        while self.learns and len(self.waiting) > len(hold.since):
            self.model.learn_one(self.waiting.pop(0))
        if still:
            verdict = self.said_in_interim(verdict, row, state)
            self.judged_in_interim(bare, row, time_ms, rarity, state)
        if self.earlier is not None:
            self.weigh_earlier(beside, verdict)
        return verdict

    @property
    def most(self):
        """How many rows held back are kept, the oldest of which are made of readings before."""
        most = self.spec.schedule.buffer_events + self.reach
        return self.spec.window if self.learns else most

    def turn(self, state, verdict, ended="recovered"):
        """Do what a turn of the incident asks for."""
        hold = self.hold
        if hold.open is None:
            before = hold.since[0][0]
            since = before.rows if self.learns else before.rows + hold.n_before()
            self.held = self.rows[since:][-self.most :]
            self.window, self.waiting = before.window, []
            self.rows, self.left_out = self.rows[: before.rows], self.left_out[: before.rows]
            self.fits = [fit for fit in self.fits if fit[1] <= before.rows]
            self.extreme = [row for row in self.extreme if row < before.rows]
            hold.begin(verdict)
            return replace(verdict, held=True, incident=hold.open["id"])
        hold.open["relapses"] += hold.open["state"] == "recovering" and state != "closed"
        hold.open["state"] = state
        hold.open["by_age"] |= state == "adopting"
        by_age = ended == "adopted" and hold.open["by_age"]
        hold.tell(verdict, ("adopted_by_age" if by_age else ended) if state == "closed" else None)
        if state == "adopting" and self.learns:
            self.adopt()
        elif state == "closed":
            self.held = []
        return verdict

    def answer(self, kind, name):
        kept = self.hold.open
        if kept is None or kept["state"] == "adopting" or (kind == "fault" and kept["fault"]):
            return
        kept |= {"fault": kind == "fault", "answer": name, "untold": True}
        kept["state"] = "fault" if kind == "fault" else "adopting"
        kept["version"] += 1
        if kind != "fault" and self.learns:
            self.adopt()

    def adopt(self):
        """Begin again with the rows held back."""
        rows, self.held = self.held, []
        scores = []
        for row in rows:
            scores.append(self.model.score_one(row))
            self.model.learn_one(row)
        warm_up = self.spec.detector.warm_up_events
        self.rows += rows
        self.warm_until = max(self.warm_until, len(self.rows) + max(0, warm_up - len(rows)))
        self.window = self.finite(scores[warm_up:])
        self.hold.renew(self.window)

    def finite(self, scores):
        return [float(s) for s in scores if math.isfinite(s)][-self.spec.window :]

    def score_of(self, row):
        if self.learns:
            return None if len(self.rows) < self.warm_until else self.model.score_one(row)
        if self.model is None:
            return None
        return float(self.model.score(row[None])[0])

    def is_extreme(self, score):
        return self.tail is not None and math.isfinite(score) and in_order(self.tail, score) >= 4

    def places(self, n):
        """Return how many extreme scores there may be among n: half of those that are flagged."""
        r, lower, upper, _ = band(self.spec.policy, n)
        return max(1, (min(r, n - upper) if lower <= upper else r) // 2)

    def is_crowded(self):
        n = len(self.window)
        return sum(map(self.is_extreme, self.window)) >= self.places(n) and self.speaks(n)

    def speaks(self, n):
        """Tell whether both labels can be said among n; a length where they cannot is left."""
        r, lower, upper, tolerance = band(self.spec.policy, n)
        return bool(r and tolerance and lower > 0 and upper < n)

    def drop_surplus(self, out):
        """Keep of a new window's extreme scores the first, as many as there are places for."""
        places, kept = self.places(len(self.window)), []
        for score in self.window:
            if not self.is_extreme(score) or sum(map(self.is_extreme, kept)) < places:
                kept.append(score)
        if out and self.speaks(len(kept)):
            self.window = kept

    def leaves_out(self, score, window, extreme):
        """Tell whether a guard keeps the newest row out of training."""
        quantile = self.spec.schedule.guard_quantile or 1.0
        if (
            score is None
            or np.isnan(self.rows[-1]).any()  # it trains nothing, and is no outlier
            or not math.isfinite(score)
            or quantile >= 1
            or len(window) < 1 / (1 - quantile)
        ):
            return False
        rank = (sum(s < score for s in window) + sum(s <= score for s in window)) // 2
        buffer, left_out = self.spec.schedule.buffer_events, self.left_out[self.began :]
        too_many = sum(left_out[-buffer:]) - (len(left_out) >= buffer and left_out[-buffer])
        beyond = extreme or rank > quantile * len(window)
        return beyond and too_many < self.spec.schedule.guard_share * buffer

    def request(self):
        schedule, seen, free = self.spec.schedule, len(self.rows) - self.origin, not self.fits
        needed = self.model is None
        first, every = schedule.first_fit_events, schedule.refit_every_events
        again = every or (first if free and needed else math.inf)  # None: one model
        if not self.learns and seen >= first and (seen - first) % again == 0:
            first_shadow = needed and schedule.calibration == "shadow"
            kind = "holdout" if first_shadow else schedule.calibration
            known = zip(self.rows[self.began :], self.left_out[self.began :], strict=True)
            taught = [row for row, out in known if not (out or np.isnan(row).any())]
            rows = np.array(taught[-schedule.buffer_events :])
            self.fits.append((self.epochs, len(self.rows), rows, kind))
            self.epochs += 1

    def swap(self):
        """Let a model speak: all its reference scores are its own."""
        schedule, seen = self.spec.schedule, len(self.rows)
        for epoch, at, rows, kind in list(self.fits):
            wait = self.spec.window if kind == "shadow" else schedule.refit_lag_events
            if seen != at + wait:
                continue
            self.fits = [fit for fit in self.fits if fit[0] != epoch]
            cut = round(len(rows) * (1 - schedule.holdout_share)) if kind == "holdout" else None
            try:
                model = self.spec.detector.fit(rows[:cut], seed=self.seed(epoch))
            except Exception:  # the old model goes on
                continue
            scores = [model.score(x[None])[0] for x in [*rows, *self.rows[at:]]]
            if kind == "training":
                own = getattr(model, "training_scores", None)
                scores[: len(rows)] = scores[: len(rows)] if own is None else own
            unseen = {"shadow": len(rows), "holdout": cut, "training": 0}[kind]
            first = len(self.rows) - len(scores)
            of_rows = [i for i, s in enumerate(scores) if i >= unseen and math.isfinite(s)]
            own = [float(scores[i]) for i in of_rows]
            out = {row - first for row in self.extreme if row >= at}
            if len(out) > schedule.guard_share * (len(scores) - unseen):
                out = set()
            kept = zip(of_rows, own, strict=True)
            ordinary = self.finite([score for i, score in kept if i not in out])
            self.epoch, self.model, self.window = epoch, model, self.finite(own)
            self.asked = at
            varied = len(set(ordinary)) > 1
            self.tail = (tuple(sorted(ordinary)), cluster(ordinary)) if varied else None
            self.drop_surplus(out)
            self.hold.renew(self.window)
