"""Any table: what a file of rows is, how it is written, and the config that reads it so.

In: a CSV file nobody described. Out: a :class:`~rejex_stream.tables.inspection.Table`, its
dialect and columns guessed and every guess said, and a config that reads it the same way; likewise
a `Feed` of JSON records (`json_fields`, of which `shapes` says how readings lie in them). Open
`inspection` first, then `draft`; what a column means is guessed in `guess`. A column is walked once
(`columns`, a field of JSON in `fields`), and whoever guesses asks its profile.
"""
