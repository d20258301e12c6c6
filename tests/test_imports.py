"""The shape of the code: which module may know which, and which may touch the world."""

import ast
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import import_graph as code

pytestmark = pytest.mark.text

PACKAGE = Path(find_spec("rejex_stream").origin).parent
CONNECTORS = Path(find_spec("rejex_connectors").origin).parent
NATIVE = Path(__file__).parents[1] / "native" / "python" / "rejex_native"

# The house from the ground up: a room imports from rooms before it, never from one behind it.
ROOMS = (
    "native", "readable", "types", "errors", "addresses", "threads", "trusted_clock",
    "native_seam", "native_core", "settings", "protocols",
    "decode", "features", "detectors", "checks", "rejection", "incidents", "engine",
    "facade", "monitor", "encode", "run", "plan", "connectors", "native_trial", "operate", "config",
    "spark", "tables", "report", "doctor", "review", "demo", "cli", "__main__",
)  # fmt: skip
CORE = ("types", "errors", "threads", "trusted_clock", "protocols",
        "features", "detectors", "rejection",
        "incidents", "engine", "facade", "monitor", "run.review_items")  # fmt: skip
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
    ("engine", "threading"),  # the one lock says who is there, and makes nobody wait
    ("detectors", "random"),  # PyOD's deep detectors seed it: held still like numpy's
}


SOURCES = code.modules(PACKAGE) | code.modules(CONNECTORS) | code.modules(NATIVE)


@cache
def imports():
    found = code.graph(SOURCES)
    found["rejex_stream"] = set()  # the public face: names that are looked up when asked for
    return found


def room(module):
    if module.startswith("rejex_connectors"):
        return "connectors"
    if module.startswith("rejex_native"):
        return "native"
    return module.split(".")[1] if "." in module else "__init__"


def test_every_room_has_its_floor():
    assert {room(module) for module in SOURCES} - {"__init__"} == set(ROOMS)


def test_no_room_imports_from_above():
    floor = {name: i for i, name in enumerate(ROOMS)}
    floor["__init__"] = -1
    found = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if floor[room(other)] > floor[room(module)]
    ]
    assert found == []


def test_the_queue_knows_nothing_of_the_web():
    queue = {m: others for m, others in imports().items() if ".review.queue" in m}
    assert queue
    assert [m for m, others in queue.items() if any(".review.console" in o for o in others)] == []


@pytest.mark.parametrize("name", CORE)
def test_the_core_has_no_clock_no_thread_no_file_and_no_log(name):
    inside = [m for m in SOURCES if f"{m}.".startswith(f"rejex_stream.{name}.")]
    assert inside, f"there is no {name}"
    for module in inside:
        source = SOURCES[module].read_text(encoding="utf-8")
        for imported in code.imported(source):
            root = imported.split(".")[0]
            if (name, root) not in ALLOWED_EFFECTS:
                assert root not in EFFECTS, f"{module} imports {imported}"
        calls = {n.func.id for n in ast.walk(ast.parse(source))
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
        assert not calls & {"open", "print"}, f"{module} opens a file or prints"


def test_connectors_know_only_the_contracts():
    allowed = {"addresses", "encode", "errors", "native_core", "protocols", "settings", "types"}
    for module, others in imports().items():
        if room(module) == "connectors":
            known = {room(other) for other in others} - {"connectors"}
            assert known <= allowed, f"{module} imports {known - allowed}"


# --------------------------------------------------------------------------- files and circles
LINES = {module: len(path.read_text("utf-8").splitlines()) for module, path in SOURCES.items()}
LEAST = 60
# Small, with one importer, and for a reason that will last.
SMALL_FOR_A_REASON: dict[str, str] = {}
# The rest waits for its home: these lists only get shorter. Who fixes one takes it out here.
SMALL_TODAY: set[str] = set()


def test_no_file_is_a_fragment_of_the_one_that_imports_it():
    named = {m for m, path in SOURCES.items() if path.name in ("__init__.py", "__main__.py")}
    found = code.too_small(imports(), LINES, LEAST).keys() - named
    assert found - SMALL_FOR_A_REASON.keys() - SMALL_TODAY == set(), "join each to its importer"
    assert SMALL_TODAY - found == set(), "fixed: take them out of the list"
    assert SMALL_FOR_A_REASON.keys() - found == set(), "they need no reason any more"


def test_no_modules_import_each_other_in_a_circle():
    assert code.circles(imports()) == []


def written(folder, **files):
    root = folder / "pump"
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in [root, *(p for p in root.rglob("*") if p.is_dir())]:
        (path / "__init__.py").touch()
    return code.graph(code.modules(root))


def test_benchmarks_and_tools_import_names_that_exist():
    ours, root = code.modules(PACKAGE) | code.modules(CONNECTORS), Path(__file__).parents[1]
    lacking = [
        f"{path.relative_to(root)}: {name}"
        for folder in ("benchmarks", "tools", "examples")
        for path in (root / folder).rglob("*.py")
        for name in code.imported(path.read_text())
        for module, _, last in [name.rpartition(".")]
        if name.split(".")[0] in {PACKAGE.name, CONNECTORS.name} and name not in ours
        and not (module in ours and hasattr(import_module(module), last))
    ]  # fmt: skip
    assert not lacking


def test_the_graph_sees_late_and_relative_imports_and_those_for_type_checkers(tmp_path):
    found = written(
        tmp_path, a="from pump import b, __doc__\nif TYPE_CHECKING:\n    import pump.c",
        b="def f():\n    from pump.room.d import x, y", c="import pump.b as other",
        room__d="from . import e\nfrom ..a import z", room__e="import os, pump.room",
    )  # fmt: skip
    assert found == {
        "pump": set(), "pump.a": {"pump", "pump.b", "pump.c"}, "pump.b": {"pump.room.d"},
        "pump.c": {"pump.b"}, "pump.room": set(), "pump.room.d": {"pump.room.e", "pump.a"},
        "pump.room.e": {"pump.room"},
    }  # fmt: skip
    assert code.circles(found) == [{"pump.a", "pump.b", "pump.c", "pump.room.d"}]
    assert code.circles(code.rooms(found)) == [{"pump.a", "pump.b", "pump.c", "pump.room"}]
    lines = dict.fromkeys(found, 10) | {"pump.room.e": 60}
    assert code.too_small(found, lines, 60) == {
        "pump": "pump.a", "pump.a": "pump.room.d", "pump.room": "pump.room.e",
        "pump.room.d": "pump.b", "pump.c": "pump.a",
    }  # fmt: skip


def test_circles_are_apart_where_no_way_leads_back():
    apart = {"a": "b", "b": "ac", "c": "d", "d": "ec", "e": "", "f": "ge", "g": "h", "h": "f"}
    found = code.circles(apart)
    assert sorted(map(sorted, found)) == [["a", "b"], ["c", "d"], ["f", "g", "h"]]
