"""What a choice promises before it runs, and what it gave afterwards.

In: γ, n and a tolerance or a budget; or history to try them on. Out: expected rates and bounds
(`promises`, which to open first), the windows and tolerances a team can keep up with (`team`),
what the data say of γ where nobody knows it (`gamma`), and what a run really did (`measured`), on
history or live input without an output (`rehearsal`).
"""
