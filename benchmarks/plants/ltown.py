"""A water network with the leaks of a year, simulated: which are told while they run.

python -m benchmarks.plants.ltown DIR [--days 365] [--seeds 2]

L-TOWN is the network of BattLeDIM [1]_ (wheel `epyt`, EUPL-1.2), its 14 leaks of 2018 come from
the wheel `epyt-flow` (MIT). 33 pressures, 3 flows and the level of a tank every five minutes; a
fifth of the nodes each share demands that carry 5 % of noise. It is judged as one stream, and by
groups: a stream for each area that no valve or pump divides. Beside it stands the same network
without a leak.

References
----------
.. [1] S. Vrachimis et al.: Battle of the Leakage Detection and Isolation Methods. Journal of Water
   Resources Planning and Management, 2022.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plants import epanet, frame
from benchmarks.plants.epanet import BEGIN, Leak, Network, Simulation
from benchmarks.plants.frame import DAY, PEERS, Lane, Rows, Tally, Telling

_NODES = (
    *(1, 4, 31, 54, 105, 114, 163, 188, 215, 229, 288, 296, 332, 342, 410, 415, 429, 458, 469),
    *(495, 506, 516, 519, 549, 613, 636, 644, 679, 722, 726, 740, 752, 769),
)
PRESSURES = {f"p_n{number}": f"n{number}" for number in _NODES} | {"level_T1": "T1"}
FLOWS = {name: name for name in ("PUMP_1", "p227", "p235")}
COLUMNS = (*PRESSURES, *FLOWS)
STEP_S, GROUPS, NOISE = 300, 5, 0.05
OURS = ("rejex-stream", "rejex-stream, by areas")


def leaks(folder: Path) -> list[Leak]:
    """Return the leaks of 2018 as the wheel of epyt-flow has them."""

    def moment(text: str) -> datetime:
        return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)

    text = epanet.settings(folder, "battledim_data").LEAKS_CONFIG_TRAIN
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [
        Leak(pipe.strip(), moment(start), moment(end), float(size), kind, moment(peak))
        for pipe, start, end, size, kind, peak in rows
    ]


def network_text(folder: Path) -> str:
    return (folder / "epyt/networks/L-TOWN.inp").read_text(errors="replace")


def sections(text: str) -> list[tuple[str, list[str]]]:
    """Return of each line its section and its words, without remarks."""
    found, at = list[tuple[str, list[str]]](), ""
    for line in text.splitlines():
        at = line.strip() if line.startswith("[") else at
        found.append((at, line.split(";")[0].split()))
    return found


def areas(text: str) -> dict[str, list[str]]:
    """Return the columns of each part of the network that pipes alone connect.

    Flows in a part of which no pressure is read feed the largest.
    """
    part: dict[str, str] = {}

    def first(node: str) -> str:
        while part.setdefault(node, node) != node:
            node = part[node]
        return node

    ends = {words[0]: words[1] for _, words in sections(text) if len(words) > 2}
    for at, words in sections(text):
        if at == "[PIPES]" and len(words) > 2:
            part[first(words[1])] = first(words[2])
    found: dict[str, list[str]] = {}
    for column, node in PRESSURES.items():
        found.setdefault(first(node), []).append(column)
    largest = max(found.values(), key=len)
    for column, link in FLOWS.items():
        found.get(first(ends[link]), largest).append(column)
    return found


def grouped(text: str) -> tuple[str, dict[str, list[float]]]:
    """Return a network with a pattern of one value a group of nodes, and the week's values."""
    week: dict[str, list[float]] = {}
    lines = []
    for line, (at, words) in zip(text.splitlines(), sections(text), strict=True):
        if at == "[DEMANDS]" and len(words) == 3:
            group = int(words[0].lstrip("n")) % GROUPS if words[0][1:].isdigit() else 0
            line = f" {words[0]} {words[1]} {words[2]}-{group}"  # noqa: PLW2901
        elif at == "[PATTERNS]" and len(words) > 1:
            week.setdefault(words[0], []).extend(map(float, words[1:]))
        lines.append(line)
    own = [f" {name}-{group} 1.0" for name in week for group in range(GROUPS)]
    return "\n".join(["[PATTERNS]", *own, *lines]), week


