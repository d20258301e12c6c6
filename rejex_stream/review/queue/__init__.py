"""The queue of rejected events: `pipeline_logs` bring them, labels leave, all kept in one file.

Open `review_store` first: what comes in and what goes out, one transaction each. `ingest` makes
events `cases`; `labelling` are people's work, and the trail in `database` remembers it. `listing`,
`detail` and `series` are what a screen shows; `label_report` and `label_store` what it gave.
"""
