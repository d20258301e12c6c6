"""The code as a graph: modules, and which of them each imports, now or later."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def modules(root: Path) -> dict[str, Path]:
    """Every module below a package's folder by its full name; a package is its ``__init__``."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, package: str = "") -> Iterator[str]:
    """Every name a module imports: within functions too, and for type checkers alone.

    `package` is the one the module lies in; relative names are seen from there.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            start = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)


def graph(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which of the modules each of them imports.

    ``from a import b`` is an import of the module ``a.b`` where there is one, and of ``a`` where
    ``b`` is a name in it.
    """
    found = {}
    for module, path in sources.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = list(imported(path.read_text(encoding="utf-8"), package))
        # `from a import b` has given `a` and `a.b`.
        meant = {name for name in names if name in sources}
        parents = defaultdict(set)
        for name in names:
            parents[name.rpartition(".")[0]].add(name)
        for name in list(meant):
            of_it = parents.get(name, set())
            if of_it and of_it <= sources.keys():
                meant.discard(name)
        found[module] = meant - {module}
    return found


def circles(imports: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or not (Tarjan)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in imports[module]:
            if other not in order:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            start = path.index(module)
            if len(path) - start > 1:
                found.append(set(path[start:]))
            del path[start:]

    for module in imports:
        if module not in order:
            visit(module)
    return found


def rooms(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The same graph, seen from further away: what lies in one folder of a package is one."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    found: dict[str, set[str]] = defaultdict(set)
    for module, others in imports.items():
        found[room(module)] |= {room(other) for other in others} - {room(module)}
    return dict(found)


def too_small(
    imports: Mapping[str, Iterable[str]], lines: Mapping[str, int], least: int
) -> dict[str, str]:
    """Modules of fewer lines than `least` that one other module imports, with that module."""
    importers = defaultdict(set)
    for module, others in imports.items():
        for other in others:
            importers[other].add(module)
    return {
        module: next(iter(importers[module]))
        for module in imports
        if lines[module] < least and len(importers[module]) == 1
    }
