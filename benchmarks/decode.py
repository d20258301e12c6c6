"""What decoding costs a reading, and what ``input.select`` adds: microseconds of processor time.

python -m benchmarks.decode [--rounds 15] [--against TREE]

With `--against`, another checkout whose ``.venv`` has its dependencies, decoding without `select`
is timed in both by turns, a process each, and the ratios of the best rounds are printed: other work
on the machine slows both. What a program costs is printed as it is, as a ratio to flat JSON, and
with the shares of jq: for the program, and for ``.``, which only parses and prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHANNELS = ("temp", "press", "speed")
RECORDS = 3000
EACH = 4
BLOCK = 64  # records that go through a program together, as in the decoder
PROGRAMS = {
    "readings in an array": "del(.readings) as $record | .readings[] | $record + .",
    "names and values": "del(.tags) as $r | .tags | $r + (map({(.n): .v}) | add)",
    "one type of record": 'select(.type == "reading")',
    "a bad value": '.temp = (if .q == "good" then .temp else null end)',
}


def values(i: int) -> dict[str, float]:
    """Return the channels of a reading."""
    return {name: round(20 + (i * 7919 % 1000) / 997, 3) for name in CHANNELS}


def trees(name: str) -> list[dict[str, Any]]:
    """Return what records hold in the shape that a program reads."""
    whole = [{"machine": f"m{i % 4}", "ts": 1_700_000_000_000 + 1000 * i} for i in range(RECORDS)]
    if name == "readings in an array":
        return [
            {"machine": one["machine"], "readings": [{"ts": one["ts"] + k, **values(i + k)}
                                                     for k in range(EACH)]}
            for i, one in enumerate(whole)
        ]  # fmt: skip
    if name == "names and values":
        return [
            one | {"tags": [{"n": n, "v": v} for n, v in values(i).items()]}
            for i, one in enumerate(whole)
        ]
    return [one | {"type": "reading", "q": "good"} | values(i) for i, one in enumerate(whole)]


def records(lines: Sequence[bytes]) -> list[Any]:
    """Return records of a topic."""
    from rejex_stream.types import Position, Record

    return [Record(Position("t", 0, i), None, line, (), 0) for i, line in enumerate(lines)]


def best_us(decode: Callable[[], int], rounds: int) -> float:
    """Return microseconds of processor time a reading, of the best round."""
    found = []
    for _ in range(rounds):
        begun = time.process_time()
        n = decode()
        found.append((time.process_time() - begun) / n * 1e6)
    return min(found)


def plain(rounds: int) -> dict[str, float]:
    """Time decoding without `select`: what any version of the package can do."""
    from rejex_stream.decode import CsvDecoder, JsonDecoder
    from rejex_stream.decode.mapping import FieldMapping

    mapping = FieldMapping(CHANNELS, time="ts", time_unit="ms", sensor="machine")
    flat = [{k: v for k, v in one.items() if k not in ("type", "q")} for one in trees("flat")]
    rows = records([",".join(map(str, one.values())).encode() for one in flat])
    lines = records([json.dumps(one).encode() for one in flat])
    csv, jsons = CsvDecoder(mapping, list(flat[0])), JsonDecoder(mapping)
    return {
        "CSV": best_us(lambda: len([csv.decode(row) for row in rows]), rounds),
        "JSON": best_us(lambda: len(jsons.decode_all(lines)), rounds),
    }


def selected(rounds: int) -> dict[str, tuple[float, float, float]]:
    """Time decoding through each program; of it jq with that program, and with ``.``."""
    import jq

    from rejex_stream.decode import JsonDecoder
    from rejex_stream.decode.mapping import FieldMapping, decode_records
    from rejex_stream.decode.select import SelectingDecoder, Selector

    mapping, found = FieldMapping(CHANNELS, time="ts", time_unit="ms", sensor="machine"), {}
    for name, program in PROGRAMS.items():
        given = records([json.dumps(tree).encode() for tree in trees(name)])
        decoder = SelectingDecoder(Selector(program), JsonDecoder(mapping))

        def decode(decoder: Any = decoder, given: Any = given) -> int:
            return len(decode_records(decoder, given)[1])

        n = len(decode_records(decoder, given)[1])
        blocks = [
            "\n".join((one.value or b"").decode() for one in given[i : i + BLOCK])
            for i in range(0, len(given), BLOCK)
        ]

        def alone(program: str, blocks: Any = blocks, n: int = n) -> float:
            compiled = jq.compile(program)

            def run() -> int:
                for block in blocks:
                    compiled.input_text(block).text()
                return n

            return best_us(run, rounds)

        found[name] = best_us(decode, rounds), alone(f"[{program}]"), alone(".")
    return found


def against(tree: Path, rounds: int) -> dict[str, float]:
    """Return the ratios of ours to another checkout's decoding, by turns."""
    ours, theirs = Path(__file__).parents[1], tree
    best: dict[Path, dict[str, float]] = {ours: {}, theirs: {}}
    for _ in range(max(3, rounds // 3)):
        for place, known in best.items():
            python = place / ".venv" / "bin" / "python"
            out = subprocess.check_output([python, __file__, "--plain", "5"], cwd=place)
            for name, us in json.loads(out).items():
                known[name] = min(us, known.get(name, us))
    return {name: best[ours][name] / us for name, us in best[theirs].items()}


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description="What decoding costs.")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--against", type=Path)
    options.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    given = options.parse_args(words)
    if given.plain:
        print(json.dumps(plain(given.plain)))
        return
    without = plain(given.rounds)
    flat = without["JSON"]
    print("| what | µs a reading | to flat JSON | of it jq | jq with `.` |\n|---|---|---|---|---|")
    for name, us in without.items():
        print(f"| {name} | {us:.2f} | {us / flat:.1f} | | |")
    for name, (us, program, nothing) in selected(given.rounds).items():
        print(f"| {name} | {us:.2f} | {us / flat:.1f} | {program / us:.0%} | {nothing / us:.0%} |")
    if given.against is not None:
        for name, ratio in against(given.against, given.rounds).items():
            print(f"{name} without select, ours to {given.against.name}: {ratio:.3f}")


if __name__ == "__main__":
    sys.exit(main())
