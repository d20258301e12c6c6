"""How often reviewers were wrong about cases whose truth was known before they were asked.

With the truth known an error is seen, not inferred: their count among n answers is binomial.

References
----------
.. [1] L. D. Brown, T. T. Cai, A. DasGupta: Interval Estimation for a Binomial Proportion.
   Statistical Science 16, 2001, section 3 (Jeffreys' prior, its ends mended).
"""

from __future__ import annotations

from collections.abc import Mapping
from sqlite3 import Connection
from typing import NamedTuple

import msgspec
from scipy.stats import beta

from rejex_stream.encode.label_records import active_labels
from rejex_stream.review.queue.labels import records_of

__all__ = ["Errors", "Interval", "Known", "known_cases"]


class Interval(NamedTuple):
    """An estimate with a 95 % interval; ``None`` where there is nothing to estimate from."""

    value: float | None
    low: float | None
    high: float | None


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """What reviewers said of cases whose truth was known beforehand; "unsure" is in neither.

    Attributes
    ----------
    anomalies, overlooked
        Answers to anomalies, and those of them that say normal.
    normals, false_alarms
        Answers to normals, and those of them that say anomaly.

    Examples
    --------
    >>> some = Errors(anomalies=20, overlooked=1) + Errors(normals=30)
    >>> some.rates["overlooked"].value, round(some.rates["overlooked"].high, 2)
    (0.05, 0.21)
    """

    anomalies: int = 0
    overlooked: int = 0
    normals: int = 0
    false_alarms: int = 0

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    @property
    def rates(self) -> Mapping[str, Interval]:
        """`overlooked` and `false_alarms` as shares, with Jeffreys' intervals [1]_."""
        return {
            "overlooked": _jeffreys(self.overlooked, self.anomalies),
            "false_alarms": _jeffreys(self.false_alarms, self.normals),
        }


def _jeffreys(k: int, n: int) -> Interval:
    if not n:
        return Interval(None, None, None)
    low, high = (float(beta.ppf(end, k + 0.5, n - k + 0.5)) for end in (0.025, 0.975))
    return Interval(k / n, low if k else 0.0, high if k < n else 1.0)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Cases whose truth was known before anybody was asked.

    Attributes
    ----------
    cases, waiting
        How many there are; those of them that nobody has answered.
    reviewers
        What each reviewer said of them, by name.
    """

    cases: int = 0
    waiting: int = 0
    reviewers: Mapping[str, Errors] = {}

    @property
    def all(self) -> Errors:
        """What all reviewers said, together."""
        return sum(self.reviewers.values(), Errors())


def known_cases(connection: Connection, since_ms: int = 0, pipeline: str | None = None) -> Known:
    """Return how people answered known cases from an event time on, of one pipeline or of all.

    An answer to a part of a case counts for nothing, as the truth is that of the whole; neither
    does one that settles a dispute, whose parties were heard before.
    """
    rows = connection.execute(
        "SELECT e.episode_id, k.truth, count(*) = e.n_events AND count(*) = (SELECT count(*) "
        "FROM known o WHERE o.case_id = k.case_id) AS whole FROM known k "
        "JOIN event v USING (event_id) JOIN episode e USING (episode_id) "
        "JOIN sensor s ON s.sensor_id = e.sensor_id WHERE e.start_ms >= :since "
        "AND s.pipeline = coalesce(:pipeline, s.pipeline) GROUP BY e.episode_id",
        {"pipeline": pipeline, "since": since_ms},
    ).fetchall()
    waiting, found = 0, dict[str, Errors]()
    for row in rows:
        labels = [
            label
            for label in active_labels(records_of(connection, row["episode_id"]))
            if label.source == "human"
        ]
        waiting += not labels
        for label in labels:
            if row["whole"] and label.role != "adjudication" and label.verdict != "unsure":
                wrong = int(label.verdict != row["truth"])
                one = (
                    Errors(anomalies=1, overlooked=wrong)
                    if row["truth"] == "anomaly"
                    else Errors(normals=1, false_alarms=wrong)
                )
                found[label.reviewer] = found.get(label.reviewer, Errors()) + one
    return Known(cases=len(rows), waiting=waiting, reviewers=dict(sorted(found.items())))
