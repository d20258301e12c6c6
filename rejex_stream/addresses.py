"""Addresses of HTTP services, held to what can be asked before anything is sent there."""

from __future__ import annotations

import re
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler

_LOGIN = re.compile(r"//.*@")


def expected_http_address(address: str) -> str | None:
    """Return what is expected where an address cannot be asked; None where it can be."""
    if not address.startswith(("http://", "https://")):
        return "an address that begins with http:// or https://"
    if not address.isascii() or not address.isprintable() or " " in address:
        return "an address of ASCII characters without spaces: write others as %XX or punycode"
    try:
        parts = urlsplit(address)
        reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        reachable = False
    if not reachable:
        return "an address with a host, and a number as its port"
    if "@" in parts.netloc:
        return "an address without a login in it"
    return None


def masked(address: str) -> str:
    """Return who is at an address, for people: the rest of it may be a secret, as of a webhook.

    Examples
    --------
    >>> masked("https://hooks.example.com:8443/T0/B1?token=s"), masked("http://localhost:9093")
    ('https://hooks.example.com:8443/***', 'http://localhost:9093')
    """
    parts = urlsplit(address)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return where if (parts.path + parts.query + parts.fragment).strip("/") == "" else f"{where}/***"


def without_login(text: str) -> str:
    """Return a text with the login of an address in it masked: a password may stand there.

    Examples
    --------
    >>> without_login("https://ada:secret@ops.example.com/hook")
    'https://***@ops.example.com/hook'
    """
    return _LOGIN.sub("//***@", text)


class NoRedirects(HTTPRedirectHandler):
    """Follows none: a password or a signature is for one host, and a body would be lost."""

    def redirect_request(self, *_: object) -> None:
        """Return nothing: the redirect becomes an error."""
