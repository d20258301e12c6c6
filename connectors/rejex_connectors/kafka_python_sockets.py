"""Mends one leak of kafka-python 3.0: the socket of a connection that was refused stays open.

It is left to the garbage collector, so a worker that waits through a long outage runs out of file
descriptors. Importing this module makes the library close it. Remove with kafka-python 3.1.
"""

from __future__ import annotations

from typing import Any

from kafka.net.inet import KafkaNetSocket

__all__: list[str] = []

_connect = KafkaNetSocket.sock_connect


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


if _connect.__name__ == "sock_connect":  # once, however often this module is imported
    KafkaNetSocket.sock_connect = _connect_or_close
