"""The demo's water branch by other detectors, columns and refits; its wind farm by other windows.

Each is run as ``rejex-stream demo`` runs it, over the 1,268 hours that come with the package, and
over the wind farm of the demo and further ones like it.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from benchmarks.paper.tabulate import Table
from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import monitor_config
from rejex_stream.demo.datasets import play, prepare, water_faults, write_turbines
from rejex_stream.monitor import MonitorBank
from rejex_stream.plan.suggest import suggest
from rejex_stream.readable import percent
from rejex_stream.report import Findings, analyse_run
from rejex_stream.types import Verdict

__all__ = ["VARIANTS", "by_init", "changed", "within_limits", "write_demo"]

KNN: Final = 'name = "KNN"\nparams = { n_neighbors = 24 }'
ENSEMBLE: Final = 'name = "SensorEnsemble"'


def changed(text: str, detector: str | None, *without: str) -> str:
    """Return a config with another detector, and without some sections."""
    out = ("[detector]", *(f"[{name}]" for name in without))
    parts = [part for part in text.split("\n\n") if not part.startswith(out)]
    return "\n\n".join(parts if detector is None else [*parts, f"[detector]\n{detector}\n"])


def by_init(text: str, detector: str | None = None) -> str:
    """Return the config with the window, budget and refits that `init` gives this detector."""
    spec = suggest(1268, 1, ("flow_l_s",)).spec
    text = re.sub(r"(?m)^window = \d+", f"window = {spec.window}", text)
    budget = f"review_budget = {{ rate = {spec.policy.rate} }}"
    return changed(re.sub(r"(?m)^review_budget = .*$", budget, text), detector, "features", "refit")


VARIANTS: Final[dict[tuple[str, str, str], Callable[[str], str]]] = {
    ("Sensor (the demo)", "the demo's", "the demo's"): lambda text: text,
    ("KNN, 24 neighbours (before)", "the demo's", "the demo's"): lambda text: changed(text, KNN),
    ("SensorEnsemble", "the demo's", "the demo's"): lambda text: changed(text, ENSEMBLE),
    ("Sensor", "its own", "the demo's"): lambda text: changed(text, None, "features"),
    ("SensorEnsemble", "its own", "the demo's"): lambda text: changed(text, ENSEMBLE, "features"),
    ("Sensor", "the demo's", "default"): lambda text: changed(text, None, "refit"),
    ("KNN, 24 neighbours", "the demo's", "default"): lambda text: changed(text, KNN, "refit"),
    ("Sensor", "its own", "by `init`"): by_init,
    ("SensorEnsemble", "its own", "by `init`"): lambda text: by_init(text, ENSEMBLE),
}
"""Detector, columns, refits, and what makes the config of it from the demo's."""


FARMS: Final[dict[str, Callable[[str], str]]] = {
    "2 1/3 days, first fit after 5 (the demo)": lambda text: text,
    "a week, first fit after a week (before)": lambda text: re.sub(
        r"(?m)^(window|first_fit_events|refit_every_events) = \d+", r"\1 = 1008", text
    ),
}
"""Window and time between fits of the wind farm."""


def within_limits(verdicts: Iterable[Verdict], config: Config, every: int = 4) -> float:
    """Return in which share of the ranked events the theory's rate lies within the limits.

    These are the monitors' limits of the rolling rejection rate of all streams of a feed. They are
    looked at after every fourth event, from the first that have limits on.
    """
    bank, inside, n = MonitorBank(monitor_config(config)), 0, 0
    for at, verdict in enumerate(verdicts):
        bank.observe([verdict])
        if at % every or bank.stream(verdict.stream_key).cells is None:
            continue
        status = bank.status()
        if status.lower is not None and status.upper is not None and status.theory is not None:
            inside, n = (
                inside + (status.lower <= status.theory.expected_rate <= status.upper),
                n + 1,
            )
    return inside / n


def write_demo(out: Path) -> None:
    """Run every variant, and write ``demo.md`` into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    faults = [fault.title for fault in water_faults()]
    table = Table(
        "demo",
        [
            "detector",
            "columns",
            "refits",
            *faults,
            "rejected",
            "reviews a day",
            "false alarms a day",
            "rate within its limits",
        ],
    )
    for said, change in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            feed = prepare(Path(folder))[0]
            text = change(feed.config_path.read_text(encoding="utf-8"))
            feed.config_path.write_text(text, encoding="utf-8")
            feed = dataclasses.replace(feed, config=load_config(feed.config_path))
            play(feed)
            run = feed.run()
            share = within_limits((verdict for _, verdict in run.events), feed.config)
            table.add(*said, *_told(analyse_run(run)), f"{share:.3f}")
    (out / "demo.md").write_text(
        "# The water branch of the demo\n\n"
        "Made by `python -m benchmarks.streams demo`. Of the hours of each known fault: called an "
        "anomaly + rejected for review, of all; in brackets those that came in the warm-up. One "
        "review a day is planned (by `init` 1.2); theory allows 0.57 false alarms a day.\n\n"
        + table.markdown()
        + "\n\nThe wind farm, and two more that are simulated alike. In what share of the events "
        "theory's rate is within the monitors' limits of the rolling rate of all four turbines; "
        "incidents that lie in no known fault.\n\n" + _farms().markdown(),
        encoding="utf-8",
    )


def _farms() -> Table:
    columns = ["window and refits", "seed", "rate within its limits", "caught", "to review"]
    table = Table("farms", [*columns, "missed", "rejected", "false alarms a day", "in vain"])
    for said, change in FARMS.items():
        for seed in range(3):
            with tempfile.TemporaryDirectory() as folder:
                feed = prepare(Path(folder))[1]
                write_turbines(Path(str(feed.config.input.path)), seed)
                text = change(feed.config_path.read_text(encoding="utf-8"))
                feed.config_path.write_text(text, encoding="utf-8")
                feed = dataclasses.replace(feed, config=load_config(feed.config_path))
                play(feed)
                run = feed.run()
            found = analyse_run(run)
            share = within_limits((verdict for _, verdict in run.events), feed.config)
            in_vain = sum(
                not any(
                    one.stream_key == fault.sensor
                    and one.onset_ms <= fault.last_ms
                    and one.opened_ms >= fault.first_ms
                    for fault in feed.faults
                )
                for one in run.incidents
            )
            outcomes = [found.outcomes(name) for name in ("caught", "review", "missed")]
            rate = percent(found.counts.rejection_rate or 0.0)
            alarms = f"{found.false_alarms / found.days:.2f}"
            table.add(
                said, str(seed), f"{share:.3f}", *map(str, [*outcomes, rate, alarms, in_vain])
            )
    return table


def _told(findings: Findings) -> list[str]:
    cells = []
    for found in findings.faults:
        judged = found.n_anomaly + found.n_rejected + found.n_unscorable + found.n_normal
        early = found.n_events - judged
        cells.append(
            f"{found.outcome}: {found.n_anomaly} + {found.n_rejected} of {found.n_events}"
            + (f" ({early})" if early else "")
        )
    return [
        *cells,
        percent(findings.counts.rejection_rate or 0.0),
        f"{findings.n_ambiguous / findings.days:.1f}",
        f"{findings.false_alarms / findings.days:.2f}",
    ]
