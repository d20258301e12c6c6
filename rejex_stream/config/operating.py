"""Settings of what stands around the pipeline: metrics, alerts, logs."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import SecretStr

from rejex_stream.addresses import expected_http_address
from rejex_stream.errors import ConfigError
from rejex_stream.settings import HttpAddress, Section, secret, setting


class Metrics(Section):
    """The Prometheus endpoint."""

    host: str = setting("127.0.0.1", says="Address to serve metrics and health on.", min_length=1)
    port: int = setting(0, says="Port of it; 0: off.", ge=0, le=65535, example=9108)


class Alerts(Section):
    """Who is told of alarms and incidents."""

    table: ClassVar[str] = "alerts"
    alertmanager_url: HttpAddress | None = setting(None, example="http://localhost:9093")
    """Alertmanager to post alarms and incidents to."""
    alertmanager_repeat_s: float = setting(60.0, unit="s", ge=1)
    """How often what is active is posted again; what is not for four times as long ends by
    itself."""
    webhook_url: SecretStr | None = secret()
    """Address that gets a signed CloudEvent for every alarm and every change of an incident; shown
    to nobody but for its host."""
    webhook_secret: SecretStr | None = secret(says="Key of the webhook's signature.")
    console_url: HttpAddress | None = setting(
        None, otherwise="no link", example="https://review.example.com"
    )
    """Where people reach the console: alerts of incidents link to it."""

    def check(self) -> None:
        """Refuse an address that nobody could be told at, where it stands in the config itself."""
        given = None if self.webhook_url is None else self.webhook_url.get_secret_value()
        if given is not None and not given.startswith(("env:", "file:")):
            self.webhook_address()

    def webhook_address(self) -> str | None:
        address = self.reveal("webhook_url")
        if address is not None and (expected := expected_http_address(address)):
            raise ConfigError(f"alerts.webhook_url = ***: expected {expected}")
        return address


class Logging(Section):
    """What is said while running."""

    level: Literal["debug", "info", "warning", "error"] = setting("info")
    """From which level on; of libraries, warnings. What Kafka's client repeats is left out for a
    minute, unless this is debug."""
    format: Literal["auto", "text", "json"] = setting("auto")
    """JSON lines or text; auto: text on a terminal."""
