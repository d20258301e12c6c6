"""``review serve``: the console, until somebody stops it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rejex_stream.config.operating import Logging
from rejex_stream.config.reviewing import Review
from rejex_stream.logs import logging_to_stderr
from rejex_stream.review.binding import networks, viewer_named
from rejex_stream.review.options import (
    ConfigOption,
    GapEventsOption,
    GapOption,
    ReviewOption,
    StoreOption,
    VerdictsOption,
    load_pipelines,
    or_config,
    overridden,
)
from rejex_stream.review.queue import Viewer
from rejex_stream.review.serving import feeding, require_web
from rejex_stream.review.serving import serve as serve_console
from rejex_stream.review.store import ReviewStore

if TYPE_CHECKING:
    from rejex_stream.review.web.auth import Access

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
    store: StoreOption = None,
    config: ConfigOption = None,
    review: ReviewOption = None,
    verdicts: VerdictsOption = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels file.", show_default="labels.jsonl beside the store")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default=or_config("host"))
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port; 0 takes any free one.", min=0, max=65535, show_default=or_config("port")
        ),
    ] = None,
    auth: Annotated[
        AuthChoice | None,
        typer.Option(
            help="How people prove who they are; none: loopback only.",
            show_default=or_config("auth"),
        ),
    ] = None,
    reviewer: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME:ROLE; with --auth token each gets a link."),
    ] = None,
    users: Annotated[
        Path | None, typer.Option(help="Users file for --auth users; see `review user`.")
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Address or network that --auth proxy trusts.")
    ] = None,
    proxy_header: Annotated[
        str | None,
        typer.Option(help="Header with the name.", show_default=or_config("proxy_header")),
    ] = None,
    lead: Annotated[list[str] | None, typer.Option(help="Who is a lead with --auth proxy.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Host name that the console goes by.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file, to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    gap: GapOption = None,
    gap_events: GapEventsOption = None,
    settle: Annotated[
        float | None,
        typer.Option(
            help="Seconds an episode waits for what comes after it.",
            min=0,
            show_default=or_config("settle_s"),
        ),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            help="Minutes a claim lasts.", min=0.1, show_default=or_config("lease_minutes")
        ),
    ] = None,
    sla: Annotated[
        float | None,
        typer.Option(
            help="Hours from which an episode is late.", min=0, show_default=or_config("sla_hours")
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            help="Hours after which an unreviewed episode expires.",
            min=0,
            show_default=or_config("max_age_hours"),
        ),
    ] = None,
    fallback: Annotated[
        FallbackChoice | None,
        typer.Option(help="What it expires into.", show_default=or_config("fallback")),
    ] = None,
    double_review: Annotated[
        float | None,
        typer.Option(
            help="Share of episodes that two people judge.",
            min=0,
            max=1,
            show_default=or_config("double_review_ratio"),
        ),
    ] = None,
    blind: Annotated[
        BlindChoice | None,
        typer.Option(
            help="Hide model and colleagues until one has decided.",
            show_default=or_config("blind"),
        ),
    ] = None,
    priority: Annotated[
        list[str] | None, typer.Option(help="Prefix of sensors that come first.")
    ] = None,
) -> None:
    """Serve the console until Ctrl-C or SIGTERM; options go before [review] of the config."""
    require_web()
    configs = load_pipelines(config)
    section = overridden(
        configs,
        store=_text(store),
        labels=_text(labels),
        host=host,
        port=port,
        auth=auth and auth.value,
        reviewers=reviewer,
        users_file=_text(users),
        proxies=proxy,
        proxy_header=proxy_header,
        leads=lead,
        allowed_hosts=allow_host,
        tls_cert=_text(tls_cert),
        tls_key=_text(tls_key),
        gap_s=gap,
        gap_events=gap_events,
        settle_s=settle,
        lease_minutes=lease,
        sla_hours=sla,
        max_age_hours=max_age,
        fallback=fallback and fallback.value,
        double_review_ratio=double_review,
        blind=blind and blind.value,
        priority_sensors=priority,
    )
    people = [viewer_named(text) for text in section.reviewers] or [Viewer(_own_name(), "admin")]
    access = _access(section, people[0])
    delta = configs[0].rejection.delta if configs else 0.05
    opened = ReviewStore(Path(section.store), section.settings(delta))
    try:
        fed = feeding(
            opened,
            configs=configs,
            reviews=review or (),
            verdicts=verdicts or (),
            labels=Path(section.labels) if section.labels is not None else None,
        )
    except BaseException:
        opened.close()
        raise

    def ready(address: str, links: Sequence[tuple[str, str]]) -> None:
        for name, link in links:
            print(f"link for {name}: {link}", flush=True)
        print(f"review console: {address}", flush=True)

    logs = configs[0].logging if configs else Logging()
    with logging_to_stderr(logs.level, logs.format, logs.libraries):
        serve_console(
            opened,
            fed,
            access,
            host=section.host,
            port=section.port,
            people=people if section.auth == "token" else (),
            allowed_hosts=section.allowed_hosts,
            certificate=(section.tls_cert, section.tls_key)
            if section.tls_cert and section.tls_key
            else None,
            on_ready=ready,
        )


def _access(section: Review, local: Viewer) -> Access:
    from rejex_stream.review.web.auth import Access, load_users

    users = section.users_file if section.auth == "users" else None
    return Access(
        mode=section.auth,
        local=local,
        users=load_users(Path(users)) if users is not None else {},
        proxies=networks(section.proxies),
        proxy_header=section.proxy_header.lower(),
        leads=section.leads,
        api_token=os.environ.get("REJEX_REVIEW_API_TOKEN", ""),
        secure_cookie=section.tls_cert is not None,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "reviewer"
