"""``review serve``: the console, until somebody stops it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.errors import ConfigError
from rejex_stream.logs import logging_to_stderr
from rejex_stream.review.options import (
    STORE,
    ConfigOption,
    GapEventsOption,
    GapOption,
    ReviewOption,
    StoreOption,
    VerdictsOption,
)
from rejex_stream.review.queue import ROLES, Viewer
from rejex_stream.review.serving import feeding, require_web
from rejex_stream.review.serving import serve as serve_console
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.store import ReviewStore

__all__ = ["serve"]


class AuthChoice(StrEnum):
    """How people prove who they are."""

    NONE = "none"
    TOKEN = "token"
    USERS = "users"
    PROXY = "proxy"


class BlindChoice(StrEnum):
    """What stays hidden until the reviewer has decided."""

    OFF = "off"
    SECOND = "second"
    ALWAYS = "always"


class FallbackChoice(StrEnum):
    """What becomes of episodes that nobody looked at."""

    NONE = "none"
    MODEL = "model"
    ANOMALY = "anomaly"


def serve(  # noqa: PLR0917 - typer makes options of them
    store: StoreOption = STORE,
    config: ConfigOption = None,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels file.  [default: labels.jsonl beside the store]"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.", min=0, max=65535)] = 8321,
    auth: Annotated[
        AuthChoice, typer.Option(help="How people prove who they are; none: loopback only.")
    ] = AuthChoice.NONE,
    reviewer: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME:ROLE; with --auth token each gets a link."),
    ] = None,
    users: Annotated[
        Path | None, typer.Option(help="Users file for --auth users; see `review user`.")
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Address that --auth proxy trusts.")
    ] = None,
    proxy_header: Annotated[str, typer.Option(help="Header with the name.")] = "x-forwarded-user",
    lead: Annotated[list[str] | None, typer.Option(help="Who is a lead with --auth proxy.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Host name that the console goes by.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file, to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    gap: GapOption = 60.0,
    gap_events: GapEventsOption = 5,
    settle: Annotated[
        float, typer.Option(help="Seconds an episode waits for what comes after it.", min=0)
    ] = 20.0,
    lease: Annotated[float, typer.Option(help="Minutes a claim lasts.", min=0.1)] = 10.0,
    sla: Annotated[float, typer.Option(help="Hours from which an episode is late.", min=0)] = 4.0,
    max_age: Annotated[
        float, typer.Option(help="Hours after which an unreviewed episode expires.", min=0)
    ] = 168.0,
    fallback: Annotated[
        FallbackChoice, typer.Option(help="What it expires into.")
    ] = FallbackChoice.NONE,
    double_review: Annotated[
        float, typer.Option(help="Share of episodes that two people judge.", min=0, max=1)
    ] = 0.0,
    blind: Annotated[
        BlindChoice,
        typer.Option(help="Hide model and colleagues until one has decided."),
    ] = BlindChoice.SECOND,
    priority: Annotated[
        list[str] | None, typer.Option(help="Prefix of sensors that come first.")
    ] = None,
) -> None:
    """Serve the console until Ctrl-C or SIGTERM."""
    require_web()
    from rejex_stream.review.web.auth import Access, check_bind, load_users

    check_bind(host, auth.value)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("HTTPS needs --tls-cert and --tls-key.")
    people = [_viewer(text) for text in reviewer or []]
    if auth is AuthChoice.TOKEN and not people:
        people = [Viewer(_own_name(), "admin")]
    if auth is AuthChoice.USERS and users is None:
        raise ConfigError("--auth users needs --users FILE; add people with `review user`.")
    access = Access(
        mode=auth.value,
        local=people[0] if people else Viewer(_own_name(), "admin"),
        users=load_users(users) if users is not None else {},
        proxies=tuple(proxy or ("127.0.0.1", "::1")),
        proxy_header=proxy_header.lower(),
        leads=tuple(lead or ()),
        api_token=os.environ.get("REJEX_REVIEW_API_TOKEN", ""),
        secure_cookie=tls_cert is not None,
    )
    settings = ReviewSettings(
        gap_ms=round(gap * 1000),
        gap_events=gap_events,
        settle_ms=round(settle * 1000),
        lease_ms=round(lease * 60_000),
        sla_ms=round(sla * 3_600_000),
        max_age_ms=round(max_age * 3_600_000),
        fallback=fallback.value,
        double_review_ratio=double_review,
        blind=blind.value,
        priority_sensors=tuple(priority or ()),
    )
    opened = ReviewStore(store, settings)
    fed = feeding(
        opened,
        configs=config or (),
        reviews=review or (),
        verdicts=verdicts or (),
        labels=labels,
    )

    def ready(address: str, links: Sequence[tuple[str, str]]) -> None:
        for name, link in links:
            print(f"link for {name}: {link}", flush=True)
        print(f"review console: {address}", flush=True)

    with logging_to_stderr():
        serve_console(
            opened,
            fed,
            access,
            host=host,
            port=port,
            people=people if auth is AuthChoice.TOKEN else (),
            allowed_hosts=allow_host or (),
            certificate=(str(tls_cert), str(tls_key)) if tls_cert and tls_key else None,
            on_ready=ready,
        )


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "reviewer"


def _viewer(text: str) -> Viewer:
    name, _, role = text.partition(":")
    known = next((one for one in ROLES if one == (role or "reviewer")), None)
    if not name or known is None:
        raise ConfigError(f"--reviewer {text!r}: give NAME:ROLE with one of {', '.join(ROLES)}.")
    return Viewer(name, known)
