"""The duel of one stream in a pipeline: verdicts go through it, and people's words reach it.

The engine gives it every verdict with its row, in order, and the commands of people between two
events; what it is made of is plain values, so it travels with the stream's snapshot. It begins with
the stream's first full window of judged events: their spread is the unit of every column, and they
are what the challenger ranks the next one among.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.learning.champion_challenger import Asked, ChampionChallenger
from rejex_stream.learning.label_kernel import LabelKernel
from rejex_stream.learning.sequential_test import SequentialTest, most_with_errors
from rejex_stream.rejection.audit import KeyedSampler, commitment
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

__all__ = ["Learner", "LearningSpec", "apply_command"]

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
    coin: KeyedSampler = field(default_factory=KeyedSampler)

    def parts(self) -> dict[str, Any]:
        """Return every part by name, as plain values; of the coin's key only what it commits to."""
        return {**asdict(self), "coin": commitment(self.coin.key)}

    @classmethod
    def of(cls, parts: Mapping[str, Any], coin: KeyedSampler) -> LearningSpec:
        """Return what :meth:`parts` were of, given the coin."""
        if parts.get("coin") != commitment(coin.key):
            raise CheckpointError(
                "Answers were learnt from with another audit key than that of output.audit_key_file"
                ", and which of them measured cannot be repeated without it: set the key back, or "
                "drop the snapshots (`rejex-stream state drop`)."
            )
        return cls(**{**parts, "coin": coin})

    def require(self, policy: RejectionPolicy, window: int) -> None:
        """Refuse a policy that no challenger can judge by."""
        if policy.burst is not None:
            raise ConfigError(
                "a challenger has no credit to hold a review budget with: give a tolerance, or a "
                'budget with burst = "none".'
            )
        self.duel(np.ones(1), policy, window)

    def duel(self, scale: FloatArray, policy: RejectionPolicy, window: int) -> ChampionChallenger:
        """Return a duel that nothing has happened in."""
        most = most_with_errors(max(self.c_fp, self.c_fn, self.c_r), self.wrong)
        rate, coin = self.rate, self.coin
        return ChampionChallenger(
            policy,
            LabelKernel(scale, policy.contamination, window),
            SequentialTest(rate, most, self.alpha),
            lambda position: coin.is_drawn(position, rate),
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
        self._duel: ChampionChallenger | None = None
        self._scale = np.empty(0)

    @property
    def missing(self) -> int:
        """How many events have to be judged before there is a challenger."""
        return 0 if self._duel is not None else self._window - len(self._first)

    @property
    def challenger_speaks(self) -> bool:
        """Whether the next verdict is the challenger's."""
        return self._duel is not None and self._duel.trial.challenger_speaks

    def judge(self, verdict: Verdict, row: Sequence[float] | FloatArray) -> Verdict:
        """Return the verdict of whoever speaks on the stream's next event.

        What is held or planned, and what has no severity, is the champion's alone.
        """
        rare = verdict.severity
        if rare is None or verdict.held or verdict.planned:
            return verdict
        kept = np.asarray(row, dtype=np.float64).tolist()  # a row may be a view of a whole batch
        if self._duel is None:
            self._first.append((kept, rare))
            if len(self._first) == self._window:
                self._begin()
            return replace(verdict, learning=Learned("champion"))
        judged = self._duel.judge(verdict, kept)
        challenged = self._duel.trial.challenger_speaks
        learned = Learned(
            "challenger" if challenged else "champion",
            judged.champion if challenged else judged.challenger,
            None if judged.asked is None else judged.asked.value,
        )
        if judged.label is verdict.label:
            return replace(verdict, learning=learned)
        reason = Reason.AMBIGUOUS if judged.label is Label.REJECTED else None
        return replace(verdict, label=judged.label, reason=reason, learning=learned)

    def _begin(self) -> None:
        rows = np.array([row for row, _ in self._first])
        spread = rows.std(axis=0)
        self._scale = np.where(spread > _LEAST_SPREAD, spread, 1.0)
        self._duel = self._spec.duel(self._scale, self._policy, self._window)
        for row, rare in self._first:
            self._duel.mass.push(row, rare)
        self._first = []

    def answer(self, answers: Sequence[tuple[Position, str]]) -> dict[Asked | None, int]:
        """Take answers before the next event; return how many were of which use, or of none."""
        uses: dict[Asked | None, int] = {Asked.TEACH: 0, Asked.MEASURE: 0, None: 0}
        for position, said in answers:
            use = None
            if self._duel is not None:
                use = self._duel.answer(position, anomalous=_SAID[said])
            uses[use] += 1
        return uses

    def command(self, *, challenger_speaks: bool) -> None:
        """Let a person decide who speaks; there has to be a challenger."""
        assert self._duel is not None
        self._duel.command(challenger_speaks=challenger_speaks)

    # ------------------------------------------------------------------------------ snapshot
    def view(self) -> Callable[[], dict[str, Any]]:
        """Take the state as it is now: what is returned makes plain values of it, later."""
        first, scale = list(self._first), self._scale
        duel = None if self._duel is None else self._duel.state()

        def plain() -> dict[str, Any]:
            told = {"by": self.by, "first": first, "scale": _packed(scale), "duel": None}
            if duel is not None:
                mass = duel["mass"]
                packed = {name: [_packed(one) for one in mass[name]] for name in _ARRAYS}
                told["duel"] = {**duel, "mass": {**mass, **packed}}
            return told

        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`view`; from a state by another decision nothing is taken over."""
        if state["by"] != self.by:
            return
        self._first = [([float(x) for x in row], float(rare)) for row, rare in state["first"]]
        if state["duel"] is None:
            return
        self._scale = _unpacked(state["scale"])
        columns = len(self._scale)
        mass = dict(state["duel"]["mass"])
        for name in _ARRAYS:
            rows, *rest = [_unpacked(one) for one in mass[name]]
            mass[name] = [rows.reshape(-1, columns), *rest]
        self._duel = self._spec.duel(self._scale, self._policy, self._window)
        self._duel.restore({**state["duel"], "mass": mass})


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
