"""What the native core reaches of the Python objects, by name: the seam between the two languages.

Rust reads and writes these attributes where they lie, calls these methods and imports these names;
no type checker sees it. So whoever renames or removes one changes it here and in ``native/src``.
``tests/test_native_seam.py`` compares this table with both sides, and a built core is compared with
it when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

# By module, or by class as "module:Class"; of a class attributes and methods.
_REACHED: Mapping[str, str] = {
    "rejex_stream.monitor.bank": "_LARGEST_STEP _NEGLIGIBLE _STEPS",
    "rejex_stream.monitor.rate": "_IS_REJECT _MIXED_RECHECK",
    "rejex_stream.monitor.drift": "_MEMORY_WINDOWS _MIN_EFFECTIVE",
    "rejex_stream.monitor.health": "_LONGEST_RUN _MIN_EFFECTIVE",
    "rejex_connectors.kafka.messages": "_TRACE_BYTES",
    "rejex_stream.features.preset": "FEW_CHANNELS _LONG _MIDDLE _SHORT",
    "rejex_stream.incidents.limits": "NOISE_EVERY",
    "rejex_stream.incidents.resting": "_AT_REST",
    "rejex_stream.incidents.ewma": "RESET_LEVEL _MOST_SEVERITY _WEIGHT",
    "rejex_connectors.kafka.clients": "Message",
    "rejex_connectors.kafka.messages:EventHeaders": "_version fixed most",
    "rejex_connectors.kafka.messages:OutcomeMessages": (
        "_follow_up_headers _limit _n_review _n_verdicts _review _review_headers _verdict_headers "
        "_verdicts"
    ),
    "rejex_stream.decode.mapping": "MAX_EPOCH_MS MIN_EPOCH_MS",
    "rejex_stream.decode.mapping:FieldMapping": "epoch_ms max_value_bytes sensor_of time_of",
    "rejex_stream.detectors.scorers": "ColumnHistograms GaussianMixture",
    "rejex_stream.detectors.scorers:ColumnHistograms": "_edges _heights",
    "rejex_stream.detectors.scorers:GaussianMixture": "_plain",
    "rejex_stream.detectors.sensor.distance": "_LINEAR _WILD MaxDistance",
    "rejex_stream.detectors.sensor.distance:Distance": "_apart _others_explain mean root scale",
    "rejex_stream.detectors.sensor.distance:MaxDistance": (
        "_joint low_variance plain prediction_error"
    ),
    "rejex_stream.detectors.sensor.distance:LowVarianceDistance": (
        "floors inner knots logs near usual"
    ),
    "rejex_stream.detectors.sensor.distance:SoftScale": "centre spread",
    "rejex_stream.detectors.sensor.distance:PredictionErrorDistance": "knots",
    "rejex_stream.detectors.sensor.ensemble": "Members",
    "rejex_stream.detectors.sensor.ensemble:LogTail": "ordered slope start",
    "rejex_stream.detectors.sensor.ensemble:Members": "scorers sure tails",
    "rejex_stream.detectors.sensor.recipes:Residual": "inner scale weights",
    "rejex_stream.detectors.sensor.siblings": "Residual",
    "rejex_stream.detectors.sensor.siblings:Residual": "forecast",
    "rejex_stream.detectors.sensor.recipes": "Columns",
    "rejex_stream.detectors.sensor.recipes:Columns": "_own inner which",
    "rejex_stream.detectors.table": "TableScorer",
    "rejex_stream.detectors.table:TableScorer": "inner resting scale score",
    "rejex_stream.encode.records": "LeanVerdictRecord",
    "rejex_stream.engine.explanation:Explainer": (
        "_are_levels _channels _columns _contamination"
    ),
    "rejex_stream.engine.model": "_MOSTLY_SUSPECT SegmentResult",
    "rejex_stream.engine.model:BatchModel": (
        "_catch_up _guard _most_unscored _pending _quantile _rows _scores _serving _shadow "
        "absorb apply_due fast_path_until maybe_request_fit medians rows_seen"
    ),
    "rejex_stream.engine.model:Guard": "_capacity _flags _longest _most",
    "rejex_stream.engine.model:RowBuffer": "_blocks _left_out _make_room _open extend n_open",
    "rejex_stream.engine.sensor_registry": "_LOOKS",
    "rejex_stream.engine.sensor_registry:Limits": "forget_after_ms",
    "rejex_stream.engine.sensor_registry:SensorRegistry": (
        "_clock _doubted _last_seen _n_usual limits sees_all silences"
    ),
    "rejex_stream.engine.silences": "_Heard _MAX_STEPS",
    "rejex_stream.engine.silences:Silences": "_heard _now_ms _queue _steps open",
    "rejex_stream.engine.silences:_Heard": "at_ms day_ms event_time_ms longest_ms stream_key",
    "rejex_stream.engine.packed_rows": "BLOCK _DIGITS Block",
    "rejex_stream.engine.refit:Fitted": "scorer",
    "rejex_stream.engine.refit:ModelFit": "epoch fitted n_unscored requested_at shadow_scores",
    "rejex_stream.engine.stream_state:StreamState": (
        "_advance _at_once _explain _explainer _features _has_phases _judge _fast_path "
        "_look_at_noise _recent _resting _sensors _fast_path_model model seq tracker"
    ),
    "rejex_stream.features.preset:RecentRows": "_age _blocks _last _past _picked _young",
    "rejex_stream.features.spec:FeatureSpec": "channels",
    "rejex_stream.features.spec:SensorFeatures": "_age _carry _last _only_raw _picked",
    "rejex_stream.incidents.resting:RestingChannels": "wake_ups",
    "rejex_stream.incidents.resting:WakeUp": "quiet",
    "rejex_stream.incidents.ewma:EwmaChart": (
        "_begun_ms _events _block_length _n_early _top _block_maxima level"
    ),
    "rejex_stream.incidents.state_machine:IncidentTracker": (
        "_alarm _candidate frozen level limit max_severity min_severity open ordinary "
        "suspect_events update_alarm"
    ),
    "rejex_stream.monitor.bank:StreamMonitor": (
        "_drift _is_stuck _law_key _model_epoch _moves_again _paper_ties _raise_drift _raise_run "
        "_stuck _stuck_events _swap _tie_mass _unranked law ranks"
    ),
    "rejex_stream.monitor.bank:StuckRun": (
        "last length score steps swapped usual_step was_common"
    ),
    "rejex_stream.monitor.drift:DriftDetector": (
        "_inflation _level _limit _memory _unit _unsettled _window close_block excess left"
    ),
    "rejex_stream.monitor.health:HealthDetector": (
        "_close_block _counts _due _evidence _expected _inflation _is_blind _law _left _limit "
        "_ratios _run _since _unit _variance _window crossings fired_log_evidence log_evidence "
        "streams"
    ),
    "rejex_stream.monitor.inflation:Inflation": "_scales _units factor state",
    "rejex_stream.monitor.inflation:InflationState": "marks squares totals units",
    "rejex_stream.monitor.rate:RejectionRate": (
        "_at _mixed_until _ring _window deep events expected_rate high in_rolling in_window low "
        "raise_or_withdraw recheck set_limits"
    ),
    "rejex_stream.monitor.status:RankMonitors": "_fired active health law rate",
    "rejex_stream.monitor.status:Unranked": "unscorable warm_up",
    "rejex_stream.monitor.theory": "ALTERNATIVES randomised_rank rank_law",
    "rejex_stream.monitor.theory:RankLaw": (
        "edges flagged_rate key log_ratios rejection_rate"
    ),
    "rejex_stream.native_core": "broke_off",
    "rejex_stream.readable": "Expected",
    "rejex_stream.rejection.band": "nested_band",
    "rejex_stream.rejection.band:RejectionBand": (
        "can_accept_both edges lower n_anomalies tolerance upper"
    ),
    "rejex_stream.rejection.exceed": "stability_at",
    "rejex_stream.rejection.judge": "EXTREME",
    "rejex_stream.rejection.judge:Judge": (
        "_was_constant _by_mid_rank _capacity _constant _edges _rank_tables _bucket _policy tail "
        "window"
    ),
    "rejex_stream.rejection.judge:RankTables": "band confidences p_anomalies severities",
    "rejex_stream.rejection.policy:RejectionPolicy": "band burst contamination first_window",
    "rejex_stream.rejection.token_bucket": "_bands",
    "rejex_stream.rejection.token_bucket:TokenBucket": (
        "_clock _earns _policy allow capacity cost_per_rejection credit is_shared spend"
    ),
    "rejex_stream.rejection.window": "LARGEST_SEVERITY severity",
    "rejex_stream.rejection.window:ScoreWindow": "_maxes _oldest _parts _ring push",
    "rejex_stream.rejection.window:Tail": (
        "_array _shade _shape _sigma _start ordered"
    ),
    "rejex_stream.run.review_items:EncodedPoints": "lines",
    "rejex_stream.run.review_items:_Sensor": "n_since of recent",
    "rejex_stream.trusted_clock": "DAY_MS FIRST_MS _IN_A_ROW _RECENT",
    "rejex_stream.trusted_clock:TrustedClock": (
        "_ahead _behind _moved_by _n _only _other_at _row advance now_ms"
    ),
    "rejex_stream.types": (
        "ChannelEvidence Evidence FollowUp Label MODE_MARK Outcome Reading Reason ReviewItem "
        "Status Verdict in_mode"
    ),
    "rejex_stream.types:FollowUp": (
        "channels last n_since of points position schema_version sensor stream_key"
    ),
    "rejex_stream.types:Label": "ANOMALY NORMAL REJECTED",
    "rejex_stream.types:Reason": "AMBIGUOUS CONSTANT_WINDOW WARM_UP",
    "rejex_stream.types:ReviewItem": "channels context drawn schema_version values verdict why",
    "rejex_stream.types:Status": "WARM_UP_MIXED",
    "rejex_stream.types:Verdict": (
        "band_lower band_upper event_time_ms held label limited mode model_epoch muted "
        "n_anomalies planned policy_lower policy_upper position rank reason score sensor severity "
        "status stream_key ties window_len withheld"
    ),
}  # fmt: skip

REACHED: Mapping[str, tuple[str, ...]] = {owner: tuple(n.split()) for owner, n in _REACHED.items()}


def reached() -> set[str]:
    """Return all of it as "owner.name"."""
    return {f"{owner}.{name}" for owner, names in REACHED.items() for name in names}
