"""How large and how tangled the product is, in figures that anybody can print.

    python tools/codebase.py            lines by folder, settings, tangled functions, names
    python tools/codebase.py --check    end with 1 where a limit of CONTRIBUTING.md is passed

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

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES, MOST_SETTINGS, MOST_COMPLEX = 65_000, 170, 15


def product() -> list[Path]:
    """Return the product's files."""
    return sorted([*ROOT.glob("rejex_stream/**/*.py"), *ROOT.glob("connectors/**/*.py")])


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


def tangled() -> list[str]:
    """Return the functions above the limit of complexity, whether or not a line excuses them."""
    found = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa"),
            *("--select", "C901", "--output-format", "json"),
            *("--config", f"lint.mccabe.max-complexity={MOST_COMPLEX}"),
            *("rejex_stream", "connectors"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        f"{Path(one['filename']).relative_to(ROOT)}:{one['location']['row']} {one['message']}"
        for one in json.loads(found.stdout)
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
    over = tangled()
    if not only_check:
        columns = ("code", "docstring", "comment", "blank")
        print(f"{'':34}{'lines':>8}" + "".join(f"{column:>11}" for column in columns))
        for folder, kinds in sorted(folders.items()):
            row = "".join(f"{kinds[column]:>11,}" for column in columns)
            print(f"{folder:34}{kinds.total():>8,}{row}")
        for name, paths in sorted(names.items()):
            if len(paths) > 1:
                print(f"same name: {name}: {', '.join(paths)}")
    print(f"lines of product Python: {n_lines:,} (at most {MOST_LINES:,})")
    print(f"settings: {n_settings} (at most {MOST_SETTINGS})")
    print(f"functions above complexity {MOST_COMPLEX}: {len(over)}")
    for line in over:
        print(f"  {line}")
    passed = n_lines > MOST_LINES or n_settings > MOST_SETTINGS or bool(over)
    return int(only_check and passed)


if __name__ == "__main__":
    sys.exit(main())
