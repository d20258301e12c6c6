"""What labels say about each pipeline: how many anomalies are confirmed, and how many were missed.

Three groups of events are labelled in different shares: rejected ones (nearly all of them, case by
case), and accepted anomalies and accepted normals (the audit sample alone). Each gets its own share
of true anomalies; the groups' sizes, counted from all verdicts, put them together. Intervals come
from draws with Jeffreys' prior per group, so that "none wrong in 30" is not mistaken for "never
wrong". Events of one case are one judgement: they count as such. Nobody knows why some rejected
events were judged before others, so those still to be judged are taken at their best and worst.

Answers are believed here. Labels never change a verdict by themselves, nor a setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sqlite3 import Connection
from typing import NamedTuple

import msgspec
import numpy as np

from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import resolve
from rejex_stream.review.queue.database import scalar, scalars
from rejex_stream.review.queue.label_store import human_labels
from rejex_stream.review.queue.series import FORGOTTEN_MS, HOUR_MS, pipeline_clock
from rejex_stream.types import FloatArray, Label

_DRAWS = 20_000
Shares = tuple[FloatArray, FloatArray, FloatArray]


class Interval(NamedTuple):
    """An estimate with a 95 % interval; ``None`` where there is nothing to estimate from."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled episode: which group, how many events, what people say it is."""

    group: Label
    n_events: int
    verdict: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One group of events and what was found in its labelled part."""

    events: int = 0  # all verdicts of this group, from the counts
    # labelled events, and those of them that are anomalies; unsure ones are left out
    judged: int = 0
    anomalous: int = 0
    # how many independent judgements that is: (sum of sizes) squared over sum of squares
    effective: float = 0.0


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates with 95 % intervals; ``None`` inside where nothing is known."""

    since_ms: int = 0  # from which event time on
    accepted_anomaly: Group  # the three groups
    accepted_normal: Group
    rejected: Group
    precision: Interval  # share of accepted anomalies that are some
    false_omission: Interval  # share of accepted normals that are anomalies
    anomalous_rejected: Interval
    miss_rate: Interval  # share of all anomalies that were accepted as normal
    contamination: Interval  # γ: share of anomalies among all events


def judged_episodes(
    connection: Connection, since_ms: int = 0, pipeline: str | None = None
) -> Iterator[Judged]:
    # Extreme anomalies are excluded: their selection depends on their value.
    rows = connection.execute(
        "SELECT e.episode_id, e.why, e.n_events, "
        "(SELECT item FROM event v WHERE v.episode_id = e.episode_id LIMIT 1) AS item "
        "FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE e.status IN ('done', 'needs_second', 'disputed') "
        "AND e.why NOT IN ('status', 'extreme') "
        "AND s.pipeline = coalesce(:pipeline, s.pipeline) AND e.start_ms >= :since "
        "ORDER BY e.episode_id",
        {"pipeline": pipeline, "since": since_ms},
    ).fetchall()
    for row in rows:
        labels = human_labels(connection, row["episode_id"])
        if not labels:
            continue
        group = Label.REJECTED
        if row["why"] == "audit":
            verdict = decode_review(row["item"]).verdict
            group = verdict.label
            if verdict.muted and group is not Label.NORMAL:
                continue  # drawn by another share than the group it would be counted in
        yield Judged(group, row["n_events"], resolve(labels).verdict or "")


def quality(connection: Connection, since_ms: int = 0, pipeline: str | None = None) -> Quality:
    """Return the estimates from all verdicts from an event time on, and labels of the same."""
    # Of hours that were forgotten only the sum is known: what begins among them begins after them.
    since_ms -= since_ms % HOUR_MS
    forgotten = "SELECT 1 FROM hour WHERE t_ms = ? LIMIT 1"
    if since_ms and scalar(connection, forgotten, (FORGOTTEN_MS,)):
        first_hour = "SELECT min(t_ms) FROM hour WHERE t_ms > ?"
        since_ms = max(since_ms, scalar(connection, first_hour, (FORGOTTEN_MS,)) or 0)
    asked = {"pipeline": pipeline, "since": since_ms}
    accepted = connection.execute(
        "SELECT coalesce(sum(anomaly), 0), coalesce(sum(normal), 0) "
        "FROM hour JOIN sensor USING (sensor_id) "
        "WHERE pipeline = coalesce(:pipeline, pipeline) AND t_ms >= :since",
        asked | {"since": since_ms or FORGOTTEN_MS},
    ).fetchone()
    # What was sent does not move with the work on it; what was not, nobody will ever judge.
    sent = scalar(
        connection,
        "SELECT count(*) FROM event v JOIN episode e USING (episode_id) "
        "JOIN sensor s ON s.sensor_id = e.sensor_id WHERE e.why = 'rejected' "
        "AND s.pipeline = coalesce(:pipeline, s.pipeline) AND e.start_ms >= :since",
        asked,
    )
    judged = list(judged_episodes(connection, since_ms, pipeline))
    estimated = estimate(
        _group(Label.ANOMALY, accepted[0], judged),
        _group(Label.NORMAL, accepted[1], judged),
        _group(Label.REJECTED, sent, judged),
    )
    return msgspec.structs.replace(estimated, since_ms=since_ms)


