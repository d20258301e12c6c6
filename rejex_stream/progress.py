"""What a run tells about itself while it goes on, and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from rejex_stream.model import FitFailed
from rejex_stream.types import Label, Outcome, Partition, Reason

__all__ = [
    "Committed",
    "FitFailure",
    "LaneClosed",
    "LaneLive",
    "LaneOpened",
    "Progress",
    "Replay",
    "Retrying",
    "RunEvent",
    "RunObserver",
    "RunSummary",
    "SnapshotSaved",
]


class LaneOpened(NamedTuple):
    """A partition is ours: from which snapshot, and how far to replay silently."""

    partition: Partition
    snapshot_offset: int | None
    next_offset: int
    live_from: int


class LaneLive(NamedTuple):
    """A silent replay has reached the committed offset."""

    partition: Partition
    replayed_events: int
    seconds: float


class LaneClosed(NamedTuple):
    """A partition is no longer ours."""

    partition: Partition


class Committed(NamedTuple):
    """Outcomes and offsets are durable."""

    n_events: int
    seconds: float
    next_offsets: Mapping[Partition, int]


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


class Retrying(NamedTuple):
    """The edge failed for the moment; the run goes on from what is durable after `delay_s`."""

    error: Exception
    delay_s: float
    attempt: int


RunEvent: TypeAlias = (
    LaneOpened | LaneLive | LaneClosed | Committed | SnapshotSaved | FitFailure | Retrying
)


class RunObserver(Protocol):
    """Sees everything a run does (metrics, a live view); cannot change any of it."""

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """See a batch as soon as it is judged, up to one commit interval before it is durable.

        `replaying` ones were durable before this process began: state may come of them, counts
        should not. After a recovery the last uncommitted ones may be seen twice.
        """
        ...

    def event(self, event: RunEvent) -> None:
        """See what happened to the run itself."""
        ...


class Replay(NamedTuple):
    """How far the silent replay of one partition has come, as offsets."""

    begun_at: int
    next_offset: int
    live_from: int


class Progress(NamedTuple):
    """A look at a run, taken every so many seconds.

    Attributes
    ----------
    n_events, n_invalid
        Outcomes so far (of this process), and those of them that could not be read.
    seconds
        Since the start.
    n_uncommitted
        Outcomes not yet durable.
    replays
        Partitions that are not live yet.
    """

    n_events: int
    n_invalid: int
    seconds: float
    n_uncommitted: int
    replays: Mapping[Partition, Replay]


@dataclass(slots=True)
class RunSummary:
    """What one run did; all counts are of durable outcomes, replayed ones apart.

    Attributes
    ----------
    labels, reasons
        How many verdicts of each label, and of the rejected ones, of each reason.
    n_invalid, n_reviews
        Records that could not be read; review items written.
    n_replayed
        Records replayed silently to rebuild state.
    n_commits, n_snapshots, n_retries, n_fit_failures
        How often.
    fit_waits, fit_wait_s, longest_fit_wait_s
        How often and how long the loop waited for a fit that was late.
    seconds
        Wall-clock length of the run.
    stopped
        Whether it was asked to stop before the end of its input.
    """

    labels: Counter[Label] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    n_invalid: int = 0
    n_reviews: int = 0
    n_replayed: int = 0
    n_commits: int = 0
    n_snapshots: int = 0
    n_retries: int = 0
    n_fit_failures: int = 0
    fit_waits: int = 0
    fit_wait_s: float = 0.0
    longest_fit_wait_s: float = 0.0
    seconds: float = 0.0
    stopped: bool = False

    @property
    def n_events(self) -> int:
        """How many records got their outcome, invalid ones included."""
        return self.labels.total() + self.n_invalid

    @property
    def rejection_rate(self) -> float | None:
        """Share of verdicts that are rejected as ambiguous; ``None`` without any verdict.

        Events of a warm-up are not counted: the theory does not speak of them.
        """
        counted = self.labels.total() - self.reasons[Reason.WARM_UP]
        return self.reasons[Reason.AMBIGUOUS] / counted if counted else None

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count outcomes that became durable."""
        outcomes = list(outcomes)
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        self.n_invalid += len(outcomes) - len(verdicts)
        self.labels.update([verdict.label for verdict in verdicts])
        self.reasons.update([verdict.reason for verdict in verdicts if verdict.reason is not None])
        self.n_reviews += sum(outcome.review is not None for outcome in outcomes)
