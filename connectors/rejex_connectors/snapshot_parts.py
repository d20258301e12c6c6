"""Snapshots in parts, as records under keys: each part written only when it has moved.

A part has two sides, and a snapshot writes the side that the one before does not use. What it is
made of is said last, by a manifest in a place of its own: the number of its parts and a checksum
over which version of each belongs to it. So a crash between any two writes leaves the snapshot
before whole, on anything that keeps single records, with transactions or without; and a set that
is not whole is known and passed over.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from rejex_stream.errors import AnotherLogError
from rejex_stream.protocols import SnapshotPiece

_DIGEST_BYTES = 16
_PART, _MANIFEST, _LOG = b"p|", b"m|", b"log"


class Write(NamedTuple):
    """One record to write; ``None`` deletes the key."""

    key: bytes
    value: bytes | None


class _Version(msgspec.Struct, array_like=True, frozen=True):
    """One side of a part: in which set it was written, and in how many pieces (0: it is gone)."""

    seq: int
    set_id: bytes
    pieces: int


class _Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What a set is made of: `n_parts` versions not older than `floor`, by their checksum."""

    format: int
    seq: int
    floor: int
    next_offset: int
    n_parts: int
    digest: bytes


class _Piece(msgspec.Struct, array_like=True, frozen=True):
    version: _Version
    body: bytes


@dataclass
class _Open:
    seq: int
    floor: int
    next_offset: int
    set_id: bytes
    base: _Manifest | None
    previous: _Manifest | None
    n_parts: int
    digest: int


