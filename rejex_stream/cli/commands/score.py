"""``score``: any table judged, with an answer row by row."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import time as clock
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated

import typer

from rejex_stream.cli import table_options as options
from rejex_stream.cli.bars import counting
from rejex_stream.cli.show import (
    As,
    AsOption,
    number,
    outcome_facts,
    outcome_rows,
    print_facts,
    print_json,
    print_table,
)
from rejex_stream.config import name_of
from rejex_stream.encode import encode_verdict
from rejex_stream.errors import ConfigError, explaining_os_errors
from rejex_stream.incidents.incident_settings import Alarms
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.operate.logs import escaped
from rejex_stream.plan.promises import plan
from rejex_stream.plan.suggest import Suggestion
from rejex_stream.readable import utc
from rejex_stream.rejection.window import grade
from rejex_stream.tables.draft import draft_config, opened, save_draft
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import Table
from rejex_stream.tables.json_fields import Feed, open_file
from rejex_stream.tables.scored import Episode, Episodes, ScoredCsv, judge_table
from rejex_stream.types import Invalid, Label, OutcomeCounts, Reading, Verdict


@options.gathering(asked=options.known)
def score(  # noqa: PLR0917 - one parameter an option
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV or JSON Lines, plain or gzip, Excel or Parquet; - is standard input."
        ),
    ],
    contamination: options.Contamination = 0.05,
    tolerance: options.Tolerance = None,
    rate: options.Rate = None,
    window: options.Window = None,
    detector: options.Detector = None,
    *,
    asked: Asked,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the table with its verdicts; - for stdout.")
    ] = None,
    save_config: Annotated[
        Path | None, typer.Option(help="Where to write the config that run needs for the same.")
    ] = None,
    verdicts: Annotated[
        Path | None, typer.Option(help="Where to write the verdicts, as JSON Lines; - for stdout.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the worst episodes to show.")] = 10,
    output: AsOption = As.TABLE,
) -> None:
    """Judge any table: guess how it is written, judge every row, say which ones are anomalous.

    What was guessed is said, with the option that changes it; for anything lasting, --save-config.
    """
    if "-" == str(out) == str(verdicts):
        raise ConfigError("--out and --verdicts are both -: standard output takes one of them.")
    with ExitStack() as exits:
        at_hand = _at_hand(file, exits)
        table = open_file(at_hand, asked)
        for line in table.said:
            print(f"{at_hand.name}: {escaped(line)}", file=sys.stderr)
        choice = table.suggested(
            contamination=contamination, tolerance=tolerance, rate=rate, window=window,
            detector=detector,
        )  # fmt: skip
        _save_config(save_config, table, choice, file)
        read = opened(table.settings(), table.told(), pooled=choice.pooled)
        records, unread = read.records, dict[int, Invalid]()  # of a batch
        truth, episodes = Counter[tuple[bool, Label]](), Episodes(read.decoder.channels)
        to_file = _writer(verdicts, exits)
        scored = None if out is None else ScoredCsv(_as_table(table), _opened(out, exits))
        records = records if scored is None else scored.passing(records)
        progress = exits.enter_context(counting(table.n_rows, "rows"))

        def take(readings: Sequence[Reading], batch: Sequence[Verdict]) -> None:
            truth.update(
                (table.labels[verdict.position.offset], verdict.label)
                for verdict in batch
                if verdict.band_lower is not None and verdict.position.offset in table.labels
            )
            episodes.add(readings, batch)
            to_file(batch)
            if scored is not None:
                scored.add(batch, unread)
            unread.clear()

        begun = clock.monotonic()
        # Which channels speak, and what comes to an incident that is open.
        spec = dataclasses.replace(choice.spec, evidence=True, alarms=Alarms())
        counts, failures = judge_table(
            spec, read.decoder, records, take, progress,
            on_unread=unread.update, on_told=episodes.take_told, rules=read.rules,
        )  # fmt: skip
        if scored is not None:
            scored.finish()
        spent = clock.monotonic() - begun
    print(f"{at_hand.name}: {table.n_rows:,} rows judged in {spent:.1f} s", file=sys.stderr)
    by_truth = {
        name: {str(label): truth[known, label] for label in Label}
        for name, known in (("anomalies", True), ("normal", False))
    }
    promise = plan(contamination, spec.window, spec.policy.tolerance, rate=spec.policy.rate)
    incidents, others = episodes.most_severe(top)
    if output is As.JSON:
        result = {
            "guess": table.guess,
            "said": table.said,
            "notes": choice.notes,
            "plan": promise,
            "measured": outcome_facts(counts),
            "incidents": incidents[:top],
            "n_incidents": len(incidents),
            "episodes": others[:top],
            "n_episodes": len(others),
            "truth": by_truth if truth else None,
        }
        print_json(result)
        _require_ranks(counts, choice)
        return
    stderr = "-" in (str(verdicts), str(out))
    _print_episodes(incidents, others, top, stderr=stderr)
    expected = None if promise.promise is None else promise.promise.expected_rate
    facts = [
        *outcome_rows(counts, expected),
        *table.guess.facts(),
        *((name, said) for name, _, said in (note.partition(": ") for note in choice.notes)),
    ]
    print_facts(facts, title=f"{at_hand.name}: {table.n_rows:,} rows", stderr=stderr)
    if truth:
        rows = [
            (f"labelled {name}", *map(number, counts.values())) for name, counts in by_truth.items()
        ]
        print_table(("", *map(str, Label)), rows, stderr=stderr)
    for failed in failures[:3]:
        print(f"a fit failed: {failed}", file=sys.stderr if stderr else sys.stdout)
    _require_ranks(counts, choice)


def _as_table(table: Table | Feed) -> Table:
    if isinstance(table, Feed):
        raise ConfigError("--out writes a table with its verdicts: of JSON give --verdicts.")
    return table


def _require_ranks(counts: OutcomeCounts, choice: Suggestion) -> None:
    n_events = counts.labels.total()
    if counts.n_ranked or not n_events:
        return
    why = str(counts.reasons.most_common(1)[0][0]) if counts.reasons else ""
    fix = (
        "a channel is missing in all of them: --carry ROWS lets its last value stand, --channel "
        "leaves it out"
        if why == "unscorable"
        else f"a window of {choice.spec.window:,} did not fill: give a smaller --window, or more "
        "rows"
    )
    raise ConfigError(
        f"none of {n_events:,} rows could be ranked, all were rejected ({why}): {fix}."
    )


def _at_hand(file: Path, exits: ExitStack) -> Path:
    """Return a file that can be read twice; standard input and pipes are copied."""
    is_stdin = str(file) == "-"
    if not (is_stdin or file.is_fifo() or file.is_char_device()):
        return file
    copied = Path(exits.enter_context(tempfile.TemporaryDirectory()))
    copied /= "stdin" if is_stdin else file.name
    with copied.open("wb") as copy:
        given = sys.stdin.buffer if is_stdin else exits.enter_context(file.open("rb"))
        shutil.copyfileobj(given, copy)
    return copied


def _save_config(where: Path | None, table: Table | Feed, choice: Suggestion, file: Path) -> None:
    if where is None:
        return
    source = table.settings()
    if str(file) == "-":
        source["path"] = "-"
    text = draft_config(
        source,
        choice,
        name=name_of(where),
        told=table.told(),
        comments=[f"Written by rejex-stream score {file.name}.", *map(escaped, table.said)],
    )
    save_draft(where, text)


def _print_episodes(
    incidents: Sequence[Episode], others: Sequence[Episode], top: int, *, stderr: bool
) -> None:
    if not incidents and not others:
        print("No episode: nothing but normal rows.", file=sys.stderr if stderr else sys.stdout)
    columns = (
        "sensor", "from (UTC)", "to", "rows", "anomaly", "rejected", "severity",
        "what it read at its worst",
    )  # fmt: skip
    named = "Other episodes" if incidents else "Episodes"
    for what, episodes in ("Incidents, faults that last", incidents), (named, others):
        if episodes:
            some = f", the {top} most severe" if len(episodes) > top else ""
            rows = [_row(episode) for episode in episodes[:top]]
            title = f"{what}: {len(episodes):,}{some}"
            print_table(columns, rows, title=title, left=(0, 1, 2, 3, 7), stderr=stderr)


def _row(episode: Episode) -> tuple[str, ...]:
    last = f" to {episode.last_row:,}" if episode.last_row > episode.first_row else ""
    ends = episode.first_ms, episode.last_ms
    since, until = (f"{utc(at_ms):%Y-%m-%d %H:%M:%S}" for at_ms in ends)
    further = [f"also {name} since {utc(ms):%m-%d %H:%M}" for name, ms in episode.further.items()]
    n_others = len(episode.together)
    others = f" and {n_others} other{'s' * (n_others > 1)} together" if n_others else ""
    return (
        episode.sensor + others,
        since,
        until.removeprefix(since[:11]),  # the same day
        f"{episode.first_row:,}{last}",
        number(episode.anomalies),
        number(episode.rejected),
        "–"
        if episode.severity is None
        else "{} of 100 ({})".format(*grade(episode.severity, episode.anomalies)),
        "; ".join([*map(DisplayNames().reading_text, episode.reads), *further]) or "–",
    )


def _writer(path: Path | None, exits: ExitStack) -> Callable[[Sequence[Verdict]], object]:
    if path is None:
        return lambda batch: None
    out = _opened(path, exits)
    return lambda batch: out.write(b"".join(encode_verdict(v) + b"\n" for v in batch))


def _opened(path: Path, exits: ExitStack) -> IO[bytes]:
    if str(path) == "-":
        return sys.stdout.buffer
    with explaining_os_errors(f"cannot write {path}"):
        return exits.enter_context(path.open("wb"))
