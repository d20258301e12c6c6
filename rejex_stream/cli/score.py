"""``score``: a quick look at any CSV."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated

import typer

from rejex_stream.cli.progress import counting
from rejex_stream.cli.show import (
    As,
    AsOption,
    number,
    print_facts,
    print_json,
    print_table,
    share,
)
from rejex_stream.encode import encode_verdict
from rejex_stream.errors import ConnectorError
from rejex_stream.planner import Plan, plan
from rejex_stream.replay import Replayed, Table, open_table, replay
from rejex_stream.suggest import Suggestion, suggest
from rejex_stream.tally import Measured
from rejex_stream.types import Label, Verdict

__all__ = ["score"]


def score(  # noqa: PLR0917 - one parameter an option
    file: Annotated[Path, typer.Argument(help="A CSV table, plain or .gz.")],
    contamination: Annotated[
        float, typer.Option("--contamination", "-c", help="γ, the expected share of anomalies.")
    ] = 0.05,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", "-T", help="T, instead of a budget.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Share of events that may be rejected.  [default: γ]")
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", "-n", help="n.  [default: by the length]")
    ] = None,
    detector: Annotated[str, typer.Option(help="Name of the detector.")] = "IForest",
    time: Annotated[
        str | None, typer.Option(help="Column of the time.  [default: guessed]")
    ] = None,
    sensor: Annotated[
        str | None, typer.Option(help="Column of the sensor.  [default: guessed]")
    ] = None,
    channel: Annotated[
        list[str] | None, typer.Option(help="A channel; several times.  [default: guessed]")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the known truth.  [default: guessed]")
    ] = None,
    verdicts: Annotated[
        Path | None, typer.Option(help="Where to write the verdicts, as JSON Lines; - for stdout.")
    ] = None,
    output: AsOption = As.TABLE,
) -> None:
    """Have a quick look at any CSV: guess its columns, judge every row, sum up.

    What was guessed is said; for anything lasting, write a config.
    """
    table = open_table(file, time=time, sensor=sensor, label=label, channels=channel or ())
    choice = suggest(
        table.n_rows,
        table.n_sensors,
        table.guess.channels,
        contamination=contamination,
        tolerance=tolerance,
        rate=rate,
        window=window,
        detector=detector,
    )
    truth = _Truth(table.labels())
    with ExitStack() as exits:
        write = _writer(verdicts, exits)
        progress = exits.enter_context(counting(table.n_rows, "rows"))

        def take(batch: Sequence[Verdict]) -> None:
            truth.add(batch)
            write(batch)

        replayed = replay(
            choice.spec,
            table.decoder(pooled=choice.pooled),
            table.records(),
            on_verdicts=take,
            on_progress=progress,
        )
    promise = plan(
        contamination,
        choice.spec.window,
        choice.spec.policy.tolerance,
        rate=choice.spec.policy.rate,
    )
    if output is As.JSON:
        print_json(
            {
                "guess": table.guess,
                "notes": choice.notes,
                "plan": promise,
                "measured": replayed.measured,
                "truth": truth.result(),
            }
        )
        return
    _print(table, choice, replayed, promise, truth, stderr=str(verdicts) == "-")


class _Truth:
    """Known labels beside verdicts, warm-up apart."""

    def __init__(self, labels: dict[int, bool]) -> None:
        self._labels = labels
        self._counts: Counter[tuple[bool, Label]] = Counter()

    def add(self, verdicts: Sequence[Verdict]) -> None:
        if not self._labels:
            return
        for verdict in verdicts:
            known = self._labels.get(verdict.position.offset)
            if known is not None and verdict.rank is not None and verdict.band_lower is not None:
                self._counts[known, verdict.label] += 1

    def result(self) -> dict[str, dict[str, int]] | None:
        """Return verdicts by truth; ``None`` without any label."""
        if not self._counts:
            return None
        return {
            name: {str(label): self._counts[known, label] for label in Label}
            for name, known in (("anomalies", True), ("normal", False))
        }


def _writer(path: Path | None, exits: ExitStack) -> Callable[[Sequence[Verdict]], object]:
    if path is None:
        return lambda batch: None
    if str(path) == "-":
        out: IO[bytes] = sys.stdout.buffer
    else:
        try:
            out = exits.enter_context(path.open("wb"))
        except OSError as error:
            raise ConnectorError(f"cannot write {path}: {error.strerror}.") from error
    return lambda batch: out.write(b"".join(encode_verdict(v) + b"\n" for v in batch))


def _print(
    table: Table,
    choice: Suggestion,
    replayed: Replayed,
    promise: Plan,
    truth: _Truth,
    *,
    stderr: bool,
) -> None:
    guess = table.guess
    facts = [
        ("time", f"{guess.time} ({guess.time_unit})" if guess.time else "none: rows 1 s apart"),
        ("sensor", f"{guess.sensor}: {table.n_sensors:,}" if guess.sensor else "one"),
        ("channels", ", ".join(guess.channels)),
    ]
    if guess.label:
        facts.append(("label", f"{guess.label} (kept from the detector)"))
    by_reason: dict[str, list[str]] = {}
    for name, why in guess.aside.items():
        by_reason.setdefault(why, []).append(name)
    facts += [("left out", f"{', '.join(names)}: {why}") for why, names in by_reason.items()]
    facts += [(name, said) for name, _, said in (note.partition(": ") for note in choice.notes)]
    print_facts(facts, title=f"{table.path.name}: {table.n_rows:,} rows; guessed", stderr=stderr)
    print_measured(replayed.measured, promise, stderr=stderr)
    known = truth.result()
    if known is not None:
        rows = [
            (f"labelled {name}", *(number(counts[str(label)]) for label in Label))
            for name, counts in known.items()
        ]
        print_table(("", *(str(label) for label in Label)), rows, stderr=stderr)
    where = sys.stderr if stderr else sys.stdout
    for failed in replayed.failures[:3]:
        print(f"a fit failed: {failed}", file=where)
    if replayed.first_invalid is not None:
        first = replayed.first_invalid
        print(
            f"{replayed.measured.invalid:,} rows could not be read; the first, row "
            f"{first.position.offset + 1:,}: {first.reason}",
            file=where,
        )


def print_measured(measured: Measured, promise: Plan, *, stderr: bool = False) -> None:
    """Print predicted beside measured."""
    known = promise.promise
    assert known is not None
    print_facts(
        [
            ("normal", f"{measured.normal:,}"),
            ("anomaly", f"{measured.anomaly:,}"),
            (
                "rejected",
                f"{measured.rejected:,}"
                + "".join(f"; {name} {count:,}" for name, count in measured.reasons.items()),
            ),
        ],
        title="Verdicts",
        stderr=stderr,
    )
    limits = (
        f"{share(measured.lower)} to {share(measured.upper)}" if measured.lower is not None else "-"
    )
    rows = [
        ("rejection rate", share(known.expected_rate), share(measured.rejection_rate), limits),
        (f"  exact bound, δ = {promise.delta:g}", share(known.exact_bound), "", ""),
        ("  paper bound", share(known.paper_bound), "", ""),
        ("accepted anomalies", share(known.anomaly_rate), share(measured.anomaly_rate), ""),
        (
            "flagged",
            share(known.n_anomalies / (promise.window + 1)),
            share(measured.flagged_rate),
            "",
        ),
        ("episodes for review", "", number(measured.episodes), ""),
        ("rejected events an episode", "", number(measured.events_per_episode), ""),
        ("variance inflation", "1", number(measured.inflation), ""),
    ]
    print_table(
        (f"of {measured.ranked:,} ranked events", "predicted", "measured", "99 % limits"),
        rows,
        stderr=stderr,
    )
    if known.expected_rate and measured.lower is not None and measured.upper is not None:
        expected = measured.expected_rate or known.expected_rate
        if not measured.lower <= expected <= measured.upper:
            print(
                "The measured rate is outside what the theory expects: scores drift, repeat, or "
                "are too autocorrelated for this window.",
                file=sys.stderr if stderr else sys.stdout,
            )
