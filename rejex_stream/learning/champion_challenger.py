"""Champion and challenger on one stream: whose answers teach, whose measure, and who speaks.

The champion is the detector's own verdict, the challenger the same band over scores that answers
correct (:class:`~rejex_stream.learning.label_kernel.LabelKernel`). Events that are rejected by
whoever speaks are asked about, and their answers teach. Of the events on which the two differ a
known share is drawn by the audit's key; these are asked about too, and their answers measure
(:class:`~rejex_stream.learning.sequential_test.SequentialTest`) and never teach.

Everything is decided by the order of the calls alone: the same events, and the same answers at the
same places between them, give the same labels. A stream of a pipeline has a :class:`Learner`: it
begins with the stream's first full window of judged events. Their spread is the unit of every
column, and they are what the challenger ranks the next one among.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from msgspec.structs import replace

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.learning.label_kernel import LabelKernel
from rejex_stream.learning.sequential_test import (
    SequentialTest,
    error_adjusted_gains,
    max_gain_with_errors,
)
from rejex_stream.rejection.audit_sampling import KeyedSampler, commitment
from rejex_stream.rejection.band import RejectionBand, nested_band
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import (
    Command,
    CommandKind,
    CommandReply,
    FloatArray,
    Label,
    Learned,
    Position,
    Reason,
    Verdict,
)

__all__ = ["Asked", "ChampionChallenger", "Judged", "Learner", "LearningSpec", "apply_command"]

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
    withheld
        Whether whoever speaks would reject by the policy's own band, and there is no credit.
    asked
        What for, if at all.
    """

    label: Label
    champion: Label
    challenger: Label
    withheld: bool
    asked: Asked | None = None


@dataclass(slots=True)
class _Measured:
    at: int
    if_normal: float
    if_anomalous: float
    gain: float | None = None


class ChampionChallenger:
    """Computes both verdicts of an event, publishes one.

    Parameters
    ----------
    policy
        Its band for a full window of `kernel` turns the challenger's ranks into labels; where it
        has a budget that holds, the band that the credit allows for the event.
    kernel, trial
        The challenger's scores, and who decides between the two.
    is_drawn
        Whether an event's position is drawn, if the two differ; with the trial's rate, and by a
        key that nobody knows who could aim at it.
    c_fp, c_fn, c_r
        Cost of a false alarm, a missed anomaly and a rejected event; none above the trial's
        `max_gain`.
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
        kernel: LabelKernel,
        trial: SequentialTest,
        is_drawn: Callable[[Position], bool],
        *,
        c_fp: float = 1.0,
        c_fn: float = 1.0,
        c_r: float = 0.05,
        wrong: float = 0.0,
        patience: int = 2_000,
    ) -> None:
        if not 0.0 <= wrong < 0.5:
            raise ConfigError(f"wrong is {wrong}: expected a share of answers from 0 to below 1/2")
        largest = max_gain_with_errors(max(c_fp, c_fn, c_r), wrong)
        if not 0.0 <= largest <= trial.max_gain or min(c_fp, c_fn, c_r) < 0.0:
            raise ConfigError(
                f"costs are {c_fp}, {c_fn} and {c_r}: expected them between 0 and the trial's "
                f"largest difference, {trial.max_gain}"
            )
        policy.require(kernel.window)
        self._band = policy.band(kernel.window)
        self.kernel, self.trial, self._is_drawn = kernel, trial, is_drawn
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
            return Judged(champion, champion, champion, verdict.withheld)
        band, at = self._band_for(verdict), self.kernel.next_at
        self._settle(at)
        _, rank = self.kernel.push(row, verdict.severity)
        challenger = champion if band is None else band.label(rank)
        label, withheld = champion, verdict.withheld
        if self.trial.challenger_speaks and band is not None:
            label = challenger
            withheld = label is not _REJECTED and self._band.label(rank) is _REJECTED
        judged = Judged(label, champion, challenger, withheld)
        if challenger is not champion and self._is_drawn(verdict.position):
            of_normal, of_anomaly = (
                self._cost(champion, y) - self._cost(challenger, y) for y in (False, True)
            )
            if not self.trial.challenger_speaks:
                of_normal, of_anomaly = error_adjusted_gains(of_normal, of_anomaly, self._wrong)
            self._measuring[verdict.position] = _Measured(at, of_normal, of_anomaly)
            judged.asked = Asked.MEASURE
        elif label is _REJECTED:
            self._teaching[verdict.position] = at, row
            judged.asked = Asked.TEACH
        return judged

    def _band_for(self, verdict: Verdict) -> RejectionBand | None:
        """Return the band that labels the challenger; ``None`` while it has none."""
        # Where a budget is held it is the one that the credit allowed the champion: fixed by the
        # past, so that what is booked for either is fair, and one credit pays for both.
        n, lower, upper = self.kernel.window, verdict.band_lower, verdict.band_upper
        if not self.kernel.is_full:
            return None
        if verdict.policy_lower is None:
            return self._band
        if verdict.window_len != n or lower is None or upper is None:
            return None
        return nested_band(n, self._band.contamination, upper - lower + 1)

    def answer(self, position: Position, *, anomalous: bool | None) -> Asked | None:
        """Take an answer before the next event; ``None``: the reviewer is not sure.

        Returns what it was asked for; ``None`` where it was not, or comes too late. The first
        answer holds.
        """
        if (asked := self._teaching.pop(position, None)) is not None:
            if anomalous is not None:
                self.kernel.teach(asked[1], anomalous=anomalous, at=asked[0])
            return Asked.TEACH
        measured = self._measuring.get(position)
        if measured is None or measured.gain is not None:
            return None
        if anomalous is None:
            measured.gain = self._worst(measured)
        else:
            measured.gain = measured.if_anomalous if anomalous else measured.if_normal
        self._settle(self.kernel.next_at)
        return Asked.MEASURE

    def command(self, *, challenger_speaks: bool) -> None:
        """Let a person decide who speaks; the evidence begins again with the events to come."""
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
            "kernel": self.kernel.state(),
            "trial": self.trial.state(),
            "teaching": teaching,
            "measuring": measuring,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, in one that was made with equal arguments."""
        self.kernel.restore(state["kernel"])
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
            if self.trial.update(gain, self.trial.rate):
                self._measuring.clear()  # the evidence begins again, with what comes from now on

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


