"""The whole configuration of one pipeline, as one immutable value."""

from __future__ import annotations

from typing import Any

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from rejex_connectors.kafka.kafka_settings import Kafka, RegistrySettings

from rejex_stream.config.deciding import (
    Calendar,
    Detector,
    Features,
    Learning,
    Pipeline,
    Refit,
    Rejection,
)
from rejex_stream.config.input import Input
from rejex_stream.config.operating import Alerts, Logging, Metrics
from rejex_stream.config.reviewing import Channel, Review, Sensor
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.monitor.config import Monitor
from rejex_stream.run.run_settings import Output, Run, State
from rejex_stream.settings import setting

__all__ = ["ENV_PREFIX", "Config"]

ENV_PREFIX = "REJEX_"


class Config(BaseSettings):
    """One pipeline, section by section; read one with :func:`~rejex_stream.config.load_config`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    pipeline: Pipeline = setting(Pipeline, says="Who decides.")
    input: Input = setting(says="Where readings come from, and which field means what.")
    features: Features = setting(Features, says="What the detector sees of a reading.")
    detector: Detector = setting(Detector, says="The model that scores.")
    rejection: Rejection = setting(says="When to abstain.")
    refit: Refit = setting(Refit, says="When a batch detector is fitted anew.")
    incidents: Alarms = setting(Alarms, says="When somebody is told of a fault.")
    hold: Hold = setting(Hold, says="What happens while a fault lasts.")
    calendar: tuple[Calendar, ...] = setting((), says="When work is planned.")
    learning: Learning = setting(Learning, says="A challenger that answers teach.")
    monitor: Monitor = setting(Monitor, says="The watch over the rejection rate.")
    output: Output = setting(Output, says="Where outcomes go.")
    state: State = setting(State, says="What survives a restart.")
    review: Review = setting(Review, says="The queue of rejected events, and its console.")
    channels: dict[str, Channel] = setting({}, says="How people are shown a channel.")
    sensors: dict[str, Sensor] = setting({}, says="What people are told of a sensor.")
    run: Run = setting(Run, says="The loop.")
    kafka: Kafka = setting(Kafka, says="The broker.")
    schema_registry: RegistrySettings = setting(RegistrySettings, says="The schema registry.")
    metrics: Metrics = setting(Metrics, says="The Prometheus endpoint.")
    alerts: Alerts = setting(Alerts, says="Who is told of alarms.")
    logging: Logging = setting(Logging, says="What is said while running.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the caller alone; file and environment are merged by the loader."""
        return (init_settings,)

    def redacted(self) -> dict[str, Any]:
        """Return all values as JSON data, secrets and client options masked."""
        data = self.model_dump(mode="json")
        data["kafka"]["options"] = dict.fromkeys(data["kafka"]["options"], "**********")
        return data
