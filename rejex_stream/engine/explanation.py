"""Why a verdict is what it is: which channel speaks, and what would have flipped it.

Generic for any detector: each channel in turn is replaced by its median over the rows the model
knows, in all columns made of it, and the row is scored again. It says what the *model* reacts to,
not what broke; with strongly dependent channels, several may share the blame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import cast

import msgspec
import numpy as np

from rejex_stream.engine.model import Rows
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection import label_of
from rejex_stream.types import ChannelEvidence, Evidence, FloatArray, Label, Reason, Verdict

__all__ = ["Explainer"]

_FIRST = itemgetter(0)


class Explainer:
    """Adds evidence to verdicts that are not normal.

    One score per channel and explained event, in one call per segment; normal events cost nothing.
    """

    __slots__ = ("_channels", "_columns", "_contamination")

    def __init__(self, features: FeatureSpec, contamination: float) -> None:
        of_columns = features.channels_of_columns
        self._channels = tuple(name for name in features.channels if name in of_columns)
        self._columns = tuple(
            tuple(i for i, name in enumerate(of_columns) if name == channel)
            for channel in self._channels
        )
        self._contamination = contamination

    @staticmethod
    def wants(verdict: Verdict) -> bool:
        """Whether this verdict is explained: anomalies, and events whose label could flip."""
        return verdict.label is Label.ANOMALY or verdict.reason is Reason.AMBIGUOUS

    def explain(
        self,
        verdicts: Sequence[Verdict],
        rows: Sequence[Sequence[float] | FloatArray],
        score: Callable[[Rows], FloatArray],
        medians: FloatArray,
        model_age_events: Sequence[int],
        *,
        weight: float,
    ) -> list[Verdict]:
        """Return the verdicts with their evidence."""
        count = len(self._channels)
        # One row stays plain floats, on which a model may score it without numpy's price of a call.
        own: Rows = [[*map(float, rows[0])]] if len(rows) == 1 else np.array(rows, np.float64)
        altered = self._altered(own, medians)
        others = score(altered).reshape(len(rows), count)
        if weight < 1.0:
            judged = np.array([verdict.score for verdict in verdicts], dtype=np.float64)
            others = judged[:, None] + weight * (others - score(own)[:, None])
        lacks = math.isnan(sum(own[0])) if isinstance(own, list) else np.isnan(own).any()
        if lacks:  # what is missing says nothing
            others[np.isnan(np.array(own)[:, [columns[0] for columns in self._columns]])] = math.nan
        without = others.tolist()
        return [
            self._with_evidence(verdict, scores, age)
            for verdict, scores, age in zip(verdicts, without, model_age_events, strict=True)
        ]

    def _altered(self, rows: Rows, medians: FloatArray) -> Rows:
        """Return the rows once per channel, the channel replaced."""
        if isinstance(rows, list):
            usual, (own,) = medians.tolist(), rows
            whole = [own.copy() for _ in self._columns]
            for row, columns in zip(whole, self._columns, strict=True):
                for column in columns:
                    row[column] = usual[column]
            return whole
        count = len(self._channels)
        altered = np.repeat(rows, count, axis=0)
        for i, columns in enumerate(self._columns):
            altered[i::count, columns] = medians[[*columns]]
        return altered

    def _with_evidence(self, verdict: Verdict, without: list[float], age: int) -> Verdict:
        own, label, flagged = verdict.score, verdict.label, verdict.threshold
        assert own is not None  # wanted verdicts were judged
        assert flagged is not None
        lower, above = verdict.score_lower, verdict.score_upper
        edges = -math.inf if lower is None else lower, flagged, math.inf if above is None else above
        found: list[tuple[float, ChannelEvidence]] = []
        for channel, other in zip(self._channels, without, strict=True):
            if other - other != 0.0:  # not finite
                found.append((math.inf, ChannelEvidence(channel, None, None, None)))
                continue
            named = label_of(other, edges)
            found.append((other - own, ChannelEvidence(channel, own - other, other, named)))
        found.sort(key=_FIRST)
        channels = tuple([one for _, one in found])
        flips = next((c.channel for c in channels if c.label_without not in (None, label)), None)
        ranks, score = _distance(verdict)
        evidence = Evidence(channels, flips, ranks, score, self._contamination, age)
        return msgspec.structs.replace(verdict, evidence=evidence)


def _distance(verdict: Verdict) -> tuple[int, float | None]:
    """Ranks and score units to the nearest edge of the band; how far the label is from changing."""
    found = verdict.rank, verdict.band_lower, verdict.band_upper, verdict.score
    rank, lower, upper, score = cast("tuple[int, int, int, float]", found)  # of what was judged
    edges = [edge for edge in (verdict.score_lower, verdict.score_upper) if edge is not None]
    in_score = min((abs(score - edge) for edge in edges), default=None)
    if verdict.label is Label.REJECTED:
        ways = [rank - lower + 1] if verdict.score_lower is not None else []
        ways += [upper + 1 - rank] if verdict.score_upper is not None else []
        return min(ways), in_score
    return rank - upper, in_score
