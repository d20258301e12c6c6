"""The small pipeline of many tests: pumps in a file of rows, judged by HBOS."""

from collections.abc import Callable
from pathlib import Path


def pump_toml(
    *, path: str = "feed.csv", source: str = 'sensor = "id"', tolerance: int = 4, window: int = 200,
    more: str = "",
) -> str:  # fmt: skip
    """A config; `source` is what else `[input]` says, `more` stands behind everything."""
    return f"""
[pipeline]
name = "pump"
[input]
path = "{path}"
channels = ["flow"]
time = "t"
time_unit = "s"
{source}
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = {tolerance}
window = {window}
{more}"""


def flow(i: int) -> float:
    """A number that varies; the same every time."""
    return i * 7919 % 1009 / 100


def row(i: int, flow: Callable[[int], float] = flow) -> str:
    """A second of one of two pumps."""
    return f"{1_700_000_000 + i},p{i % 2},{flow(i)}\n"


def feed(folder: Path, start: int, stop: int, flow: Callable[[int], float] = flow) -> None:
    """Append rows to the feed in a folder."""
    with (folder / "feed.csv").open("a") as file:
        if start == 0:
            file.write("t,id,flow\n")
        file.writelines(row(i, flow) for i in range(start, stop))
