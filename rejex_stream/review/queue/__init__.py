"""The queue of rejected events: `pipeline_logs` bring them, labels leave, all kept in one file.

Open `review_store` first: what comes in and what goes out, one transaction each. `ingest` makes
events `cases`; `decisions` are people's work, `audit` remembers it. `listing`, `detail`, `series`
are what a screen shows; `label_report` and `label_store` what it gave.
"""
