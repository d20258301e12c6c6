"""Every sentence with a figure says where the figure comes from, and it can be found there."""

import re
from pathlib import Path

import pytest
from scipy.stats import binom

from rejex_stream.rejection.policy import RejectionPolicy

ROOT = Path(__file__).parents[1]
NOT_PROSE = ("settings", "figures")  # made by the program; the table itself
PAGES = (
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.md")
        if path.stem not in NOT_PROSE
    ),
)
# What a measurement looks like in prose: shares, ratios, decimals, medians, so many in so many.
MEASURED = re.compile(
    r"\d\s?%|\b\d[\d.,]*\s(times|of \d)|(?<![\w.])\.\d+|\b0\.\d+|\b\d+ in [\d,]+|10⁻|\bmillion\b"
    r"|in the mean\b|\bas often\b|\ba (third|quarter|fifth|sixth|tenth)\b|\bmedian\b"
)
SENTENCE = re.compile(r"(?<=[.:!?])\s+(?=[A-Z*`(\[])")
BLOCK = re.compile(r"```.*?```", re.S)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=- |\d\. )")
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)")
SOURCE = re.compile(r"`(benchmarks/results/[\w-]+\.md)`: ((?:`[^`]+`(?:, )?)+)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def sentences(text):
    """Return the sentences with a figure, outside of code, tables and headings."""
    lines = BLOCK.sub("", text).splitlines()
    prose = "\n".join(line for line in lines if not line.startswith(("|", "#")))
    return [
        sentence
        for paragraph in PARAGRAPH.split(prose)
        for sentence in SENTENCE.split(" ".join(paragraph.split()))
        if MEASURED.search(NO_PROSE.sub("", sentence))
    ]


def table():
    """Return (page, beginning, source) of each row."""
    rows = (ROOT / "docs/reference/figures.md").read_text().splitlines()
    cells = [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in rows if row.startswith("| ")]
    return [(page, start, source.replace("\\|", "|")) for page, start, source in cells[1:]]


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_with_a_figure_is_in_the_table_and_the_table_has_no_other(page):
    found = sentences((ROOT / page).read_text())
    starts = [start for of, start, _ in table() if of == page]
    without = [one for one in found if not any(map(one.startswith, starts))]
    assert not without, (
        "name where these figures come from in docs/reference/figures.md, or leave them out"
    )
    of_none = [start for start in starts if sum(one.startswith(start) for one in found) != 1]
    assert not of_none, "these rows of docs/reference/figures.md are of no sentence, or of several"


def test_every_source_is_there_and_holds_the_cells_that_are_named():
    for _, start, source in table():
        named = 0
        for path, name in TEST.findall(source):
            assert f"def {name}(" in (ROOT / path).read_text(), (start, name)
            named += 1
        for path, cells in SOURCE.findall(source):
            text = (ROOT / path).read_text()
            for cell in re.findall(r"`([^`]+)`", cells):
                assert cell in text, (start, path, cell)
                named += 1
        assert named or source == "stated", (start, source)


@pytest.mark.parametrize(
    "sentence",
    ["It costs 12 % less.", "A rate of .02 holds.", "Three times of 100: 4 of 100.", "A sixth is "
     "a sixth.", "Twice as often.", "One in a million."],
)  # fmt: skip
def test_the_rule_finds_figures(sentence):
    assert sentences(f"# 3 %\n\nWords alone. {sentence}\n\n| 5 % |\n") == [sentence]


def test_places_are_taken_as_seldom_as_theory_says():
    band = RejectionPolicy(0.02, rate=0.02).band(2000)
    places = max(1, (2001 - band.edges[2]) // 2)
    assert binom.sf(places - 1, 2000, 1e-4) == pytest.approx(4e-16, rel=0.1)
