"""The method in a notebook: one detector is fitted on a table, one learns event by event.

In: a table, or an event as a dict. Out: a verdict for each row, by PyOD's codes, or for each event,
by its name. Open `batch` first (scikit-learn's rules, PyOD's names, pictures), then
`event_by_event` (River's).

>>> from rejex_stream.facade import RejectingStream
>>> RejectingStream("GaussianScorer", contamination=0.1, rate=0.05).predict_one({"flow": 1.0})
'rejected'
"""

from rejex_stream.facade.batch import REJECTED, RejectingDetector
from rejex_stream.facade.event_by_event import RejectingStream

__all__ = ["REJECTED", "RejectingDetector", "RejectingStream"]
