"""The queue of rejected events: `feeds` bring them, `labels` leave, all of it kept in one file.

Open `store` first: everything that changes the queue is a method there, one transaction each.
`ingest` makes events `episodes`; `claims` and `decisions` are people's work, `audit` remembers it.
`listing`, `detail`, `series` are what a screen shows; `quality`, `report`, `export` what it gave.
"""
