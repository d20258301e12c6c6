"""The way of an answer: which files it passes from the page's request to the model it changes.

    python tools/trace_answer.py            how many files, and the files in order
    python tools/trace_answer.py --calls    every function

A pipeline from a file to a file has an open incident, and somebody answers on its page that it is a
fault. The way has three parts: the request, until the answer is stored; the console's background,
until it stands in the control log; and the run that applies it. Of the last two only those
functions are its way that are not called where nobody has answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp, Message

from tools.trace_record import CONFIG, Call, Trace, lines, pipeline, run

EVENTS = 1_500


def _post(app: ASGIApp, path: str, body: object) -> None:
    """Post to an application as its own page does."""
    sent: list[Message] = []
    data = json.dumps(body).encode()
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"same-origin")]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "headers": headers, "query_string": b"", "http_version": "1.1",
        "scheme": "http", "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("localhost", 80), "asgi": {"version": "3.0"},
    }  # fmt: skip

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    if sent[0]["status"] != 200:
        raise SystemExit(str(sent))


def _traced(work: Callable[[], object]) -> list[Call]:
    trace = Trace()
    with trace.on():
        work()
    return trace.calls


def of_an_answer() -> dict[str, list[Call]]:
    """Return the functions of each part of the way, in the order of their first call."""
    from rejex_stream.config import load_config
    from rejex_stream.review.console.background import Background, feeding
    from rejex_stream.review.console.console import Access, Console
    from rejex_stream.review.console.server import make_app
    from rejex_stream.review.incidents.incident_store import open_incidents
    from rejex_stream.review.queue.review_store import ReviewStore

    with pipeline() as folder, tempfile.TemporaryDirectory(prefix="rejex-trace-") as name:
        feed = folder / "feed.csv"
        (folder / "pump.toml").write_text(CONFIG, encoding="utf-8")
        stuck = "".join(f"{1_700_000_000 + EVENTS + i},{40 + i % 7}\n" for i in range(100))
        feed.write_text("t,flow\n" + lines(0, EVENTS) + stuck, encoding="utf-8")
        run()
        store = ReviewStore(Path(name) / "review.db")
        fed = feeding(store.database.path, configs=[load_config(folder / "pump.toml")])
        background = Background(store, fed, undo_ms=0)
        while background.round():
            pass
        with store.database.read() as connection:
            incident = open_incidents(connection)[0].incident
        app = make_app(Console(store, Access(), background))
        answer = {"incident": incident.id, "version": incident.version, "kind": "fault"}
        idle = set(_traced(background.round))
        asked = _traced(lambda: _post(app, "/api/incidents/answer", answer | {"request_id": "r"}))
        sent = [call for call in _traced(background.round) if call not in idle]
        background.stop()
        store.close()
        runs = []
        with tempfile.TemporaryDirectory(prefix="rejex-trace-") as kept:
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            for answered in (False, True):
                shutil.rmtree(folder)  # the state knows its files by their place
                shutil.copytree(kept, folder)
                os.chdir(folder)
                if not answered:
                    (folder / "control.jsonl").unlink()
                with feed.open("a", encoding="utf-8") as file:
                    file.writelines(f"{1_700_001_600 + i},{40 + i % 7}\n" for i in range(40))
                runs.append(_traced(run))
    applied = [call for call in runs[1] if call not in set(runs[0])]
    parts = {"request": asked, "control log": sent, "run": applied}
    return {part: list(dict.fromkeys(calls)) for part, calls in parts.items()}


MODEL = "rejex_stream/incidents/state_machine.py"


def files_of(parts: dict[str, list[Call]]) -> tuple[list[str], list[str]]:
    """Return the files from the page to the state that decides verdicts, and those behind it."""
    files = list(dict.fromkeys(call.file for calls in parts.values() for call in calls))
    return files[: files.index(MODEL) + 1], files[files.index(MODEL) + 1 :]


def main() -> int:
    """Print the way of an answer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", action="store_true", help="every function")
    given = parser.parse_args()
    parts = of_an_answer()
    way, behind = files_of(parts)
    print(f"one answer: {len(way)} files to the model, {len(behind)} more that say so")
    for part, calls in parts.items():
        print(f"{part}:")
        named = [f"{call.file}: {call.function}" for call in calls]
        for line in named if given.calls else dict.fromkeys(call.file for call in calls):
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
