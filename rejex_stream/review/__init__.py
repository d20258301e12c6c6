"""Rejected events as work for people: cases come in, people decide them, labels go out.

`queue` is the domain (begin with `queue.review_store`): review items and verdicts in, labels out.
`console` serves it (begin with `console.server`); it alone needs ``rejex-stream[review]``.
"""
