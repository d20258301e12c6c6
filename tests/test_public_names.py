"""What `import rejex_stream` offers, and what it costs."""

import sys

import pytest

import rejex_stream
from tests.program import ended


def test_every_public_name_is_there_and_sorted():
    names = [name for name in rejex_stream.__all__ if name != "__version__"]
    assert sorted(names) == sorted(rejex_stream._HOME_OF)
    for name in names:
        assert getattr(rejex_stream, name).__module__.startswith("rejex_stream."), name


HEAVY = ("scipy.special", "sklearn", "pyod", "river", "torch", "pandas", "pydantic_settings",
         "confluent_kafka", "kafka", "rejex_stream.tables.dialect",
         "rejex_stream.doctor")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import rejex_stream", ("numpy", "pydantic", *HEAVY)),
        ("from rejex_stream.cli import main; main(['--help'])", ("numpy", "pydantic", *HEAVY)),
        ("import rejex_stream.cli.commands.run_pipeline", HEAVY),
    ],
)
def test_what_begins_loads_nothing_heavy_that_it_may_not_need(code, heavy):
    done = ended(
        [sys.executable, "-c", f"import sys; {code}; print(set({heavy}) & sys.modules.keys())"]
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_every_room_that_is_promised_says_what_it_exports():
    from importlib import import_module

    for home in ("rejection", "engine", "detectors", "features", "encode", "facade", "checks"):
        module = import_module(f"rejex_stream.{home}")
        assert module.__doc__, home
        for name in module.__all__:
            assert getattr(module, name, None) is not None, f"{home}.{name}"
