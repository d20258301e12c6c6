"""What labels say about the pipelines, how far reviewers agree, and how the queue is doing.

Three groups of events are labelled in different shares: rejected ones (nearly all of them, case by
case), and accepted anomalies and accepted normals (the audit sample alone). Each gets its own share
of true anomalies; the groups' sizes, counted from all verdicts, put them together. Intervals come
from draws with Jeffreys' prior per group, so that "none wrong in 30" is not mistaken for "never
wrong". Events of one case are one judgement: they count as such. Nobody knows why some rejected
events were judged before others, so those still to be judged are taken at their best and worst.

Reviewers err: where cases were judged twice, one rate of overlooking and one of false alarms, the
same for all and independent given the truth, are drawn together with the groups' shares [1]_.
Groups of different shares make both identifiable. Where the truth was known beforehand an error is
seen: the counts of known cases multiply the likelihood as two binomials, beside Jeffreys' prior,
from the first answer on where cases were judged twice, else from the first to an anomaly and to a
normal. Without either people are believed. Labels never change a verdict by themselves, nor a
setting.

References
----------
.. [1] S. L. Hui, S. D. Walter: Estimating the Error Rates of Diagnostic Tests. Biometrics 36, 1980.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import NamedTuple

import msgspec
import numpy as np

from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import LabelRecord, resolve
from rejex_stream.plan.promises import Costs
from rejex_stream.review.gold_cases import Errors, Interval, Known, jeffreys, known_cases
from rejex_stream.review.queue.database import scalar, scalars
from rejex_stream.review.queue.label_store import OF_KNOWN, human_labels
from rejex_stream.review.queue.series import DAY_MS, FORGOTTEN_MS, HOUR_MS, pipeline_clock
from rejex_stream.types import FloatArray, Label

_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled episode: which group, how many events, what people say it is."""

    episode_id: str
    group: Label
    n_events: int
    verdict: str
    labels: tuple[LabelRecord, ...]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One group of events and what was found in its labelled part."""

    events: int = 0  # all verdicts of this group, from the counts
    # labelled events, and those of them that are anomalies; unsure ones are left out
    judged: int = 0
    anomalous: int = 0
    # how many independent judgements that is: (sum of sizes) squared over sum of squares
    effective: float = 0.0
    # episodes that two people judged without knowing of each other: both said anomaly, they
    # disagreed, both said normal
    twice: tuple[int, int, int] = (0, 0, 0)


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates with 95 % intervals; ``None`` inside where nothing is known."""

    accepted_anomaly: Group  # the three groups
    accepted_normal: Group
    rejected: Group
    precision: Interval  # share of accepted anomalies that are some
    false_omission: Interval  # share of accepted normals that are anomalies
    anomalous_rejected: Interval
    miss_rate: Interval  # share of all anomalies that were accepted as normal
    contamination: Interval  # γ: share of anomalies among all events
    cost_per_event: Interval  # with the given costs
    costs: tuple[float, float, float]
    # shares of anomalies, and of normal events, that a reviewer calls the other
    overlooked: Interval = Interval(None, None, None)
    false_alarms: Interval = Interval(None, None, None)
    sent: Mapping[str, int] = {}  # rejected events that were sent to review, by reason
    known: Known = Known()  # known cases, which are in no group


def judged_episodes(
    connection: Connection, since_ms: int = 0, pipeline: str | None = None
) -> Iterator[Judged]:
    """Yield every episode from an event time on that people have decided, of one or of all."""
    # Known cases and extreme anomalies are excluded: their selection depends on their value.
    rows = connection.execute(
        "SELECT e.episode_id, e.why, e.n_events, "
        "(SELECT item FROM event v WHERE v.episode_id = e.episode_id LIMIT 1) AS item "
        "FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE e.status IN ('done', 'needs_second', 'disputed') "
        "AND e.why NOT IN ('status', 'extreme') "
        "AND s.pipeline = coalesce(:pipeline, s.pipeline) AND e.start_ms >= :since "
        f"AND NOT {OF_KNOWN} ORDER BY e.episode_id",
        {"pipeline": pipeline, "since": since_ms},
    ).fetchall()
    for row in rows:
        labels = human_labels(connection, row["episode_id"])
        result = resolve(labels)
        if not labels:
            continue
        group = Label.REJECTED
        if row["why"] == "audit":
            verdict = decode_review(row["item"]).verdict
            group = verdict.label
            if verdict.muted and group is not Label.NORMAL:
                continue  # drawn by another share than the group it would be counted in
        yield Judged(row["episode_id"], group, row["n_events"], result.verdict or "", labels)


