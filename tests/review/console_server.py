"""A real console on a real port, and a small HTTP client that says where it comes from."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rejex_stream.review.console.background import Background
from rejex_stream.review.console.console import Access, Console
from rejex_stream.review.console.server import ConsoleServer, listen, make_app
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.review_store import ReviewStore
from tests.waiting import PATIENCE_S


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    console: Console
    port: int
    cookies: str = ""
    base: str = field(init=False)

    def __post_init__(self) -> None:
        self.base = f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> ReviewStore:
        return self.console.store

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None,
        headers: dict[str, str] | None = None, site: str | None = "same-origin",
    ) -> Answer:  # fmt: skip
        """Send a request as the console's own page would, unless told otherwise."""
        sent = dict(headers or {})
        if site is not None:
            sent.setdefault("sec-fetch-site", site)
        if self.cookies:
            sent.setdefault("cookie", self.cookies)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if data is not None and not isinstance(body, bytes):
            sent.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
            response = connection.getresponse()
            return Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()


@contextmanager
def running(
    store: ReviewStore, *, access: Access | None = None, background: Background | None = None,
    port: int = 0, patience_s: float = PATIENCE_S,
) -> Iterator[Running]:  # fmt: skip
    console = Console(
        store, access or Access(local=Viewer("ada", "admin")), background, title="Wind farm"
    )
    listener = listen("127.0.0.1", port)
    ready = threading.Event()
    server = ConsoleServer(make_app(console), on_ready=ready.set, patience_s=patience_s)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S), "the console did not start"
    try:
        yield Running(console, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive(), "the console did not end"
