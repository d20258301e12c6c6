"""The same pipeline as a job of Apache Spark: many cores, many machines, the same bytes.

In comes a streaming DataFrame of raw records with their positions, or a config that names a file
or topics; out go the messages that a worker would have written. Spark shuffles records by stream,
keeps each stream's state and repeats what was killed; the engine judges as ever. Open `frames`
first; `job` runs a config as a whole. Needs the extra `spark`.
"""

from rejex_stream.spark.frames import verdicts

__all__ = ["verdicts"]
