"""Addresses of HTTP services, held to what can be asked before anything is sent there."""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["expected_http_address"]


def expected_http_address(address: str) -> str | None:
    """Return what is expected where an address cannot be asked; None where it can be.

    Examples
    --------
    >>> expected_http_address("https://ops.example.com:8443/rejex")
    >>> expected_http_address("localhost:9093")
    'an address that begins with http:// or https://'
    >>> expected_http_address("http://localhost:port")
    'an address with a host, and a number as its port'
    """
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
