"""Plants with known faults: what `init` writes of a file finds the fault in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.bearing import farm, first_alarm
from benchmarks.plants.invented import FAULTS, run

LONG = pytest.mark.long


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    *("resting_two", "second_fault"),
    *(pytest.param(it, marks=LONG)
      for it in ("resting_gas", "states", "missing_run", "yaw_fault")),
])  # fmt: skip
def test_the_fault_of_a_plant_is_told_in_time(shared_cases: Path, name: str) -> None:
    is_right, text = FAULTS[name](run(shared_cases / "plants" / "plants.py", name, 1))
    assert is_right, text


@pytest.mark.long
@pytest.mark.parametrize(("name", "what_sees_it", "without"), [
    ("missing_run", '"SeasonalSensor"', '"StateSensor"'),
    ("states", '"SeasonalSensor"', '"Sensor"'),
    ("yaw_fault", r'(kind = "angle"|follows = .*)\n', ""),
])  # fmt: skip
def test_without_what_sees_it_the_fault_is_not_told_in_time(
    shared_cases: Path, name: str, what_sees_it: str, without: str
) -> None:
    program = shared_cases / "plants" / "plants.py"
    is_right, text = FAULTS[name](
        run(program, name, 1, lambda draft: re.sub(what_sees_it, without, draft))
    )
    assert not is_right, text


@pytest.mark.thorough
def test_a_bearing_that_wears_is_found_a_week_earlier_beside_its_siblings() -> None:
    run = farm(14)
    alone, beside = (first_alarm("Sensor", siblings, run) for siblings in ("", "*"))
    assert beside is not None
    assert alone is None or beside + 7 <= alone
