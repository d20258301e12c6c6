"""NormalBehaviour: what operating channels do not explain, and when a slow fault shows in it."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.behaviour import ALARM_EVENTS, OPERATING, first_alarm, turbine
from rejex_stream.detectors import make_detector
from rejex_stream.detectors.rowwise import affine
from rejex_stream.detectors.sensor.behaviour import _folds, _products
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.facade import RejectingDetector
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy

POLICY = RejectionPolicy(0.05, tolerance=8)
FEW = 20  # events, so that a fit on a few hundred rows is one


def behaviour(**params):
    return make_detector("NormalBehaviour", **{"operating": ["wind"], **params})


def farm(n, seed=0):
    """Wind, power by its cube, and a temperature by both; one row an event."""
    rng = np.random.default_rng(seed)
    wind = rng.uniform(0, 1, n)
    power = wind**3 + 0.02 * rng.normal(size=n)
    heat = 20 * power + 5 * wind + 0.3 * rng.normal(size=n)
    return np.column_stack([wind, power, heat])


# ------------------------------------------------------------------------------------ the laws
def test_a_recipe_from_a_config_is_the_one_from_python():
    listed, given = behaviour(operating=["wind", "power"]), behaviour(operating=("wind", "power"))
    assert listed == given
    assert repr(listed) == repr(given)
    assert hash(listed) == hash(given)
    spec = EngineSpec(listed, FeatureSpec(("wind", "power", "heat")), POLICY)
    again = EngineSpec(spec.detector, FeatureSpec(("wind", "power", "heat")), POLICY)
    assert again.state_parts == spec.state_parts


# --------------------------------------------------------------------------------- what it sees
@pytest.mark.thorough
def test_a_temperature_counts_against_its_load():
    table = farm(800)
    detector = behaviour(smooth_events=FEW).for_features(FeatureSpec(("wind", "power", "heat")))
    warm_in_a_storm, warm_in_a_calm = np.array([[0.95, 0.857, 21.9], [0.3, 0.027, 21.9]])
    scorer = detector.fit(table, seed=0)
    storm, calm = scorer.score(np.array([warm_in_a_storm, warm_in_a_calm]))
    assert storm < np.quantile(scorer.score(farm(800, seed=1)), 0.995) < calm / 20


def test_the_operating_channels_themselves_are_not_judged():
    detector = behaviour().for_features(FeatureSpec(("wind", "heat")))
    rng = np.random.default_rng(0)
    unrelated = rng.normal(size=(500, 2))
    scorer = detector.fit(unrelated, seed=0)
    usual, stormy = scorer.score(np.array([[0.0, 0.5], [3.0, 0.5]]))
    assert stormy < usual + 1


def test_which_channel_explains_goes_by_name_and_not_by_place():
    table = farm(600)
    first = behaviour().for_features(FeatureSpec(("wind", "power", "heat"))).fit(table, seed=0)
    last = behaviour().for_features(FeatureSpec(("power", "heat", "wind")))
    turned = table[:, [1, 2, 0]]
    assert last.fit(turned, seed=0).score(turned) == pytest.approx(first.score(table))


def test_a_data_frame_names_its_columns():
    arrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    names = ["heat", "power", "wind"]
    table = arrow.table(dict(zip(names, farm(600)[:, ::-1].T, strict=True)))
    params = {"operating": ["wind"], "smooth_events": FEW}
    model = RejectingDetector("NormalBehaviour", contamination=0.05, params=params).fit(table)
    odd = arrow.table(dict(zip(names, [[22.0], [0.01], [0.2]], strict=True)))
    assert model.predict(odd)[0] == 1
    params = {"operating": ["gust"]}
    with pytest.raises(ConfigError, match="operating names 'gust', which is no channel"):
        RejectingDetector("NormalBehaviour", contamination=0.05, params=params).fit(table)


def test_beyond_what_was_seen_the_air_goes_on_and_the_parabola_does_not():
    rng = np.random.default_rng(1)
    air = rng.uniform(0, 10, 600)
    table = np.column_stack([air, air + 0.2 * rng.normal(size=600)])
    straight = behaviour(smooth_events=FEW).fit(table, seed=0)
    hot, not_so_hot = straight.score(np.array([[14.0, 14.0], [14.0, 10.0]]))
    assert hot < 9
    assert not_so_hot > 50
    table[:, 1] = np.minimum(table[:, 0], 5.0) + 0.2 * rng.normal(size=600)  # as a power curve
    model = behaviour(smooth_events=FEW).fit(table, seed=0).inner.expected
    edge = model.high[0]

    def steps(*air):
        given = np.array(air)[:, None]
        made = _products(given, np.clip(given, model.low, model.high), model.terms)
        return np.diff(affine(made, model.weights, model.offset)[:, 0])

    inside = steps(edge - 1, edge - 0.5, edge)
    beyond = steps(edge, edge + 1, edge + 2, edge + 9)
    assert inside[1] < inside[0] - 0.05  # bent
    assert beyond == pytest.approx(beyond[0] * np.array([1, 1, 7]))  # straight


@pytest.mark.thorough
def test_noise_it_learnt_by_heart_does_not_make_other_noise_an_anomaly():
    rng = np.random.default_rng(2)
    names = tuple(f"c{i}" for i in range(8))
    detector = make_detector(
        "NormalBehaviour", operating=names[:6], degree=3, smooth_events=2
    ).for_features(FeatureSpec(names))
    scorer = detector.fit(rng.normal(size=(250, 8)), seed=0)
    assert np.median(scorer.score(rng.normal(size=(2000, 8)))) < 2.0  # chi², two of freedom: 1.4


def test_a_fold_has_no_event_in_common_with_the_rows_it_is_judged_by():
    folds = _folds(1000, 72)
    assert np.array_equal(np.concatenate([fold for fold, _ in folds]), np.arange(1000))
    for fold, others in folds:
        assert np.abs(others[:, None] - fold[None, :]).min() > 72
    assert all(len(others) >= 40 for _, others in _folds(100, 72))  # short tables keep some


# ----------------------------------------------------------------------------- in a pipeline
def test_it_brings_the_columns_it_wants_and_takes_those_that_are_named():
    channels = FeatureSpec(("wind", "heat"), carry_forward_events=3)
    spec = EngineSpec(behaviour(smooth_events=6), channels, POLICY)
    assert spec.features.names == (
        "wind_mean_6", "heat_mean_6", "wind_difference_6", "wind_std_6",
    )  # fmt: skip
    assert spec.features.carry_forward_events == 3
    own = replace(channels, features=(Feature("mean", "wind", 3), Feature("raw", "heat")))
    assert EngineSpec(behaviour(), own, POLICY).features == own


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"operating": []}, r"operating = \[\] names no channel: rejex:NormalBehaviour needs a"),
        ({"operating": "wind"}, "operating = 'wind' names no channel: .* needs a list"),
        ({"operating": ["gust"]}, "operating names 'gust', which is no channel: use .* wind, heat"),
        ({"operating": ["heat", "wind"]}, "operating names every channel .wind, heat.: leave"),
        ({"model": "forest"}, "rejex:NormalBehaviour has no parameter 'model'; it accepts: flags"),
        ({"degree": 4}, "degree = 4 of rejex:NormalBehaviour: give a whole number from 1 to 3"),
        ({"degree": True}, "degree = True of rejex:NormalBehaviour"),
        ({"smooth_events": 1}, "smooth_events = 1 .*: give a whole number of at least 2"),
        ({"explaining": [0]}, "has no parameter .explaining.; it accepts: flags, operating, deg"),
    ],
    ids=["none", "text", "unknown", "all", "model", "degree", "bool", "smooth", "inner"],
)
def test_a_wrong_parameter_says_what_would_be_right(params, says):
    with pytest.raises(ConfigError, match=says):
        EngineSpec(behaviour(**params), FeatureSpec(("wind", "heat")), POLICY)


def test_columns_that_leave_nothing_to_explain_are_refused():
    columns = FeatureSpec(("wind", "heat"), (Feature("raw", "wind"), Feature("hour_of_day")))
    with pytest.raises(ConfigError, match=r"Every column is made of an operating channel \(wind\)"):
        EngineSpec(behaviour(), columns, POLICY)
    with pytest.raises(DetectorError, match="cannot be fitted on 19 rows: give at least 20"):
        behaviour().fit(farm(19), seed=0)


# ------------------------------------------------------------------------------- a slow fault
@pytest.mark.thorough
@pytest.mark.parametrize("seed", [10, 11, 12])
def test_a_slow_bearing_is_found_days_before_sensor_finds_it(seed):
    values, onset = turbine(seed)
    alarm = {
        name: first_alarm(name, params, values, onset)
        for name, params in (("Sensor", {}), ("NormalBehaviour", {"operating": list(OPERATING)}))
    }
    days = 2 * ALARM_EVENTS
    behaviour, sensor = alarm["NormalBehaviour"], alarm["Sensor"]
    assert behaviour is not None
    assert sensor is None or behaviour + days <= sensor
