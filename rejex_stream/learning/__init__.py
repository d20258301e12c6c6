"""Labels that teach, behind a guard.

In: verdicts, their rows, and what people answered. Out: what a layer over the same scores would
have said, and whether it may say it. Open :mod:`~rejex_stream.learning.duel` first; the layer is in
:mod:`~rejex_stream.learning.mass`, what lets it speak in :mod:`~rejex_stream.learning.trial`, and
what a stream of a pipeline has of it in :mod:`~rejex_stream.learning.learner`.
"""

from rejex_stream.learning.duel import Asked, Duel
from rejex_stream.learning.learner import Learner, LearningSpec, obey
from rejex_stream.learning.mass import LabelMass
from rejex_stream.learning.trial import Trial

__all__ = ["Asked", "Duel", "LabelMass", "Learner", "LearningSpec", "Trial", "obey"]
