"""A row in, a score out: detectors for sensors; PyOD's, fitted on tables; River's, learning; yours.

In: rows of features. Out: a score a row, high = anomalous; no batch changes a bit of it. Recipes,
not fitted models. Open `registry` first (names to recipes); `pyod` fits in a contained way and
hands each class to the file that scores it row by row; `sensor` holds those made for sensors;
`river` learns and is written row by row.

>>> from rejex_stream.detectors import make_detector
>>> make_detector("KNN", n_neighbors=10).name
'pyod:KNN'
"""

from rejex_stream.detectors.pyod import REFUSED
from rejex_stream.detectors.registry import (
    DEFAULT,
    PYOD,
    RIVER,
    SENSOR,
    Detector,
    as_detector,
    make_detector,
)

__all__ = [
    "DEFAULT", "PYOD", "REFUSED", "RIVER", "SENSOR", "Detector", "as_detector", "make_detector",
]  # fmt: skip
