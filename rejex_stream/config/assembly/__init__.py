"""From a config to living objects: the one place that builds, and that knows both edges.

In: a :class:`~rejex_stream.config.Config`. Out: sources, sinks, decoders, engines and monitors, and
a run of them all. Open `running` first, then `edges` (files or Kafka).
"""

from rejex_stream.config.assembly.edges import *  # noqa: F403
from rejex_stream.config.assembly.edges import __all__ as _edges
from rejex_stream.config.assembly.running import *  # noqa: F403
from rejex_stream.config.assembly.running import __all__ as _running
from rejex_stream.config.assembly.stored import *  # noqa: F403
from rejex_stream.config.assembly.stored import __all__ as _stored

__all__ = _edges + _running + _stored  # noqa: PLE0605
