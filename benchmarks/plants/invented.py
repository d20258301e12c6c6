"""Invented plants with known faults, each judged by the config that `init` writes.

python -m benchmarks.plants CASES [--names resting_gas states] [--seeds 5] [--null-seeds 20]
                                  [--contamination 0.02]

CASES is a program that writes one plant: `CASES NAME FOLDER SEED` makes NAME.csv and
NAME.truth.json in FOLDER. A case with a fault is right or wrong seed by seed. Cases in which
nothing is wrong are judged by their alerts over all null seeds, beside what is asked: one a sensor
and month.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import write

MONTH_MS = 30 * 86_400_000


class Case(NamedTuple):
    """What became of one plant."""

    verdicts: list[dict[str, Any]]
    opened: list[dict[str, Any]]  # the first record of each incident
    last: dict[str, dict[str, Any]]  # the newest record of each incident, by its id
    faults: list[dict[str, Any]]
    draft: str  # the config that it ran with
    records: list[dict[str, Any]]  # of all incidents, in their order

    def alerts(self, first: int, stop: int) -> list[dict[str, Any]]:
        """Return the incidents that opened at rows first:stop."""
        return [one for one in self.opened if first <= one["offset"] < stop]

    def share(self, label: str, first: int, stop: int) -> float:
        """Return which share of the rows first:stop have a label."""
        rows = self.verdicts[first:stop]
        return sum(row["label"] == label for row in rows) / len(rows)

    def held(self, first: int, stop: int) -> float:
        """Return in which share of the rows first:stop an incident is open."""
        ids = [(one["opened_seq"], self.last[one["incident"]]) for one in self.opened]
        rows = range(first, stop)
        return sum(
            any(a <= i and (b["state"] != "closed" or i <= b["changed_seq"]) for a, b in ids)
            for i in rows
        ) / len(rows)

    def delay(self, fault: int = 0, within: int | None = None) -> float:
        """Return after how many rows the first alert of a fault came; infinite where none did."""
        start, stop = self.faults[fault]["from_row"], self.faults[fault]["to_row"]
        told = self.alerts(start, min(stop, start + (within or stop)))
        return min((one["offset"] - start for one in told), default=float("inf"))

    def names(self, fault: int = 0) -> bool:
        """Return whether the first alert of a fault names its channel first."""
        start, stop = self.faults[fault]["from_row"], self.faults[fault]["to_row"]
        told = self.alerts(start, stop)
        return bool(told) and told[0]["channels"][0]["channel"] == self.faults[fault]["channel"]


def run(
    cases: Path,
    name: str,
    seed: int,
    changed: Callable[[str], str] = lambda draft: draft,
    options: Sequence[str] = (),
) -> Case:
    """Make a plant, have `init` write its config, change that if need be, run it."""
    with tempfile.TemporaryDirectory() as folder:

        def call(*command: str) -> None:
            subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)

        call(str(cases), name, folder, str(seed))
        call("-m", "rejex_stream", "init", f"{name}.csv", "--to", "c.toml", *options)
        draft = changed((Path(folder) / "c.toml").read_text())
        (Path(folder) / "c.toml").write_text(draft)
        call("-m", "rejex_stream", "run", "c.toml")

        def read(file: str) -> list[dict[str, Any]]:
            return [json.loads(line) for line in (Path(folder) / file).read_bytes().splitlines()]

        verdicts, records = read("c.verdicts.jsonl"), read("c.incidents.jsonl")
        incidents = [one for one in records if one.get("kind") == "incident"]
        last = {one["incident"]: one for one in incidents}
        first = {one["incident"]: one for one in reversed(incidents)}
        truth = json.loads((Path(folder) / f"{name}.truth.json").read_text())
        opened = sorted(first.values(), key=lambda one: one["offset"])
        return Case(verdicts, opened, last, truth.get("faults", []), draft, incidents)


def resting(case: Case) -> tuple[bool, str]:
    start, stop = (case.faults[0][key] for key in ("from_row", "to_row"))
    normal, delay = case.share("normal", start, stop), case.delay()
    return delay < 5 and normal == 0 and case.names(), f"after {delay:g}, {normal:.3f} normal"


def told_within(rows: int, *, named: bool = False) -> Callable[[Case], tuple[bool, str]]:
    def judge(case: Case) -> tuple[bool, str]:
        delay = case.delay()
        return delay < rows and (case.names() or not named), f"after {delay:g} rows"

    return judge


def frozen(case: Case) -> tuple[bool, str]:
    start = case.faults[0]["from_row"]
    night = range(start + 106, start + 250)  # it freezes in the morning: the night after
    normal = sum(case.verdicts[i]["label"] == "normal" for i in night) / len(night)
    delay = case.delay()
    return delay < 250 and normal == 0, f"after {delay:g} rows, night {normal:.2f} normal"


def leak(case: Case) -> tuple[bool, str]:
    start, stop = (case.faults[0][key] for key in ("from_row", "to_row"))
    delay, open_share = case.delay(), case.held(start, stop)
    normal = case.share("normal", start, stop)
    return (
        delay < 200 and open_share >= 0.95,
        f"after {delay:g}, open {open_share:.2f}, {normal:.2f} normal",
    )


def month_ends(case: Case) -> tuple[bool, str]:
    import datetime

    warm = max(i for i, row in enumerate(case.verdicts) if row["reason"] == "warm_up")
    days = [
        (row, datetime.datetime.fromtimestamp(row["event_time_ms"] / 1000, datetime.UTC))
        for row in case.verdicts[max(warm + 1, 730) :]
    ]
    ends = [row for row, at in days if (at + datetime.timedelta(1)).day == 1]
    asked = sum(row["label"] != "normal" for row in ends)
    return asked <= 0.1 * len(ends), f"{asked} of {len(ends)} asked"


def _silences(case: Case) -> list[dict[str, Any]]:
    return [one for one in case.opened if one.get("silent")]


def silence(case: Case) -> tuple[bool, str]:
    told = _silences(case)
    delays = [(one["opened_ms"] - one["onset_ms"]) / 60_000 - 1 for one in told]  # one a minute
    ends = [case.last[one["incident"]]["ended"] for one in told]
    is_right = [one["sensors"] for one in told] == [["pump-3"]] and ends == ["back"]
    text = "; ".join(
        f"{one['sensors'][0]} after {d:g} min" for one, d in zip(told, delays, strict=True)
    )
    return is_right and delays[0] <= 5, text or "nobody"


def no_silence(case: Case) -> tuple[bool, str]:
    told = _silences(case)
    return not told, f"{len(told)} said to be silent"


def unanswered(case: Case) -> tuple[bool, str]:
    """Judge whether a fault that nobody answers is one incident until it is repaired."""
    start, stop = (case.faults[0][key] for key in ("from_row", "to_row"))
    open_share, normal = case.held(start, stop), case.share("normal", start, stop)
    new, after = len(case.alerts(stop, stop + 10**9)), case.share("anomaly", stop, stop + 10**9)
    n_told = len(case.alerts(start, stop))
    return (
        n_told == 1 and open_share >= 0.95 and not new,
        f"{n_told} told, open {open_share:.2f}, {normal:.2f} normal; "
        f"after it {new} new, {after:.3f} anomalies",
    )


def overnight(case: Case) -> tuple[bool, str]:
    start, stop = (case.faults[0][key] for key in ("from_row", "to_row"))
    is_right, text = unanswered(case)
    few = case.share("anomaly", stop, stop + 10**9) <= 0.03
    return is_right and few and case.share("normal", start, stop) <= 0.05, text


def told_again(rows: int) -> Callable[[Case], tuple[bool, str]]:
    """Judge whether each fault is told by its own name, by an incident or by the one open."""

    def judge(case: Case) -> tuple[bool, str]:
        delays = []
        for fault in case.faults:
            start, channel = fault["from_row"], fault["channel"]
            told = [
                one["changed_seq"] - start
                for one in case.records
                if one["changed_seq"] >= start
                and one["channels"]
                and one["channels"][0]["channel"] == channel
            ]
            delays.append(min(told, default=float("inf")))
        others = sum(len(one["spread"]) for one in case.last.values()) - len(case.faults) + 1
        text = " and ".join(f"{delay:g}" for delay in delays)
        return max(delays) < rows, f"after {text}, {others} others"

    return judge


FAULTS: dict[str, Callable[[Case], tuple[bool, str]]] = {
    "resting_gas": resting,
    "resting_two": resting,
    "states": told_within(30),
    "yaw_fault": told_within(18, named=True),
    "frozen_solar": frozen,
    "month_end": month_ends,
    "missing_run": told_within(18),
    "second_leak": leak,
    "beyond_range": told_within(500),
    "second_fault": told_again(60),
    "overnight": overnight,
    "weekend": unanswered,
    "silent": silence,
    "bursts": no_silence,
}
_FARM_BEGINS = (4200, 6800, 9400, 12_000)
_FARM = {"": 300, "creep": 800, "power": 500, "vibration": 300, "stuck": 150, "bias": 500,
         "pitch": 500, "noise": 300, "lag": 300, "trip": 30}  # fmt: skip
"""Rows of each kind of fault at a farm."""
NULLS = ("waking", "directions", "dark_nights", "regimes")


def beside(draft: str) -> str:
    """Return a config in which all sensors are siblings."""
    return draft.replace("[input]\n", '[input]\nsiblings = "*"\n', 1)


def farm(cases: Path, name: str, seed: int, *, siblings: bool) -> str:
    """Say which of a farm's four faults at T2 are told, and what else; nobody answers."""
    case = run(cases, name, seed, beside if siblings else lambda draft: draft)
    times = [one["event_time_ms"] for one in case.verdicts if one["sensor"] == "T2"]
    spans = [(times[a], times[a + _FARM[name.partition("-")[2]]]) for a in _FARM_BEGINS]
    told = [(one["sensors"][0], one["opened_ms"]) for one in case.opened]
    hits = [any(who == "T2" and a <= at < b for who, at in told) for a, b in spans]
    others = [at for who, at in told if who != "T2" or not any(a <= at < b for a, b in spans)]
    months = 8 * (times[-1] - times[0]) / MONTH_MS
    weather = [times[a] for a in range(3000, len(times) - 500, 1100)]
    n_weather = sum(
        any(a <= at < a + 530 * (times[1] - times[0]) for at in others) for a in weather
    )
    return (
        f"{sum(hits)} of 4 told, {len(others) / months:.2f} others a turbine-month, "
        f"{n_weather} of {len(weather)} weathers"
    )


