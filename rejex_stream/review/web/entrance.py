"""Logging in and out, and the health addresses that need no login."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from rejex_stream.review.web.auth import COOKIE
from rejex_stream.review.web.console import Console, console_of, off_loop
from rejex_stream.review.web.pages import render

__all__ = ["routes"]


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
        problem = "This link has been used, or is older than a day. Ask for a new one."
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
            "own": None,
        },
        status,
    )


async def post_login(request: Request) -> Response:
    """Open a session for a link or for a name and its password; failures are rationed."""
    console = console_of(request)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > 8192:
            return Response(status_code=413)
    form = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
    peer = request.client.host if request.client else ""
    name = form.get("name", "")[:100]
    # By address and by name: neither many names from one place nor one name from many places.
    keys = [f"address {peer}"] + ([f"name {name}"] if name else [])
    wait_s = max(console.throttle.wait_s(key) for key in keys)
    if wait_s > 0:
        response = _login_page(
            request,
            console,
            problem=f"Too many tries. Wait {wait_s:.0f} seconds, then try again.",
            status=429,
        )
        response.headers["retry-after"] = f"{wait_s:.0f}"
        return response
    token = await _token_for(console, form, name)
    if token is None:
        for key in keys:
            console.throttle.failed(key)
        problem = (
            "This link has been used, or is older than a day. Ask for a new one."
            if form.get("token")
            else "Name and password do not fit together."
        )
        return _login_page(request, console, problem=problem, status=403)
    response = RedirectResponse(_safe_next(form.get("next", "")), status_code=303)
    response.set_cookie(
        COOKIE,
        token,
        max_age=30 * 86_400,
        httponly=True,
        samesite="lax",
        secure=console.access.secure_cookie or request.url.scheme == "https",
        path="/",
    )
    return response


async def _token_for(console: Console, form: dict[str, str], name: str) -> str | None:
    if form.get("token"):
        opened = await off_loop(console.sessions.redeem, form["token"])
        return opened[1] if opened else None
    if console.access.mode != "users":
        return None
    viewer = await off_loop(console.access.password_viewer, name, form.get("password", ""))
    return await off_loop(console.sessions.open, viewer) if viewer else None


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
    """Say whether the store can be written, and nothing in the upkeep fails."""
    console = console_of(request)

    def work() -> list[str]:
        with console.store.database.write() as connection:
            connection.execute(
                "INSERT INTO meta VALUES ('ready', '1') "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            )
        return sorted(console.upkeep.problems) if console.upkeep else []

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
