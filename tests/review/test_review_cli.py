"""``rejex-stream review …`` as people call it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from rejex_stream.cli.main import main
from rejex_stream.review.console.console import Sessions
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.label_store import LabelFile, read_labels
from rejex_stream.review.queue.review_store import ReviewStore
from tests.program import command, started
from tests.review.test_context_loader import CONFIG
from tests.review.test_review_store import ADA, episodes, label
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def files(farm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return farm.write(tmp_path)


def run(*words: object) -> int:
    return main(["review", *map(str, words)])


@contextmanager
def serving(*words: object, folder) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Serve in a process of its own; yields it, its address and what it said before."""
    process = started(command("review", "serve", "--port", "0", *words), cwd=folder)
    said = []
    try:
        while True:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            said.append(line)
            found = re.match(r"review console: (http://\S+)/$", line.strip())
            if found:
                break
        yield process, found.group(1), said
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.thorough
def test_ingest_report_export_and_rebuild_work_together(files, capsys, tmp_path):
    verdicts, review = files
    assert run("ingest", "--review", review, "--verdicts", verdicts, "--output", "json") == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["verdicts"] == 11_400
    assert counts["items"] > 500
    store = ReviewStore(tmp_path / "review.db")
    for number, target in enumerate(episodes(store)[:20]):
        label(store, ADA, [target], ("anomaly", "normal")[number % 2], request=str(number))
    labelling.undo(store, "u", ADA)
    sink = LabelFile(tmp_path / "labels.jsonl")
    store.send_labels(sink)
    sink.close()
    store.close()
    assert run("report", "--output", "json") == 0
    found = json.loads(capsys.readouterr().out)
    (said,) = found["pipelines"].values()
    assert said["rejected"]["events"] == 792
    assert sum(said[group]["judged"] for group in ("accepted_normal", "rejected")) >= 20
    assert run("report") == 0
    assert "precision of accepted anomalies" in capsys.readouterr().out
    assert run("export", tmp_path / "out.csv") == 0
    assert run("export", tmp_path / "out.jsonl", "--all") == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == counts["items"]
    capsys.readouterr()
    again = ("rebuild", "--review", review, "--labels", tmp_path / "labels.jsonl")
    assert run(*again, "--store", tmp_path / "b.db", "--check", tmp_path / "review.db") == 0
    assert "same as checked" in capsys.readouterr().out
    assert run(*again) == 2, "a store that exists is not replaced unasked"
    assert run(*again, "--replace") == 0


def test_mistakes_get_a_sentence_and_status_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        (("report",), "There is no review store"),
        (("ingest",), "Nothing to take in"),
        (("serve", "--host", "0.0.0.0"), "let anybody in"),
        (("serve", "--reviewer", "ada:boss"), "give NAME:ROLE"),
        (("rebuild", "--review", "no.jsonl", "--labels", "no.jsonl"), "does not exist"),
    ):
        assert run(*words) == 2, words
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "limit"),
    [("--port", "70000", "65535"), ("--auth", "magic", "'none', 'token', 'proxy'")],
)
def test_an_option_has_the_choices_and_limits_of_its_setting(flag, value, limit, capsys):
    # Refused later than the option: without its limit nothing is served, and the test fails.
    assert run("serve", "--host", "0.0.0.0", flag, value) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert flag in said.partition("Error")[2]
    assert limit in said


@pytest.mark.thorough
def test_serve_follows_files_gives_links_and_ends_at_once_with_viewers(files, tmp_path):
    verdicts, review = files
    words = ("--review", review, "--verdicts", verdicts, "--auth", "token")
    people = ("--reviewer", "ada:lead", "--reviewer", "bob")
    with serving(*words, *people, folder=tmp_path) as (process, base, said):
        links = dict(re.findall(r"link for (\w+): (\S+)", "".join(said)))
        assert set(links) == {"ada", "bob"}
        with urllib.request.urlopen(links["ada"]) as answer:
            assert "Continue as ada" in answer.read().decode()
        token = links["bob"].partition("token=")[2]
        request = urllib.request.Request(
            f"{base}/login", data=f"token={token}".encode(), headers={"origin": base}
        )
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(request) as answer:
            assert "Review queue" in answer.read().decode()
        cookie = next(iter(_jar(opener)))
        port = int(base.rpartition(":")[2])
        viewers = []
        for _ in range(5):
            viewer = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            viewer.sendall(
                b"GET /queue HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                b"cookie: %b=%b\r\n\r\n" % (cookie.name.encode(), cookie.value.encode())
            )
            viewers.append(viewer)
        for viewer in viewers:
            assert b"200 OK" in viewer.recv(4096)
        process.send_signal(signal.SIGTERM)
        for viewer in viewers:
            b"".join(iter(partial(viewer.recv, 1 << 16), b""))  # to the end of the connection
            viewer.close()
        process.wait(PATIENCE_S)
        assert "Traceback" not in process.stderr.read()


