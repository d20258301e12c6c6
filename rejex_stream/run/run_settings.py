"""The settings of a run: how often, how much, how long, where, and how long sensors are known."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from rejex_stream.decode.reorder_buffer import ReorderRules
from rejex_stream.encode.records import Form
from rejex_stream.encode.schemas import TOPICS
from rejex_stream.engine.sensor_registry import Limits
from rejex_stream.run.review_items import REVIEW_REASONS, AuditDraw
from rejex_stream.settings import Section, setting, stated
from rejex_stream.types import Reason

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Environment: TypeAlias = Literal["accept", "refuse"]
LostState: TypeAlias = Literal["refuse", "restart"]


class Output(Section):
    """Where outcomes go: files beside a file, topics beside topics."""

    verdicts: str | None = setting(
        None,
        otherwise=f"verdicts.jsonl or {TOPICS['verdicts']}",
        min_length=1,
        example="verdicts.jsonl",
    )
    """File or topic of all verdicts; - is standard output."""
    form: Form = setting("full")
    """How much of a verdict is written there: all, or id, stream, sensor, mode, time, label, reason
    and severity. Reports, the console's rates and the check of a certificate need all; review items
    hold all in either form."""
    review: str | None = setting(
        None, otherwise=f"review.jsonl or {TOPICS['review']}", min_length=1, example="review.jsonl"
    )
    """File or topic of events for people to look at."""
    deadletter: str | None = setting(
        None,
        otherwise=f"deadletter.jsonl or {TOPICS['deadletter']}",
        min_length=1,
        example="deadletter.jsonl",
    )
    """File or topic of records that cannot be read, with their original bytes."""
    incidents: str | None = setting(
        None,
        otherwise=f"incidents.jsonl or {TOPICS['incidents']}",
        min_length=1,
        example="incidents.jsonl",
    )
    """File or topic of incidents, each change a record, and of what became of commands."""
    labels: str = setting(TOPICS["labels"], min_length=1)
    """Topic of what reviewers answered (Kafka)."""
    review_reasons: tuple[Reason, ...] = setting(
        tuple(sorted(REVIEW_REASONS)), example=["ambiguous", "unscorable"]
    )
    """Rejected for one of these reasons, an event goes to review."""
    context_events: int = setting(32, unit="events", ge=0, le=10_000)
    """Events of its sensor that travel with a review item, and so many that follow it."""
    evidence: bool = setting(True)
    """Whether anomalies and ambiguous events say which channels speak; costs one more score a
    channel for each of them."""
    audit_rate: Share | dict[Literal["normal", "near", "anomaly"], Share] = setting(
        0.0, unit="share of events", example={"normal": 0.001, "near": 0.02, "anomaly": 0.1}
    )
    """Share of accepted events that go to review as well, so that the miss rate is known; or a
    table: of normals, of those near the rejection band (normal's without), and of accepted
    anomalies (normal's without)."""
    audit_key_file: str | None = setting(
        None,
        otherwise="the draw follows from the position alone",
        min_length=1,
        example="/run/secrets/audit",
    )
    """File with the secret of the audit's draw, 16 to 64 bytes, the same for all workers: its hash
    is told at the start, so that nobody can foresee the draw and anybody can check it later."""


class State(Section):
    """What survives a restart."""

    resume: bool = setting(True)
    """Whether a run over a file goes on where the last one stopped; false begins again."""
    folder: str | None = setting(
        None,
        otherwise="the state topic (Kafka), or .rejex-NAME beside the verdicts",
        min_length=1,
        example="state",
    )
    """Folder for snapshots and positions, of this pipeline alone."""
    topic: str = setting(TOPICS["state"], min_length=1)
    """Compacted topic for snapshots (Kafka)."""
    snapshot_every_events: int = setting(50_000, unit="events", ge=1)
    """Events of a partition between snapshots; a restart replays at most so many."""
    snapshot_interval_s: float = setting(300.0, unit="s", gt=0)
    """Longest time between snapshots while events arrive."""
    lost_state: LostState = setting("refuse")
    """What to do when the state cannot be rebuilt: stop and say why, or warm up again."""
    environment: Environment = setting("accept")
    """What to do when a snapshot was made with other library versions or on another kind of
    processor, where a refit may differ in the last bit: say so and go on, or stop."""
    seal_key_file: str | None = setting(
        None,
        otherwise="snapshots carry checksums alone",
        min_length=1,
        example="/run/secrets/rejex-state",
    )
    """File that holds a key, the same for all workers: every snapshot is sealed with it, and what
    is not is refused."""
    forget_after: float | None = setting(
        None, unit="s of event time", otherwise="never", gt=0, le=1e9, example=2_592_000
    )
    """A sensor that was silent for so long is forgotten and begins again when it comes back; time
    is the newest that two sensors of its partition have reached, looked at every eighth of it."""
    max_keys: int = setting(100_000, unit="sensors", ge=1)
    """So many are known per partition, each once for every mode (input.mode); events of further
    ones are rejected as too_many_sensors until one is forgotten."""
    max_live_streams: int | None = setting(
        None, unit="streams", otherwise="all", ge=1, example=10_000
    )
    """Streams held ready per partition; those silent for longest are packed into a temporary
    file."""


class Run(Section):
    """The loop: how often, how much, how long; nothing here changes a verdict."""

    commit_interval_s: float = setting(0.5, unit="s", ge=0, le=60)
    """Outcomes are gathered for so long, then made durable at once with the offsets."""
    max_poll_records: int = setting(5_000, unit="records", ge=1)
    """Records taken from the input at once."""
    invalid_limit: float = setting(0.5, unit="share of records", ge=0, le=1)
    """The run stops when more than this share of the newest records cannot be read; 1 never
    stops."""
    retry_for_s: float = setting(600.0, unit="s", ge=0)
    """How long a broker may be away before the run gives up."""
    topic_wait_s: float = setting(30.0, unit="s", ge=0)
    """How long a run waits for an input topic that does not exist before it ends."""


class RunSettings(Run):
    """A Run, and what :func:`rejex_stream.run.loop.run` needs of Output and State."""

    snapshot_every_events: int = stated(State, "snapshot_every_events")
    snapshot_interval_s: float = stated(State, "snapshot_interval_s")
    lost_state: LostState = stated(State, "lost_state")
    environment: Environment = stated(State, "environment")
    forget_after: float | None = stated(State, "forget_after")
    max_keys: int = stated(State, "max_keys")
    review_context_events: int = stated(Output, "context_events")
    review_reasons: tuple[Reason, ...] = stated(Output, "review_reasons")
    audit: AuditDraw = AuditDraw()
    reorder: ReorderRules = ReorderRules()
    commit_every_events: int = setting(20_000, unit="events", ge=1)
    """Or so many of them, whichever comes first."""
    invalid_window_events: int = setting(1_000, unit="records", ge=1)
    """How many newest records that is."""
    poll_timeout_s: float = setting(0.2, unit="s", ge=0)
    """Longest wait for the first record of a turn."""
    batch_s: float = setting(0.5, unit="s", gt=0)
    """Polls shrink until a batch takes no longer than this."""
    retry_first_s: float = setting(0.5, unit="s", gt=0)
    """Wait after the first failure of the edge; it doubles."""
    retry_longest_s: float = setting(30.0, unit="s", says="Up to this.", gt=0)
    progress_interval_s: float = setting(1.0, unit="s", ge=0)
    """How often progress is reported."""

    @property
    def limits(self) -> Limits:
        after = self.forget_after
        return Limits(
            forget_after_ms=None if after is None else max(1, round(1000 * after)),
            max_keys=self.max_keys,
        )
