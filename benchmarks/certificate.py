"""How often a certificate of missed anomalies is wrong at some look, p = 0 and p = 1 included.

python -m benchmarks.certificate [--deployments 200] [--looks 20]

Each deployment has misses at three probabilities to be drawn: 3,000 at p = .01, 60 at p = 1 and 200
that could not be drawn; among 300,000 accepted normals. People overlook some anomalies and call
some normals one; known cases measure that as the deployment goes on. A certificate is made at every
look, and is wrong if either bound is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from rejex_stream.rejection.audit_sampling import share_at_most
from rejex_stream.review.certificate import Tally, certify
from rejex_stream.review.gold_cases import Errors

OUT = Path(__file__).parent / "results"
ACCEPTED, KNOWN = 300_000, 200
MISSES = {0.01: 3_000, 1.0: 60, 0.0: 200}
PEOPLE = (("who never err, not measured", 0.0, 0.0, False),
          ("who overlook 10 %, invent 1 %, measured", 0.1, 0.01, True),
          ("who overlook 30 %, invent 2 %, measured", 0.3, 0.02, True))  # fmt: skip


def deployment(
    seed: int, overlooked: float, invented: float, *, measured: bool, looks: int
) -> tuple[bool, float]:
    """Return whether a bound was wrong at some look, and the upper one over the truth at the end.

    The upper one is that of events that could be drawn.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.random(MISSES[0.01]) < 0.01
    found = drawn & (rng.random(MISSES[0.01]) >= overlooked)
    certain = rng.random(MISSES[1.0]) >= overlooked
    normals = rng.random(ACCEPTED) < 0.01
    false = normals & (rng.random(ACCEPTED) < invented)
    cases = rng.random((2, KNOWN)) < ((overlooked,), (invented,))
    wrong, ratio = False, 0.0
    for look in range(1, looks + 1):
        n = {p: count * look // looks for p, count in MISSES.items()}
        asked = KNOWN * look // looks
        seen, of_normals = n[0.01], ACCEPTED * look // looks
        hits, sure = int(found[:seen].sum()), int(certain[: n[1.0]].sum())
        audited = int(normals[:of_normals].sum()) + int(drawn[:seen].sum())
        calls = hits + int(false[:of_normals].sum())
        tally = Tally()
        tally.count(0, 0.01, "", of_normals + seen, audited)
        tally.count(0, 1.0, "", n[1.0], n[1.0])
        tally.count(0, 0.0, "held", n[0.0], 0)
        for p, answer, count in (
            (0.01, "anomaly", calls), (0.01, "normal", audited - calls),
            (1.0, "anomaly", sure), (1.0, "normal", n[1.0] - sure),
        ):  # fmt: skip
            tally.answers[p, answer] += count
        known = Errors()
        if measured:
            over, inv = (int(row[:asked].sum()) for row in cases)
            known = Errors(anomalies=asked, overlooked=over, normals=asked, false_alarms=inv)
        made = certify(tally, pipeline="p", known=known)
        truth = n[0.01] + n[1.0]
        wrong |= made.missed_at_most < truth + n[0.0] or made.missed_at_least > truth
        ratio = made.missed_at_most_of_drawable / truth
    return wrong, ratio


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificate", description=__doc__)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--looks", type=int, default=20)
    given = parser.parse_args()
    rows = []
    for name, overlooked, invented, measured in PEOPLE:
        found = [
            deployment(seed, overlooked, invented, measured=measured, looks=given.looks)
            for seed in range(given.deployments)
        ]
        wrong = sum(one for one, _ in found)
        rows.append(
            {
                "reviewers": name,
                "deployments": given.deployments,
                "wrong at some look": wrong,
                "at most, 95 %": round(share_at_most(wrong, given.deployments, alpha=0.05), 3),
                "upper limit over the truth, median": round(
                    float(np.median([ratio for _, ratio in found])), 2
                ),
            }
        )
    lines = [
        "# Certificates: wrong at some look", "",
        f"Written by `python -m benchmarks.certificate`; {given.looks} looks each. The aim is 5 %.",
        "", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(map(str, row.values())) + " |" for row in rows), "",
    ]  # fmt: skip
    print("\n".join(lines))
    (OUT / "certificate.md").write_text("\n".join(lines))
    (OUT / "certificate.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
