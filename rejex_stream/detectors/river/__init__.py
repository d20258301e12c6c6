"""River's detectors: a model that learns row by row, fed from plain float rows.

In: rows of shape (d,). Out: a score a row, and the model's state as bytes of plain values.
Open `detector` first (recipes, and registry names with what River's manual asks to put before
each); then `models` (rows into models) and `model_state` (how a model is written and read back).
"""

from rejex_stream.detectors.river.detector import (
    RiverDetector,
    RiverScorer,
    named_detector,
    river_detector,
)

__all__ = ["RiverDetector", "RiverScorer", "named_detector", "river_detector"]
