"""Cases whose truth is known: nobody can tell them apart, and they measure people alone."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")
pytest.importorskip("uvicorn", reason="the extra `review` is not installed")

from rejex_stream.cli.main import main
from rejex_stream.errors import ConfigError
from rejex_stream.review import gold_cases
from rejex_stream.review.gold_cases import Case, Errors, Known, known_cases, read_cases
from rejex_stream.review.queue import database, label_store, labelling
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.label_report import judged_episodes, quality, report
from rejex_stream.review.queue.label_store import LabelFile, read_labels
from rejex_stream.review.queue.review_store import rebuild, state_hash
from rejex_stream.types import Position
from tests.review.console_server import running
from tests.review.desk import counts, sees
from tests.review.incidents import held
from tests.review.test_review_store import ADA, BOB, EVE, audited, episodes, item, label, unsent

NOW_MS = 1_760_100_000_000
STREAM = "T07/vib"


def case(offset, truth="anomaly", *, stream=STREAM, line=2):
    return Case(line, stream, Position("feed", 0, offset), truth)


def put(store, *cases):
    return gold_cases.seed(store, cases, by="lead")


def rows(store, table="known"):
    with store.database.read() as connection:
        return [tuple(row) for row in connection.execute(f"SELECT * FROM {table}")]


def known(store, **asked):
    with store.database.read() as connection:
        return known_cases(connection, **asked)


@pytest.fixture
def store(new_store):
    """Five episodes of two events, an hour apart."""
    store = new_store(settle_s=0)
    store.add([item(1000 * i + k, t_s=3600 * i + k) for i in range(5) for k in range(2)])
    return store


# ---------------------------------------------------------------------------------- the file
def write(folder, text, name="cases.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path):
    found = [
        Case(2, "T07/vib", Position("feed-a", 0, 7), "anomaly"),
        Case(3, "T07, old", Position("feed-a", 12, 8), "normal"),
    ]
    lines = ["\ufeffstream,event,truth,who", "T07/vib,feed-a-0-7,anomaly,x"]
    table = "\n".join([*lines, '"T07, old",feed-a-12-8,normal,'])
    assert read_cases(write(tmp_path, table)) == (found, [])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("T07,feed-0-9,fault", "the truth of 'feed-0-9' is 'fault': expected anomaly or normal."),
        ("T07,feed-0-9", "the truth of 'feed-0-9' is None: expected anomaly or normal."),
        ("T07,feed09,normal", "the event is 'feed09': expected topic-partition-offset"),
        (f"T07,{'9' * 500},normal", "…: expected topic-partition-offset"),
        (",feed-0-9,normal", "the stream of 'feed-0-9' is '': expected the key of its stream."),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused_in_a_sentence(tmp_path, row, said):
    good = "T07,feed-0-1,normal"
    cases, refused = read_cases(write(tmp_path, f"stream,event,truth\n{good}\n{row}\n"))
    assert [one.position.offset for one in cases] == [1]
    (sentence,) = refused
    assert sentence.startswith("line 3: ")
    assert said in sentence
    assert len(sentence) < 200


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("cases.csv", b"stream,truth\n", "has no column event: its first line must be"),
        ("cases.csv", b"", "has no column stream, event, truth"),
        ("cases.csv", b"\xff\xfe\x00", "is no text in UTF-8"),
        ("cases.jsonl", None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_cases(tmp_path / name)


def test_an_event_with_two_truths_is_no_case_and_the_others_are(tmp_path):
    lines = ["a,feed-0-1,normal", "a,feed-0-2,normal", "a,feed-0-2,normal", "a,feed-0-1,anomaly"]
    cases, refused = read_cases(write(tmp_path, "\n".join(["stream,event,truth", *lines])))
    assert [one.position.offset for one in cases] == [2], "the same row twice is one"
    (sentence,) = refused
    assert sentence.startswith("line 5: 'feed-0-1' is anomaly of 'a', and on line 2 normal of 'a'")


# ------------------------------------------------------------------------------- putting them in
def test_a_known_case_is_all_of_its_episode_and_is_put_in_once(store):
    before = episodes(store)
    done = put(store, case(1), case(2001, "normal"))
    assert done == (2, 0, ())
    with store.database.read() as connection:
        truths = connection.execute(
            "SELECT v.offset, k.truth FROM known k JOIN event v USING (event_id) ORDER BY 1"
        ).fetchall()
    assert [tuple(row) for row in truths] == [
        (0, "anomaly"), (1, "anomaly"), (2000, "normal"), (2001, "normal"),
    ]  # fmt: skip
    kept, acts = rows(store), audited(store)
    assert put(store, case(0), case(2000, "normal")) == (0, 2, ()), "any of its events names it"
    assert (rows(store), audited(store)) == (kept, acts)
    assert episodes(store) == before
    assert acts[-1] == ("lead", "seed", "known cases"), "the audit says that, not which"
    label(store, ADA, before[:1])
    assert put(store, case(0)) == (0, 1, ()), "also once it was answered"


def test_what_can_be_no_known_case_is_refused_and_the_rest_goes_in(store):
    store.add([item(50_000, why="audit"), item(60_000, why="status"), held(70_000)])
    answered, *_ = episodes(store)
    label(store, ADA, [answered])
    assert put(store, case(1000)).new == 1
    done = put(
        store,
        case(0, line=2),
        case(50_000, line=3),
        case(60_000, line=4),
        case(70_000, line=5, stream="T07/vib"),
        case(1001, "normal", line=6),
        case(2000, stream="T08", line=7),
        case(3000, line=8),
        case(3001, "normal", line=9),
        case(99, line=10),
        case(4000, line=11),
    )
    said = (
        "it was answered already: give events that wait",
        "it was drawn for the audit, and what was missed is proved by that draw",
        "it is about a state of the sensor",
        "it is of an incident, which asks a question of its own",
        "it is given as normal, and its episode as anomaly",
        "it is of the stream 'T07/vib', not 'T08'",
        "it is given as anomaly, and its episode as normal",
        "it is given as normal, and its episode as anomaly",
        "the store has no such event: ingest the review items first",
    )
    assert (done.new, done.known) == (1, 0)
    assert len(done.refused) == len(said)
    for number, (sentence, words) in enumerate(zip(done.refused, said, strict=True), 2):
        assert sentence.startswith(f"line {number}: 'feed-0-")
        assert words in sentence
    assert len(rows(store)) == 4, "of 1000 and 4000, two events each"


def test_an_episode_that_has_expired_is_no_known_case(store, clock):
    clock.pass_ms(store.settings.max_age_ms)
    assert len(labelling.expire_due(store)) == 5
    assert "it has expired" in put(store, case(0)).refused[0]


def test_a_crash_leaves_all_or_nothing_and_the_same_file_mends_it(store, monkeypatch):
    def dies(*_args, **_given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(database, "append_audit", dies)
        with pytest.raises(KeyboardInterrupt):
            put(store, case(0), case(1000))
    assert rows(store) == []
    assert put(store, case(0), case(1000)).new == 2


def test_what_comes_after_a_known_case_is_an_episode_of_its_own(store):
    put(store, case(4000))
    store.add([item(4002, t_s=3600 * 4 + 2), item(1002, t_s=3602)])
    assert sorted(one.n_events for one in episodes(store)) == [1, 2, 2, 2, 2, 3]
    assert len(rows(store)) == 2


# ------------------------------------------------------------------------------ what they measure
def test_answers_to_known_cases_are_counted_by_who_gave_them(new_store):
    store = new_store(settle_s=0, double_review_ratio=1.0)
    store.add([item(1000 * i, t_s=3600 * i) for i in range(6)])
    put(store, *(case(1000 * i, "anomaly" if i < 3 else "normal") for i in range(5)))
    assert (known(store).cases, known(store).waiting) == (5, 5)
    for number, (target, said) in enumerate(
        zip(
            episodes(store),
            ("normal", "anomaly", "unsure", "anomaly", "normal", "anomaly"),
            strict=True,
        )
    ):
        label(store, ADA, [target], said, request=f"a{number}")
    (first, *_) = episodes(store, BOB)
    label(store, BOB, [first], "anomaly", request="b")
    (disputed,) = episodes(store, EVE, "disputed")
    label(store, EVE, [disputed], "normal", request="e")
    found = known(store)
    assert (found.cases, found.waiting) == (5, 0)
    assert found.reviewers == {
        "ada": Errors(anomalies=2, overlooked=1, normals=2, false_alarms=1),
        "bob": Errors(anomalies=1),
    }, "unsure is no error, and who settles a dispute has heard both"
    assert found.all == Errors(anomalies=3, overlooked=1, normals=2, false_alarms=1)
    assert known(store, since_ms=3600_000).all.anomalies == 1
    assert known(store, pipeline="another") == Known()
    labelling.undo(store, "u", BOB)
    assert known(store).reviewers.keys() == {"ada"}


def test_an_answer_to_a_part_of_a_case_counts_for_nothing(store):
    put(store, case(0, "normal"))
    (first, *_) = episodes(store)
    label(store, ADA, [first], "anomaly", span_ms=(0, 0))
    assert known(store).all == Errors()
    rest = next(one for one in episodes(store) if one.episode_id == first.episode_id)
    label(store, ADA, [rest], "normal", request="r2")
    assert known(store).all == Errors(), "nor does the answer to the rest of it"
    with store.database.read() as connection:
        assert list(judged_episodes(connection)) == []


@pytest.mark.parametrize(("k", "n"), [(0, 20), (1, 20), (7, 30)])
def test_the_rates_are_jeffreys_intervals(k, n):
    # The prior is even in the angle whose squared sine is the share: no beta function needed.
    angle = np.linspace(0, np.pi / 2, 1_000_001)
    mass = np.cumsum(np.sin(angle) ** (2 * k) * np.cos(angle) ** (2 * (n - k)))
    low, high = np.sin(angle[np.searchsorted(mass / mass[-1], [0.025, 0.975])]) ** 2
    low = low if k else 0.0
    seen = Errors(anomalies=n, overlooked=k, normals=n, false_alarms=n - k)
    for found, ends in (
        (seen.rates["overlooked"], (k / n, low, high)),
        (seen.rates["false_alarms"], (1 - k / n, 1 - high, 1 - low)),
    ):
        assert tuple(found) == pytest.approx(ends, abs=1e-4)
    assert Errors().rates["overlooked"].low is None


# --------------------------------------------------------------------------- what they never enter
def test_answers_to_known_cases_enter_no_figure_but_those_of_the_people(new_store):
    store = new_store(settle_s=0, double_review_ratio=1.0)
    store.add([item(1000 * i, t_s=3600 * i) for i in range(3)])
    with store.database.read() as connection:
        before = quality(connection)
    put(store, case(0, "normal"), case(1000, "anomaly"))
    for viewer in (ADA, BOB):
        for number, target in enumerate(episodes(store, viewer)[:2]):
            label(store, viewer, [target], "anomaly", request=f"{viewer.reviewer}{number}")
    with store.database.read() as connection:
        after = quality(connection)
        assert list(judged_episodes(connection)) == []
        assert report(connection, now_ms=store.now_ms())[""].known == after.known
    assert after.known.all == Errors(anomalies=2, normals=2, false_alarms=2)
    assert after.rejected == before.rejected, "as many as were sent, and none judged"


def test_answers_to_known_cases_leave_with_no_label_and_no_export(store, tmp_path):
    put(store, case(0), case(1000))
    first, second, third, *_ = episodes(store)
    label(store, ADA, [first, third], "anomaly")
    label(store, ADA, [second], "anomaly", request="r2")
    labelling.undo(store, "u", ADA)
    assert unsent(store) == 1, "of the third alone"
    assert {one.offset for one in label_store.export_rows(store.database)} == {2000, 2001}
    everything = {
        one.offset: one.state
        for one in label_store.export_rows(store.database, labelled_only=False)
    }
    assert everything.keys() == {1000, 1001, 2000, 2001, 3000, 3001, 4000, 4001}
    assert everything[1000] == "open", "what nobody has answered stands with the others"
    sink = LabelFile(tmp_path / "labels.jsonl")
    store.send_labels(sink)
    sink.close()
    events = [one for record in read_labels(tmp_path / "labels.jsonl") for one in record.events]
    assert {one.offset for one in events} == {2000, 2001}

    items = [item(1000 * i + k, t_s=3600 * i + k) for i in range(5) for k in range(2)]
    made = rebuild(
        tmp_path / "again.db",
        store.settings,
        feed=lambda fresh: fresh.add(items),
        labels=read_labels(tmp_path / "labels.jsonl"),
    )
    assert made.state_hash == state_hash(store.database), "the logs know nothing of them"


# -------------------------------------------------------------------------- nobody tells them apart
PAGES = (
    "/queue", "/queue?sort=newest", "/queue?sort=worth", "/queue?sort=severity",
    "/queue?tab=all", "/queue?q=why%3Aaudit", "/incidents",
    "/api/export/jsonl", "/api/export/csv",
)  # fmt: skip


def seen(console):
    """Everything a reviewer gets of the queue and its items; without what every page has again."""
    with console.store.database.read() as connection:
        ids = [row[0] for row in connection.execute("SELECT episode_id FROM episode ORDER BY 1")]
    paths = [*PAGES]
    for one in ids:
        paths += [f"/episode/{one}", f"/api/episodes/{one}/series?from=0&to={NOW_MS}"]
    found = {}
    for path in paths:
        got = console.ask(path)
        text = got.text.replace(console.base, "").replace(str(console.port), "")
        # How far the store has come is told as a number: that something was written, not what.
        text = re.sub(r"\b\d+\.\d+\.\d+\.\d+\.\d+\b", "VERSION", text)
        found[path] = (got.status, text)
    assert len(ids) > 3
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("blind", ["off", "second", "always"])
def test_a_rejected_event_with_a_known_truth_looks_like_any_other(wall_store, blind):
    twins = []
    for name in ("plain.db", "seeded.db"):
        store = wall_store(name, lambda: NOW_MS, settle_s=0, blind=blind, double_review_ratio=1.0)
        store.add([item(1000 * i + k, t_s=3600 * i + k) for i in range(5) for k in range(2)])
        store.add([item(50_000, why="audit")])
        if name == "seeded.db":
            assert put(store, case(1000), case(3000, "normal")).new == 2
        with running(store) as console:
            before = seen(console)
            (first, *_) = [one for one in episodes(store) if one.n_events == 2]
            # The first of two opinions is given: the second reviewer must not know either.
            label(store, Viewer("zoe"), [first])
            twins.append((before, seen(console)))
    assert twins[0] == twins[1]


@pytest.mark.browser
def test_a_browser_shows_a_known_case_as_it_shows_any_other(wall_store, desk):
    twins = []
    for name in ("plain.db", "seeded.db"):
        store = wall_store(name, lambda: NOW_MS, settle_s=0)
        store.add([item(1000 * i + k, t_s=3600 * i + k) for i in range(3) for k in range(2)])
        if name == "seeded.db":
            assert put(store, case(1000)).new == 1
        (_, waits, _) = episodes(store)
        with running(store) as console, desk(console) as place:
            queue, episode = place.open("/queue"), place.open(f"/episode/{waits.episode_id}")
            counts(episode, "#plots canvas", 2)
            sees(episode, "yours for", "#lease")
            queue.reload()  # which shows by then whose the case is
            counts(queue, "#rows tr", 3)
            shown = [
                queue.inner_html("#rows"),
                episode.inner_text("main"),
                episode.inner_html(".episode-side"),
            ]
            # How long the claim lasts is told by the second.
            twins.append([re.sub(r"\d+:\d\d\b", "m:ss", text) for text in shown])
    assert twins[0] == twins[1]


# ------------------------------------------------------------------------------------- as a user
@pytest.mark.thorough
def test_from_a_file_to_the_report(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    where = ["--store", str(store.database.path)]
    rows = [
        f"{STREAM},feed-0-0,anomaly",
        f"{STREAM},feed-0-1000,anomaly",
        f"{STREAM},feed-0-9,normal",
    ]
    cases = write(tmp_path, "\n".join(["stream,event,truth", *rows]))
    assert main(["review", "seed", str(cases), *where]) == 1
    assert "line 4: 'feed-0-9': the store has no such event" in capsys.readouterr().err
    assert main(["review", "seed", str(cases), *where, "--output", "json"]) == 1
    counts = json.loads(capsys.readouterr().out)
    assert (counts["new"], counts["known"], len(counts["refused"])) == (0, 2, 1)
    assert main(["review", "report", *where]) == 0
    assert re.search(r"known cases that wait +2 of 2", capsys.readouterr().out)
    label(store, ADA, episodes(store), "normal")
    assert main(["review", "report", *where]) == 0
    said = capsys.readouterr().out
    assert re.search(r"known cases that wait +0 of 2", said)
    assert re.search(r"known anomalies that ada overlooked\s+100 %\s", said)
    assert main(["review", "report", *where, "--output", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["pipelines"].values()
    assert found["known"]["reviewers"]["ada"]["overlooked"] == 2
