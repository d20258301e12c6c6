"""Every method against a small case whose answer is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from benchmarks.paper.cell import Cell, Part
from benchmarks.paper.confidence import flip_tolerance
from benchmarks.paper.costs import CASES, Counts, cost, costs, count
from benchmarks.paper.data import Dataset, folds, load, paper_rows, paper_sets
from benchmarks.paper.effort import EFFORTS
from benchmarks.paper.inference import block_bootstrap, critical_difference, friedman, ranks
from benchmarks.paper.methods import BEYOND, METHODS, PAPER, PROBABLE, READINGS, recipe
from benchmarks.paper.methods.outcome import ANY
from benchmarks.paper.methods.recipe import threshold_range
from benchmarks.paper.repen import fit_repen, lesinn, triplet_loss
from rejex_stream.facade import REJECTED, RejectingDetector
from rejex_stream.rejection import rejection_band


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(4)
    normal, odd = rng.normal(size=(450, 3)), rng.normal(3, 1, size=(50, 3))
    X, y = np.vstack([normal, odd]), np.repeat([0, 1], [450, 50])
    return Dataset("Blob", "0_blob", X, y, in_paper=False)


@pytest.fixture(scope="module")
def cells(dataset, tmp_path_factory):
    names = ("HBOS", "KNN", "IForest")
    effort = dataclasses.replace(EFFORTS["fast"], refits=3)
    fold = next(iter(folds(dataset, 5)))
    made: dict[str, Cell] = {}
    for name in names:
        made[name] = Cell(
            dataset, fold, name, names, effort, tmp_path_factory.mktemp("cache"), made
        )
    return made


@pytest.fixture
def cell(cells):
    return cells["KNN"]


def counts(outcome, case="1-1"):
    return outcome.counts.get(case) or outcome.counts[ANY]


# ------------------------------------------------------------------------------- data
def test_the_papers_rule_drops_repeated_rows_and_keeps_twenty_thousand():
    X = np.array([[1.0, 2], [3, 4], [1, 2], [5, 6]])
    kept, y = paper_rows(X, np.array([0, 0, 1, 1]))
    assert kept.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert y.tolist() == [0, 0, 1]
    many = np.arange(20_500.0)[:, None]
    kept, _ = paper_rows(many, np.zeros(20_500, dtype=int))
    order = np.random.RandomState(331).permutation(20_500)[:20_000]
    assert kept.ravel().tolist() == many[order].ravel().tolist()


def test_a_file_of_adbench_is_known_by_its_name(tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    np.savez(tmp_path / "6_cardio.npz", X=X, y=[0, 0, 0, 0, 0, 1])
    dataset = load(tmp_path / "6_cardio.npz")
    assert (dataset.name, dataset.in_paper, len(dataset.X)) == ("Cardio", True, 6)
    assert len(paper_sets()) == 34


def test_folds_are_disjoint_stratified_scaled_by_their_training_rows_and_repeatable(dataset):
    cut = list(folds(dataset, 5))
    assert [int(fold.y_test.sum()) for fold in cut] == [10] * 5
    assert sum(len(fold.X_test) for fold in cut) == len(dataset.X)
    for fold, again in zip(cut, folds(dataset, 5), strict=True):
        assert fold.X_train.min(axis=0) == pytest.approx([0, 0, 0])
        assert fold.X_train.max(axis=0) == pytest.approx([1, 1, 1])
        assert np.array_equal(fold.X_train, again.X_train)
    # The rows of the file are sorted by class; a held-out tail of the fold must not be.
    assert 0 < cut[0].y_train[-120:].mean() < 0.3


# ------------------------------------------------------------------- RejEx and its kin
def test_rejex_is_the_facade(cell):
    fold = cell.fold
    model = RejectingDetector("KNN", cell.gamma, 32.0, ties="paper", seed=cell.seed)
    verdicts = model.fit(fold.X_train).predict(fold.X_test)
    got = counts(METHODS["RejEx"](cell))
    assert got.rejected == np.sum(verdicts == REJECTED) > 0
    assert got.tp == np.sum((verdicts == 1) & (fold.y_test == 1))


def test_rejex_notes_what_was_known_before_the_test_fold(cell):
    notes = METHODS["RejEx"](cell).notes
    band = rejection_band(400, 0.1, 32.0)
    assert notes["band"] == [band.lower, band.upper, 400, 40]
    assert notes["rate_expected"] == pytest.approx(band.width / 401)
    assert notes["rate_expected"] < notes["rate_bound_exact"] < notes["rate_bound_paper"]


def test_noreject_rejects_nothing_and_labels_at_the_threshold(cell):
    got = counts(METHODS["NoReject"](cell))
    assert got.rejected == 0
    # gamma * n training scores reach the threshold: 40 of 400.
    assert cell.train_labels.sum() == 40
    assert got.fp + got.tp == np.sum(cell.fit["test"] >= np.sort(cell.fit["train"])[-40])


@pytest.mark.parametrize("case", CASES)
def test_no_tolerance_is_cheaper_on_the_training_rows_than_oracles(cell, case):
    train = np.sort(cell.fit["train"])
    distance = flip_tolerance(cell.fit["train"], train, cell.gamma)
    labels, y, prices = cell.train_labels, cell.fold.y_train, costs(case, cell.gamma)

    def paid(t):
        rejected = distance <= t
        wrong = np.where(labels == y, 0, np.where(labels == 1, prices.fp, prices.fn))
        return wrong[~rejected].sum() + prices.r * rejected.sum()

    for name, most in (("Oracle", 36.0), ("Oracle free", np.inf)):
        chosen = METHODS[name](cell).notes["tolerance"][case]
        best = paid(-1 if chosen is None else chosen)
        assert best <= min(paid(t) for t in [-1, *distance[distance <= most]]) + 1e-9


def test_flip_tolerance_is_the_tolerance_at_which_the_band_takes_a_score_in():
    reference = np.arange(1.0, 301.0)
    t = flip_tolerance(np.array([250.0, 280.0, 300.0]), reference, 0.1)
    for rank, tolerance in zip((250, 280, 300), t, strict=True):
        just_in = rejection_band(300, 0.1, tolerance * 1.0001)
        just_out = rejection_band(300, 0.1, tolerance * 0.9999)
        assert just_in.lower <= rank <= just_in.upper
        assert not just_out.lower <= rank <= just_out.upper


def test_variants_reject_what_they_announce(cell):
    for name in ("RejEx budget", "RejEx holdout budget mid"):
        outcome = METHODS[name](cell)
        assert outcome.notes["rate_expected"] <= cell.gamma
        assert outcome.notes["rate_expected"] == pytest.approx(cell.gamma, abs=0.01)
    assert METHODS["RejEx holdout"](cell).notes["reference"] == 120
    # Without ties the two kinds of ranks are one.
    assert counts(METHODS["RejEx mid"](cell)) == counts(METHODS["RejEx"](cell))


# ------------------------------------------------------------------------ yardsticks
def test_yardsticks_reject_at_rejexs_rate(cell):
    rejected = counts(METHODS["RejEx"](cell)).rejected
    for name in ("Random", "Score margin"):
        assert counts(METHODS[name](cell)).rejected == pytest.approx(rejected)


def test_random_rejection_by_hand(cell, monkeypatch):
    verdicts = np.where(np.arange(100) < 25, -1.0, 0.0)
    monkeypatch.setitem(cell.__dict__, "fit", Part({**cell.fit.arrays, "verdicts": verdicts}, 0.0))
    plain, blind = counts(METHODS["NoReject"](cell)), counts(METHODS["Random"](cell))
    assert blind[:4] == pytest.approx([0.75 * value for value in plain[:4]])
    assert (blind.rejected_normal, blind.rejected_anomaly) == pytest.approx((22.5, 2.5))


@pytest.mark.parametrize("case", CASES)
def test_the_trivial_classifiers_cost_what_arithmetic_says(cell, case):
    prices = costs(case, cell.gamma)
    always = cost(counts(METHODS["Always normal"](cell)), prices)
    assert always == pytest.approx(prices.fn * cell.fold.y_test.mean())
    assert cost(counts(METHODS["Reject all"](cell)), prices) == pytest.approx(prices.r)


def test_risk_falls_with_coverage_if_the_truth_orders_and_ends_at_the_error_rate(cell):
    curves = METHODS["Score margin"](cell).notes["curves"]
    error = float(np.mean(cell.labels != cell.fold.y_test))
    for name in ("rejex", "margin", "random", "best"):
        assert curves[name][-1] == pytest.approx(error)
    assert np.all(np.diff(curves["best"]) >= -1e-12)


# --------------------------------------------------------------- metric-based methods
def test_a_threshold_leaves_two_examples_on_either_side():
    assert threshold_range(np.array([0.1, 0.2, 0.3, 0.4])) == (0.2, pytest.approx(0.3))
    assert threshold_range(np.array([0.1, 0.2, 0.3, 0.4]))[1] < 0.3
    assert threshold_range(np.ones(9)) is None


@pytest.mark.parametrize("name", ["Mv", "Em", "Stability", "Udr", "Ens"])
def test_metric_methods_reject_below_a_threshold_on_the_margin(cell, name):
    outcome = METHODS[name](cell)
    t = outcome.notes["threshold"]
    margin = cell.unifier.margin(cell.fit["test"])
    assert counts(outcome).rejected == np.sum(margin <= t)
    low, high = threshold_range(cell.metric_margin)
    assert low <= t <= high


def objective_of(cell, name, monkeypatch):
    caught = {}

    def catch(objective, low, high, *, seed):
        caught["objective"] = objective
        return low, objective(low)

    monkeypatch.setattr(recipe, "maximise", catch)
    METHODS[name](cell)
    return caught["objective"]


def split(cell, t=0.6):
    accepted = cell.metric_margin > t
    assert 2 < accepted.sum() < len(accepted) - 2
    return accepted, t


def test_ens_is_the_correlation_with_the_mean_rank(cells, cell, monkeypatch):
    objective = objective_of(cell, "Ens", monkeypatch)
    accepted, t = split(cell)
    scores = [c.fit["train"][cell.metric_rows] for c in cells.values()]
    truth = np.mean([rankdata(s) for s in scores], axis=0)
    own = cell.fit["train"][cell.metric_rows]
    expected = (
        spearmanr(own[accepted], truth[accepted]).statistic
        - spearmanr(own[~accepted], truth[~accepted]).statistic
    )
    assert objective(t) == pytest.approx(expected)


def test_udr_is_the_median_agreement_where_both_are_on_one_side(cells, cell, monkeypatch):
    objective = objective_of(cell, "Udr", monkeypatch)
    accepted, t = split(cell)
    own = cell.fit["train"][cell.metric_rows]
    sides = []
    for side in (True, False):
        agreement = []
        for name in ("HBOS", "IForest"):
            other = cells[name]
            both = (accepted == side) & ((other.metric_margin > t) == side)
            theirs = other.fit["train"][cell.metric_rows]
            agreement.append(spearmanr(own[both], theirs[both]).statistic)
        sides.append(np.median(agreement))
    assert objective(t) == pytest.approx(sides[0] - sides[1])


def test_stability_compares_mean_point_stabilities(cell, monkeypatch):
    objective = objective_of(cell, "Stability", monkeypatch)
    accepted, t = split(cell)
    points = cell.instability["points"]
    assert objective(t) == pytest.approx(points[~accepted].mean() - points[accepted].mean())


def test_em_and_mv_measure_both_sides_on_the_same_volume(cell, monkeypatch):
    from benchmarks.paper.metrics import excess_mass, mass_volume

    accepted, t = split(cell)
    scores, uniform = cell.volume["scores"][0], cell.volume["uniform"][0]
    for name, metric, sign in (("Em", excess_mass, 1), ("Mv", mass_volume, -1)):
        objective = objective_of(cell, name, monkeypatch)
        expected = metric(scores[accepted], uniform) - metric(scores[~accepted], uniform)
        assert objective(t) == pytest.approx(sign * expected)


def test_own_boxes_measure_each_side_in_the_box_of_its_rows(cell, monkeypatch):
    from benchmarks.paper.metrics import excess_mass, mass_volume

    accepted, t = split(cell)
    (space,) = cell.spaces
    scores = cell.volume["scores"][0]
    unit = np.random.default_rng(cell.seed + 2).random((300, space.rows.shape[1]))
    for name, measure in (
        ("Em, own box", lambda s, u, box: excess_mass(s, u) / box),
        ("Mv, own box", lambda s, u, box: -mass_volume(s, u) * box),
    ):
        sides = []
        for side in (accepted, ~accepted):
            low, high = space.rows[side].min(axis=0), space.rows[side].max(axis=0)
            uniform = cell.space_scorer(space).score(low + unit * (high - low))
            sides.append(measure(scores[side], uniform, np.prod(high - low)))
        assert objective_of(cell, name, monkeypatch)(t) == pytest.approx(sides[0] - sides[1])


def test_as_probably_run_the_level_sets_stand_on_their_heads(cell, monkeypatch):
    """The package's own loops, in our words: EM and MV of what is *above* a level."""
    accepted, t = split(cell)
    rows = cell.fold.X_train[cell.metric_rows]
    own = cell.fit["train"][cell.metric_rows]
    unit = np.random.default_rng(cell.seed + 3).random((1000, rows.shape[1]))
    em, mv = [], []
    for side in (accepted, ~accepted):
        low, high = rows[side].min(axis=0), rows[side].max(axis=0)
        box = np.prod(high - low)
        uniform = cell.scorer.score(low + unit * (high - low))
        grid = np.arange(0, 100, 0.01)  # of volumes of the box
        best = np.zeros(len(grid))
        for u in own[side]:
            best = np.maximum(best, np.mean(own[side] >= u) - grid * np.mean(uniform >= u))
        em.append(best.mean())
        falling = np.sort(own[side])[::-1]
        masses = np.arange(0.9, 0.999, 0.0001)
        at = np.ceil(masses * len(falling) - 1e-9).astype(int) - 1
        mv.append(np.mean([np.mean(uniform >= falling[i]) for i in at]) * box)
    found = objective_of(cell, "Em as probably run", monkeypatch)(t)
    assert found == pytest.approx(em[0] - em[1], abs=2e-4)
    found = objective_of(cell, "Mv as probably run", monkeypatch)(t)
    assert found == pytest.approx(mv[1] - mv[0], rel=0.02)


