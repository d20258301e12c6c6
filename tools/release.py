"""Build everything that a release ships into dist/, and try it as users get it: `make dist`.

A rehearsal: nothing is tagged, signed or uploaded. Wheels of the native core are built for the
oldest glibc that they claim, by zig as the linker, and audited; where no cargo is, they are left
out and that is said. Every Python that pyproject.toml names and that is here installs the wheels
into an empty environment, passes the core's trial, and judges a file by either core.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from tools.installing import environment

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
UV = Path(sys.executable).with_name("uv")
GLIBC = "manylinux_2_17"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
NO_TOOL = 75  # the exit code, EX_TEMPFAIL
JUDGED = ROOT / "examples" / "readings.csv"
_BOUNDS = runpy.run_path(str(ROOT / "tools" / "test-bounds"))
_ENVIRONMENT = environment()


class ReleaseError(Exception):
    """What stands in the way of a release, in a sentence."""


class ToolError(Exception):
    """A program that builds or audits could not be had: no fault of what is released."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version by the place where it stands."""

    def text(name: str) -> str:
        return (root / name).read_text(encoding="utf-8")

    def toml(name: str) -> dict[str, dict[str, str]]:
        return tomllib.loads(text(name))

    def only(pattern: str, name: str) -> str:
        (version,) = set(re.findall(pattern, text(name), re.M))
        return str(version)

    chart = yaml.safe_load(text("deploy/helm/rejex-stream/Chart.yaml"))
    return {
        "pyproject.toml": toml("pyproject.toml")["project"]["version"],
        "rejex_stream/__init__.py": only(r'^__version__ = "(.+)"$', "rejex_stream/__init__.py"),
        "CITATION.cff": str(yaml.safe_load(text("CITATION.cff"))["version"]),
        "Chart.yaml, version": chart["version"],
        "Chart.yaml, appVersion": chart["appVersion"],
        "docker-compose.yml, image": only(r"image: rejex-stream:(\S+)", "docker-compose.yml"),
        "native/pyproject.toml": toml("native/pyproject.toml")["project"]["version"],
        "native/pyproject.toml, dependency": only(
            r'"rejex-stream==([^"]+)"', "native/pyproject.toml"
        ),
        "native/Cargo.toml": toml("native/Cargo.toml")["package"]["version"],
        "native/Cargo.lock": only(r'name = "rejex-native"\nversion = "(.+)"', "native/Cargo.lock"),
        "pyproject.toml, extra native": only(r'"rejex-stream-native==([^"]+)"', "pyproject.toml"),
    }


def apart(found: dict[str, str]) -> str:
    """Return which places name another version than pyproject.toml; empty: none."""
    version = found["pyproject.toml"]
    return ", ".join(f"{place}: {other}" for place, other in found.items() if other != version)


def problems(files: Sequence[Path]) -> Iterator[str]:
    """Yield a sentence for each archive that lacks its licence or claims no portable platform."""
    for path in files:
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                names = archive.getnames()
        else:
            with zipfile.ZipFile(path) as wheel:
                names = wheel.namelist()
        if not any(name.endswith("/LICENSE") for name in names):
            yield f"{path.name} holds no LICENSE: see license-files in its pyproject.toml."
        if path.suffix == ".whl" and re.search(r"-linux_\w+\.whl$", path.name):
            yield f"{path.name} claims this machine alone: build it for {GLIBC}."


def call(*command: str | Path, **more: str) -> str:
    """Run a command and return what it printed; its output is the error where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=_ENVIRONMENT | more, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}:\n{done.stdout}")
    return done.stdout


def tool(package: str, *command: str | Path) -> str:
    """Run a program of a package that nothing else here needs, from an environment of its own."""
    run = (UV, "tool", "run", "--quiet", "--from", package, command[0])
    try:
        call(*run, "--version")
    except ReleaseError as error:
        raise ToolError(str(error)) from error
    return call(*run, *command[1:])


def rust_targets() -> list[str]:
    """Return for which of `TARGETS` Rust's standard library is here."""
    if not shutil.which("cargo"):
        return []
    with_rustup = shutil.which("rustup") is not None
    asked = ("rustup", "target", "list", "--installed") if with_rustup else ("rustc", "-vV")
    installed = call(*asked).split()
    return [target for target in TARGETS if target in installed]


