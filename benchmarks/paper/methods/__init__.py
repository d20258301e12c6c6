"""The methods by name: the paper's eight, Oracle, and what goes beyond the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods import (
    em,
    emmv,
    ens,
    mv,
    noreject,
    oracle,
    own_box,
    rejex,
    ss_repen,
    stability,
    trivial,
    udr,
)
from benchmarks.paper.methods.outcome import ANY, Outcome
from benchmarks.paper.methods.variants import variant

__all__ = ["ANY", "BEYOND", "METHODS", "PAPER", "PROBABLE", "READINGS", "Method", "Outcome"]

Method = Callable[[Cell], Outcome]

PAPER: Final[dict[str, Method]] = {
    "RejEx": rejex.run,
    "SS-Repen": ss_repen.run,
    "Mv": mv.run,
    "Ens": ens.run,
    "Udr": udr.run,
    "Em": em.run,
    "Stability": stability.run,
    "NoReject": noreject.run,
}
"""In the order of the paper's tables; these eight are ranked against each other."""

BEYOND: Final[dict[str, Method]] = {
    "RejEx mid": variant(budget=False, holdout=False, ties="mid"),
    "RejEx budget": variant(budget=True, holdout=False, ties="paper"),
    "RejEx budget mid": variant(budget=True, holdout=False, ties="mid"),
    "RejEx holdout": variant(budget=False, holdout=True, ties="paper"),
    "RejEx holdout mid": variant(budget=False, holdout=True, ties="mid"),
    "RejEx holdout budget": variant(budget=True, holdout=True, ties="paper"),
    "RejEx holdout budget mid": variant(budget=True, holdout=True, ties="mid"),
    "Random": trivial.random,
    "Score margin": trivial.margin,
    "Oracle free": oracle.run_free,
    "Always normal": trivial.always_normal,
    "Reject all": trivial.reject_all,
}

READINGS: Final[dict[str, Method]] = {
    "Em, own box": own_box.run_em,
    "Mv, own box": own_box.run_mv,
    "Unified margin": trivial.unified_margin,
}
"""Other readings of what the paper leaves open; an experiment counts as whole without them."""

PROBABLE: Final[dict[str, Method]] = {
    "Em as probably run": emmv.run_em,
    "Mv as probably run": emmv.run_mv,
}
"""What explains the paper's Em and Mv, if it was so; as little a part of an experiment."""

METHODS: Final[dict[str, Method]] = {
    **PAPER,
    "Oracle": oracle.run,
    **BEYOND,
    **READINGS,
    **PROBABLE,
}
