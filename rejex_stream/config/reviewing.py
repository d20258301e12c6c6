"""Settings of the review queue and its console, and what they may not be together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from rejex_stream.errors import ConfigError
from rejex_stream.features import Circle
from rejex_stream.settings import Section, setting

Role: TypeAlias = Literal["viewer", "reviewer", "lead", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "reviewer", "lead", "admin")
Blind: TypeAlias = Literal["off", "second", "always"]
DefaultAnswer: TypeAlias = Literal["none", "model", "anomaly"]
AuthMode: TypeAlias = Literal["none", "token", "proxy"]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
SYSTEM = "system"
"""Who does what nobody did; no person may be called so."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def networks(addresses: Iterable[str]) -> tuple[Network, ...]:
    parsed: list[Network] = []
    for address in addresses:
        try:
            parsed.append(ipaddress.ip_network(address))
        except ValueError as error:
            raise ConfigError(
                f"proxy {address!r} is no address or network ({error}): give e.g. 10.0.0.7 or "
                "10.0.0.0/24."
            ) from error
    return tuple(parsed)


def named_reviewer(text: str) -> tuple[str, Role]:
    """Return the name and role in ``NAME`` or ``NAME:ROLE``."""
    name, _, role = text.partition(":")
    known = next((known_role for known_role in ROLES if known_role == (role or "reviewer")), None)
    if not name or known is None:
        raise ConfigError(f"reviewer {text!r}: give NAME:ROLE with one of {', '.join(ROLES)}.")
    if name.strip() in ("", SYSTEM):
        raise ConfigError(
            f"{name!r} cannot be a reviewer's name ({SYSTEM!r} is who lets episodes expire): "
            "give a person's."
        )
    return name, known


def check_bind(host: str, mode: AuthMode) -> None:
    """Refuse to offer the console to a network without asking who is there."""
    if mode == "none" and not is_loopback(host):
        raise ConfigError(
            f"host = {host!r} can be reached from other machines, and auth = 'none' would let "
            "anybody in: set auth to token or proxy, or bind to 127.0.0.1."
        )


class Channel(Section):
    """What a channel is, `[channels.NAME]`; `label` is for people alone, all else may decide."""

    unit: str = setting("", example="°C", max_length=40)
    """Of its values. Where it is one of the good of input.quality, a value in another is missing,
    and that is told at once."""
    label: str | None = setting(None, otherwise="its name", example="Gearbox", max_length=100)
    """What people call it."""
    low: float | None = setting(None, says="Its lower limit, drawn as a line.", example=5.0)
    high: float | None = setting(None, says="Its upper limit, drawn as a line.", example=80.0)
    kind: Literal["number", "angle", "counter"] = setting("number")
    """angle: it goes round, as a direction does, so that its end is its beginning. Rows have its
    sine and cosine, and what changes goes the short way round. Rows are made one by one then, and
    an event without one of its channels is rejected as unscorable. counter: it only adds up, as an
    energy or a volume does, and its rise an hour is read in its place; limits are of that."""
    period: float | None = setting(None, otherwise="360", gt=0, example=6.283185307179586)
    """Of an angle, a whole turn."""
    follows: str | None = setting(None, min_length=1, example="wind_direction")
    """Of an angle, another that it is turned after, as a nacelle is after the wind: how far it is
    behind counts as well, and speaks for this channel."""
    missing: tuple[float, ...] = setting((), otherwise="none", example=[-999.0, 3276.7])
    """Numbers that stand in it where a value is missing; what they are in other channels is told
    there, and texts are of all (input.missing)."""
    limit: Literal["draw", "alarm"] = setting("draw")
    """What its limits do: they are drawn, or a value beyond one is an anomaly as well, whatever its
    score, and somebody is told at once."""
    side: Literal["both", "low", "high"] = setting("both")
    """Which side of what is usual counts: low: drops alone, as of a pressure that a leak lets down;
    high: rises alone. For Sensor; a limit counts on either side."""


def sides_of(channels: Mapping[str, Channel]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, channel.side) for name, channel in sorted(channels.items()) if channel.side != "both"
    )


