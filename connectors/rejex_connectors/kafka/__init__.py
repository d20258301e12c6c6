"""Kafka as source and sink: every event decided exactly once, crash or no crash.

:func:`connect` opens both. A commit is one transaction: verdicts, review records, dead letters,
snapshots and the input's offsets become visible together or not at all. The transaction is opened
when outcomes are written, not while they are computed, so a slow refit never outlives it.

What the caller must know:

* A new partition delivers nothing until :meth:`KafkaSource.seek`.
* Recovery is :meth:`KafkaSink.abort`, :meth:`KafkaSource.rewind`, and go on polling: ``changes()``
  says ``Revoked`` and, once the broker has settled the open transaction, ``Assigned`` with the
  offset that really is committed.
* Outcomes of a partition that was revoked before their commit are dropped: its new owner decides
  those events again, and equally.

``delivery = "at_least_once"`` writes, waits for every acknowledgement, then commits the offsets.
A crash in between repeats the records of that commit with the same ``ce_id``.

From the ground up: `kafka_settings` and `broker_login`; `clients`, the contracts that two libraries
fulfil, `kafka_python_client` (with `kafka_python_patches` and, outside a group, `partition_reader`)
and `confluent_client`; `messages`, `source`, `sink`, `topic_snapshots`. `topic_admin` and
`schema_registry` stand beside them. Open `source` first.
"""