def null_rate(
    cases: Path, name: str, seeds: Sequence[int], options: Sequence[str] = ()
) -> tuple[int, float]:
    """Return the alerts of a plant over seeds, and how many are asked for."""
    alerts, months = 0, 0.0
    for seed in seeds:
        case = run(cases, name, seed, options=options)
        alerts += len(case.opened)
        span = case.verdicts[-1]["event_time_ms"] - case.verdicts[0]["event_time_ms"]
        months += span / MONTH_MS
    return alerts, months


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("cases", type=Path)
    parser.add_argument("--names", nargs="*", default=[*FAULTS, *NULLS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--null-seeds", type=int, default=20)
    parser.add_argument("--contamination", help="another γ than `init` guesses")
    args = parser.parse_args()
    options = ["--contamination", args.contamination] if args.contamination else []
    rows: list[list[Any]] = []
    for name in args.names:
        if name.startswith("farm"):
            for siblings in (False, True):
                said = [
                    farm(args.cases.resolve(), name, 1 + i, siblings=siblings)
                    for i in range(args.seeds)
                ]
                rows.append([name, "siblings" if siblings else "alone", "; ".join(said)])
                print(*rows[-1], sep=" | ", flush=True)
            continue
        if name in FAULTS:
            found = [
                FAULTS[name](run(args.cases.resolve(), name, 1 + i, options=options))
                for i in range(args.seeds)
            ]
            right = sum(is_right for is_right, _ in found)
            rows.append([name, f"{right} of {len(found)}", "; ".join(text for _, text in found)])
        else:
            seeds = range(1, args.null_seeds + 1)
            alerts, asked = null_rate(args.cases.resolve(), name, seeds, options)
            rows.append(
                [
                    name,
                    f"{alerts / asked:.2f} of what is asked",
                    f"{alerts} alerts, {asked:.1f} asked",
                ]
            )
        print(*rows[-1], sep=" | ", flush=True)
    if {*args.names} >= {*FAULTS, *NULLS} and not options:
        write(
            "plants",
            "Plants with known faults, by the config that `init` writes",
            [("", ["plant", "right", "seen"], rows)],
        )


if __name__ == "__main__":
    main()
