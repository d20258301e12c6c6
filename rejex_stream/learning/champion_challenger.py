"""Champion and challenger on one stream: whose answers teach, whose measure, and who speaks.

The champion is the detector's own verdict, the challenger the same band over scores that answers
correct (:class:`~rejex_stream.learning.label_kernel.LabelKernel`). Events that are rejected by
whoever speaks
are asked about, and their answers teach. Of the events on which the two differ a known share is
drawn by coins of the audit's key; these are asked about too, and their answers measure
(:class:`~rejex_stream.learning.sequential_test.SequentialTest`) and never teach.

Everything is decided by the order of the calls alone: the same events, and the same answers at the
same places between them, give the same labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rejex_stream.errors import ConfigError
from rejex_stream.learning.label_kernel import LabelKernel
from rejex_stream.learning.sequential_test import SequentialTest, most_with_errors, surely_gained
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import FloatArray, Label, Position, Verdict

__all__ = ["Asked", "ChampionChallenger", "Judged"]

_ANOMALY, _REJECTED = Label.ANOMALY, Label.REJECTED


class Asked(StrEnum):
    """What the answer to an event is for."""

    TEACH = "teach"
    """It was rejected: the answer teaches."""
    MEASURE = "measure"
    """It was drawn from the events on which the two differ: the answer measures."""


@dataclass(slots=True)
class Judged:
    """What is said of an event: by whoever speaks, by both, and whether somebody is asked.

    Attributes
    ----------
    label
        Of whoever speaks.
    champion, challenger
        Of both; equal where only one could judge.
    asked
        What for, if at all.
    """

    label: Label
    champion: Label
    challenger: Label
    asked: Asked | None = None


@dataclass(slots=True)
class _Measured:
    at: int
    if_normal: float
    if_anomalous: float
    gain: float | None = None


class ChampionChallenger:
    """Two verdicts an event, one of which is said.

    Parameters
    ----------
    policy
        Its band for a full window of `mass` turns the challenger's ranks into labels.
    mass, trial
        The challenger's scores, and who decides between the two.
    coin
        Whether an event's position is drawn, if the two differ; with the trial's rate, and by a
        key that nobody knows who could aim at it.
    c_fp, c_fn, c_r
        Cost of a false alarm, a missed anomaly and a rejected event; none above the trial's `most`.
    wrong
        Share of answers that are wrong, at most, in [0, 0.5): the challenger's gain is booked so
        that it is none where such answers explain it. What goes against it is booked as answered.
    patience
        After so many judged events an answer that measures is taken as the worst for whom the
        evidence is gathered, and one that would teach comes too late.

    Notes
    -----
    What measures is settled in the order of the events, never in that of the answers: whoever
    chooses what to answer first cannot choose the evidence.
    """

    def __init__(
        self,
        policy: RejectionPolicy,
        mass: LabelKernel,
        trial: SequentialTest,
        coin: Callable[[Position], bool],
        *,
        c_fp: float = 1.0,
        c_fn: float = 1.0,
        c_r: float = 0.05,
        wrong: float = 0.0,
        patience: int = 2_000,
    ) -> None:
        if not 0.0 <= wrong < 0.5:
            raise ConfigError(f"wrong is {wrong}: expected a share of answers from 0 to below 1/2")
        largest = most_with_errors(max(c_fp, c_fn, c_r), wrong)
        if not 0.0 <= largest <= trial.most or min(c_fp, c_fn, c_r) < 0.0:
            raise ConfigError(
                f"costs are {c_fp}, {c_fn} and {c_r}: expected them between 0 and the trial's "
                f"largest difference, {trial.most}"
            )
        policy.require(mass.window)
        self._band = policy.band(mass.window)
        self.mass, self.trial, self._coin = mass, trial, coin
        self._costs, self._wrong, self._patience = (c_fp, c_fn, c_r), wrong, patience
        self._teaching: dict[Position, tuple[int, Sequence[float] | FloatArray]] = {}
        self._measuring: dict[Position, _Measured] = {}

    def judge(self, verdict: Verdict, row: Sequence[float] | FloatArray) -> Judged:
        """Judge the next event of the stream; what is held, planned or has no rank is passed over.

        Parameters
        ----------
        verdict
            The champion's.
        row
            What it scored, shape (d,).
        """
        champion = verdict.label
        if verdict.severity is None or verdict.held or verdict.planned:
            return Judged(champion, champion, champion)
        speaks, at = self.mass.is_full, self.mass.next_at
        self._settle(at)
        _, rank = self.mass.push(row, verdict.severity)
        challenger = self._band.label(rank) if speaks else champion
        label = challenger if self.trial.challenger_speaks else champion
        judged = Judged(label, champion, challenger)
        if challenger is not champion and self._coin(verdict.position):
            of_normal, of_anomaly = (
                self._cost(champion, y) - self._cost(challenger, y) for y in (False, True)
            )
            if not self.trial.challenger_speaks:
                of_normal, of_anomaly = surely_gained(of_normal, of_anomaly, self._wrong)
            self._measuring[verdict.position] = _Measured(at, of_normal, of_anomaly)
            judged.asked = Asked.MEASURE
        elif label is _REJECTED:
            self._teaching[verdict.position] = at, row
            judged.asked = Asked.TEACH
        return judged

    def answer(self, position: Position, *, anomalous: bool | None) -> Asked | None:
        """Take an answer before the next event; ``None``: the reviewer is not sure.

        Returns what it was asked for; ``None`` where it was not, or comes too late. The first
        answer holds.
        """
        if (asked := self._teaching.pop(position, None)) is not None:
            if anomalous is not None:
                self.mass.teach(asked[1], anomalous=anomalous, at=asked[0])
            return Asked.TEACH
        measured = self._measuring.get(position)
        if measured is None or measured.gain is not None:
            return None
        if anomalous is None:
            measured.gain = self._worst(measured)
        else:
            measured.gain = measured.if_anomalous if anomalous else measured.if_normal
        self._settle(self.mass.next_at)
        return Asked.MEASURE

    def command(self, *, challenger_speaks: bool) -> None:
        """Let a person decide who speaks; the evidence begins anew with the events to come."""
        self.trial.command(challenger_speaks=challenger_speaks)
        self._measuring.clear()

    def state(self) -> dict[str, Any]:
        """Return what has changed since it was made: plain values and arrays."""
        measuring = [
            [*position, one.at, one.if_normal, one.if_anomalous, one.gain]
            for position, one in self._measuring.items()
        ]
        teaching = [[*position, at, list(row)] for position, (at, row) in self._teaching.items()]
        return {
            "mass": self.mass.state(),
            "trial": self.trial.state(),
            "teaching": teaching,
            "measuring": measuring,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, in one that was made with equal arguments."""
        self.mass.restore(state["mass"])
        self.trial.restore(state["trial"])
        self._teaching = {Position(*p): (at, row) for *p, at, row in state["teaching"]}
        self._measuring = {
            Position(*one[:4]): _Measured(*one[4:])  # in the order of the events
            for one in state["measuring"]
        }

    def _settle(self, now: int) -> None:
        """Give the trial what is answered up to the first that is not; drop what is too old."""
        while self._teaching:
            position, (at, _) = next(iter(self._teaching.items()))
            if now - at <= self._patience:
                break
            del self._teaching[position]
        while self._measuring:
            position, measured = next(iter(self._measuring.items()))
            gain = measured.gain
            if gain is None:
                if now - measured.at <= self._patience:
                    break
                gain = self._worst(measured)
            del self._measuring[position]
            if self.trial.see(gain, self.trial.rate):
                self._measuring.clear()  # the evidence begins anew, with what comes from now on

    def _worst(self, measured: _Measured) -> float:
        gains = measured.if_normal, measured.if_anomalous
        return max(gains) if self.trial.challenger_speaks else min(gains)

    def _cost(self, label: Label, anomalous: bool) -> float:
        false_alarm, missed, rejected = self._costs
        if label is _REJECTED:
            return rejected
        if label is _ANOMALY:
            return 0.0 if anomalous else false_alarm
        return missed if anomalous else 0.0