def test_as_probably_run_thresholds_lie_between_0_and_1_and_an_empty_side_is_zero(
    cell, monkeypatch
):
    seen = {}

    def search(objective, low, high, *, seed):
        seen.update(limits=(low, high), all=objective(1.0), none=objective(-1.0))
        return 0.5, 0.0

    monkeypatch.setattr(recipe, "maximise", search)
    METHODS["Em as probably run"](cell)
    assert seen["limits"] == (0.0, 1.0)
    assert seen["all"] < 0 < seen["none"]
    assert seen["all"] == pytest.approx(-seen["none"])


def test_the_five_at_one_rate_reject_the_smallest_margins(cell):

    margin = cell.unifier.margin(cell.fit["test"])
    k = int(np.sum(cell.fit["verdicts"] == -1))
    verdicts = cell.labels.copy()
    verdicts[np.argsort(margin, kind="stable")[:k]] = -1
    assert 0 < k < len(margin)
    assert METHODS["Unified margin"](cell).counts == {"any": count(verdicts, cell.fold.y_test)}


def test_many_columns_are_measured_in_draws_of_five(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 12)), np.repeat([0, 1], [110, 10])
    wide = Dataset("Wide", "0_wide", X, y, in_paper=False)
    fold = next(iter(folds(wide, 5)))
    effort = dataclasses.replace(EFFORTS["fast"], subspaces=4)
    cell = Cell(wide, fold, "HBOS", ("HBOS",), effort, tmp_path, {})
    assert cell.volume["uniform"].shape == (4, effort.volume_points)
    assert cell.volume["scores"].shape == (4, 96)