def quality(
    connection: Connection,
    costs: Costs | None = None,
    since_ms: int = 0,
    pipeline: str | None = None,
) -> Quality:
    """Return the estimates from all verdicts from an event time on, and labels of the same."""
    # Of hours that were forgotten only the sum is known: what begins among them begins after them.
    since_ms -= since_ms % HOUR_MS
    forgotten = "SELECT 1 FROM hour WHERE t_ms = ? LIMIT 1"
    if since_ms and scalar(connection, forgotten, (FORGOTTEN_MS,)):
        first_hour = "SELECT min(t_ms) FROM hour WHERE t_ms > ?"
        since_ms = max(since_ms, scalar(connection, first_hour, (FORGOTTEN_MS,)) or 0)
    since_all = since_ms or FORGOTTEN_MS
    asked = {"pipeline": pipeline, "since": since_ms}
    accepted = connection.execute(
        "SELECT coalesce(sum(anomaly), 0), coalesce(sum(normal), 0) "
        "FROM hour JOIN sensor USING (sensor_id) "
        "WHERE pipeline = coalesce(:pipeline, pipeline) AND t_ms >= :since",
        asked | {"since": since_all},
    ).fetchone()
    # What was sent does not move with the work on it; what was not, nobody will ever judge.
    sent = dict(
        connection.execute(
            "SELECT coalesce(v.reason, 'none'), count(*) FROM event v JOIN episode e "
            "USING (episode_id) JOIN sensor s ON s.sensor_id = e.sensor_id "
            "WHERE e.why = 'rejected' AND s.pipeline = coalesce(:pipeline, s.pipeline) "
            "AND e.start_ms >= :since GROUP BY 1 ORDER BY 1",
            asked,
        ).fetchall()
    )
    tallies = {label: _Tally() for label in Label}
    for judged in judged_episodes(connection, since_ms, pipeline):
        tallies[judged.group].add(judged)
    estimated = estimate(
        tallies[Label.ANOMALY].group(accepted[0]),
        tallies[Label.NORMAL].group(accepted[1]),
        tallies[Label.REJECTED].group(sum(sent.values())),
        costs or Costs(),
        known_cases(connection, since_ms, pipeline),
    )
    return msgspec.structs.replace(estimated, sent=sent)


class _Tally:
    def __init__(self) -> None:
        self.judged = self.anomalous = self.squares = 0
        self.twice = [0, 0, 0]

    def add(self, one: Judged) -> None:
        if one.verdict in ("anomaly", "normal"):
            self.judged += one.n_events
            self.anomalous += one.n_events * (one.verdict == "anomaly")
            self.squares += one.n_events**2
        said = [label.verdict for label in one.labels if label.role != "adjudication"][:2]
        if len(said) == 2 and "unsure" not in said:
            self.twice[said.count("normal")] += 1

    def group(self, events: int) -> Group:
        return Group(
            events=max(events, self.judged),
            judged=self.judged,
            anomalous=self.anomalous,
            effective=self.judged**2 / self.squares if self.squares else 0.0,
            twice=(self.twice[0], self.twice[1], self.twice[2]),
        )


