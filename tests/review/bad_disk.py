"""A reviewer's day on a disk that fails at one write: told `FOLDER STRIDE`, prints what came of it.

It is run with ``bad_disk.c`` in front of libc. Each day is one fork, so that none knows of another.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sqlite3
import sys
import traceback
from collections import Counter
from pathlib import Path

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review
from rejex_stream.encode.label_records import decode_label
from rejex_stream.errors import ConnectorError
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Database, broken_link
from rejex_stream.review.queue.label_store import LabelFile, pending
from rejex_stream.review.queue.labelling import LabelRequest
from rejex_stream.review.queue.pipeline_logs import FileFeed
from rejex_stream.review.queue.review_store import ReviewStore
from tests.review.test_review_store import ADA, episodes, item

KINDS = ("EIO once", "EIO three times", "a short write, then EIO twice", "ENOSPC once")
N_ITEMS = 12
PATIENCE = 8


def tried(errors: list[str], call):
    """Do it again, as the console does, while the disk says no."""
    for _ in range(PATIENCE):
        try:
            return call()
        except ConnectorError as error:
            errors.append(str(error))
    raise AssertionError(f"it never came right: {errors[-1]}")


def day(folder: Path, errors: list[str]) -> None:
    """Take items in, decide them one by one, take one answer back, and send the labels."""
    feed = FileFeed(folder.parent / "review.jsonl", "review")
    store = tried(errors, lambda: ReviewStore(folder / "review.db", Review(settle_s=0)))
    store.database.close()
    path = folder / "review.db"
    store.database = tried(errors, lambda: Database(path, busy_timeout_s=0.01))
    tried(errors, lambda: feed.pump(store))
    sink = tried(errors, lambda: LabelFile(folder / "labels.jsonl"))
    for number, target in enumerate(sorted(tried(errors, lambda: episodes(store)), key=str)):
        request = LabelRequest(
            request_id=f"r{number}", verdict=("normal", "anomaly")[number % 2], targets=(target,)
        )
        tried(errors, lambda: labelling.label_cases(store, request, ADA))  # noqa: B023
        if number % 3 == 0:
            tried(errors, lambda: store.send_labels(sink))
    tried(errors, lambda: labelling.undo(store, "undo", ADA))
    tried(errors, lambda: store.send_labels(sink))
    sink.close()
    store.close()


def found(folder: Path) -> dict[str, object]:
    """What is there now, seen by somebody else."""
    with Database(folder / "review.db").read() as connection:
        seqs = [row[0] for row in connection.execute("SELECT seq FROM event ORDER BY seq")]
        said = [
            tuple(row) for row in connection.execute(
                "SELECT reviewer, kind, verdict FROM label ORDER BY label_seq"
            )
        ]  # fmt: skip
        trail = [tuple(row) for row in connection.execute("SELECT actor, action FROM audit")]
        broken, waiting = broken_link(connection), pending(connection)
    lines = (folder / "labels.jsonl").read_bytes().splitlines()
    ids = [decode_label(line).label_id for line in lines]
    return {
        "items": seqs, "said": said, "trail": trail, "broken": broken,
        "labels": len(set(ids)), "doubled": len(ids) - len(set(ids)), "pending": waiting,
    }  # fmt: skip


def one(folder: Path, shim: ctypes.CDLL, at: int, kind: int, out: int) -> None:
    """One day in a process of its own; its outcome goes to a pipe."""
    told: dict[str, object] = {}
    errors: list[str] = []
    try:
        folder.mkdir()
        shim.bad_disk_arm(str(folder).encode(), at, kind)
        day(folder, errors)
        told["calls"], told["bitten"] = shim.bad_disk_calls(), shim.bad_disk_bitten()
        shim.bad_disk_arm(b"", -1, 0)
        told["found"], told["errors"] = found(folder), errors
    except BaseException:
        told["failed"] = traceback.format_exc()
    os.write(out, json.dumps(told).encode())
    os._exit(0)


def in_a_fork(folder: Path, shim: ctypes.CDLL, at: int, kind: int) -> dict[str, object]:
    come, go = os.pipe()
    child = os.fork()
    if not child:
        one(folder, shim, at, kind, go)
    os.close(go)
    with os.fdopen(come, "rb") as told:
        outcome = json.loads(told.read() or b'{"failed": "it was killed"}')
    os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def main(folder: Path, stride: int) -> int:
    shim = ctypes.CDLL(None)  # it is in front of libc
    (folder / "review.jsonl").write_bytes(
        b"".join(encode_review(item(1_000 * i)) + b"\n" for i in range(N_ITEMS))
    )
    quiet = in_a_fork(folder / "quiet", shim, -1, 0)
    wanted = quiet["found"]
    days, bitten, doubled, words, wrong = 0, 0, 0, Counter(), []
    for kind in range(len(KINDS)):
        for at in range(kind % stride, quiet["calls"], stride):
            told = in_a_fork(folder / f"{kind}-{at}", shim, at, kind)
            days += 1
            same = {**told.get("found", {}), "doubled": 0} == wanted
            if "failed" in told or not same or told["bitten"] == 0:
                wrong.append({"kind": KINDS[kind], "at": at, **told})
                continue
            bitten += bool(told["errors"])
            doubled += told["found"]["doubled"]
            words.update(error.split("(")[0] for error in told["errors"])
    print(json.dumps({
        "calls": quiet["calls"], "days": days, "bitten": bitten, "doubled": doubled,
        "words": dict(words), "wrong": wrong[:5], "n_wrong": len(wrong), "wanted": wanted,
        "sqlite": sqlite3.sqlite_version,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