def angles_of(channels: Mapping[str, Channel]) -> tuple[Circle, ...]:
    return tuple(
        Circle(name, channel.period or 360.0, channel.follows or "")
        for name, channel in sorted(channels.items())
        if channel.kind == "angle"
    )


class Sensor(Section):
    """What people are told of the sensors of a pattern, `[sensors."T*"]`; the first that fits."""

    link: str = setting(
        "", pattern=r"^(https?://\S+)?$", example="https://wiki.example/assets/{sensor}"
    )
    """Where to read on about it: a runbook, the asset; {sensor} stands for its name."""


class Capacity(Section):
    """How much people can be asked, all pipelines of a queue together."""

    questions_per_day: int | None = setting(
        None, unit="cases/day", otherwise="every case is asked", ge=0, example=240
    )
    """So many cases are put to people between midnights (UTC), by turns audited ones and those
    whose answer is worth most; the others wait."""


class Review(Section):
    """Rejected events as work for people; of no consequence for any verdict."""

    store: str = setting("review.db", min_length=1)
    """The queue's database, one file on a local disk."""
    labels: str | None = setting(
        None,
        otherwise="the topic output.labels (Kafka), or labels.jsonl beside the store",
        min_length=1,
        example="labels.jsonl",
    )
    """File of what reviewers answered."""
    gap_events: int | None = setting(
        None,
        unit="events",
        otherwise="how far the stream's own scores remember each other, 5 to 60",
        ge=0,
        example=30,
    )
    """Rejected events of one sensor this far apart, anomalies between them not counted, are one
    case."""
    capacity: Capacity = setting(Capacity, says="How much people can be asked.")
    settle_s: float = setting(20.0, unit="s", ge=0)
    """How long an episode waits for what comes after it."""
    max_age_hours: float = setting(168.0, unit="h", ge=0)
    """Age at which an episode that nobody reviewed expires."""
    default_answer: DefaultAnswer = setting("none")
    """What it expires into: no verdict, the model's own raw label, or anomaly; never counted as a
    person's."""
    double_review_ratio: float = setting(0.0, unit="share of episodes", ge=0, le=1)
    """Share that a second reviewer judges independently, drawn by hash."""
    blind: Blind = setting("second")
    """When the model's leaning and other people's labels stay hidden until the reviewer has
    decided: never, for second opinions and audits, or always."""
    priority_sensors: tuple[str, ...] = setting((), example=["T07/", "*/oil_pressure"])
    """What comes first and does not wait to settle; alerts of it have the label priority. Each is
    how a sensor begins, or SENSOR/CHANNEL; with * it is a pattern of the whole."""
    host: str = setting("127.0.0.1", says="Address the console listens on.", min_length=1)
    port: int = setting(8321, says="Its port; 0 takes any free one.", ge=0, le=65535)
    auth: AuthMode = setting("none")
    """How people prove who they are: not at all (this machine only), by one-time links, or by the
    header X-Forwarded-User of a proxy."""
    reviewers: tuple[str, ...] = setting((), otherwise="you, as admin", example=["ada:lead", "bob"])
    """NAME or NAME:ROLE; roles: viewer, reviewer, lead, admin. With auth token each gets a link;
    with auth proxy whoever is not named is a reviewer."""
    new_normal: Role = setting("reviewer", example="lead")
    """The least role that may answer *new normal*: the reference is made anew by it."""
    proxies: tuple[str, ...] = setting(("127.0.0.1", "::1"), example=["10.0.0.0/24"])
    """Addresses or networks that auth proxy trusts."""
    allowed_hosts: tuple[str, ...] = setting((), example=["review.example.com"])
    """Host names the console goes by, besides this machine's; a leading dot: all below."""
    tls_cert: str | None = setting(None, otherwise="plain HTTP", min_length=1, example="c.pem")
    """PEM file with certificate and key, to serve HTTPS."""

    @property
    def settle_ms(self) -> int:
        return round(self.settle_s * 1000)

    @property
    def max_age_ms(self) -> int:
        return round(self.max_age_hours * 3_600_000)

    def check(self) -> None:
        check_bind(self.host, self.auth)
        for text in self.reviewers:
            named_reviewer(text)
        networks(self.proxies)
