"""What all plants share: fetched by pip, judged by `init`'s config, beside peers, in one table.

python -m benchmarks.plants.frame           writes the tables of all plants into docs

A telling is an incident's opening, or a further channel of one that is open. Each is given to a
fault of its sensor that runs and was told of by none, the one that began last first; a telling for
which there is none is false, one more of a fault that was told as well. Those up to three days
after a fault's end are neither: they are its repair. Nobody answers an incident.

Peers score the same rows, fitted on the newest 2,000 at the counts at which ours are. Their scores
are means over six rows; an alert is a row beyond a limit after a day without one. The limit is an
oracle's: it makes as many alerts as ours.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from benchmarks.harness import RESULTS, write
from benchmarks.kinds import Floats, filled, largest_z, refitted
from rejex_stream.config.reviewing import Review
from rejex_stream.review.queue.review_store import ReviewStore

DAY, REPAIR = timedelta(days=1), timedelta(days=3)
MONTH = 30 * DAY
SMOOTH, QUIET, AT_ONCE, LONGEST = 6, DAY, 500, 12
DOCS = Path(__file__).parents[2] / "docs"
COLUMNS = ["judged by", "told", "days until then", "false a sensor-month", "alerts", "questions"]


class Fault(NamedTuple):
    """What is wrong, where, and from when to when; with no sensor, wherever it shows."""

    name: str
    kind: str
    start: datetime
    end: datetime
    sensor: str = ""


class Telling(NamedTuple):
    """What people were told, and when."""

    at: datetime
    channel: str
    is_further: bool  # of an incident that was open
    sensor: str = ""


class Rows(NamedTuple):
    """What one sensor read: times, and values of shape (n, channels)."""

    times: list[datetime]
    X: Floats


class Queue(NamedTuple):
    """What reviewers are asked by: events, cases and questions, situations of incidents among."""

    events: int
    cases: int
    questions: int
    beside: int  # incidents that opened while another sensor's was open
    apart: int  # those of them that were of none of its situations


class Judged(NamedTuple):
    """What was told of a table, and what was asked."""

    told: list[Telling]
    queue: Queue


def download(folder: Path, *wheels: str) -> None:
    """Bring wheels and unpack them, unless that was done."""
    done = folder / f"{'-'.join(wheels)}.done"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", str(folder)]
    subprocess.run([*pip, *wheels], check=True)
    for wheel in folder.glob("*.whl"):
        unpack(wheel, folder)
    done.touch()


def unpack(archive: Path, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(archive), str(folder)], check=True)


def moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


# ------------------------------------------------------------------------------------- ours
def alone(draft: str) -> str:
    """Return the config as `init` writes it."""
    return draft


def beside(draft: str) -> str:
    """Return a config in which all sensors are siblings."""
    return draft.replace("[input]\n", '[input]\nsiblings = "*"\n', 1)


def judged(table: Path, changed: Callable[[str], str] = alone) -> Judged:
    """Run the config that `init` writes; return what people were told and asked."""
    at = table.with_suffix(".run")
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()

    def call(*command: str) -> None:
        command = (sys.executable, "-m", "rejex_stream", *command)
        subprocess.run(command, cwd=at, check=True, capture_output=True)

    call("init", str(table), "--to", "c.toml", "--force")
    config = at / "c.toml"
    config.write_text(changed(config.read_text()))
    call("run", "c.toml")
    lines = (at / "c.incidents.jsonl").read_bytes().splitlines()
    records = [one for one in map(json.loads, lines) if one.get("kind") == "incident"]
    found = Judged(tellings(records), asked(at, lines))
    shutil.rmtree(at)
    return found


def tellings(records: Iterable[dict[str, Any]]) -> list[Telling]:
    """Return openings and further channels, each once, in their order."""
    found, known = list[Telling](), set[tuple[str, str]]()
    for record in records:
        at, sensor = moment(record["changed_ms"]), (record.get("sensors") or [""])[0]
        if (record["incident"], "") not in known:
            known.add((record["incident"], ""))
            channel = (record["channels"] or [{"channel": "?"}])[0]["channel"]
            found.append(Telling(at, channel, False, sensor))
        for spread in record.get("spread", ()):
            if (record["incident"], spread["channel"]) not in known:
                known.add((record["incident"], spread["channel"]))
                found.append(Telling(at, spread["channel"], True, sensor))
    return found


def asked(at: Path, incidents: Sequence[bytes]) -> Queue:
    """Let the review store take a run's output as it came; return what it asks."""
    offsets = [json.loads(line)["offset"] for line in incidents]
    store, taken = ReviewStore(at / "store.db", Review(settle_s=0)), 0
    reviews = (at / "c.review.jsonl").read_bytes().splitlines()
    for start in range(0, len(reviews), AT_ONCE):
        some = reviews[start : start + AT_ONCE]
        store.ingest("review", some)
        newest = max(json.loads(line).get("offset", 0) for line in some)
        until = bisect_left(offsets, newest + 1)
        store.ingest("incidents", incidents[taken:until])
        taken = max(taken, until)
    store.ingest("incidents", incidents[taken:])
    with store.database.read() as connection:

        def number(query: str) -> int:
            return int(connection.execute(query).fetchone()[0])

        of = dict(connection.execute("SELECT incident, situation FROM incident").fetchall())
        cases = number("SELECT count(*) FROM episode")
        questions = number("SELECT count(DISTINCT question) FROM episode WHERE incident IS NULL")
    store.close()
    last = {one["incident"]: one for one in map(json.loads, incidents) if "incident" in one}
    n_beside, n_apart = at_once(list(last.values()), of)
    n_events = sum(b'"verdict"' in line for line in reviews)
    return Queue(n_events, cases, questions + len(set(of.values())), n_beside, n_apart)


