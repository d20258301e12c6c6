"""Is everything there that a pipeline needs? Numbered checks, each with the way to mend it.

In: a config. Out: findings in a fixed order, each passed, failed with its mend, or not applicable.
Open `examine` first: the list of checks, and those of files and alerts; `kafka` looks at topics.
"""

from rejex_stream.doctor.examine import examine
from rejex_stream.doctor.findings import Check, Finding

__all__ = ["Check", "Finding", "examine"]