# ----------------------------------------------------------- of a stream in a pipeline
_SAID: dict[str, bool | None] = {"anomaly": True, "normal": False, "unsure": None}
_LEAST_SPREAD = 1e-70


@dataclass(frozen=True)
class LearningSpec:
    """How answers teach, and what a challenger has to prove."""

    rate: float = 0.2
    alpha: float = 0.05
    patience: int = 2_000
    c_fp: float = 1.0
    c_fn: float = 1.0
    c_r: float = 0.05
    wrong: float = 0.0
    sampler: KeyedSampler = field(default_factory=KeyedSampler)

    def parts(self) -> dict[str, Any]:
        """Return every part by name, plain; of the sampler's key only what it commits to."""
        return {**asdict(self), "sampler": commitment(self.sampler.key)}

    @classmethod
    def of(cls, parts: Mapping[str, Any], sampler: KeyedSampler) -> LearningSpec:
        """Return what :meth:`parts` were of, given the sampler."""
        if parts.get("sampler") != commitment(sampler.key):
            raise CheckpointError(
                "Answers were learnt from with another audit key than that of output.audit_key_file"
                ", and which of them measured cannot be repeated without it: set the key back, or "
                "drop the snapshots (`rejex-stream state drop`)."
            )
        return cls(**{**parts, "sampler": sampler})

    def require(self, policy: RejectionPolicy, window: int) -> None:
        """Refuse a policy that no challenger can judge by."""
        self.contest(np.ones(1), policy, window)

    def contest(
        self, scale: FloatArray, policy: RejectionPolicy, window: int
    ) -> ChampionChallenger:
        """Return champion and challenger before their first event."""
        largest = max(self.c_fp, self.c_fn, self.c_r)
        max_gain = max_gain_with_errors(largest, self.wrong)
        rate, sampler = self.rate, self.sampler
        return ChampionChallenger(
            policy,
            LabelKernel(scale, policy.contamination, window),
            SequentialTest(rate, max_gain, self.alpha, largest),
            lambda position: sampler.is_drawn(position, rate),
            c_fp=self.c_fp,
            c_fn=self.c_fn,
            c_r=self.c_r,
            wrong=self.wrong,
            patience=self.patience,
        )


