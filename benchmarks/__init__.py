"""Benchmarks: every figure of the project is printed by a command in here."""
