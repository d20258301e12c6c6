"""Everything known about one stream key, and the straight line its events go through."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, pairwise
from math import isfinite
from operator import add, mul
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from rejex_stream.engine.explanation import Explainer
from rejex_stream.engine.incremental_model import IncrementalModel
from rejex_stream.engine.model import BatchModel, Rows, Segment, SegmentResult
from rejex_stream.engine.refit import FitFailed
from rejex_stream.engine.snapshot import pack_array, seal, unpack_array, unseal
from rejex_stream.engine.spec import Decision, EngineSpec
from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.features import FeatureSpec, MissingChannelError, SensorFeatures
from rejex_stream.features.columns import LARGEST, phases_of
from rejex_stream.features.preset import MISSING, RecentRows
from rejex_stream.incidents import (
    ChannelLimits,
    Confirmation,
    IncidentTracker,
    LimitCheck,
    Mute,
    Mutes,
    Noise,
    Plan,
    Plans,
    RestingChannels,
    Run,
    Transition,
    WakeUp,
    limited,
    long_gaps,
)
from rejex_stream.incidents.calendar import runs
from rejex_stream.incidents.limits import NOISE_EVERY
from rejex_stream.protocols import FitExecutor
from rejex_stream.rejection.judge import Judge, Unseen, rejected
from rejex_stream.rejection.token_bucket import TokenBucket
from rejex_stream.rejection.window import Tail
from rejex_stream.types import (
    Command,
    CommandKind,
    CommandReply,
    FloatArray,
    Incident,
    IncidentState,
    Label,
    LimitExcess,
    Reading,
    Reason,
    Verdict,
)

_FORMAT = 2
_NORMAL = Label.NORMAL  # look-up is not free
_NOTHING: Mapping[int, str] = MappingProxyType({})
_NONE_UNSEEN: Mapping[int, Unseen] = MappingProxyType({})
_NO_LIMITS: Mapping[int, Sequence[LimitExcess]] = MappingProxyType({})
_KEPT_MS = 14 * 86_400_000  # of event time, for which an earlier reference is kept
_MOST_WATCHED = 256  # rows that an earlier reference scores at once
_MOST = LARGEST**2  # one value beyond would make whatever is fitted on the row infinite


class StreamSnapshot(NamedTuple):
    """One stream key as bytes, in the two parts that change at different speeds."""

    state: bytes  # window, rows, feature state; changes with every event
    # training rows and seeds of the models; changes when a fit is requested or a model swapped
    model: bytes
    # equal versions of one key hold equal `model` bytes, so the part need not be written again
    model_version: int


class _Waiting(NamedTuple):
    """A row that the interim reference judges once the trusted one has judged those after it."""

    seq: int
    reading: Reading
    row: list[float]
    severity: float | None  # by the trusted one
    muted: str | None


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """How long an earlier reference is kept, and how far rows fit it again."""

    until_ms: int
    adopted: Incident | None  # what ended with it
    ordinary: Annotated[float, msgspec.Meta(ge=0.0, le=1e300)] = 0.0  # evidence, as for a recovery
    n_ordinary: Annotated[int, msgspec.Meta(ge=0)] = 0  # rows since it was last 0


class _State(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    seq: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    window: list[Any]
    sensors: dict[str, list[Any]]
    model: dict[str, Any]
    model_version: int
    judge: dict[str, Any]
    watch: dict[str, Any]
    plans: list[Plan]
    mutes: list[Mute]
    gaps: dict[str, list[Run]]
    noise: dict[str, list[Noise]]
    resting: dict[str, dict[str, WakeUp]]
    interim: bytes | None
    waiting: list[_Waiting]
    earlier: _Kept | None


class _Recipes(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    version: int
    recipes: dict[str, Any]
    tail: list[Any] | None
    cluster: Annotated[float, msgspec.Meta(ge=1)]
    interim: bytes | None


class StreamView(NamedTuple):
    """One stream key as it was at a moment, whatever became of it since."""

    state: Callable[[], bytes]  # encode the parts of a :class:`StreamSnapshot`; on any thread, once
    model: Callable[[], bytes]
    model_version: int  # equal versions of one key have equal `model` bytes


class StreamState:
    """The state of one stream key: features per sensor, model, window."""

    __slots__ = (
        "_allow_nan", "_at_once", "_calendar", "_earlier", "_explainer", "_fast_path",
        "_fast_path_model", "_features", "_gaps", "_has_phases", "_interim", "_judge", "_kept",
        "_limits", "_make_fast_path", "_make_interim", "_mutes", "_noise", "_recent", "_resting",
        "_sensors", "_waiting", "beside", "model", "plans", "seq", "stream_key", "tracker",
    )  # fmt: skip

    def __init__(
        self,
        stream_key: str,
        features: FeatureSpec,
        model: BatchModel | IncrementalModel,
        judge: Judge,
        *,
        tracker: IncidentTracker,
        explainer: Explainer | None = None,
        calendar: Sequence[Plan] = (),
        limits: Sequence[ChannelLimits] = (),
        fast_path: Callable[[Any], Any] | None = None,
        interim: Callable[[IncidentTracker], StreamState] | None = None,
    ) -> None:
        self.stream_key = stream_key
        self.seq = 0
        self.tracker, self._calendar, self.plans = tracker, calendar, Plans()
        self._mutes, self._limits = Mutes(features.channels), LimitCheck(limits, features.channels)
        self._features, self.model, self._judge = features, model, judge
        self._at_once, self._allow_nan = features.is_at_once, model.allow_nan
        self._has_phases = self._at_once and features.preset == "sensor_seasonal"
        self._explainer = explainer
        self._sensors: dict[str, SensorFeatures] = {}
        self._recent: dict[str, RecentRows] = {}  # of sensors whose rows are made at once
        self._gaps: dict[str, list[Run]] = {}  # of sensors that ever lacked a channel
        self._noise: dict[str, list[Noise]] = {}  # of sensors whose rows are made at once
        self._resting = RestingChannels(features.channels, judge.window.capacity)
        # What scores readings that go the straight way; None: none does, or it is not known yet.
        self._fast_path_model: BatchModel | None = None
        # While an incident is held, judges the same rows by those since it began; has none itself.
        self._make_interim, self._interim = interim, cast("StreamState | None", None)
        # Of the readings to come, what siblings say; None: siblings are not looked at.
        self.beside: FloatArray | None = None
        self._waiting: list[_Waiting] = []  # of one that is an interim reference
        # Once that has become the reference: the one before, which stands still.
        self._earlier, self._kept = cast("StreamState | None", None), cast("_Kept | None", None)
        self._make_fast_path = fast_path
        self._fast_path = None if fast_path is None else fast_path(self)  # the native core's

    def _advance(
        self, readings: Sequence[Reading], totals: Sequence[float], verdicts: list[Verdict | None],
        beside: bytes | None,
    ) -> None:  # fmt: skip
        """Judge readings for the native core, which leaves them to Python."""
        if beside is not None:
            self.beside = np.frombuffer(beside).reshape(len(readings), -1)
        for _ in self.steps(readings, totals, verdicts):
            pass

    def _find_fast_path(self) -> BatchModel | None:
        """Return what scores whole readings, where nothing that was said makes more of them."""
        tracker, model = self.tracker, self.model
        if (
            not isinstance(model, BatchModel)
            or not tracker.active
            or tracker.mode is not None
            or (self._calendar or self.plans.all or self._mutes.all or self._limits.any)
            or any(gap.now for own in self._gaps.values() for gap in own)  # else none goes on
            or any(one.is_told for own in self._noise.values() for one in own)
            or self._judge.shares
            or self._earlier is not None
        ):
            return None
        tracker.limit_violations = _NO_LIMITS
        return model

    def steps(
        self, readings: Sequence[Reading], totals: Sequence[float], verdicts: list[Verdict | None]
    ) -> Iterator[int]:
        """Do the same in steps: where the stream shares its credit, a step is a single event.

        It says which reading comes next before that is judged, and so waits for other streams.
        """
        tracker = self.tracker
        if not tracker.active:
            self._drop_earlier()
            if tracker.forget(readings[0], self.seq):
                self._drop_interim(readings[0], self.seq, "hold_off")
                self.model.forget_held()
        if self._calendar or self.plans.all:
            plans = (*self._calendar, *self.plans.all)
            yield from self._steps_among(plans, readings, totals, verdicts)
        else:
            yield from self._steps(readings, totals, verdicts, planned=False)
        if tracker.mode is not None:
            for i, verdict in enumerate(verdicts):
                assert verdict is not None  # all have theirs now
                verdicts[i] = replace(verdict, stream_key=tracker.stream_key, mode=tracker.mode)
        if self._fast_path is not None:
            self._fast_path_model = self._find_fast_path()

    def _steps_among(
        self,
        plans: Sequence[Plan],
        readings: Sequence[Reading],
        totals: Sequence[float],
        verdicts: list[Verdict | None],
    ) -> Iterator[int]:
        for start, stop, planned in runs(plans, self.tracker.stream_key, readings):
            part: list[Verdict | None] = [None] * (stop - start)
            steps = self._steps(readings[start:stop], totals[start:stop], part, planned=planned)
            for at in steps:
                yield start + at
            verdicts[start:stop] = part

    def _steps(
        self,
        readings: Sequence[Reading],
        totals: Sequence[float],
        verdicts: list[Verdict | None],
        *,
        planned: bool,
    ) -> Iterator[int]:
        """Judge readings that are all planned, or all not."""
        seq, tracker = self.seq, self.tracker
        muted = self._mutes.found(readings) if self._mutes.all else _NOTHING
        beyond = self._limits.exceeded(readings, muted) if self._limits.any and not planned else {}
        lasting = dict[int, tuple[LimitExcess, ...]]()
        if self._gaps or not all(map(isfinite, totals)):
            lasting = long_gaps(
                self._gaps, readings, self._features.channels,
                seq=seq, known=self._recent if self._at_once else self._sensors,
                carried=self._features.carry_forward_events,
            )  # fmt: skip
        if self._at_once:
            rows, which = self._rows_at_once(readings, verdicts, lasting)
        else:
            rows, which = self._rows_one_by_one(readings, totals, verdicts, lasting)
        for i, excess in lasting.items():
            if not planned and i not in muted:
                beyond[i] = (*beyond.get(i, ()), *excess)
        tracker.limit_violations = {seq + i: excess for i, excess in beyond.items()}
        self._tell_answers(readings[0])
        stood = [(0, tracker.incident)]  # what was open, from which event on
        yield from self._judge_rows(
            rows, which, readings, verdicts, muted=muted, planned=planned, stood=stood
        )
        self.seq = seq + len(readings)
        if self._interim is not None:
            self._interim.seq = self.seq
            self.tracker.changes += self._interim.take_incidents()
        if planned or len(stood) > 1 or stood[0][1] is not None:
            _mark(verdicts, stood, planned=planned)
        for i, excess in beyond.items():
            verdicts[i] = limited(cast("Verdict", verdicts[i]), excess)

    def _tell_answers(self, reading: Reading) -> None:
        tracker, interim = self.tracker, self._interim
        if tracker.open is not None and not self._is_adopted:
            tracker.publish(reading, self.seq)
        if interim is not None:
            interim.seq = self.seq
            interim._tell_answers(reading)

    @property
    def _is_adopted(self) -> bool:
        """Whether there is a reference made of what is open, the end of which is told next."""
        interim, has_model = self._interim, isinstance(self.model, IncrementalModel)
        if interim is not None:  # else River's models have learnt it at once
            has_model = cast("BatchModel", interim.model).has_model
        return self.tracker.is_adopting and has_model

    def _judge_rows(
        self,
        rows: Rows,
        which: Sequence[int],
        readings: Sequence[Reading],
        verdicts: list[Verdict | None],
        *,
        muted: Mapping[int, str],
        planned: bool,
        stood: list[tuple[int, str | None]],
    ) -> Generator[int]:
        """Judge the readings that have a row, segment by segment."""
        explained, seq = self._explainer is not None, self.seq
        quiet = self.tracker.open is None
        at = followed = 0
        while at < len(rows):
            # What comes next may go by what was said of events without a row before it.
            self._follow(readings, range(followed, which[at]), verdicts, planned=planned)
            followed = which[at]
            if not (quiet or planned) and self._look_at_interim(readings[followed], seq + followed):
                stood.append((followed, self.tracker.incident))
            watched = self._look_at_earlier(rows, at, which, readings, planned=planned)
            judge, tracker, model = self._judge, self.tracker, self.model
            # An answer told of this event is obeyed at the next one, wherever a batch ends.
            adopts = self._interim is not None and tracker.is_adopting
            upto = rows[: at + 1] if adopts and tracker.published_seq == seq + followed else rows
            upto = upto[: at + len(watched)] if watched else upto
            segment = model.next_segment(upto, at, judge, explained=explained, planned=planned)
            owners = which[segment.start : segment.stop]
            if segment.held and stood[-1][1] is None:  # from here on
                quiet = False
                stood.append((owners[0], tracker.incident))
            if not quiet and self._is_adopted and self._interim is None:
                tracker.adopted(readings[owners[0]], seq + owners[0])
                stood.append((owners[0], None))
            judged = SegmentResult(segment.stop)
            if segment.scores is None:
                for i in owners:
                    verdicts[i] = rejected(readings[i], seq + i, Reason.WARM_UP)
                unscored = range(followed, owners[-1] + 1)
                self._follow(readings, unscored, verdicts, planned=planned)
            else:
                judge_segment = self._judge_resting if segment.resting else self._judge_segment
                judged = yield from judge_segment(
                    segment, segment.scores, owners, readings, verdicts,
                    muted=muted, planned=planned, followed=followed,
                )  # fmt: skip
            if judged.transition is not None:
                quiet = False
                stood.append((which[judged.stop - 1] + 1, tracker.incident))
            if segment.held and self._interim is not None:
                self._judge_in_interim(
                    segment, judged, owners, readings, verdicts=verdicts, muted=muted
                )
            model.after_judging(segment, judged, judge)
            last = which[judged.stop - 1]
            if watched and self._weigh_earlier(
                *watched[judged.stop - 1 - at], readings[last], seq + last
            ):
                stood.append((last + 1, None))
            at, followed = judged.stop, last + 1
        if followed < len(readings):
            unscored = range(followed, len(readings))
            self._follow(readings, unscored, verdicts, planned=planned)

    def _look_at_interim(self, reading: Reading, seq: int) -> bool:
        """Before a row that may be held, begin an interim reference or promote it if it is time.

        Where its own scores rise, what goes on has left it behind: one is made of the newest rows.
        """
        tracker, model = self.tracker, self.model
        if self._make_interim is None or not tracker.frozen or not isinstance(model, BatchModel):
            return False
        if model.has_enough_held:
            self._drop_earlier()  # there are two references at most
            self._interim = self._make_interim(tracker.of_interim())
            model.begin_interim(cast("BatchModel", self._interim.model))
        successor, interim = model.successor, self._interim
        if successor is None or interim is None or not successor.ranks_next(interim._judge):
            return False
        tracker.ranks_in_interim(reading.event_time_ms)
        own = interim.tracker
        if own.is_adopting and successor.has_enough_held and own.published_seq != seq:
            own.adopted(reading, seq)
        elif not tracker.is_adopting or tracker.published_seq == seq:
            return False
        elif own.open is None and tracker.renews(interim._judge.window):
            tracker.publish(reading, seq)
        else:
            return self._promote(interim, reading, seq)
        model.hold_newest()
        self._drop_interim(reading, seq, "adopted")
        return False

    def _promote(self, interim: StreamState, reading: Reading, seq: int) -> bool:
        """Make the interim reference the reference; its incident, if any, is the stream's own."""
        told = self.tracker.adopted(reading, seq)
        interim._waiting.clear()
        self._interim = None
        self._exchange(interim, reading, told)
        return True

    def _judge_in_interim(
        self,
        segment: Segment,
        judged: SegmentResult,
        owners: Sequence[int],
        readings: Sequence[Reading],
        *,
        verdicts: list[Verdict | None],
        muted: Mapping[int, str],
    ) -> None:
        """Let the interim reference judge what was held, and drop it where its incident ends.

        As long after a repair as columns look back, a row is unusual by either reference. So each
        waits until none of them is shared: where the trusted one finds the later row usual, what is
        held is about to recover, and the row is no news.
        """
        interim, count = self._interim, judged.stop - segment.start
        assert interim is not None  # who else would judge
        is_over = judged.transition is not None and judged.transition.state is IncidentState.CLOSED
        waiting = interim._waiting
        waiting += [
            _Waiting(
                self.seq + i, readings[i], np.asarray(row).tolist(),
                cast("Verdict", verdicts[i]).severity, muted.get(i),
            )
            for i, row in zip(owners[: count - is_over], segment.rows, strict=False)
        ]  # fmt: skip
        model = cast("BatchModel", interim.model)
        reach = self._features.reach if model.has_model else 0
        if model.has_model and (tail := interim._judge.tail) is not None:
            scores = model.score(np.asarray(segment.rows[:count]))
            for i, score in zip(owners, scores.tolist(), strict=False):
                if isfinite(score):
                    said = cast("Verdict", verdicts[i])
                    verdicts[i] = replace(said, interim_severity=tail(score))
        ready = waiting[: max(0, len(waiting) - reach)]
        interim.tracker.trusted = {
            row.seq: Confirmation(
                min((s for s in (row.severity, last.severity) if s is not None), default=None),
                last.reading,
                last.seq,
            )
            for row, last in zip(ready, waiting[reach:], strict=True)
        }
        del waiting[: len(ready)]
        interim._judge_late(ready)
        if is_over:
            last = owners[count - 1]
            self._drop_interim(readings[last], self.seq + last, "recovered")

    def _judge_late(self, ready: Sequence[_Waiting]) -> None:
        """Judge rows that waited; events without a row are none of its own."""
        for _, run in groupby(enumerate(ready), lambda placed: placed[1].seq - placed[0]):
            part = [row for _, row in run]
            self.seq = part[0].seq
            steps = self._judge_rows(
                np.array([row.row for row in part]), range(len(part)),
                [row.reading for row in part], [None] * len(part),
                muted={i: row.muted for i, row in enumerate(part) if row.muted is not None},
                planned=False, stood=[(0, self.tracker.incident)],
            )  # fmt: skip
            for _ in steps:
                pass

    def _drop_interim(self, reading: Reading, seq: int, ended: str) -> None:
        """Go on without the interim reference, and end what it found."""
        interim, model = self._interim, self.model
        if interim is not None and isinstance(model, BatchModel):
            interim.tracker.end_with(reading, seq, ended)
            self.tracker.changes += interim.take_incidents()
            model.drop_interim()
            self._interim = None

    def _exchange(self, other: StreamState, reading: Reading, told: Incident | None) -> None:
        """Let another reference speak, with what it has open, and keep this one for a fortnight."""
        other.tracker.succeed(self.tracker)
        other._judge.exchange_budget(self._judge)
        cast("BatchModel", other.model).speak_for(cast("BatchModel", self.model))
        for name in ("tracker", "model", "_judge", "_resting"):
            own = getattr(self, name)
            setattr(self, name, getattr(other, name))
            setattr(other, name, own)
        self._earlier, self._fast_path_model, other.seq = other, None, 0
        self._kept = _Kept(reading.event_time_ms + _KEPT_MS, told)
        self.tracker.watch_beside(self._features.reach)
        if self._make_fast_path is not None:
            self._fast_path = self._make_fast_path(self)

    def _drop_earlier(self) -> None:
        """Go on without the reference before."""
        if self._earlier is not None:
            self.model.recipe_version += self._earlier.model.recipe_version + 1
            self._earlier.close()
            self._earlier = self._kept = None
            self.tracker.watch_beside(None)

    def _look_at_earlier(
        self, rows: Rows, at: int, which: Sequence[int], readings: Sequence[Reading], *,
        planned: bool,
    ) -> list[tuple[float, int]]:  # fmt: skip
        """Score rows by an earlier reference, up to where it is forgotten or speaks again.

        Returns the evidence that they fit it after each; empty where there is none.
        """
        if self._kept is not None and readings[which[at]].event_time_ms >= self._kept.until_ms:
            self._drop_earlier()
        earlier, kept = self._earlier, self._kept
        if earlier is None or kept is None or planned:
            return []
        tracker, severity = earlier.tracker, earlier._judge.severity
        ranges = cast("BatchModel", earlier.model).resting
        evidence, found = [(kept.ordinary, kept.n_ordinary)], dict[int, float | None]()
        scores = earlier.model.score(np.asarray(rows[at : at + _MOST_WATCHED]))
        for owner, score in zip(which[at:], scores.tolist(), strict=False):
            (ordinary, n), rare = evidence[-1], severity(score)
            if readings[owner].event_time_ms >= kept.until_ms or ordinary >= tracker.recovery:
                break
            values = readings[owner].values  # a channel at rest has no part in the score
            if any(not low <= values[i] <= high for i, low, high in ranges):
                rare = tracker.max_severity
            if rare is not None:
                ordinary = max(0.0, ordinary + tracker.ordinary - min(rare, tracker.max_severity))
                n = n + 1 if ordinary else 0
            found[self.seq + owner] = rare
            evidence.append((ordinary, n))
        self.tracker.earlier, self.tracker.late = found, {}
        return evidence[1:]

    def _weigh_earlier(self, ordinary: float, n: int, reading: Reading, seq: int) -> bool:
        """Note how far rows fit an earlier reference; let it speak again once they do.

        What the other one has learnt of them leaves its window, as far as an onset may lie back.
        """
        earlier, kept, tracker, judge = self._earlier, self._kept, self.tracker, self._judge
        assert earlier is not None  # or nothing would be watched
        assert kept is not None
        kept.ordinary, kept.n_ordinary = ordinary, n
        if ordinary < earlier.tracker.recovery:
            return False
        if not tracker.frozen:
            n = min(n + self._features.reach, tracker.look_back, len(judge.window) // 4)
            judge.retract([None] * n)
        tracker.end_with(reading, seq, "recovered")
        self.model.forget_held()
        if (told := kept.adopted) is not None:
            told = replace(
                told, position=reading.position, changed_ms=reading.event_time_ms, changed_seq=seq,
                version=told.version + 1,
                ended="adopted" if told.ended == "as_before" else "as_before",
            )  # fmt: skip
            tracker.changes.append(told)
        self._exchange(earlier, reading, told)
        return True

    def _follow(
        self,
        readings: Sequence[Reading],
        which: Sequence[int],
        verdicts: Sequence[Verdict | None],
        *,
        planned: bool,
    ) -> None:
        """Look for the alarm at events without a score: of those, limits alone say something."""
        tracker = self.tracker
        if (tracker.limit_violations or tracker.open is not None) and not (
            tracker.frozen or planned
        ):
            tracker.update_alarm(readings, which, verdicts)

    def _judge_resting(
        self,
        segment: Segment,
        scores: Sequence[float],
        owners: Sequence[int],
        readings: Sequence[Reading],
        verdicts: list[Verdict | None],
        *,
        muted: Mapping[int, str],
        planned: bool,
        followed: int,
    ) -> Generator[int, None, SegmentResult]:
        """Judge a segment, and by their ranges the channels that rest, which have no score."""
        tracker, resting, ranges = self.tracker, self._resting, segment.resting
        resting.per_month = tracker.per_month
        unmuted = [i for i in owners if i not in muted and tracker.is_confirmed(self.seq + i)]
        beyond = tracker.limit_violations
        checked = resting.check(readings, unmuted, ranges, segment.past_wake_ups, self.seq)
        reported = {self.seq + i: checked.unseen[i].channels for i in checked.reported}
        tracker.limit_violations = {**reported, **beyond}
        judged = yield from self._judge_segment(
            segment, scores, owners, readings, verdicts,
            muted=muted, planned=planned, followed=followed, unseen=checked.unseen,
        )  # fmt: skip
        n_judged = judged.stop - segment.start
        if n_judged < len(owners):  # the others are judged again
            unmuted = [i for i in unmuted if i <= owners[n_judged - 1]]
            checked = resting.check(readings, unmuted, ranges, segment.past_wake_ups, self.seq)
        resting.wake_ups |= checked.wake_ups
        tracker.limit_violations = beyond
        return judged

    def _judge_segment(
        self,
        segment: Segment,
        scores: Sequence[float],
        owners: Sequence[int],
        readings: Sequence[Reading],
        verdicts: list[Verdict | None],
        *,
        muted: Mapping[int, str],
        planned: bool,
        followed: int,
        unseen: Mapping[int, Unseen] = _NONE_UNSEEN,
    ) -> Generator[int, None, SegmentResult]:
        """Judge a segment up to where an incident turns; say before it which reading comes next."""
        judge, tracker = self._judge, self.tracker
        n_judged, size, is_due = 0, 1 if judge.shares else len(owners), False
        tracker.severities_without = self._without_named(segment, owners) if segment.held else {}
        extreme: list[int] = []
        while n_judged < len(owners) and not is_due:
            part = owners[n_judged : n_judged + size]
            if judge.shares:
                yield part[0]
            count, found = judge.judge(
                readings, part, scores[n_judged : n_judged + size], verdicts,
                seq=self.seq, epoch=segment.epoch, planned=planned, muted=muted, unseen=unseen,
            )  # fmt: skip
            if found:
                extreme += [n_judged + i for i in found]
            n_judged += count
            is_due = tracker.has_transition(judge.window)
        owners = owners[:n_judged]
        if (explainer := self._explainer) is not None:
            wanted = list[tuple[int, int, Verdict]]()
            for i, owner in enumerate(owners):
                verdict = verdicts[owner]
                assert verdict is not None  # given by judge
                if verdict.label is not _NORMAL and explainer.wants(verdict):
                    wanted.append((i, owner, verdict))
            if wanted:
                self._explain(explainer, segment.rows, wanted, verdicts)
        outliers: Sequence[int] = ()
        if segment.quantile is not None:
            outliers = judge.outlier_positions(segment.quantile, owners, verdicts)
            if extreme or unseen:  # what a channel that rests shows once is no ordinary row either
                found = [i for i, owner in enumerate(owners) if owner in unseen]
                outliers = sorted({*outliers, *extreme, *found})
        if segment.status is not None:
            first = verdicts[owners[0]]
            assert first is not None  # judged
            verdicts[owners[0]] = replace(first, status=segment.status)
        if not (tracker.frozen or planned):
            tracker.update_alarm(readings, range(followed, owners[-1] + (not is_due)), verdicts)
        if tracker.pending_spread:
            last = owners[-1]
            self._tell_spread(
                readings[last], cast("Verdict", verdicts[last]), segment, n_judged - 1
            )
            is_due = False
        transition = self._apply_transition(readings, owners[-1], verdicts) if is_due else None
        return SegmentResult(segment.start + n_judged, outliers, extreme, transition)

    def _without_named(self, segment: Segment, owners: Sequence[int]) -> dict[int, float | None]:
        """Return how rare rows of a held stream are without what its incident was told of."""
        named, explainer = self.tracker.named, self._explainer
        if not named or explainer is None:
            return {}
        scores = explainer.without(segment.rows, self.model, named)
        if scores is None:
            return {}
        severity = self._judge.severity
        return {
            self.seq + i: severity(score)
            for i, score in zip(owners, scores[:, 0].tolist(), strict=True)
        }

    def _tell_spread(self, reading: Reading, verdict: Verdict, segment: Segment, at: int) -> None:
        """Tell of the channel without which a row is the least unusual, beside those named."""
        explainer, tracker = self._explainer, self.tracker
        assert explainer is not None  # who else would have found it
        others = explainer.others(tracker.named)
        channel = others[0]
        scores = explainer.without(segment.rows[at : at + 1], self.model, tracker.named, others)
        if scores is not None:
            channel = others[int(np.argmin(np.nan_to_num(scores[0], nan=np.inf)))]
        tracker.tell_spread(reading, verdict, channel)

    def _apply_transition(
        self, readings: Sequence[Reading], last: int, verdicts: list[Verdict | None]
    ) -> Transition:
        verdict = verdicts[last]
        assert verdict is not None  # given by judge
        transition = self.tracker.apply_transition(readings[last], verdict)
        if transition.onset:
            verdicts[last] = replace(verdict, held=True, incident=self.tracker.incident)
        return transition

    def _rows_one_by_one(
        self,
        readings: Sequence[Reading],
        totals: Sequence[float],
        verdicts: list[Verdict | None],
        lasting: dict[int, tuple[LimitExcess, ...]],
    ) -> tuple[Rows, list[int]]:
        rows: list[list[float]] = []
        which: list[int] = []
        seq, sensors = self.seq, self._sensors
        for i, reading in enumerate(readings):
            beside = [] if self.beside is None else self._take_beside(1)[0].tolist()
            sensor = sensors.get(reading.sensor)
            if sensor is None:
                sensor = sensors[reading.sensor] = self._features.start()
            if self._noise:
                self._add_quiet(lasting, reading.sensor, (i,))
            reason = Reason.WARM_UP
            try:
                row = sensor.extract(reading.event_time_ms, reading.values, totals[i])
            except MissingChannelError:
                row, reason = None, Reason.UNSCORABLE
            if (seq + i + 1) % NOISE_EVERY == 0:
                self._look_at_noise(reading.sensor, seq + i)
            if row is not None:
                row += beside
                if not reduce(add, map(mul, row, row)) <= _MOST:  # nor where nan
                    row, reason = None, Reason.UNSCORABLE
            if row is None:
                verdicts[i] = rejected(reading, seq + i, reason)
                continue
            rows.append(row)
            which.append(i)
        return rows, which

    def _take_beside(self, count: int) -> FloatArray:
        assert self.beside is not None  # or nobody would ask
        found, self.beside = self.beside[:count], self.beside[count:]
        return found

    def _start_recent(self, sensor: str) -> RecentRows:
        found = self._recent[sensor] = self._features.start_recent(partial=self._allow_nan)
        return found

    def _look_at_noise(self, name: str, seq: int) -> None:
        """Look at the noise of a sensor with the event `seq`; the native core asks for it, too."""
        found = (self._recent.get(name) or self._sensors[name]).noise()
        own = self._noise.setdefault(name, [Noise() for _ in found]) if found else []
        for one, noise in zip(own, found, strict=True):
            one.look(noise, seq, self._judge.window.capacity)
            if one.is_told:
                self._fast_path_model = None

    def _add_quiet(
        self, lasting: dict[int, tuple[LimitExcess, ...]], name: str, at: Sequence[int]
    ) -> None:
        """Add the channels of a sensor whose noise has gone to what is said of its events `at`."""
        for j, one in enumerate(self._noise.get(name, ())):
            if one.is_told:
                excess = one.excess(self._features.measured[j])
                lasting.update((i, (*lasting.get(i, ()), excess)) for i in at)

    def _rows_at_once(
        self,
        readings: Sequence[Reading],
        verdicts: list[Verdict | None],
        lasting: dict[int, tuple[LimitExcess, ...]],
    ) -> tuple[Rows, list[int]]:
        """Return the same, made for many readings of a sensor in one go; add what has no noise."""
        of_sensor, seq = dict[tuple[str, int], list[int]](), self.seq
        for i, reading in enumerate(readings):  # up to where its noise is looked at
            of_sensor.setdefault((reading.sensor, (seq + i) // NOISE_EVERY), []).append(i)
        beside = None if self.beside is None else self._take_beside(len(readings))
        if self._has_phases:
            phases = phases_of([reading.event_time_ms for reading in readings])
            beside = phases if beside is None else np.concatenate((phases, beside), axis=1)
        made: list[FloatArray] = []
        which: list[int] = []
        for (name, _), at in of_sensor.items():
            sensor = self._recent.get(name) or self._start_recent(name)
            self._add_quiet(lasting, name, at)
            rows, found = sensor.extract([readings[i].values for i in at])
            if beside is not None:
                made_of = [i for i, row in zip(at, found, strict=True) if row >= 0]
                rows = np.concatenate((rows, beside[made_of]), axis=1)
            if (seq + at[-1] + 1) % NOISE_EVERY == 0:
                self._look_at_noise(name, seq + at[-1])
            # Nan compares false; sums over a row's squares stay finite below.
            size = np.abs(rows)
            if len(rows) == len(at) and size.max() <= LARGEST:
                if len(readings) == 1:  # a list is cheaper from here on
                    return rows.tolist(), at
                which += at
                made.append(rows)
                continue
            scorable = np.all((size <= LARGEST) | (self._allow_nan & np.isnan(rows)), axis=1)
            for i, row in zip(at, found, strict=True):
                if row >= 0 and scorable[row]:
                    which.append(i)
                    continue
                reason = Reason.UNSCORABLE if row >= 0 or row == MISSING else Reason.WARM_UP
                verdicts[i] = rejected(readings[i], seq + i, reason)
            made.append(rows[scorable])
        if len(made) <= 1:
            return made[0] if made else [], which
        order = np.argsort(which)
        return np.concatenate(made)[order], [which[i] for i in order.tolist()]

    def _explain(
        self,
        explainer: Explainer,
        rows: Rows,
        wanted: Sequence[tuple[int, int, Verdict]],
        verdicts: list[Verdict | None],
    ) -> None:
        """Add evidence to verdicts, each with its place among the rows and in the call."""
        age, model, stands = self.model.age_events(), self.model, self.tracker.frozen
        explained = explainer.explain(
            [verdict for _, _, verdict in wanted],
            [rows[i] for i, _, _ in wanted],
            model,
            [
                age if (verdict.held and stands) or verdict.planned else age + i
                for i, _, verdict in wanted
            ],
        )
        for (_, owner, _), verdict in zip(wanted, explained, strict=True):
            verdicts[owner] = verdict

    def decide(
        self,
        decision: Decision,
        calendar: Sequence[Plan],
        explainer: Explainer | None,
        bucket: TokenBucket | None,
    ) -> None:
        """Judge, hold and explain in another way from the next reading on."""
        self._fast_path_model = None
        self._judge.set_policy(decision.policy, bucket)
        self.tracker.apply_settings(decision.hold, decision.alarms)
        self._calendar, self._explainer = calendar, explainer
        self._limits = LimitCheck(decision.limits, self._features.channels)
        if (other := self._interim or self._earlier) is not None:
            other.decide(decision.unbudgeted, (), explainer, None)

    def command(self, command: Command) -> CommandReply | None:
        """Apply what a person says, from the next reading on; ``None``: nothing here is meant."""
        self._fast_path_model = None
        if command.kind in (CommandKind.MUTE, CommandKind.CANCEL):
            reply = self._mutes.command(command)
            if reply is not None:
                return reply
        if command.kind in (CommandKind.PLANNED, CommandKind.CANCEL):
            return self.plans.command(command)
        reply = self.tracker.command(command)
        if reply is None and self._interim is not None:
            return self._interim.command(command)
        if self.tracker.is_adopting and isinstance(self.model, IncrementalModel):
            self.model.adopt_held(self._judge)
        return reply

    def copy_commands_from(self, other: StreamState) -> None:
        """Know what people said of the stream in another of its modes."""
        self.plans = Plans(other.plans.all)
        self._mutes = Mutes(self._features.channels, other._mutes.all)

    @property
    def credit(self) -> list[Any] | None:
        """What its budget of rejections has left, where it has one that holds."""
        credit: list[Any] | None = self._judge.state()["credit"]
        return credit

    @credit.setter
    def credit(self, left: list[Any]) -> None:
        self._judge.restore({"credit": left, "constant": False})

    def take_incidents(self) -> list[Incident]:
        """Return what has changed since the last call, in the order of the events."""
        changes, self.tracker.changes = self.tracker.changes, []
        return changes

    def forget(self, sensor: str) -> None:
        """Forget the past values of a sensor; the model it shared with others stays."""
        self._sensors.pop(sensor, None)
        self._recent.pop(sensor, None)
        self._gaps.pop(sensor, None)
        self._noise.pop(sensor, None)
        self._resting.wake_ups.pop(sensor, None)
        if (other := self._interim or self._earlier) is not None:
            other.forget(sensor)

    def close(self) -> None:
        """Give up background work."""
        self.model.close()
        if self._earlier is not None:
            self._earlier.close()

    def rows_ready(self) -> int:
        """Return how many rows, at least, can be scored before a fit has to be waited for."""
        ready = self.model.rows_ready()
        return ready if self._earlier is None else min(ready, self._earlier.model.rows_ready())

    def view(self) -> StreamView:
        """Take the state as it is now, to be encoded later: copies alone. O(window + rows)."""
        key, version = self.stream_key, self.model.recipe_version
        other = self._interim or self._earlier
        interim = None if other is None else other.view()
        version += 0 if interim is None else interim.model_version
        scores, model = self._judge.window.scores(), self.model.state()
        recipes, tail = self.model.recipes(), self._judge.tail
        taken = {
            "key": key,
            "seq": self.seq,
            "model_version": version,
            "sensors": {
                name: kept.snapshot() for name, kept in (self._sensors or self._recent).items()
            },
            "judge": self._judge.state(),
            "watch": self.tracker.state(),
        }
        structs = {
            "plans": self.plans.all, "mutes": self._mutes.all, "gaps": self._gaps,
            "noise": self._noise, "resting": self._resting.wake_ups, "waiting": self._waiting,
            "earlier": self._kept,
        }  # fmt: skip
        taken |= msgspec.to_builtins(structs)

        def state() -> bytes:
            taken["window"], taken["model"] = pack_array(np.array(scores)), model()
            taken["interim"] = None if interim is None else interim.state()
            return seal("stream-state", _FORMAT, taken)

        def recipe() -> bytes:
            parts = {
                "key": key,
                "version": version,
                "recipes": recipes(),
                "tail": None if tail is None else pack_array(np.array(tail.ordered)),
                "cluster": 1.0 if tail is None else tail.cluster,
                "interim": None if interim is None else interim.model(),
            }
            return seal("stream-model", _FORMAT, parts)

        return StreamView(state, recipe, version)

    def snapshot(self) -> StreamSnapshot:
        """Return the state as bytes. O(window + rows)."""
        view = self.view()
        return StreamSnapshot(view.state(), view.model(), view.model_version)

    def restore(self, snapshot: StreamSnapshot) -> None:
        """Take over :meth:`snapshot` into this fresh state."""
        unsealed = unseal("stream-state", _FORMAT, snapshot.state)
        recipes_unsealed = unseal("stream-model", _FORMAT, snapshot.model)
        try:
            state = msgspec.convert(unsealed, _State)
            recipes = msgspec.convert(recipes_unsealed, _Recipes)
            if not state.key == recipes.key == self.stream_key:
                raise CheckpointError(
                    f"The snapshot is one of stream {state.key!r}, not {self.stream_key!r}: "
                    "give every key its own."
                )
            if state.model_version != recipes.version:
                raise CheckpointError(
                    f"The two parts of the snapshot of stream {self.stream_key!r} were not written "
                    f"together (model {recipes.version}, state {state.model_version}): {WAY_OUT}."
                )
            self.seq = state.seq
            window = unpack_array(state.window)
            if window.ndim != 1 or len(window) > self._judge.window.capacity:
                raise ValueError(f"a window of shape {window.shape}")
            self._judge.replace_window(window.tolist())
            self._judge.restore(state.judge)
            self.tracker.restore(state.watch)
            if recipes.tail is not None:
                self._judge.tail = Tail.of(unpack_array(recipes.tail).tolist(), recipes.cluster)
            if any(len(own) != len(self._features.channels) for own in state.gaps.values()):
                raise ValueError(f"gaps of other channels than {self._features.channels}")
            if any(len(own) != len(self._features.measured) for own in state.noise.values()):
                raise ValueError(f"noise of other channels than {self._features.measured}")
            self._gaps, self._resting.wake_ups = state.gaps, state.resting
            self._noise = state.noise
            self._waiting = state.waiting
            width = {(len(self._features.names), len(self._features.channels))}
            if {(len(row.row), len(row.reading.values)) for row in state.waiting} - width:
                raise ValueError("rows of other features wait")
            self.plans = Plans(state.plans)
            self._mutes = Mutes(self._features.channels, state.mutes)
            for name, kept in state.sensors.items():
                if self._features.is_at_once:
                    self._start_recent(name).restore(kept)
                else:
                    self._sensors[name] = self._features.start()
                    self._sensors[name].restore(kept)
            self.model.restore(state.model, recipes.recipes)
            self.model.recipe_version = recipes.version
            self._restore_other(state.interim, recipes.interim, state.earlier)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"The snapshot of stream {self.stream_key!r} does not fit this version "
                f"({type(error).__name__}: {error}): {WAY_OUT}."
            ) from error

    def _restore_other(self, state: bytes | None, model: bytes | None, kept: _Kept | None) -> None:
        """Take over an interim reference, or an earlier one that is kept."""
        if state is None and model is None and kept is None:
            return
        own, make = self.model, self._make_interim
        is_beside = kept is not None or self.tracker.frozen
        if state is None or model is None or make is None or not is_beside:
            raise ValueError("another reference beside nothing")
        other = make(self.tracker.of_interim())
        other.restore(StreamSnapshot(state, model, 0))
        if kept is not None and not cast("BatchModel", other.model).has_model:
            raise ValueError("an earlier reference without a model")
        own.recipe_version -= other.model.recipe_version
        if kept is None:
            self._interim = other
            cast("BatchModel", own).successor = cast("BatchModel", other.model)
        else:
            self._earlier, self._kept = other, kept
            self.tracker.watch_beside(self._features.reach)


def _mark(
    verdicts: list[Verdict | None], stood: Sequence[tuple[int, str | None]], *, planned: bool
) -> None:
    """Mark verdicts of events without a score by what was open when they came."""
    for (start, incident), (stop, _) in pairwise([*stood, (len(verdicts), None)]):
        for i in range(start, stop):
            verdict = verdicts[i]
            if verdict is not None and verdict.score is None and (incident or planned):
                verdicts[i] = replace(
                    verdict, held=incident is not None, planned=planned, incident=incident
                )


def resting_in(kept: StreamSnapshot) -> Iterator[int]:
    """Yield, of a stream that is not in memory, the channels that its model does not score."""
    recipes = unseal("stream-model", _FORMAT, kept.model)["recipes"]
    yield from (channel for channel, _, _ in recipes.get("resting", ()))


def credit_in(kept: StreamSnapshot) -> list[Any] | None:
    """Return the credit that a stream knows which is not in memory; ``None``: of none."""
    unsealed = unseal("stream-state", _FORMAT, kept.state)
    try:
        credit: list[Any] | None = msgspec.convert(unsealed, _State).judge["credit"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The snapshot of a stream is none ({type(error).__name__}: {error}): {WAY_OUT}."
        ) from error
    return credit


def new_model(
    spec: EngineSpec,
    stream_key: str,
    tracker: IncidentTracker,
    executor: FitExecutor,
    on_failure: Callable[[FitFailed], None],
) -> BatchModel | IncrementalModel:
    """Return the model of a stream that begins, of either kind."""
    if spec.is_batch:
        return BatchModel(spec, stream_key, tracker, executor, on_failure)
    return IncrementalModel(spec, stream_key, tracker)
