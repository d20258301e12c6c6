"""The contracts between core and edges; each can be read in a minute.

* detectors: :class:`BatchDetector` → :class:`Scorer`, or :class:`IncrementalDetector` →
  :class:`IncrementalScorer`;
* background fits: :class:`FitExecutor`;
* edges: :class:`Source`, :class:`Sink`, :class:`SnapshotStore`, :class:`SchemaRegistry`,
  :class:`ControlLog`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rejex_stream.errors import ConfigError
from rejex_stream.types import FloatArray, Outcome, Partition, Record


# ------------------------------------------------------------------------------- detectors
@runtime_checkable
class Scorer(Protocol):
    """A fitted model; scoring never changes it.

    `score` is batch invariant bit for bit: ``score(X)[i] == score(X[i:i+1])[0]`` for every cut.
    An adapter whose library cannot promise that scores row by row.
    """

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); returns shape (m,), high = anomalous."""


@runtime_checkable
class BatchDetector(Protocol):
    """A recipe for a model that is fitted on a table of rows: immutable, cheap, picklable.

    A scorer may carry ``training_scores`` of shape (n,) for ``calibration = "training"``.
    """

    @property
    def name(self) -> str:
        """Stable name for metrics and snapshots, e.g. ``pyod:KNN``."""

    def fit(self, X: FloatArray, *, seed: int) -> Scorer:
        """Fit on X of shape (n, d); equal X and seed give a scorer with equal scores."""


@runtime_checkable
class IncrementalScorer(Protocol):
    """A model that learns one row at a time; the engine scores each row before it is learnt."""

    def score_one(self, x: FloatArray) -> float:
        """Score one row of shape (d,) without changing the model."""

    def learn_one(self, x: FloatArray) -> None:
        """Learn one row of shape (d,)."""

    def state(self) -> bytes:
        """Everything the model knows, to be given to :meth:`IncrementalDetector.restore`."""


@runtime_checkable
class IncrementalDetector(Protocol):
    """A recipe for an incremental model: immutable, cheap, picklable."""

    @property
    def name(self) -> str:
        """Stable name for metrics and snapshots, e.g. ``river:HalfSpaceTrees``."""

    @property
    def warm_up_events(self) -> int:
        """How many first scores mean nothing and are dropped."""

    def start(self, feature_names: Sequence[str], *, seed: int) -> IncrementalScorer:
        """Make an empty model for rows with these columns."""

    def restore(self, feature_names: Sequence[str], state: bytes) -> IncrementalScorer:
        """Bring a model back from :meth:`IncrementalScorer.state`; refuse what it did not write."""


# ------------------------------------------------------------------------------ background
class FitExecutor(Protocol):
    """Where fits run; decides when a result is ready, never what it is."""

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        """Have `fit` (picklable) run under `key`."""

    def done(self, key: Hashable) -> bool:
        """Whether the result of `key` can be taken without waiting.

        Asked when it is needed: what has not begun by then should go before fits that nobody has
        asked for.
        """

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Take the result of `key`, waiting if need be; raises what the fit raised. Once only."""

    def cancel(self, key: Hashable) -> None:
        """Forget `key`: its result is not wanted any more."""


# ----------------------------------------------------------------------------------- edges
class Assigned(NamedTuple):
    """The source now owns a partition.

    `committed` is the next offset whose outcome is not yet durable (``None``: nothing was ever
    committed); `earliest` is the first offset that can still be read; `end`, where nothing was ever
    committed, the one after the last now (``None``: the source does not say); `written` the one
    after the last of which an output holds this pipeline's verdict (0: none is known).
    """

    partition: Partition
    committed: int | None
    earliest: int
    end: int | None = None
    written: int = 0


class Revoked(NamedTuple):
    """The source no longer owns a partition: drop its state, write nothing more for it."""

    partition: Partition


class Source(Protocol):
    """Delivers records in order within a partition, as raw bytes.

    A newly assigned partition delivers nothing until :meth:`seek` says where to begin.
    """

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return what is there, waiting at most `timeout_s`; may be empty."""

    def changes(self) -> Sequence[Assigned | Revoked]:
        """Ownership changes since the last call, in order; asked after each :meth:`poll`."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Deliver `partition` from `offset` on."""

    def pause(self, partition: Partition) -> None:
        """Deliver nothing of `partition` until :meth:`seek` says where to go on."""

    def rewind(self) -> None:
        """Begin again from what is durable, after a failed commit or an abort.

        The next :meth:`changes` reports every owned partition as ``Revoked`` and then ``Assigned``
        with its committed offset read afresh (a commit that timed out may have happened after
        all); as after any assignment, nothing is delivered until :meth:`seek`.
        """

    @property
    def exhausted(self) -> bool:
        """Whether a finite input has been read to its end; always false for a topic."""

    def close(self) -> None:
        """Let go of the input."""


