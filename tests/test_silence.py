"""A sensor that sends nothing for longer than is usual is an incident, by others' events alone."""

import random
from types import SimpleNamespace

import pytest

from rejex_stream.engine.sensor_registry import SensorRegistry
from rejex_stream.engine.silences import Silences
from rejex_stream.errors import CheckpointError
from rejex_stream.operate.alerts import make_alert, make_event, make_overdue_alert
from rejex_stream.operate.incident_text import (
    DisplayNames,
    choices,
    describe_incident,
    headline,
    if_unanswered,
)
from rejex_stream.operate.run_monitor import Arrivals
from rejex_stream.types import IncidentState, Position, Reading
from tests.test_sensor_registry import feed, reborn, state_of

NOW, MINUTE, HOUR, DAY = 1_780_272_000_000, 60_000, 3_600_000, 86_400_000


def every(step_ms, sensor, days, start_ms=0):
    return [(NOW + t, sensor) for t in range(start_ms, int(days * DAY), step_ms)]


def three_of_which_c_pauses(pause_ms, step_ms=HOUR // 2, days=6):
    """Tell (time, sensor) of three sensors; the third sends nothing from the fourth day on."""
    told = [one for name in "abc" for one in every(step_ms, name, days)]
    gone = range(NOW + 4 * DAY, NOW + 4 * DAY + pause_ms)
    return sorted(one for one in told if one[1] != "c" or one[0] not in gone)


def changes_of(outcomes):
    return [one for outcome in outcomes for one in outcome.incidents if one.silent]


def test_who_sends_nothing_is_named_and_ends_when_it_is_back():
    told = three_of_which_c_pauses(DAY)
    begun, ended = changes_of(state_of().process(feed(*told)))
    last = NOW + 4 * DAY - HOUR // 2
    assert (begun.sensors, begun.stream_key, begun.onset_ms) == (("c",), "c", last)
    # thrice its gap, and one step of the clock more
    assert begun.opened_ms == last + 5 * HOUR // 2
    assert begun.id == f"{begun.position}-silent-0"
    assert begun.opens
    assert not ended.opens
    assert (ended.state, ended.ended, ended.version) == (IncidentState.CLOSED, "back", 2)
    assert ended.position.offset == told.index((NOW + 5 * DAY, "c"))
    assert ended.changed_ms == NOW + 5 * DAY


def test_its_model_is_kept():
    outcomes = state_of().process(feed(*three_of_which_c_pauses(DAY)))
    seqs = [o.verdict.seq for o in outcomes if o.verdict.sensor == "c"]
    assert seqs == [*range(len(seqs))]


def test_a_logger_that_uploads_what_it_kept_is_not_silent():
    told = [*every(HOUR, "a", 12), *every(HOUR, "b", 12)]
    arrivals = [(time_ms, time_ms, sensor) for time_ms, sensor in told]
    for time_ms, _ in every(HOUR, "logger", 12):
        arrivals.append(
            (NOW + (time_ms - NOW) // (12 * HOUR) * 12 * HOUR + 12 * HOUR, time_ms, "l")
        )
    told = [(time_ms, sensor) for _, time_ms, sensor in sorted(arrivals)]
    assert changes_of(state_of().process(feed(*told))) == []
    # but it is where it does not for longer
    told = [one for one in told if one[1] != "l" or one[0] < NOW + 7 * DAY]
    (begun,) = changes_of(state_of().process(feed(*told)))
    assert begun.sensors == ("l",)
    assert begun.onset_ms == NOW + 7 * DAY - HOUR


@pytest.mark.thorough
def test_a_machine_that_is_off_each_night_is_told_twice_at_most():
    def works(time_ms):
        return time_ms % DAY < 14 * HOUR

    told = [one for name in "ab" for one in every(HOUR // 2, name, 30)]
    told += [one for one in every(HOUR // 2, "c", 30) if one[0] < NOW + 4 * DAY or works(one[0])]
    found = [one for one in changes_of(state_of().process(feed(*sorted(told)))) if one.opens]
    assert 1 <= len(found) <= 2
    assert found[-1].opened_ms < NOW + 8 * DAY


def test_who_stays_away_after_such_a_stop_is_silent():
    told = [one for name in "abcdef" for one in every(MINUTE * 10, name, 5)]
    gone = range(NOW + 4 * DAY, NOW + 4 * DAY + 8 * HOUR)
    told = [o for o in told if o[0] not in gone and not (o[1] == "f" and o[0] > NOW + 4 * DAY)]
    (begun,) = changes_of(state_of().process(feed(*sorted(told))))
    assert begun.sensors == ("f",)
    assert NOW + 4 * DAY + 8 * HOUR < begun.opened_ms < NOW + 4 * DAY + 9 * HOUR


def test_all_of_a_gateway_are_told_at_one_event_each_by_its_name():
    told = [one for name in "abcdef" for one in every(HOUR // 2, name, 6)]
    told = sorted(o for o in told if o[1] in "ab" or o[0] < NOW + 4 * DAY)
    outcomes = state_of().process(feed(*told))
    found = changes_of(outcomes)
    assert [one.sensors[0] for one in found] == ["c", "d", "e", "f"]
    assert len({one.id for one in found}) == 4
    assert len({one.position for one in found}) == 1


def test_a_silence_of_who_is_forgotten_ends_with_that():
    told = [one for one in three_of_which_c_pauses(10 * DAY, days=10)]
    state = state_of(forget_after_ms=2 * DAY)
    begun, ended = changes_of(state.process(feed(*told)))
    assert (ended.id, ended.ended, ended.version) == (begun.id, "forgotten", 2)
    assert state._engine.open_incidents() == []


def test_where_one_other_alone_is_alive_nothing_is_written():
    told = sorted(o for o in three_of_which_c_pauses(2 * DAY) if o[1] != "b")
    assert changes_of(state_of().process(feed(*told))) == []


def test_a_clock_that_goes_back_makes_nobody_silent():
    told = three_of_which_c_pauses(0)
    middle = len(told) // 2
    told[middle:middle] = [(NOW + 300 * DAY + i, "a") for i in range(9)]
    assert changes_of(state_of().process(feed(*told))) == []


# ------------------------------------------------------------------------------------ laws
def lives(seed):
    """Tell of sensors with steps, pauses and late uploads of their own, in one order."""
    rng, arrivals = random.Random(seed), []
    for name in "abcde":
        step, late, time_ms = rng.choice([HOUR, 2 * HOUR, 5 * HOUR]), rng.choice([0, 0, 9]), NOW
        while time_ms < NOW + 20 * DAY:
            time_ms += int(step * rng.uniform(0.5, 1.5))
            if rng.random() < 0.01:
                time_ms += int(DAY * rng.uniform(0.2, 4))
            seen = time_ms
            if late:
                seen += (-time_ms) % (late * HOUR)
            arrivals.append((seen, time_ms, name))
    return [(time_ms, name) for _, time_ms, name in sorted(arrivals)]


def slowly(told):
    registry, heard, steps, silent, found, before = SensorRegistry(), {}, [], set(), [], None
    clock = registry._clock
    for i, (time_ms, name) in enumerate(told):
        now = clock.advance(name, time_ms)
        if now is None:
            continue
        if before is not None and now > before:
            steps.append((now, now - before))
        before = now
        own = heard.setdefault(name, SimpleNamespace(at=now, day=now, longest=0, days=[]))
        if now > own.at:
            own.longest, own.at = max(own.longest, now - own.at), now
            if now - own.day >= DAY:
                own.days.append(own.longest)
                own.day, own.longest = now, 0
        if name in silent:
            silent.discard(name)
            found.append((i, name, "back"))
        if clock.is_by_one:
            continue
        for other in sorted(heard.keys() - silent):
            known = heard[other]
            days = sorted(known.days[-16:])
            if len(days) < 3:
                continue
            largest = days[-1 - len(days) // 8]
            limit = max(MINUTE, 3 * days[len(days) // 2], largest + largest // 2)
            longest = max((size for at, size in steps if at > known.at), default=0)
            if now - known.at - longest > limit:
                silent.add(other)
                found.append((i, other, None))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_in_any_cut_and_restored_anywhere_it_is_the_law(seed):
    told, rng = lives(seed), random.Random(seed)
    state, parts, records, found = state_of(), {}, feed(*told), []
    while records:
        n = rng.choice([1, 7, 60, 200])
        found += changes_of(state.process(records[:n]))
        records = records[n:]
        if rng.random() < 0.3:
            state, parts = reborn(state, parts, state_of)
    wanted = slowly(told)
    assert [(one.position.offset, one.sensors[0], one.ended) for one in found] == wanted
    assert len(wanted) > 4
    whole = changes_of(state_of().process(feed(*told)))
    assert found == whole
    open_now = {one.id: one for one in whole if one.state is not IncidentState.CLOSED}
    ended = {one.id for one in whole if one.ended}
    assert {one.id for one in state._engine.open_incidents()} == open_now.keys() - ended


def test_what_is_no_life_is_refused():
    head = SensorRegistry().head()
    with pytest.raises(CheckpointError, match="known of sensors is broken"):
        SensorRegistry().restore(head, {"a": [{}, ["a", "?"]]})


# ------------------------------------------------------------------------------------ texts
def of_one():
    begun, ended = changes_of(state_of().process(feed(*three_of_which_c_pauses(DAY))))
    return begun, ended


def test_it_is_told_in_words_and_takes_no_answer():
    begun, ended = of_one()
    names = DisplayNames("plant")
    assert headline(begun, names) == "c: sends nothing since Thu 4 June 2026, 23:30 UTC"
    assert headline(ended, names).startswith("c: sends again, after 1 d")
    assert "usually" in describe_incident(begun)
    assert choices(begun) == []
    assert "sends again, or is forgotten" in if_unanswered(begun)
    alert = make_alert(begun, names)
    assert alert.labels["stream"] == "c"
    assert alert.labels["severity"] == "warning"
    assert "severity" not in alert.annotations
    assert b'"silent":true' in make_event(begun, names).body
    assert make_overdue_alert("c", names).labels["sensor"] == "c"


# ------------------------------------------------------------------------------------ the shell
def known_gaps(names="ab"):
    """Return the silences of a partition whose sensors send every half hour."""
    silences = Silences()
    for t in range(0, 4 * DAY, HOUR // 2):
        for name in names:
            reading = Reading(name, name, NOW + t, (), Position("t", 0, t))
            assert silences.hear(reading, NOW + t, by_others=True) == ()
    return silences


def of(time_ms, *sensors):
    return [Reading(name, name, time_ms, (), Position("t", 0, 0)) for name in sensors]


def test_where_nobody_sends_the_shell_says_so_after_what_is_usual():
    arrivals = Arrivals(known_gaps("abc"), 0.0)
    arrivals.update(of(NOW, *"abc"), 10.0)
    assert arrivals.overdue(10 + 1.5 * 3600) == []
    assert arrivals.overdue(11 + 1.5 * 3600) == ["a", "b", "c"]


def test_where_two_others_send_events_say_so():
    arrivals = Arrivals(known_gaps("abcd"), 0.0)
    arrivals.update(of(NOW, *"abcd"), 0.0)
    arrivals.update(of(NOW + 4 * HOUR, *"abc"), 4 * 3600.0)
    assert arrivals.overdue(4 * 3600.0) == []


def test_of_two_the_shell_says_that_one_sends_nothing():
    arrivals = Arrivals(known_gaps(), 0.0)
    arrivals.update(of(NOW, "a", "b"), 0.0)
    arrivals.update(of(NOW + 2 * HOUR, "a"), 2 * 3600.0)
    assert arrivals.overdue(2 * 3600.0) == ["b"]


def test_an_input_that_is_caught_up_with_makes_nobody_overdue():
    """Its events are of minutes, and it takes hours to read them."""
    arrivals = Arrivals(known_gaps(), 0.0)
    arrivals.update(of(NOW, "a", "b"), 0.0)
    for hour in range(1, 9):
        arrivals.update(of(NOW + hour * MINUTE, "a"), hour * 3600.0)
    assert arrivals.overdue(8 * 3600.0) == []


def test_before_anything_came_a_restart_counts_from_itself():
    arrivals = Arrivals(known_gaps(), 100.0)
    assert arrivals.overdue(100 + 3600.0) == []
    assert arrivals.overdue(100 + 2 * 3600.0) == ["a", "b"]