def _jar(opener):
    for handler in opener.handlers:
        if isinstance(handler, urllib.request.HTTPCookieProcessor):
            return handler.cookiejar
    raise AssertionError("no cookies")


def decide_three(base):
    listing = until(
        lambda: re.findall(
            r'data-id="(E-\w+)" data-n="(\d+)" data-status="open"',
            urllib.request.urlopen(f"{base}/queue").read().decode(),
        )
    )
    targets = [{"id": i, "n_events": int(n), "status": "open"} for i, n in listing[:3]]
    body = {"request_id": "k", "verdict": "normal", "targets": targets}
    request = urllib.request.Request(
        f"{base}/api/labels",
        data=json.dumps(body).encode(),
        headers={"origin": base, "content-type": "application/json"},
    )
    assert json.load(urllib.request.urlopen(request))["episodes"]


@pytest.mark.thorough
@pytest.mark.parametrize("which", [
    signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long),
])  # fmt: skip
def test_labels_given_just_before_a_signal_leave_with_this_console_or_the_next(
    files, tmp_path, which
):
    _, review = files
    labels = tmp_path / "labels.jsonl"

    def left() -> int:
        return len(list(read_labels(labels))) if labels.exists() else 0

    with serving("--review", review, folder=tmp_path) as (process, base, _):
        decide_three(base)
        process.send_signal(which)
        assert process.wait(PATIENCE_S) == (-which if which == signal.SIGKILL else 0)
        assert process.stderr.read() == ""
    if left() < 3:  # its end has a second; on a busy machine that is over
        with serving("--review", review, folder=tmp_path) as (process, _, _):
            until(lambda: left() == 3, "the next console sends them")
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
    assert left() == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "name"), [("", "localhost"), ('allowed_hosts = ["here"]', "here")]
)
def test_a_console_that_listens_everywhere_names_an_address_to_go_to(tmp_path, more, name):
    config = tmp_path / "p.toml"
    config.write_text(f'{CONFIG}[review]\nhost = "0.0.0.0"\nauth = "token"\n{more}')
    with serving("--config", config, folder=tmp_path) as (_, base, said):
        assert base.startswith(f"http://{name}:")
        assert f"{base}/login?token=" in said[0]


@pytest.mark.thorough
def test_a_rebuild_never_takes_the_place_of_what_would_be_lost(files, tmp_path, capsys):
    _, review = files
    again = ("rebuild", "--review", review, "--replace")
    with serving("--review", review, folder=tmp_path) as (_, base, _):
        until(lambda: b'"ready":0' not in urllib.request.urlopen(f"{base}/api/summary").read())
        assert run(*again) == 2
        assert "in use: stop the console" in capsys.readouterr().err
    store = ReviewStore(tmp_path / "review.db")
    label(store, ADA, episodes(store)[:1])
    store.close()
    assert run(*again) == 2
    assert "1 labels in 'review.db' have not been published" in capsys.readouterr().err
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE ledger (amount INTEGER)")
    other.close()
    assert run(*again, "--store", "other.db") == 2
    assert "is no review store" in capsys.readouterr().err
    store = ReviewStore(tmp_path / "review.db")
    sink = LabelFile(tmp_path / "labels.jsonl")
    store.send_labels(sink)
    sink.close()
    store.close()
    assert run(*again) == 0
    data = (tmp_path / "review.db").read_bytes()
    (tmp_path / "review.db").write_bytes(data[:5000])
    assert run("report") != 0
    assert run(*again) == 0, "a damaged store is what it is for"