def test_what_belongs_to_a_fit_is_computed_once(cell, dataset):
    again = Cell(dataset, cell.fold, "KNN", cell.ensemble, cell.effort, cell.cache, cell.peers)
    cell.volume, cell.instability  # noqa: B018
    again._facade = again._recipe = None  # anything that would fit again fails
    assert np.array_equal(again.fit["test"], cell.fit["test"])
    assert np.array_equal(again.volume["uniform"], cell.volume["uniform"])
    assert again.instability.cpu_s == cell.instability.cpu_s > 0


# --------------------------------------------------------------------------- SS-Repen
def test_the_gradient_of_the_triplet_loss_is_right():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 20))
    q, p, o = (rng.random((6, 4)) for _ in range(3))
    _, gradient = triplet_loss(weights, q, p, o)
    for i, j in ((0, 0), (1, 7), (3, 19)):
        step = np.zeros_like(weights)
        step[i, j] = 1e-6
        above, _ = triplet_loss(weights + step, q, p, o)
        below, _ = triplet_loss(weights - step, q, p, o)
        assert gradient[i, j] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-6)


def test_the_triplet_loss_by_hand():
    weights = np.zeros((1, 20))
    weights[0, 0] = 1.0
    loss, _ = triplet_loss(weights, *(np.array([[v]]) for v in (1.0, 3.0, 6.0)))
    assert loss == pytest.approx(1000 + 4 - 25)


