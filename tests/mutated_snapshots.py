"""Snapshots mutated in their structure and sealed again: what becomes of so many of them.

python -m tests.mutated_snapshots 10000 --seed 1
"""

import argparse
import copy
import random
import time
import warnings
from collections import Counter

from rejex_stream.detectors import make_detector
from rejex_stream.encode.records import encode_verdict
from rejex_stream.engine import Engine
from rejex_stream.engine.snapshot import environment, seal, unseal
from rejex_stream.errors import CheckpointError
from rejex_stream.run.executors import InlineExecutor
from tests.streams import EVERY_KIND, readings, spec

CALIBRATIONS = ("shadow", "holdout", "training")
PYOD = {"HBOS": {}, "KNN": {}, "GMM": {}, "ECOD": {}, "IForest": {"n_estimators": 5}}
RIVER = {
    "HalfSpaceTrees": {"n_trees": 2, "height": 3, "window_size": 40}, "LODA": {"n_random_cuts": 4},
    "GaussianScorer": {}, "OneClassSVM": {"n_components": 5},
}  # fmt: skip
EVENTS = readings(events=420)
# Before the first model, one under way, one that speaks, one in the shadow, after a swap.
MOMENTS = (0, 20, 104, 150, 240, 330)
ODD = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**62, 2**63, -(2**63), 0.0, -0.0, -1.5, 1e300, 5e-324,
    float("nan"), float("inf"), "", "a", "k", "shadow", "training", b"", b"x" * 8, bytes(160), [],
    {}, [[], b""], [[0], b""], [[1], bytes(8)], [[-1], bytes(8)], [[2**40, 2], b""],
    [[1, 2], bytes(16)], {"epoch": 0}, [[0, 1.0]],
]  # fmt: skip


def pipelines():
    for i, (name, params) in enumerate(PYOD.items()):
        detector = make_detector(name, **params)
        for calibration in CALIBRATIONS:
            yield spec(detector, calibration=calibration, features=EVERY_KIND if i % 2 else ())
    for name, params in RIVER.items():
        yield spec(make_detector(f"river:{name}", **params), features=EVERY_KIND)
    yield spec(evidence=True)


def taken():
    """Return pipelines with snapshots of every moment."""
    found = []
    for pipeline in pipelines():
        engine, seen = Engine(pipeline, InlineExecutor()), 0
        for moment in MOMENTS:
            engine.process(EVENTS[seen:moment])
            seen = moment
            found.append((pipeline, moment, engine.snapshot()))
    return found


def places(value, found):
    if isinstance(value, list | dict):
        for key in range(len(value)) if isinstance(value, list) else list(value):
            found.append((value, key))
            places(value[key], found)
    return found


def mutate(rng, plain):
    everywhere = places(plain, [])
    if not everywhere:
        return
    holder, key = rng.choice(everywhere)
    choice, old = rng.randrange(8), holder[key]
    if choice == 0:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    elif choice == 1:
        other, at = rng.choice(everywhere)
        holder[key] = copy.deepcopy(other[at])
    elif choice == 2:
        del holder[key]
    elif choice == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(rng.choice(ODD)))
    elif choice == 3:
        holder[rng.choice(["x", "", "a", "serving", "sensors"])] = copy.deepcopy(rng.choice(ODD))
    elif choice == 4 and type(old) in (int, float):
        holder[key] = rng.choice([-old, old + 1, old - 1, old * 3.7, 1 / (old or 1), int(old == 0)])
    elif choice == 5 and isinstance(old, bytes) and old:
        i = rng.randrange(len(old))
        holder[key] = old[:i] + bytes([rng.randrange(256)]) + old[i + rng.randrange(3) :]
    elif choice == 6 and isinstance(old, bytes) and len(old) >= 8:
        i = 8 * rng.randrange(len(old) // 8)  # a number of an array
        odd = rng.choice([b"\0" * 8, b"\xff" * 8, b"\0" * 6 + b"\xf0\x7f", b"\0" * 6 + b"\xf0\x3f"])
        holder[key] = old[:i] + odd + old[i + 8 :]
    elif isinstance(old, list):
        rng.shuffle(old)


def mutated(rng, blob):
    """Return the blob with mutations inside, every seal right again; or None."""
    *head, streams = unseal("engine", 2, blob)
    parts = [part for state, model, _ in streams.values() for part in (state, model)]
    versions = {key: version for key, (_, _, version) in streams.items()}
    head.append(versions)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        which = rng.randrange(len(parts) + 1)
        if which == len(parts):
            whole = [head]
            mutate(rng, whole)
            if whole:
                head = whole[0]
            continue
        if rng.random() < 0.03:
            parts[which] = rng.choice([b"", b"x", parts[which][:-1], parts[which - 1]])
            continue
        kind = ("stream-state", "stream-model")[which % 2]
        try:
            plain = [unseal(kind, 2, parts[which])]
        except CheckpointError:
            continue
        mutate(rng, plain)
        if plain:
            parts[which] = seal(kind, 2, plain[0])
    if rng.random() < 0.02:
        rng.shuffle(parts)
    if isinstance(head, list) and head and isinstance(head[-1], dict):
        kept = zip(head[-1].items(), parts[::2], parts[1::2], strict=False)
        head[-1] = {key: [state, model, version] for (key, version), state, model in kept}
    return seal("engine", 2, head)


def outcome_of(pipeline, moment, blob):
    engine = Engine(pipeline, InlineExecutor())
    try:
        engine.restore(blob, accept_environment=True)
    except CheckpointError:
        assert engine.streams() == []
        return "refused"
    try:
        verdicts = engine.process(EVENTS[moment : moment + 90])
    except CheckpointError:
        return "refused with its first event"
    for verdict in verdicts:
        encode_verdict(verdict)
    again = Engine(pipeline, InlineExecutor())
    again.restore(engine.snapshot())
    return "taken"


def examine(count, seed, seconds):
    warnings.simplefilter("ignore")
    environment()
    rng, snapshots, became = random.Random(seed), taken(), Counter()
    begun = time.process_time()
    while sum(became.values()) < count and time.process_time() - begun < seconds:
        pipeline, moment, blob = rng.choice(snapshots)
        try:
            changed = mutated(rng, blob)
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue  # what cannot be written
        if changed != blob:
            became[outcome_of(pipeline, moment, changed)] += 1
    return became


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="of processor time")
    given = parser.parse_args()
    for what, count in examine(given.count, given.seed, given.seconds).most_common():
        print(f"{count}\t{what}")


if __name__ == "__main__":
    main()
