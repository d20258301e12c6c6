"""Plants with faults, fetched or simulated by one command each, and judged in one way."""
