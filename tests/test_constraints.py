"""The exact versions that the image installs: within pyproject's bounds, all named, no address."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINNED = [Requirement(line) for line in LINES if line and not line.startswith("#")]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)


def extras_of_the_image():
    (named,) = re.findall(r"--constraint constraints\.txt '\.\[([\w,]+)\]'", DOCKERFILE)
    return named.split(",")


def pins(python):
    """Name to version, for one Python on Linux."""
    world = {"python_version": python, "python_full_version": f"{python}.0",
             "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}  # fmt: skip
    found = {}
    for pin in PINNED:
        if pin.marker is None or pin.marker.evaluate(world):
            name = canonicalize_name(pin.name)
            assert name not in found, f"{name} is pinned twice on Python {python}"
            found[name] = pin
    return found


def test_the_image_installs_by_them():
    assert {"review", "confluent", "registry"} <= set(extras_of_the_image())
    (copied,) = re.findall(r"^COPY (pyproject.*) \./$", DOCKERFILE, re.M)
    assert "constraints.txt" in copied.split()


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_pinned_within_its_bounds(python):
    found = pins(python)
    extras = extras_of_the_image()
    wanted = [*PROJECT["dependencies"]]
    wanted += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, wanted):
        pin = found.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not pinned: call `make constraints`"
        ((version,)) = {part.version for part in pin.specifier}
        assert requirement.specifier.contains(version), f"{pin} against {requirement}"


def test_a_lean_install_has_the_same_versions_and_all_but_what_only_pyod_asks_for():
    lines = (ROOT / "deploy" / "lean.txt").read_text(encoding="utf-8").splitlines()
    lean = [line for line in lines if line and not line.startswith("#")]
    assert set(lean) <= set(LINES)
    names = {canonicalize_name(Requirement(line).name) for line in lean}
    without = (ROOT / "deploy" / "lean-without.txt").read_text(encoding="utf-8")
    gone = set(re.findall(r'^(\w+); sys_platform == "never"$', without, re.M))
    assert gone == {"numba", "matplotlib"}
    assert not names & {*gone, "llvmlite", "pillow", "fonttools"}
    # Whatever a package of it requires is in it: pip is told not to look.
    for name in names:
        try:
            wanted = [Requirement(text) for text in distribution(name).requires or ()]
        except PackageNotFoundError:  # of another platform
            continue
        for one in wanted:
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert canonicalize_name(one.name) in names | gone, f"{name} needs {one}"
    direct = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert direct <= names


def test_each_line_is_one_exact_version_and_names_no_place():
    assert len(PINNED) > 30
    for pin in PINNED:
        (part,) = pin.specifier
        assert part.operator == "=="
        assert "*" not in part.version
        assert pin.url is None
    for line in LINES:
        assert not re.search(r"://|@|^-|index|hash", line), line
