"""An incident that was told ends as absorbed, or is held, where its channels have not come back."""

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from rejex_stream.encode import encode_incident
from rejex_stream.engine import Engine
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, Hold, IncidentTracker
from rejex_stream.incidents.levels import ChannelLevel, level_changes, levels_before
from rejex_stream.incidents.state_machine import OpenIncident
from rejex_stream.operate.incident_text import DisplayNames, describe_incident, headline
from rejex_stream.rejection.window import ScoreWindow
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import ChannelEvidence, IncidentState, LevelChange
from tests.streams import Distance, of_rows, played, spec

N, MINUTE = 400, 60_000


def pipeline(*, hold=True):
    return replace(
        spec(window=N, every=400, tolerance=3.0),
        detector=Distance(), features=FeatureSpec(("a", "b")), alarms=Alarms(), evidence=True,
        hold=Hold(enabled=hold, recover_events=20),
        schedule=RefitSchedule(
            first_fit_events=400, refit_every_events=400, refit_lag_events=20, buffer_events=800
        ),
    )  # fmt: skip


def feed(start, stop, by, *, n=2800, seed=1, phi=0.3):
    """Readings of two channels, an event a minute; the first is raised from some row to another."""
    X = lfilter([1.0], [1, -phi], np.random.default_rng(seed).normal(size=(n, 2)), axis=0)
    X[:, 0] += 45
    X[start:stop, 0] += by
    return of_rows(X, step_ms=MINUTE)


def incidents(readings, of, cut=100):
    changes = played(lambda: Engine(of, InlineExecutor()), readings, cut)[1]
    found = {one.id: one for one in changes if one.opened_seq >= 1990 and not one.within}
    return found, changes


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_what_the_reference_took_in_is_absorbed_and_what_came_back_has_recovered(seed):
    off = pipeline(hold=False)
    absorbed = next(iter(incidents(feed(2000, None, 5, seed=seed, n=3400), off)[0].values()))
    (change,) = absorbed.levels
    assert (absorbed.ended, change.channel) == ("absorbed", "a")
    assert change.before == pytest.approx(45, abs=1)
    assert change.since == pytest.approx(50, abs=1)
    recovered = next(iter(incidents(feed(2000, 2030, 5, seed=seed), off)[0].values()))
    assert (recovered.ended, recovered.levels) == ("recovered", ())


def held_at_a_mark(seed):
    readings = feed(2000, None, 10, seed=seed, phi=0.95)
    found, changes = incidents(readings, pipeline())
    (incident,) = found.values()
    first = next(one for one in changes if one.id == incident.id and one.held)
    return readings, incident, first


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_what_is_told_and_stays_at_another_level_is_held_before_the_reference_follows(seed):
    readings, incident, first = held_at_a_mark(seed)
    assert incident.state == "open"
    assert first.opened_seq < first.changed_seq <= first.opened_seq + N // 4 + N // 4
    assert first.version > 1, "it is said"
    assert first.adopts_ms == first.changed_ms + 3 * 86_400_000
    verdicts = played(lambda: Engine(pipeline(), InlineExecutor()), readings)[0]
    assert [v.held for v in verdicts[first.changed_seq - 1 : first.changed_seq + 1]] == [
        False,
        True,
    ]
    late = verdicts[-300:]
    assert {v.window_len for v in late} == {verdicts[first.changed_seq].window_len}
    assert sum(v.label != "normal" for v in late) > 250, "judged by what was before"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [3, 5])
def test_in_any_cut_and_restored_anywhere_it_is_held_and_absorbed_at_the_same_event(seed):
    for readings, of in (
        (feed(2000, None, 10, seed=seed, phi=0.95), pipeline()),
        (feed(2000, None, 5, seed=seed, n=3400), pipeline(hold=False)),
    ):
        rng = random.Random(seed)

        def fresh(of=of):
            return Engine(of, InlineExecutor())

        wanted = played(fresh, readings, len(readings))
        found = played(
            fresh, readings, lambda rng=rng: rng.choice([1, 2, 30, 150]),
            lambda rng=rng: rng.random() < 0.3,
        )  # fmt: skip
        assert found[0] == wanted[0]
        assert [encode_incident(i) for i in found[1]] == [encode_incident(i) for i in wanted[1]]


def test_it_is_said_in_words():
    found = incidents(feed(2000, None, 5, n=3400), pipeline(hold=False))[0]
    incident = next(iter(found.values()))
    line = headline(incident, DisplayNames())
    assert ": no longer unusual after" in line
    assert ", but a is 49." in line
    assert "and was 44." in line
    assert "over" not in line
    assert "because the reference followed: a is 49." in describe_incident(incident)


def test_a_level_has_changed_where_no_mean_was_before():
    rows = np.random.default_rng(0).normal(size=(400, 2))
    columns, named = {"a": (0, 0), "b": (1, 1)}, [ChannelEvidence("b", 1.0, None, None)]
    assert levels_before(rows[:70], columns, 10) == [], "too few to tell"
    a, b = levels_before(rows, columns, 10)
    means = rows.reshape(40, 10, 2).mean(axis=1)
    assert a.low < means[:, 0].min() < means[:, 0].max() < a.high
    assert (a.before, b.place) == (means[-1, 0], 1)
    assert level_changes([a, b], (), {"a": a.high, "b": b.low}) == []
    assert level_changes([a, b], (), {"a": 3.0, "b": -3.0}) == [
        LevelChange("a", a.before, 3.0),
        LevelChange("b", b.before, -3.0),
    ]
    assert level_changes([a, b], named, {"a": 3.0, "b": 0.0}) == [], "the one named is back"
    assert level_changes([a], (), {}) == [], "nothing is known"


def test_the_level_since_is_that_of_ordinary_events_in_a_row():
    level = ChannelLevel("a", 1, 0.0, -1.0, 1.0)
    for value, is_ordinary in (
        (9.0, True), (9.0, False), (1.0, True), (float("nan"), True), (2.0, True),
    ):  # fmt: skip
        level.add((7.0, value), is_ordinary=is_ordinary)
    assert (level.total, level.count) == (3.0, 2)


def test_nothing_is_held_where_the_reference_before_cannot_tell():
    tracker = IncidentTracker(Hold(recover_events=20), "s", N, alarms=Alarms())

    def held(fitted_at=900, rows_seen=1100, newest=5.0, since=50.0):
        """Return how many rows go back, where 100 of the window came since the mark at 1,000."""
        tracker.limit = 10.0
        tracker.open = OpenIncident(
            "t-0-1", IncidentState.OPEN, 1, 0, 0, 0, 0, ["s"], [], n_events=60, held=False,
            mark=1000, levels=[ChannelLevel("a", 0, 45.0, 44.0, 46.0)],
        )  # fmt: skip
        scores = [*np.random.default_rng(0).random(N - 100).tolist(), *[newest] * 100]
        return tracker.hold_moved(rows_seen, fitted_at, ScoreWindow(N, scores), {"a": since})

    assert held() == 100
    assert held(fitted_at=1001) == 0, "its model knows what came since"
    assert held(rows_seen=1000 + N) == 0, "too little of the window is from before"
    assert held(newest=0.5) == 0, "they call it ordinary"
    assert held(since=45.5) == 0, "it is where it was"