def estimate(
    accepted_anomaly: Group,
    accepted_normal: Group,
    rejected: Group,
    costs: Costs,
    known: Known | None = None,
) -> Quality:
    """Return the estimates for three groups; equal groups give equal intervals."""
    # Known cases say how people err; what they are says nothing of the groups.
    rng = np.random.default_rng(0)
    groups = (accepted_anomaly, accepted_normal, rejected)
    total = sum(group.events for group in groups)
    weights = [group.events / total if total else 0.0 for group in groups]
    there = [bool(group.judged) or not group.events for group in groups]
    known = known or Known()
    seen = known.all
    twice = any(sum(group.twice) for group in groups)
    err = twice or bool(seen.anomalies and seen.normals)
    drawn = _erring(rng, groups, seen) if err else _believed(rng, groups)
    values = [_value(group, draws, err) for group, draws in zip(groups, drawn.shares, strict=True)]

    def interval(of: Callable[[Shares], FloatArray], enough: bool) -> Interval:
        """Return an interval that counts unjudged rejected events at their best and worst."""
        if not enough or not total:
            return Interval(None, None, None)
        judged = rejected.judged / rejected.events if rejected.events else 1.0
        ends = [
            of((*drawn.shares[:2], judged * drawn.shares[2] + (1 - judged) * rest))
            for rest in (0.0, 1.0)
        ]
        low = min(np.quantile(end, 0.025) for end in ends)
        high = max(np.quantile(end, 0.975) for end in ends)
        value = float(of((values[0], values[1], values[2])))
        return Interval(value, float(min(low, value)), float(max(high, value)))

    def anomalies(p: Shares) -> FloatArray:
        return weights[0] * p[0] + weights[1] * p[1] + weights[2] * p[2]

    def missed(p: Shares) -> FloatArray:
        return weights[1] * p[1] / np.maximum(anomalies(p), 1e-300)

    def cost(p: Shares) -> FloatArray:
        wrong = costs.c_fp * weights[0] * (1 - p[0]) + costs.c_fn * weights[1] * p[1]
        return wrong + costs.c_r * weights[2]

    return Quality(
        accepted_anomaly=accepted_anomaly,
        accepted_normal=accepted_normal,
        rejected=rejected,
        precision=interval(lambda p: p[0], accepted_anomaly.judged > 0),
        false_omission=interval(lambda p: p[1], accepted_normal.judged > 0),
        anomalous_rejected=interval(lambda p: p[2], rejected.judged > 0),
        miss_rate=interval(missed, all(there)),
        contamination=interval(anomalies, all(there)),
        cost_per_event=interval(cost, there[0] and there[1]),
        costs=(costs.c_fp, costs.c_fn, costs.c_r),
        overlooked=_middle(drawn.overlooked),
        false_alarms=_middle(drawn.false_alarms),
        known=known,
    )


Shares = tuple[FloatArray, FloatArray, FloatArray]


class _Drawn(NamedTuple):
    """Draws of the groups' true shares, and of how reviewers err, if that can be told."""

    shares: Shares
    overlooked: FloatArray | None = None
    false_alarms: FloatArray | None = None


def _middle(draws: FloatArray | None) -> Interval:
    if draws is None:
        return Interval(None, None, None)
    low, value, high = np.quantile(draws, [0.025, 0.5, 0.975])
    return Interval(float(value), float(low), float(high))


def _value(group: Group, draws: FloatArray, err: bool) -> FloatArray:
    if err and group.judged:
        return np.asarray(np.median(draws))
    return np.asarray(group.anomalous / group.judged if group.judged else 0.0)


def _believed(rng: np.random.Generator, groups: Sequence[Group]) -> _Drawn:
    """Draw shares of which the judged part is known, and only the rest is not."""

    def draw(group: Group) -> FloatArray:
        if not group.judged:
            return rng.beta(0.5, 0.5, _DRAWS)
        share, m = group.anomalous / group.judged, group.effective
        known = group.judged / group.events
        guessed = rng.beta(share * m + 0.5, (1 - share) * m + 0.5, _DRAWS)
        rest = round((1 - known) / known * m)  # independent events that nobody has judged
        unseen = rng.binomial(rest, guessed) / rest if rest else guessed
        return known * share + (1 - known) * unseen

    # What waits among the rejected is no sample: its bounds are taken, not guessed.
    a, n, r = groups
    own = r.anomalous / r.judged if r.judged else 0.0
    return _Drawn((draw(a), draw(n), np.full(_DRAWS, own)))


