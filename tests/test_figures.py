"""Every sentence with a figure or a promise has a source, and it can be found there."""

import ast
import re
from pathlib import Path

import pytest
from scipy.stats import binom

from rejex_stream.rejection.policy import RejectionPolicy

ROOT = Path(__file__).parents[1]
NOT_PROSE = ("settings", "figures")  # made by the program; the table itself
TEXTS = {"docs": "*.md", "rejex_stream/cli": "*.py", "rejex_stream/review/console": "*.html"}
PAGES = (
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for folder, pattern in TEXTS.items()
        for path in (ROOT / folder).rglob(pattern)
        if path.stem not in NOT_PROSE
    ),
)
# What a measurement looks like in prose: shares, ratios, decimals, medians, so many in so many.
MEASURED = re.compile(
    r"\d\s?%|\b\d[\d.,]*\s(times|of \d)|(?<![\w.])\.\d+|\b0\.\d+|\b\d+ in [\d,]+|10⁻|\bmillion\b"
    r"|in the mean\b|\bas often\b|\ba (third|quarter|fifth|sixth|tenth)\b|\bmedian\b"
)
PROMISED = re.compile(r"\b(never|always|at most|exactly)\b", re.I)
SENTENCE = re.compile(r"(?<=[.:!?])\s+(?=[A-Z*`(\[])")
BLOCK = re.compile(r"```.*?```", re.S)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=- |\d\. )")
MARKUP = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", re.S)
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)")
SOURCE = re.compile(r"`(benchmarks/results/[\w-]+\.md)`: ((?:`[^`]+`(?:, )?)+)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def text_of(page):
    text = (ROOT / page).read_text()
    if page.endswith(".py"):
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        return "\n\n".join(node.value for node in nodes if isinstance(node.value, str))
    return MARKUP.sub("\n\n", text) if page.endswith(".html") else text


def sentences(text, rules=(MEASURED, PROMISED)):
    lines = BLOCK.sub("", text).splitlines()
    prose = "\n".join(line for line in lines if not line.startswith(("|", "#")))
    return [
        sentence
        for paragraph in PARAGRAPH.split(prose)
        for sentence in SENTENCE.split(" ".join(paragraph.split()))
        if any(rule.search(NO_PROSE.sub("", sentence)) for rule in rules)
    ]


def table():
    rows = (ROOT / "docs/reference/figures.md").read_text().splitlines()
    cells = [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in rows if row.startswith("| ")]
    return [(page, start, source.replace("\\|", "|")) for page, start, source in cells[1:]]


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_with_a_figure_or_a_promise_is_in_the_table_and_no_other_is(page):
    # Figures of a program are examples and bounds of its options.
    found = sentences(text_of(page), (MEASURED, PROMISED) if page.endswith(".md") else (PROMISED,))
    starts = [start for of, start, _ in table() if of == page]
    without = [one for one in found if not any(map(one.startswith, starts))]
    assert not without, (
        "name what holds these figures and promises in docs/reference/figures.md, or reword them"
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
     "a sixth.", "Twice as often.", "One in a million.", "Never twice.", "It is so always.",
     "Of ten at most two are.", "It is sent exactly once."],
)  # fmt: skip
def test_the_rules_find_figures_and_promises(sentence):
    assert sentences(f"# 3 %\n\nWords alone. {sentence}\n\n| 5 % |\n") == [sentence]


def test_places_are_taken_as_seldom_as_theory_says():
    band = RejectionPolicy(0.02, rate=0.02).band(2000)
    places = max(1, (2001 - band.edges[2]) // 2)
    assert binom.sf(places - 1, 2000, 1e-4) == pytest.approx(4e-16, rel=0.1)
