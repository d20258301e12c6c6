"""Everything known about one stream key, and the straight line its events go through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rejex_stream.checkpoint import pack_array, seal, unpack_array, unseal
from rejex_stream.errors import CheckpointError
from rejex_stream.evidence import Explainer
from rejex_stream.features import FeatureSpec, MissingChannelError, SensorFeatures
from rejex_stream.judge import Judge, rejected
from rejex_stream.model import BatchModel, IncrementalModel, Segment
from rejex_stream.types import Reading, Reason, Verdict

__all__ = ["StreamSnapshot", "StreamState"]

_FORMAT = 1


class StreamSnapshot(NamedTuple):
    """One stream key as bytes, in the two parts that change at different speeds.

    Attributes
    ----------
    state
        Window, rows, feature state; changes with every event.
    model
        Training rows and seeds of the models; changes when a fit is requested or a model swapped.
    model_version
        Equal versions of one key hold equal `model` bytes, so the part need not be written again.
    """

    state: bytes
    model: bytes
    model_version: int


class StreamState:
    """The state of one stream key: features per sensor, model, window.

    Parameters
    ----------
    stream_key
        Whose state this is.
    features
        How readings become rows; every sensor of the key has its own state for it.
    model
        Scores rows.
    judge
        Holds the window and turns scores into verdicts.
    explainer
        Adds evidence to verdicts that are not normal, if given.
    """

    __slots__ = ("_explainer", "_features", "_judge", "_model", "_sensors", "seq", "stream_key")

    def __init__(
        self,
        stream_key: str,
        features: FeatureSpec,
        model: BatchModel | IncrementalModel,
        judge: Judge,
        explainer: Explainer | None = None,
    ) -> None:
        self.stream_key = stream_key
        self.seq = 0
        self._features, self._model, self._judge = features, model, judge
        self._explainer = explainer
        self._sensors: dict[str, SensorFeatures] = {}

    def advance(self, readings: Sequence[Reading]) -> list[Verdict]:
        """Return the verdicts for the next readings of this key, in order."""
        verdicts: list[Verdict | None] = [None] * len(readings)
        rows: list[list[float]] = []
        which: list[int] = []
        seq, sensors = self.seq, self._sensors
        for i, reading in enumerate(readings):
            sensor = sensors.get(reading.sensor)
            if sensor is None:
                sensor = sensors[reading.sensor] = self._features.start()
            try:
                row = sensor.extract(reading.event_time_ms, reading.values)
            except MissingChannelError:
                verdicts[i] = rejected(reading, seq + i, Reason.UNSCORABLE)
                continue
            if row is None:
                verdicts[i] = rejected(reading, seq + i, Reason.WARM_UP)
                continue
            rows.append(row)
            which.append(i)
        for segment in self._model.segments(rows, self._judge):
            owners = which[segment.start : segment.stop]
            if segment.scores is None:
                for i in owners:
                    verdicts[i] = rejected(readings[i], seq + i, Reason.WARM_UP)
            else:
                self._judge.judge(readings, owners, seq, segment.scores, segment.epoch, verdicts)
                if self._explainer is not None:
                    self._explain(rows, segment, owners, verdicts)
        self.seq = seq + len(readings)
        return verdicts  # type: ignore[return-value] # every reading took one of the paths

    def _explain(
        self,
        rows: list[list[float]],
        segment: Segment,
        owners: Sequence[int],
        verdicts: list[Verdict | None],
    ) -> None:
        """Add evidence to the segment's verdicts that want it."""
        assert self._explainer is not None
        wanted = [
            (i, owner, verdict)
            for i, owner in enumerate(owners)
            if (verdict := verdicts[owner]) is not None and self._explainer.wants(verdict)
        ]
        if not wanted:
            return
        age, model = self._model.age_events(), self._model
        explained = self._explainer.explain(
            [verdict for _, _, verdict in wanted],
            np.array([rows[segment.start + i] for i, _, _ in wanted], dtype=np.float64),
            model.score,
            model.medians(),
            [age + i for i, _, _ in wanted],
        )
        for (_, owner, _), verdict in zip(wanted, explained, strict=True):
            verdicts[owner] = verdict

    def close(self) -> None:
        """Give up background work."""
        self._model.close()

    def snapshot(self) -> StreamSnapshot:
        """Return the state as bytes. O(window + rows)."""
        state = {
            "key": self.stream_key,
            "seq": self.seq,
            "window": pack_array(np.array(self._judge.window.scores())),
            "sensors": {name: sensor.snapshot() for name, sensor in self._sensors.items()},
            "model": self._model.state(),
            "model_version": self._model.recipe_version,
        }
        version = self._model.recipe_version
        recipes = {"key": self.stream_key, "version": version, "recipes": self._model.recipes()}
        return StreamSnapshot(
            seal("stream-state", _FORMAT, state), seal("stream-model", _FORMAT, recipes), version
        )

    def restore(self, snapshot: StreamSnapshot) -> None:
        """Take over :meth:`snapshot` into this fresh state.

        Raises
        ------
        CheckpointError
            If the parts are broken, of another key, or do not belong together.
        """
        state = unseal("stream-state", _FORMAT, snapshot.state)
        recipes = unseal("stream-model", _FORMAT, snapshot.model)
        try:
            if not state["key"] == recipes["key"] == self.stream_key:
                raise CheckpointError(
                    f"The snapshot is one of stream {state['key']!r}, not {self.stream_key!r}: "
                    "give every key its own."
                )
            if state["model_version"] != recipes["version"]:
                raise CheckpointError(
                    f"The two parts of the snapshot of stream {self.stream_key!r} were not written "
                    f"together (model {recipes['version']}, state {state['model_version']}): use "
                    "another snapshot, or remove it to start from the input alone."
                )
            self.seq = state["seq"]
            self._judge.replace_window(unpack_array(state["window"]).tolist())
            for name, features in state["sensors"].items():
                self._sensors[name] = self._features.start()
                self._sensors[name].restore(features)
            self._model.restore(state["model"], recipes["recipes"])
            self._model.recipe_version = recipes["version"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"The snapshot of stream {self.stream_key!r} does not fit this version "
                f"({type(error).__name__}: {error}): use another snapshot, or remove it to start "
                "from the input alone."
            ) from error
