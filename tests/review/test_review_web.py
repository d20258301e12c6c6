"""The console over HTTP: who gets in, what is refused, what the numbers behind a screen are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from urllib.parse import quote

import pytest
from starlette.datastructures import Headers

from rejex_stream.cli import main
from rejex_stream.config.reviewing import Review, named_reviewer, networks
from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.operate.probes import HealthServer
from rejex_stream.operate.run_monitor import Health
from rejex_stream.review.console import api
from rejex_stream.review.console.background import Background, Feeding
from rejex_stream.review.console.console import Access, Sessions
from rejex_stream.review.console.server import warn_of_plain_http
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.ingest import IngestCounts
from rejex_stream.review.queue.label_store import LabelFile, read_labels
from rejex_stream.review.queue.labelling import LabelRequest, Target
from rejex_stream.review.queue.listing import QueueFilter
from rejex_stream.review.queue.pipeline_logs import FeedKind, FileFeed
from rejex_stream.review.queue.review_store import ReviewStore
from tests.review.console_server import Running, running
from tests.review.test_context_loader import CONFIG
from tests.review.test_review_store import BOB, episodes, item, rows
from tests.soak_results import record
from tests.waiting import PATIENCE_S, until

ADA = Viewer("ada", "admin")


@pytest.fixture
def small(wall_store):
    store = wall_store(settle_s=0)
    store.add([item(1000 * i + k) for i in range(5) for k in range(2)])
    with running(store) as console:
        yield console


@pytest.fixture(scope="module")
def farm_console(farm, tmp_path_factory):
    store = ReviewStore(tmp_path_factory.mktemp("farm") / "review.db", Review())
    store.ingest("review", [encode_review(i) for i in farm.items], pipeline="farm")
    store.ingest("verdicts", [encode_verdict(v) for v in farm.verdicts], pipeline="farm")
    with running(store) as console:
        yield console
    store.close()


def targets(console: Running, viewer: Viewer = ADA) -> list[dict]:
    return [
        {"id": t.episode_id, "n_events": t.n_events, "status": t.status}
        for t in episodes(console.store, viewer)
    ]


def label(console: Running, chosen, verdict="normal", request="r", **extra):
    body = {"request_id": request, "verdict": verdict, "targets": chosen, **extra}
    return console.ask("/api/labels", body)


# --------------------------------------------------------------------------------------- safety
def test_every_page_carries_the_strict_policy(small):
    for path in ("/queue", "/audit", "/help", "/nothing"):
        answer = small.ask(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_the_one_script_of_others_is_what_its_manifest_says(small):
    manifest = small.ask("/static/vendor/manifest.json").json
    assert set(manifest["sha256"]) == {"uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE.txt"}
    for name, digest in manifest["sha256"].items():
        served = small.ask(f"/static/vendor/{name}")
        assert hashlib.sha256(served.body).hexdigest() == digest, name
    assert "MIT" in small.ask("/static/vendor/uPlot.LICENSE.txt").text


def test_a_foreign_host_name_is_refused(small):
    assert small.ask("/queue", headers={"host": "evil.example"}).status == 400
    assert small.ask("/queue", headers={"host": f"localhost:{small.port}"}).status == 200


@pytest.mark.thorough
@pytest.mark.parametrize(("headers", "status"), [
    ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-site"}, 403),
    ({"origin": "http://evil.example"}, 403), ({}, 403),
    ({"authorization": "Bearer wrong"}, 401), ({"sec-fetch-site": "same-origin"}, 404),
])  # fmt: skip
def test_other_sites_and_nameless_programs_change_nothing(small, headers, status):
    answer = small.ask("/api/undo", {"request_id": "x"}, headers=headers, site=None)
    assert answer.status == status


def test_an_origin_that_is_ours_will_do_for_old_browsers(small):
    answer = small.ask("/api/undo", {"request_id": "x"}, headers={"origin": small.base}, site=None)
    assert answer.json["code"] == "nothing"


def test_a_program_comes_in_with_a_bearer_token_only(wall_store):
    store = wall_store()
    access = Access(mode="token", api_token="s3cret-token")
    with running(store, access=access) as console:
        assert console.ask("/api/summary").status == 401
        good = {"authorization": "Bearer s3cret-token"}
        assert console.ask("/api/summary", headers=good, site=None).status == 200
        assert console.ask("/api/undo", {"request_id": "x"}, headers=good, site=None).status == 404


def test_a_link_logs_in_one_person_once_and_looking_at_it_does_not_use_it_up(wall_store):
    store = wall_store()
    with running(store, access=Access(mode="token")) as console:
        token = console.console.sessions.link(Viewer("ada", "lead"))
        assert console.ask("/queue").status == 303
        assert console.ask("/queue").headers["location"] == "/login?next=%2Fqueue"
        for _ in range(2):
            assert "Continue as ada" in console.ask(f"/login?token={token}").text
        form = f"token={token}&next=/audit".encode()
        first = console.ask("/login", form)
        assert (first.status, first.headers["location"]) == (303, "/audit")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert token not in cookie
        assert console.ask("/login", form).status == 403
        console.cookies = cookie.partition(";")[0]
        assert "ada" in console.ask("/queue").text
        assert console.ask("/logout", b"").status == 303
        assert console.ask("/queue").status == 303


def test_a_login_never_leads_to_another_site(wall_store):
    store = wall_store()
    with running(store, access=Access(mode="token")) as console:
        for wanted in ("https://evil.example", "//evil.example", "/\\evil.example"):
            token = console.console.sessions.link(ADA)
            answer = console.ask("/login", f"token={token}&next={quote(wanted)}".encode())
            assert answer.headers["location"] == "/queue"


@pytest.mark.thorough
def test_a_proxy_header_counts_from_a_trusted_address_only(wall_store):
    store = wall_store()
    header = {"x-forwarded-user": "grace"}
    with running(store, access=Access(mode="proxy", roles={"grace": "lead"})) as console:
        assert "grace" in console.ask("/queue", headers=header).text
        assert console.ask("/queue").status == 303
    with running(store, access=Access(mode="proxy", proxies=networks(["10.0.0.0/8"]))) as console:
        assert console.ask("/queue", headers=header).status == 303


@pytest.mark.parametrize(("trusted", "peer", "believed"), [
    ("10.0.0.0/24", "10.0.0.77", True), ("10.0.0.0/24", "10.0.1.77", False),
    ("10.0.0.0/24", "::ffff:10.0.0.77", True), ("fd00::/8", "fd00::5", True),
    ("fd00::/8", "10.0.0.1", False), ("127.0.0.1", "", False),
])  # fmt: skip
def test_a_trusted_network_is_one_of_addresses(wall_store, trusted, peer, believed):
    access = Access(mode="proxy", proxies=networks([trusted]))
    headers = Headers({"x-forwarded-user": "grace"})
    found = access.viewer(headers, peer, Sessions(wall_store()))
    assert found == (Viewer("grace") if believed else None)
    twice = Headers(raw=[(b"x-forwarded-user", b"grace"), (b"x-forwarded-user", b"mallory")])
    assert access.viewer(twice, peer, Sessions(wall_store())) is None


def test_nobody_comes_in_under_the_systems_name(wall_store):
    with running(wall_store(), access=Access(mode="proxy")) as console:
        assert console.ask("/queue", headers={"x-forwarded-user": "system"}).status == 303
        assert console.ask("/queue", headers={"x-forwarded-user": " "}).status == 303
    with pytest.raises(ConfigError, match="cannot be a reviewer's name"):
        named_reviewer("system:lead")


@pytest.mark.thorough
def test_a_link_over_https_leaves_a_cookie_for_https_alone(wall_store, tmp_path, capsys):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout k.pem -out c.pem -subj /CN=localhost"
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", *words.split(), *names], cwd=tmp_path, check=True, capture_output=True
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    config = tmp_path / "p.toml"
    config.write_text(f'{CONFIG}[review]\ntls_cert = "{tmp_path}/c.pem"\n')
    assert main(["review", "serve", "--config", str(config)]) == 2, "its key is in another file"
    assert "holds the certificate and its key" in capsys.readouterr().err
    with (tmp_path / "both.pem").open("wb") as both:
        both.write((tmp_path / "c.pem").read_bytes() + (tmp_path / "k.pem").read_bytes())
    config.write_text(f'{CONFIG}[review]\ntls_cert = "both.pem"\nauth = "token"\n')
    tls = ("--config", "p.toml", "--reviewer", "ada")
    with subprocess.Popen(
        [sys.executable, "-m", "rejex_stream", "review", "serve", "--port", "0", *tls],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        link = process.stdout.readline().partition("link for ada: ")[2].strip()
        address, _, token = link.partition("login?token=")
        assert address.startswith("https://127.0.0.1:"), process.stderr.read()
        request = urllib.request.Request(
            f"{address}login", data=f"token={token}".encode(), headers={"origin": address[:-1]}
        )
        trust = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=trust), urllib.request.HTTPCookieProcessor()
        )
        until(lambda: process.poll() is not None or process.stdout.readline())
        with opener.open(request) as answer:
            assert "Review queue" in answer.read().decode()
        jar = next(h for h in opener.handlers if hasattr(h, "cookiejar")).cookiejar
        (cookie,) = jar
        assert cookie.secure
        assert cookie.has_nonstandard_attr("HttpOnly")
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=PATIENCE_S)[1]


def test_a_huge_or_broken_request_is_refused_in_words(small):
    assert "512 kB" in small.ask("/api/labels", b"x" * 600_000).json["message"]
    assert "cannot be read" in small.ask("/api/labels", b"{").json["message"]
    answer = label(small, targets(small)[:1], verdict="maybe")
    assert (answer.status, answer.json["code"]) == (422, "bad_request")


def test_health_needs_no_login(wall_store):
    with running(wall_store(), access=Access(mode="token")) as console:
        assert console.ask("/livez").json == {"status": "ok"}
        assert console.ask("/readyz").json == {"status": "ok", "failing": []}
        assert console.ask("/metrics").status == 303


def test_asking_whether_it_is_ready_writes_nothing(wall_store):
    store = wall_store()
    log = store.database.path.with_name(store.database.path.name + "-wal")
    with running(store, access=Access(mode="token")) as console:
        before = log.read_bytes()
        assert console.ask("/readyz").status == 200
        assert log.read_bytes() == before


_ASKS = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.mark.thorough
@pytest.mark.parametrize("before", [b"", _ASKS], ids=["the first", "the second of a connection"])
def test_a_request_that_does_not_come_to_its_end_is_hung_up_on(wall_store, before):
    with (
        running(wall_store(), patience_s=0.3) as console,
        socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE_S) as caller,
    ):
        caller.sendall(before)
        heard = b"" if before else b"ok"
        while b"ok" not in heard:
            heard += caller.recv(1000) or pytest.fail("hung up on too early")
        caller.sendall(_ASKS[:20])
        assert caller.recv(100) == b""


_LARGE = {"console": b"/static/console.css", "metrics": b"/metrics"}


@pytest.mark.slow
@pytest.mark.parametrize("which", _LARGE)
def test_slow_clients_hold_neither_threads_nor_connections_for_long(wall_store, which):
    """A letter at a time of a request or its body, no word at all, or never a look at an answer."""
    body = _ASKS.replace(b"GET", b"POST")[:-2] + b"content-length: 99999\r\n\r\n"
    said = {
        "nothing": b"", "a request": _ASKS[:-2] + b"x: " + b"x" * 9_999,
        "a body": body + bytes(9_999),
        "reads nothing": _ASKS.replace(b"/livez", _LARGE[which]) * 1_000,
    }  # fmt: skip
    n, health = 40, HealthServer("127.0.0.1", 0, Health(), lambda: bytes(10**6))
    ended, most, n_asked, left = Counter[str](), 0, 0, list[Slow]()
    with running(wall_store(), patience_s=5.0) as console, contextlib.ExitStack() as stack:
        stack.callback(health.close)
        port = console.port if which == "console" else health.port
        threads = threading.active_count()
        for how in [*said] * n:
            left.append(stack.enter_context(Slow(how, said[how], port)))

        def all_ended() -> bool:
            nonlocal left, most, n_asked
            ended.update(one.how for one in left if not one.goes_on())
            assert all(one.n_read < 10**7 for one in left), "it was written to all the time"
            left = [one for one in left if one.fileno() >= 0]
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as honest:
                honest.sendall(_ASKS)
                assert honest.recv(100).startswith(b"HTTP/1.")
            n_asked, most = n_asked + 1, max(most, threading.active_count() - threads)
            return not left

        until(all_ended, lambda: Counter(one.how for one in left), every_s=0.05)
    assert ended == dict.fromkeys(said, n)
    assert most <= 41, "a thread for each"  # of starlette for files: 40
    record(
        f"slow clients ({which})",
        size=f"{len(said) * n} connections at once",
        done_to_it="a letter at a time of a request or of its body, no word at all, or request "
        "after request and no look at an answer",
        outcome=f"each was hung up on; at most {most} threads more; whoever asked meanwhile had an "
        f"answer, {n_asked} of {n_asked} times",
    )


class Slow(socket.socket):
    """A client that says a text bit by bit; or all of it, and looks at the answers much too late.

    Until then nothing tells it that it was hung up on.
    """

    def __init__(self, how: str, text: bytes, port: int) -> None:
        super().__init__()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.how, self._left, self.n_read = how, memoryview(text), 0
        self.connect(("127.0.0.1", port))
        self.setblocking(False)
        self._waits = 800 * (how == "reads nothing")  # steps

    def goes_on(self) -> bool:
        """Do the next step; false, and closed, once it was hung up on."""
        self._waits -= 1
        try:
            self._left = self._left[self.send(self._left[: 1 if self.how[0] == "a" else None]) :]
            while self._waits < 0:
                self.n_read += (n := len(self.recv(1 << 20)))
                if not n:
                    break
            else:
                return True
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        self.close()
        return False


def test_plain_http_beyond_this_machine_warns_where_secrets_travel(caplog):
    for host, access, encrypted, warns in (
        ("0.0.0.0", Access(mode="token"), False, True),
        ("0.0.0.0", Access(mode="proxy", api_token="t"), False, True),
        ("0.0.0.0", Access(mode="proxy"), False, False),
        ("0.0.0.0", Access(mode="token"), True, False),
        ("::1", Access(mode="token"), False, False),
    ):
        caplog.clear()
        warn_of_plain_http(host, access, encrypted=encrypted)
        assert bool(caplog.records) == warns, (host, access)
        assert not warns or "tls_cert" in caplog.text


def test_the_store_and_the_labels_are_their_owners_alone(wall_store, tmp_path):
    wall_store("mine.db").add([item(0)])
    LabelFile(tmp_path / "labels.jsonl").close()
    files = [*tmp_path.glob("mine.db*"), tmp_path / "labels.jsonl"]
    assert len(files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


# ---------------------------------------------------------------------------------------- queue
def test_a_label_names_what_follows_and_a_conflict_names_who(small):
    chosen = targets(small)
    done = label(small, chosen[1:2], view={"tab": "ready", "q": "", "sort": ""}).json
    assert done["next"] == chosen[2]["id"]
    assert done["counts"]["ready"] == 4
    labelling.claim(small.store, chosen[0]["id"], Viewer("bob"))
    answer = label(small, chosen[:1], request="r2")
    assert answer.status == 409
    assert answer.json["message"].startswith("bob is working on")
    stale = label(small, chosen[1:2], "anomaly", request="r3")
    assert (stale.status, stale.json["code"]) == (409, "changed")


def test_every_count_on_a_tab_is_the_number_of_rows_behind_it(small):
    chosen = targets(small)
    label(small, chosen[:1])
    labelling.claim(small.store, chosen[2]["id"], Viewer("bob"))
    text = small.ask("/queue?tab=all").text
    tabs = re.findall(r'<a href="(/queue\?[^"]+)" data-tab="(\w+)".*?<b[^>]*>(\d+)</b>', text)
    assert {name for _, name, _ in tabs} == {"ready", "claimed", "done", "all"}
    for address, name, count in tabs:
        n_rows = small.ask(address.replace("&amp;", "&")).text.count('<tr id="row-')
        assert n_rows == int(count), name


def test_open_pages_of_a_store_that_stands_still_cost_no_query(new_store, clock, monkeypatch):
    """Ten idle tabs took 5 % of a core: each asked for all counts of 10,000 cases again."""
    store = new_store(settle_s=0, gap_events=0)
    store.add([item(1000 * i) for i in range(3)])
    asked = []
    made = api.summary
    monkeypatch.setattr(api, "summary", lambda *words: asked.append(words) or made(*words))
    with running(store) as console:

        def open_cases(path="/api/summary"):
            return console.ask(path).json["counts"]["ready"]

        assert [open_cases() for _ in range(5)] == [3] * 5
        assert len(asked) == 1
        assert open_cases("/api/summary?q=sensor:x") == 0, "of another filter"
        labelling.claim(store, episodes(store)[0].episode_id, BOB)
        assert open_cases() == 2, "a write is seen at once"
        other = ReviewStore(store.database.path, store.settings, clock_ms=clock)
        labelling.claim(other, episodes(other)[0].episode_id, BOB)
        other.close()
        assert open_cases() == 1, "and one of another process"
        before = len(asked)
        clock.pass_ms(14_999)
        assert (open_cases(), len(asked)) == (1, before)
        clock.pass_ms(11 * 60_000)
        assert open_cases() == 3, "claims lapse without a write"


@pytest.mark.thorough
def test_blind_review_hides_leaning_labels_and_cases_until_the_verdict(wall_store):
    store = wall_store(settle_s=0, double_review_ratio=1.0, blind="second")
    store.add([item(0), item(5000)])
    (first, second) = episodes(store, ADA)
    labelling.label_cases(
        store, LabelRequest(request_id="0", verdict="anomaly", targets=(second,)), Viewer("zoe")
    )
    decided = LabelRequest(
        request_id="1", verdict="anomaly", targets=(first,), note="bearing-XYZ", tags=("process",)
    )
    labelling.label_cases(store, decided, Viewer("zoe"))
    with running(store) as console:
        path = f"/episode/{first.episode_id}"
        page = console.ask(path).text
        for secret in ("bearing-XYZ", "leans to", "zoe", "marked anomaly", "0.96", "rank 960"):
            assert secret not in page, secret
        assert '"threshold": null' in page
        series = console.ask(f"/api/episodes/{first.episode_id}/series?from=0&to=9000").json
        assert series["score"] is None
        assert series["channels"][0]["v"]
        assert "zoe" not in console.ask("/queue?tab=ready").text
        for page in ("/audit", f"/audit?subject={first.episode_id}", "/api/export/jsonl"):
            found = console.ask(page).text
            assert "bearing-XYZ" not in found, page
            assert "anomaly" not in found.partition("<tbody>")[2].partition("</tbody>")[0], page
        again = Target(first.episode_id, 1, "needs_second")
        labelling.label_cases(
            store, LabelRequest(request_id="2", verdict="anomaly", targets=(again,)), ADA
        )
        for page in (path, "/audit", "/api/export/jsonl"):
            assert "bearing-XYZ" in console.ask(page).text, page


def test_an_audit_hides_what_the_model_said(wall_store):
    store = wall_store(settle_s=0)
    store.add([item(0, why="audit")])
    with running(store) as console:
        page = console.ask(f"/episode/{targets(console)[0]['id']}").text
        assert "The model said" not in page
        assert "Is it right?" in page


# ------------------------------------------------------------------------------------ the rest
@pytest.mark.thorough
def test_upkeep_follows_files_sends_labels_and_shows_what_fails(wall_store, farm, tmp_path):
    verdicts, review = farm.write(tmp_path)
    store = wall_store()
    labels = tmp_path / "labels.jsonl"
    background = Background(
        store,
        Feeding(
            [FileFeed(review, "review", "farm"), FileFeed(verdicts, "verdicts", "farm")],
            LabelFile(labels),
        ),
        pause_s=0.05,
    )
    with running(store, background=background) as console:
        background.start()
        all_of_them = [(len(farm.verdicts),)]
        counted = "SELECT sum(normal + anomaly + rejected) FROM hour"
        until(lambda: rows(store, counted) == all_of_them)
        chosen = targets(console)
        assert label(console, chosen[:2]).status == 200
        until(lambda: labels.exists() and len(list(read_labels(labels))) == 2)
        with review.open("ab") as file:
            file.write(b"not json\n")
        until(lambda: background.invalid.get("review"))
        review.unlink()
        review.mkdir()
        until(lambda: background.problems)
        assert "cannot be read" in console.ask("/queue").text
        assert console.ask("/readyz").status == 503
        assert background.stop(60)


def test_a_label_given_just_before_the_end_leaves_with_the_console(wall_store, tmp_path):
    first_round_over = threading.Event()

    class Watched(Background):
        def round(self):
            busy = super().round()
            first_round_over.set()
            return busy

    store = wall_store(settle_s=0)
    store.add([item(0)])
    labels = tmp_path / "labels.jsonl"
    background = Watched(store, Feeding(sink=LabelFile(labels)), pause_s=3600)
    background.start()
    assert first_round_over.wait(PATIENCE_S)  # the next is an hour away
    labelling.label_cases(
        store, LabelRequest(request_id="1", verdict="normal", targets=tuple(episodes(store))), ADA
    )
    assert not labels.exists() or not list(read_labels(labels))
    assert background.stop(60)
    assert len(list(read_labels(labels))) == 1


@pytest.mark.thorough
def test_a_feed_that_never_pauses_does_not_hold_labels_back(wall_store, tmp_path):
    class Flood:
        """Ten thousand events a second look like this to the one who reads them."""

        kind: FeedKind = "verdicts"
        pipeline = ""
        pumps = 0

        def pump(self, store, *, tap=None, stop=None):
            until(stop, "it is told to let others work")
            self.pumps += 1
            return IngestCounts(verdicts=1)

        def close(self):
            pass

    store = wall_store(settle_s=0)
    store.add([item(0)])
    labelling.label_cases(
        store, LabelRequest(request_id="1", verdict="normal", targets=tuple(episodes(store))), ADA
    )
    floods = [Flood(), Flood()]
    labels = tmp_path / "labels.jsonl"
    background = Background(store, Feeding(floods, LabelFile(labels)))
    background.round()
    assert len(list(read_labels(labels))) == 1
    assert [flood.pumps for flood in floods] == [1, 1]
    assert background.stop(60)


@pytest.mark.thorough
def test_the_end_does_not_wait_for_a_broker_that_is_away(wall_store):
    class Away:
        kind = "review"
        pipeline = ""
        asked, back = threading.Event(), threading.Event()

        def pump(self, store, *, tap=None, stop=None):
            self.asked.set()
            self.back.wait()
            raise ConnectorError("still away")

        def close(self):
            raise AssertionError("closed while in use")

    away = Away()
    background = Background(wall_store(), Feeding([away]))
    background.start()
    assert away.asked.wait(PATIENCE_S)
    assert not background.stop()
    away.back.set()
    background._thread.join(PATIENCE_S)


def test_an_export_is_a_download_without_formulas(small):
    hostile = item(99, sensor="=cmd|' /C calc'!A0")
    small.store.add([hostile])
    chosen = targets(small)
    label(small, chosen, note="=1+1")
    text = small.ask("/api/export/csv").text
    assert "'=cmd" in text
    assert "'=1+1" in text
    assert ",=" not in text
    lines = small.ask("/api/export/jsonl").text.splitlines()
    assert len(lines) == 11
    assert json.loads(lines[-1])["sensor"] == "=cmd|' /C calc'!A0"


def test_filters_in_the_address_find_what_they_say(farm_console):
    store = farm_console.store
    with store.database.read() as connection:
        view = QueueFilter("all", "nacelle group:T07")
        found = list(view.rows(connection, ADA, store.now_ms()))
        assert found
        assert all(row["grp"] == "T07" for row in found)
        audits = QueueFilter("all", "why:audit").count(connection, ADA, store.now_ms())
    assert audits > 10
    page = farm_console.ask("/queue?tab=all&q=why%3Aaudit").text
    assert page.count('<tr id="row-') == audits
    assert farm_console.ask("/queue?q=%22open").status == 200
    assert farm_console.ask("/queue?tab=%00&sort=;drop&since=abc").status == 200
