"""``python -m benchmarks.paper run|report|probably``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# One process, one thread: CPU times compare, and two jobs do not fight over two cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="compute the missing rows; can be killed and resumed")
    run.add_argument("--data", type=Path, required=True, help="folder of ADBench .npz files")
    run.add_argument("--out", type=Path, required=True, help="folder of rows and cache")
    run.add_argument("--datasets", nargs="+", help="e.g. cardio 12_fault; default: the paper's")
    run.add_argument("--detectors", nargs="+", help="e.g. KNN LOF; default: all that can run")
    run.add_argument("--methods", nargs="+", help="e.g. RejEx Oracle; default: all")
    run.add_argument("--folds", type=int, default=5)
    run.add_argument("--jobs", type=int, default=2)
    run.add_argument("--fast", action="store_true", help="small sets, 2 folds, less Monte Carlo")
    report = commands.add_parser("report", help="tables and figures from the rows")
    report.add_argument("--out", type=Path, required=True, help="folder of the rows")
    report.add_argument("--to", type=Path, help="where to write; default: --out")
    probably = commands.add_parser("probably", help="the paper's Em, likely; blind rejection")
    probably.add_argument("--out", type=Path, required=True, help="folder of the rows")
    probably.add_argument("--to", type=Path, help="where to write; default: --out")
    options = parser.parse_args(arguments)
    if options.command == "run":
        from benchmarks.paper.run import plan
        from benchmarks.paper.run import run as execute

        execute(
            plan(
                options.data,
                options.out,
                datasets=options.datasets,
                detectors=options.detectors,
                methods=options.methods,
                k=options.folds,
                fast=options.fast,
            ),
            jobs=options.jobs,
        )
    elif options.command == "probably":
        from benchmarks.paper.probably import write_probably

        print(write_probably(options.out, options.to or options.out).read_text("utf-8"))
    else:
        from benchmarks.paper.report import write_report

        write_report(options.out, options.to or options.out)


if __name__ == "__main__":
    main()
