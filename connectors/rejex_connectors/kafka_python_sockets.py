"""Mends leaks of kafka-python 3.0: what belongs to a connection that failed stays open.

Sockets, and for a client that never came up its thread too, are left to the garbage collector or
for ever, so a worker that waits through a long outage runs out of file descriptors. Importing this
module makes the library close them. Remove with kafka-python 3.1.
"""

from __future__ import annotations

from typing import Any

from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport

__all__: list[str] = []

_connect = KafkaNetSocket.sock_connect
_handshake = KafkaSSLTransport.handshake
_bootstrap = KafkaConnectionManager.bootstrap


async def _connect_or_close(
    self: KafkaNetSocket,
    net: Any,  # noqa: ANN401 - the library has no types
    sock: Any,  # noqa: ANN401
    *arguments: Any,  # noqa: ANN401
    **named: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    try:
        return await _connect(self, net, sock, *arguments, **named)
    except BaseException:
        sock.close()
        raise


async def _handshake_or_close(self: KafkaSSLTransport) -> None:
    try:
        await _handshake(self)
    except BaseException:
        self.close()
        raise


def _bootstrap_or_close(
    self: KafkaConnectionManager,
    *arguments: Any,  # noqa: ANN401
    **named: Any,  # noqa: ANN401
) -> None:
    """Bootstrap; clients do it in their constructor, so nobody else could close what they hold."""
    try:
        _bootstrap(self, *arguments, **named)
    except BaseException:
        self.close()
        self._net.close()
        raise


if _connect.__name__ == "sock_connect":  # once, however often this module is imported
    KafkaNetSocket.sock_connect = _connect_or_close
    KafkaSSLTransport.handshake = _handshake_or_close
    KafkaConnectionManager.bootstrap = _bootstrap_or_close
