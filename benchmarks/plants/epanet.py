"""Water networks, simulated by EPANET's own engine, with leaks that open and are repaired."""

from __future__ import annotations

import csv
import ctypes
import importlib.util
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.plants import frame
from benchmarks.plants.frame import Fault, Rows

BEGIN = datetime(2018, 1, 1, tzinfo=UTC)
DISCHARGE, GRAVITY = 0.75, 9.81
EMITTER, FLOW, PRESSURE = 3, 8, 11  # codes of EPANET's toolkit
TIME = "time"


class Leak(NamedTuple):
    """A leak at a node or in a pipe: it is whole at `peak`, and repaired at `end`."""

    place: str
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

    @property
    def fault(self) -> Fault:
        """The leak as any other fault; it may show at any sensor."""
        return Fault(f"{self.place}, {self.start:%d %b}", self.kind, self.start, self.end)


def fetch(folder: Path) -> None:
    """Bring the wheels with the networks, the engine and the leaks."""
    frame.download(folder, "epyt==2.3.5.3", "epyt-flow==0.17.3")


def settings(folder: Path, name: str) -> ModuleType:
    """Return a module of epyt-flow that holds a benchmark's leaks; it imports nothing."""
    path = folder / f"epyt_flow/data/benchmarks/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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

    def end_of(self, link: str) -> int:
        """Return the node at which a link begins."""
        one, two = ctypes.c_int(), ctypes.c_int()
        self.call("getlinknodes", self.index("link", link), ctypes.byref(one), ctypes.byref(two))
        return one.value


class Simulation(NamedTuple):
    """What is read of a network, how often, and what is used at each step."""

    nodes: dict[str, str]  # column to node, whose pressure is read
    links: dict[str, str]  # column to link, whose flow is read
    step_s: int
    days: int
    demand: Callable[[int], dict[str, float]]  # step to pattern's value
    liters: bool = False  # flows are l/s, not m³/h


def simulate(network: Network, of: Simulation, leaks: dict[int, list[Leak]]) -> Rows:
    """Return what the network reads, with leaks at nodes."""
    network.set("timeparam", 0, ctypes.c_long(of.days * 86_400))
    nodes = [network.index("node", name) for name in of.nodes.values()]
    links = [network.index("link", name) for name in of.links.values()]
    patterns = {name: network.index("pattern", name) for name in of.demand(0)}
    now, step = ctypes.c_long(), ctypes.c_long(1)
    network.call("openH")
    network.call("initH", 0)
    times, rows, seconds = list[datetime](), list[list[float]](), 0
    while step.value > 0:
        at = BEGIN + timedelta(seconds=seconds)
        for node, own in leaks.items():
            flow = sum(leak.coefficient(at) for leak in own)
            network.set("nodevalue", node, EMITTER, flow / 3.6 if of.liters else flow)
        if seconds % of.step_s == 0:
            for name, value in of.demand(seconds // of.step_s).items():
                network.set("patternvalue", patterns[name], 1, value)
        network.call("runH", ctypes.byref(now))
        if seconds % of.step_s == 0:
            times.append(at)
            read = [network.value("node", node, PRESSURE) for node in nodes]
            rows.append(read + [network.value("link", link, FLOW) for link in links])
        network.call("nextH", ctypes.byref(step))
        seconds += step.value
    return Rows(times, np.array(rows))


def save(rows: Rows, columns: Sequence[str], path: Path) -> Path:
    """Write readings as a table."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([TIME, *columns])
        for at, values in zip(rows.times, rows.X.tolist(), strict=True):
            table.writerow([at.strftime("%Y-%m-%d %H:%M"), *(f"{x:.2f}" for x in values)])
    return path


def load(path: Path) -> Rows:
    """Read what was written."""
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    times = [datetime.strptime(line[0], "%Y-%m-%d %H:%M").replace(tzinfo=UTC) for line in lines]
    return Rows(times, np.array([line[1:] for line in lines], dtype=np.float64))
