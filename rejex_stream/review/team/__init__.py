"""What reviewers share beside verdicts: who has an episode, what was said of it, saved filters.

In `sharing` it is said and kept in the store, `calls` are how the pages do it, and `notices` tell
those who do not look at the screen. Open `sharing` first.
"""
