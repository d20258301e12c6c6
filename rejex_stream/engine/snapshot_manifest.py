"""What a snapshot says of the engine it comes from, and whether another one can go on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rejex_stream.engine.checkpoint import environment, seal, unseal
from rejex_stream.engine.spec import Decision, EngineSpec, changes
from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.incidents import Plan, Plans
from rejex_stream.types import Incident, in_mode

__all__ = [
    "FORMAT", "Head", "Origin", "Restored", "StreamsInCommon", "as_kind", "compared", "joined",
    "of_stream", "origin", "origin_of",
]  # fmt: skip

FORMAT = 2
_LATER_PARTS = {"burst", "per_day", "owner", "hold", "calendar", "plans", "incidents", "credits",
                "learning"}  # fmt: skip
# State, decision with what was said, environment; and of a whole engine the streams' versions.
HeadParts: TypeAlias = tuple[dict[str, str], dict[str, Any], dict[str, str]]
Head: TypeAlias = tuple[dict[str, str], dict[str, Any], dict[str, str], dict[str, int]]


class Origin(NamedTuple):
    """By what a snapshot was made: what its state depends on, how it decides, with what."""

    state: Mapping[str, str]
    decision: Mapping[str, Any]
    environment: Mapping[str, str]


class Restored(NamedTuple):
    """What a snapshot and the engine that took it over do not share.

    Attributes
    ----------
    was, now
        By what the snapshot's verdicts were given, and those to come are.
    environment
        What it was made with and is no more, e.g. ``numpy 2.2.5 -> 2.4.0``; mostly empty.
    """

    was: Decision
    now: Decision
    environment: tuple[str, ...]


class StreamsInCommon(NamedTuple):
    """What belongs to no single stream: what people said of all, and were told; shared credits.

    Attributes
    ----------
    plans
        Of all streams.
    incidents
        As they were told last, by stream.
    credits
        Of budgets that streams share, by owner: all of its streams may be forgotten.
    """

    plans: Plans
    incidents: dict[str, Incident]
    credits: dict[str, list[Any]]


def origin_of(
    spec: EngineSpec, decision: Decision, said: StreamsInCommon
) -> list[Mapping[str, Any]]:
    """Return state, decision and environment as plain values, with what was said if anything."""
    parts = decision.parts()
    if said.plans:
        parts["plans"] = said.plans.state()
    if said.incidents:
        parts["incidents"] = msgspec.to_builtins(list(said.incidents.values()))
    if said.credits:
        parts["credits"] = said.credits
    return [spec.state_parts, parts, environment()]


def compared(
    theirs: Sequence[Any], spec: EngineSpec, decision: Decision, *, accept_environment: bool
) -> tuple[Restored, StreamsInCommon]:
    """Compare what a snapshot says of its engine with this one; return what was said as well.

    Raises
    ------
    CheckpointError
        If it is of a pipeline with another state, of other versions, or broken.
    """
    parts_were, parts, were = as_kind(theirs, HeadParts)
    changed = changes(parts_were, spec.state_parts)
    if changed:
        raise CheckpointError(
            f"The snapshot belongs to another state ({', '.join(changed)}), which this "
            "pipeline cannot go on with. Set back what was changed (see it with `rejex-stream "
            "state show`); or drop it (`rejex-stream state drop`), and what was judged is "
            "replayed silently by the new settings; or begin anew: give the pipeline another "
            "name and outputs of its own, and it judges all its input again."
        )
    environment_changed = tuple(changes(were, environment()))
    if environment_changed and not accept_environment:
        raise CheckpointError(
            f"The snapshot was made with other versions ({', '.join(environment_changed)}): "
            "refitted models may differ in the last bit. Accept that "
            '(state.environment = "accept"; in code accept_environment=True), or install those '
            "versions."
        )
    try:
        if not parts.keys() ^ decision.parts().keys() <= _LATER_PARTS:
            raise ValueError(f"it has {', '.join(map(repr, parts))}")
        plans = msgspec.convert(parts.pop("plans", ()), list[Plan])
        told = msgspec.convert(parts.pop("incidents", ()), list[Incident])
        credits = msgspec.convert(parts.pop("credits", {}), dict[str, list[Any]])
        before = Decision.of(parts, spec.coin)
        band = before.policy.band(spec.window)
        # Not policy.require: what it advises takes for ever to find at T = 1e300.
        if not (band.can_accept_anomaly and band.can_accept_normal):
            raise ValueError("a label could never be given")
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(
            f"The decision in the snapshot is none ({type(error).__name__}: {error}): {WAY_OUT}."
        ) from error
    said = StreamsInCommon(
        Plans(plans), {in_mode(one.stream_key, one.mode): one for one in told}, credits
    )
    return Restored(before, decision, environment_changed), said


def origin(head: bytes) -> Origin:
    """Return what :meth:`Engine.head` was taken with.

    Raises
    ------
    CheckpointError
        If it is no head of an engine.
    """
    return Origin(*as_kind(unseal("engine-head", FORMAT, head), HeadParts))


def of_stream(head: bytes, stream_key: str) -> bytes:
    """Return the head for an engine of one of the streams: what was said of all, its incident.

    Raises
    ------
    CheckpointError
        If it is no head of an engine.
    """
    state, decision, made_with = origin(head)
    own = [one for one in _incidents(decision) if _key_of(one) == stream_key]
    return _sealed(state, decision, own, made_with)


def joined(heads: Sequence[bytes]) -> bytes:
    """Return the head for an engine of all streams; the last decides, and says what was said.

    Raises
    ------
    CheckpointError
        If one is no head of an engine, or they are of pipelines with another state.
    """
    found = [origin(head) for head in heads]
    newest = found[-1]
    for one in found:
        changed = changes(dict(one.state), dict(newest.state))
        if changed:
            raise CheckpointError(
                f"Streams were made by other settings ({', '.join(changed)}), and make no "
                f"partition: {WAY_OUT}."
            )
    every = [incident for one in found for incident in _incidents(one.decision)]
    return _sealed(newest.state, newest.decision, every, newest.environment)


def _incidents(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = as_kind(decision.get("incidents", []), list[dict[str, Any]])
    return found


def _key_of(incident: Mapping[str, Any]) -> str:
    one = as_kind(incident, Incident)
    return in_mode(one.stream_key, one.mode)


def _sealed(
    state: Mapping[str, str],
    decision: Mapping[str, Any],
    incidents: list[dict[str, Any]],
    made_with: Mapping[str, str],
) -> bytes:
    parts = {name: part for name, part in decision.items() if name != "incidents"}
    if incidents:
        parts["incidents"] = incidents
    return seal("engine-head", FORMAT, [state, parts, made_with])


def as_kind(value: Any, kind: Any) -> Any:  # noqa: ANN401 - of the kind
    """Return what a snapshot holds as what it has to be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"The snapshot's head is broken ({error}): {WAY_OUT}.") from error