def test_a_link_lets_one_person_in_once_and_is_revoked(files, tmp_path, capsys):
    ReviewStore(tmp_path / "review.db").close()
    token = ("--auth", "token", "--reviewer", "bob:lead", "--reviewer", "eve")
    capsys.readouterr()
    assert run("link", "bob", *token) == 0
    link = capsys.readouterr().out.strip()
    assert link.startswith("http://127.0.0.1:8321/login?token=")
    store = ReviewStore(tmp_path / "review.db")
    sessions = Sessions(store)
    viewer, cookie = sessions.redeem(link.partition("token=")[2])
    assert (viewer.reviewer, viewer.role) == ("bob", "lead")
    assert sessions.redeem(link.partition("token=")[2]) is None, "once"
    assert run("link", "eve", "--revoke", *token) == 0
    assert sessions.whose(cookie) == viewer
    assert run("link", "bob", "--revoke", *token) == 0
    assert "bob: 1 sessions and links ended" in capsys.readouterr().err
    assert sessions.whose(cookie) is None
    store.close()
    assert run("link", "mallory", *token) == 2
    assert "has no 'mallory', but bob, eve" in capsys.readouterr().err
    assert run("link", "bob", "--reviewer", "bob") == 2
    assert 'links are for auth = "token"' in capsys.readouterr().err


@pytest.mark.thorough
def test_the_chain_of_audit_rows_is_verified_and_a_backup_is_whole(files, tmp_path, capsys):
    _, review = files
    assert run("ingest", "--review", review) == 0
    store = ReviewStore(tmp_path / "review.db")
    label(store, ADA, episodes(store)[:3])
    capsys.readouterr()
    assert run("backup", "copy.db") == 0, "beside an open store"
    assert run("backup", "copy.db") == 2
    store.close()
    for name in ("review.db", "copy.db"):
        assert run("verify", "--store", name, "--output", "json") == 0
        assert json.loads(capsys.readouterr().out) == {
            "audit_rows": 3, "broken_at": None, "database": "ok", "labels_waiting": 3,
        }  # fmt: skip
    raw = sqlite3.connect(tmp_path / "copy.db")
    raw.execute("DROP TRIGGER audit_no_delete")
    raw.execute("DELETE FROM audit WHERE seq = 2")
    raw.commit()
    raw.close()
    assert run("verify", "--store", "copy.db") == 1
    assert "broken at row 3" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.long
def test_an_import_that_is_killed_again_and_again_counts_every_event_once(files, tmp_path):
    verdicts, review = files
    words = ("--review", review, "--verdicts", verdicts, "--output", "json")
    command = [sys.executable, "-m", "rejex_stream", "review", "ingest", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Small chunks make many transactions to be killed between, and within.
    small = "import rejex_stream.review.queue.pipeline_logs as logs; logs._CHUNK_BYTES = 1 << 15; "
    again = (
        f"{small}from rejex_stream.cli.main import main; raise SystemExit(main({command[3:]!r}))"
    )
    positions = "SELECT coalesce(sum(next_offset), 0) FROM consumed"

    def read_so_far() -> int:
        try:
            raw = sqlite3.connect(f"file:{tmp_path / 'review.db'}?mode=ro", uri=True)
            with contextlib.closing(raw):
                return raw.execute(positions).fetchone()[0]
        except sqlite3.OperationalError:
            return 0  # nothing there yet

    killed = 0
    for _ in range(3):
        before = read_so_far()
        process = subprocess.Popen(
            [sys.executable, "-c", again], cwd=tmp_path, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        until(lambda p=process, b=before: p.poll() is not None or read_so_far() > b)
        killed += process.poll() is None
        process.kill()
        process.communicate()
    assert killed >= 2, "it was done before it could be killed"
    assert run("ingest", *words) == 0
    assert run("ingest", *words, "--store", "straight.db") == 0
    facts = (
        "SELECT topic, partition, offset, item FROM event ORDER BY 1, 2, 3",
        "SELECT sensor, t_ms, normal, anomaly, rejected FROM hour JOIN sensor USING (sensor_id) "
        "ORDER BY 1, 2",
    )
    stores = [sqlite3.connect(tmp_path / name) for name in ("review.db", "straight.db")]
    for query in facts:
        found, wanted = (store.execute(query).fetchall() for store in stores)
        assert found == wanted
        assert len(found) > 30
    for store in stores:
        store.close()
