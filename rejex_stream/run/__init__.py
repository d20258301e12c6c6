"""The shell around the engine: polls a source, keeps partitions, runs fits, commits.

In: raw records of a source, partition by partition. Out: outcomes, written and committed together
with the offsets, exactly once. Open `loop` first, then `partition` (one partition's engine) and
`commit` (what is written when).
"""
