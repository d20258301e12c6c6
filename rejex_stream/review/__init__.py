"""Rejected events as work for people: episodes come in, people decide them, labels go out.

`queue` is the domain (begin with `queue.store`): review items and verdicts in, labels out, no HTTP.
`known` measures the people by cases whose truth is known (begin with `known.seeding`).
`console` serves it (begin with `console.server`); it alone needs ``rejex-stream[review]``.
"""
