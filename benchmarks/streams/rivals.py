"""Random cut forests of others, beside the detectors here: AWS's in Java, and a Rust one.

S. Guha, N. Mishra, G. Roy, O. Schrijvers: "Robust Random Cut Forest Based Anomaly Detection On
Streams", ICML 2016. Both score an event before they learn it, with the settings that AWS's own
examples and OpenSearch use: 50 trees of 256 samples, shingles of 8 events; nothing is chosen here.
AWS's forest scales its input itself; the Rust one gets it as `max |z|` does, by the warm-up.
A missing value is carried forward.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.streams.sources import Stream

__all__ = ["NAMES", "able", "filled", "pace_of_aws", "score_of", "versions"]

Array = npt.NDArray[np.float64]
HERE = Path(__file__).parent / "rcf"
RCF_VERSION: Final = "4.3.0"
SHINGLE, TREES, SAMPLES, SEED = 8, 50, 256, 0
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def filled(stream: Stream) -> Array:
    """Return the rows with missing values carried forward; before the first, zero."""
    X = stream.X.copy()
    for column in X.T:
        known = np.flatnonzero(np.isfinite(column))
        at = np.searchsorted(known, np.arange(len(column)), side="right") - 1
        column[:] = np.where(at >= 0, column[known[at]] if len(known) else 0.0, 0.0)
    return X


def aws(stream: Stream) -> dict[str, Array]:
    """Score by AWS's thresholded forest: its raw score, and the grade that it alarms by."""
    X = filled(stream)
    n, d = X.shape
    command = ["java", "-XX:+UseSerialGC", "-cp", f"{_jars()}/*:{_jars()}", "Score"]
    command += [str(value) for value in (n, d, SHINGLE, TREES, SAMPLES, SEED)]
    done = subprocess.run(
        command, input=X.astype(">f8").tobytes(), capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"AWS's forest failed: {done.stderr.decode()[-800:]}")
    said = np.frombuffer(done.stdout, dtype=">f8").reshape(n, 2).astype(np.float64)
    return {"AWS RCF": said[:, 0], "AWS RCF, grade": said[:, 1]}


def krcf(stream: Stream) -> dict[str, Array]:
    """Score by krcf, AWS's Rust forest."""
    from krcf import RandomCutForest

    X = filled(stream)
    base = X[: stream.warm_up]
    sd = base.std(axis=0)
    X = (X - base.mean(axis=0)) / np.where(sd > 1e-12, sd, 1.0)
    forest = RandomCutForest(
        {
            "dimensions": X.shape[1],
            "shingle_size": SHINGLE,
            "num_trees": TREES,
            "sample_size": SAMPLES,
            "random_seed": SEED,
            "internal_shingling": True,
            "parallel_execution_enabled": False,
        }
    )
    scores = np.empty(len(X))
    for i, row in enumerate(X):
        scores[i] = forest.score(row)
        forest.update(row)
    return {"krcf": scores}


def pace_of_aws(X: Array, warm: int, *, thresholded: bool) -> float:
    """Return µs of processor time an event of AWS's forest, shingle 1, after `warm` rows of X."""
    n, d = X.shape
    command = ["java", "-XX:+UseSerialGC", "-cp", f"{_jars()}/*:{_jars()}", "Pace"]
    command += [str(n), str(d), str(warm), "thresholded" if thresholded else "plain"]
    done = subprocess.run(command, input=X.astype(">f8").tobytes(), capture_output=True, check=True)
    return float(done.stdout)


_MADE_BY: Final[dict[str, Callable[[Stream], dict[str, Array]]]] = {
    "krcf": krcf,
    "AWS RCF": aws,
    "AWS RCF, grade": aws,
}
NAMES: Final = tuple(_MADE_BY)


@functools.cache
def able(name: str) -> str | None:
    """Return why a rival cannot run here, or ``None``."""
    if name == "krcf":
        found = importlib.util.find_spec("krcf")
        return None if found else "the Python package krcf is not installed (extra bench)"
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            return f"there is no `{program}` on PATH"
    return None


def versions() -> dict[str, str]:
    """Return the version of each rival that can run here."""
    found = {} if able("AWS RCF") else {"AWS RCF": RCF_VERSION}
    return found if able("krcf") else found | {"krcf": importlib.metadata.version("krcf")}


def score_of(stream: Stream, name: str, cache: Path) -> Array:
    """Return the score of a rival, shape (n,)."""
    make = _MADE_BY[name]
    path = cache / stream.source / f"{stream.name}-{len(stream.y)}-{make.__name__}.npz"
    if not path.exists():
        found = make(stream)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        with unfinished.open("wb") as file:
            np.savez(file, **found)  # type: ignore[arg-type]
        unfinished.replace(path)
    with np.load(path, allow_pickle=False) as kept:
        score: Array = kept[name]
    return score


@functools.cache
def _jars() -> Path:
    """Have Maven fetch the forest once, checksummed; returns the folder."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "rejex-stream" / f"random-cut-forest-{RCF_VERSION}"
    if not (folder / ".complete").exists():
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Drcf.version={RCF_VERSION}"]
        command += [_COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            tail = (done.stdout + done.stderr)[-800:]
            raise RuntimeError(f"Maven could not fetch random cut forest {RCF_VERSION}:\n{tail}")
        (folder / ".complete").touch()
    for program in ("Score", "Pace"):
        if not (folder / f"{program}.class").exists():
            source = str(HERE / f"{program}.java")
            subprocess.run(["javac", "-cp", f"{folder}/*", "-d", str(folder), source], check=True)
    return folder
