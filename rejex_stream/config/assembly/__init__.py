"""From a config to living objects: the one place that builds, and that knows both edges.

In: a :class:`~rejex_stream.config.Config`. Out: sources, sinks, decoders, engines and monitors, and
a run of them all. Open `running` first, then `edges` (files or Kafka).
"""

from rejex_stream.config.assembly.edges import (
    Edges,
    FilePlaces,
    budget_of_groups,
    file_decoder,
    file_format,
    file_places,
    kafka_decoder,
    kafka_settings,
    open_edges,
    open_source,
    records_of,
    require_extras,
    require_one_partition,
    require_own_places,
    require_own_topics,
    sealing,
)
from rejex_stream.config.assembly.running import (
    DecodedBefore,
    Judging,
    by_partition,
    engine_spec,
    make_engine,
    make_executor,
    monitor_config,
    run_pipeline,
    run_settings,
)
from rejex_stream.config.assembly.stored import NothingStoredError, Stored, stored

__all__ = [
    "DecodedBefore", "Edges", "FilePlaces", "Judging", "NothingStoredError", "Stored",
    "budget_of_groups", "by_partition", "engine_spec", "file_decoder", "file_format", "file_places",
    "kafka_decoder", "kafka_settings", "make_engine", "make_executor", "monitor_config",
    "open_edges", "open_source", "records_of", "require_extras", "require_one_partition",
    "require_own_places", "require_own_topics", "run_pipeline", "run_settings", "sealing",
    "stored",
]  # fmt: skip
