"""Is everything there that a pipeline needs? Numbered checks, each with the way to mend it."""

from rejex_stream.doctor.examine import examine
from rejex_stream.doctor.findings import Check, Finding

__all__ = ["Check", "Finding", "examine"]
