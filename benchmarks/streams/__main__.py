"""``python -m benchmarks.streams run|report|compare|demo``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="compute the missing rows; can be killed and resumed")
    run.add_argument("--data", type=Path, required=True, help="folder of <source>/<stream>.csv.gz")
    run.add_argument("--out", type=Path, required=True, help="folder of rows and cache")
    run.add_argument("--sources", nargs="+", help="e.g. nab skab; default: all")
    run.add_argument("--detectors", nargs="+")
    run.add_argument("--rows", type=int, default=16_000, help="evaluated rows a stream, at most")
    run.add_argument("--quick", action="store_true", help="the three smallest streams a source")
    report = commands.add_parser("report", help="tables and figures from the rows")
    report.add_argument("--out", type=Path, required=True, help="folder of the rows")
    report.add_argument("--to", type=Path, help="where to write; default: --out")
    compare = commands.add_parser("compare", help="VUS-PR and recall of one detector, two folders")
    compare.add_argument("before", type=Path, help="folder of rows")
    compare.add_argument("after", type=Path, help="folder of rows of the same streams")
    compare.add_argument("--detector", default="Sensor")
    compare.add_argument("--name", help="of the result; default: it is printed")
    demo = commands.add_parser("demo", help="the demo's water branch by other configs")
    demo.add_argument("--to", type=Path, default=Path("benchmarks/results/streams"))
    options = parser.parse_args(arguments)
    if options.command == "run":
        from benchmarks.streams.run import run as execute

        execute(
            options.data,
            options.out,
            options.sources,
            options.detectors,
            rows_each=options.rows,
            quick=options.quick,
        )
    elif options.command == "compare":
        from benchmarks.streams.compare import compare as table

        table(options.before, options.after, options.detector, options.name)
    elif options.command == "demo":
        from benchmarks.streams.demo import write_demo

        write_demo(options.to)
    else:
        from benchmarks.streams.report import write_report

        write_report(options.out, options.to or options.out)


if __name__ == "__main__":
    main()
