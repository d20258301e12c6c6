"""The shape of the code: which module may know which, and which may touch the world."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(find_spec("rejex_stream").origin).parent
CONNECTORS = Path(find_spec("rejex_connectors").origin).parent

# From the ground up; a module imports from lower layers only (and, as a concept, from its own).
LAYERS = [
    {"types", "errors"},
    {"protocols", "arguments", "checkpoint"},
    {"exceed", "rejection", "guarantees", "policy", "window", "columns", "features", "detectors"},
    {"judge", "refit", "model", "evidence"},
    {"stream"},
    {"engine", "facade"},
]
CORE = set().union(*LAYERS) | {"monitor", "context"}
EFFECTS = {
    "asyncio", "concurrent", "datetime", "http", "kafka", "logging", "multiprocessing", "os",
    "pathlib", "random", "select", "signal", "socket", "sqlite3", "subprocess", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip
# What a layer's rule costs, and why it is paid.
ALLOWED_EFFECTS = {
    # Global generators of third parties are held by a lock while a seeded fit runs.
    ("detectors", "threading"),
    ("detectors", "os"),  # the lock must survive a fork
    ("detectors", "random"),  # PyOD's deep detectors seed it: held still like numpy's
}


def modules(root, package):
    for path in sorted(root.rglob("*.py")):
        yield path, ".".join([package, *path.relative_to(root).with_suffix("").parts])


def imported(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def concept(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "rejex_stream" and len(parts) > 1 else None


def layer_of(name):
    return next((i for i, layer in enumerate(LAYERS) if name in layer), None)


def test_the_core_imports_run_one_way():
    for path, module in modules(PACKAGE, "rejex_stream"):
        mine = layer_of(concept(module))
        if mine is None:
            continue
        for name in imported(path):
            other = concept(name)
            if other is None or other == concept(module) or other == "__init__":
                continue
            theirs = layer_of(other)
            assert theirs is not None, f"{module} (core) imports {name}, which is not core"
            assert theirs <= mine, f"{module} imports {name} from above"


@pytest.mark.parametrize("name", sorted(CORE))
def test_the_core_has_no_clock_no_thread_no_file_and_no_log(name):
    found = False
    for path, module in modules(PACKAGE, "rejex_stream"):
        if concept(module) != name:
            continue
        found = True
        for imported_name in imported(path):
            root = imported_name.split(".")[0]
            if (name, root) not in ALLOWED_EFFECTS:
                assert root not in EFFECTS, f"{module} imports {imported_name}"
        calls = [n.func.id for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]  # fmt: skip
        assert "open" not in calls, f"{module} opens a file"
        assert "print" not in calls, f"{module} prints"
    assert found, f"there is no module {name}"


def test_connectors_know_only_the_contracts():
    allowed = {"addresses", "types", "errors", "protocols", "encode", "checkpoint", "contract"}
    for path, module in modules(CONNECTORS, "rejex_connectors"):
        for name in imported(path):
            if concept(name) is not None:
                assert concept(name) in allowed, f"{module} imports {name}"


def test_no_module_outgrows_one_concept():
    for root, package in ((PACKAGE, "rejex_stream"), (CONNECTORS, "rejex_connectors")):
        for path, module in modules(root, package):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 400, f"{module} has {lines} lines: two concepts?"
