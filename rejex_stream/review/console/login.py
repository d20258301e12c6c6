"""The door: who sent a request, how to log in and out, and the addresses that need no login."""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rejex_stream.review.console.auth import COOKIE
from rejex_stream.review.console.console import Console, console_of, off_loop
from rejex_stream.review.console.pages import render

__all__ = ["LoginGuard", "routes"]

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


_SPENT = "This link has been used, or is older than a day. Ask for a new one."


def _safe_next(wanted: str) -> str:
    """Return a path of our own; anything else leads to the queue."""
    own = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if own and wanted.isprintable() else "/queue"


async def get_login(request: Request) -> Response:
    """Show how to get in. Opening a link only shows a button, so that previews do not use it up."""
    console = console_of(request)
    if request.state.viewer is not None:
        return RedirectResponse(_safe_next(request.query_params.get("next", "")), 303)
    link = request.query_params.get("token", "")
    owner = await off_loop(console.sessions.whose, link, "link") if link else None
    return _login_page(request, console, owner=owner.reviewer if owner else "", link=link)


def _login_page(  # noqa: PLR0917
    request: Request,
    console: Console,
    owner: str = "",
    link: str = "",
    problem: str = "",
    status: int = 200,
) -> Response:
    if link and not owner and not problem:
        problem = _SPENT
    return render(
        request,
        "login.html",
        {
            "mode": console.access.mode,
            "owner": owner,
            "link": link if owner else "",
            "problem": problem,
            "next": _safe_next(request.query_params.get("next", "")),
            "title": console.title,
        },
        status,
    )


async def post_login(request: Request) -> Response:
    """Open a session for a link: with its 256 bits no guess becomes a right one."""
    console = console_of(request)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > 8192:
            return Response(status_code=413)
    form = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
    opened = await off_loop(console.sessions.redeem, form.get("token", ""))
    if opened is None:
        return _login_page(request, console, problem=_SPENT, status=403)
    response = RedirectResponse(_safe_next(form.get("next", "")), status_code=303)
    response.set_cookie(
        COOKIE,
        opened[1],
        max_age=30 * 86_400,
        httponly=True,
        samesite="lax",
        secure=console.access.secure_cookie or request.url.scheme == "https",
        path="/",
    )
    return response


async def post_logout(request: Request) -> Response:
    """End the session."""
    console = console_of(request)
    token = request.cookies.get(COOKIE)
    if token:
        await off_loop(console.sessions.close, token)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, path="/")
    return response


async def livez(_: Request) -> Response:
    """Say that the loop runs."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Say whether the store can be written, by asking for its lock, and no upkeep fails."""
    console = console_of(request)

    def work() -> list[str]:
        with console.store.database.write():
            pass
        return sorted(console.background.problems) if console.background else []

    failing = await off_loop(work)
    status = 503 if failing else 200
    return JSONResponse({"status": "failing" if failing else "ok", "failing": failing}, status)


routes = [
    Route("/login", get_login),
    Route("/login", post_login, methods=["POST"]),
    Route("/logout", post_logout, methods=["POST"]),
    Route("/livez", livez),
    Route("/readyz", readyz),
]
