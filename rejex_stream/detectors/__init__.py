"""Detectors: PyOD's, fitted on tables of rows; River's, learning row by row; and yours.

>>> from rejex_stream.detectors import make_detector
>>> make_detector("KNN", n_neighbors=10).name
'pyod:KNN'
"""

from rejex_stream.detectors.pyod import REFUSED
from rejex_stream.detectors.registry import PYOD, RIVER, Detector, as_detector, make_detector

__all__ = ["PYOD", "REFUSED", "RIVER", "Detector", "as_detector", "make_detector"]
