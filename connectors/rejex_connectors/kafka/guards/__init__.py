"""What keeps one record, one log line or one option from stopping a worker or telling a secret.

`unpacking` reads what kafka-python fetched without ever holding more of it than one
record may be. `lastresort` says when a record is given up that ends every process,
`keys` ends a run whose records have none,
`redaction` keeps secrets out of the libraries' logs, and `faults` says what errors of librdkafka
mean.
"""
