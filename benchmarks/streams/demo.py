"""The demo's water branch by other detectors, columns and refits.

Each is run as ``rejex-stream demo`` runs it, over the 1,268 hours that come with the package.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.paper.tabulate import Table
from rejex_stream.config import load_config
from rejex_stream.demo.datasets import play, prepare, water_faults
from rejex_stream.plan.suggest import suggest
from rejex_stream.readable import percent
from rejex_stream.report import Findings, analyse_run

__all__ = ["VARIANTS", "by_init", "changed", "write_demo"]

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
        ],
    )
    for said, change in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            feed = prepare(Path(folder))[0]
            text = change(feed.config_path.read_text(encoding="utf-8"))
            feed.config_path.write_text(text, encoding="utf-8")
            feed = dataclasses.replace(feed, config=load_config(feed.config_path))
            play(feed)
            table.add(*said, *_told(analyse_run(feed.run())))
    (out / "demo.md").write_text(
        "# The water branch of the demo\n\n"
        "Made by `python -m benchmarks.streams demo`. Of the hours of each known fault: called an "
        "anomaly + rejected for review, of all; in brackets those that came in the warm-up. One "
        "review a day is planned (by `init` 1.2); theory allows 0.57 false alarms a day.\n\n"
        + table.markdown(),
        encoding="utf-8",
    )


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
