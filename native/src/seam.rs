//! All that is reached of Python's objects by name: attributes, methods, classes, constants.
//!
//! `rejex_stream/native_seam.py` declares the same names; the two lists are compared when the core is
//! loaded, and `tests/test_native_seam.py` compares them without a compiler. No other file here names
//! anything of rejex-stream.

use crate::slot::{Global, Slot};

macro_rules! attributes {
    ($($owner:literal { $($name:ident = $text:literal,)* })*) => {
        $($(pub static $name: Slot = Slot::new($text);)*)*
        const ATTRIBUTES: &[&str] = &[$($(concat!($owner, ".", $text),)*)*];
    };
}

macro_rules! globals {
    ($($owner:literal { $($name:ident = $text:literal,)* })*) => {
        $($(pub static $name: Global = Global::new($owner, $text);)*)*
        const GLOBALS: &[&str] = &[$($(concat!($owner, ".", $text),)*)*];
    };
}

/// All of them as "owner.name", for Python to compare.
pub fn reached() -> Vec<&'static str> {
    ATTRIBUTES.iter().chain(GLOBALS).copied().collect()
}

/// What stands for nothing in a struct of msgspec.
pub static UNSET: Global = Global::new("msgspec", "UNSET");
/// The cube root of Python's machine: Rust's own is another's last bit.
pub static CBRT: Global = Global::new("math", "cbrt");

