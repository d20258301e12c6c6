"""The door: finds out who sent a request, and shows everybody else to the login page."""

from __future__ import annotations

from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rejex_stream.review.web.console import Console

__all__ = ["LoginGuard"]

_OPEN = ("/login", "/static/", "/livez", "/readyz", "/favicon.ico")


class LoginGuard:
    """Lets in whom the console knows; pages redirect to the login, the API answers 401."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the sender, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        console = self._console
        peer = scope["client"][0] if scope.get("client") else ""
        viewer = await run_in_threadpool(
            console.access.viewer, Headers(scope=scope), peer, console.sessions
        )
        scope.setdefault("state", {})["viewer"] = viewer
        path: str = scope["path"]
        if viewer is None and not path.startswith(_OPEN):
            await self._refusal(scope, path)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, path: str) -> Response:
        if path.startswith("/api/") or scope["method"] not in ("GET", "HEAD"):
            return JSONResponse(
                {"code": "unknown_sender", "message": "Please log in first."}, status_code=401
            )
        query = scope["query_string"].decode("ascii", "replace")
        wanted = path + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", status_code=303)
