"""Config, engine and facade mean the same where nothing is said, and so do their 0 and None."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from rejex_connectors.kafka.kafka_settings import (
    Kafka,
    KafkaSecurity,
    KafkaSettings,
    RegistrySettings,
)

from rejex_stream.config import assembly as build
from rejex_stream.config import parse_config
from rejex_stream.config.pipeline_config import Config
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.detectors import make_detector
from rejex_stream.engine import EngineSpec
from rejex_stream.engine.refit import FitJob, RefitSchedule
from rejex_stream.facade import RejectingDetector
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.incidents.incident_settings import Alarms
from rejex_stream.monitor.config import Monitor, MonitorConfig
from rejex_stream.plan.promises import EPISODE_GAP_EVENTS, plan, plan_table
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.band import TOLERANCE
from rejex_stream.rejection.bounds import DELTA, cost_quantile, exact_rate_bound, paper_rate_bound
from rejex_stream.rejection.policy import CONTAMINATION, WINDOW, RejectionPolicy
from rejex_stream.review.queue import cases
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.run.run_settings import Output, Run, RunSettings, State
from rejex_stream.settings import fields_of
from rejex_stream.types import Partition

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
LEAST = """
[input]
path = "water.csv"
channels = ["flow"]
time = "t"
[rejection]
contamination = 0.05
tolerance = 8
"""


def config_of(more=""):
    config, problems = parse_config(LEAST + more)
    assert not problems, [str(problem) for problem in problems]
    return config


def default_of(function, name):
    return inspect.signature(function).parameters[name].default


def defaults_of(concept):
    if dataclasses.is_dataclass(concept):
        return {f.name: f.default for f in dataclasses.fields(concept)}
    fields = concept.model_fields.items()
    return {n: f.get_default(call_default_factory=True) for n, f in fields if not f.is_required()}


# ------------------------------------------------------------------ one default for one thing
def test_config_engine_and_facade_share_their_defaults():
    config = build.engine_spec(config_of())
    # Who drives an engine alone asks for alarms; a pipeline tells somebody by default.
    engine = EngineSpec(
        config.detector, FeatureSpec(("flow",)), RejectionPolicy(0.05, tolerance=8), alarms=Alarms()
    )
    assert engine == config
    assert default_of(RejectingDetector, "contamination") == CONTAMINATION
    assert default_of(RejectingDetector, "tolerance") is None  # 32, unless a rate is given
    assert default_of(RejectingDetector, "rate") is RejectionPolicy(0.1, tolerance=8).rate
    assert default_of(RejectingDetector, "seed") == engine.seed
    assert default_of(rejection_band, "tolerance") == TOLERANCE == 32
    assert engine.window == WINDOW
    assert default_of(RejectingDetector, "ties") == engine.policy.ties


@pytest.mark.parametrize("window", [9, 100, 2000, 5001])
def test_a_schedule_follows_from_the_window_in_the_engine_and_in_a_config(window):
    detector = make_detector("HBOS")
    policy = RejectionPolicy(0.3, tolerance=1)
    spec = EngineSpec(detector, FeatureSpec(("flow",)), policy, window=window)
    assert spec.schedule == config_of().refit.schedule(window)
    assert spec.schedule == RefitSchedule(
        max(4, window // 2), 2 * window, window // 20, max(4, window)
    )


def test_a_share_held_out_is_the_same_in_a_pipeline_and_in_a_notebook(monkeypatch):
    seen = []
    monkeypatch.setattr(FitJob, "__call__", lambda job: seen.append(job) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RejectingDetector("HBOS", calibration="holdout").fit([[1.0], [2.0]])
    assert seen[0].holdout_share == RefitSchedule().holdout_share


def test_the_probability_that_a_bound_fails_has_one_default():
    for function in (
        plan, plan_table, exact_rate_bound, paper_rate_bound, cost_quantile, MonitorConfig,
    ):  # fmt: skip
        assert default_of(function, "delta") == DELTA, function


@pytest.mark.parametrize(("concept", "told", "other"), [
    (RunSettings, build.run_settings, {"progress_interval_s"}),
    (MonitorConfig, build.monitor_config, set()),
    (RefitSchedule, lambda c: c.refit.schedule(2000), set()),
    (KafkaSettings, build.kafka_settings, set()),
    (FieldMapping, lambda c: c.input.mapping(), {"channels", "time", "fixed_sensor"}),
])  # fmt: skip
def test_what_a_config_leaves_out_is_the_default_of_its_concept(concept, told, other):
    found = told(config_of())
    for name, default in defaults_of(concept).items():
        if name not in other:
            assert getattr(found, name) == default, name


# A concept's name for a setting of the page, where it is another.
RENAMED = {"review_context_events": "context_events"}
# Facts of one pipeline, which a config resolves: no default of the page can stand for them.
RESOLVED = {"group", "topics", "form", "window", "contamination", "tolerance", "delta", "ties"}


@pytest.mark.parametrize(("concept", "sections"), [
    (RunSettings, (Run, State, Output)), (MonitorConfig, (Monitor,)), (KafkaSettings, (Kafka,)),
    (KafkaSecurity, (KafkaSecurity,)), (RegistrySettings, (RegistrySettings,)),
])  # fmt: skip
def test_a_setting_is_stated_once_and_used_by_its_concept(concept, sections):
    assert set(sections) <= {model_of(name) for name in ALL_SECTIONS}, "sections of a config"
    stated = {name: f for section in sections for name, f in fields_of(section).items()}
    names_of_the_page = {name for _, name, _ in rows()}
    held = 0
    for name, field in fields_of(concept).items():
        there = stated.get(RENAMED.get(name, name))
        if there is None:
            assert name in RESOLVED or name not in names_of_the_page, f"{name} is stated twice"
        elif name not in RESOLVED:
            assert as_stated(field) == as_stated(there), f"{name} is stated twice"
            held += 1
    assert held >= 3


def test_what_a_config_says_of_a_run_reaches_the_loop():
    found = build.run_settings(
        config_of("""
