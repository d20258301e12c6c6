"""The review console: rejected events become episodes, people decide them, labels go out.

The store works without any extra; the web console needs ``rejex-stream[review]``.
"""
