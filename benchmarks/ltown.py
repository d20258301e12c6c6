"""A water network with the leaks of a year, simulated: which are told while they run.

python -m benchmarks.ltown fetch DIR                 the network and the leaks, from PyPI
python -m benchmarks.ltown simulate DIR --seeds 2    years of readings, with leaks and without
python -m benchmarks.ltown run DIR --seeds 2         judged by the config that `init` writes

L-TOWN is the network of BattLeDIM [1]_ (wheel `epyt`, EUPL-1.2), its 14 leaks of 2018 come from
the wheel `epyt-flow` (MIT). 33 pressures, 3 flows and the level of a tank every five minutes; a
fifth of the nodes each share demands that carry 5 % of noise. Nobody answers an incident.

A telling is an incident's opening, or a further channel of one that is open. Each is given to the
leak that runs and was told of by none, the one that began last first; a telling for which there is
none is false. Those of a leak that ended up to three days before are neither: it is its repair.

References
----------
.. [1] S. Vrachimis et al.: Battle of the Leakage Detection and Isolation Methods. Journal of Water
   Resources Planning and Management, 2022.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import write

_NODES = (
    *(1, 4, 31, 54, 105, 114, 163, 188, 215, 229, 288, 296, 332, 342, 410, 415, 429, 458, 469),
    *(495, 506, 516, 519, 549, 613, 636, 644, 679, 722, 726, 740, 752, 769),
)
PRESSURES = [f"n{number}" for number in _NODES]
FLOWS = ("PUMP_1", "p227", "p235")
STEP_S, GROUPS, NOISE = 300, 5, 0.05
DISCHARGE, GRAVITY = 0.75, 9.81
EMITTER, FLOW, PRESSURE, PATTERN_STEP = 3, 8, 11, 3  # codes of EPANET's toolkit
REPAIR = timedelta(days=3)


class Leak(NamedTuple):
    """A leak in a pipe: it is whole at `peak`, and repaired at `end`."""

    pipe: str
    start: datetime
    end: datetime
    diameter_m: float
    kind: str
    peak: datetime

    def coefficient(self, at: datetime) -> float:
        """Return m³/h a root of a metre of pressure, as an orifice of its area."""
        if not self.start <= at < self.end:
            return 0.0
        area = math.pi * (self.diameter_m / 2) ** 2
        if at < self.peak:
            area *= (at - self.start) / (self.peak - self.start)
        return DISCHARGE * area * math.sqrt(2 * GRAVITY) * 3600


def leaks(folder: Path) -> list[Leak]:
    """Return the leaks of 2018 as the wheel of epyt-flow has them."""
    path = folder / "epyt_flow/data/benchmarks/battledim_data.py"
    spec = importlib.util.spec_from_file_location("battledim_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def moment(text: str) -> datetime:
        return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)

    rows = csv.reader(module.LEAKS_CONFIG_TRAIN.splitlines(), skipinitialspace=True)
    return [
        Leak(pipe.strip(), moment(start), moment(end), float(size), kind, moment(peak))
        for pipe, start, end, size, kind, peak in rows
    ]


def fetch(folder: Path) -> None:
    """Bring the wheels and unpack them."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", str(folder)]
    subprocess.run([*pip, "epyt==2.3.5.3", "epyt-flow==0.17.3"], check=True)
    for wheel in folder.glob("*.whl"):
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)], check=True)


class Network:
    """EPANET's own engine with a network in it."""

    def __init__(self, folder: Path, inp: Path) -> None:
        self._lib = ctypes.CDLL(str(next((folder / "epyt/libraries/glnx").glob("libepanet2.so"))))
        self._project = ctypes.c_void_p()
        self.call("createproject", ctypes.byref(self._project), is_new=True)
        report = str(folder / "report.txt").encode()
        self.call("open", str(inp).encode(), report, b"")

    def call(self, name: str, *args: Any, is_new: bool = False) -> None:
        """Call a function of the toolkit; warnings (codes below 100) are none of errors."""
        args = args if is_new else (self._project, *args)
        code = getattr(self._lib, f"EN_{name}")(*args)
        if code >= 100:
            raise RuntimeError(f"EPANET's EN_{name} failed with code {code}")

    def index(self, kind: str, name: str) -> int:
        """Return the place of a node, link or pattern."""
        found = ctypes.c_int()
        self.call(f"get{kind}index", name.encode(), ctypes.byref(found))
        return found.value

    def value(self, kind: str, index: int, code: int) -> float:
        """Return a value of a node or link."""
        found = ctypes.c_double()
        self.call(f"get{kind}value", index, code, ctypes.byref(found))
        return found.value

    def set(self, what: str, *args: Any) -> None:
        """Set what EPANET's function of that name sets."""
        self.call(f"set{what}", *(ctypes.c_double(a) if isinstance(a, float) else a for a in args))


def _grouped(text: str) -> tuple[str, dict[str, list[float]]]:
    """Return a network with a pattern of one value a group of nodes, and the week's values."""
    week: dict[str, list[float]] = {}
    lines, at = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            at = line.strip()
        words = line.split(";")[0].split()
        if at == "[DEMANDS]" and len(words) == 3:
            group = int(words[0].lstrip("n")) % GROUPS if words[0][1:].isdigit() else 0
            line = f" {words[0]} {words[1]} {words[2]}-{group}"  # noqa: PLW2901
        elif at == "[PATTERNS]" and len(words) > 1:
            week.setdefault(words[0], []).extend(map(float, words[1:]))
        lines.append(line)
    own = [f" {name}-{group} 1.0" for name in week for group in range(GROUPS)]
    return "\n".join(["[PATTERNS]", *own, *lines]), week


