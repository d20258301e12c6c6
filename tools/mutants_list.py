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
        "if named is not Label.ANOMALY:",
        "if named is not None:",
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
        "self._stuck.runs.now > 0 or AlarmKind.STUCK in self.ranks.active\n",
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
        "fitted = _Moments(self, fold if len(self.sums) > 1 else None)",
        "fitted = _Moments(self)",
        "tests/test_detectors_sensor.py::test_a_forecast_raises_few_rows_in_which_nothing_is_wrong",
    ),
    Mutant(
        "m71",
        "what the other channels explain of a jump counts as an error",
        "inverse = np.linalg.inv(covariance + _MIN_ERROR * np.eye(len(covariance)))",
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
    Mutant(
        "m84",
        "extreme rows are known to a shadow alone",
        "if judged.extreme and (self._shadow or self._pending):",
        "if judged.extreme and self._shadow:",
        "tests/test_severity.py::"
        "test_what_is_extreme_while_a_fit_is_under_way_is_in_no_tail_of_that_fit",
    ),
    Mutant(
        "m85",
        "after an adoption the fit waits a row longer",
        "min(len(rows), self._schedule.first_fit_events - 1)",
        "min(len(rows), self._schedule.first_fit_events - 2)",
        "tests/test_incidents.py::test_a_new_normal_becomes_the_reference",
    ),
    Mutant(
        "m86",
        "scores are put back in the order in which they came",
        "s.evicted for s in reversed(transition.onset) if s.entered])\n            self._retract",
        "s.evicted for s in transition.onset if s.entered])\n            self._retract",
        "tests/test_incidents.py::"
        "test_the_reference_of_an_incident_is_that_from_before_its_onset_in_its_order",
    ),
    Mutant(
        "m87",
        "a repair of what was adopted is an incident",
        "rare = self.late[verdict.seq] = self._counts_late(verdict.seq, rare)",
        "pass",
        "tests/test_interim.py::"
        "test_rows_as_before_an_adoption_bring_its_reference_back_for_a_fortnight",
    ),
    Mutant(
        "m88",
        "an ordinary tail is as long as all scores",
        "if score - score == 0.0 and i not in extreme\n            ][-self._capacity :]",
        "if score - score == 0.0 and i not in extreme\n            ]",
        "tests/test_severity.py::test_a_tail_is_made_of_as_many_ordinary_scores_as_a_window_holds",
    ),
    Mutant(
        "m89",
        "a place for extreme scores is lost",
        "if not is_extreme or n_extreme <= places:",
        "if not is_extreme or n_extreme < places:",
        "tests/test_severity.py::test_as_many_extreme_scores_stay_as_half_of_the_flagged_ranks",
    ),
    Mutant(
        "m90",
        "half of the flagged is one less",
        "return max(1, (n + 1 - band.edges[2]) // 2)",
        "return max(1, (n - band.edges[2]) // 2)",
        "tests/test_severity.py::test_as_many_extreme_scores_stay_as_half_of_the_flagged_ranks",
    ),
    Mutant(
        "m91",
        "edges stay where what left was above them",
        "if lowest is None or score >= lowest or evicted >= lowest:",
        "if lowest is None or score >= lowest:",
        "tests/test_rejection.py::"
        "test_the_scores_at_the_edges_of_the_band_are_those_of_the_window_of_the_moment",
    ),
    Mutant(
        "m92",
        "what ranks at the quantile is beyond it",
        "> quantile * n:\n                found",
        ">= quantile * n:\n                found",
        "tests/test_guard.py::"
        "test_what_is_beyond_a_quantile_has_more_than_that_share_of_its_window_below",
    ),
    Mutant(
        "m93",
        "what a shared credit has left is lost with its last stream",
        "credit = credit if shared is None else shared.state()",
        "pass",
        "tests/test_shared_budgets.py::"
        "test_what_the_last_to_leave_knew_is_no_newer_than_the_credit_it_shared",
    ),
    Mutant(
        "m94",
        "each event beyond a limit is news",
        "is_news, incident.is_told = not incident.limits, True",
        "is_news, incident.is_told = True, True",
        "tests/test_limits.py::"
        "test_an_incident_lasts_while_values_are_beyond_however_ordinary_scores_are",
    ),
    Mutant(
        "m95",
        "a muted verdict is evidence for the tracker",
        "if rare is None or verdict.muted:",
        "if rare is None:",
        "tests/test_mutes.py",
    ),
    Mutant(
        "m96",
        "what is under suspicion counts though it did not enter",
        "entered = sum(Suspect.of(*event).entered for event in self.suspect_events)",
        "entered = len(self.suspect_events)",
        "tests/test_incidents.py::"
        "test_of_what_is_under_suspicion_only_what_entered_is_no_part_of_the_reference",
    ),
    Mutant(
        "m97",
        "a blip hides a fault that is twice as severe",
        "asks = severity > 2 * worst",
        "asks = severity > 3 * worst",
        "tests/test_context.py::"
        "test_of_extreme_anomalies_the_first_for_a_quarter_of_a_window_is_asked_about",
    ),
    Mutant(
        "m98",
        "an anomaly is asked about again after half a window",
        "verdict.window_len // _PER_WINDOW:",
        "verdict.window_len // (2 * _PER_WINDOW):",
        "tests/test_context.py::"
        "test_of_extreme_anomalies_the_first_for_a_quarter_of_a_window_is_asked_about",
    ),
    Mutant(
        "m99",
        "a muted event is audited at the rate of its label",
        "            share = max(share, self.near_rate or 0.0)\n        elif",
        "            pass\n        elif",
        "tests/test_context.py::"
        "test_a_muted_event_is_drawn_in_the_larger_share_of_normals_whatever_its_label",
    ),
    Mutant(
        "m100",
        "a follow-up repeats points that were told",
        "n_told = 1 << (n_since - 1).bit_length() >> 1",
        "n_told = 1 << n_since.bit_length() >> 1",
        "tests/test_context.py::test_what_came_after_an_item_follows_early_and_each_event_once",
    ),
    Mutant(
        "m101",
        "a sensor that was forgotten is awake still",
        "        self._resting.wake_ups.pop(sensor, None)\n",
        "",
        "tests/test_resting.py::test_a_sensor_that_was_forgotten_never_woke",
    ),
    Mutant(
        "m102",
        "commands of a log that was made again keep their places",
        "self.unassigned = [(-1, item) for _, item in self.unassigned]",
        "self.unassigned = list(self.unassigned)",
        "tests/test_control.py::test_of_a_log_that_was_made_again_everything_is_read_after_a_crash",
    ),
    Mutant(
        "m103",
        "a sensor that was forgotten finds its gaps again",
        "        self._gaps.pop(sensor, None)\n",
        "",
        "tests/test_limits.py::test_a_sensor_that_was_forgotten_lacks_nothing_that_it_had_before",
    ),
    Mutant(
        "m104",
        "a command of a commit that failed is in effect before the one ahead",
        "offset = max(offset, durable.entries[-1].effective_offset)",
        "pass",
        "tests/test_control.py::"
        "test_commands_keep_their_order_where_a_commit_failed_that_was_recorded",
    ),
    Mutant(
        "m105",
        "who is forgotten begins with a whole burst, where many are gone",
        "return self._gone.pop(owner, None) or self._gone.get(_overflow_bucket(owner, kind))",
        "return self._gone.pop(owner, None)",
        "tests/test_shared_budgets.py::test_a_sensor_that_comes_back_finds_the_credit_it_left",
    ),
    Mutant(
        "m106",
        "a run of a score that half of the window has is of a common one",
        "self.was_common = 2 * ties > n;",
        "self.was_common = 2 * ties >= n;",
        "tests/test_native.py::"
        "test_a_run_is_of_a_common_score_where_more_than_half_of_the_window_ties",
    ),
    Mutant(
        "m107",
        "the native core packs flags of rows that all train",
        "if flags.iter().all(|&flag| flag == 0) {",
        "if flags.is_empty() {",
        "tests/test_native.py::test_rows_are_put_away_as_python_does[GMM-tens]",
    ),
    Mutant(
        "m108",
        "between two scores of a tail the native core makes no step",
        "severity - self.shade * short * (severity - min)",
        "severity - short * (severity - min)",
        "tests/test_native.py::"
        "test_each_scorer_on_each_preset_is_taken_and_says_the_same[HBOS-raw-3]",
    ),
    Mutant(
        "m109",
        "the native core puts what lies on an edge into the bin above",
        "partition_point(|&edge| edge < x)",
        "partition_point(|&edge| edge <= x)",
        "tests/test_native.py::"
        "test_each_scorer_on_each_preset_is_taken_and_says_the_same[HBOS-sensor-3]",
    ),
    Mutant(
        "m110",
        "the native core takes a score at an edge for one below",
        "filter(|&&edge| edge <= other)",
        "filter(|&&edge| edge < other)",
        "tests/test_native.py::"
        "test_what_scores_whole_rows_is_explained_by_the_native_core[None-HBOS]",
    ),
    Mutant(
        "m111",
        "in the native core an item is owed one point more",
        "n_since >= self.points",
        "n_since > self.points",
        "tests/test_native_messages.py::"
        "test_what_follows_an_item_ends_at_the_same_event_in_either_core",
    ),
)