def build(wanted: Sequence[str]) -> list[Path]:
    """Build the source archive, the wheel, and a wheel of the native core for each target."""
    shutil.rmtree(DIST, ignore_errors=True)
    call(UV, "build", "--quiet", "--out-dir", DIST, ROOT)
    targets = [target for target in rust_targets() if target in wanted]
    for target in targets:
        tool(
            "maturin[zig]>=1.9,<2", "maturin", "build", "--quiet", "--release", "--zig",
            "--compatibility", GLIBC, "--target", target, "--out", DIST,
            "--manifest-path", ROOT / "native" / "Cargo.toml",
        )  # fmt: skip
    for target in wanted:
        if target not in targets:
            print(f"dist: no Rust for {target} here: ITS WHEEL WAS NOT BUILT")
    return sorted([*DIST.glob("*.tar.gz"), *DIST.glob("*.whl")])


def audit(files: Sequence[Path]) -> None:
    """Check descriptions, licences, and what the native wheels ask of a machine."""
    tool("twine", "twine", "check", "--strict", *files)
    if found := list(problems(files)):
        raise ReleaseError("\n".join(found))
    for wheel in (path for path in files if "native" in path.name):
        shown = tool("auditwheel", "auditwheel", "show", wheel)
        if f'"{GLIBC}' not in shown:
            raise ReleaseError(f"{wheel.name} asks for more than {GLIBC}:\n{shown}")


def install_and_judge(version: str, python: Path, files: Sequence[Path]) -> str:
    """Install the wheels into an empty environment, and judge a file by either core."""
    machine = platform.machine()
    wheels = [
        path for path in files
        if path.suffix == ".whl" and (path.name.endswith("-any.whl") or machine in path.name)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        call(UV, "venv", "--quiet", "--python", python, Path(folder, "venv"))
        here = Path(folder, "venv", "bin")
        call(UV, "pip", "install", "--quiet", "--python", here / "python", *wheels)
        asked = "from rejex_stream.native_core import core; print(core()[1])"
        cache = str(Path(folder, "cache"))  # the core is tried here, whatever passed elsewhere
        says = call(here / "python", "-c", asked, XDG_CACHE_HOME=cache).strip()
        native = any("native" in path.name for path in wheels)
        if native and not says.startswith("the native core judges"):
            raise ReleaseError(f"Python {version}: {says}")
        judged = set()
        for name in ("", "python"):
            out = Path(folder, f"judged-{name}.csv")
            more = {"XDG_CACHE_HOME": cache, "REJEX_CORE": name}
            call(here / "rejex-stream", "score", JUDGED, "--out", out, **more)
            judged.add(out.read_bytes())
    if len(judged) > 1:
        raise ReleaseError(f"Python {version}: the cores judge {JUDGED.name} differently")
    return f"Python {version}: installed, {JUDGED.name} judged; {says}"


def main() -> None:
    """Build, audit, install, and write sums and the bill of materials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="for this machine and Python alone")
    here = parser.parse_args().here
    found = versions()
    pythons = {name: _BOUNDS["interpreter"](name) for name in _BOUNDS["PYTHONS"]}
    targets = list(TARGETS)
    if here:
        pythons = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
        targets = [target for target in TARGETS if target.startswith(platform.machine())]
    try:
        if wrong := apart(found):
            raise ReleaseError(f"not {found['pyproject.toml']} everywhere: {wrong}")
        files = build(targets)
        audit(files)
        for version, python in pythons.items():
            if python is None:
                print(f"dist: Python {version} is not here: NOT TRIED")
            else:
                print(f"dist: {install_and_judge(version, python, files)}", flush=True)
    except ReleaseError as error:
        sys.exit(f"dist: {error}")
    except ToolError as error:
        print(f"dist: {error}", file=sys.stderr)
        sys.exit(NO_TOOL)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print(f"dist: {len(files)} archives of {found['pyproject.toml']}, {DIST / 'SHA256SUMS'}")


if __name__ == "__main__":
    main()
