"""Settings of the review queue and its console."""

from __future__ import annotations

from rejex_stream.config.fields import Section, setting
from rejex_stream.review.binding import AuthMode, check_bind
from rejex_stream.review.settings import Blind, Fallback, ReviewSettings

__all__ = ["Review"]


class Review(Section):
    """Rejected events as work for people; of no consequence for any verdict."""

    store: str = setting(
        "review.db", says="The queue's database, one file on a local disk.", min_length=1
    )
    labels: str | None = setting(
        None,
        says="File of what reviewers answered.",
        otherwise="the topic output.labels (Kafka), or labels.jsonl beside the store",
        min_length=1,
        example="labels.jsonl",
    )
    gap_s: float = setting(
        60.0,
        unit="s",
        says="Rejected events of one sensor this far apart in event time are one episode.",
        ge=0,
    )
    gap_events: int = setting(
        5, unit="events", says="Or with so few other events between them.", ge=0
    )
    max_duration_hours: float = setting(
        24.0, unit="h", says="An episode this long is continued by a new one.", ge=0
    )
    max_events: int = setting(
        500, unit="events", says="An episode of so many is continued by a new one.", ge=1
    )
    settle_s: float = setting(
        20.0, unit="s", says="How long an episode waits for what comes after it.", ge=0
    )
    lease_minutes: float = setting(
        10.0, unit="min", says="How long a claim lasts without a sign of life.", ge=0.1
    )
    sla_hours: float = setting(
        4.0, unit="h", says="Age from which an episode counts as late.", ge=0
    )
    max_age_hours: float = setting(
        168.0, unit="h", says="Age at which an episode that nobody reviewed expires.", ge=0
    )
    fallback: Fallback = setting(
        "none",
        says="What it expires into: no verdict, the model's own raw label, or anomaly; never "
        "counted as a person's.",
    )
    double_review_ratio: float = setting(
        0.0,
        unit="share of episodes",
        says="Share that a second reviewer judges independently, drawn by hash.",
        ge=0,
        le=1,
    )
    blind: Blind = setting(
        "second",
        says="When the model's leaning and other people's labels stay hidden until the reviewer "
        "has decided: never, for second opinions and audits, or always.",
    )
    priority_sensors: tuple[str, ...] = setting(
        (),
        says="Prefixes of sensors that come first and do not wait to settle.",
        example=["T07/"],
    )
    points_per_sensor: int = setting(
        100_000,
        unit="readings",
        says="Kept for plots at full resolution; of older ones the extremes of each minute.",
        ge=1,
    )
    host: str = setting("127.0.0.1", says="Address the console listens on.", min_length=1)
    port: int = setting(8321, says="Its port; 0 takes any free one.", ge=0, le=65535)
    auth: AuthMode = setting(
        "none",
        says="How people prove who they are: not at all (this machine only), by one-time links, by "
        "passwords, or by a header of a proxy.",
    )
    reviewers: tuple[str, ...] = setting(
        (),
        says="NAME or NAME:ROLE, with auth token each gets a link; roles: viewer, reviewer, lead, "
        "admin.",
        otherwise="you, as admin",
        example=["ada:lead", "bob"],
    )
    users_file: str | None = setting(
        None,
        says="Names and password hashes for auth users, made by `rejex-stream review user`.",
        otherwise="none",
        min_length=1,
        example="users.json",
    )
    proxies: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"),
        says="Addresses or networks that auth proxy trusts.",
        example=["10.0.0.0/24"],
    )
    proxy_header: str = setting(
        "x-forwarded-user",
        says="Header in which the proxy names the reviewer.",
        pattern=r"^[A-Za-z0-9-]+$",
    )
    leads: tuple[str, ...] = setting(
        (), says="Names that are leads with auth proxy.", example=["ada"]
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        says="Host names the console goes by, besides this machine's; a leading dot: all below.",
        example=["review.example.com"],
    )
    tls_cert: str | None = setting(
        None,
        says="PEM file, to serve HTTPS.",
        otherwise="plain HTTP",
        min_length=1,
        example="c.pem",
    )
    tls_key: str | None = setting(
        None, says="PEM file of its key.", otherwise="none", min_length=1, example="k.pem"
    )

    def settings(self, delta: float = 0.05) -> ReviewSettings:
        """Return what the queue is told; `delta` is the pipeline's."""
        return ReviewSettings(
            gap_ms=round(self.gap_s * 1000),
            gap_events=self.gap_events,
            max_duration_ms=round(self.max_duration_hours * 3_600_000),
            max_events=self.max_events,
            settle_ms=round(self.settle_s * 1000),
            lease_ms=round(self.lease_minutes * 60_000),
            sla_ms=round(self.sla_hours * 3_600_000),
            max_age_ms=round(self.max_age_hours * 3_600_000),
            fallback=self.fallback,
            double_review_ratio=self.double_review_ratio,
            blind=self.blind,
            priority_sensors=self.priority_sensors,
            delta=delta,
            points_per_sensor=self.points_per_sensor,
        )

    def check(self) -> None:
        """Refuse what no single setting can know to be wrong.

        Raises
        ------
        ConfigError
            If the settings would let anybody in, or do not fit each other.
        """
        check_bind(
            self.host,
            self.auth,
            reviewers=self.reviewers,
            proxies=self.proxies,
            users_file=self.users_file,
            tls=(self.tls_cert, self.tls_key),
        )
        self.settings()
