"""Why a verdict is what it is: which channel speaks, and what would have flipped it.

The row is scored again without each channel in turn, and all columns made of it. A detector that
scores parts of rows (``Sensor`` and its kin) compares what is left: a channel speaks as far as it
is not what the others make one expect, so of dependent channels the one that left them is named.
For any other a channel becomes its median over the rows the model knows; dependent channels share
the blame. It says what the *model* reacts to, not what broke.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Literal, cast

import msgspec
import numpy as np

from rejex_stream.engine.incremental_model import IncrementalModel
from rejex_stream.engine.model import BatchModel, Rows
from rejex_stream.features import FeatureSpec
from rejex_stream.readable import Expected
from rejex_stream.rejection import label_of
from rejex_stream.types import (
    ChannelEvidence,
    ColumnGroups,
    Evidence,
    FloatArray,
    Label,
    Reason,
    Verdict,
)

_FIRST = itemgetter(0)


class Explainer:
    """Adds evidence to verdicts that are not normal.

    One score per channel and explained event, in one call per segment; normal events cost nothing.
    """

    __slots__ = ("_are_levels", "_channels", "_columns", "_contamination", "_firsts")

    def __init__(self, features: FeatureSpec, contamination: float) -> None:
        of_columns = features.channels_of_columns
        self._channels = tuple(name for name in features.channels if name in of_columns)
        self._columns = tuple(
            np.array([i for i, name in enumerate(of_columns) if name == channel])
            for channel in self._channels
        )
        self._firsts = [columns[0] for columns in self._columns]
        # The sine of an angle is nothing that people could expect of a channel.
        levels = [
            feature.kind == "raw" and not feature.is_on_circle
            for feature in features.columns
            for _ in feature.names
        ]
        self._are_levels = np.array([levels[first] for first in self._firsts])
        self._contamination = contamination

    @staticmethod
    def wants(verdict: Verdict) -> bool:
        """Whether this verdict is explained: anomalies, and events whose label could flip.

        A value never shown is an anomaly without a band as well, and no score explains that one.
        """
        if verdict.threshold is None:
            return False
        return verdict.label is Label.ANOMALY or verdict.reason is Reason.AMBIGUOUS

    def explain(
        self, verdicts: Sequence[Verdict], rows: Sequence[Sequence[float] | FloatArray],
        model: BatchModel | IncrementalModel, model_age_events: Sequence[int],
    ) -> list[Verdict]:  # fmt: skip
        """Return the verdicts with their evidence."""
        own = np.array(rows, dtype=np.float64)
        others = self._scored_without(own, self._columns, model)
        missing = np.isnan(own[:, self._firsts])
        if missing.any():  # what is missing says nothing
            others[missing] = math.nan
        given = model.given_others(own, self._columns)
        if given is None:
            given = np.full((*others.shape, 4), math.nan)
        given[:, ~self._are_levels] = math.nan
        said = np.concatenate((others[:, :, None], own[:, self._firsts, None], given), axis=2)
        return [
            self._with_evidence(verdict, of_channels, age)
            for verdict, of_channels, age in zip(
                verdicts, said.tolist(), model_age_events, strict=True
            )
        ]

    def without(
        self, rows: Rows, model: BatchModel | IncrementalModel, named: Collection[str],
        more: Sequence[str] = (),
    ) -> FloatArray | None:  # fmt: skip
        """Score rows without the channels that are `named`, and without each of `more` as well.

        Returns an array of a column for each of `more`, or one; ``None``: nothing would be left.
        """
        own = np.array(rows, dtype=np.float64).reshape(len(rows), -1)
        of = dict(zip(self._channels, self._columns, strict=True))
        left_out = [{*named, one} for one in more] or [{*named}]
        if not all(of.keys() - names for names in left_out):
            return None
        groups = [
            np.array([i for name in self._channels if name in names for i in of[name]], dtype=int)
            for names in left_out
        ]
        return self._scored_without(own, groups, model)

    def others(self, named: Collection[str]) -> list[str]:
        """Return the channels that are not named."""
        return [name for name in self._channels if name not in named]

    def _scored_without(
        self, own: FloatArray, groups: ColumnGroups, model: BatchModel | IncrementalModel
    ) -> FloatArray:
        found = model.score_without(own, groups)
        if found is None:
            altered, usual = np.repeat(own, len(groups), axis=0), model.medians()
            for i, columns in enumerate(groups):
                altered[i :: len(groups), columns] = usual[columns]
            found = model.score(altered).reshape(len(own), len(groups))
        return found

    def _with_evidence(self, verdict: Verdict, said: list[list[float]], age: int) -> Verdict:
        own, label, flagged = verdict.score, verdict.label, verdict.threshold
        assert own is not None  # wanted verdicts were judged
        assert flagged is not None
        lower, above = verdict.score_lower, verdict.score_upper
        edges = -math.inf if lower is None else lower, flagged, math.inf if above is None else above
        found: list[tuple[float, ChannelEvidence]] = []
        in_doubt: dict[str, Expected] = {}
        for channel, (other, *given) in zip(self._channels, said, strict=True):
            read, value, low, high, by_hour = given
            is_told = read < low or read > high  # none is nan
            expected: Expected | msgspec.UnsetType = msgspec.UNSET
            if is_told and by_hour:
                by: Literal["hour", "siblings"] = "hour" if by_hour == 1 else "siblings"
                expected = Expected(read, value, low, high, by)
            if other - other != 0.0:  # not finite
                unknown = ChannelEvidence(channel, None, None, None, expected)
                found.append((math.inf, unknown))
                continue
            named = label_of(other, edges)
            if is_told and not by_hour:
                in_doubt[channel] = Expected(read, value, low, high)
                if named is not Label.ANOMALY:
                    expected = in_doubt[channel]
            found.append(
                (other - own, ChannelEvidence(channel, own - other, other, named, expected))
            )
        found.sort(key=_FIRST)
        channels = tuple([one for _, one in found])
        if in_doubt and not any(one.expected for one in channels):
            # Others are at fault as well; of the first it says more than that it is usual.
            first = msgspec.structs.replace(
                channels[0], expected=in_doubt.get(channels[0].channel, msgspec.UNSET)
            )
            channels = first, *channels[1:]
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
