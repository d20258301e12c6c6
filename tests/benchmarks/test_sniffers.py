"""The generator of dialects makes tables that can be read, and they are read right."""

from __future__ import annotations

from benchmarks.dialects import READERS, dialects, results


def test_dialects_are_all_different_and_ours_reads_them() -> None:
    assert len(set(dialects(150))) == 150
    assert list(READERS) == ["rejex-stream", "duckdb", "clevercsv"]
    name, right = next(results(30, show=True))
    assert (name, right["all"]) == ("rejex-stream", 30)
