"""Speed on a real broker: the bare client's loop beside the whole service, in one run."""
