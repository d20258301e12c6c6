"""Whom the console lets in, as far as settings say: checked before anything is opened."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from rejex_stream.errors import ConfigError
from rejex_stream.review.queue import ROLES, Viewer

__all__ = [
    "SYSTEM",
    "AuthMode",
    "check_bind",
    "check_name",
    "is_loopback",
    "networks",
    "viewer_named",
]

AuthMode: TypeAlias = Literal["none", "token", "users", "proxy"]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
SYSTEM = "system"
"""Who does what nobody did; no person may be called so."""


def is_loopback(host: str) -> bool:
    """Say whether an address reaches this machine only.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def networks(addresses: Iterable[str]) -> tuple[Network, ...]:
    """Return addresses and networks as the latter.

    Raises
    ------
    ConfigError
        Naming the one that is neither.

    Examples
    --------
    >>> networks(["10.0.0.0/24", "::1"])
    (IPv4Network('10.0.0.0/24'), IPv6Network('::1/128'))
    """
    found: list[Network] = []
    for address in addresses:
        try:
            found.append(ipaddress.ip_network(address))
        except ValueError as error:
            raise ConfigError(
                f"proxy {address!r} is no address or network ({error}): give e.g. 10.0.0.7 or "
                "10.0.0.0/24."
            ) from error
    return tuple(found)


def viewer_named(text: str) -> Viewer:
    """Return the person in ``NAME`` or ``NAME:ROLE``.

    Raises
    ------
    ConfigError
        If the role is unknown, or the name is empty or the system's own.

    Examples
    --------
    >>> viewer_named("ada:lead"), viewer_named("bob")
    (Viewer(reviewer='ada', role='lead'), Viewer(reviewer='bob', role='reviewer'))
    """
    name, _, role = text.partition(":")
    known = next((one for one in ROLES if one == (role or "reviewer")), None)
    if not name or known is None:
        raise ConfigError(f"reviewer {text!r}: give NAME:ROLE with one of {', '.join(ROLES)}.")
    check_name(name)
    return Viewer(name, known)


def check_name(name: str) -> None:
    """Refuse a name under which a person's labels would look like the system's, or like nobody's.

    Raises
    ------
    ConfigError
        If it is empty or the system's own.
    """
    if name.strip() in ("", SYSTEM):
        raise ConfigError(
            f"{name!r} cannot be a reviewer's name ({SYSTEM!r} is who lets episodes expire): "
            "give a person's."
        )


def check_bind(
    host: str,
    mode: AuthMode,
    *,
    reviewers: Sequence[str] = (),
    proxies: Sequence[str] = (),
    users_file: str | None = "",
    tls: tuple[str | None, str | None] = (None, None),
) -> None:
    """Refuse to offer the console to a network without asking who is there.

    Raises
    ------
    ConfigError
        If `host` is not loopback and `mode` is ``none``, or what a mode needs is missing or wrong.

    Examples
    --------
    >>> check_bind("0.0.0.0", "none")
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: host = '0.0.0.0' can be reached from other machines, and \
auth = 'none' would let anybody in: set auth to token, users or proxy, or bind to 127.0.0.1.
    """
    if mode == "none" and not is_loopback(host):
        raise ConfigError(
            f"host = {host!r} can be reached from other machines, and auth = 'none' would let "
            "anybody in: set auth to token, users or proxy, or bind to 127.0.0.1."
        )
    if mode == "users" and users_file is None:
        raise ConfigError(
            "auth = 'users' needs a users file: give --users FILE or users_file, and add people "
            "with `rejex-stream review user`."
        )
    if (tls[0] is None) != (tls[1] is None):
        raise ConfigError("HTTPS needs both a certificate and its key: give tls_cert and tls_key.")
    for text in reviewers:
        viewer_named(text)
    networks(proxies)
