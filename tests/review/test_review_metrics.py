"""What the alert rules ask of the queue: what waits, for how long, and what was missed."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from rejex_stream.cli.main import main
from rejex_stream.config.reviewing import Capacity
from rejex_stream.review.certificate import certify, sentence, tally_of_store
from rejex_stream.review.console.api import exposition
from rejex_stream.review.queue import labelling
from rejex_stream.types import Audit, Label
from tests.operate.alerting import tool
from tests.program import ended
from tests.review.console_server import running
from tests.review.test_questions import doubtful
from tests.review.test_review_store import ADA, BOB, episodes, item, label, read


def told(store):
    families = text_string_to_metric_families(exposition(store, {}).decode())
    return {
        (sample.name.removeprefix("rejex_review_"), *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_open_episodes_are_those_that_wait_for_an_answer(new_store):
    store = new_store(settle_s=0, double_review_ratio=0.0)
    assert told(store)["open_episodes",] == 0
    store.add([item(1000 * i, sensor="T07/vib") for i in range(3)])
    assert told(store)["open_episodes",] == 3
    label(store, ADA, episodes(store)[:1], "normal", request="one")
    assert told(store)["open_episodes",] == 2
    labelling.undo(store, "u", ADA)
    assert told(store)["open_episodes",] == 3


def test_what_waits_for_another_day_by_design_is_not_overdue(new_store, clock):
    """With a capacity most cases wait for ever: the alert would have fired from the second day."""
    store = new_store(settle_s=0, gap_events=0, capacity=Capacity(questions_per_day=1))
    store.add([doubtful(0, 0.95)])
    clock.pass_ms(3_600_000)
    store.add([doubtful(900, 0.5)])
    clock.pass_ms(60_000)
    found = told(store)
    assert (found["open_episodes",], found["oldest_age_seconds",]) == (2, 60)
    with store.database.write() as connection:
        connection.execute("UPDATE episode SET assigned = 'bob' WHERE start_ms > 0")
    assert told(store)["oldest_age_seconds",] == 3660, "what is Bob's takes no room of the others"
    label(store, BOB, episodes(store, BOB)[:1], "normal")
    assert told(store)["oldest_age_seconds",] == 0, "the day's work is done"


def test_what_was_missed_is_told_as_it_is_certified(new_store):
    store = new_store(settle_s=0)
    none = told(store)
    assert not any(key[0].startswith("missed") for key in none)
    drawn = []
    for number in range(60):
        one = item(1000 * number, why="audit")
        verdict = replace(one.verdict, label=Label.NORMAL, audit=Audit(0.5, True))
        drawn.append(replace(one, verdict=verdict, drawn=0.5))
    store.add(drawn, [one.verdict for one in drawn])
    for number, target in enumerate(episodes(store)):
        label(store, ADA, [target], "anomaly" if number < 40 else "normal", request=str(number))
    found = told(store)
    proven = certify(read(store, tally_of_store, ""), pipeline="")
    assert found["missed_lower", ("pipeline", "")] == proven.missed_at_least > 40
    assert found["accepted_normal_events", ("pipeline", "")] == 60


@pytest.mark.thorough
def test_what_was_missed_stands_on_the_audit_page_and_in_the_report(
    wall_store, capsys: pytest.CaptureFixture[str]
):

    store = wall_store(settle_s=0, gap_events=0)
    with running(store) as console:
        assert "What was missed" not in console.ask("/audit").text
        drawn = []
        for number in range(20):
            one = item(1000 * number, why="audit")
            drawn.append(replace(one, verdict=replace(one.verdict, label=Label.NORMAL), drawn=0.5))
        store.add(drawn, [one.verdict for one in drawn])
        first = console.ask("/audit").text
        assert "20 audited events have no clear answer" in first
        for number, target in enumerate(episodes(store)):
            label(store, ADA, [target], "normal" if number else "anomaly", request=str(number))
        page = console.ask("/audit").text
    proven = certify(read(store, tally_of_store, ""), pipeline="")
    assert sentence(proven) in page
    assert "no clear answer" not in page
    assert main(["review", "report", "--store", str(store.database.path)]) == 0
    assert sentence(proven) in " ".join(capsys.readouterr().out.split())
    assert main(["review", "report", "--store", str(store.database.path), "--output", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["certificates"]
    assert told["missed_at_most"] == proven.missed_at_most


@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say(new_store, clock):
    store = new_store(settle_s=0)
    store.add([item(0)])
    clock.pass_ms(10_000)
    label(store, ADA, episodes(store), "normal", request="a")
    done = ended([tool("promtool"), "check", "metrics"], input=exposition(store, {}), text=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
