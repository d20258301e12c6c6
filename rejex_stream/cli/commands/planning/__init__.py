"""``plan``: what a choice promises, beside what a file gives and what a history says.

In come options and files, out go tables on standard output. Open `plan` first; `promised` is its
``--replay``, `history` its ``--from``.
"""
