"""The console as an ASGI application, served until it is told to end, and then ending at once."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from rejex_stream.config.reviewing import check_bind, is_loopback
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors
from rejex_stream.review.console import api, pages
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.console.console import Access, Console, Guard
from rejex_stream.review.incidents import screen
from rejex_stream.review.queue.database import StoreError, Viewer
from rejex_stream.review.queue.review_store import ReviewStore

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_STATIC = Path(__file__).parent / "static"


def make_app(console: Console, allowed_hosts: Iterable[str] = ()) -> Starlette:
    app = Starlette(
        routes=[
            *pages.routes,
            *api.routes,
            *screen.routes,
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[
            Middleware(
                Guard,
                allowed=(*_LOOPBACK, *allowed_hosts),
                access=console.access,
                sessions=console.sessions,
            ),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5),
        ],
        exception_handlers={
            404: _not_found,
            405: _not_found,
            500: _failed,
            StoreError: _store_failed,
        },
    )
    app.state.console = console
    app.state.templates = pages.environment()
    return app


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return _error_page(request, "Not here", "There is no such page.", status)


async def _failed(request: Request, _: Exception) -> Response:
    return _error_page(
        request,
        "That did not work",
        "The console met an error; it is in its log. Nothing was half written: try again.",
        500,
    )


async def _store_failed(request: Request, error: Exception) -> Response:
    return _error_page(request, "The review store cannot be used", str(error), 503)


def _error_page(request: Request, heading: str, message: str, status: int) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"code": "error", "message": message}, status)
    return pages.render(
        request, "error_bare.html", {"heading": heading, "message": message}, status
    )


_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConnectorError(
            f"The console cannot listen on {host}:{port} ({error.strerror}): "
            "give another --port, 0 for any free one."
        ) from error
    listener.listen(128)
    return listener


def warn_of_plain_http(host: str, access: Access, *, encrypted: bool) -> None:
    """Log a warning where links, cookies or tokens would cross a network as plain text."""
    if encrypted or is_loopback(host) or not (access.mode == "token" or access.api_token):
        return
    _log.warning(
        "review.host is %s and there is no certificate: links, cookies and API tokens cross the "
        "network as plain text. Set review.tls_cert, or bind to 127.0.0.1 "
        "behind a proxy that speaks HTTPS.",
        host,
    )


def require_certificate(path: str) -> None:
    """Refuse a file that holds no certificate with its key."""
    fix = "give a PEM file that holds the certificate and its key"
    with explaining_os_errors(f"review.tls_cert = {path!r} cannot be used", fix, kind=ConfigError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)


class _Impatient(H11Protocol):
    """Closes a connection whose request does not come to its end in time, or that reads nothing."""

    # uvicorn has a limit between requests and none within one: a few hundred callers that send a
    # letter a minute, or never look at what they are sent, would hold their sockets for ever.

    patience_s = 20.0
    _owed: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._start_clock()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def _start_clock(self) -> None:
        if repr(self.conn.their_state) not in ("IDLE", "SEND_BODY"):  # h11 is uvicorn's, not ours
            self._stop_clock()
        elif self._owed is None:
            self._owed = self.loop.call_later(self.patience_s, self.transport.close)

    def _stop_clock(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None


class ConsoleServer(uvicorn.Server):
    """A server whose end waits for no slow caller, and that says when it is ready."""

    def __init__(
        self,
        app: Starlette,
        *,
        on_ready: Callable[[], None] | None = None,
        certificate: str | None = None,
        patience_s: float = _Impatient.patience_s,
    ) -> None:
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                app,
                http=type("_Patient", (_Impatient,), {"patience_s": patience_s}),
                log_level="warning",
                access_log=False,
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=2,
                timeout_keep_alive=30,
                h11_max_incomplete_event_size=64 * 1024,
                ssl_certfile=certificate,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None and not self.should_exit:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own would raise the signal again once it is done. A SIGTERM then ends the
        # process before the labels decided last have left, and before the store is closed.
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(
    store: ReviewStore,
    fed: Feeding,
    access: Access,
    people: Sequence[Viewer],
    on_ready: Callable[[str, Sequence[tuple[str, str]]], None],
) -> None:
    """Serve the console until a signal comes; closes feeds, labels and store.

    Each of the `people` gets a link.
    """
    host, certificate = store.settings.host, store.settings.tls_cert
    allowed_hosts = store.settings.allowed_hosts
    warn_of_plain_http(host, access, encrypted=certificate is not None)
    background = Background(store, fed)
    try:
        check_bind(host, access.mode)
        listener = listen(host, store.settings.port)
    except BaseException:
        background.stop()
        store.close()
        raise
    scheme = "https" if certificate else "http"
    if host in ("0.0.0.0", "::"):  # where it listens, but no name that anybody can go to
        shown = next((name for name in allowed_hosts if not name.startswith(".")), "localhost")
    else:
        shown = f"[{host}]" if ":" in host else host
    address = f"{scheme}://{shown}:{listener.getsockname()[1]}/"
    console = Console(
        store, access, background, fed.shown, fed.inputs, fed.calendars, fed.lacks, title=fed.title
    )

    def ready() -> None:
        links = [
            (viewer.reviewer, f"{address}login?token={console.sessions.link(viewer)}")
            for viewer in people
        ]
        on_ready(address, links)

    app = make_app(console, [shown, *allowed_hosts])
    server = ConsoleServer(app, on_ready=ready, certificate=certificate)
    background.start()
    try:
        server.run(sockets=[listener])
    finally:
        if background.stop():
            store.close()
