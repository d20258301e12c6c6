"""Labels that teach, behind a guard.

In: verdicts, their rows, and what people answered. Out: what a layer over the same scores would
have said, and whether it may say it. Open :mod:`~rejex_stream.learning.champion_challenger`
first; the layer is in :mod:`~rejex_stream.learning.label_kernel`, and what lets it speak in
:mod:`~rejex_stream.learning.sequential_test`.
"""

from rejex_stream.learning.champion_challenger import (
    Asked,
    ChampionChallenger,
    Learner,
    LearningSpec,
    apply_command,
)
from rejex_stream.learning.label_kernel import LabelKernel
from rejex_stream.learning.sequential_test import SequentialTest

__all__ = [
    "Asked", "ChampionChallenger", "LabelKernel", "Learner", "LearningSpec", "SequentialTest",
    "apply_command",
]  # fmt: skip
