"""The deterministic core, per stream key: readings in, verdicts out, state as bytes.

In: readings of a key in their order, and fits that an executor brings back. Out: one verdict per
reading. No clock, no thread, no file, no log. Open `engine` first, then `stream` (the line an
event goes through) and `model` (which scorer speaks for which row).
"""

from rejex_stream.engine.engine import Engine
from rejex_stream.engine.refit import Calibration, RefitSchedule
from rejex_stream.engine.spec import EngineSpec
from rejex_stream.engine.stream_state import StreamSnapshot

__all__ = ["Calibration", "Engine", "EngineSpec", "RefitSchedule", "StreamSnapshot"]
