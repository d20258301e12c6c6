"""What labels say about the pipeline: right where it was sure, missed where it was not looked at.

Three groups of events are labelled in different shares: rejected ones (nearly all of them, episode
by episode), and accepted anomalies and accepted normals (the audit sample alone). Each gets its own
share of true anomalies; the groups' sizes, counted from all verdicts, put them together.
Intervals come from Beta(k + 1/2, m - k + 1/2) draws per group, so that "none wrong in 30" is not
mistaken for "never wrong". Events of one episode are one judgement: they count as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from rejex_stream.encode import decode_review
from rejex_stream.planner import Costs
from rejex_stream.review.agreement import Interval
from rejex_stream.review.labels import LabelRecord, active_labels, decode_label, resolve
from rejex_stream.review.storage import Connection
from rejex_stream.types import FloatArray, Label

__all__ = ["Group", "Judged", "Quality", "estimate", "judged_episodes", "quality"]

_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled episode: which group, how many events, what people say it is."""

    group: Label
    n_events: int
    verdict: str
    labels: tuple[LabelRecord, ...]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One group of events and what was found in its labelled part.

    Attributes
    ----------
    events
        All verdicts of this group, from the counts.
    judged, anomalous
        Labelled events, and those of them that are anomalies; unsure ones are left out.
    effective
        How many independent judgements that is: (sum of sizes) squared over sum of squares.
    """

    events: int = 0
    judged: int = 0
    anomalous: int = 0
    effective: float = 0.0


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates with 95 % intervals; ``None`` inside where nothing is known.

    Attributes
    ----------
    accepted_anomaly, accepted_normal, rejected
        The three groups.
    precision
        Share of accepted anomalies that are some.
    false_omission
        Share of accepted normals that are anomalies.
    miss_rate
        Share of all anomalies that were accepted as normal.
    contamination
        γ: share of anomalies among all events.
    cost_per_event
        With the given costs.
    """

    accepted_anomaly: Group
    accepted_normal: Group
    rejected: Group
    precision: Interval
    false_omission: Interval
    anomalous_rejected: Interval
    miss_rate: Interval
    contamination: Interval
    cost_per_event: Interval
    costs: tuple[float, float, float]


def judged_episodes(
    connection: Connection, since_ms: int = 0, pipeline: str | None = None
) -> Iterator[Judged]:
    """Yield every episode that people have decided since a time, of one pipeline or of all."""
    rows = connection.execute(
        "SELECT e.episode_id, e.why, e.n_events, "
        "(SELECT item FROM event v WHERE v.episode_id = e.episode_id LIMIT 1) AS item, "
        "(SELECT event_id FROM event v WHERE v.episode_id = e.episode_id LIMIT 1) AS event_id "
        "FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE e.status IN ('done', 'needs_second', 'disputed') "
        "AND s.pipeline = coalesce(:pipeline, s.pipeline) ORDER BY e.episode_id",
        {"pipeline": pipeline},
    ).fetchall()
    for row in rows:
        records = [
            decode_label(found[0])
            for found in connection.execute(
                "SELECT l.record FROM label_event JOIN label l USING (label_seq) "
                "WHERE event_id = ? ORDER BY label_seq",
                (row["event_id"],),
            )
        ]
        labels = tuple(
            label
            for label in active_labels(records)
            if label.source == "human" and label.created_ms >= since_ms
        )
        found = resolve(labels)
        if not labels:
            continue
        group = Label.REJECTED
        if row["why"] == "audit":
            group = decode_review(row["item"]).verdict.label
        yield Judged(group, row["n_events"], found.verdict or "", labels)


