"""The deterministic core: readings in, verdicts out, state as bytes.

Three laws, each a property test:

1. ``process(a) + process(b) == process(a + b)`` for every cut: batching changes speed only.
2. Fits are requested, needed and swapped at event counts, never at times.
3. Snapshot, crash, restore and silent replay give the same verdicts as no crash.

There is no clock, no thread, no file and no log in here; the one effect the engine may ask for is
a fit, through the executor it is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field

from rejex_stream.arguments import check_window
from rejex_stream.checkpoint import environment, seal, unseal
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.evidence import Explainer
from rejex_stream.features import FeatureSpec
from rejex_stream.judge import Judge
from rejex_stream.model import BatchModel, FitFailed, IncrementalModel
from rejex_stream.policy import RejectionPolicy
from rejex_stream.protocols import BatchDetector, FitExecutor, IncrementalDetector
from rejex_stream.refit import RefitSchedule, derive_seed
from rejex_stream.rejection import RejectionBand
from rejex_stream.stream import StreamSnapshot, StreamState
from rejex_stream.types import Reading, Verdict

__all__ = ["Engine", "EngineSpec"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything that decides a verdict, besides the readings.

    Parameters
    ----------
    detector
        A batch or an incremental recipe (:func:`rejex_stream.detectors.make_detector`).
    features
        Channels and the features made of them.
    policy
        γ and the tolerance or the review budget.
    window
        n, reference scores of a full window.
    schedule
        When a batch detector is refitted; an incremental one has no use for it.
    seed
        Root of every seed.
    evidence
        Whether anomalies and ambiguous events say which channels speak; one more score per
        channel for each of them.

    Raises
    ------
    ConfigError
        If the full window can never say one of the labels, or the schedule does not fit it.
    """

    detector: BatchDetector | IncrementalDetector
    features: FeatureSpec
    policy: RejectionPolicy
    window: int = 2000
    schedule: RefitSchedule = field(default_factory=RefitSchedule)
    seed: int = 0
    evidence: bool = False

    def __post_init__(self) -> None:
        check_window(self.window)
        if not isinstance(self.detector, BatchDetector | IncrementalDetector):
            raise ConfigError(
                f"{self.detector!r} is not a detector: make one with "
                "rejex_stream.detectors.make_detector, or give it the methods of "
                "BatchDetector or IncrementalDetector."
            )
        self.policy.require(self.window)
        if self.is_batch:
            self.schedule.require(self.window)

    @property
    def is_batch(self) -> bool:
        """Whether models are fitted and swapped, rather than learnt row by row."""
        return isinstance(self.detector, BatchDetector)

    @property
    def band(self) -> RejectionBand:
        """The rejection band of a full window."""
        return self.policy.band(self.window)

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints give equal verdicts on equal readings; a snapshot carries it."""
        parts = (
            self.detector, self.features, self.policy, self.window, self.seed, self.evidence
        )  # fmt: skip
        text = repr((*parts, self.schedule) if self.is_batch else parts)
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


class Engine:
    """Scores, ranks and judges the readings of any number of stream keys.

    Parameters
    ----------
    spec
        What decides a verdict.
    executor
        Where fits run (:mod:`rejex_stream.executors`); unused by incremental detectors.
    idle
        Where streams that have not been heard of for long are kept as bytes, e.g. a dict or a
        disk-backed mapping; they come back unchanged with their next event.
    max_live_streams
        How many streams stay in memory; the one unheard of for longest leaves first.

    Examples
    --------
    >>> from rejex_stream.detectors import make_detector
    >>> from rejex_stream.executors import InlineExecutor
    >>> from rejex_stream.types import Position
    >>> spec = EngineSpec(
    ...     make_detector("HBOS"), FeatureSpec(("flow",)), RejectionPolicy(0.1, tolerance=4),
    ...     window=100, schedule=RefitSchedule(first_fit_events=200, refit_every_events=None),
    ... )
    >>> engine = Engine(spec, InlineExecutor())
    >>> values = [float(i % 17) for i in range(400)] + [99.0]
    >>> readings = [
    ...     Reading("pump", "pump", 1000 * i, (value,), Position("flow", 0, i))
    ...     for i, value in enumerate(values)
    ... ]
    >>> verdicts = engine.process(readings)
    >>> str(verdicts[0].label), str(verdicts[0].reason)
    ('rejected', 'warm_up')
    >>> str(verdicts[-1].label), verdicts[-1].rank, verdicts[-1].window_len
    ('anomaly', 97, 100)
    """

    def __init__(
        self,
        spec: EngineSpec,
        executor: FitExecutor,
        *,
        idle: MutableMapping[str, StreamSnapshot] | None = None,
        max_live_streams: int | None = None,
    ) -> None:
        if max_live_streams is not None and (max_live_streams < 1 or idle is None):
            raise ConfigError(
                f"max_live_streams = {max_live_streams} needs a mapping `idle` to put streams "
                "into, and must be at least 1."
            )
        self.spec = spec
        self._executor = executor
        self._live: dict[str, StreamState] = {}  # in order of last use
        self._idle: MutableMapping[str, StreamSnapshot] = {} if idle is None else idle
        self._max_live = max_live_streams
        self._failures: list[FitFailed] = []

    def process(self, readings: Sequence[Reading]) -> list[Verdict]:
        """Return one verdict per reading, in the same order.

        Readings of one key must come in their order; keys may be mixed at will.
        """
        by_key: dict[str, list[int]] = {}
        for i, reading in enumerate(readings):
            at = by_key.get(reading.stream_key)
            if at is None:
                by_key[reading.stream_key] = [i]
            else:
                at.append(i)
        if len(by_key) == 1:
            (key,) = by_key
            verdicts = self._stream(key).advance(readings)
        else:
            verdicts = [None] * len(readings)  # type: ignore[list-item] # filled below
            for key, at in by_key.items():
                for i, verdict in zip(
                    at, self._stream(key).advance([readings[i] for i in at]), strict=True
                ):
                    verdicts[i] = verdict
        self._make_room()
        return verdicts

    def take_failures(self) -> list[FitFailed]:
        """Return the fits that failed since the last call, for the shell to log and count."""
        failures, self._failures = self._failures, []
        return failures

    def streams(self) -> list[str]:
        """Return the keys of all streams, in memory or idle."""
        return [*self._live, *self._idle]

    def evict(self, stream_key: str) -> None:
        """Move one stream to `idle`; its next event brings it back unchanged."""
        state = self._live.pop(stream_key)
        self._idle[stream_key] = state.snapshot()
        state.close()

    def snapshot_stream(self, stream_key: str) -> StreamSnapshot:
        """Return one stream as bytes, for a host that keeps state per key itself."""
        if stream_key in self._live:
            return self._live[stream_key].snapshot()
        return self._idle[stream_key]

    def restore_stream(self, stream_key: str, snapshot: StreamSnapshot) -> None:
        """Take over one stream from :meth:`snapshot_stream` of an engine with an equal spec."""
        if stream_key in self._live:
            self._live.pop(stream_key).close()
        self._idle[stream_key] = snapshot
        self._stream(stream_key)

    def snapshot(self) -> bytes:
        """Return all streams as sealed bytes: rows, windows and seeds; no pickled models."""
        streams = {key: list(self.snapshot_stream(key)) for key in self.streams()}
        return seal("engine", _FORMAT, [self.spec.fingerprint, environment(), streams])

    def restore(self, blob: bytes, *, accept_environment: bool = False) -> None:
        """Take over all streams of :meth:`snapshot`; what this engine held before is dropped.

        Models are fitted again from their rows and seeds. That repeats them bit for bit under
        the library versions that made them.

        Parameters
        ----------
        blob
            The snapshot.
        accept_environment
            Go on under other library versions than those of the snapshot; scores may then differ
            in the last bit, and verdicts after a replay with them.

        Raises
        ------
        CheckpointError
            If the snapshot is broken, of another pipeline, or of other library versions.
        """
        fingerprint, made_with, streams = unseal("engine", _FORMAT, blob)
        if fingerprint != self.spec.fingerprint:
            raise CheckpointError(
                f"The snapshot belongs to another pipeline ({fingerprint}, this one is "
                f"{self.spec.fingerprint}): detector, features, γ, tolerance, window, schedule or "
                "seed were changed since. Restore them, or remove the snapshot to start anew."
            )
        changed = [
            f"{package} {was} -> {environment().get(package, 'absent')}"
            for package, was in made_with.items()
            if environment().get(package) != was
        ]
        if changed and not accept_environment:
            raise CheckpointError(
                f"The snapshot was made with other versions ({', '.join(changed)}): refitted "
                "models may differ in the last bit. Install those versions, accept the change, or "
                "remove the snapshot to start anew."
            )
        self.close()
        for key, parts in streams.items():
            self._idle[key] = StreamSnapshot(*parts)
            if self._max_live is None or len(self._live) < self._max_live:
                self._stream(key)  # its fits start now, not with its next event

    def close(self) -> None:
        """Drop all state and give up background fits."""
        for state in self._live.values():
            state.close()
        self._live.clear()
        self._idle.clear()

    def _stream(self, key: str) -> StreamState:
        state = self._live.pop(key, None)
        if state is None:
            state = self._new_stream(key)
            kept = self._idle.get(key)
            if kept is not None:
                state.restore(kept)
                del self._idle[key]
        self._live[key] = state  # last used, last to leave
        return state

    def _new_stream(self, key: str) -> StreamState:
        spec, model = self.spec, self._new_model(key)
        gamma = spec.policy.contamination
        explainer = Explainer(spec.features, gamma) if spec.evidence else None
        return StreamState(key, spec.features, model, Judge(spec.policy, spec.window), explainer)

    def _new_model(self, key: str) -> BatchModel | IncrementalModel:
        spec, names = self.spec, self.spec.features.names
        if isinstance(spec.detector, BatchDetector):
            return BatchModel(
                spec.detector,
                spec.schedule,
                spec.seed,
                stream_key=key,
                n_features=len(names),
                window=spec.window,
                executor=self._executor,
                on_failure=self._failures.append,
            )
        seed = derive_seed(spec.seed, key, 0)
        return IncrementalModel(spec.detector, names, seed, explained=spec.evidence)

    def _make_room(self) -> None:
        while self._max_live is not None and len(self._live) > self._max_live:
            self.evict(next(iter(self._live)))
