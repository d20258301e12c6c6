"""Spark's edges: where records come from, and how micro-batches are written exactly once.

In come a file, with the positions that a worker gives its records (`source`), or topics by
Spark's own connector; out go the messages of a micro-batch with the offsets beside them, in the
place where a worker keeps them (`sink`). Whoever goes on, Spark or a worker, sees what is written
and writes nothing twice. Open `sink` first. Needs the extra `spark`.
"""