class Sink(Protocol):
    """Takes outcomes and makes them durable together with the input offsets.

    Order of a commit: outcomes written → every delivery checked → offsets and outcomes made
    durable at once. A sink that cannot do both at once documents which repeats are possible.

    `commit` runs on another thread than the rest, while records are judged. Nobody calls the sink,
    the source or the snapshot store until it has returned.
    """

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Accept outcomes of one partition; they count only after :meth:`commit`."""

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Make all written outcomes durable, with the offsets to go on from; all or nothing."""

    def abort(self) -> None:
        """Forget what was written since the last commit."""

    def close(self) -> None:
        """Let go of the output; uncommitted outcomes are dropped."""


class SnapshotPiece(NamedTuple):
    """Some of the parts of a snapshot; the `last` piece makes it one."""

    next_offset: int
    """Where the snapshot stands."""
    base: int | None
    """Where the snapshot stands that it builds upon: what is not among its parts is as it was
    there. ``None``: there is nothing else."""
    parts: Mapping[str, bytes | None]
    """By name, each once a snapshot; ``None`` for a part that is gone."""
    first: bool = True
    last: bool = True
    """Whether the snapshot begins with this piece, and whether it is whole with it."""


class SnapshotStore(Protocol):
    """Keeps a few snapshots per partition, each with the next offset it stands at."""

    def save(self, partition: Partition, piece: SnapshotPiece) -> bool:
        """Keep a piece; a snapshot is there when its last one is kept, whole or not at all.

        Returns whether it is kept: not where the snapshot that it builds upon is not here any
        more, or another one was begun meanwhile. A snapshot that is begun replaces one that was
        not finished. Snapshots of `partition` at a later offset than its base belong to a past
        that was given up (offsets were reset): they are dropped.
        """

    def load(self, partition: Partition, at_most: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return offset and parts of the newest snapshot at or before `at_most`, if any."""

    def save_journal(self, partition: Partition, decisions: bytes) -> None:
        """Keep what was decided, with the next commit of `partition` or before it."""

    def load_journal(self, partition: Partition) -> bytes | None:
        """Return what was decided when `partition` was last committed."""

    def close(self) -> None:
        """Let go of what is open; called by the thread that used it, and more than once."""


class ControlRecords(NamedTuple):
    """What stands in a control log: `records` in order, and where to read on.

    `log` tells it from another of its name; empty where that is not known.
    """

    records: Sequence[Record]
    next_offset: int
    log: bytes = b""


class ControlLog(Protocol):
    """What people tell a running pipeline: one order for all, read whole by every worker."""

    @property
    def inputs(self) -> Collection[str]:
        """Topics of the pipeline's input, as positions name them."""

    def read(self, start: int) -> ControlRecords:
        """Return what is there at or after `start`, some at a time; never waits.

        Raises
        ------
        ConnectorError
            If it cannot be read now.
        """

    def close(self) -> None:
        """Let go of it."""


class RegisteredSchema(NamedTuple):
    """A schema as a registry keeps it.

    `kind` is ``AVRO``, ``PROTOBUF`` or ``JSON``; `references` are the schemas that `text` builds
    upon, by the name it calls them, each before those that need it.
    """

    kind: str
    text: str
    references: Mapping[str, str]


class SchemaRegistry(Protocol):
    """Knows the schema behind each id that a record may carry; a schema never changes."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema, or ``None`` where the registry says that it has no such id.

        Raises
        ------
        ConnectorError
            Retriable while the registry does not answer.
        """


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def require_identity(detector: object) -> None:
    """Refuse a recipe that no other process could know again.

    Raises
    ------
    ConfigError
        If its ``repr`` names an address in memory.

    Examples
    --------
    >>> require_identity("a dataclass, say")
    """
    text = " ".join(repr(detector).split())
    address = _ADDRESS.search(text)
    if address is not None:
        raise ConfigError(
            f"The detector {text:.160} is told from others by its repr, and that holds an address "
            f"({address[0].strip()}), another one in every process: no snapshot of it could be "
            "restored. Make it a dataclass, or define __repr__ so that it names the parameters."
        )
