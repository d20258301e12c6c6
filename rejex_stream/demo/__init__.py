"""``rejex-stream demo``: a real water meter and a simulated wind farm through the whole product.

::

    feeds     ─► water/feed.csv, turbines/feed.jsonl, and what is known to be wrong in them
    pipelines ─► water/pipeline.toml, turbines/pipeline.toml
    play      ─► verdicts.jsonl, review.jsonl, deadletter.jsonl      (live: the terminal view)
    evaluate  ─► what was caught, sent to review, missed; rates against theory
    report    ─► report.html
"""
