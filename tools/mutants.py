"""Break the code on purpose, one place at a time, and see that the test that holds it falls.

    python -m tools.mutants              every mutant; the exit code says whether all of them die
    python -m tools.mutants m44 m58      these
    python -m tools.mutants --list       whether each still applies, without running anything

A mutant is found by its text, wherever that stands by now: one whose text is gone, or stands twice,
is named and counts as a failure, so that whoever moves code moves its mutant. All of it happens in
a copy; the working tree is not touched. A mutant of the native core is compiled, and needs cargo.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.mutants_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = (
    ("rejex_stream", "*.py"), ("connectors/rejex_connectors", "*.py"), ("native/src", "*.rs"),
)  # fmt: skip
LIMIT_S = 300  # a mutant that hangs is one that dies


def copied(folder: Path) -> None:
    """Copy what tests need: all that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def place_of(mutant: Mutant, folder: Path) -> Path | str:
    """Return the file that holds the mutant's text once, else what is wrong."""
    found = [
        path
        for top, pattern in PRODUCT
        for path in sorted((folder / top).rglob(pattern))
        for _ in range(path.read_text(encoding="utf-8").count(mutant.original))
    ]
    if len(found) == 1:
        return found[0]
    return "NO LONGER APPLIES: " + (
        "its text is gone"
        if not found
        else "its text stands in " + ", ".join(str(path.relative_to(folder)) for path in found)
    )


def compiled(folder: Path) -> str | None:
    """Put the native core of the copy where its tests import it; return why that is impossible."""
    target = ROOT / "native" / "target"
    command = ["cargo", "build", "--lib", "--quiet", "--target-dir", str(target)]
    try:
        subprocess.run(command, cwd=folder / "native", capture_output=True, text=True, check=True)
    except FileNotFoundError:
        return "cargo is not installed"
    except subprocess.CalledProcessError as error:
        return f"it does not compile: {error.stderr.strip().splitlines()[0]}"
    package = folder / "rejex_native"
    shutil.copytree(folder / "native" / "python" / "rejex_native", package, dirs_exist_ok=True)
    library = next(iter((target / "debug").glob("lib_core.so")), target / "debug/lib_core.dylib")
    shutil.copy2(library, package / "_core.abi3.so")
    return None


def passes(tests: list[str], folder: Path) -> bool | str:
    """Return whether tests pass; a text where there is no telling."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{folder / 'connectors'}"}
    quiet = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *quiet, *tests],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    if done.returncode in (0, 1):
        return done.returncode == 0
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    return f"pytest ended with {done.returncode}: {last}"


def tried(mutant: Mutant, folder: Path) -> str:
    """Return what became of a mutant."""
    place = place_of(mutant, folder)
    if isinstance(place, str):
        return place
    whole = place.read_text(encoding="utf-8")
    cached = list((place.parent / "__pycache__").glob(f"{place.stem}.*"))
    try:
        place.write_text(whole.replace(mutant.original, mutant.mutated), encoding="utf-8")
        for path in cached:  # a change within a second and of no size would not be seen
            path.unlink()
        if place.suffix == ".rs" and (problem := compiled(folder)) is not None:
            return problem
        passed = passes(mutant.tests.split(), folder)
    finally:
        place.write_text(whole, encoding="utf-8")
        shutil.rmtree(folder / "rejex_native", ignore_errors=True)
        for path in (place.parent / "__pycache__").glob(f"{place.stem}.*"):
            path.unlink()
    if isinstance(passed, str):
        return passed
    return "SURVIVES" if passed else "dies"


def main() -> int:
    """Try the mutants; return 1 unless each dies."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="only whether each applies")
    given = parser.parse_args()
    wanted = [one for one in MUTANTS if not given.names or one.name in given.names]
    if given.list:
        found = {one.name: place_of(one, ROOT) for one in wanted}
        for name, place in found.items():
            print(f"{name:<5} {place if isinstance(place, str) else place.relative_to(ROOT)}")
        return any(isinstance(place, str) for place in found.values())
    bad = 0
    with tempfile.TemporaryDirectory(prefix="rejex-mutants-") as name:
        folder = Path(name)
        copied(folder)
        whole = passes(sorted({test for one in wanted for test in one.tests.split()}), folder)
        if whole is not True:
            print(f"the tests do not pass without any mutant ({whole})")
            return 1
        for one in wanted:
            begun = time.monotonic()
            what = tried(one, folder)
            bad += what != "dies"
            print(
                f"{one.name:<5} {what} ({time.monotonic() - begun:.0f} s): {one.about}", flush=True
            )
    print(f"{len(wanted) - bad} of {len(wanted)} mutants die")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
