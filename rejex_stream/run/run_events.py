"""What a run tells about itself while it goes on, and at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from rejex_stream.engine.engine import Decision
from rejex_stream.engine.refit import FitFailed
from rejex_stream.monitor import Alarm
from rejex_stream.types import Incident, Outcome, OutcomeCounts, Partition


class PartitionOpened(NamedTuple):
    """A partition is ours: from which snapshot, and how far to replay silently."""

    partition: Partition
    snapshot_offset: int | None
    next_offset: int
    live_from: int


class PartitionLive(NamedTuple):
    """A silent replay has reached the committed offset."""

    partition: Partition
    replayed_events: int
    seconds: float


class DecisionChanged(NamedTuple):
    """From `offset` on verdicts are given by another decision; those before it stand."""

    partition: Partition
    offset: int
    was: Decision
    now: Decision


class EnvironmentChanged(NamedTuple):
    """A snapshot was taken over that was made with other libraries or on another processor."""

    partition: Partition
    changes: tuple[str, ...]


class PartitionClosed(NamedTuple):
    """A partition is no longer ours."""

    partition: Partition


class Committed(NamedTuple):
    """Outcomes and offsets are durable; so many commands wait then, and clocks are not trusted."""

    n_events: int
    seconds: float
    next_offsets: Mapping[Partition, int]
    waiting: Mapping[Partition, int] = {}
    untrusted_clocks: Mapping[Partition, int] = {}


class IncidentsDurable(NamedTuple):
    """Changes of incidents are durable, in order: notifications can go out.

    `again`: they were durable before this process began, and no delivery is known.
    """

    partition: Partition
    incidents: Sequence[Incident]
    again: bool = False


class SnapshotSaved(NamedTuple):
    """The state of a partition was kept."""

    partition: Partition
    next_offset: int
    n_bytes: int
    seconds: float


class FitFailure(NamedTuple):
    """A background fit failed; the model before it goes on."""

    partition: Partition
    failed: FitFailed


class NothingScorable(NamedTuple):
    """So many events in a row could not be scored that the mapping must be doubted.

    Told once a row, and once more, with ``None``, when an event could be scored again.
    """

    partition: Partition
    alarm: Alarm | None


class SensorsForgotten(NamedTuple):
    """Streams were silent for ``state.forget_after``; `replaying`: it was reported before."""

    partition: Partition
    streams: Sequence[str]
    replaying: bool


class ControlUnread(NamedTuple):
    """The control log cannot be read, and the run goes on without; ``None``: it can again."""

    why: str | None


class Retrying(NamedTuple):
    """The edge failed for the moment; the run goes on from what is durable after `delay_s`."""

    error: Exception
    delay_s: float
    attempt: int


RunEvent: TypeAlias = (
    PartitionOpened | PartitionLive | DecisionChanged | EnvironmentChanged | PartitionClosed
    | Committed | IncidentsDurable | SnapshotSaved | FitFailure | NothingScorable | ControlUnread
    | SensorsForgotten | Retrying
)  # fmt: skip


class RunObserver(Protocol):
    """Sees what happens to a run (health, a live view); cannot change any of it."""

    def event(self, event: RunEvent) -> None:
        """See what happened to the run itself."""


@runtime_checkable
class OutcomeObserver(RunObserver, Protocol):
    """Sees everything a run does (metrics): what comes of each record too."""

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """See a batch as soon as it is judged, up to one commit interval before it is durable.

        `replaying` ones were durable before this process began: state may come of them, counts
        should not. After a recovery the last uncommitted ones may be seen twice.
        """


class Outbox(Protocol):
    """Notifications of incidents that are not delivered; a run records them with its commits."""

    def pending(self, partition: Partition, new: Sequence[Incident] = ()) -> Sequence[Incident]:
        """Return what is undelivered once `new` is durable; any thread may deliver meanwhile."""

    def flush(self, timeout_s: float) -> None:
        """Wait until all is delivered, at most so long."""


class Replay(NamedTuple):
    """How far the silent replay of one partition has come, as offsets."""

    begun_at: int
    next_offset: int
    live_from: int


class Progress(NamedTuple):
    """A look at a run, taken every so many seconds."""

    # n_events, n_invalid: outcomes so far (of this process), and those of them that could not be
    # read
    n_events: int
    n_invalid: int
    seconds: float  # since the start
    n_uncommitted: int  # outcomes not yet durable
    replays: Mapping[Partition, Replay]  # partitions that are not live yet


@dataclass(slots=True)
class RunSummary(OutcomeCounts):
    """What one run did; all counts are of durable outcomes, replayed ones apart."""

    n_replayed: int = 0  # records replayed silently to rebuild state
    n_commits: int = 0  # n_commits, n_snapshots, n_retries, n_fit_failures: how often
    n_snapshots: int = 0
    n_retries: int = 0
    n_fit_failures: int = 0
    # fit_waits, fit_wait_s, longest_fit_wait_s: how often and how long the loop waited for a fit
    # that was late
    fit_waits: int = 0
    fit_wait_s: float = 0.0
    longest_fit_wait_s: float = 0.0
    seconds: float = 0.0  # wall-clock length of the run
    stopped: bool = False  # whether it was asked to stop before the end of its input