@dataclass
class PartSets:
    """The snapshots of one partition: reads their records, and returns those to write."""

    limit: int
    log: bytes = b""
    _log_then: bytes = b""
    _sides: dict[bytes, list[_Version | None]] = field(default_factory=dict)
    _manifests: list[_Manifest | None] = field(default_factory=lambda: [None, None])
    _bodies: dict[tuple[bytes, int], dict[int, _Piece]] = field(default_factory=dict)
    _whole: set[int] = field(default_factory=set)
    _newest: int = 0
    _open: _Open | None = None
    _maybe_unused: set[bytes] = field(default_factory=set)

    # --------------------------------------------------------------------------------- reading
    def read(self, key: bytes, value: bytes | None) -> bool:
        """Read one record; of each key the last counts. Returns whether it is ours."""
        try:
            if key.startswith(_MANIFEST):
                manifest = None if value is None else msgspec.msgpack.decode(value, type=_Manifest)
                self._manifests[int(key[len(_MANIFEST) :])] = manifest
                return True
            if key == _LOG:
                self._log_then = value or b""
                return True
            if not key.startswith(_PART):
                return False
            side, number, name = key[len(_PART) :].split(b"|", 2)
            at = self._bodies.setdefault((name, int(side)), {})
            if value is None:
                at.pop(int(number), None)
            else:
                at[int(number)] = msgspec.msgpack.decode(value, type=_Piece)
        except (ValueError, IndexError, msgspec.DecodeError):
            return False
        return True

    def finish_reading(self) -> None:
        """Find the whole versions of what was read; pieces of two versions of a side are none."""
        for (name, side), pieces in self._bodies.items():
            if not pieces:
                continue
            newest = max(piece.version.seq for piece in pieces.values())
            versions = {p.version for p in pieces.values() if p.version.seq == newest}
            version = versions.pop()
            whole = not versions and all(
                n in pieces and pieces[n].version == version for n in range(max(1, version.pieces))
            )
            # A side that is not whole must still be known, to be written over or deleted.
            self._sides.setdefault(name, [None, None])[side] = (
                version if whole else _Version(version.seq, b"", max(pieces) + 1)
            )
            self._newest = max(self._newest, newest)
        for manifest in self._manifests:
            if manifest is not None:
                self._newest = max(self._newest, manifest.seq)
                if self._is_whole(manifest):
                    self._whole.add(manifest.seq)
        self._maybe_unused = set(self._sides)

    @property
    def is_of_another_log(self) -> bool:
        """Whether what is stored is of a log that is gone: its offsets mean nothing here."""
        return bool(self.log and self._log_then) and self.log != self._log_then

    def load(self, at_most: int) -> tuple[int, dict[str, bytes]] | None:
        """Return the newest whole set at or before `at_most`; O(bytes)."""
        if self.is_of_another_log and self._known():
            raise AnotherLogError(
                f"its state is of another log of that name ({self._log_then.decode()}; now it is "
                f"{self.log.decode()}): the topic was deleted and recreated, so no offset and no "
                "snapshot from before means anything in it"
            )
        fitting = [m for m in self._known() if m.next_offset <= at_most]
        if not fitting:
            return None
        manifest = max(fitting, key=lambda m: (m.next_offset, m.seq))
        parts = {
            name.decode("utf-8", "surrogatepass"): b"".join(
                self._bodies[name, side][n].body for n in range(self._version(name, side).pieces)
            )
            for name, side in self._chosen(manifest)
        }
        return manifest.next_offset, parts

    def forget_bodies(self) -> None:
        self._bodies.clear()

    def _known(self) -> list[_Manifest]:
        return [m for m in self._manifests if m is not None and m.seq in self._whole]

    def _version(self, name: bytes, side: int) -> _Version:
        version = self._sides[name][side]
        assert version is not None
        return version

    def _chosen(self, manifest: _Manifest) -> Iterator[tuple[bytes, int]]:
        for name in self._sides:
            side = self._side_of(name, manifest)
            if side is not None and self._version(name, side).pieces:
                yield name, side

    def _side_of(self, name: bytes, manifest: _Manifest) -> int | None:
        """Return the side that a set uses of a part, also where that says it is gone."""
        versions = [
            (version.seq, side)
            for side, version in enumerate(self._sides.get(name, ()))
            if version is not None and manifest.floor <= version.seq <= manifest.seq
        ]
        return max(versions)[1] if versions else None

    def _is_whole(self, manifest: _Manifest) -> bool:
        n_parts = digest = 0
        for name, side in self._chosen(manifest):
            n_parts += 1
            digest ^= _mark(name, self._version(name, side))
        whole = digest.to_bytes(_DIGEST_BYTES, "big")
        return (n_parts, whole) == (manifest.n_parts, manifest.digest)

    # --------------------------------------------------------------------------------- writing
    def write(self, piece: SnapshotPiece) -> list[Write] | None:
        """Return what to write for a piece of a set, in this order.

        ``None`` where the set it builds upon is not here any more: write a whole one instead.
        """
        writes: list[Write] = []
        if piece.first and self.log and self.log != self._log_then:
            if self.is_of_another_log:  # before anything is said of the new one
                writes += [Write(_MANIFEST + b"%d" % slot, None) for slot in (0, 1)]
                self._manifests, self._whole = [None, None], set()
            writes.append(Write(_LOG, self.log))
            self._log_then = self.log
        if piece.first:
            begun = self._begin(piece, writes)
            if begun is None:
                return None
            self._open = begun
        opened = self._open
        if opened is None or opened.next_offset != piece.next_offset:
            return None
        for text, body in piece.parts.items():
            writes += self._write_part(opened, text.encode("utf-8", "surrogatepass"), body)
        if piece.last:
            writes += self._finish(opened)
            self._open = None
        return writes

    def _begin(self, piece: SnapshotPiece, writes: list[Write]) -> _Open | None:
        known = self._known()
        fitting = [m for m in known if m.next_offset == piece.base]
        if piece.base is not None and not fitting:
            return None
        base = max(fitting, key=lambda m: m.seq, default=None)
        previous = base or max(known, key=lambda m: m.seq, default=None)
        writes += self._delete_unused()
        if base is not None and self._newest > base.seq:
            # A past that was given up, and what no set came to use: it would be taken for newer
            # than what the set that begins does not write.
            for slot, manifest in enumerate(self._manifests):
                if manifest is not None and manifest.seq > base.seq:
                    writes.append(Write(_MANIFEST + b"%d" % slot, None))
                    self._manifests[slot] = None
            for name, pair in list(self._sides.items()):
                for side, version in enumerate(pair):
                    if version is not None and version.seq > base.seq:
                        writes += self._delete_side(name, side)
        self._whole = set() if previous is None else {previous.seq}
        self._newest = seq = self._newest + 1
        return _Open(
            seq,
            seq if base is None else base.floor,
            piece.next_offset,
            secrets.token_bytes(8),
            base,
            previous,
            0 if base is None else base.n_parts,
            0 if base is None else int.from_bytes(base.digest, "big"),
        )

    def _write_part(self, opened: _Open, name: bytes, body: bytes | None) -> Iterator[Write]:
        used = None if opened.previous is None else self._side_of(name, opened.previous)
        before = None
        if opened.base is not None:
            at = self._side_of(name, opened.base)
            before = None if at is None else self._version(name, at)
        if before is not None and before.pieces:
            opened.digest ^= _mark(name, before)
            opened.n_parts -= 1
        elif body is None:
            return
        side = 1 if used == 0 else 0
        size = self.limit
        bodies = [] if body is None else [body[i : i + size] for i in range(0, len(body), size)]
        if body is not None and not bodies:
            bodies = [b""]
        version = _Version(opened.seq, opened.set_id, len(bodies))
        if body is None:
            self._maybe_unused.add(name)
        else:
            opened.digest ^= _mark(name, version)
            opened.n_parts += 1
        old = self._sides.setdefault(name, [None, None])[side]
        for number, piece in enumerate(bodies or [b""]):
            yield Write(_key(name, side, number), msgspec.msgpack.encode(_Piece(version, piece)))
        for number in range(max(1, len(bodies)), 0 if old is None else old.pieces):
            yield Write(_key(name, side, number), None)
        self._sides[name][side] = version

    def _finish(self, opened: _Open) -> Iterator[Write]:
        manifest = _Manifest(
            1,
            opened.seq,
            opened.floor,
            opened.next_offset,
            opened.n_parts,
            opened.digest.to_bytes(_DIGEST_BYTES, "big"),
        )
        previous = opened.previous
        slot = 1 if previous is not None and self._manifests[0] is previous else 0
        yield Write(_MANIFEST + b"%d" % slot, msgspec.msgpack.encode(manifest))
        self._manifests[slot] = manifest
        self._whole.add(manifest.seq)
        if previous is not None and previous.next_offset > opened.next_offset:
            yield Write(_MANIFEST + b"%d" % (1 - slot), None)
            self._manifests[1 - slot] = None
        if opened.base is None:
            self._maybe_unused.update(self._sides)

    def _delete_unused(self) -> Iterator[Write]:
        """Yield the deletes of parts that no set has any more: the side that says so last."""
        known = self._known()
        for name in list(self._maybe_unused):
            pair = self._sides.get(name)
            if pair is None:
                self._maybe_unused.discard(name)
                continue
            used = [side for m in known if (side := self._side_of(name, m)) is not None]
            if not any(self._version(name, side).pieces for side in used):
                self._maybe_unused.discard(name)
                seqs = [-1 if version is None else version.seq for version in pair]
                for side in sorted((0, 1), key=seqs.__getitem__):
                    yield from self._delete_side(name, side)
            elif all(self._version(name, side).pieces for side in used) and len(used) == len(known):
                self._maybe_unused.discard(name)  # it lives

    def _delete_side(self, name: bytes, side: int) -> Iterator[Write]:
        pair = self._sides[name]
        version, pair[side] = pair[side], None
        for number in range(0 if version is None else max(1, version.pieces)):
            yield Write(_key(name, side, number), None)
        if pair == [None, None]:
            del self._sides[name]


def _key(name: bytes, side: int, number: int) -> bytes:
    return _PART + b"%d|%d|" % (side, number) + name


def _mark(name: bytes, version: _Version) -> int:
    """Return the checksum of one version; those of a set are added without carrying."""
    text = b"%d|%s|%s" % (version.seq, version.set_id, name)
    return int.from_bytes(blake2b(text, digest_size=_DIGEST_BYTES).digest(), "big")
