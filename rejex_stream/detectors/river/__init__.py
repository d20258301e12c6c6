"""River's detectors: a model that learns row by row, fed from plain float rows.

In: rows of shape (d,). Out: a score a row, and the model's state as bytes of plain values.
Open `detector.py` first; then `feeds.py` (rows into models), `named.py` (registry names and what
River's manual asks to put before each) and `state.py` (how a model is written and read back).
"""

from rejex_stream.detectors.river.detector import RiverDetector, RiverScorer, river_detector

__all__ = ["RiverDetector", "RiverScorer", "river_detector"]