_ANGLES, _ERRORS = 400, 48
"""Cells of the grid over a share, and over each of the two rates at which people err."""


def _erring(rng: np.random.Generator, groups: Sequence[Group], seen: Errors) -> _Drawn:
    """Draw shares and error rates together, from a grid even in the angle of Jeffreys' prior."""
    # People do better than a coin: error rates end at 1/2, or words could change their meaning.
    error = np.sin((np.arange(_ERRORS) + 0.5) / _ERRORS * np.pi / 4) ** 2
    share = np.sin((np.arange(_ANGLES) + 0.5) / _ANGLES * np.pi / 2) ** 2
    over, false = error[:, None, None], error[None, :, None]
    p, q = share, 1.0 - share
    said = p * (1 - over) + q * false
    logs = [np.log(said), np.log1p(-said)]
    if any(sum(group.twice) for group in groups):
        logs += [
            np.log(p * (1 - over) ** 2 + q * false**2),
            np.log(2 * (p * over * (1 - over) + q * false * (1 - false))),
            np.log(p * over**2 + q * (1 - false) ** 2),
        ]
    each = []
    for group in groups:
        both, _, neither = group.twice
        of_all = group.effective / group.judged if group.judged else 0.0
        once = max(0.0, group.anomalous * of_all - both)
        not_once = max(0.0, (group.judged - group.anomalous) * of_all - neither)
        counts = (once, not_once, *group.twice)
        terms = [n * log for n, log in zip(counts, logs, strict=False) if n]
        each.append(sum(terms, np.zeros_like(said)))
    tops = [fit.max() for fit in each]
    chances = [np.exp(fit - top) for fit, top in zip(each, tops, strict=True)]
    weight = np.prod([chance.sum(axis=2) for chance in chances], axis=0)
    direct = np.add.outer(
        _binomial(seen.overlooked, seen.anomalies, error),
        _binomial(seen.false_alarms, seen.normals, error),
    )
    weight = (weight * np.exp(direct - direct.max())).ravel()
    cells = rng.choice(weight.size, _DRAWS, p=weight / weight.sum())
    i, j = np.divmod(cells, _ERRORS)
    drawn = []
    for chance in chances:
        steps = np.cumsum(chance, axis=2).reshape(-1, _ANGLES)
        steps /= np.maximum(steps[:, -1:], 1e-300)  # where nothing is likely, nothing is drawn
        steps += np.arange(weight.size)[:, None]  # one ladder of all cells: one search for all
        at = np.searchsorted(steps.ravel(), cells + rng.random(_DRAWS)) - cells * _ANGLES
        drawn.append(np.sin((at + rng.random(_DRAWS)) / _ANGLES * np.pi / 2) ** 2)
    return _Drawn((drawn[0], drawn[1], drawn[2]), error[i], error[j])


def _binomial(k: int, n: int, share: FloatArray) -> FloatArray:
    """Return the logarithm of the likelihood of `k` of `n`, but for a constant."""
    log_likelihood: FloatArray = k * np.log(share) + (n - k) * np.log1p(-share)
    return log_likelihood


