"""Fetch the one third-party script of the console and pin it by hash.

    python tools/vendor.py            fetch uPlot by `npm pack`, copy what is needed, write hashes
    python tools/vendor.py --check    only compare the files with the hashes

What it copies is part of the package; users need neither npm nor a network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "rejex_stream" / "review" / "console" / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"
PACKAGE, VERSION = "uplot", "1.6.32"
FILES = {
    "uPlot.iife.min.js": "package/dist/uPlot.iife.min.js",
    "uPlot.min.css": "package/dist/uPlot.min.css",
    "uPlot.LICENSE.txt": "package/LICENSE",
}


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()


def fetch() -> None:
    """Fetch the package and write its files with their manifest."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=folder, check=True)
        archive = next(Path(folder).glob("*.tgz"))
        VENDOR.mkdir(parents=True, exist_ok=True)
        hashes = {}
        with tarfile.open(archive) as tar:
            for name, member in FILES.items():
                source = tar.extractfile(member)
                assert source is not None, f"{member} is missing in {archive.name}"
                data = source.read()
                (VENDOR / name).write_bytes(data)
                hashes[name] = digest(data)
    manifest = {"package": PACKAGE, "version": VERSION, "licence": "MIT", "sha256": hashes}
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def differing() -> list[str]:
    """Return the files that are not what the manifest says."""
    hashes = json.loads(MANIFEST.read_text(encoding="utf-8"))["sha256"]
    present = {path.name for path in VENDOR.iterdir()} - {MANIFEST.name}
    return sorted(
        name
        for name in present | set(hashes)
        if name not in hashes
        or not (VENDOR / name).is_file()
        or digest((VENDOR / name).read_bytes()) != hashes[name]
    )


def main() -> int:
    """Fetch, or only check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare with the hashes")
    if not parser.parse_args().check:
        fetch()
    wrong = differing()
    for name in wrong:
        print(f"{name}: not what {MANIFEST.name} says", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
