"""Snapshots under a key: what somebody without it wrote is refused.

Every part carries a keyed checksum (HMAC-SHA-256) over itself, its name and its partition. Who can
write to the store but has no key cannot make a part, nor put one in the place of another; what he
can do is delete snapshots, or bring back older parts of the same sensor.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from rejex_stream.errors import WAY_OUT, CheckpointError, ConfigError, explaining_os_errors
from rejex_stream.protocols import SnapshotPiece, SnapshotStore
from rejex_stream.types import Partition

_MAGIC = b"RJXHMAC1"
_BODY_AT = len(_MAGIC) + 32
_FEWEST = 16
_NOWHERE = Partition("", 0)


def read_key(path: str, setting: str = "state.seal_key_file") -> bytes:
    with explaining_os_errors(f"{setting} {path} cannot be read", kind=ConfigError):
        key = Path(path).read_bytes().strip()
    if len(key) < _FEWEST:
        raise ConfigError(
            f"The key in {setting} {path} has {len(key)} bytes: give at least {_FEWEST}, "
            "e.g. of `openssl rand -hex 32`."
        )
    return key


class SealedStore:
    """A snapshot store whose parts are sealed with a key.

    With ``None`` for a key nothing is sealed, and what was sealed is refused.
    """

    def __init__(self, store: SnapshotStore, key: bytes | None) -> None:
        self._store = store
        self._key = key

    def save(self, partition: Partition, piece: SnapshotPiece) -> bool:
        if self._key is not None:
            parts = {
                name: None if body is None else self._sealed(partition, b"part", name, body)
                for name, body in piece.parts.items()
            }
            piece = piece._replace(parts=parts)
        return self._store.save(partition, piece)

    def load(self, partition: Partition, at_most: int) -> tuple[int, Mapping[str, bytes]] | None:
        snapshot = self._store.load(partition, at_most)
        if snapshot is None:
            return None
        offset, parts = snapshot
        what = f"The snapshot of {partition} at offset {offset}"
        return offset, {
            name: self._opened(partition, b"part", name, body, what) for name, body in parts.items()
        }

    def sealed_file(self, content: bytes) -> bytes:
        """Seal what leaves the store in a file."""
        return content if self._key is None else self._sealed(_NOWHERE, b"file", "", content)

    def opened_file(self, content: bytes) -> bytes:
        """Return what :meth:`sealed_file` sealed with this key."""
        return self._opened(_NOWHERE, b"file", "", content, "The exported state")

    def save_journal(self, partition: Partition, decisions: bytes) -> None:
        if self._key is not None:
            decisions = self._sealed(partition, b"decisions", "", decisions)
        self._store.save_journal(partition, decisions)

    def load_journal(self, partition: Partition) -> bytes | None:
        signed = self._store.load_journal(partition)
        if signed is None:
            return None
        what = f"What was decided for {partition}"
        return self._opened(partition, b"decisions", "", signed, what)

    def close(self) -> None:
        self._store.close()

    def _sealed(self, partition: Partition, kind: bytes, name: str, body: bytes) -> bytes:
        assert self._key is not None
        fields = (
            kind,
            partition.topic.encode("utf-8", "surrogatepass"),
            b"%d" % partition.partition,
            name.encode("utf-8", "surrogatepass"),
        )
        mac = hmac.new(self._key, digestmod="sha256")
        for field in fields:
            mac.update(len(field).to_bytes(4, "big") + field)
        mac.update(body)
        return _MAGIC + mac.digest() + body

    def _opened(
        self, partition: Partition, kind: bytes, name: str, sealed: bytes, what: str
    ) -> bytes:
        if self._key is None:
            if sealed.startswith(_MAGIC):
                raise CheckpointError(
                    f"{what} is sealed with a key: set state.seal_key_file to the file that holds "
                    f"it, or {WAY_OUT}."
                )
            return sealed
        body = sealed[_BODY_AT:]
        if not hmac.compare_digest(sealed, self._sealed(partition, kind, name, body)):
            if not sealed.startswith(_MAGIC):
                raise CheckpointError(
                    f"{what} is not sealed, and with state.seal_key_file nothing else is taken: "
                    f"leave the key out, or {WAY_OUT}."
                )
            raise CheckpointError(
                f"{what} was not sealed with the key of state.seal_key_file, or was altered since "
                f"(part {name!r}): give the key that it was sealed with, or {WAY_OUT}."
            )
        return body
