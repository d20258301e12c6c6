"""The exact versions that are installed: within pyproject's bounds, all named, no address."""

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
IMAGE = (ROOT / "deploy" / "image.txt").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)


def extras_of(output):
    (recipe,) = re.findall(rf"--output-file {output} (?:.*\\\n)+.*", MAKEFILE)
    return re.findall(r"--extra (\w+)", recipe)


def pins(python):
    world = {"python_version": python, "python_full_version": f"{python}.0",
             "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}  # fmt: skip
    found = {}
    for pin in PINNED:
        if pin.marker is None or pin.marker.evaluate(world):
            name = canonicalize_name(pin.name)
            assert name not in found, f"{name} is pinned twice on Python {python}"
            found[name] = pin
    return found


def test_the_image_installs_these_versions_each_file_known_by_its_hash():
    assert {"review", "select", "confluent", "registry"} <= set(extras_of("deploy/image.txt"))
    assert "COPY deploy/image.txt ./" in DOCKERFILE
    assert "--require-hashes --requirement image.txt" in DOCKERFILE
    pinned = re.findall(
        r"^([a-z].*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", IMAGE, re.M
    )
    assert {line for line, _ in pinned} <= set(LINES)
    assert len(pinned) == len(re.findall(r"^[a-z]", IMAGE, re.M)) > 30, "one has no hash"
    names = {canonicalize_name(Requirement(line).name) for line, _ in pinned}
    direct = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert direct | {"confluent-kafka", "starlette", "fastavro"} <= names


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_is_pinned_within_its_bounds(python):
    found = pins(python)
    extras = extras_of("constraints.txt")
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
