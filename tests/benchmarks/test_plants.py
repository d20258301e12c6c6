"""Plants with known faults: what `init` writes of a file finds the fault in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.plants import FAULTS, run


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["resting_gas", "resting_two", "yaw_fault", "states", "missing_run", "second_fault"]
)
def test_the_fault_of_a_plant_is_told_in_time(shared_cases: Path, name: str) -> None:
    is_right, text = FAULTS[name](run(shared_cases / "plants" / "plants.py", name, 1))
    assert is_right, text


def without_season(draft: str) -> str:
    return draft.replace('"SeasonalSensor"', '"StateSensor"')


def without_season_and_states(draft: str) -> str:
    return draft.replace('"SeasonalSensor"', '"Sensor"')


def without_angles(draft: str) -> str:
    return re.sub(r'(kind = "angle"|follows = .*)\n', "", draft)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("missing_run", without_season),
        ("states", without_season_and_states),
        ("yaw_fault", without_angles),
    ],
)
def test_without_what_sees_it_the_fault_is_not_told_in_time(
    shared_cases: Path, name: str, changed: Callable[[str], str]
) -> None:
    case = run(shared_cases / "plants" / "plants.py", name, 1, changed)
    is_right, text = FAULTS[name](case)
    assert not is_right, text
