"""Monitor state as bytes: a version, then MessagePack with a fixed schema; nothing is executed."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rejex_stream.errors import CheckpointError

__all__ = ["decode", "encode"]

_MAGIC = b"rejex-monitor"
_VERSION = 1

S = TypeVar("S", bound=msgspec.Struct)


def encode(state: msgspec.Struct) -> bytes:
    """Return the bytes of a state; the same state gives the same bytes.

    Examples
    --------
    >>> from rejex_stream.monitor.status import Unranked
    >>> decode(encode(Unranked(warm_up=3)), Unranked).warm_up
    3
    """
    return _MAGIC + bytes([_VERSION]) + msgspec.msgpack.encode(state)


def decode(blob: bytes, kind: type[S]) -> S:
    """Return the state in `blob`; O(size).

    Raises
    ------
    CheckpointError
        If it is not a monitor snapshot, of another version, or does not fit the schema.
    """
    if not blob.startswith(_MAGIC) or len(blob) <= len(_MAGIC):
        raise CheckpointError(
            f"These {len(blob)} bytes are not a monitor snapshot: give what snapshot() returned, "
            "or start the monitors anew."
        )
    version = blob[len(_MAGIC)]
    if version != _VERSION:
        raise CheckpointError(
            f"The monitor snapshot has version {version}; this release reads version {_VERSION}: "
            "start the monitors anew."
        )
    try:
        return msgspec.msgpack.decode(blob[len(_MAGIC) + 1 :], type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(
            f"The monitor snapshot is damaged ({error}): start the monitors anew."
        ) from None
