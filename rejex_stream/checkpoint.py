"""Snapshots as sealed bytes: a kind, a version and a checksum around plain values.

No pickle: a payload is MessagePack of numbers, text, lists and raw float arrays, so reading one
runs no code. What was altered, cut short, or made by something else is refused with the way out.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from rejex_stream.errors import CheckpointError
from rejex_stream.types import FloatArray

__all__ = ["environment", "pack_array", "seal", "unpack_array", "unseal"]

_MAGIC = b"REJEX"
_DIGEST_BYTES = 16
_WAY_OUT = "use another snapshot, or remove it to start from the input alone"


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
            f"These {len(blob)} bytes are not a snapshot of rejex-stream: {_WAY_OUT}."
        )
    body = blob[start:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != blob[len(_MAGIC) : start]:
        raise CheckpointError(
            f"The snapshot was altered or cut short (its checksum does not match): {_WAY_OUT}."
        )
    try:
        found_kind, found_version, payload = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise CheckpointError(f"The snapshot cannot be read ({error}): {_WAY_OUT}.") from error
    if found_kind != kind:
        raise CheckpointError(f"The snapshot is one of {found_kind!r}, not {kind!r}: {_WAY_OUT}.")
    if found_version != format_version:
        raise CheckpointError(
            f"The snapshot has format {found_version}, this version reads format "
            f"{format_version}: run the version that wrote it, or {_WAY_OUT}."
        )
    return payload


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
        return np.frombuffer(raw, dtype="<f8").reshape(shape).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"An array in the snapshot is broken ({error}): {_WAY_OUT}."
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
