"""Snapshots in a folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

from rejex_connectors.durable import replace_file, sync_folder
from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError
from rejex_stream.types import Partition

__all__ = ["FolderSnapshotStore"]

_MAGIC = b"rejex-snapshot-1\n"
_DIGEST_BYTES = 32
_SUFFIX = ".snapshot"


class FolderSnapshotStore:
    """Keeps the newest snapshots of every partition as files; each is whole or not there.

    Parameters
    ----------
    folder
        Made if it does not exist. Workers that own different partitions may share it.
    keep
        How many snapshots of a partition are kept.

    Raises
    ------
    ConfigError
        If `keep` is below 1.
    ConnectorError
        If the folder cannot be made.

    Examples
    --------
    >>> import tempfile
    >>> store = FolderSnapshotStore(tempfile.mkdtemp())
    >>> store.save(Partition("water", 0), 100, b"state")
    >>> store.load(Partition("water", 0), at_most=250)
    (100, b'state')
    >>> store.load(Partition("water", 0), at_most=99) is None
    True
    """

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"keep is {keep}: expected at least 1 snapshot")
        self._folder = Path(folder)
        self._keep = keep
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConnectorError(
                f"the snapshot folder {self._folder} cannot be made: {error}"
            ) from error

    def save(self, partition: Partition, next_offset: int, blob: bytes) -> None:
        """Keep `blob`, drop snapshots at later offsets and all but the newest. O(bytes).

        Raises
        ------
        ConnectorError
            If it cannot be written.
        """
        digest = hashlib.sha256(blob).digest()
        path = self._path(partition, next_offset)
        try:
            kept = self._offsets(partition)
            # First: a crash in between must not leave the snapshots of a past that was given up.
            for offset in kept:
                if offset > next_offset:
                    self._path(partition, offset).unlink(missing_ok=True)
            replace_file(path, _MAGIC + digest + blob)
            kept = sorted(
                {*kept, next_offset} - {offset for offset in kept if offset > next_offset}
            )
            for offset in kept[: -self._keep]:
                self._path(partition, offset).unlink(missing_ok=True)
            sync_folder(self._folder)
        except OSError as error:
            raise ConnectorError(f"the snapshot {path} cannot be written: {error}") from error

    def load(self, partition: Partition, at_most: int) -> tuple[int, bytes] | None:
        """Return the newest snapshot at or before `at_most`. O(bytes).

        Raises
        ------
        CheckpointError
            If that snapshot is not what was written.
        ConnectorError
            If it cannot be read.
        """
        try:
            offsets = [offset for offset in self._offsets(partition) if offset <= at_most]
            if not offsets:
                return None
            path = self._path(partition, max(offsets))
            content = path.read_bytes()
        except OSError as error:
            raise ConnectorError(
                f"the snapshots in {self._folder} cannot be read: {error}"
            ) from error
        start = len(_MAGIC) + _DIGEST_BYTES
        blob = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(blob).digest():
            raise CheckpointError(
                f"The snapshot {path} was altered or cut short (its checksum does not match). "
                "Restore the file; or remove it, and the one before it serves, with more to replay."
            )
        return max(offsets), blob

    def _stem(self, partition: Partition) -> str:
        name = quote(partition.topic, safe="")
        if len(name) > 150:  # file names end at 255 bytes
            name = f"{name[:100]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return f"{name}-{partition.partition}-"

    def _path(self, partition: Partition, offset: int) -> Path:
        return self._folder / f"{self._stem(partition)}{offset:020d}{_SUFFIX}"

    def _offsets(self, partition: Partition) -> list[int]:
        stem = self._stem(partition)
        return [
            int(digits)
            for name in os.listdir(self._folder)
            if name.startswith(stem)
            and name.endswith(_SUFFIX)
            and len(digits := name[len(stem) : -len(_SUFFIX)]) == 20
            and digits.isdecimal()
        ]
