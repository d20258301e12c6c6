"""Connectors: the edges of rejex-stream behind the contracts of `rejex_stream.protocols`."""