# ------------------------------------------------------------------------------------ the queue
class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The queue now and over the last seven days, in cases."""

    open_episodes: int
    open_events: int
    oldest_ms: int | None  # age of the oldest open one
    decided_per_day: float
    decided: int
    expired: int
    disputed: int


def workload(connection: Connection, now_ms: int) -> Workload:
    """Return how the queue is doing."""
    week = now_ms - 7 * DAY_MS
    waiting = connection.execute(
        "SELECT count(*), coalesce(sum(n_events), 0), min(received_ms), "
        "count(*) FILTER (WHERE status = 'disputed') FROM episode "
        "WHERE status IN ('open', 'needs_second', 'disputed')"
    ).fetchone()
    first = scalar(connection, "SELECT min(received_ms) FROM episode")
    decided, expired = connection.execute(
        "SELECT count(DISTINCT episode_id) FILTER (WHERE source = 'human'), "
        "count(*) FILTER (WHERE source = 'expired') FROM label "
        "WHERE kind = 'label' AND created_ms >= ?",
        (week,),
    ).fetchone()
    days = min(7.0, max((now_ms - first) / DAY_MS, 1.0)) if first is not None else 1.0
    return Workload(
        open_episodes=waiting[0],
        open_events=waiting[1],
        oldest_ms=None if waiting[2] is None else now_ms - waiting[2],
        decided_per_day=decided / days,
        decided=decided,
        expired=expired,
        disputed=waiting[3],
    )


# --------------------------------------------------------------------------------------- report
class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the labels of one pipeline say, from an event time on."""

    since_ms: int  # of its own events
    quality: Quality
    agreement: Interval  # of two reviewers who did not know of each other; "unsure" is left out
    judged_twice: int
    cases_per_day: float | None  # over its last seven days of event time; None: it has no time yet


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the labels say: of each pipeline by itself, as each has a γ of its own."""

    since_ms: int
    workload: Workload
    pipelines: dict[str, PipelineReport]


def report(
    connection: Connection,
    *,
    now_ms: int,
    since_ms: int = 0,
    costs: Mapping[str, Costs] | None = None,
) -> Report:
    """Return the report over all labels given since a time; mistakes cost (1, 1, 0) by default."""
    reports = {}
    for name in scalars(connection, "SELECT DISTINCT pipeline FROM sensor ORDER BY 1"):
        begin = event_time_of(connection, name, since_ms, now_ms)
        said = quality(connection, (costs or {}).get(name), begin, name)
        both, differ, neither = (
            sum(one)
            for one in zip(
                *(g.twice for g in (said.accepted_anomaly, said.accepted_normal, said.rejected)),
                strict=True,
            )
        )
        reports[name] = PipelineReport(
            since_ms=begin,
            quality=said,
            agreement=jeffreys(both + neither, both + neither + differ),
            judged_twice=both + neither + differ,
            cases_per_day=_cases_per_day(connection, name),
        )
    return Report(since_ms=since_ms, workload=workload(connection, now_ms), pipelines=reports)


def _cases_per_day(connection: Connection, pipeline: str) -> float | None:
    """Return how many cases a day of its own time brings: a month that is read today is a month."""
    clock = pipeline_clock(connection, pipeline)
    if clock is None:
        return None
    first, cases = connection.execute(
        "SELECT (SELECT min(first_ms) FROM sensor WHERE pipeline = :name), count(*) FROM episode e "
        "JOIN sensor s USING (sensor_id) WHERE s.pipeline = :name AND e.root_id = e.episode_id "
        "AND e.status <> 'empty' AND e.start_ms > :now - :week AND e.start_ms <= :now",
        {"name": pipeline, "now": clock.now_ms, "week": 7 * DAY_MS},
    ).fetchone()
    days = (clock.now_ms - (clock.now_ms if first is None else first)) / DAY_MS
    return float(cases / min(7.0, max(days, 1.0)))


def pipelines_of(connection: Connection) -> list[str]:
    """Return the names of the pipelines that have given a verdict."""
    query = "SELECT DISTINCT pipeline FROM sensor WHERE last_ms IS NOT NULL ORDER BY 1"
    return scalars(connection, query)


def event_time_of(connection: Connection, pipeline: str, since_ms: int, now_ms: int) -> int:
    """Return the event time that lies as far before a pipeline's as a time lies before now."""
    # Verdicts know event time alone; so totals and labels are both counted from there.
    clock = pipeline_clock(connection, pipeline)
    return 0 if clock is None or not since_ms else max(0, clock.now_ms - (now_ms - since_ms))
