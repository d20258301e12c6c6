"""Whether answers that teach are worth it, and whether the guard keeps those out that are not.

python -m benchmarks.learning tables --data DIR
python -m benchmarks.learning streams --data DIR [--cache DIR]
python -m benchmarks.learning noise

Tables in random order, and labelled streams in the order of time, are judged by a champion (a
detector and its band) and by a challenger (the same scores, corrected by answers; the same window
and band, so as many rejections). Everything that is rejected by whoever speaks is answered 100
events later, and teaches; a fifth of the events on which the two differ is answered then too, and
measures. The control is the champion alone: the same window, the same budget, no labels. The trial
is the one that ships: it books gains as if `learning.wrong_answers` of all answers could be wrong.
Answers are given as they are and shuffled; ``noise`` is the trial alone, with up to 30 % of the
answers wrong, against challengers that are no better and for one that is.

Costs are (1, 1, γ) an event, joint, over all events whose truth is known.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt

from benchmarks.harness import write
from benchmarks.paper.data import available
from benchmarks.paper.data import load as load_table
from benchmarks.streams.prequential import CONTAMINATION, RATE, said, window_for
from benchmarks.streams.sources import capped, find
from benchmarks.streams.sources import load as load_stream
from rejex_stream.config.deciding import Learning
from rejex_stream.detectors import make_detector
from rejex_stream.errors import ConfigError
from rejex_stream.learning import Asked, ChampionChallenger, LabelKernel, SequentialTest
from rejex_stream.learning.sequential_test import error_adjusted_gains, max_gain_with_errors
from rejex_stream.protocols import BatchDetector
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.window import ScoreWindow, mid_rank, severity
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.types import Label, Position, Verdict

DETECTORS = ("pyod:KNN", "pyod:IForest")
LEAST_ROWS, MOST_ROWS, FITTED = 1_000, 8_000, 1_000
TRAIN, TEST = 2_000, 8_000
SEEDS, ANSWERED_AFTER = 2, 100
SHIPPED = Learning()
AUDITED, WRONG = SHIPPED.measure_rate, SHIPPED.wrong_answers
NOISE, DEPLOYMENTS, DIFFERENCES = (0.0, 0.1, 0.2, 0.3), 1_000, 2_000
CODES = {-1: Label.REJECTED, 0: Label.NORMAL, 1: Label.ANOMALY}
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One stream with what its champion said, beginning with a window that it has ranked.

    Attributes
    ----------
    of, name, seed
        Table or source; detector or stream; which repetition.
    rows, y, severities, labels
        Shapes (n, d), (n,), (n,), (n,); `y` is -1 where the truth is not known, severities are
        nan where the champion has no rank or nothing may be learnt.
    scale
        Shape (d,), from rows before all of these or from the warm-up.
    judged
        Shape (n,): which events are counted.
    """

    of: str
    name: str
    seed: int
    rows: Floats
    y: Ints
    severities: Floats
    labels: Ints
    scale: Floats
    judged: npt.NDArray[np.bool_]
    window: int
    gamma: float


@dataclass(frozen=True)
class Played:
    """What one way to judge a case cost an event, rejected, asked, and whether it took over.

    `falsely`: at a time at which it had not been cheaper in total, by the answers that measure.
    """

    cost: float
    rejected: float
    asked_more: float
    took_over: bool
    falsely: bool