def test_lesinn_is_the_mean_distance_to_the_nearest_of_each_draw():
    draws = np.array([[[0.0], [10.0]], [[4.0], [5.0]]])
    assert lesinn(np.array([[1.0], [6.0]]), draws) == pytest.approx([(1 + 3) / 2, (4 + 1) / 2])


def test_repen_learns_to_tell_the_marked_rows_apart():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 10))
    marked = np.zeros(600, dtype=bool)
    marked[:60] = True
    X[marked, 3] += 6.0
    scores = fit_repen(X, marked, steps=200, seed=0).score(X)
    assert roc_auc_score(marked, scores) > 0.95
    # The plain distance, which does not know the labels, drowns in the other nine columns.
    draws = np.stack([X[rng.choice(600, 8, replace=False)] for _ in range(50)])
    assert roc_auc_score(marked, scores) > roc_auc_score(marked, lesinn(X, draws))
    assert np.array_equal(scores, fit_repen(X, marked, steps=200, seed=0).score(X))


def test_ss_repen_sets_a_threshold_for_every_cost(cell):
    outcome = METHODS["SS-Repen"](cell)
    assert set(outcome.counts) == set(CASES) == set(outcome.notes["threshold"])
    for case in CASES:
        assert sum(outcome.counts[case]) == 100
        rejected = Counts(*outcome.notes["detector_labels"][case]).rejected
        assert rejected == outcome.counts[case].rejected