class Learner:
    """Champion and challenger of one stream.

    Attributes
    ----------
    by
        What decides, as plain values: a state of another one is of no use.

    Notes
    -----
    Memory (n + 500) d for rows of d columns; an event costs O(n + 500 d).
    """

    def __init__(self, spec: LearningSpec, policy: RejectionPolicy, window: int) -> None:
        self._spec, self._policy, self._window = spec, policy, window
        self.by: dict[str, Any] = {"window": window, **asdict(policy), "learning": spec.parts()}
        self._first: list[tuple[list[float], float]] = []
        self._contest: ChampionChallenger | None = None
        self._scale = np.empty(0)

    @property
    def missing(self) -> int:
        """How many events have to be judged before there is a challenger."""
        return 0 if self._contest is not None else self._window - len(self._first)

    @property
    def challenger_speaks(self) -> bool:
        """Whether the next verdict is the challenger's."""
        return self._contest is not None and self._contest.trial.challenger_speaks

    def judge(self, verdict: Verdict, row: Sequence[float] | FloatArray) -> Verdict:
        """Return the active model's verdict on the stream's next event.

        What is held or planned, and what has no severity, is the champion's alone, as is a row that
        lacks columns: no answer is near it.
        """
        rare = verdict.severity
        if rare is None or verdict.held or verdict.planned:
            return verdict
        kept = np.asarray(row, dtype=np.float64).tolist()  # a row may be a view of a whole batch
        if any(map(math.isnan, kept)):
            return verdict
        if self._contest is None:
            self._first.append((kept, rare))
            if len(self._first) == self._window:
                self._begin()
            return replace(verdict, learning=Learned("champion"))
        judged = self._contest.judge(verdict, kept)
        challenged = self._contest.trial.challenger_speaks
        learned = Learned(
            "challenger" if challenged else "champion",
            judged.champion if challenged else judged.challenger,
            None if judged.asked is None else judged.asked.value,
        )
        if judged.label is verdict.label and judged.withheld is verdict.withheld:
            return replace(verdict, learning=learned)
        reason = Reason.AMBIGUOUS if judged.label is Label.REJECTED else None
        return replace(
            verdict, label=judged.label, reason=reason, withheld=judged.withheld, learning=learned
        )

    def _begin(self) -> None:
        rows = np.array([row for row, _ in self._first])
        spread = rows.std(axis=0)
        self._scale = np.where(spread > _LEAST_SPREAD, spread, 1.0)
        self._contest = self._spec.contest(self._scale, self._policy, self._window)
        for row, rare in self._first:
            self._contest.kernel.push(row, rare)
        self._first = []

    def answer(self, answers: Sequence[tuple[Position, str]]) -> dict[Asked | None, int]:
        """Take answers before the next event; return how many were of which use, or of none."""
        uses: dict[Asked | None, int] = {Asked.TEACH: 0, Asked.MEASURE: 0, None: 0}
        for position, said in answers:
            use = None
            if self._contest is not None:
                use = self._contest.answer(position, anomalous=_SAID[said])
            uses[use] += 1
        return uses

    def command(self, *, challenger_speaks: bool) -> None:
        """Let a person decide who speaks; there has to be a challenger."""
        assert self._contest is not None
        self._contest.command(challenger_speaks=challenger_speaks)

    # ------------------------------------------------------------------------------ snapshot
    def view(self) -> Callable[[], dict[str, Any]]:
        """Take the state as it is now: what is returned makes plain values of it, later."""
        first, scale = list(self._first), self._scale
        contest = None if self._contest is None else self._contest.state()

        def made() -> dict[str, Any]:
            plain = {"by": self.by, "first": first, "scale": _packed(scale), "contest": None}
            if contest is not None:
                kernel = contest["kernel"]
                packed = {name: [_packed(one) for one in kernel[name]] for name in _ARRAYS}
                plain["contest"] = {**contest, "kernel": {**kernel, **packed}}
            return plain

        return made

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`view`; from a state by another decision nothing is taken over."""
        if state["by"] != self.by:
            return
        self._first = [([float(x) for x in row], float(rare)) for row, rare in state["first"]]
        if state["contest"] is None:
            return
        self._scale = _unpacked(state["scale"])
        columns = len(self._scale)
        kernel = dict(state["contest"]["kernel"])
        for name in _ARRAYS:
            rows, *rest = [_unpacked(one) for one in kernel[name]]
            kernel[name] = [rows.reshape(-1, columns), *rest]
        self._contest = self._spec.contest(self._scale, self._policy, self._window)
        self._contest.restore({**state["contest"], "kernel": kernel})


_ARRAYS = ("events", "answers")


def _packed(array: FloatArray) -> bytes:
    return np.ascontiguousarray(array, dtype="<f8").tobytes()


def _unpacked(raw: bytes) -> FloatArray:
    return np.frombuffer(raw, dtype="<f8").astype(np.float64)


def apply_command(learner: Learner | None, command: Command) -> CommandReply:
    """Obey a person's word about answers, or who judges; a refusal changes nothing."""
    if learner is None:
        return _reply(command, "Nothing is learnt from answers: set learning.enabled.", holds=False)
    if command.kind is CommandKind.ANSWERS:
        return _answered(learner, command)
    if learner.missing:
        said = f"There is no challenger before {learner.missing:,} more events are judged."
        return _reply(command, said, holds=False)
    wanted = command.judge == "challenger"
    if learner.challenger_speaks is not wanted:
        learner.command(challenger_speaks=wanted)
    return _reply(command, f"The {command.judge} judges from here on.", holds=True)


def _answered(learner: Learner, command: Command) -> CommandReply:
    spoke = learner.challenger_speaks
    uses = learner.answer(command.answers)
    if not uses[Asked.TEACH] + uses[Asked.MEASURE]:
        said = "None of these events was asked about, or the answers come too late."
        return _reply(command, said, holds=False)
    said = f"{uses[Asked.TEACH]} teach, {uses[Asked.MEASURE]} measure, {uses[None]} are of no use."
    if learner.challenger_speaks is not spoke:
        said += f" The {'champion' if spoke else 'challenger'} judges from here on."
    return _reply(command, said, holds=True)


def _reply(command: Command, said: str, *, holds: bool) -> CommandReply:
    return CommandReply(command=command.id, accepted=holds, said=said)
