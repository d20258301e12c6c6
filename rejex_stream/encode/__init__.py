"""The wire form: outcomes in, JSON bytes out, and back; one form for files, topics and the store.

In: verdicts, review items, dead letters, incidents, commands. Out: bytes, the same for equal
outcomes. Open `records` first; `schemas` says what they look like.
"""

from rejex_stream.encode.records import *  # noqa: F403 - the wire form is that file
from rejex_stream.encode.records import __all__ as __all__
