"""La Haute Borne: four real turbines, and faults that are put into what they read.

python -m benchmarks.plants.haute_borne DIR [--days 730] [--seeds 5]

The wheel `openoa` holds two years of four turbines (Engie, Etalab 2.0), seven channels every ten
minutes. In each seed a turbine's wind vane is 8° off, another's anemometer 8 % low, the power of a
third 6 % and the air of a fourth 3 K too warm, two weeks each, at times drawn at random. A fault
counts as told within a week. Beside it stands how often somebody is told within a week where
nothing was put in: the share of all weeks of the readings as they are.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.plants import frame
from benchmarks.plants.frame import DAY, PEERS, Fault, Lane, Rows, Tally, Telling

WARM, LONG, WITHIN = 30 * DAY, 14 * DAY, 7 * DAY
NAME, TIME = "Wind_turbine_name", "Date_time"
CHANNELS = ("Ba_avg", "P_avg", "Ws_avg", "Va_avg", "Ot_avg", "Ya_avg", "Wa_avg")
OURS = {"rejex-stream": frame.alone, "rejex-stream, siblings": frame.beside}


class Kind(NamedTuple):
    """What a fault does to a channel: factor and offset; of an angle, a turn."""

    says: str
    changes: tuple[tuple[str, float, float], ...]


KINDS = (
    Kind("wind vane +8°", (("Va_avg", 1.0, 8.0), ("Wa_avg", 1.0, 8.0))),
    Kind("anemometer -8 %", (("Ws_avg", 0.92, 0.0),)),
    Kind("power -6 %", (("P_avg", 0.94, 0.0),)),
    Kind("air +3 K", (("Ot_avg", 1.0, 3.0),)),
)


def read(folder: Path, days: int) -> dict[str, Rows]:
    """Fetch the readings, unless they are there; return the first days of each turbine."""
    frame.download(folder, "openoa==3.2")
    path = folder / "la-haute-borne-data-2014-2015.csv"
    if not path.exists():
        frame.unpack(folder / "examples/data/la_haute_borne.zip", folder)
    found: dict[str, dict[datetime, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row[TIME]).astimezone(UTC)
            values = [float(row[name] or "nan") for name in CHANNELS]
            found.setdefault(row[NAME], {}).setdefault(at, values)
    begin = min(min(each) for each in found.values())
    rows = {}
    for name, each in sorted(found.items()):
        times = sorted(at for at in each if at < begin + days * DAY)
        rows[name] = Rows(times, np.array([each[at] for at in times]))
    return rows


def places(rows: dict[str, Rows], seed: int) -> list[Fault]:
    """Draw where the faults are: one of each kind, a turbine each, one after the other."""
    rng = np.random.default_rng(seed)
    times = next(iter(rows.values())).times
    first = times[0] + WARM
    room = (times[-1] - first) / len(KINDS)
    free = room - LONG - frame.REPAIR
    turbines, found = rng.permutation([*rows]).tolist(), list[Fault]()
    for number, kind in enumerate(rng.permutation(len(KINDS)).tolist()):
        start, says = first + number * room + free * rng.random(), KINDS[kind].says
        found.append(Fault(says, says, start, start + LONG, turbines[number]))
    return found


def put(rows: dict[str, Rows], faults: Sequence[Fault]) -> dict[str, Rows]:
    """Return the readings with faults in them."""
    made = {name: Rows(one.times, one.X.copy()) for name, one in rows.items()}
    for fault in faults:
        (kind,) = (one for one in KINDS if one.says == fault.kind)
        of = made[fault.sensor]
        at = np.array([fault.start <= time < fault.end for time in of.times])
        for channel, factor, offset in kind.changes:
            column = CHANNELS.index(channel)
            changed = factor * of.X[at, column] + offset
            of.X[at, column] = changed % 360 if channel == "Wa_avg" else changed
    return made


def save(rows: dict[str, Rows], path: Path) -> Path:
    """Write readings as one table, by time."""
    every = sorted((at, name, i) for name, one in rows.items() for i, at in enumerate(one.times))
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([NAME, TIME, *CHANNELS])
        for at, name, i in every:
            values = ["" if np.isnan(x) else f"{x:.2f}" for x in rows[name].X[i].tolist()]
            table.writerow([name, at.isoformat(), *values])
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plants.haute_borne")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=730)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    if (args.days * DAY - WARM) / len(KINDS) < LONG + frame.REPAIR:
        parser.error(f"{args.days} days hold no four faults of two weeks after a month: give 120.")
    folder = args.folder.resolve()
    rows = read(folder, args.days)
    times = next(iter(rows.values())).times
    span, months = (times[0] + WARM, times[-1]), frame.sensor_months(rows)
    clean, plants = save(rows, folder / "clean.csv"), list[tuple[list[Fault], dict[str, Rows]]]()
    for seed in range(1, args.seeds + 1):
        faults = places(rows, seed)
        plants.append((faults, put(rows, faults)))
    tallies, tests, queues = list[Tally](), list[list[Any]](), list[list[Any]]()
    told: dict[str, list[list[Telling]]] = {}
    for name, changed in OURS.items():
        without = frame.judged(clean, changed)
        found = [
            frame.judged(save(made, folder / f"faults-{seed}.csv"), changed)
            for seed, (_, made) in enumerate(plants, 1)
        ]
        told[name] = [one.told for one in found]
        queue = without.queue
        queues.append([name, queue.events, queue.cases, queue.questions, queue.beside, queue.apart])
        tallies.append(tally(name, told[name], plants, months))
        tallies[-1].questions = sum(one.queue.questions for one in found)
        tests.append(test(name, told[name], without.told, plants, span))
        print(*tallies[-1].row(), *tests[-1], *queues[-1], sep=" | ", flush=True)
    n_told = [len(each) for each in told["rejex-stream, siblings"]]
    for name, score in PEERS.items():
        found_by = [
            frame.alerts(frame.scored(made, score), n)
            for (_, made), n in zip(plants, n_told, strict=True)
        ]
        told[name] = found_by
        tallies.append(tally(name, found_by, plants, months))
        usual = frame.alerts(frame.scored(rows, score), round(np.mean(n_told)))
        tests.append(test(name, found_by, usual, plants, span))
    frame.publish(
        "haute-borne", "La Haute Borne",
        f"{args.days:,} days of four turbines, {args.seeds} seeds of four faults.",
        [one.row() for one in tallies],
        [
            ("Told within a week, in the same weeks without the faults, in a week drawn at random; "
             "how likely so many are by chance (binomial).",
             ["judged by", "told", "the same weeks", "any week", "by chance"], tests),
            ("Without faults: events for people, their cases, questions; incidents that opened "
             "while another turbine's was open, and those of none of these situations.",
             ["judged by", "events", "cases", "questions", "beside another's", "apart"], queues),
        ],
    )  # fmt: skip
    (faults, _), peer = plants[0], frame.DRAWN
    lanes = [
        Lane(
            name,
            [one for one in faults if one.sensor == name],
            [one for one in told["rejex-stream, siblings"][0] if one.sensor == name],
            [one for one in told[peer][0] if one.sensor == name],
        )
        for name in rows
    ]
    frame.picture(
        frame.DOCS / "pictures/plants-haute-borne.svg", "La Haute Borne, first seed", lanes,
        times[0], times[-1], peer,
    )  # fmt: skip


def tally(
    name: str,
    told: Sequence[Sequence[Telling]],
    plants: Sequence[tuple[list[Fault], dict[str, Rows]]],
    months: float,
) -> Tally:
    made = Tally(name)
    for one, (faults, _) in zip(told, plants, strict=True):
        made.add(one, faults, WITHIN, months)
    return made


def test(
    name: str,
    told: Sequence[Sequence[Telling]],
    usual: Sequence[Telling],
    plants: Sequence[tuple[list[Fault], dict[str, Rows]]],
    span: tuple[datetime, datetime],
) -> list[Any]:
    """Return how many faults are told within a week, and how many would be by chance."""

    def hit(of: Sequence[Telling], fault: Fault) -> bool:
        soon = timedelta(0), WITHIN
        return any(
            soon[0] <= one.at - fault.start < soon[1] for one in of if one.sensor == fault.sensor
        )

    faults = [(one, said) for said, (each, _) in zip(told, plants, strict=True) for one in each]
    hits = sum(hit(said, one) for one, said in faults)
    same = sum(hit(usual, one) for one, _ in faults)
    chance = frame.by_chance(usual, [*plants[0][1]], span, WITHIN)
    of = f"of {len(faults)}"
    return [
        name, f"{hits} {of}", f"{same} {of}", chance, frame.binomial(hits, len(faults), chance)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
