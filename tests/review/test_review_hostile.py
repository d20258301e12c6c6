"""Mutated requests on every route of the console: each is answered, none is an error of ours.

A few hundred always, ten thousand by ``make soak``.
"""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from urllib.parse import quote

import msgspec
import pytest

from rejex_stream.encode import encode_review
from rejex_stream.review.console import api, pages
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.incidents import screen
from tests.review.console_server import running
from tests.review.test_questions import Line, ill, incident, tell

ODD = (
    None, True, "", "x" * 300, "\x00", "é́", "../../etc/passwd", "<b>", "'; DROP TABLE label; --",
    "9" * 40, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, -0.0, [], {}, [[]], {"a": {"b": []}},
    ["feed-0-45"] * 3, "feed-0-45", "ada", "2024-02-30T25:61:00Z", "nan", "-1e999",
)  # fmt: skip
BODY = {
    "request_id": "r", "verdict": "anomaly", "targets": [{"episode": "E-1", "version": 1}],
    "note": "n", "tags": ["t"], "confidence": 3, "minutes": 1.5, "incident": "feed-0-45",
    "version": 1, "kind": "fault", "episodes": ["E-1"], "to": "ada", "text": "t", "step": 1,
    "view": {"tab": "ready", "q": "", "sort": "newest"}, "incidents": ["feed-0-45"], "on": True,
}  # fmt: skip
QUERY = ("from", "to", "before", "after", "q", "tab", "sort", "page", "step", "limit", "sensor",
         "format", "form", "next", "kind", "days", "ids", "zoom")  # fmt: skip


BROKEN = (
    b'{"x":' + b"[" * 5_000, b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'{"request_id":"\xff"}', b'{"version":1e999}', b'{"version":' + b"9" * 5_000 + b"}",
)  # fmt: skip
POSTS = ("labels", "undo", "incidents/answer", "assign", "incidents/seen")
FAR = (
    f"/api/episodes/E-x/series?from={'9' * 30}&to=1", f"/incidents?from={'9' * 30}",
    f"/audit?before={'9' * 30}", "/api/incident-readings/feed-0-45?from=-1e9&to=1",
)  # fmt: skip


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def body_of(rng):
    fields = rng.sample([*BODY], rng.randrange(1, len(BODY) + 1))
    body = {name: BODY[name] for name in {"request_id", *fields}}
    for _ in range(rng.choice([0, 1, 1, 3])):
        body[rng.choice([*body, "zzz"])] = rng.choice(ODD)
    raw = bytearray(json.dumps(body).encode())
    if rng.random() < 0.2:
        for _ in range(rng.randrange(1, 5)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    if rng.random() < 0.05:
        raw[rng.randrange(len(raw)) :] = b""
    if rng.random() < 0.02:
        raw = bytearray(b"[" * rng.choice([10, 3_000, 100_000]))
    return bytes(raw)


def request_of(rng, path):
    for name in ("episode", "form", "incident:path"):
        known = {"episode": "E-1", "form": "csv", "incident:path": "feed-0-45"}[name]
        value = known if rng.random() < 0.5 else as_text(rng.choice(ODD))
        path = path.replace(f"{{{name}}}", quote(value, safe="") or "-")
    pairs = [
        f"{rng.choice(QUERY)}={quote(as_text(rng.choice(ODD)), safe='')}"
        for _ in range(rng.choice([0, 1, 2, 4]))
    ]
    return path + ("?" + "&".join(pairs) if pairs else "")


def all_routes():
    return [
        (route.path, method)
        for part in (pages, api, screen)
        for route in part.routes
        if getattr(route, "methods", None)
        for method in sorted(route.methods - {"HEAD"})
        if route.path != "/logout"
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "n", [400, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_no_mutated_request_is_an_error_of_the_console(wall_store, caplog, n):
    store, rng, met = wall_store(settle_s=0), random.Random(n), Counter()
    review = [ill(45)]
    store.ingest("review", map(encode_review, review), pipeline="farm")
    tell(store, msgspec.structs.replace(incident(opened=45), onset_ms=40_000), pipeline="farm")
    routes = all_routes()
    assert len(routes) > 25
    with (
        running(
            store, background=Background(store, Feeding(control_lines={"farm": Line()}))
        ) as console,
        caplog.at_level(logging.ERROR),
    ):
        for path in POSTS:
            for body in BROKEN:
                told = {"content-type": "application/json"}
                assert console.ask(f"/api/{path}", body, headers=told).status == 422, path
        for path in FAR:
            assert console.ask(path).status < 500, path
        for i in range(n):
            path, method = routes[i % len(routes)]
            body = body_of(rng) if method == "POST" else None
            sent = request_of(rng, path)
            kind = rng.choice(["application/json"] * 4 + ["text/plain", "a/b; charset=zz", ""])
            found = console.ask(sent, body, headers={"content-type": kind} if body else {})
            assert found.status < 500, (method, sent, body)
            met[found.status] += 1
        assert console.ask("/queue").status == 200, "and it still works"
    assert not [record.getMessage() for record in caplog.records]
    assert {200, 404, 422} <= met.keys()
    assert store.database.integrity() == "ok"
