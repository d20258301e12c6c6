"""What a choice promises before it runs, and what it gave afterwards.

In: γ, n and a tolerance or a budget; or history to try them on. Out: expected rates and bounds
(`promises`, which to open first), settings that suit a table (`suggest`), what a run did
(`measured`) on history or live input without an output (`dry_run`), and what differs between two
ways to judge the same records (`differences`).
"""