def tables(folder: Path) -> Iterator[Case]:
    """Yield every table of at least 1,000 rows whose band can say both labels, shuffled."""
    for stem, path in available(folder / "adbench").items():
        table = load_table(path)
        fitted = min(FITTED, len(table.y) // 4)
        if len(table.y) < LEAST_ROWS:
            continue
        try:
            RejectionPolicy(table.gamma, rate=RATE).require(fitted)
        except ConfigError:
            continue
        for name in DETECTORS:
            for seed in range(SEEDS):
                order = np.random.default_rng(seed).permutation(len(table.y))[:MOST_ROWS]
                X, y = table.X[order], table.y[order]
                spread = X[:fitted].std(axis=0)
                X = (X - X[:fitted].mean(axis=0))[:, spread > 0] / spread[spread > 0]
                detector = make_detector(name)
                assert isinstance(detector, BatchDetector)
                scores = detector.fit(X[:fitted], seed=seed).score(X[fitted:])
                rare, labels = ranked(scores, fitted, table.gamma)
                judged = np.arange(len(scores)) >= fitted
                yield Case(
                    stem, name, seed, X[fitted:], y[fitted:], rare, labels,
                    np.ones(X.shape[1]), judged, fitted, table.gamma,
                )  # fmt: skip


def ranked(scores: Floats, n: int, gamma: float) -> tuple[Floats, Ints]:
    """Return severities and labels (0, 1, -1 rejected) by a sliding window of n scores."""
    band = RejectionPolicy(gamma, rate=RATE).band(n)
    window, codes = ScoreWindow(n, scores[:n].tolist()), {v: k for k, v in CODES.items()}
    rare, labels = np.empty(len(scores)), np.zeros(len(scores), dtype=np.int64)
    for i, score in enumerate(scores.tolist()):
        below, at_or_below = window.rank(score)
        rare[i] = severity(window, score, below)
        if i >= n:
            labels[i] = codes[band.label(mid_rank(below, at_or_below))]
            window.push(score)
    return rare, labels


def streams(folder: Path, cache: Path) -> Iterator[Case]:
    """Yield every labelled stream with what the engine as shipped says of it, by ``Sensor``."""
    for path in find(folder / "sensors"):
        stream = capped(load_stream(path), TRAIN, TEST)
        told = said(stream, "Sensor", cache)
        first, X = stream.X[: stream.warm_up], stream.X.copy()
        for column in X.T:  # a missing value is carried forward
            there = np.flatnonzero(np.isfinite(column))
            if len(there):
                last = np.searchsorted(there, np.arange(len(column)), side="right") - 1
                column[:] = column[there[np.maximum(last, 0)]]
            else:
                column[:] = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scale = np.nanstd(first, axis=0)
        out = (told["held"] == 1) | (told["constant"] == 1)
        yield Case(
            stream.source, stream.name, 0, X, stream.y,
            np.where(out, np.nan, told["severity"]), told["label"].astype(np.int64),
            np.where(scale > 0, scale, 1.0),
            (np.arange(len(stream.y)) >= stream.warm_up) & (stream.y >= 0),
            window_for(stream), CONTAMINATION,
        )  # fmt: skip


def play(
    case: Case, *, teach: Ints, measure: Ints, guarded: bool = True, coin_seed: int = 0
) -> Played:
    """Judge a case, with one set of answers that teach and one that measures."""
    mass = LabelKernel(case.scale, case.gamma, case.window)
    draw = AuditDraw(AUDITED, key=f"{coin_seed}".encode())
    trial = SequentialTest(AUDITED, max_gain_with_errors(1.0, WRONG), max_gain_reverse=1.0)
    policy = RejectionPolicy(case.gamma, rate=RATE)

    def drawn(at: Position) -> bool:  # nobody can be asked where the truth is not known
        return bool(case.y[at.offset] >= 0) and draw.is_drawn(at, AUDITED)

    duel = ChampionChallenger(
        policy, mass, trial, drawn, c_r=case.gamma, wrong=WRONG, patience=SHIPPED.patience_events
    )
    if not guarded:
        trial.command(challenger_speaks=True)
    labels, asked_more, took_over, falsely = case.labels.copy(), 0, False, False
    gained = np.zeros(len(case.y))
    due: list[tuple[int, Position, Asked]] = []
    codes = {v: k for k, v in CODES.items()}
    answered = 0
    for i, (rare, label) in enumerate(zip(case.severities.tolist(), case.labels, strict=True)):
        while answered < len(due) and due[answered][0] <= i - ANSWERED_AFTER:
            at, position, why = due[answered]
            answered += 1
            truth = (teach if why is Asked.TEACH else measure)[at]
            before = trial.challenger_speaks
            duel.answer(position, anomalous=bool(truth))
            if trial.challenger_speaks and not before:
                took_over, falsely = True, falsely or float(gained[: at + 1].sum()) <= 0.0
        position = Position(case.of, 0, i)
        known = not math.isnan(rare)
        verdict = Verdict(
            position, case.name, case.name, i, i, CODES[int(label)],
            severity=rare if known else None,
        )  # fmt: skip
        judged = duel.judge(verdict, case.rows[i])
        labels[i] = codes[judged.label]
        if judged.champion is not judged.challenger and case.y[i] >= 0:
            both = np.array([codes[judged.champion], codes[judged.challenger]])
            costs = np.where(both < 0, case.gamma, both != measure[i])
            gained[i] = costs[0] - costs[1]
        if judged.asked is not None and known and case.y[i] >= 0:
            due.append((i, position, judged.asked))
            asked_more += judged.asked is Asked.MEASURE and judged.label is not Label.REJECTED
    use = case.judged
    return Played(
        paid(labels[use], case.y[use], case.gamma),
        float((labels[use] < 0).mean()),
        asked_more / max(1, int(use.sum())),
        took_over,
        falsely,
    )


def paid(labels: Ints, y: Ints, gamma: float) -> float:
    """Return the mean cost of an event."""
    return float(np.where(labels < 0, gamma, labels != y).mean())


def shuffled(case: Case, seed: int) -> Ints:
    """Return the truths of a case's events, in random order among those that have one."""
    y, known = case.y.copy(), np.flatnonzero(case.y >= 0)
    y[known] = case.y[np.random.default_rng([seed, 7]).permutation(known)]
    return y


WAYS = ("answers as they are", "teaching answers shuffled", "all shuffled")


def row(cases: list[Case]) -> tuple[list[list[float]], list[list[tuple[bool, bool]]]]:
    """Play the cases of one table or source: their costs and shares, and who took over."""
    numbers, over = [], []
    for case in cases:
        use = case.judged
        control = paid(case.labels[use], case.y[use], case.gamma)
        taught = play(case, teach=case.y, measure=case.y, guarded=False)
        wrong = shuffled(case, case.seed)
        runs = [
            play(case, teach=teach, measure=measure)
            for teach, measure in ((case.y, case.y), (wrong, case.y), (wrong, wrong))
        ]
        numbers.append(
            [control, taught.cost, *(run.cost for run in runs),
             float((case.labels[use] < 0).mean()), taught.rejected, runs[0].asked_more]
        )  # fmt: skip
        over.append([(run.took_over, run.falsely) for run in runs])
    return numbers, over


def table_of(
    groups: dict[str, list[Case]],
) -> tuple[list[list[object]], list[list[tuple[bool, bool]]]]:
    """Return a row for each group and one for their mean, and who took over in all runs."""
    rows: list[list[object]] = []
    everyone: list[list[tuple[bool, bool]]] = []
    for name, cases in groups.items():
        found, over = row(cases)
        numbers = np.array(found)
        mean = numbers.mean(axis=0)
        of = [float(one / mean[0]) if mean[0] else 1.0 for one in mean[1 : 2 + len(WAYS)]]
        worse = [float((numbers[:, i] > 1.02 * numbers[:, 0]).mean()) for i in (1, 2)]
        took_over = np.array(over)[:, 0, 0].mean()
        rows.append(
            [name, len(cases), float(mean[0]), *of, *worse, float(took_over), *mean[-3:].tolist()]
        )
        everyone += over
        print(*rows[-1], flush=True)
    mean_row = [float(np.mean([one[i] for one in rows])) for i in range(2, len(rows[0]))]
    rows.append(["mean over them", sum(len(one) for one in groups.values()), *mean_row])
    return rows, everyone


# Champion's cost less challenger's where the truth is normal, and where it is anomalous: (1, 1)
# a mistake. Whether an event is an anomaly: how often, so that nobody is cheaper in the mean.
TRIALS = {
    "only more false alarms": ((-1.0, 1.0), 0.0),
    "only fewer alarms, all true": ((1.0, -1.0), 1.0),
    "as good: more alarms, half true": ((-1.0, 1.0), 0.5),
    "cheaper: four in five alarms true": ((-1.0, 1.0), 0.8),
}


def trial_alone(gains: tuple[float, float], share: float, noise: float, seed: int) -> int | None:
    """Return after how many differences a challenger takes over, if ever, and was not cheaper.

    A fifth of the differences is measured; a share of the answers is wrong.
    """
    rng = np.random.default_rng([seed, round(100 * share), round(100 * noise)])
    truth = rng.random(DIFFERENCES) < share
    wrong, drawn = rng.random((2, DIFFERENCES))
    answers = truth != (wrong < noise)
    booked = error_adjusted_gains(*gains, WRONG)
    trial = SequentialTest(AUDITED, max_gain_with_errors(1.0, WRONG), max_gain_reverse=1.0)
    for at in np.flatnonzero(drawn < AUDITED):
        if trial.update(booked[int(answers[at])], AUDITED):
            return int(at)
    return None


def noise() -> None:
    """Print how often the trial lets a challenger speak where answers are wrong."""
    rows: list[list[object]] = []
    for name, (gains, share) in TRIALS.items():
        for wrong in NOISE:
            found = [trial_alone(gains, share, wrong, seed) for seed in range(DEPLOYMENTS)]
            over = [at for at in found if at is not None]
            median = float(np.median(over)) if over else "–"
            rows.append([name, wrong, DEPLOYMENTS, len(over) / DEPLOYMENTS, median])
    columns = ["challenger", "answers wrong", "deployments", "took over", "after differences"]
    write(
        "learning-noise",
        "The trial where answers are wrong",
        [("Share of deployments in which the challenger ever spoke", columns, rows)],
        note=f"{DIFFERENCES:,} differences, {AUDITED:.0%} of them measured; gains are booked as if "
        f"up to {WRONG:.0%} of the answers could be wrong; α = 5 %.",
    )


def main() -> None:
    """Play all tables, or all streams, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tables", "streams", "noise"))
    parser.add_argument("--data", type=Path, help="adbench/*.npz, sensors/*/*.csv.gz")
    parser.add_argument("--cache", type=Path, help="where champions' verdicts on streams are kept")
    options = parser.parse_args()
    if options.what == "noise":
        noise()
        return
    if options.data is None:
        parser.error("--data says where tables and streams are")
    warnings.simplefilter("ignore")
    made: Iterator[Case] = (
        tables(options.data)
        if options.what == "tables"
        else streams(options.data, options.cache or Path(mkdtemp()))
    )
    groups: dict[str, list[Case]] = {}
    for case in made:
        groups.setdefault(case.of, []).append(case)
    rows, over = table_of(groups)
    columns = ["", "runs", "control's cost", "taught / control", "guarded / control",
               *(f"{way} / control" for way in WAYS[1:]),
               "taught: over 2 % worse", "guarded: over 2 % worse", "took over",
               "rejected, control", "rejected, taught", "asked to measure"]  # fmt: skip
    shares = np.array(over).mean(axis=0)
    how = {
        "tables": f"Tables: {' and '.join(DETECTORS)} fitted on {FITTED:,} rows or a quarter, γ as "
        f"it is, at most {MOST_ROWS:,} rows, {SEEDS} orders.",
        "streams": f"Streams: Sensor as shipped, γ = {CONTAMINATION}, the last {TRAIN:,} rows of a "
        f"warm-up and {TEST:,} after it; what is held is left alone.",
    }
    write(
        f"learning-{options.what}",
        f"Labels that teach, behind a guard: {options.what}",
        [
            ("Costs, and shares of events and of runs", columns, rows),
            ("Share of all runs in which the challenger took over; and did at a time at which it "
             "had not been cheaper in total, by the answers that measure",
             ["answers", "runs", "took over", "falsely"],
             [[way, len(over), *shares[k].tolist()] for k, way in enumerate(WAYS)]),
        ],
        note=f"Costs (1, 1, γ) an event; rejection budget {RATE:.0%}. {how[options.what]} "
        f"Answers come {ANSWERED_AFTER} events later; of what the two differ on {AUDITED:.0%} is "
        f"measured; at most {WRONG:.0%} of answers are held to be wrong. taught: the challenger "
        "speaks from the beginning; guarded: the trial decides, answers as they are. Ratios are of "
        "mean costs of a table or source; the last row is their mean.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
