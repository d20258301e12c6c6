"""Readings around an event: from the input itself, by position, and bounded."""

from __future__ import annotations

import csv

import pytest

from rejex_stream.config import load_config
from rejex_stream.errors import ConfigError
from rejex_stream.review import context_loader
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.types import Position

N, AT = 4_000, 2_000
CONFIG = """
[pipeline]
name = "farm"
[input]
path = "readings.csv"
channels = ["vib"]
time = "t"
sensor = "sensor"
time_unit = "s"
[rejection]
contamination = 0.12
tolerance = 8
window = 500
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Two sensors in turn, one reading a second; some cells of the first are empty."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(CONFIG)
    with (tmp_path / "readings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["t", "sensor", "vib"])
        for n in range(N):
            rows.writerow([n, ("T07/vib", "T08/vib")[n % 2], "" if n % 100 == 0 else n])
    return load_config("p.toml")


def at(offset, topic="readings.csv"):
    return Position(topic, 0, offset)


def test_each_step_reads_what_the_one_before_did_not_and_only_this_sensor(config):
    wide = ContextLoader(config, records=100)
    first = wide.around(at(AT), "T07/vib", "T07/vib", 1)
    assert (first.channels, first.cut) == (("vib",), "")
    assert [t_ms // 1000 for t_ms, _ in first.points] == list(range(AT - 100, AT + 100, 2))
    assert first.points[1][1] == (float(AT - 98),)
    assert first.points[0][1] == (None,), "an empty cell is missing, not zero"
    second = wide.around(at(AT), "T07/vib", "T07/vib", 2)
    seconds = [t_ms // 1000 for t_ms, _ in second.points]
    assert seconds == [*range(AT - 200, AT - 100, 2), *range(AT + 100, AT + 200, 2)]
    assert wide.around(at(AT), "T07/vib", "T07/vib", 60).points == ()
    ends = wide.around(at(10), "T07/vib", "T07/vib", 1)
    assert ends.points[0][0] == 0


def test_a_step_is_bounded_in_bytes_and_in_time_and_says_so(config, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(context_loader, "_MAX_BYTES", 500)
        bytes_cut = ContextLoader(config).around(at(AT), "T07/vib", "T07/vib", 1)
    assert "the records hold more than" in bytes_cut.cut
    assert 0 < len(bytes_cut.points) < 50
    late = ContextLoader(config, patience_s=0.0).around(at(AT), "T07/vib", "T07/vib", 1)
    assert (late.points, late.cut) == ((), "reading took longer than 0 s")


def test_what_cannot_be_read_is_a_sentence(config):
    with pytest.raises(ConfigError, match=r"reads readings\.csv, and its input no more"):
        ContextLoader(config).around(at(5, "other.csv"), "T07/vib", "T07/vib", 1)
    passing = config.model_copy(
        update={"input": config.input.model_copy(update={"path": "-", "format": "csv"})}
    )
    with pytest.raises(ConfigError, match="standard input cannot be read twice"):
        ContextLoader(passing)
