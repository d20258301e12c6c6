"""The seam between the languages: what Rust reaches by name is there, and is declared."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from rejex_stream.native_seam import REACHED

SOURCES = Path(__file__).parents[1] / "native" / "src"
# What is Python's own, numpy's, msgspec's or a header's, and no name of ours.
THEIRS = {
    "UNSET", "__basicsize__", "__struct_fields__", "append", "builtins", "ce_id", "ce_subject",
    "ce_time", "clear", "encode", "Encoder", "extend", "frombuffer", "math", "msgspec",
    "msgspec.json", "nan", "numpy", "reshape", "shape", "sum", "tolist", "traceparent",
    "tracestate",
}  # fmt: skip


def owner(named):
    """Return a module, or a class of one."""
    module, _, name = named.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def written_in(owned):
    """Return the attributes that the methods of a class, and of those it inherits from, set."""
    found = set()
    for base in inspect.getmro(owned)[:-1]:
        try:
            tree = ast.parse(dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
    return found


@pytest.mark.parametrize("named", [*REACHED])
def test_what_the_core_reaches_is_there(named):
    owned = owner(named)
    there = set(dir(owned)) | set(getattr(owned, "__annotations__", ()))
    if isinstance(owned, type):
        there |= written_in(owned)
    gone = [name for name in REACHED[named] if name not in there]
    assert not gone, f"renamed or removed: change native_seam.py and native/src with it: {gone}"


def test_rust_declares_the_same():
    """By the text of its declarations, so that no compiler is needed to see it."""
    text = (SOURCES / "seam.rs").read_text("utf-8")
    blocks = re.findall(r'^    "([\w.:]+)" \{\n(.*?)^    \}', text, re.M | re.S)
    declared = {(own, name) for own, inner in blocks for name in re.findall(r'= "(\w+)"', inner)}
    assert declared == {(own, name) for own, names in REACHED.items() for name in names}


def test_nothing_else_is_named_in_rust():
    for path in SOURCES.glob("*.rs"):
        text = path.read_text("utf-8").partition("#[cfg(test)]")[0]
        if path.name in ("seam.rs", "slot.rs"):
            continue
        calls = (
            r"(?:getattr|getattr_opt|hasattr|setattr|import|call_method\w*|Slot::new|Global::new)"
        )
        named = re.findall(rf'\b{calls}\(\s*(?:py, )?"([\w.]+)"', text)
        named += re.findall(r'intern!\([^"]*"(\w+)"', text)
        assert set(named) <= THEIRS, path.name
