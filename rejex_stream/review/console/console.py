"""The running console, who is there, and what every request passes on its way to a handler.

* nobody but you, a one-time link, or what a proxy says; sessions live in the store, so a restart
  logs nobody out, and only hashes of their tokens are kept;
* a Content-Security-Policy that allows this origin's own files and nothing else;
* a list of host names, against DNS rebinding;
* Fetch Metadata on everything that changes something, against forged requests.

The guard is pure ASGI, so that streams stay streams.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rejex_stream.config.reviewing import SYSTEM, AuthMode, Network, Role, networks
from rejex_stream.incidents.calendar import Plan
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.review.console.background import Background
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.queue.database import Refusal, RefusalCode, Viewer
from rejex_stream.review.queue.listing import SORTS, TABS, QueueFilter, Summary, Tab
from rejex_stream.review.queue.review_store import ReviewStore

COOKIE = "rejex_session"
PROXY_HEADER = "x-forwarded-user"
_OWN = networks(("127.0.0.1", "::1"))
_SESSION_MS = 30 * 24 * 3_600_000
_LINK_MS = 24 * 3_600_000


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Sessions:
    """One-time links and the sessions they open, kept in the store."""

    def __init__(self, store: ReviewStore) -> None:
        self._store = store

    def _issue(self, viewer: Viewer, kind: Literal["cookie", "link"], life_ms: int) -> str:
        token = secrets.token_urlsafe(32)
        now = self._store.now_ms()
        with self._store.database.write() as connection:
            connection.execute("DELETE FROM session WHERE expires_ms <= ?", (now,))
            connection.execute(
                "INSERT INTO session VALUES (?,?,?,?,?)",
                (_hashed(token), viewer.reviewer, viewer.role, kind, now + life_ms),
            )
        return token

    def link(self, viewer: Viewer) -> str:
        """Return a token that opens one session, within a day."""
        return self._issue(viewer, "link", _LINK_MS)

    def open(self, viewer: Viewer) -> str:
        return self._issue(viewer, "cookie", _SESSION_MS)

    def whose(self, token: str, kind: Literal["cookie", "link"] = "cookie") -> Viewer | None:
        """Return whose token this is, if it is valid."""
        with self._store.database.read() as connection:
            row = connection.execute(
                "SELECT reviewer, role FROM session WHERE token_hash = ? AND kind = ? "
                "AND expires_ms > ?",
                (_hashed(token), kind, self._store.now_ms()),
            ).fetchone()
        return None if row is None else Viewer(row["reviewer"], row["role"])

    def redeem(self, link: str) -> tuple[Viewer, str] | None:
        """Use up a link and return who it is for, with the token of a new session."""
        viewer = self.whose(link, "link")
        if viewer is None:  # a guess shall not hold the store's lock
            return None
        with self._store.database.write() as connection:  # of two at once, one finds it
            used = connection.execute("DELETE FROM session WHERE token_hash = ?", (_hashed(link),))
        return (viewer, self.open(viewer)) if used.rowcount else None

    def revoke(self, reviewer: str) -> int:
        """End all sessions and links of a person; returns how many there were."""
        with self._store.database.write() as connection:
            ended = connection.execute("DELETE FROM session WHERE reviewer = ?", (reviewer,))
        return ended.rowcount

    def close(self, token: str) -> None:
        with self._store.database.write() as connection:
            connection.execute("DELETE FROM session WHERE token_hash = ?", (_hashed(token),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How people prove who they are."""

    # `none`: everybody on this machine is `local`. `token`: one-time links. `proxy`: the header
    # X-Forwarded-User, set by a proxy at one of `proxies`
    mode: AuthMode = "none"
    # who works here in mode `none`
    local: Viewer = field(default_factory=lambda: Viewer("reviewer", "admin"))
    # networks that may set the header; the role of those who come that way
    proxies: tuple[Network, ...] = _OWN
    proxy_role: Role = "reviewer"
    # in mode `proxy`: the roles of those who have another one
    roles: Mapping[str, Role] = field(default_factory=dict)
    api_token: str = ""  # lets programs in, as `api_viewer`
    api_viewer: Viewer = field(default_factory=lambda: Viewer("api", "reviewer"))
    secure_cookie: bool = False  # send the cookie over HTTPS only

    def viewer(self, headers: Headers, peer: str, sessions: Sessions) -> Viewer | None:
        """Return who sent a request; ``None`` if that is not known."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            right = self.api_token and hmac.compare_digest(token.encode(), self.api_token.encode())
            return self.api_viewer if right else None
        if self.mode == "none":
            return self.local
        if self.mode == "proxy":
            # Two of them: one may be the client's own, and nobody knows which.
            names = [name.strip() for name in headers.getlist(PROXY_HEADER)]
            name = names[0] if len(names) == 1 else ""
            if not name or name == SYSTEM or not self._trusts(peer):
                return None
            return Viewer(name, self.roles.get(name, self.proxy_role))
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        return sessions.whose(cookie) if cookie else None

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)  # as a dual-stack socket tells it
        return any((mapped or address) in network for network in self.proxies)


# ------------------------------------------------------------------------------------- the guard
_OPEN = ("/login", "/static/", "/livez", "/readyz", "/favicon.ico")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), usb=()",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Lets a request in, or refuses it, and marks every answer with the security headers."""

    def __init__(
        self, app: ASGIApp, allowed: Iterable[str], access: Access, sessions: Sessions
    ) -> None:
        self._app, self._access, self._sessions = app, access, sessions
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the sender of a request and pass it on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def mark(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                static = scope["path"].startswith("/static/")  # answers with data are in no cache
                headers.setdefault("cache-control", "no-cache" if static else "no-store")
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is None:
            peer = scope["client"][0] if scope.get("client") else ""
            viewer = await run_in_threadpool(
                self._access.viewer, Headers(scope=scope), peer, self._sessions
            )
            scope.setdefault("state", {})["viewer"] = viewer
            if viewer is None and not scope["path"].startswith(_OPEN):
                refusal = _please_log_in(scope)
        await (refusal or self._app)(scope, receive, mark)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse another host's name, and whatever another site's page would change."""
        # Browsers say where a request comes from (`Sec-Fetch-Site`, else `Origin`). Programs that
        # say neither must bring a bearer token; a cookie alone never suffices.
        name = _host_name(headers.get("host", ""))
        suffixes = tuple(pattern for pattern in self._allowed if pattern.startswith("."))
        if name not in self._allowed and not name.endswith(suffixes):
            return PlainTextResponse(
                "This console does not answer for that host name: add it to "
                "review.allowed_hosts.\n",
                status_code=400,
            )
        if scope["method"] in _SAFE_METHODS or _own_request(headers):
            return None
        return JSONResponse(
            {
                "code": "cross_site",
                "message": "This request does not come from the console's own page; "
                "programs send a bearer token.",
            },
            status_code=403,
        )


def _host_name(value: str) -> str:
    """Return a Host header without its port; IPv6 in brackets stays whole."""
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.partition(":")[0].lower()


def _own_request(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2] == headers.get("host")
    return headers.get("authorization", "").lower().startswith("bearer ")


def _please_log_in(scope: Scope) -> Response:
    """Lead pages to the login; programs are refused."""
    path: str = scope["path"]
    if path.startswith("/api/") or scope["method"] not in ("GET", "HEAD"):
        return JSONResponse(
            {"code": "unknown_sender", "message": "Please log in first."}, status_code=401
        )
    query = scope["query_string"].decode("ascii", "replace")
    wanted = path + (f"?{query}" if query else "")
    return RedirectResponse(f"/login?next={quote(wanted, safe='')}", status_code=303)


# ------------------------------------------------------------------------------------ the console
_MOST_BODY_BYTES = 512 * 1024
_STATUS: dict[RefusalCode, int] = {
    "leased": 409,
    "changed": 409,
    "forbidden": 403,
    "unknown": 404,
    "nothing": 404,
    "bad_request": 422,
}
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(slots=True)
class Console:
    """The running console."""

    store: ReviewStore
    access: Access
    background: Background | None = None
    # how channels and sensors are shown, by name of pipeline
    shown: dict[str, DisplayNames] = field(default_factory=dict)
    # where more readings are found, by name of pipeline
    inputs: dict[str, ContextLoader] = field(default_factory=dict)
    calendars: dict[str, tuple[Plan, ...]] = field(default_factory=dict)  # when work is planned
    lacks: Sequence[str] = ()  # what cannot be shown, and why: a sentence each
    title: str = "rejex-stream"  # shown in the corner, e.g. the pipeline's name
    sessions: Sessions = field(init=False)
    # counts of a viewer and a filter: (what the store was, when, they)
    summaries: dict[tuple[Viewer, str], tuple[tuple[int, ...], int, Summary]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.store)


def console_of(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


def viewer_of(request: Request) -> Viewer:
    """Return who sent a request; the guard has seen to it that it is known."""
    viewer: Viewer = request.state.viewer
    return viewer


def filter_of(request: Request) -> QueueFilter:
    """Return the view in the address; what cannot be read is left at its default."""
    query = request.query_params
    tab: Tab = next((name for name in TABS if name == query.get("tab")), "ready")
    sort = query.get("sort", "")
    since = query.get("since", "")
    return QueueFilter(
        tab, query.get("q", "")[:200], sort if sort in SORTS else "", whole_number(since)
    )


def whole_number(text: str) -> int | None:
    """Return a whole number of an address; ``None`` of anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


# --------------------------------------------------------------------------- making handlers
@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API, and whose it is."""

    request: Request
    console: Console
    viewer: Viewer

    @property
    def store(self) -> ReviewStore:
        return self.console.store

    def place(self, name: str) -> str:
        return str(self.request.path_params[name])


Handler = Callable[[Request], Awaitable[Response]]


def answers(*body: type[msgspec.Struct]) -> Callable[[Callable[..., object]], Handler]:
    """Make a handler: `work` gets the call, and its `body` where there is one; returns JSON."""

    def decorate(work: Callable[..., object]) -> Handler:
        @wraps(work)
        async def handle(request: Request) -> Response:
            try:
                given = [await read_body(request, kind) for kind in body]
                call = Call(request, console_of(request), viewer_of(request))
                result = await run_in_threadpool(work, call, *given)  # which may block
            except Refusal as refusal:
                said = {"code": refusal.code, "message": str(refusal)}
                return as_json(said | {"episode": refusal.episode_id}, _STATUS[refusal.code])
            except ClientDisconnect:
                return Response(status_code=499)
            return result if isinstance(result, Response) else as_json(result)

        return handle

    return decorate


def as_json(content: object, status: int = 200) -> Response:
    """Return JSON; numbers that are not finite become null."""
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


async def read_body(request: Request, kind: type[S]) -> S:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_BODY_BYTES:
            raise Refusal("bad_request", "The request is larger than 512 kB.")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise Refusal("bad_request", f"The request cannot be read: {str(error)[:200]}.") from error
