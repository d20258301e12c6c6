"""Files as input and output: JSON Lines and tables, plain or compressed, standard input and output.

In come bytes (`bytes`; of Excel and Parquet those of a CSV, `workbooks`), cut into rows and
delivered as records (`source`, which reads a file of commands too); out go verdicts, review items,
incidents and dead letters as JSON Lines (`sink`). The offset of a record is its ordinal in the
input, from 0; blank lines, a header and what stands above it are no records. With a state folder a
run that was killed at any moment goes on where its last commit stands, and its outputs end up byte
for byte those of a run that was never killed. Open `source` first.
"""

from rejex_connectors.files.sink import FileSink
from rejex_connectors.files.source import FileControl, FileSource

__all__ = ["FileControl", "FileSink", "FileSource"]