// By class: attributes and methods of its objects.
attributes! {
    "rejex_connectors.kafka.messages:EventHeaders" {
        HEADERS_VERSION = "_version",
        HEADERS_FIXED = "fixed",
        HEADERS_MOST = "most",
    }
    "rejex_connectors.kafka.messages:OutcomeMessages" {
        MESSAGES_FOLLOW_UP_HEADERS = "_follow_up_headers",
        MESSAGES_LIMIT = "_limit",
        MESSAGES_N_REVIEW = "_n_review",
        MESSAGES_N_VERDICTS = "_n_verdicts",
        MESSAGES_REVIEW = "_review",
        MESSAGES_REVIEW_HEADERS = "_review_headers",
        MESSAGES_VERDICT_HEADERS = "_verdict_headers",
        MESSAGES_VERDICTS = "_verdicts",
    }
    "rejex_stream.decode.mapping:FieldMapping" {
        MAPPING_EPOCH_MS = "epoch_ms",
        MAPPING_MAX_VALUE_BYTES = "max_value_bytes",
        MAPPING_SENSOR_OF = "sensor_of",
        MAPPING_TIME_OF = "time_of",
    }
    "rejex_stream.detectors.scorers:ColumnHistograms" {
        HISTOGRAMS_EDGES = "_edges",
        HISTOGRAMS_HEIGHTS = "_heights",
    }
    "rejex_stream.detectors.scorers:GaussianMixture" {
        MIXTURE_PLAIN = "_plain",
    }
    "rejex_stream.detectors.sensor.ensemble:LogTail" {
        LOG_TAIL_ORDERED = "ordered",
        LOG_TAIL_SLOPE = "slope",
        LOG_TAIL_START = "start",
    }
    "rejex_stream.detectors.sensor.ensemble:Members" {
        MEMBERS_SCORERS = "scorers",
        MEMBERS_SURE = "sure",
        MEMBERS_TAILS = "tails",
    }
    "rejex_stream.detectors.sensor.recipes:Residual" {
        RESIDUAL_INNER = "inner",
        RESIDUAL_SCALE = "scale",
        RESIDUAL_WEIGHTS = "weights",
    }
    "rejex_stream.detectors.sensor.siblings:Residual" {
        SIBLINGS_FORECAST = "forecast",
    }
    "rejex_stream.detectors.sensor.distance:Distance" {
        DISTANCE_APART = "_apart",
        DISTANCE_MEAN = "mean",
        DISTANCE_OTHERS_EXPLAIN = "_others_explain",
        DISTANCE_ROOT = "root",
        DISTANCE_SCALE = "scale",
    }
    "rejex_stream.detectors.sensor.distance:MaxDistance" {
        MAX_JOINT = "_joint",
        MAX_PLAIN = "plain",
        MAX_LOW_VARIANCE = "low_variance",
        MAX_PREDICTION_ERROR = "prediction_error",
    }
    "rejex_stream.detectors.sensor.distance:LowVarianceDistance" {
        LOW_VARIANCE_FLOORS = "floors",
        LOW_VARIANCE_INNER = "inner",
        LOW_VARIANCE_KNOTS = "knots",
        LOW_VARIANCE_LOGS = "logs",
        LOW_VARIANCE_NEAR = "near",
        LOW_VARIANCE_USUAL = "usual",
    }
    "rejex_stream.detectors.sensor.distance:SoftScale" {
        SCALE_CENTRE = "centre",
        SCALE_SPREAD = "spread",
    }
    "rejex_stream.detectors.sensor.distance:PredictionErrorDistance" {
        PREDICTION_ERROR_KNOTS = "knots",
    }
    "rejex_stream.detectors.sensor.recipes:Columns" {
        COLUMNS_INNER = "inner",
        COLUMNS_OWN = "_own",
        COLUMNS_WHICH = "which",
    }
    "rejex_stream.detectors.table:TableScorer" {
        TABLE_INNER = "inner",
        TABLE_RESTING = "resting",
        TABLE_SCALE = "scale",
        TABLE_SCORE = "score",
    }
    "rejex_stream.engine.explanation:Explainer" {
        EXPLAINER_ARE_LEVELS = "_are_levels",
        EXPLAINER_CHANNELS = "_channels",
        EXPLAINER_COLUMNS = "_columns",
        EXPLAINER_CONTAMINATION = "_contamination",
    }
    "rejex_stream.engine.model:BatchModel" {
        MODEL_CATCH_UP = "_catch_up",
        MODEL_GUARD = "_guard",
        MODEL_MOST_UNSCORED = "_most_unscored",
        MODEL_PENDING = "_pending",
        MODEL_QUANTILE = "_quantile",
        MODEL_ROWS = "_rows",
        MODEL_SCORES = "_scores",
        MODEL_SERVING = "_serving",
        MODEL_SHADOW = "_shadow",
        MODEL_MAYBE_REQUEST_FIT = "maybe_request_fit",
        MODEL_MEDIANS = "medians",
        MODEL_ROWS_SEEN = "rows_seen",
        MODEL_APPLY_DUE = "apply_due",
        MODEL_FAST_PATH_UNTIL = "fast_path_until",
        MODEL_ABSORB = "absorb",
    }
    "rejex_stream.engine.model:Guard" {
        GUARD_CAPACITY = "_capacity",
        GUARD_FLAGS = "_flags",
        GUARD_LONGEST = "_longest",
        GUARD_MOST = "_most",
    }
    "rejex_stream.engine.model:RowBuffer" {
        BUFFER_BLOCKS = "_blocks",
        BUFFER_LEFT_OUT = "_left_out",
        BUFFER_MAKE_ROOM = "_make_room",
        BUFFER_OPEN = "_open",
        BUFFER_EXTEND = "extend",
        BUFFER_N_OPEN = "n_open",
    }
    "rejex_stream.engine.refit:Fitted" {
        FITTED_SCORER = "scorer",
    }
    "rejex_stream.engine.refit:ModelFit" {
        FIT_EPOCH = "epoch",
        FIT_FITTED = "fitted",
        FIT_N_UNSCORED = "n_unscored",
        FIT_REQUESTED_AT = "requested_at",
        FIT_SHADOW_SCORES = "shadow_scores",
    }
    "rejex_stream.engine.stream_state:StreamState" {
        STREAM_ADVANCE = "_advance",
        STREAM_AT_ONCE = "_at_once",
        STREAM_EXPLAIN = "_explain",
        STREAM_LOOK_AT_NOISE = "_look_at_noise",
        STREAM_EXPLAINER = "_explainer",
        STREAM_FEATURES = "_features",
        STREAM_HAS_PHASES = "_has_phases",
        STREAM_JUDGE = "_judge",
        STREAM_FAST_PATH = "_fast_path",
        STREAM_RECENT = "_recent",
        STREAM_RESTING = "_resting",
        STREAM_SENSORS = "_sensors",
        STREAM_FAST_PATH_MODEL = "_fast_path_model",
        STREAM_MODEL = "model",
        STREAM_SEQ = "seq",
        STREAM_TRACKER = "tracker",
    }
    "rejex_stream.features.preset:RecentRows" {
        RECENT_AGE = "_age",
        RECENT_BLOCKS = "_blocks",
        RECENT_LAST = "_last",
        RECENT_PAST = "_past",
        RECENT_PICKED = "_picked",
        RECENT_YOUNG = "_young",
    }
    "rejex_stream.features.spec:FeatureSpec" {
        FEATURES_CHANNELS = "channels",
    }
    "rejex_stream.features.spec:SensorFeatures" {
        SENSOR_AGE = "_age",
        SENSOR_CARRY = "_carry",
        SENSOR_LAST = "_last",
        SENSOR_ONLY_RAW = "_only_raw",
        SENSOR_PICKED = "_picked",
    }
    "rejex_stream.incidents.resting:RestingChannels" {
        RESTING_WAKE_UPS = "wake_ups",
    }
    "rejex_stream.incidents.resting:WakeUp" {
        WAKE_UP_QUIET = "quiet",
    }
    "rejex_stream.incidents.ewma:EwmaChart" {
        ALARM_BEGUN_MS = "_begun_ms",
        ALARM_EVENTS = "_events",
        ALARM_BLOCK_LENGTH = "_block_length",
        ALARM_N_EARLY = "_n_early",
        ALARM_TOP = "_top",
        ALARM_BLOCK_MAXIMA = "_block_maxima",
        ALARM_LEVEL = "level",
    }
    "rejex_stream.incidents.state_machine:IncidentTracker" {
        TRACKER_ALARM = "_alarm",
        TRACKER_CANDIDATE = "_candidate",
        TRACKER_UPDATE_ALARM = "update_alarm",
        TRACKER_FROZEN = "frozen",
        TRACKER_MIN_SEVERITY = "min_severity",
        TRACKER_LEVEL = "level",
        TRACKER_LIMIT = "limit",
        TRACKER_MAX_SEVERITY = "max_severity",
        TRACKER_OPEN = "open",
        TRACKER_ORDINARY = "ordinary",
        TRACKER_SUSPECT_EVENTS = "suspect_events",
    }
    "rejex_stream.monitor.bank:StreamMonitor" {
        MONITOR_DRIFT = "_drift",
        MONITOR_IS_STUCK = "_is_stuck",
        MONITOR_LAW_KEY = "_law_key",
        MONITOR_MODEL_EPOCH = "_model_epoch",
        MONITOR_MOVES_AGAIN = "_moves_again",
        MONITOR_PAPER_TIES = "_paper_ties",
        MONITOR_RAISE_DRIFT = "_raise_drift",
        MONITOR_RAISE_RUN = "_raise_run",
        MONITOR_STUCK = "_stuck",
        MONITOR_STUCK_EVENTS = "_stuck_events",
        MONITOR_SWAP = "_swap",
        MONITOR_TIE_MASS = "_tie_mass",
        MONITOR_UNRANKED = "_unranked",
        MONITOR_LAW = "law",
        MONITOR_RANKS = "ranks",
    }
    "rejex_stream.monitor.bank:StuckRun" {
        STUCK_LAST = "last",
        STUCK_LENGTH = "length",
        STUCK_SCORE = "score",
        STUCK_STEPS = "steps",
        STUCK_SWAPPED = "swapped",
        STUCK_USUAL_STEP = "usual_step",
        STUCK_WAS_COMMON = "was_common",
    }
    "rejex_stream.monitor.drift:DriftDetector" {
        DRIFT_INFLATION = "_inflation",
        DRIFT_LEVEL = "_level",
        DRIFT_LIMIT = "_limit",
        DRIFT_MEMORY = "_memory",
        DRIFT_UNIT = "_unit",
        DRIFT_UNSETTLED = "_unsettled",
        DRIFT_WINDOW = "_window",
        DRIFT_CLOSE_BLOCK = "close_block",
        DRIFT_EXCESS = "excess",
        DRIFT_LEFT = "left",
    }
    "rejex_stream.monitor.health:HealthDetector" {
        HEALTH_CLOSE_BLOCK = "_close_block",
        HEALTH_COUNTS = "_counts",
        HEALTH_DUE = "_due",
        HEALTH_EVIDENCE = "_evidence",
        HEALTH_EXPECTED = "_expected",
        HEALTH_INFLATION = "_inflation",
        HEALTH_IS_BLIND = "_is_blind",
        HEALTH_LAW = "_law",
        HEALTH_LEFT = "_left",
        HEALTH_LIMIT = "_limit",
        HEALTH_RATIOS = "_ratios",
        HEALTH_RUN = "_run",
        HEALTH_SINCE = "_since",
        HEALTH_UNIT = "_unit",
        HEALTH_VARIANCE = "_variance",
        HEALTH_WINDOW = "_window",
        HEALTH_CROSSINGS = "crossings",
        HEALTH_FIRED_LOG_EVIDENCE = "fired_log_evidence",
        HEALTH_LOG_EVIDENCE = "log_evidence",
        HEALTH_STREAMS = "streams",
    }
    "rejex_stream.monitor.inflation:Inflation" {
        INFLATION_SCALES = "_scales",
        INFLATION_UNITS = "_units",
        INFLATION_FACTOR = "factor",
        INFLATION_STATE = "state",
    }
    "rejex_stream.monitor.inflation:InflationState" {
        INFLATION_STATE_MARKS = "marks",
        INFLATION_STATE_SQUARES = "squares",
        INFLATION_STATE_TOTALS = "totals",
        INFLATION_STATE_UNITS = "units",
    }
    "rejex_stream.monitor.rate:RejectionRate" {
        RATE_AT = "_at",
        RATE_MIXED_UNTIL = "_mixed_until",
        RATE_RING = "_ring",
        RATE_WINDOW = "_window",
        RATE_DEEP = "deep",
        RATE_EVENTS = "events",
        RATE_EXPECTED_RATE = "expected_rate",
        RATE_HIGH = "high",
        RATE_IN_ROLLING = "in_rolling",
        RATE_IN_WINDOW = "in_window",
        RATE_LOW = "low",
        RATE_RAISE_OR_WITHDRAW = "raise_or_withdraw",
        RATE_RECHECK = "recheck",
        RATE_SET_LIMITS = "set_limits",
    }
    "rejex_stream.monitor.status:RankMonitors" {
        RANKS_FIRED = "_fired",
        RANKS_ACTIVE = "active",
        RANKS_HEALTH = "health",
        RANKS_LAW = "law",
        RANKS_RATE = "rate",
    }
    "rejex_stream.monitor.status:Unranked" {
        UNRANKED_UNSCORABLE = "unscorable",
        UNRANKED_WARM_UP = "warm_up",
    }
    "rejex_stream.monitor.theory:RankLaw" {
        LAW_EDGES = "edges",
        LAW_FLAGGED_RATE = "flagged_rate",
        LAW_KEY = "key",
        LAW_LOG_RATIOS = "log_ratios",
        LAW_REJECTION_RATE = "rejection_rate",
    }
    "rejex_stream.rejection.band:RejectionBand" {
        BAND_CAN_ACCEPT_BOTH = "can_accept_both",
        BAND_EDGES = "edges",
        BAND_LOWER = "lower",
        BAND_N_ANOMALIES = "n_anomalies",
        BAND_TOLERANCE = "tolerance",
        BAND_UPPER = "upper",
    }
    "rejex_stream.rejection.judge:Judge" {
        JUDGE_WAS_CONSTANT = "_was_constant",
        JUDGE_BY_MID_RANK = "_by_mid_rank",
        JUDGE_CAPACITY = "_capacity",
        JUDGE_CONSTANT = "_constant",
        JUDGE_EDGES = "_edges",
        JUDGE_RANK_TABLES = "_rank_tables",
        JUDGE_BUCKET = "_bucket",
        JUDGE_POLICY = "_policy",
        JUDGE_TAIL = "tail",
        JUDGE_WINDOW = "window",
    }
    "rejex_stream.rejection.judge:RankTables" {
        TABLES_BAND = "band",
        TABLES_CONFIDENCES = "confidences",
        TABLES_P_ANOMALIES = "p_anomalies",
        TABLES_SEVERITIES = "severities",
    }
    "rejex_stream.rejection.policy:RejectionPolicy" {
        POLICY_BAND = "band",
        POLICY_BURST = "burst",
        POLICY_CONTAMINATION = "contamination",
        POLICY_FIRST_WINDOW = "first_window",
    }
    "rejex_stream.rejection.token_bucket:TokenBucket" {
        BUCKET_CLOCK = "_clock",
        BUCKET_EARNS = "_earns",
        BUCKET_POLICY = "_policy",
        BUCKET_ALLOW = "allow",
        BUCKET_IS_SHARED = "is_shared",
        BUCKET_CREDIT = "credit",
        BUCKET_CAPACITY = "capacity",
        BUCKET_COST_PER_REJECTION = "cost_per_rejection",
        BUCKET_SPEND = "spend",
    }
    "rejex_stream.rejection.window:ScoreWindow" {
        WINDOW_MAXES = "_maxes",
        WINDOW_OLDEST = "_oldest",
        WINDOW_PARTS = "_parts",
        WINDOW_RING = "_ring",
        WINDOW_PUSH = "push",
    }
    "rejex_stream.rejection.window:Tail" {
        TAIL_ARRAY = "_array",
        TAIL_SHADE = "_shade",
        TAIL_SHAPE = "_shape",
        TAIL_SIGMA = "_sigma",
        TAIL_START = "_start",
        TAIL_ORDERED = "ordered",
    }
    "rejex_stream.run.review_items:EncodedPoints" {
        POINTS_LINES = "lines",
    }
    "rejex_stream.run.review_items:_Sensor" {
        REVIEWED_N_SINCE = "n_since",
        REVIEWED_OF = "of",
        REVIEWED_RECENT = "recent",
    }
    "rejex_stream.trusted_clock:TrustedClock" {
        CLOCK_ADVANCE = "advance",
        CLOCK_AHEAD = "_ahead",
        CLOCK_BEHIND = "_behind",
        CLOCK_MOVED_BY = "_moved_by",
        CLOCK_N = "_n",
        CLOCK_NOW_MS = "now_ms",
        CLOCK_ONLY = "_only",
        CLOCK_OTHER_AT = "_other_at",
        CLOCK_ROW = "_row",
    }
    "rejex_stream.engine.sensor_registry:Limits" {
        REGISTRY_FORGET_AFTER_MS = "forget_after_ms",
    }
    "rejex_stream.engine.sensor_registry:SensorRegistry" {
        REGISTRY_CLOCK = "_clock",
        REGISTRY_DOUBTED = "_doubted",
        REGISTRY_LAST_SEEN = "_last_seen",
        REGISTRY_LIMITS = "limits",
        REGISTRY_N_USUAL = "_n_usual",
        REGISTRY_SEES_ALL = "sees_all",
        REGISTRY_SILENCES = "silences",
    }
    "rejex_stream.engine.silences:Silences" {
        SILENCES_HEARD = "_heard",
        SILENCES_NOW_MS = "_now_ms",
        SILENCES_OPEN = "open",
        SILENCES_QUEUE = "_queue",
        SILENCES_STEPS = "_steps",
    }
    "rejex_stream.engine.silences:_Heard" {
        HEARD_AT_MS = "at_ms",
        HEARD_DAY_MS = "day_ms",
        HEARD_EVENT_TIME_MS = "event_time_ms",
        HEARD_LONGEST_MS = "longest_ms",
        HEARD_STREAM_KEY = "stream_key",
    }
    "rejex_stream.types:FollowUp" {
        FOLLOW_UP_CHANNELS = "channels",
        FOLLOW_UP_LAST = "last",
        FOLLOW_UP_N_SINCE = "n_since",
        FOLLOW_UP_OF = "of",
        FOLLOW_UP_POINTS = "points",
        FOLLOW_UP_POSITION = "position",
        FOLLOW_UP_SCHEMA_VERSION = "schema_version",
        FOLLOW_UP_SENSOR = "sensor",
        FOLLOW_UP_STREAM_KEY = "stream_key",
    }
    "rejex_stream.types:ReviewItem" {
        REVIEW_ITEM_CHANNELS = "channels",
        REVIEW_ITEM_CONTEXT = "context",
        REVIEW_ITEM_DRAWN = "drawn",
        REVIEW_ITEM_SCHEMA_VERSION = "schema_version",
        REVIEW_ITEM_VALUES = "values",
        REVIEW_ITEM_VERDICT = "verdict",
        REVIEW_ITEM_WHY = "why",
    }
    "rejex_stream.types:Verdict" {
        VERDICT_BAND_LOWER = "band_lower",
        VERDICT_BAND_UPPER = "band_upper",
        VERDICT_EVENT_TIME_MS = "event_time_ms",
        VERDICT_HELD = "held",
        VERDICT_LABEL = "label",
        VERDICT_LIMITED = "limited",
        VERDICT_MODE = "mode",
        VERDICT_MODEL_EPOCH = "model_epoch",
        VERDICT_MUTED = "muted",
        VERDICT_N_ANOMALIES = "n_anomalies",
        VERDICT_PLANNED = "planned",
        VERDICT_POLICY_LOWER = "policy_lower",
        VERDICT_POLICY_UPPER = "policy_upper",
        VERDICT_POSITION = "position",
        VERDICT_RANK = "rank",
        VERDICT_REASON = "reason",
        VERDICT_SCORE = "score",
        VERDICT_SENSOR = "sensor",
        VERDICT_SEVERITY = "severity",
        VERDICT_STATUS = "status",
        VERDICT_STREAM_KEY = "stream_key",
        VERDICT_TIES = "ties",
        VERDICT_WINDOW_LEN = "window_len",
        VERDICT_WITHHELD = "withheld",
    }
}

