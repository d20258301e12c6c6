"""From a config to what judges records outside the loop: on Spark, or over a history."""

from __future__ import annotations

from collections.abc import Sequence

from rejex_stream.config.assembly.running import engine_spec, run_settings
from rejex_stream.config.model import Config
from rejex_stream.decode import Decoder
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.run.settings import RunSettings
from rejex_stream.types import Invalid, Partition, Position, Reading, Record

__all__ = ["DecodedBefore", "Judging", "by_partition"]


class DecodedBefore:
    """A decoder of records that were decoded beforehand, to know whose they are.

    Attributes
    ----------
    items
        What each reading is, by its position; of the records that come next.
    """

    def __init__(self, channels: Sequence[str]) -> None:
        self.channels = tuple(channels)
        self.items: dict[Position, Reading | Invalid] = {}

    def decode(self, record: Record) -> Reading | Invalid:
        """Look the record up. O(1)."""
        return self.items[record.position]


class Judging:
    """Makes states that judge as a worker's do, without threads: fits run where they are due."""

    def __init__(self, config: Config) -> None:
        self.spec: EngineSpec = engine_spec(config)
        self.settings: RunSettings = run_settings(config)
        self.channels: Sequence[str] = config.input.mapping().channel_names

    def state(
        self, partition: Partition, decoder: Decoder, inputs: Sequence[str] | None = None
    ) -> PartitionState:
        """Make an empty state, of a whole partition or of some of its streams.

        Given the topics of the input, people can tell it things.
        """
        settings = self.settings
        return PartitionState(
            partition,
            decoder=decoder,
            engine=Engine(self.spec, InlineExecutor()),
            context=ReviewItems(
                self.channels,
                points=settings.review_context_events,
                reasons=settings.review_reasons,
                audit=settings.audit,
            ),
            accept_environment=settings.environment == "accept",
            inputs=inputs,
            limits=settings.limits,
            intake=settings.intake,
        )


def by_partition(config: Config) -> bool:
    """Whether streams of a partition share anything, so that they must be judged together.

    Beyond ``state.max_keys``: that many are judged wherever each stream is on its own.
    """
    return (
        config.rejection.policy().owner != "stream"
        or config.state.forget_after is not None
        # A sensor may speak in two groups, with one history.
        or config.input.mapping().group is not None
        or config.input.mode is not None
    )
