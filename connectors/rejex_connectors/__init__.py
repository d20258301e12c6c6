"""The edges of rejex-stream behind the contracts of `rejex_stream.protocols`: files and Kafka.

In: bytes of records, with their positions. Out: outcomes and offsets, durable together. Open
`files.source` or `kafka.source` first; `folder_snapshots` keeps state in a folder, for either.
"""