def simulate(folder: Path, seed: int, days: int = 365, *, is_healthy: bool = False) -> None:
    """Write a year of readings; of a healthy network without a leak."""
    text, week = _grouped((folder / "epyt/networks/L-TOWN.inp").read_text(errors="replace"))
    name = f"healthy-{seed}" if is_healthy else f"leaks-{seed}"
    inp = folder / f"{name}.inp"
    inp.write_text(text)
    network, rng = Network(folder, inp), np.random.default_rng(seed)
    network.set("timeparam", 0, ctypes.c_long(days * 86_400))
    patterns = {
        (name, group): network.index("pattern", f"{name}-{group}")
        for name in week
        for group in range(GROUPS)
    }
    nodes = [network.index("node", name) for name in (*PRESSURES, "T1")]
    links = [network.index("link", name) for name in FLOWS]
    places = {}
    for leak in [] if is_healthy else leaks(folder):
        one, two = ctypes.c_int(), ctypes.c_int()
        network.call(
            "getlinknodes", network.index("link", leak.pipe), ctypes.byref(one), ctypes.byref(two)
        )
        places[leak] = one.value
    begin, now, step = datetime(2018, 1, 1, tzinfo=UTC), ctypes.c_long(), ctypes.c_long(1)
    network.call("openH")
    network.call("initH", 0)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["time", *(f"p_{name}" for name in PRESSURES), "level_T1", *FLOWS])
        seconds = 0
        while step.value > 0:
            at = begin + timedelta(seconds=seconds)
            for leak, node in places.items():
                network.set("nodevalue", node, EMITTER, leak.coefficient(at))
            if seconds % STEP_S == 0:
                noise = 1 + NOISE * rng.standard_normal(GROUPS)
                for (name, group), index in patterns.items():
                    values = week[name]
                    value = values[seconds // STEP_S % len(values)] * noise[group]
                    network.set("patternvalue", index, 1, float(value))
            network.call("runH", ctypes.byref(now))
            if seconds % STEP_S == 0:
                read = [network.value("node", node, PRESSURE) for node in nodes]
                read += [network.value("link", link, FLOW) for link in links]
                table.writerow([at.strftime("%Y-%m-%d %H:%M"), *(f"{x:.2f}" for x in read)])
            network.call("nextH", ctypes.byref(step))
            seconds += step.value


class Telling(NamedTuple):
    """What people were told, and when."""

    at: datetime
    channel: str
    is_further: bool  # of an incident that was open


def tellings(records: list[dict[str, Any]]) -> list[Telling]:
    """Return openings and further channels, each once, in their order."""
    found, known = list[Telling](), set[tuple[str, str]]()
    for record in records:
        at = datetime.fromtimestamp(record["changed_ms"] / 1000, UTC)
        if (record["incident"], "") not in known:
            known.add((record["incident"], ""))
            found.append(
                Telling(at, (record["channels"] or [{"channel": "?"}])[0]["channel"], False)
            )
        for spread in record.get("spread", ()):
            if (record["incident"], spread["channel"]) not in known:
                known.add((record["incident"], spread["channel"]))
                found.append(Telling(at, spread["channel"], True))
    return found


def assigned(told: list[Telling], running: list[Leak]) -> tuple[dict[str, Telling], list[Telling]]:
    """Return the telling of each leak that has one, and those that are false."""
    of: dict[str, Telling] = {}
    false = []
    for telling in told:
        open_ones = [x for x in running if x.start <= telling.at < x.end and x.pipe not in of]
        if open_ones:
            of[max(open_ones, key=lambda leak: leak.start).pipe] = telling
        elif not any(x.end <= telling.at < x.end + REPAIR for x in running):
            false.append(telling)
    return of, false


def judged(folder: Path, name: str) -> list[Telling]:
    """Run the config that `init` writes; return what people were told."""
    at = folder / f"run-{name}"
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()

    def call(*command: str) -> None:
        command = (sys.executable, "-m", "rejex_stream", *command)
        subprocess.run(command, cwd=at, check=True, capture_output=True)

    call("init", f"../{name}.csv", "--to", "c.toml", "--force")
    call("run", "c.toml")
    lines = next(at.glob("*.incidents.jsonl")).read_bytes().splitlines()
    records = map(json.loads, lines)
    return tellings([record for record in records if record.get("kind") == "incident"])


def rows(folder: Path, seeds: range) -> Iterator[list[Any]]:
    for seed in seeds:
        running = leaks(folder)
        told = judged(folder, f"leaks-{seed}")
        of, false = assigned(told, running)
        for leak in running:
            telling = of.get(leak.pipe)
            delay = (
                "" if telling is None else f"{(telling.at - leak.start) / timedelta(days=1):.1f}"
            )
            yield [seed, leak.pipe, leak.kind, delay, "" if telling is None else telling.channel]
        text = f"{len(of)} of {len(running)} told, {len(false) / 12:.2f} false a month"
        yield [seed, "all", f"{text}, {len(told)} posts", "", ""]
        told = judged(folder, f"healthy-{seed}")
        yield [seed, "none in a year", f"{len(told) / 12:.2f} false a month", "", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("command", choices=("fetch", "simulate", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    folder = args.folder.resolve()
    if args.command == "fetch":
        fetch(folder)
    elif args.command == "simulate":
        for seed in range(1, args.seeds + 1):
            simulate(folder, seed)
            simulate(folder, seed, is_healthy=True)
    else:
        found = list(rows(folder, range(1, args.seeds + 1)))
        for row in found:
            print(*row, sep=" | ")
        columns = ["seed", "leak", "kind", "told after days", "channel"]
        write("ltown", "L-TOWN with the leaks of 2018", [("", columns, found)])


if __name__ == "__main__":
    main()
