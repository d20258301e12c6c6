"""Notebooks run as what they are, cells of Python, without a kernel: for tests and for the site.

A cell's output is what it prints, the value of its last expression, and the figures it leaves open.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

__all__ = ["Cell", "as_markdown", "run"]


class Cell(NamedTuple):
    """A cell after it has run; `pictures` are PNG files as bytes."""

    kind: str
    source: str
    output: str = ""
    pictures: tuple[bytes, ...] = ()


def run(path: Path) -> Iterator[Cell]:
    """Run a notebook from top to bottom; what a cell raises ends it."""
    from matplotlib import pyplot

    mpl.use("agg")
    pyplot.close("all")  # what others left open is no figure of ours
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            yield Cell(cell["cell_type"], source)
            continue
        yield _executed(source, f"{path.name} cell {number}", names)


def _executed(source: str, where: str, names: dict[str, Any]) -> Cell:
    from matplotlib import pyplot

    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(tree, where, "exec"), names)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    output = said.getvalue() + (f"{value!r}\n" if value is not None else "")
    pictures = []
    for number in pyplot.get_fignums():
        png = io.BytesIO()
        pyplot.figure(number).savefig(png, dpi=110)
        pictures.append(png.getvalue())
    pyplot.close("all")
    if pictures:  # the value is the axes, which say nothing in words
        output = said.getvalue()
    return Cell("code", source, output, tuple(pictures))


def as_markdown(path: Path, folder: Path) -> str:
    """Run a notebook and return it as a page; its figures go into `folder`."""
    parts = []
    for number, cell in enumerate(run(path)):
        if cell.kind != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.output:
            parts.append(f"```text\n{cell.output.rstrip()}\n```")
        for which, picture in enumerate(cell.pictures):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}-{which}.png").write_bytes(picture)
            parts.append(f"![Figure of the cell above]({folder.name}/{number}-{which}.png)")
    parts.append(f"This page is [a notebook]({path.name}), run when the site was built.")
    return "\n\n".join(parts) + "\n"