# ------------------------------------------------------------------------- statistics
def test_friedman_is_the_textbook_formula():
    costs_ = np.array([[0.1, 0.2, 0.3], [0.1, 0.3, 0.2], [0.2, 0.1, 0.3], [0.1, 0.2, 0.3]])
    place = ranks(costs_)
    assert place.tolist() == [[1, 2, 3], [1, 3, 2], [2, 1, 3], [1, 2, 3]]
    mean, n, k = place.mean(axis=0), 4, 3
    chi2 = 12 * n / (k * (k + 1)) * ((mean**2).sum() - k * (k + 1) ** 2 / 4)
    result = friedman(costs_)
    assert result.chi2 == pytest.approx(chi2)
    assert result.f == pytest.approx((n - 1) * chi2 / (n * (k - 1) - chi2))
    assert friedman(np.ones((5, 3))).p == 1.0


def test_equal_costs_share_their_rank_even_if_their_last_bits_differ():
    assert ranks(np.array([[0.1 + 0.2, 0.3, 0.2]])).tolist() == [[2.5, 2.5, 1.0]]


def test_the_critical_difference_is_the_published_one():
    # Demšar, section 3.2.2: k = 4, N = 14, Bonferroni-Dunn at .05 has q = 2.394.
    assert critical_difference(4, 14) == pytest.approx(2.394 * np.sqrt(4 * 5 / (6 * 14)), abs=2e-3)


def test_the_bootstrap_covers_the_mean_of_blocks():
    rng = np.random.default_rng(0)
    inside = 0
    for seed in range(200):
        low, high = block_bootstrap(rng.normal(size=30), draws=400, seed=seed)
        inside += low <= 0 <= high
    assert 0.87 <= inside / 200 <= 0.99


def test_the_papers_eight_methods_are_there_and_nothing_is_named_twice():
    assert len(PAPER) == 8
    assert len(METHODS) == 8 + 1 + len(BEYOND) + len(READINGS) + len(PROBABLE)
