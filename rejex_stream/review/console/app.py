"""The console as an ASGI application."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from rejex_stream.review.console import api, fleet, login, pages
from rejex_stream.review.console.console import Console
from rejex_stream.review.console.login import LoginGuard
from rejex_stream.review.console.security import FetchGuard, HostGuard, SafeHeaders
from rejex_stream.review.incidents import screen
from rejex_stream.review.queue.database import StoreError

__all__ = ["make_app"]

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_STATIC = Path(__file__).parent / "static"


def make_app(console: Console, allowed_hosts: Iterable[str] = ()) -> Starlette:
    """Return the application.

    Parameters
    ----------
    console
        What its handlers share.
    allowed_hosts
        Host names it goes by, besides those of this machine's loopback.
    """
    app = Starlette(
        routes=[
            *pages.routes,
            *api.routes,
            *fleet.routes,
            *screen.routes,
            *login.routes,
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5),
            Middleware(HostGuard, allowed=(*_LOOPBACK, *allowed_hosts)),
            Middleware(FetchGuard),
            Middleware(LoginGuard, console=console),
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
