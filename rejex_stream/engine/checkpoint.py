"""Snapshots as sealed bytes: a kind, a version and a checksum around plain values.

What is large is joined, not sealed again: :func:`join_parts` puts sealed parts behind a sealed
head that holds the checksum of each, so every byte is under one seal, and a part of another
snapshot, or one that is missing, is found out. A part can be such a join itself.

No pickle: a payload is MessagePack of numbers, text, lists and raw float arrays, so reading one
runs no code. What was altered, cut short, or made by something else is refused with the way out.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.types import FloatArray

__all__ = [
    "environment",
    "join_parts",
    "pack_array",
    "seal",
    "split_parts",
    "unpack_array",
    "unseal",
]

_Length: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_MAGIC = b"REJEX"
_JOINED = b"RJXPARTS"
_HEAD_AT = len(_JOINED) + 8
_DIGEST_BYTES = 16


def seal(kind: str, format_version: int, payload: Any) -> bytes:  # noqa: ANN401
    """Return `payload` (plain values) as bytes that :func:`unseal` can vouch for.

    Examples
    --------
    >>> unseal("demo", 1, seal("demo", 1, {"rows": 3}))
    {'rows': 3}
    """
    body = msgspec.msgpack.encode([kind, format_version, payload])
    return _MAGIC + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def unseal(kind: str, format_version: int, blob: bytes) -> Any:  # noqa: ANN401
    """Return the payload of :func:`seal`.

    Raises
    ------
    CheckpointError
        If the bytes are not a snapshot, were altered or cut, or are of another kind or version.
    """
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


def join_parts(
    kind: str,
    format_version: int,
    payload: Any,  # noqa: ANN401
    parts: Sequence[bytes],
) -> bytes:
    """Return a sealed head with `payload`, and `parts` behind it, for :func:`split_parts`.

    O(bytes) to copy; a part that is sealed, or joined of sealed ones, is not hashed again.

    Examples
    --------
    >>> both = join_parts("demo", 1, {"keys": 2}, [seal("row", 1, 3), seal("row", 1, 4)])
    >>> payload, parts = split_parts("demo", 1, both)
    >>> payload, [unseal("row", 1, part) for part in parts]
    ({'keys': 2}, [3, 4])
    """
    table = [[len(part), _digest_of(part)] for part in parts]
    head = seal(kind, format_version, [payload, table])
    return b"".join([_JOINED, len(head).to_bytes(8, "big"), head, *parts])


def split_parts(kind: str, format_version: int, blob: bytes) -> tuple[Any, list[bytes]]:
    """Return payload and parts of :func:`join_parts`; who reads a sealed part unseals it.

    Raises
    ------
    CheckpointError
        If the head is broken, of another kind or version, or the parts are not those it was
        written with.
    """
    if not blob.startswith(_JOINED):
        if blob.startswith(_MAGIC):
            raise CheckpointError(
                "The snapshot is one of an older version of rejex-stream, sealed as a whole: run "
                f"the version that wrote it, or {WAY_OUT}."
            )
        raise CheckpointError(
            f"These {len(blob)} bytes are not a snapshot of rejex-stream: {WAY_OUT}."
        )
    at = _HEAD_AT + int.from_bytes(blob[len(_JOINED) : _HEAD_AT], "big")
    head = unseal(kind, format_version, blob[_HEAD_AT:at])
    try:
        payload, table = msgspec.convert(head, tuple[Any, list[tuple[_Length, bytes]]])
    except msgspec.ValidationError as error:
        raise CheckpointError(f"The snapshot's head is broken ({error}): {WAY_OUT}.") from error
    parts = []
    for length, digest in table:
        part = blob[at : at + length]
        at += length
        if len(part) != length or _digest_of(part) != digest:
            raise CheckpointError(
                "The snapshot was altered or cut short (its parts do not belong together): "
                f"{WAY_OUT}."
            )
        parts.append(part)
    if at != len(blob):
        raise CheckpointError(
            f"The snapshot was altered ({len(blob) - at} bytes too many): {WAY_OUT}."
        )
    return payload, parts


def _digest_of(part: bytes) -> bytes:
    """Return the checksum that stands in a sealed part, or in the head of a joined one."""
    for magic, seal_at in ((_JOINED, _HEAD_AT), (_MAGIC, 0)):
        if part.startswith(magic):
            start = seal_at + len(_MAGIC)
            return part[start : start + _DIGEST_BYTES]
    return hashlib.blake2b(part, digest_size=_DIGEST_BYTES).digest()


def pack_array(array: FloatArray) -> list[Any]:
    """Return an array of any shape as plain values, bit for bit."""
    return [list(array.shape), np.ascontiguousarray(array, dtype="<f8").tobytes()]


def unpack_array(packed: list[Any]) -> FloatArray:
    """Return the array of :func:`pack_array`.

    Raises
    ------
    CheckpointError
        If shape and bytes do not fit each other.
    """
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