def at_once(last: Sequence[dict[str, Any]], situations: dict[str, str]) -> tuple[int, int]:
    """Return how many incidents opened beside another sensor's, and how many of no such one's."""
    n_beside = n_apart = 0
    for one in last:
        others = [
            situations[it["incident"]]
            for it in last
            if it["sensors"] != one["sensors"]
            and it["opened_ms"] <= one["opened_ms"]
            and (it["state"] != "closed" or one["opened_ms"] <= it["changed_ms"])
        ]
        n_beside += bool(others)
        n_apart += bool(others) and situations[one["incident"]] not in others
    return n_beside, n_apart


def assigned(
    told: Iterable[Telling], faults: Sequence[Fault]
) -> tuple[dict[str, Telling], list[Telling]]:
    """Return the telling of each fault that has one, and those that are false."""
    of, false = dict[str, Telling](), list[Telling]()
    for telling in told:
        own = [one for one in faults if one.sensor in ("", telling.sensor)]
        running = [x for x in own if x.start <= telling.at < x.end]
        if new := [one for one in running if one.name not in of]:
            of[max(new, key=lambda fault: fault.start).name] = telling
        elif not any(one.end <= telling.at < one.end + REPAIR for one in own):
            false.append(telling)
    return of, false


# ------------------------------------------------------------------------------------ peers
def squares(X: Floats) -> Floats:
    """PCA's T2 and SPE, whichever is further beyond its own .99 quantile."""

    def fit(rows: Floats) -> Callable[[Floats], Floats]:
        pca = Pca(rows)
        usual = np.maximum(np.quantile(pca(rows), 0.99, axis=0), 1e-9)
        return lambda new: (pca(new) / usual).max(axis=1)

    return refitted(filled(X), fit)


def residual(X: Floats) -> Floats:
    """Return the largest residual of a channel that all others explain by ridge."""

    def fit(rows: Floats) -> Callable[[Floats], Floats]:
        mean, sd = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
        Z = (rows - mean) / sd
        inverse = np.linalg.inv(Z.T @ Z / len(Z) + 1e-3 * np.eye(Z.shape[1]))
        weights = inverse / np.diag(inverse)  # what is left of each channel is Z @ weights
        usual = np.maximum((Z @ weights).std(axis=0), 1e-9)
        return lambda new: np.abs((new - mean) / sd @ weights / usual).max(axis=1)

    return refitted(filled(X), fit)