def _group(label: Label, events: int, judged: list[Judged]) -> Group:
    own = [one for one in judged if one.group is label and one.verdict in ("anomaly", "normal")]
    sizes = [one.n_events for one in own]
    return Group(
        events=max(events, sum(sizes)),
        judged=sum(sizes),
        anomalous=sum(one.n_events for one in own if one.verdict == "anomaly"),
        effective=sum(sizes) ** 2 / sum(size**2 for size in sizes) if sizes else 0.0,
    )


def estimate(accepted_anomaly: Group, accepted_normal: Group, rejected: Group) -> Quality:
    """Return the estimates for three groups; equal groups give equal intervals."""
    rng = np.random.default_rng(0)
    groups = (accepted_anomaly, accepted_normal, rejected)
    total = sum(group.events for group in groups)
    weights = [group.events / total if total else 0.0 for group in groups]
    is_known = all(group.judged or not group.events for group in groups)
    # What waits among the rejected is no sample: its bounds are taken, not guessed.
    audited = _draws(rng, accepted_anomaly), _draws(rng, accepted_normal)
    values = [np.asarray(group.anomalous / max(1, group.judged)) for group in groups]
    done = rejected.judged / rejected.events if rejected.events else 1.0

    def interval(share_of: Callable[[Shares], FloatArray], enough: bool) -> Interval:
        if not enough or not total:
            return Interval(None, None, None)
        ends = [
            share_of((*audited, np.full(_DRAWS, done * values[2] + (1 - done) * rest)))
            for rest in (0.0, 1.0)
        ]
        low = min(np.quantile(end, 0.025) for end in ends)
        high = max(np.quantile(end, 0.975) for end in ends)
        value = float(share_of((values[0], values[1], values[2])))
        return Interval(value, float(min(low, value)), float(max(high, value)))

    def anomalies(p: Shares) -> FloatArray:
        return weights[0] * p[0] + weights[1] * p[1] + weights[2] * p[2]

    def missed(p: Shares) -> FloatArray:
        return weights[1] * p[1] / np.maximum(anomalies(p), 1e-300)

    return Quality(
        accepted_anomaly=accepted_anomaly,
        accepted_normal=accepted_normal,
        rejected=rejected,
        precision=interval(lambda p: p[0], accepted_anomaly.judged > 0),
        false_omission=interval(lambda p: p[1], accepted_normal.judged > 0),
        anomalous_rejected=interval(lambda p: p[2], rejected.judged > 0),
        miss_rate=interval(missed, is_known),
        contamination=interval(anomalies, is_known),
    )


def _draws(rng: np.random.Generator, group: Group) -> FloatArray:
    """Draw a group's share of anomalies: the judged part is known, only the rest is not."""
    if not group.judged:
        return rng.beta(0.5, 0.5, _DRAWS)
    share, m = group.anomalous / group.judged, group.effective
    known = group.judged / group.events
    guessed = rng.beta(share * m + 0.5, (1 - share) * m + 0.5, _DRAWS)
    rest = round((1 - known) / known * m)  # independent events that nobody has judged
    unseen = rng.binomial(rest, guessed) / rest if rest else guessed
    return known * share + (1 - known) * unseen


def report(connection: Connection, *, now_ms: int, since_ms: int = 0) -> dict[str, Quality]:
    return {
        name: quality(connection, event_time_of(connection, name, since_ms, now_ms), name)
        for name in scalars(connection, "SELECT DISTINCT pipeline FROM sensor ORDER BY 1")
    }


def pipelines_of(connection: Connection) -> list[str]:
    query = "SELECT DISTINCT pipeline FROM sensor WHERE last_ms IS NOT NULL ORDER BY 1"
    return scalars(connection, query)


def event_time_of(connection: Connection, pipeline: str, since_ms: int, now_ms: int) -> int:
    """Return the event time that lies as far before a pipeline's as a time lies before now."""
    # Verdicts know event time alone; so totals and labels are both counted from there.
    clock = pipeline_clock(connection, pipeline)
    return 0 if clock is None or not since_ms else max(0, clock.now_ms - (now_ms - since_ms))