// By module, or class: what is looked up once.
globals! {
    "rejex_stream.monitor.bank" {
        BANK_LARGEST_STEP = "_LARGEST_STEP",
        BANK_NEGLIGIBLE = "_NEGLIGIBLE",
        BANK_STEPS = "_STEPS",
    }
    "rejex_stream.monitor.rate" {
        RATE_IS_REJECT = "_IS_REJECT",
        RATE_MIXED_RECHECK = "_MIXED_RECHECK",
    }
    "rejex_stream.monitor.drift" {
        DRIFT_MEMORY_WINDOWS = "_MEMORY_WINDOWS",
        DRIFT_MIN_EFFECTIVE = "_MIN_EFFECTIVE",
    }
    "rejex_stream.monitor.health" {
        HEALTH_LONGEST_RUN = "_LONGEST_RUN",
        HEALTH_MIN_EFFECTIVE = "_MIN_EFFECTIVE",
    }
    "rejex_connectors.kafka.messages" {
        MESSAGES_TRACE_BYTES = "_TRACE_BYTES",
    }
    "rejex_stream.features.preset" {
        PRESET_FEW_CHANNELS = "FEW_CHANNELS",
        PRESET_LONG = "_LONG",
        PRESET_MIDDLE = "_MIDDLE",
        PRESET_SHORT = "_SHORT",
    }
    "rejex_stream.incidents.limits" {
        LIMITS_NOISE_EVERY = "NOISE_EVERY",
    }
    "rejex_stream.incidents.resting" {
        RESTING_AT_REST = "_AT_REST",
    }
    "rejex_stream.incidents.ewma" {
        MACHINE_RESET_LEVEL = "RESET_LEVEL",
        MACHINE_MOST_SEVERITY = "_MOST_SEVERITY",
        MACHINE_WEIGHT = "_WEIGHT",
    }
    "rejex_connectors.kafka.clients" {
        CLIENTS_MESSAGE = "Message",
    }
    "rejex_stream.decode.mapping" {
        MAPPING_MAX_EPOCH_MS = "MAX_EPOCH_MS",
        MAPPING_MIN_EPOCH_MS = "MIN_EPOCH_MS",
    }
    "rejex_stream.detectors.scorers" {
        SCORERS_COLUMN_HISTOGRAMS = "ColumnHistograms",
        SCORERS_GAUSSIAN_MIXTURE = "GaussianMixture",
    }
    "rejex_stream.detectors.sensor.distance" {
        DISTANCE_LINEAR = "_LINEAR",
        DISTANCE_WILD = "_WILD",
        DISTANCE_MAX_DISTANCE = "MaxDistance",
    }
    "rejex_stream.detectors.sensor.ensemble" {
        ENSEMBLE_MEMBERS = "Members",
    }
    "rejex_stream.detectors.sensor.recipes" {
        RECIPES_COLUMNS = "Columns",
    }
    "rejex_stream.detectors.sensor.siblings" {
        SIBLINGS_RESIDUAL = "Residual",
    }
    "rejex_stream.detectors.table" {
        TABLE_TABLE_SCORER = "TableScorer",
    }
    "rejex_stream.encode.records" {
        RECORDS_LEAN_VERDICT_RECORD = "LeanVerdictRecord",
    }
    "rejex_stream.engine.model" {
        MODEL_MOSTLY_SUSPECT = "_MOSTLY_SUSPECT",
        MODEL_SEGMENT_RESULT = "SegmentResult",
    }
    "rejex_stream.engine.sensor_registry" {
        REGISTRY_LOOKS = "_LOOKS",
    }
    "rejex_stream.engine.silences" {
        SILENCES_MAX_STEPS = "_MAX_STEPS",
        SILENCES_OF_SENSOR = "_Heard",
    }
    "rejex_stream.trusted_clock" {
        CLOCK_DAY_MS = "DAY_MS",
        CLOCK_FIRST_MS = "FIRST_MS",
        CLOCK_IN_A_ROW = "_IN_A_ROW",
        CLOCK_RECENT = "_RECENT",
    }
    "rejex_stream.engine.packed_rows" {
        PACKED_ROWS_BLOCK_ROWS = "BLOCK",
        PACKED_ROWS_DIGITS = "_DIGITS",
        PACKED_ROWS_BLOCK = "Block",
    }
    "rejex_stream.monitor.theory" {
        THEORY_ALTERNATIVES = "ALTERNATIVES",
        THEORY_RANDOMISED_RANK = "randomised_rank",
        THEORY_RANK_LAW = "rank_law",
    }
    "rejex_stream.native_core" {
        NATIVE_CORE_BROKE_OFF = "broke_off",
    }
    "rejex_stream.readable" {
        READABLE_EXPECTED = "Expected",
    }
    "rejex_stream.rejection.band" {
        BAND_NESTED_BAND = "nested_band",
    }
    "rejex_stream.rejection.exceed" {
        EXCEED_STABILITY_AT = "stability_at",
    }
    "rejex_stream.rejection.judge" {
        JUDGE_EXTREME = "EXTREME",
    }
    "rejex_stream.rejection.token_bucket" {
        TOKEN_BUCKET_BANDS = "_bands",
    }
    "rejex_stream.rejection.window" {
        WINDOW_LARGEST_SEVERITY = "LARGEST_SEVERITY",
        WINDOW_SEVERITY = "severity",
    }
    "rejex_stream.types" {
        TYPES_CHANNEL_EVIDENCE = "ChannelEvidence",
        TYPES_EVIDENCE = "Evidence",
        TYPES_FOLLOW_UP = "FollowUp",
        TYPES_IN_MODE = "in_mode",
        TYPES_LABEL = "Label",
        TYPES_MODE_MARK = "MODE_MARK",
        TYPES_OUTCOME = "Outcome",
        TYPES_READING = "Reading",
        TYPES_REASON = "Reason",
        TYPES_REVIEW_ITEM = "ReviewItem",
        TYPES_STATUS = "Status",
        TYPES_VERDICT = "Verdict",
    }
    "rejex_stream.types:Label" {
        LABEL_ANOMALY = "ANOMALY",
        LABEL_NORMAL = "NORMAL",
        LABEL_REJECTED = "REJECTED",
    }
    "rejex_stream.types:Reason" {
        REASON_AMBIGUOUS = "AMBIGUOUS",
        REASON_CONSTANT_WINDOW = "CONSTANT_WINDOW",
        REASON_WARM_UP = "WARM_UP",
    }
    "rejex_stream.types:Status" {
        STATUS_WARM_UP_MIXED = "WARM_UP_MIXED",
    }
}
