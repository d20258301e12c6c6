"""What every answer carries and every request must pass: pure ASGI, so that streams stay streams.

* a Content-Security-Policy that allows this origin's own files and nothing else;
* a list of host names, against DNS rebinding;
* Fetch Metadata on everything that changes something, against forged requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTENT_SECURITY_POLICY", "FetchGuard", "HostGuard", "SafeHeaders"]

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


class SafeHeaders:
    """Adds the security headers, and keeps answers with data out of caches."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and mark its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def mark(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                static = scope["path"].startswith("/static/")
                headers.setdefault("cache-control", "no-cache" if static else "no-store")
            await send(message)

        await self._app(scope, receive, mark)


def _host_name(value: str) -> str:
    """Return a Host header without its port; IPv6 in brackets stays whole."""
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.partition(":")[0].lower()


class HostGuard:
    """Refuses requests for a host name this console does not go by.

    Parameters
    ----------
    allowed
        Names without port; a leading dot allows every name below.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    def _known(self, name: str) -> bool:
        return name in self._allowed or any(
            pattern.startswith(".") and name.endswith(pattern) for pattern in self._allowed
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is addressed to us."""
        if scope["type"] == "http":
            name = _host_name(Headers(scope=scope).get("host", ""))
            if not self._known(name):
                refusal = PlainTextResponse(
                    "This console does not answer for that host name. Start it with "
                    "--allow-host NAME to add one.\n",
                    status_code=400,
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class FetchGuard:
    """Refuses to change anything for another site's page.

    Browsers say where a request comes from (``Sec-Fetch-Site``, else ``Origin``). Programs that say
    neither must bring a bearer token; a cookie alone never suffices.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is safe, or comes from our own pages, or carries a token."""
        if scope["type"] == "http" and scope["method"] not in _SAFE_METHODS:
            headers = Headers(scope=scope)
            if not _own_request(headers):
                refusal = JSONResponse(
                    {
                        "code": "cross_site",
                        "message": "This request does not come from the console's own page; "
                        "programs send a bearer token.",
                    },
                    status_code=403,
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _own_request(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2] == headers.get("host")
    return headers.get("authorization", "").lower().startswith("bearer ")
