"""The engine over a file of one's own, as fast as it goes: no state kept, nothing written.

For a quick look at a table, and for putting measured numbers beside a plan's promise.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from threadpoolctl import threadpool_limits

from rejex_stream.decode import CsvDecoder, Decoder
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.executors import InlineExecutor
from rejex_stream.guess import TableGuess, guess_table, split_rows
from rejex_stream.mapping import FieldMapping
from rejex_stream.model import FitFailed
from rejex_stream.planner import EpisodeRule
from rejex_stream.tally import Measured, Tally
from rejex_stream.types import Invalid, Position, Reading, Record, Verdict

__all__ = ["Replayed", "Table", "open_table", "replay"]

_SAMPLE_ROWS = 5_000
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file whose columns are understood.

    Attributes
    ----------
    path
        Where it is.
    guess
        What the columns were taken for.
    delimiter, header
        As found; a table without a header gets the names ``column_1``, ….
    n_rows, n_sensors
        How many.
    has_header
        Whether the first line names the columns.
    """

    path: Path
    guess: TableGuess
    delimiter: str
    header: tuple[str, ...]
    n_rows: int
    n_sensors: int
    has_header: bool

    def mapping(self, *, pooled: bool = False) -> FieldMapping:
        """Return which column means what."""
        guess = self.guess
        return FieldMapping(
            channels=guess.channels,
            time=guess.time,
            time_unit=guess.time_unit,
            sensor=guess.sensor,
            fixed_sensor=None if guess.sensor else self.path.name.split(".")[0] or "table",
            pooled=pooled,
        )

    def decoder(self, *, pooled: bool = False) -> CsvDecoder:
        """Return what makes readings of the rows."""
        return CsvDecoder(self.mapping(pooled=pooled), self.header, self.delimiter)

    def records(self) -> Iterator[Record]:
        """Read the rows; the time of a row without one is its number, in seconds."""
        topic = self.path.name
        for offset, line in enumerate(_lines(self.path, skip=int(self.has_header))):
            yield Record(Position(topic, 0, offset), None, line, (), offset * 1000)

    def labels(self) -> dict[int, bool]:
        """Return the known truth by row, where the label says one."""
        if self.guess.label is None:
            return {}
        column = self.header.index(self.guess.label)
        truth: dict[int, bool] = {}
        words = {"1": True, "1.0": True, "true": True, "anomaly": True}
        words |= {"0": False, "0.0": False, "false": False, "normal": False}
        for offset, line in enumerate(_lines(self.path, skip=int(self.has_header))):
            cells = line.decode("utf-8", "replace").split(self.delimiter)
            known = words.get(cells[column].strip().lower()) if column < len(cells) else None
            if known is not None:
                truth[offset] = known
        return truth


def open_table(
    path: str | Path,
    *,
    time: str | None = None,
    sensor: str | None = None,
    label: str | None = None,
    channels: Sequence[str] = (),
) -> Table:
    """Look at a CSV file, plain or .gz, and guess what its columns mean.

    Raises
    ------
    ConnectorError
        If it cannot be read.
    ConfigError
        If it is no table, or a column that was named is not in it.
    """
    path = Path(path)
    lines = list(itertools.islice(_lines(path), _SAMPLE_ROWS))
    if not lines:
        raise ConfigError(f"{path} is empty: expected a CSV table with a header.")
    try:
        text = [line.decode("utf-8-sig") for line in lines]
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text ({error.reason}): expected a CSV table."
        ) from None
    delimiter, rows = split_rows(text)
    has_header = not any(_is_number(cell) for cell in rows[0])
    if has_header:
        header = tuple(name.strip() for name in rows[0])
        rows = rows[1:]
    else:
        header = tuple(f"column_{i + 1}" for i in range(len(rows[0])))
    if not rows:
        raise ConfigError(f"{path} has a header and no rows: there is nothing to look at.")
    guess = guess_table(header, rows, time=time, sensor=sensor, label=label, channels=channels)
    n_rows, sensors = _count(path, guess.sensor, delimiter, header, skip=int(has_header))
    return Table(path, guess, delimiter, header, n_rows, sensors, has_header)


def _count(
    path: Path, sensor: str | None, delimiter: str, header: Sequence[str], *, skip: int
) -> tuple[int, int]:
    """Return how many rows and sensors there are."""
    if sensor is None:
        return sum(1 for _ in _lines(path, skip=skip)), 1
    column, separator = list(header).index(sensor), delimiter.encode()
    names: set[bytes] = set()
    n_rows = 0
    for line in _lines(path, skip=skip):
        n_rows += 1
        cells = line.split(separator, column + 1)
        if column < len(cells):
            names.add(cells[column])
    return n_rows, max(1, len(names))


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay.

    Attributes
    ----------
    measured
        Counts, rates, episodes.
    failures
        Fits that failed; the model before each went on.
    first_invalid
        The first record that could not be read.
    """

    measured: Measured
    failures: tuple[FitFailed, ...]
    first_invalid: Invalid | None


def replay(
    spec: EngineSpec,
    decoder: Decoder,
    records: Iterable[Record],
    *,
    rule: EpisodeRule | None = None,
    on_verdicts: Callable[[Sequence[Verdict]], object] | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> Replayed:
    """Judge records in order and count what comes of them.

    Parameters
    ----------
    spec, decoder, records
        What decides, how to read, what to read.
    rule
        What makes an episode.
    on_verdicts
        Given the verdicts, batch by batch.
    on_progress
        Told how many records are done.
    """
    engine = Engine(spec, InlineExecutor())
    tally = Tally(rule or EpisodeRule())
    failures: list[FitFailed] = []
    first_invalid: Invalid | None = None
    done = 0
    source = iter(records)
    with threadpool_limits(limits=1):
        while batch := list(itertools.islice(source, _BATCH)):
            decoded = [decoder.decode(record) for record in batch]
            readings = [item for item in decoded if isinstance(item, Reading)]
            if len(readings) < len(decoded):
                tally.invalid += len(decoded) - len(readings)
                first_invalid = first_invalid or next(
                    item for item in decoded if isinstance(item, Invalid)
                )
            verdicts = engine.process(readings)
            for verdict in verdicts:
                tally.add(verdict)
            failures += engine.take_failures()
            if on_verdicts is not None:
                on_verdicts(verdicts)
            done += len(batch)
            if on_progress is not None:
                on_progress(done)
    engine.close()
    return Replayed(tally.measured(), tuple(failures), first_invalid)


def _lines(path: Path, *, skip: int = 0) -> Iterator[bytes]:
    """Yield the lines that are not blank, without their ends."""
    try:
        with _open(path) as file:
            lines = (line.rstrip(b"\r\n") for line in file)
            yield from itertools.islice((line for line in lines if line.strip()), skip, None)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConnectorError(f"cannot read {path}: {why}.") from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
