"""Snapshots as sealed bytes: a kind, a version and a checksum around plain values.

No pickle: a payload is MessagePack of numbers, text, lists and raw float arrays, so reading one
runs no code. What was altered, cut short, or made by something else is refused with the way out,
and so is the snapshot of an engine whose state this one cannot go on with (:func:`compared`).
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from rejex_stream.engine.spec import Decision, EngineSpec, changes
from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.incidents import Plan, Plans
from rejex_stream.types import FloatArray, Incident

_MAGIC = b"REJEX"
_DIGEST_BYTES = 16
FORMAT = 2
# State, decision with what was said, environment.
HeadParts: TypeAlias = tuple[dict[str, str], dict[str, Any], dict[str, str]]


def seal(kind: str, format_version: int, payload: Any) -> bytes:  # noqa: ANN401
    """Return `payload` (plain values) as bytes that :func:`unseal` can vouch for."""
    body = msgspec.msgpack.encode([kind, format_version, payload])
    return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def unseal(kind: str, format_version: int, blob: bytes) -> Any:  # noqa: ANN401
    """Return the payload of :func:`seal`."""
    start = len(_MAGIC) + _DIGEST_BYTES
    if len(blob) < start or not blob.startswith(_MAGIC):
        raise CheckpointError(
            f"These {len(blob)} bytes are not a snapshot of rejex-stream: {WAY_OUT}."
        )
    body = blob[start:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != blob[len(_MAGIC) : start]:
        raise CheckpointError(
            f"The snapshot was altered or cut short (its checksum does not match): {WAY_OUT}."
        )
    try:
        found_kind, found_version, payload = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"The snapshot cannot be read ({error}): {WAY_OUT}.") from error
    if found_kind != kind:
        raise CheckpointError(f"The snapshot is one of {found_kind!r}, not {kind!r}: {WAY_OUT}.")
    if found_version != format_version:
        raise CheckpointError(
            f"The snapshot has format {found_version}, this version reads format "
            f"{format_version}: run the version that wrote it, or {WAY_OUT}."
        )
    return payload


def pack_array(array: FloatArray) -> list[Any]:
    """Return an array of any shape as plain values, bit for bit."""
    return [list(array.shape), np.ascontiguousarray(array, dtype="<f8").tobytes()]


def unpack_array(packed: list[Any]) -> FloatArray:
    """Return the array of :func:`pack_array`."""
    try:
        shape, raw = packed
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"a shape of {shape}")
        return np.frombuffer(raw, dtype="<f8").reshape(shape).astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"An array in the snapshot is broken ({error}): {WAY_OUT}."
        ) from error


@cache
def environment() -> dict[str, str]:
    """Return the versions that decide the last bit of a score; refits repeat under equal ones."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in ("numpy", "scipy", "scikit-learn", "pyod", "river"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    import scipy.linalg  # noqa: F401 - both libraries' BLAS are loaded now, whoever asks

    # Another processor may get another kernel, and with it another last bit of a fit.
    kernels = {
        f"{info.get('internal_api')} {info.get('architecture', 'any')}"
        for info in threadpool_info()
        if info.get("user_api") == "blas"
    }
    found["blas"] = ", ".join(sorted(kernels)) or "unknown"
    return found


class Origin(NamedTuple):
    """By what a snapshot was made: what its state depends on, how it decides, with what."""

    state: Mapping[str, str]
    decision: Mapping[str, Any]
    environment: Mapping[str, str]


class Restored(NamedTuple):
    """What a snapshot and the engine that took it over do not share."""

    was: Decision  # by what the snapshot's verdicts were given, and those to come are
    now: Decision
    # what it was made with and is no more, e.g. ``numpy 2.2.5 -> 2.4.0``; mostly empty
    environment: tuple[str, ...]


class StreamsInCommon(NamedTuple):
    """Partition-wide state: plans, published incidents, shared budgets."""

    plans: Plans  # of all streams
    incidents: dict[str, Incident]  # as they were told last, by id
    # of budgets that streams share, by owner: all of its streams may be forgotten
    credits: dict[str, list[Any]]
    siblings: dict[str, Any]  # the newest readings of each sensor, by its group


def origin_of(
    spec: EngineSpec, decision: Decision, said: StreamsInCommon
) -> list[Mapping[str, Any]]:
    """Return state, decision with what was said, and environment as plain values."""
    parts = {
        **decision.parts(),
        "plans": msgspec.to_builtins(said.plans.all),
        "incidents": msgspec.to_builtins(list(said.incidents.values())),
        "credits": said.credits,
        "siblings": said.siblings,
    }
    return [spec.state_parts, parts, environment()]


def compared(
    theirs: Sequence[Any], spec: EngineSpec, decision: Decision, *, accept_environment: bool
) -> tuple[Restored, StreamsInCommon]:
    """Compare what a snapshot says of its engine with this one; return what was said as well."""
    parts_were, parts, were = as_kind(theirs, HeadParts)
    changed = changes(parts_were, spec.state_parts)
    if changed:
        raise CheckpointError(
            f"The snapshot belongs to another state ({', '.join(changed)}), which this "
            "pipeline cannot go on with. Set back what was changed (see it with `rejex-stream "
            "state show`); or drop it (`rejex-stream state drop`), and what was judged is "
            "replayed silently by the new settings; or begin again: give the pipeline another "
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
        plans = msgspec.convert(parts.pop("plans"), list[Plan])
        told = msgspec.convert(parts.pop("incidents"), list[Incident])
        credits = msgspec.convert(parts.pop("credits"), dict[str, list[Any]])
        siblings = msgspec.convert(parts.pop("siblings"), dict[str, Any])
        if parts.keys() != decision.parts().keys():
            raise ValueError(f"it has {', '.join(map(repr, parts))}")
        before = Decision.of(parts)
        band = before.policy.band(spec.window)
        # Not policy.require: what it advises takes for ever to find at T = 1e300.
        if not (band.can_accept_anomaly and band.can_accept_normal):
            raise ValueError("a label could never be given")
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(
            f"The decision in the snapshot is none ({type(error).__name__}: {error}): {WAY_OUT}."
        ) from error
    said = StreamsInCommon(Plans(plans), {one.id: one for one in told}, credits, siblings)
    return Restored(before, decision, environment_changed), said


def origin(head: bytes) -> Origin:
    """Return what :meth:`Engine.head` was taken with."""
    return Origin(*as_kind(unseal("engine-head", FORMAT, head), HeadParts))


def as_kind(value: Any, kind: Any) -> Any:  # noqa: ANN401 - of the kind
    """Return what a snapshot holds as what it has to be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"The snapshot's head is broken ({error}): {WAY_OUT}.") from error
