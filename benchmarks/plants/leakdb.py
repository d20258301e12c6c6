"""LeakDB's settings: a network of Hanoi, a year each, simulated with the leaks of the benchmark.

python -m benchmarks.plants.leakdb DIR [--settings 20]

The leaks of each setting come from the wheel `epyt-flow` (MIT), the network from the wheel `epyt`.
LeakDB's own demands are not in it: here each node uses its share by the hour and the day of the
week, of a shape of its own, with 5 % of noise. Read are four pressures and the flow of the one
main, every half hour.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plants import epanet, frame
from benchmarks.plants.epanet import BEGIN, Leak, Network, Simulation
from benchmarks.plants.frame import DAY, PEERS, Lane, Rows, Tally, Telling
from benchmarks.plants.ltown import sections

PRESSURES = {f"p_{node}": node for node in ("13", "16", "22", "30")}
FLOWS = {"main": "1"}
STEP_S, STEPS_A_DAY, NOISE = 1800, 48, 0.05


def leaks(folder: Path, settings: int) -> dict[str, list[Leak]]:
    """Return the leaks of the first settings that have any."""
    text = epanet.settings(folder, "leakdb_data").HANOI_LEAKAGES

    def moment(steps: int) -> Any:
        return BEGIN + timedelta(seconds=STEP_S * int(steps))

    return {
        name: [
            Leak(
                one["node_id"], moment(one["leak_start_time"]), moment(one["leak_end_time"]),
                float(one["leak_diameter"]), one["leak_type"], moment(one["leak_peak_time"]),
            )
            for one in each
        ]
        for name, each in list(json.loads(text).items())[:settings]
    }  # fmt: skip


def simulated(folder: Path, name: str, running: list[Leak], days: int) -> Rows:
    """Return a setting's readings, simulated unless that was done."""
    path = folder / f"hanoi-{name}-{days}.csv"
    if path.exists():
        return epanet.load(path)
    text = (folder / "epyt/networks/asce-tf-wdst/Hanoi.inp").read_text(errors="replace")
    lines, nodes = [], []
    for line, (at, words) in zip(text.splitlines(), sections(text), strict=True):
        if at == "[JUNCTIONS]" and len(words) > 2:
            nodes.append(words[0])
            line = " ".join([*words[:3], f"own-{words[0]}"])  # noqa: PLW2901
        lines.append(line)
    inp = folder / f"hanoi-{name}.inp"
    inp.write_text("\n".join(["[PATTERNS]", *(f" own-{node} 1.0" for node in nodes), *lines]))
    network, rng = Network(folder, inp), np.random.default_rng(int(name))
    network.set("timeparam", 1, ctypes.c_long(STEP_S))
    morning, weekend = rng.normal(8, 1.0, len(nodes)), rng.uniform(0.8, 1.1, len(nodes))

    def demand(step: int) -> dict[str, float]:
        hour, day = 24 * (step % STEPS_A_DAY) / STEPS_A_DAY, step // STEPS_A_DAY % 7
        shape = 0.7 + 0.25 * np.cos(2 * math.pi * (hour - morning) / 24)
        shape += 0.1 * np.cos(4 * math.pi * (hour - morning) / 24)
        values = (
            shape * (weekend if day > 4 else 1.0) * (1 + NOISE * rng.standard_normal(len(nodes)))
        )
        return {f"own-{node}": float(x) for node, x in zip(nodes, values, strict=True)}

    places: dict[int, list[Leak]] = {}
    for leak in running:
        places.setdefault(network.index("node", leak.place), []).append(leak)
    of = Simulation(PRESSURES, FLOWS, STEP_S, days, demand, liters=True)
    epanet.save(epanet.simulate(network, of, places), [*PRESSURES, *FLOWS], path)
    return epanet.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plants.leakdb")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument("--days", type=int, default=365)
    args = parser.parse_args()
    folder = args.folder.resolve()
    epanet.fetch(folder)
    ours = "rejex-stream"
    tallies = {name: Tally(name) for name in (ours, *PEERS)}
    lanes, peer, by_leak = list[Lane](), frame.DRAWN, list[list[Any]]()
    for name, running in leaks(folder, args.settings).items():
        rows, faults = simulated(folder, name, running, args.days), [one.fault for one in running]
        months = frame.sensor_months({"": rows})
        found = frame.judged(folder / f"hanoi-{name}-{args.days}.csv")
        told: dict[str, list[Telling]] = {ours: found.told}
        tallies[ours].questions += found.queue.questions
        for other, score in PEERS.items():
            told[other] = frame.alerts(frame.scored({"": rows}, score), len(found.told))
        for judge, said in told.items():
            tallies[judge].add(said, faults, 400 * DAY, months)
        of, _ = frame.assigned(found.told, faults)
        for fault in faults:
            delay = (of[fault.name].at - fault.start) / DAY if fault.name in of else "-"
            by_leak.append([name, fault.name, fault.kind, delay])
        lanes.append(Lane(f"setting {name}", faults, told[ours], told[peer]))
        print(name, *tallies[ours].row(), sep=" | ", flush=True)
    frame.publish(
        "leakdb", "LeakDB's leaks at Hanoi",
        f"{len(lanes)} settings of {args.days:,} days, with demands of our own.",
        [one.row() for one in tallies.values()],
        [("Days from a leak's start on.", ["setting", "leak", "kind", "told after"], by_leak)],
    )  # fmt: skip
    frame.picture(
        frame.DOCS / "pictures/plants-leakdb.svg", "LeakDB's leaks at Hanoi", lanes, BEGIN,
        BEGIN + timedelta(days=args.days), peer,
    )  # fmt: skip


if __name__ == "__main__":
    main()
