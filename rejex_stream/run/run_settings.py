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

__all__ = ["Output", "Run", "RunSettings", "State"]

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Environment: TypeAlias = Literal["accept", "refuse"]
LostState: TypeAlias = Literal["refuse", "restart"]


class Output(Section):
    """Where outcomes go: files beside a file, topics beside topics."""

    verdicts: str | None = setting(
        None,
        says="File or topic of all verdicts; - is standard output.",
        otherwise=f"verdicts.jsonl or {TOPICS['verdicts']}",
        min_length=1,
        example="verdicts.jsonl",
    )
    form: Form = setting(
        "full",
        says="How much of a verdict is written there: all, or id, stream, sensor, mode, time, "
        "label, reason and severity. Reports, the console's rates and the check of a certificate "
        "need all; review items hold all in either form.",
    )
    review: str | None = setting(
        None,
        says="File or topic of events for people to look at.",
        otherwise=f"review.jsonl or {TOPICS['review']}",
        min_length=1,
        example="review.jsonl",
    )
    deadletter: str | None = setting(
        None,
        says="File or topic of records that cannot be read, with their original bytes.",
        otherwise=f"deadletter.jsonl or {TOPICS['deadletter']}",
        min_length=1,
        example="deadletter.jsonl",
    )
    incidents: str | None = setting(
        None,
        says="File or topic of incidents, each change a record, and of what became of commands.",
        otherwise=f"incidents.jsonl or {TOPICS['incidents']}",
        min_length=1,
        example="incidents.jsonl",
    )
    labels: str = setting(
        TOPICS["labels"], says="Topic of what reviewers answered (Kafka).", min_length=1
    )
    review_reasons: tuple[Reason, ...] = setting(
        tuple(sorted(REVIEW_REASONS)),
        says="Rejected for one of these reasons, an event goes to review.",
        example=["ambiguous", "unscorable"],
    )
    context_events: int = setting(
        32,
        unit="events",
        says="Events of its sensor that travel with a review item, and so many that follow it.",
        ge=0,
        le=10_000,
    )
    evidence: bool = setting(
        True,
        says="Whether anomalies and ambiguous events say which channels speak; costs one more "
        "score a channel for each of them.",
    )
    audit_rate: Share | dict[Literal["normal", "near", "anomaly"], Share] = setting(
        0.0,
        unit="share of events",
        says="Share of accepted events that go to review as well, so that the miss rate is known; "
        "or a table: of normals, of those near the rejection band (normal's without), and of "
        "accepted anomalies (normal's without).",
        example={"normal": 0.001, "near": 0.02, "anomaly": 0.1},
    )
    audit_key_file: str | None = setting(
        None,
        says="File with the secret of the audit's draw, 16 to 64 bytes, the same for all workers: "
        "its hash is told at the start, so that nobody can foresee the draw and anybody can check "
        "it later.",
        otherwise="the draw follows from the position alone",
        min_length=1,
        example="/run/secrets/audit",
    )


class State(Section):
    """What survives a restart."""

    resume: bool = setting(
        True,
        says="Whether a run over a file goes on where the last one stopped; false begins again.",
    )
    folder: str | None = setting(
        None,
        says="Folder for snapshots and positions, of this pipeline alone.",
        otherwise="the state topic (Kafka), or .rejex-NAME beside the verdicts",
        min_length=1,
        example="state",
    )
    topic: str = setting(
        TOPICS["state"], says="Compacted topic for snapshots (Kafka).", min_length=1
    )
    snapshot_every_events: int = setting(
        50_000,
        unit="events",
        says="Events of a partition between snapshots; a restart replays at most so many.",
        ge=1,
    )
    snapshot_interval_s: float = setting(
        300.0, unit="s", says="Longest time between snapshots while events arrive.", gt=0
    )
    lost_state: LostState = setting(
        "refuse",
        says="What to do when the state cannot be rebuilt: stop and say why, or warm up again.",
    )
    environment: Environment = setting(
        "accept",
        says="What to do when a snapshot was made with other library versions or on another kind "
        "of processor, where a refit may differ in the last bit: say so and go on, or stop.",
    )
    seal_key_file: str | None = setting(
        None,
        says="File that holds a key, the same for all workers: every snapshot is sealed with it, "
        "and what is not is refused.",
        otherwise="snapshots carry checksums alone",
        min_length=1,
        example="/run/secrets/rejex-state",
    )
    forget_after: float | None = setting(
        None,
        unit="s of event time",
        says="A sensor that was silent for so long is forgotten and begins again when it comes "
        "back; time is the newest that two sensors of its partition have reached, looked at every "
        "eighth of it.",
        otherwise="never",
        gt=0,
        le=1e9,
        example=2_592_000,
    )
    max_keys: int = setting(
        100_000,
        unit="sensors",
        says="So many are known per partition, each once for every mode (input.mode); events of "
        "further ones are rejected as too_many_sensors until one is forgotten.",
        ge=1,
    )
    max_live_streams: int | None = setting(
        None,
        unit="streams",
        says="Streams held ready per partition; those silent for longest are packed into a "
        "temporary file.",
        otherwise="all",
        ge=1,
        example=10_000,
    )


class Run(Section):
    """The loop: how often, how much, how long; nothing here changes a verdict."""

    commit_interval_s: float = setting(
        0.5,
        unit="s",
        says="Outcomes are gathered for so long, then made durable at once with the offsets.",
        ge=0,
        le=60,
    )
    max_poll_records: int = setting(
        5_000, unit="records", says="Records taken from the input at once.", ge=1
    )
    invalid_limit: float = setting(
        0.5,
        unit="share of records",
        says="The run stops when more than this share of the newest records cannot be read; "
        "1 never stops.",
        ge=0,
        le=1,
    )
    retry_for_s: float = setting(
        600.0, unit="s", says="How long a broker may be away before the run gives up.", ge=0
    )
    topic_wait_s: float = setting(
        30.0,
        unit="s",
        says="How long a run waits for an input topic that does not exist before it ends.",
        ge=0,
    )


class RunSettings(Run):
    """Settings of :func:`rejex_stream.run.loop.run`: a Run, and what it needs of Output and State.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

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
    commit_every_events: int = setting(
        20_000, unit="events", says="Or so many of them, whichever comes first.", ge=1
    )
    invalid_window_events: int = setting(
        1_000, unit="records", says="How many newest records that is.", ge=1
    )
    poll_timeout_s: float = setting(
        0.2, unit="s", says="Longest wait for the first record of a turn.", ge=0
    )
    batch_s: float = setting(
        0.5, unit="s", says="Polls shrink until a batch takes no longer than this.", gt=0
    )
    retry_first_s: float = setting(
        0.5, unit="s", says="Wait after the first failure of the edge; it doubles.", gt=0
    )
    retry_longest_s: float = setting(30.0, unit="s", says="Up to this.", gt=0)
    progress_interval_s: float = setting(
        1.0, unit="s", says="How often progress is reported.", ge=0
    )

    @property
    def limits(self) -> Limits:
        """Return how long a sensor may be silent, and how many are known."""
        after = self.forget_after
        return Limits(
            forget_after_ms=None if after is None else max(1, round(1000 * after)),
            max_keys=self.max_keys,
        )
