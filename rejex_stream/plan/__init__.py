"""What a choice promises before it runs, and what it gave afterwards.

In: γ, n and a tolerance or a budget; or history to try them on. Out: expected rates and bounds
(`promises`, which to open first), settings that suit a table (`suggest`), and what a run did, on
history, without an output, or judged in two ways (`measured`).
"""