[run]
commit_interval_s = 1
max_poll_records = 3
invalid_limit = 0.25
retry_for_s = 5
topic_wait_s = 5.5
[state]
snapshot_every_events = 6
snapshot_interval_s = 7
lost_state = "restart"
environment = "refuse"
forget_after = 8
max_keys = 9
[output]
review_reasons = ["unscorable"]
context_events = 10
audit_rate = { normal = 0.5, near = 0.6, anomaly = 0.7 }
""")
    )
    own = {"reorder", "poll_timeout_s", "batch_s", "retry_first_s", "retry_longest_s",
           "progress_interval_s", "commit_every_events", "invalid_window_events"}  # fmt: skip
    told = {name: value for name, value in found if name not in own}
    assert list(told.values()) == [
        1, 3, 0.25, 5, 5.5, 6, 7, "restart", "refuse", 8, 9, 10, ("unscorable",),
        AuditDraw(0.5, 0.6, 0.7),
    ]  # fmt: skip


SAID = """
[input]
path = "water.csv"
channels = ["flow"]
time = "t"
[pipeline]
seed = 7
[features]
carry_forward_events = 3
columns = [{ channel = "flow", kind = "difference", events = 1 }]
[detector]
name = "HBOS"
params = { n_bins = 6 }
[rejection]
contamination = 0.1
window = 100
tolerance = 2.5
[refit]
first_fit_events = 60
refit_every_events = 150
refit_lag_events = 4
buffer_events = 110
calibration = "training"
[monitor]
false_alarm_events = 1000
stuck_events = 30
[output]
evidence = false
"""


def test_what_a_config_says_of_an_engine_reaches_it():
    config, problems = parse_config(SAID)
    assert not problems
    flow = Feature("difference", "flow", events=1)
    schedule = RefitSchedule(60, 150, 4, 110, calibration="training")
    wanted = EngineSpec(
        make_detector("HBOS", n_bins=6), FeatureSpec(("flow",), (flow,), carry_forward_events=3),
        RejectionPolicy(0.1, tolerance=2.5), window=100, schedule=schedule, seed=7, evidence=False,
        alarms=Alarms(),
    )  # fmt: skip
    assert build.engine_spec(config) == wanted
    assert build.make_engine(config)(Partition("water.csv", 0), InlineExecutor()).spec == wanted


def test_what_a_config_says_of_the_monitors_reaches_them():
    config, _ = parse_config(SAID)
    told = dict(build.monitor_config(config))
    assert told.pop("enabled") is True
    assert list(told.values()) == [1000, 30, 100, 0.1, 2.5, DELTA, "mid", None]


def as_stated(field):
    default = field.get_default(call_default_factory=True)
    extra = {**(field.json_schema_extra or {})}
    extra.pop("stated_by", None)  # where it is stated is not what it says
    return (field.annotation, default, field.metadata, field.description, extra)


def test_an_episode_is_planned_as_it_is_queued():
    assert cases.stream_gap(()) == EPISODE_GAP_EVENTS


# ------------------------------------------------------------- every row of the settings page
def rows():
    section = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"## `\[+([a-z_.]+?)(?:\.(?:NAME|\"PATTERN\"))?\]+`", line):
            section = found[1]
        elif found := re.match(r"\| `(\w+)` \|(?:[^|]*\|){2} ([^|]*) \|", line):
            yield section, found[1], found[2]


ALL_SECTIONS = sorted({section for section, _, _ in rows()})


def model_of(section):
    model = Config
    for name in section.split("."):
        (model,) = [
            part
            for part in _parts(model.model_fields[name].annotation)
            if hasattr(part, "model_fields")
        ]
    return model


def _parts(annotation):
    args = getattr(annotation, "__args__", ())
    return [part for arg in args for part in _parts(arg)] if args else [annotation]


def test_every_default_on_the_page_is_the_default_of_its_setting():
    import tomllib

    found = list(rows())
    assert len(found) > 150
    for section, name, shown in found:
        field = model_of(section).model_fields[name]
        if shown == "**required**":
            assert field.is_required(), (section, name)
            continue
        default = field.get_default(call_default_factory=True)
        if shown.startswith("`"):
            value = tomllib.loads(f"x = {shown.strip('`')}")["x"]
            plain = default
            if isinstance(default, tuple | frozenset):
                plain, value = sorted(map(str, default)), sorted(map(str, value))
            assert plain == (sorted(value) if isinstance(value, list) else value), (section, name)
        else:  # in words: what happens instead, tried below or where it is used
            assert default in (None, (), {}), (section, name)


# ------------------------------------------------------- what is said in words, and what 0 means
KNN = "[detector]\nname = 'KNN'"
SPEC, RUN, MONITOR = build.engine_spec, build.run_settings, build.monitor_config


@pytest.mark.parametrize(("more", "found", "wanted"), [
    ("", lambda c: SPEC(c).schedule.first_fit_events, 1000),  # half a window
    ("", lambda c: SPEC(c).schedule.refit_every_events, 4000),  # two windows
    ("", lambda c: SPEC(c).schedule.refit_lag_events, 100),  # a twentieth of a window
    ("", lambda c: SPEC(c).schedule.buffer_events, 2000),  # one window
    ("[refit]\nrefit_lag_events = 0", lambda c: SPEC(c).schedule.refit_lag_events, 0),
    ("", lambda c: SPEC(c).features.preset, "sensor"),  # what the detector is made for
    (KNN, lambda c: SPEC(c).features.names, ("flow",)),  # mostly raw
    ("", lambda c: SPEC(c).detector.name, "rejex:Sensor"),
    (KNN, lambda c: SPEC(c).detector, make_detector("KNN")),  # the library's parameters
    ("", lambda c: SPEC(c).schedule.guard_quantile, 0.95),  # for Sensor and its kin
    (KNN, lambda c: SPEC(c).schedule.is_guarded, False),  # 1 for others
    ("[refit]\nguard_quantile = 1", lambda c: SPEC(c).schedule.is_guarded, False),
    ("[refit]\ncalibration = 'holdout'", lambda c: SPEC(c).schedule.is_guarded, False),
    ("", lambda c: c.input.mapping().fixed_sensor, "water"),  # the name of the file
    ("", lambda c: MONITOR(c).rolling, 3600),  # an hour at 1 Hz
    ("[monitor]\nstuck_events = 0", lambda c: MONITOR(c).stuck_events, 0),  # off
    ("", lambda c: MONITOR(c).review_budget_per_day, None),  # no alarm
    ("", lambda c: RUN(c).invalid_limit, 0.5),
    ("[run]\ninvalid_limit = 1", lambda c: RUN(c).invalid_limit, 1.0),  # never stops
    ("[run]\ninvalid_limit = 0", lambda c: RUN(c).invalid_limit, 0.0),  # stops at the first
    ("[output]\ncontext_events = 0", lambda c: RUN(c).review_context_events, 0),
    ("", lambda c: c.metrics.port, 0),  # off
    ("", lambda c: c.rejection.costs.c_r, None),  # no cost is computed
])  # fmt: skip
def test_what_is_left_out_or_zero_means_what_the_page_says(more, found, wanted):
    assert found(config_of(more)) == wanted


def test_the_reviews_of_a_day_are_exported_beside_the_rates():
    budget = "review_budget = { reviews_per_day = 40, events_per_day = 1000 }"
    config, _ = parse_config(LEAST.replace("tolerance = 8", budget))
    assert MONITOR(config).review_budget_per_day == 40
    assert SPEC(config).policy == RejectionPolicy(0.05, rate=0.04, burst=50)


def test_a_rolling_window_is_an_hour_at_1_hz_and_at_least_a_window():
    for window, wanted in ((1000, 3600), (3600, 3600), (5000, 5000)):
        config = MonitorConfig(window=window, contamination=0.05, tolerance=8)
        assert config.rolling == wanted
