"""Serving the console, and ending at once when told to."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from rejex_stream.errors import ConnectorError
from rejex_stream.review.web.console import Console

__all__ = ["ConsoleServer", "listen"]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free one.

    Raises
    ------
    ConnectorError
        If the port is taken or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConnectorError(
            f"The console cannot listen on {host}:{port} ({error.strerror}): "
            "give another --port, 0 for any free one."
        ) from error
    listener.listen(128)
    return listener


class ConsoleServer(uvicorn.Server):
    """A server that ends its event streams when a signal comes.

    Left alone, uvicorn waits for open streams for ever; a viewer's tab would hold the process.
    """

    def __init__(
        self,
        app: Starlette,
        console: Console,
        *,
        on_ready: Callable[[], None] | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self._console = console
        self._on_ready = on_ready
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=2,
                timeout_keep_alive=30,
                h11_max_incomplete_event_size=64 * 1024,
                ssl_certfile=certificate[0] if certificate else None,
                ssl_keyfile=certificate[1] if certificate else None,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        self._console.stop = asyncio.Event()
        await super().startup(sockets)
        if self._on_ready is not None and not self.should_exit:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams first, then everything; a second Ctrl-C waits for no connection.

        uvicorn's own would raise the signal again once it is done. A SIGTERM then ends the process
        before the labels decided last have left, and before the store is closed.
        """
        self._console.stop.set()
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def end(self) -> None:
        """End as a signal would; for tests, from another thread."""
        self.should_exit = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._console.stop.set)

    _loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to end."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)