class Pca:
    """T2 and SPE of the components of a table that hold nine tenths of its variance."""

    def __init__(self, train: Floats) -> None:
        self.mean, self.std = train.mean(axis=0), np.maximum(train.std(axis=0), 1e-9)
        _, s, axes = np.linalg.svd((train - self.mean) / self.std, full_matrices=False)
        variances = s**2 / (len(train) - 1)
        n = int(np.searchsorted(np.cumsum(variances) / variances.sum(), 0.9)) + 1
        self.axes, self.variances = axes[:n].T, variances[:n]

    def __call__(self, X: Floats) -> Floats:
        """Return both, shape (n, 2)."""
        Z = (X - self.mean) / self.std
        T = Z @ self.axes
        return np.column_stack(
            [(T**2 / self.variances).sum(1), ((Z - T @ self.axes.T) ** 2).sum(1)]
        )


PEERS = {"PCA, T² and SPE": squares, "regression residual": residual, "max abs z": largest_z}
DRAWN = next(iter(PEERS))  # in the pictures, beside ours


def scored(
    rows: dict[str, Rows], score: Callable[[Floats], Floats]
) -> list[tuple[str, Rows, Floats]]:
    kernel = np.ones(SMOOTH) / SMOOTH
    return [
        (sensor, one, np.convolve(np.nan_to_num(score(one.X)), kernel)[: len(one.X)])
        for sensor, one in rows.items()
    ]


def alerts(
    scores: Sequence[tuple[str, Rows, Floats]], wanted: int, quiet: timedelta = QUIET
) -> list[Telling]:
    """Return the alerts of the lowest limit that makes no more of them than is wanted."""
    every = np.concatenate([score for _, _, score in scores])
    best: list[Telling] = []
    for share in np.geomspace(1 / len(every), 0.2, 120):
        limit, found = np.quantile(every, 1 - share), list[Telling]()
        for sensor, rows, score in scores:
            last = None
            for i in np.flatnonzero(score > limit):
                at = rows.times[i]
                if last is None or at - last > quiet:
                    found.append(Telling(at, "", False, sensor))
                last = at
        if len(found) > wanted:
            break
        best = found
    return sorted(best)


# ------------------------------------------------------------------------------------ tables
class Tally:
    """What one judge said of a plant, over its seeds."""

    def __init__(self, name: str) -> None:
        self.name, self.delays, self.n_faults = name, list[float](), 0
        self.false = self.alerts = self.questions = 0
        self.months = 0.0

    def add(
        self, told: Sequence[Telling], faults: Sequence[Fault], within: timedelta, months: float
    ) -> None:
        """Take what was told of a table with faults, in so many months of its sensors."""
        of, false = assigned(told, faults)
        delays = [of[one.name].at - one.start for one in faults if one.name in of]
        self.delays += [delay / DAY for delay in delays if delay < within]
        self.n_faults += len(faults)
        self.false, self.alerts = self.false + len(false), self.alerts + len(told)
        self.months += months

    def row(self) -> list[Any]:
        """Return the judge's line of the table."""
        median = float(np.median(self.delays)) if self.delays else "-"
        said = f"{len(self.delays)} of {self.n_faults}"
        false = self.false / self.months
        return [self.name, said, median, false, self.alerts, self.questions or "-"]


def sensor_months(rows: dict[str, Rows]) -> float:
    return sum((one.times[-1] - one.times[0]) / MONTH for one in rows.values())


def by_chance(told: Sequence[Telling], sensors: Sequence[str], span: tuple[datetime, datetime],
              within: timedelta) -> float:  # fmt: skip
    """Return the share of all spans so long, of all sensors, in which one was told."""
    begins = np.arange(0, (span[1] - span[0] - within) / timedelta(hours=1))
    hits = 0
    for sensor in sensors:
        own = [(one.at - span[0]) / timedelta(hours=1) for one in told if one.sensor == sensor]
        long = within / timedelta(hours=1)
        hits += sum(any(b <= at < b + long for at in own) for b in begins.tolist())
    return hits / len(begins) / len(sensors)


def binomial(hits: int, n: int, chance: float) -> float:
    """Return how likely so many hits or more are by chance."""
    return float(binom.sf(hits - 1, n, chance))


