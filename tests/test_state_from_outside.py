"""Snapshots that are sealed and wrong: whatever they hold, the shell refuses them or goes on."""

import copy
import random
import warnings
from collections import Counter
from contextlib import suppress

import msgspec
import pytest

from rejex_stream.engine.snapshot import environment, seal, unseal
from rejex_stream.errors import CheckpointError
from rejex_stream.run.partition import described
from tests.mutated_snapshots import ODD, mutate
from tests.test_state_moves import KEYS, kept, records, state_of

# By the first letter of a part's name: the kind it is sealed as, its format, what stands before.
SEALED = {"h": ("partition-head", 1, 0), "c": ("context", 1, 0), "w": ("monitor", 1, 0),
          "s": ("stream-state", 2, 8), "m": ("stream-model", 2, 0),
          "u": ("typical", 1, 0)}  # fmt: skip


def snapshot():
    """Return a snapshot's parts, of sensors that have models, windows, contexts and monitors."""
    state = state_of(forget_after_ms=100_000, max_keys=20)
    state.process(records(KEYS * 15))
    return dict(kept(state).parts)


def inside(rng, payload):
    """Mutate a payload in what it is encoded of, at times in one that stands in it as bytes."""
    nested = [
        (holder, key)
        for holder in ([payload] if isinstance(payload, dict | list) else [])
        for key in (holder if isinstance(holder, dict) else range(len(holder)))
        if isinstance(holder[key], bytes)
    ]
    if nested and rng.random() < 0.5:
        holder, key = rng.choice(nested)
        for kind, version in (("engine-head", 2), ("monitor", 1), ("bank", 1)):
            try:
                plain = [unseal(kind, version, holder[key])]
            except CheckpointError:
                continue
            mutate(rng, plain)
            holder[key] = seal(kind, version, plain[0] if plain else None)
            return
        try:
            plain = [msgspec.msgpack.decode(holder[key])]
        except msgspec.DecodeError:
            return
        mutate(rng, plain)
        holder[key] = msgspec.msgpack.encode(plain[0] if plain else None)
        return
    mutate(rng, payload)


def mutated(rng, parts):
    """Return parts of which some are changed, every seal right again."""
    parts = dict(parts)
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice([*parts, "head", "head"])
        if name not in parts:
            continue
        if rng.random() < 0.05:
            if rng.random() < 0.5:
                del parts[name]
            else:
                parts[name] = parts[rng.choice(list(parts))]
            continue
        kind, version, at = SEALED[name[0]]
        try:
            plain = [copy.deepcopy(unseal(kind, version, parts[name][at:]))]
        except CheckpointError:
            continue
        if rng.random() < 0.03:
            plain[0] = copy.deepcopy(rng.choice(ODD))
        elif rng.random() < 0.1:
            mutate(rng, plain)
        else:
            inside(rng, plain[0])
        parts[name] = parts[name][:at] + seal(kind, version, plain[0] if plain else None)
    return parts


def outcome_of(parts):
    """Say what became of a snapshot; anything but a CheckpointError comes through."""
    with suppress(CheckpointError):
        described(parts)
    state = state_of(forget_after_ms=100_000, max_keys=20)
    try:
        state.restore(parts)
        state.apply_config()
        state.process(records(KEYS * 2, max(120, state.next_offset)))
    except CheckpointError:
        return "refused"
    return "taken"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 15))]
)
def test_whatever_is_sealed_and_wrong_is_refused_or_of_no_harm(seed):
    warnings.simplefilter("ignore")
    environment()
    rng, whole, became = random.Random(seed), snapshot(), Counter()
    assert outcome_of(whole) == "taken"
    while sum(became.values()) < 700:
        try:
            changed = mutated(rng, whole)
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue  # what cannot be written
        became[outcome_of(changed)] += 1
    assert became["refused"] > 200
    assert became["taken"] > 20


@pytest.mark.parametrize("name", ["partition", "channels", "next_offset", "engine", "sensors"])
def test_a_head_without_one_of_its_fields_is_refused_with_its_name(name):
    parts = snapshot()
    head = unseal("partition-head", 1, parts["head"])
    del head[name]
    parts["head"] = seal("partition-head", 1, head)
    with pytest.raises(CheckpointError, match=name):
        state_of().restore(parts)
    with pytest.raises(CheckpointError, match=name):
        described(parts)