def simulated(folder: Path, seed: int, days: int, running: Sequence[Leak]) -> Rows:
    """Return so many days of readings, simulated unless that was done."""
    name = f"{'leaks' if running else 'healthy'}-{seed}-{days}"
    path = folder / f"{name}.csv"
    if path.exists():
        return epanet.load(path)
    text, week = grouped(network_text(folder))
    inp = folder / f"{name}.inp"
    inp.write_text(text)
    network, rng = Network(folder, inp), np.random.default_rng(seed)

    def demand(step: int) -> dict[str, float]:
        noise = 1 + NOISE * rng.standard_normal(GROUPS)
        return {
            f"{name}-{group}": float(values[step % len(values)] * noise[group])
            for name, values in week.items()
            for group in range(GROUPS)
        }

    at: dict[int, list[Leak]] = {}
    for leak in running:
        at.setdefault(network.end_of(leak.place), []).append(leak)
    of = Simulation(PRESSURES, FLOWS, STEP_S, days, demand)
    epanet.save(epanet.simulate(network, of, at), COLUMNS, path)
    return epanet.load(path)  # rounded as it was written


def judged(folder: Path, rows: Rows, groups: Sequence[Sequence[str]]) -> tuple[list[Telling], int]:
    """Return what was told of groups of columns, each a stream of its own, and what was asked."""
    told, n_questions = list[Telling](), 0
    for number, columns in enumerate(groups):
        own = Rows(rows.times, rows.X[:, [COLUMNS.index(name) for name in columns]])
        found = frame.judged(epanet.save(own, columns, folder / f"group-{number}.csv"))
        told += found.told
        n_questions += found.queue.questions
    return sorted(told), n_questions


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plants.ltown")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    folder = args.folder.resolve()
    epanet.fetch(folder)
    parts = [*areas(network_text(folder)).values()]
    groups = dict(zip(OURS, ([COLUMNS], parts), strict=True))
    stop = BEGIN + timedelta(days=args.days)
    running = [leak for leak in leaks(folder) if leak.start < stop - DAY]
    faults = [leak.fault for leak in running]
    tallies = {name: Tally(name) for name in (*OURS, *PEERS)}
    healthy, by_leak = list[list[Any]](), list[list[Any]]()
    first: dict[str, list[Telling]] = {}
    for seed in range(1, args.seeds + 1):
        rows = simulated(folder, seed, args.days, running)
        months, whole = frame.sensor_months({"": rows}), {"": rows}
        n_told = 0
        for name in OURS:
            told, n_questions = judged(folder, rows, groups[name])
            n_told = n_told or len(told)
            first.setdefault(name, told)
            tallies[name].add(told, faults, 400 * DAY, months)
            tallies[name].questions += n_questions
            of, _ = frame.assigned(told, faults)
            for fault in faults:
                at = of.get(fault.name)
                delay = "-" if at is None else (at.at - fault.start) / DAY
                by_leak.append(
                    [seed, name, fault.name, fault.kind, delay, at.channel if at else "-"]
                )
            told, _ = judged(folder, simulated(folder, seed, args.days, []), groups[name])
            healthy.append([seed, name, len(told) / months])
            print(*tallies[name].row(), healthy[-1], sep=" | ", flush=True)
        for name, score in PEERS.items():
            told = frame.alerts(frame.scored(whole, score), n_told)
            first.setdefault(name, told)
            tallies[name].add(told, faults, 400 * DAY, months)
    frame.publish(
        "ltown", "L-TOWN with the leaks of 2018",
        f"{args.days:,} days of one network, {args.seeds} seeds, {len(parts)} areas.",
        [one.row() for one in tallies.values()],
        [
            ("The same network without a leak.", ["seed", "judged by", "told a month"], healthy),
            ("Days from a leak's start until it is told.",
             ["seed", "judged by", "leak", "kind", "days", "channel"], by_leak),
        ],
    )  # fmt: skip
    peer = frame.DRAWN
    lanes = [Lane(name, faults, first[name], first[peer]) for name in OURS]
    frame.picture(
        frame.DOCS / "pictures/plants-ltown.svg", "L-TOWN, first seed", lanes, BEGIN, stop, peer
    )


if __name__ == "__main__":
    main()