def quality(
    connection: Connection,
    costs: Costs | None = None,
    since_ms: int = 0,
    pipeline: str | None = None,
) -> Quality:
    """Return the estimates from labels since a time and all verdicts counted, of one or of all."""
    totals = connection.execute(
        "SELECT coalesce(sum(anomaly), 0), coalesce(sum(normal), 0), coalesce(sum(ambiguous), 0) "
        "FROM minute JOIN sensor USING (sensor_id) "
        "WHERE pipeline = coalesce(:pipeline, pipeline)",
        {"pipeline": pipeline},
    ).fetchone()
    found = {label: _Tally() for label in Label}
    for judged in judged_episodes(connection, since_ms, pipeline):
        if judged.verdict in ("anomaly", "normal"):
            found[judged.group].add(judged.n_events, judged.verdict == "anomaly")
    groups = [
        found[label].group(events)
        for label, events in zip((Label.ANOMALY, Label.NORMAL, Label.REJECTED), totals, strict=True)
    ]
    return estimate(groups[0], groups[1], groups[2], costs or Costs())


class _Tally:
    def __init__(self) -> None:
        self.judged = self.anomalous = self.squares = 0

    def add(self, n_events: int, anomalous: bool) -> None:
        self.judged += n_events
        self.anomalous += n_events * anomalous
        self.squares += n_events**2

    def group(self, events: int) -> Group:
        return Group(
            events=max(events, self.judged),
            judged=self.judged,
            anomalous=self.anomalous,
            effective=self.judged**2 / self.squares if self.squares else 0.0,
        )


def estimate(
    accepted_anomaly: Group, accepted_normal: Group, rejected: Group, costs: Costs
) -> Quality:
    """Return the estimates for three groups; equal groups give equal intervals.

    Examples
    --------
    >>> found = estimate(
    ...     Group(events=200, judged=20, anomalous=18, effective=20),
    ...     Group(events=9000, judged=90, anomalous=0, effective=90),
    ...     Group(events=800, judged=800, anomalous=300, effective=60), Costs(1, 1, 0.05))
    >>> round(found.precision.value, 2), round(found.contamination.value, 3)
    (0.9, 0.048)
    >>> found.contamination.low < 0.048 < found.contamination.high
    True
    """
    rng = np.random.default_rng(0)
    groups = (accepted_anomaly, accepted_normal, rejected)
    total = sum(group.events for group in groups)
    shares = [group.anomalous / group.judged if group.judged else None for group in groups]
    draws = [_draw(rng, group) for group in groups]
    weights = [group.events / total if total else 0.0 for group in groups]
    known = all(
        share is not None or not group.events for share, group in zip(shares, groups, strict=True)
    )
    point = [np.asarray(share or 0.0) for share in shares]

    def interval(value: float | None, drawn: FloatArray, enough: bool) -> Interval:
        if not enough or not total:
            return Interval(None, None, None)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def anomalies(p: Sequence[FloatArray]) -> FloatArray:
        return weights[0] * p[0] + weights[1] * p[1] + weights[2] * p[2]

    def cost(p: Sequence[FloatArray]) -> FloatArray:
        wrong = costs.c_fp * weights[0] * (1 - p[0]) + costs.c_fn * weights[1] * p[1]
        return wrong + costs.c_r * weights[2]

    all_point, all_drawn = float(anomalies(point)), anomalies(draws)
    missed = float(weights[1] * point[1]) / all_point if all_point else 0.0
    return Quality(
        accepted_anomaly=accepted_anomaly,
        accepted_normal=accepted_normal,
        rejected=rejected,
        precision=interval(shares[0], draws[0], shares[0] is not None),
        false_omission=interval(shares[1], draws[1], shares[1] is not None),
        anomalous_rejected=interval(shares[2], draws[2], shares[2] is not None),
        miss_rate=interval(missed, weights[1] * draws[1] / np.maximum(all_drawn, 1e-300), known),
        contamination=interval(all_point, all_drawn, known),
        cost_per_event=interval(
            float(cost(point)),
            cost(draws),
            shares[0] is not None and shares[1] is not None,
        ),
        costs=(costs.c_fp, costs.c_fn, costs.c_r),
    )


def _draw(rng: np.random.Generator, group: Group) -> FloatArray:
    share = group.anomalous / group.judged if group.judged else 0.0
    m = group.effective if group.judged else 0.0
    return rng.beta(share * m + 0.5, (1 - share) * m + 0.5, _DRAWS)
