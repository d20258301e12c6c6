"""Who is there: nobody but you, a link, or what a proxy says.

Sessions live in the store, so a restart logs nobody out; only hashes of their tokens are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Literal

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from rejex_stream.config.reviewing import SYSTEM, AuthMode, Network, Role, networks
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.review.queue.store import ReviewStore

__all__ = ["COOKIE", "Access", "Sessions"]

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
        """Return the token of a new session."""
        return self._issue(viewer, "cookie", _SESSION_MS)

    def _find(self, connection: Connection, token: str, kind: str) -> Viewer | None:
        row = connection.execute(
            "SELECT reviewer, role FROM session WHERE token_hash = ? AND kind = ? "
            "AND expires_ms > ?",
            (_hashed(token), kind, self._store.now_ms()),
        ).fetchone()
        return None if row is None else Viewer(row["reviewer"], row["role"])

    def whose(self, token: str, kind: Literal["cookie", "link"] = "cookie") -> Viewer | None:
        """Return whose token this is, if it is valid."""
        with self._store.database.read() as connection:
            return self._find(connection, token, kind)

    def redeem(self, link: str) -> tuple[Viewer, str] | None:
        """Use up a link and return who it is for, with the token of a new session."""
        if self.whose(link, "link") is None:  # a guess shall not hold the store's lock
            return None
        with self._store.database.write() as connection:
            viewer = self._find(connection, link, "link")
            connection.execute("DELETE FROM session WHERE token_hash = ?", (_hashed(link),))
        return None if viewer is None else (viewer, self.open(viewer))

    def close(self, token: str) -> None:
        """End a session."""
        with self._store.database.write() as connection:
            connection.execute("DELETE FROM session WHERE token_hash = ?", (_hashed(token),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How people prove who they are.

    Attributes
    ----------
    mode
        ``none``: everybody on this machine is `local`. ``token``: one-time links. ``proxy``: the
        header X-Forwarded-User, set by a proxy at one of `proxies`.
    local
        Who works here in mode ``none``.
    proxies, proxy_role
        Networks that may set the header; the role of those who come that way.
    leads
        Names that are leads in mode ``proxy``.
    api_token
        Lets programs in, as `api_viewer`.
    secure_cookie
        Send the cookie over HTTPS only.
    """

    mode: AuthMode = "none"
    local: Viewer = field(default_factory=lambda: Viewer("reviewer", "admin"))
    proxies: tuple[Network, ...] = _OWN
    proxy_role: Role = "reviewer"
    leads: tuple[str, ...] = ()
    api_token: str = ""
    api_viewer: Viewer = field(default_factory=lambda: Viewer("api", "reviewer"))
    secure_cookie: bool = False

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
            return Viewer(name, "lead" if name in self.leads else self.proxy_role)
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        return sessions.whose(cookie) if cookie else None

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)  # as a dual-stack socket tells it
        return any((mapped or address) in network for network in self.proxies)
