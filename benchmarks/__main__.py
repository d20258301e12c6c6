"""Run the benchmarks of the core, one after the other: ``make bench``."""

from __future__ import annotations

import warnings

from benchmarks import engine, memory, peers

if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for benchmark in (engine, peers, memory):
            benchmark.main()
