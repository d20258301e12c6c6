"""From a config to living objects: the one place that builds, and that knows both edges."""

from rejex_stream.builders.edges import (
    Edges,
    FilePlaces,
    file_decoder,
    file_format,
    file_places,
    open_edges,
    open_source,
    records_of,
)
from rejex_stream.builders.kafka import (
    kafka_decoder,
    kafka_settings,
    open_registry,
    registry_settings,
)
from rejex_stream.builders.recipes import engine_spec, monitor_config, run_settings, webhook_secret
from rejex_stream.builders.running import make_engine, make_executor, run_pipeline

__all__ = [
    "Edges",
    "FilePlaces",
    "engine_spec",
    "file_decoder",
    "file_format",
    "file_places",
    "kafka_decoder",
    "kafka_settings",
    "make_engine",
    "make_executor",
    "monitor_config",
    "open_edges",
    "open_registry",
    "open_source",
    "records_of",
    "registry_settings",
    "run_pipeline",
    "run_settings",
    "webhook_secret",
]