# ----------------------------------------------------------------------------------- pictures
STYLE = (
    "text{font:12px sans-serif;fill:#333}.line{stroke:#8886}.fault{fill:#e8a33d55}"
    ".hit{fill:#1a7f37}.false{fill:#c2331f}.peer{fill:#8a8f98}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.hit{fill:#4ac26b}.false{fill:#ff7b6b}}"
)


class Lane(NamedTuple):
    """A line of a picture: a sensor's faults, what was told by us, and by a peer."""

    label: str
    faults: Sequence[Fault]
    ours: Sequence[Telling]
    peer: Sequence[Telling]


def picture(
    path: Path, title: str, lanes: Sequence[Lane], begin: datetime, end: datetime, peer: str
) -> None:
    """Draw what was told when: ours above each line, a peer's below it."""
    left, width, high = 150, 760, 34 if len(lanes) < 10 else 18
    parts = [f"<text x='8' y='18'>{title}</text>"]

    def x(at: datetime) -> float:
        return left + (width - left - 10) * min(max((at - begin) / (end - begin), 0.0), 1.0)

    def tick(at: datetime, y: float, kind: str) -> str:
        place = f"x='{x(at):.1f}' y='{y:.1f}'"
        return f"<rect class='{kind}' {place} width='2.5' height='{high / 3:.1f}'/>"

    for number, lane in enumerate(lanes):
        y = 34 + high * (number + 0.5)
        parts.append(f"<text x='8' y='{y + 4:.0f}'>{lane.label}</text>")
        parts.append(f"<line class='line' x1='{left}' x2='{width - 10}' y1='{y}' y2='{y}'/>")
        for one in lane.faults:
            wide = max(x(one.end) - x(one.start), 2.0)
            parts.append(
                f"<rect class='fault' x='{x(one.start):.1f}' y='{y - high / 2.4:.1f}' "
                f"width='{wide:.1f}' height='{high / 1.2:.1f}'><title>{one.name}</title></rect>"
            )
        _, false = assigned(lane.ours, lane.faults)
        for telling in lane.ours:
            kind = "false" if telling in false else "hit"
            parts.append(tick(telling.at, y - high / 2.6, kind))
        parts += [tick(one.at, y + high / 24, "peer") for one in lane.peer]
    low = 34 + high * len(lanes) + 18
    says = [("fault", "a fault"), ("hit", "told of it"), ("false", "of none, or again"),
            ("peer", f"below: {peer}")]  # fmt: skip
    for number, (kind, text) in enumerate(says):
        at = left + 130 * number
        parts.append(f"<rect class='{kind}' x='{at}' y='{low - 10}' width='10' height='10'/>")
        parts.append(f"<text x='{at + 15}' y='{low}'>{text}</text>")
    path.write_text(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {low + 10}' role='img'>"
        f"<title>{title}</title><style>{STYLE}</style>{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def publish(
    name: str, title: str, scale: str, rows: list[list[Any]],
    more: Sequence[tuple[str, list[str], list[list[Any]]]] = (),
) -> None:  # fmt: skip
    """Write a plant's tables, with the scale that they were made at."""
    write(f"plants-{name}", title, [(scale, COLUMNS, rows), *more], note="Nobody answers.")


def main() -> None:
    """Write what the commands printed of all plants into the page in docs, but for long tables."""
    page = DOCS / "explanation" / "plants.md"
    text = page.read_text(encoding="utf-8")
    for path in sorted(RESULTS.glob("plants-*.md")):
        name = path.stem.removeprefix("plants-")
        head, _, *parts = path.read_text(encoding="utf-8").strip().split("\n\n")
        drawn = f"![{head.strip('# ')}: what was told, and when](../pictures/{path.stem}.svg)"
        short = [
            f"{caption}\n\n{rows}"
            for caption, rows in zip(parts[::2], parts[1::2], strict=True)
            if rows.count("\n") <= LONGEST
        ]
        table = "\n".join(["", drawn, "", "\n\n".join(short), ""])
        where = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text = re.sub(where, lambda m, table=table: m[1] + table + m[2], text, flags=re.S)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
