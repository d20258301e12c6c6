"""The model of one stream key that learns row by row: a row is scored, then learnt."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np

from rejex_stream.engine.model import Count, HeldState, RowBuffer, Rows, Segment, SegmentResult
from rejex_stream.engine.packed_rows import RowShape
from rejex_stream.engine.refit import derive_seed
from rejex_stream.engine.snapshot import pack_array, unpack_array
from rejex_stream.engine.spec import EngineSpec
from rejex_stream.incidents import IncidentTracker, Transition
from rejex_stream.incidents.thresholds import is_mixed
from rejex_stream.protocols import IncrementalDetector, IncrementalScorer
from rejex_stream.rejection.judge import Judge
from rejex_stream.types import FloatArray, IncidentState, Status

_KNOWN_ROWS = 256  # what the model is remembered to have seen, for evidence


class _IncrementalState(msgspec.Struct, forbid_unknown_fields=True):
    rows_seen: Count
    model: bytes
    known: list[Any]
    held: HeldState
    waiting: list[Any]
    first: list[Any] | None


class IncrementalModel:
    """An incremental detector: a row is scored, then learnt; its first scores are dropped.

    What is under suspicion waits to be learnt until it is cleared of it. The rows of its first half
    window are kept until they were asked whether they are of one kind.
    """

    allow_nan = False

    def __init__(self, spec: EngineSpec, stream_key: str, tracker: IncidentTracker) -> None:
        self._detector = detector = cast("IncrementalDetector", spec.detector)
        self._names, self._window = spec.features.names, spec.window
        self._tested = list(spec.features.levels)  # columns that tell the first rows apart
        seed = derive_seed(spec.seed, stream_key, 0)
        self._scorer: IncrementalScorer = detector.start(self._names, seed=seed)
        self._warm_until = detector.warm_up_events
        shape = RowShape(len(self._names), len(self._names))
        self._known = RowBuffer(_KNOWN_ROWS, shape)
        self._tracker = tracker
        self._waiting: deque[FloatArray] = deque()
        self._held = RowBuffer(self._window, shape)
        self._n_first = self._window // 2
        self._asked_at = max(self._n_first, detector.warm_up_events)  # with a row that has a score
        self._first: RowBuffer | None = RowBuffer(self._n_first, shape)
        self.rows_seen = self.fast_path_until = 0
        """Rows learnt, and those that wait for it; and up to where nothing but scores is due."""
        self.recipe_version = 0

    def next_segment(
        self,
        rows: Rows,
        start: int,
        judge: Judge,
        *,
        explained: bool = False,
        planned: bool = False,
    ) -> Segment:
        """Score rows from `start` on, up to where its scores begin to count or its rows are told.

        With `explained` the caller may ask for other scores of a row that it just judged: each is
        learnt only after that, as where somebody watches. Else they are learnt at once.
        """
        if explained or planned or self._tracker.active:
            return self._next_row(rows, start, judge, planned=planned)
        stop, seen = len(rows), self.rows_seen
        dropped = seen < self._warm_until
        if dropped:
            stop = min(stop, start + self._warm_until - seen)
        if self._first is not None and seen < self._asked_at:
            stop = min(stop, start + self._asked_at - seen)
        X = np.array(rows[start:stop], dtype=np.float64)
        status = self._status(X)
        score_one, learn_one = self._scorer.score_one, self._scorer.learn_one
        scores: list[float] = []
        for x in X:
            scores.append(score_one(x))
            learn_one(x)
        self._known.extend(X)  # so that explaining may begin with any row
        self.rows_seen += len(X)
        if dropped:
            return Segment(start, stop, X, None, -1, is_training=False)
        return Segment(start, stop, X, scores, 0, status=status, is_training=False)

    def _status(self, X: FloatArray) -> Status | None:
        """Remember the first rows; return what is said where these begin, if they are mixed."""
        first, seen = self._first, self.rows_seen
        if first is None:
            return None
        if seen < self._n_first and len(X):
            first.extend(X[: self._n_first - seen])
        if self._asked_at >= seen + len(X):
            return None
        self._first = None
        mixed = is_mixed(first.last(self._n_first)[:, self._tested])
        return Status.WARM_UP_MIXED if mixed else None

    def _next_row(self, rows: Rows, start: int, judge: Judge, *, planned: bool) -> Segment:
        """Score a row that is learnt only once it is judged, so that the model can be asked."""
        tracker = self._tracker
        x = np.array(rows[start], dtype=np.float64)
        held = tracker.frozen and not tracker.is_adopting  # it has learnt what was held back
        learns = not (held or planned)
        if learns:
            tracker.maybe_remeasure(self.rows_seen, judge.window)
        scores, epoch = (self._scorer.score_one(x),), 0
        counts = self.rows_seen >= self._warm_until
        return Segment(
            start,
            start + 1,
            x[None],
            scores if counts else None,
            epoch if counts else -1,
            status=self._status(x[None]) if learns else None,
            held=held and not planned,
            is_training=learns,
        )

    def after_judging(self, segment: Segment, judged: SegmentResult, judge: Judge) -> None:
        """Take in what was judged of a segment: what is under suspicion waits."""
        if segment.held:
            self._held.extend(segment.rows)
        elif segment.is_training:
            self._waiting.extend(np.asarray(segment.rows))
            self.rows_seen += len(segment.rows)
        else:
            return
        if judged.transition is not None:
            self._apply_transition(judged.transition, judge)
        while len(self._waiting) > len(self._tracker.suspect_events):
            self._learn(self._waiting.popleft())

    def _learn(self, x: FloatArray) -> None:
        self._scorer.learn_one(x)
        self._known.extend(x[None])

    def _apply_transition(self, transition: Transition, judge: Judge) -> None:
        if transition.onset:
            judge.retract([s.evicted for s in reversed(transition.onset) if s.entered])
            self.rows_seen -= len(self._waiting)
            self._held.extend(np.array(self._waiting))
            self._waiting.clear()
        elif transition.state is IncidentState.ADOPTING:
            self.adopt_held(judge)
        elif transition.state is IncidentState.CLOSED:
            self._held.clear()

    def adopt_held(self, judge: Judge) -> None:
        """Learn the rows held back; the window begins with the scores they had before that.

        The first of them are dropped, as those of a new model are.
        """
        rows = self._held.last(self._window)
        self._held.clear()
        scores = []
        for x in rows:
            scores.append(self._scorer.score_one(x))
            self._learn(x)
        judge.replace_window(scores[self._detector.warm_up_events :])
        missing = max(0, self._detector.warm_up_events - len(rows))
        self.rows_seen += len(rows)
        self._warm_until = max(self._warm_until, self.rows_seen + missing)

    def forget_held(self) -> None:
        """Drop the rows held back: nothing is held any more."""
        self._held.clear()

    def rows_ready(self) -> int:
        """Return how many rows can be scored without a wait: there is none."""
        return sys.maxsize

    def score(self, X: FloatArray) -> FloatArray:
        """Score other rows with the model as it stands, shape (m, d) to (m,)."""
        return np.array([self._scorer.score_one(x) for x in X])

    def score_without(self, X: FloatArray, groups: Any) -> None:  # noqa: ANN401
        """Return nothing: its models score whole rows."""

    given_others = score_without

    def medians(self) -> FloatArray:
        """Return the medians of the last rows learnt, shape (d,)."""
        return np.median(self._known.last(_KNOWN_ROWS), axis=0)

    def age_events(self) -> int:
        """Return how many rows have been learnt."""
        return self.rows_seen

    def close(self) -> None:
        """Nothing runs in the background."""

    def state(self) -> Callable[[], dict[str, Any]]:
        """Take what changes with every row as it is now; the model's own part is encoded here."""
        rows_seen, model = self.rows_seen, self._scorer.state()
        known = self._known.last(_KNOWN_ROWS)
        waiting = np.array(self._waiting).reshape(len(self._waiting), len(self._names))
        held, warm_until = self._held.last(self._window), self._warm_until
        first = None if self._first is None else self._first.last(self._n_first)
        return lambda: {
            "rows_seen": rows_seen,
            "model": model,
            "known": pack_array(known),
            "held": {"origin": warm_until, "rows": pack_array(held)},
            "waiting": pack_array(waiting),
            "first": None if first is None else pack_array(first),
        }

    def recipes(self) -> Callable[[], dict[str, Any]]:
        """Return nothing: an incremental model has no training rows."""
        return dict

    def restore(self, state: dict[str, Any], recipes: dict[str, Any]) -> None:
        """Take over a state."""
        kept = msgspec.convert(state, _IncrementalState)
        waiting = self._rows_of(kept.waiting, self._tracker.look_back)
        known = self._rows_of(kept.known, _KNOWN_ROWS)
        if len(known) != min(kept.rows_seen - len(waiting), _KNOWN_ROWS):
            raise ValueError(f"known rows of shape {known.shape} after {kept.rows_seen} rows")
        self.rows_seen = kept.rows_seen
        self._known.extend(known)
        self._waiting.extend(waiting)
        if kept.first is None:  # asked
            self._first = None
        elif self._first is not None:
            first = self._rows_of(kept.first, self._n_first)
            if len(first) != min(kept.rows_seen, self._n_first):
                raise ValueError(f"{len(first)} first rows after {kept.rows_seen}")
            self._first.extend(first)
        self._warm_until = kept.held.origin
        self._held.extend(self._rows_of(kept.held.rows, sys.maxsize))
        self._scorer = self._detector.restore(self._names, kept.model)

    def _rows_of(self, packed: list[Any], most: int) -> FloatArray:
        rows = unpack_array(packed)
        if rows.shape[1:] != (len(self._names),) or len(rows) > most:
            raise ValueError(f"known rows of shape {rows.shape}")
        return rows
