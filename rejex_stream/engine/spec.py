"""What decides a verdict: the recipe of an engine, and the part of it that no state depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import msgspec

from rejex_stream.detectors.sensor.ensemble import beside_siblings
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, ChannelLimits, Hold, LimitCheck, Plan
from rejex_stream.protocols import BatchDetector, IncrementalDetector, require_identity
from rejex_stream.rejection import RejectionBand
from rejex_stream.rejection.arguments import check_window
from rejex_stream.rejection.policy import WINDOW, RejectionPolicy

OFF = Hold(enabled=False)
_LONGEST = 160  # characters of a part in a sentence


class Decision(NamedTuple):
    """What is said of a score, and when the reference stands still; a state is of use to any."""

    policy: RejectionPolicy  # γ, the tolerance or the review budget, and how ties count
    evidence: bool  # whether verdicts say which channels speak
    hold: Hold = OFF  # what happens while a fault lasts
    calendar: tuple[Plan, ...] = ()  # when work is planned
    # when somebody is told of a fault that is not held; ``None``: never
    alarms: Alarms | None = None
    limits: tuple[ChannelLimits, ...] = ()  # of values, beyond which an event is an anomaly

    @property
    def unbudgeted(self) -> Decision:
        """The same without a budget that holds."""
        return self._replace(policy=self.policy.unbudgeted)

    def parts(self) -> dict[str, Any]:
        """Return every part by name, as plain values."""
        return {
            **asdict(self.policy),
            "evidence": self.evidence,
            "hold": self.hold.model_dump(),
            "calendar": msgspec.to_builtins(self.calendar),
            "alarms": None if self.alarms is None else self.alarms.model_dump(),
            "limits": [list(one) for one in self.limits],
        }

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> Decision:
        """Return the decision of :meth:`parts`."""
        policy = dict(parts)
        evidence, hold, calendar, alarms, limits = map(policy.pop, cls._fields[1:])
        return cls(
            msgspec.convert(policy, RejectionPolicy),
            msgspec.convert(evidence, bool),
            Hold(**hold),
            msgspec.convert(calendar, tuple[Plan, ...]),
            None if alarms is None else Alarms(**alarms),
            msgspec.convert(limits, tuple[ChannelLimits, ...]),
        )

    def since(self, was: Decision) -> str:
        """Say what became of an earlier decision, e.g. ``tolerance 4 -> 5``."""
        return ", ".join(changes(was.parts(), self.parts()))


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything that decides a verdict, besides the readings.

    Raises
    ------
    ConfigError
        If the full window can never say one of the labels, the schedule does not fit it, the
        detector has no identity (:func:`~rejex_stream.protocols.require_identity`), or limits are
        none.
    """

    detector: BatchDetector | IncrementalDetector
    """A batch or an incremental recipe (:func:`rejex_stream.detectors.make_detector`)."""
    features: FeatureSpec
    """Channels and the features made of them."""
    policy: RejectionPolicy
    """γ and the tolerance or the review budget."""
    window: int = WINDOW
    """n, reference scores of a full window."""
    schedule: RefitSchedule = None  # type: ignore[assignment] # made from the window
    """When a batch detector is refitted; by default as :meth:`RefitSchedule.for_window` says. An
    incremental one has no use for it."""
    seed: int = 0
    """Root of every seed."""
    evidence: bool = True
    """Whether anomalies and ambiguous events say which channels speak; one more score per channel
    for each of them."""
    hold: Hold = field(default_factory=Hold)
    """What happens while a fault lasts."""
    calendar: tuple[Plan, ...] = ()
    """When work is planned."""
    modes: bool = False
    """Whether stream keys name a mode (:func:`~rejex_stream.types.in_mode`)."""
    alarms: Alarms | None = None
    """When somebody is told of a fault that is not held; ``None``: never."""
    limits: tuple[ChannelLimits, ...] = ()
    """Of channels, beyond which an event is an anomaly whatever its score."""

    def __post_init__(self) -> None:
        check_window(self.window)
        if self.schedule is None:
            object.__setattr__(self, "schedule", RefitSchedule.for_window(self.window))
        if not isinstance(self.detector, BatchDetector | IncrementalDetector):
            raise ConfigError(
                f"{self.detector!r} is not a detector: make one with "
                "rejex_stream.detectors.make_detector, or give it the methods of "
                "BatchDetector or IncrementalDetector."
            )
        self._fit_together()
        require_identity(self.detector)
        LimitCheck(self.limits, self.features.channels)
        self.policy.require(self.window)
        if self.is_batch:
            self.schedule.require(self.window)

    def _fit_together(self) -> None:
        """Let a detector bring features and guard where none are named, and know the columns."""
        if not self.features.features and self.features.preset is None:
            preset = getattr(self.detector, "preset", None)
            object.__setattr__(self, "features", replace(self.features, preset=preset))
        guard = getattr(self.detector, "guard_quantile", None)
        object.__setattr__(self, "schedule", self.schedule.guarded_by(guard))
        if self.features.sides and not getattr(self.detector, "takes_sides", False):
            name, side = self.features.sides[0]
            raise ConfigError(
                f"channels.{name}.side = {side!r}, but {self.detector.name} tells no sides apart: "
                'take detector.name = "Sensor", or leave the side out.'
            )
        if self.features.siblings:
            object.__setattr__(self, "detector", beside_siblings(self.detector))
        if hasattr(self.detector, "for_features"):
            object.__setattr__(self, "detector", self.detector.for_features(self.features))

    @property
    def is_batch(self) -> bool:
        """Whether models are fitted and swapped, rather than learnt row by row."""
        return isinstance(self.detector, BatchDetector)

    @property
    def band(self) -> RejectionBand:
        """The rejection band of a full window."""
        return self.policy.band(self.window)

    @property
    def decision(self) -> Decision:
        """What is said of a score."""
        return Decision(
            self.policy, self.evidence, self.hold, self.calendar, self.alarms, self.limits
        )

    @property
    def state_parts(self) -> dict[str, str]:
        """What state is made of, by name: a snapshot is of use where all of it is equal."""
        parts = {"detector": repr(self.detector), "window": repr(self.window)}
        parts |= {"seed": repr(self.seed), "modes": repr(self.modes)}
        parts |= _repr_of_fields(self.features)
        if not self.is_batch:
            return parts
        parts |= _repr_of_fields(self.schedule)
        if not self.schedule.is_guarded:  # no share of rows says what is not kept out
            del parts["guard_quantile"], parts["guard_share"]
        return parts


def _repr_of_fields(parts: Any) -> dict[str, str]:  # noqa: ANN401 - any dataclass
    return {part.name: repr(getattr(parts, part.name)) for part in fields(parts)}


def changes(were: Mapping[str, Any], are: Mapping[str, Any]) -> list[str]:
    """Say what differs, part by part."""
    return [
        f"{name} {in_short(were.get(name), str)} -> {in_short(are.get(name), str)}"
        for name in {**were, **are}
        if were.get(name) != are.get(name)
    ]


def in_short(value: object, written: Callable[[object], str] = repr) -> str:
    """Return a value as text that fits into a sentence."""
    text = " ".join(written(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
