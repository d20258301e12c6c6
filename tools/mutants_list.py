"""The mutants of :mod:`tools.mutants`: what is broken, and the tests that have to see it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A change of one place.

    Attributes
    ----------
    name, about
        What it is called; what it breaks, for a person.
    original, mutated
        Text that stands once in the product, and what takes its place.
    tests
        Names for pytest, with a space between; one of them has to fail.
    """

    name: str
    about: str
    original: str
    mutated: str
    tests: str


MUTANTS = (
    Mutant(
        "m76",
        "a channel is said to lie off what others that are ill make one expect",
        "is_told = named is not Label.ANOMALY and (read < low or read > high)",
        "is_told = read < low or read > high",
        "tests/test_evidence.py::test_evidence_says_what_the_others_made_one_expect",
    ),
    Mutant(
        "m77",
        "the likely range is that of a shrunk covariance, which is too wide",
        " - added * (along * along).sum(axis=0)",
        "",
        "tests/test_evidence.py::test_nineteen_of_twenty_ordinary_readings_lie_in_the_likely_range",
    ),
    Mutant(
        "m63",
        "what nobody looked at certifies the machine by its own word",
        'return None if state == "expired" else verdict',
        "return verdict",
        "tests/review/test_certificate.py::"
        "test_what_nobody_looked_at_is_no_answer_whatever_it_expires_into",
    ),
    Mutant(
        "m44",
        "commands that waited for room are lost with a crash",
        "durable.next_command = place + 1",
        "durable.next_command = self.next_command",
        "tests/test_control.py::"
        "test_after_a_crash_the_log_is_read_from_the_first_command_that_waited",
    ),
    Mutant(
        "m51",
        "a snapshot contains a command that its replay obeys again",
        "if state.replies or state.n_events",
        "if state.n_events",
        "tests/test_control.py::"
        "test_no_snapshot_begins_between_a_command_and_the_event_from_which_it_holds",
    ),
    Mutant(
        "m50",
        "a snapshot builds for ever upon one that is gone",
        "        if base_is_gone:\n            self.base = None\n",
        "",
        "tests/test_durability.py::"
        "test_where_the_base_of_a_snapshot_is_gone_the_next_one_is_written_whole",
    ),
    Mutant(
        "m56",
        "an alarm that is raised again ends when the first would have",
        "active.until = until\n",
        "pass\n",
        "tests/test_monitor_alarms.py::"
        "test_an_alarm_that_is_raised_again_stays_so_much_longer_and_is_said_once",
    ),
    Mutant(
        "m53",
        "a model swap begins the run of a stuck sensor again",
        "            self._stuck.swap()\n",
        "",
        "tests/test_monitor_alarms.py::"
        "test_a_sensor_that_is_stuck_over_a_swap_is_named_after_200_equal_scores_of_both_models",
    ),
    Mutant(
        "m55",
        "the alarm of a stuck sensor that a restart brought back never ends",
        "AlarmKind.STUCK in self.ranks.active\n",
        "False\n",
        "tests/test_monitor_alarms.py::"
        "test_a_restored_alarm_of_a_stuck_sensor_ends_when_scores_move",
    ),
    Mutant(
        "m57",
        "the ties of a model are told of the next one",
        "            self._tie_mass = 0.0\n            self.ranks",
        "            self.ranks",
        "tests/test_monitor_alarms.py::"
        "test_what_a_model_tied_and_what_it_warmed_up_on_end_with_the_next_model",
    ),
    Mutant(
        "m57b",
        "a restored pipeline measures its blocks as of one stream",
        "        self._pooled.health.streams = max(1, len(monitors))\n",
        "",
        "tests/test_monitor_alarms.py::test_the_pipelines_blocks_span_the_streams_there_are",
    ),
    Mutant(
        "m57c",
        "held events, ranked in a window that stands still, enter the monitors",
        " or not is_ranked(verdict)",
        "",
        "tests/test_monitor_refits.py::test_held_events_and_those_without_a_rank_enter_no_sum",
    ),
    Mutant(
        "m57d",
        "what a swap makes unsure of the sum of ranks is never forgotten",
        "        self._unsettled *= self._memory * self._memory\n",
        "",
        "tests/test_monitor_refits.py::test_evidence_is_the_square_of_the_moving_sum_beside_its_variance",
    ),
    Mutant(
        "m3",
        "a window is constant one event late",
        "self._constant = ties + (evicted != score) >= n",
        "self._constant = ties >= n",
        "tests/test_engine.py::"
        "test_a_window_is_constant_with_the_event_after_its_last_other_score_has_left",
    ),
    Mutant(
        "m17",
        "a fit that was asked for on rows since taken back is made",
        "            if model is not None and model.requested_at > self.rows_seen:\n"
        "                self._give_up(model)",
        "            pass",
        "tests/test_incidents.py::test_no_fit_is_made_of_rows_that_are_taken_back",
    ),
    Mutant(
        "m22",
        "a guard forgets what it had left out before rows that are taken back",
        "        self._longest = schedule.buffer_events + look_back\n",
        "        self._longest = schedule.buffer_events\n",
        "tests/test_guard.py::test_rows_that_are_taken_back_were_never_there",
    ),
    Mutant(
        "m22b",
        "a guard counts what it left out of rows that are taken back",
        "del self._flags[max(0, len(self._flags) - count) :]",
        "del self._flags[len(self._flags) :]",
        "tests/test_guard.py::test_rows_that_are_taken_back_were_never_there",
    ),
    Mutant(
        "m24",
        "the age of a model counts from the first row, not from its fit",
        "return self.rows_seen - self._serving.requested_at",
        "return self.rows_seen",
        "tests/test_evidence.py::test_the_numbers_of_the_evidence_are_those_of_the_verdict",
    ),
    Mutant(
        "m25",
        "a mode that is new does not know what was muted of its sensor",
        "        self._mutes = Mutes(self._features.channels, other._mutes.all)\n",
        "",
        "tests/test_modes.py::test_what_is_muted_of_a_sensor_is_muted_in_a_mode_to_come",
    ),
    Mutant(
        "m30",
        "a model that learns scores right after it has adopted",
        "        self._warm_until = max(self._warm_until, self.rows_seen + missing)\n",
        "",
        "tests/test_incidents.py::"
        "test_a_model_that_learns_has_its_warm_up_with_what_it_adopted_too",
    ),
    Mutant(
        "m33",
        "one outlier wipes out all evidence for the end of an incident",
        "incident.ordinary + ORDINARY - min(severity, self.max_severity)",
        "incident.ordinary + ORDINARY - severity",
        "tests/test_incidents.py::"
        "test_one_outlier_costs_an_incident_no_more_evidence_than_any_can_add",
    ),
    Mutant(
        "m35",
        "relapses are not counted: people are told of every one",
        "            incident.relapses += 1\n",
        "            pass\n",
        "tests/test_incidents.py::"
        "test_after_ten_relapses_it_is_not_said_again_that_scores_look_ordinary",
    ),
    Mutant(
        "m36",
        "a reference is measured twice at one row",
        "and self.active and rows != self._usual.looked:",
        "and self.active:",
        "tests/test_incidents.py::test_no_row_is_measured_at_twice",
    ),
    Mutant(
        "m64",
        "one sensor contradicts the clock by saying the same twice",
        "if name != sensor and abs(t - time_ms) <= DAY_MS",
        "if abs(t - time_ms) <= DAY_MS",
        "tests/test_reorder_buffer.py::test_what_takes_no_clock_back",
    ),
    Mutant(
        "m65",
        "a clock that goes back is paid for",
        "max(0, now - before)",
        "now - before",
        "tests/test_governor.py::"
        "test_a_liar_who_speaks_first_ends_no_budget_that_others_share_and_its_way_back_earns_nothing",
    ),
    Mutant(
        "m70",
        "distances are put on one scale by rows that they were fitted on",
        "others = ~out if len(X) > 1 else out",
        "others = out | True",
        "tests/test_detectors_sensor.py::test_a_forecast_raises_few_rows_in_which_nothing_is_wrong",
    ),
    Mutant(
        "m71",
        "what the other channels explain of a jump counts as an error",
        "inverse = np.linalg.inv(covariance)",
        "inverse = np.diag(1.0 / np.diag(covariance))",
        "tests/test_detectors_sensor.py::"
        "test_a_jump_that_the_other_channels_do_not_make_is_a_larger_error_than_one_that_they_make",
    ),
    Mutant(
        "m72",
        "who lacks a channel cannot be quiet",
        "            scores = self.low_variance.max_without(scores, X, groups)\n",
        "            pass\n",
        "tests/test_detectors_sensor.py::test_what_is_there_of_a_row_may_be_quiet",
    ),
    Mutant(
        "m73",
        "a tail is heavy by chance",
        "2.0 - mean / (mean - upper) - 2.0 * math.sqrt(cluster / k)",
        "2.0 - mean / (mean - upper)",
        "tests/test_severity.py::"
        "test_a_tail_is_heavy_where_two_standard_errors_say_so_and_never_by_chance",
    ),
    Mutant(
        "m74",
        "scores that are tied with the largest are beyond it",
        'np.sort(part).searchsorted(largest, "right")',
        'np.sort(part).searchsorted(largest, "left")',
        "tests/test_severity.py::"
        "test_scores_that_are_tied_with_the_largest_of_another_stretch_do_not_exceed_it",
    ),
    Mutant(
        "m75",
        "somebody is told of a stretch without an anomaly",
        "if not (limits or (to_be_seen and alarm.is_due(at))):",
        "if not (limits or alarm.is_due(at)):",
        "tests/test_alarm.py::test_nobody_is_told_of_events_none_of_which_was_an_anomaly",
    ),
    Mutant(
        "m78",
        "a topic that was made again is read on where the old one was left",
        "if before in (None, log):",
        "if before != log:",
        "tests/review/test_review_failures.py::test_a_topic_of_another_log_is_read_from_its_start",
    ),
    Mutant(
        "m79",
        "a season is held: its scores rose before the onset already",
        "if opens and len(window) == self._window and rises(self._trusted(window)):",
        "if False:",
        "tests/test_incidents.py::test_a_season_is_told_and_not_held_though_a_fault_in_it_is",
    ),
    Mutant(
        "m80",
        "a swap of models is not written: what is kept by version is refused",
        "self._serving, self._shadow = shadow, None\n            self.recipe_version += 1\n",
        "self._serving, self._shadow = shadow, None\n",
        "tests/test_laws.py::"
        "test_law_3_a_crash_goes_on_from_parts_that_are_written_once_a_version[distance-shadow]",
    ),
    Mutant(
        "m81",
        "what is adopted contains rows of the fault before",
        "self._held.clear()\n\n    def _retract",
        "pass\n\n    def _retract",
        "tests/test_incidents.py::"
        "test_what_is_adopted_is_the_second_of_two_incidents_and_nothing_of_the_first",
    ),
    Mutant(
        "m82",
        "rows that lack a column are adopted",
        "        rows = np.delete(rows, _partial_in(rows), axis=0)\n",
        "",
        "tests/test_incidents.py::"
        "test_what_is_adopted_is_the_second_of_two_incidents_and_nothing_of_the_first",
    ),
    Mutant(
        "m83",
        "a model that is on its way survives that its rows are taken back",
        "        self._shadow = None if model is self._shadow else self._shadow\n",
        "",
        "tests/test_incidents.py::test_no_fit_is_made_of_rows_that_are_taken_back",
    ),
)
