"""What a choice promises before it runs.

In: γ, n and a tolerance or a budget. Out: expected rates and bounds (`promises`, which to open
first), and settings that suit a table (`suggest`).
"""
