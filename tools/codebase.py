"""How large and how tangled the product is, in figures that anybody can print.

    python -m tools.codebase            lines by folder, settings, complex functions, names, circles
    python -m tools.codebase --check    the limits alone; ends with 1 where one is passed

Product is all Python of `rejex_stream` and `connectors`; tests, tools and benchmarks are not.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

from tests.import_graph import circles, graph, modules

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES, MAX_TEST_LINES, MAX_SETTINGS, MAX_COMPLEXITY = 58_000, 58_000, 170, 15


def product() -> list[Path]:
    """Return the product's files."""
    return sorted([*ROOT.glob("rejex_stream/**/*.py"), *ROOT.glob("connectors/**/*.py")])


def lines_of_tests() -> int:
    """Return how many lines of Python the tests have."""
    return sum(len(path.read_bytes().splitlines()) for path in ROOT.glob("tests/**/*.py"))


def import_circles() -> list[set[str]]:
    """Return the modules that import each other, the native package's and types' among them."""
    roots = ("rejex_stream", "connectors/rejex_connectors", "native/python/rejex_native")
    imports = graph({name: path for root in roots for name, path in modules(ROOT / root).items()})
    imports["rejex_stream"] = set()  # its names are looked up when they are asked for
    return circles(imports)


def kinds_of_lines(path: Path) -> Counter[str]:
    """Return how many lines are code, docstring, comment and blank; a line counts once."""
    source = path.read_text(encoding="utf-8")
    kinds = dict.fromkeys(range(1, source.count("\n") + 1), "blank")
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                kinds[token.start[0]] = "comment"
            elif token.string.strip() and token.type != tokenize.ENCODING:
                kinds.update(dict.fromkeys(range(token.start[0], token.end[0] + 1), "code"))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines = range(first.lineno, (first.end_lineno or first.lineno) + 1)
                kinds.update(dict.fromkeys(lines, "docstring"))
    return Counter(kinds.values())


def complex_functions() -> list[str]:
    """Return the functions above the limit of complexity, whether or not a line excuses them."""
    report = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa"),
            *("--select", "C901", "--output-format", "json"),
            *("--config", f"lint.mccabe.max-complexity={MAX_COMPLEXITY}"),
            *("rejex_stream", "connectors"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        f"{Path(each['filename']).relative_to(ROOT)}:{each['location']['row']} {each['message']}"
        for each in json.loads(report.stdout)
    ]


def main() -> int:
    """Print the figures; with ``--check`` say which limit is passed."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="only the limits, for `make check`")
    only_check = arguments.parse_args().check

    from rejex_stream.config.pipeline_config import settings

    folders: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, list[str]] = defaultdict(list)
    for path in product():
        parts = path.relative_to(ROOT).parts
        folders["/".join(parts[:2] if len(parts) > 2 else parts[:1])] += kinds_of_lines(path)
        if path.stem not in ("__init__", "__main__"):
            names[path.stem].append(str(path.relative_to(ROOT)))
    n_lines = sum(kinds.total() for kinds in folders.values())
    n_settings = sum(1 for _ in settings())
    n_tests, in_circles = lines_of_tests(), import_circles()
    over = complex_functions()
    if not only_check:
        columns = ("code", "docstring", "comment", "blank")
        print(f"{'':34}{'lines':>8}" + "".join(f"{column:>11}" for column in columns))
        for folder, kinds in sorted(folders.items()):
            row = "".join(f"{kinds[column]:>11,}" for column in columns)
            print(f"{folder:34}{kinds.total():>8,}{row}")
        for name, paths in sorted(names.items()):
            if len(paths) > 1:
                print(f"same name: {name}: {', '.join(paths)}")
    print(f"lines of product Python: {n_lines:,} (at most {MAX_LINES:,})")
    print(f"lines of tests: {n_tests:,} (at most {MAX_TEST_LINES:,})")
    print(f"settings: {n_settings} (at most {MAX_SETTINGS})")
    print(f"functions above complexity {MAX_COMPLEXITY}: {len(over)}")
    for line in over:
        print(f"  {line}")
    print(f"circles of imports: {len(in_circles)}")
    for circle in in_circles:
        print(f"  {', '.join(sorted(circle))}")
    passed = n_lines > MAX_LINES or n_tests > MAX_TEST_LINES or n_settings > MAX_SETTINGS
    return int(only_check and (passed or bool(over or in_circles)))


if __name__ == "__main__":
    sys.exit(main())
