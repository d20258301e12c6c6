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


def test_importing_the_package_is_light():
    heavy = "[m for m in ('numpy', 'sklearn', 'river') if m in sys.modules]"
    code = f"import sys, rejex_stream; print({heavy})"
    done = ended([sys.executable, "-c", code])
    assert done.stdout.strip() == "[]"


@pytest.mark.thorough
def test_a_config_without_a_broker_loads_no_client_of_one():
    code = "import sys, rejex_stream.config; print('kafka' in sys.modules)"
    done = ended([sys.executable, "-c", code])
    assert done.stdout.strip() == "False"


def test_every_room_that_is_promised_says_what_it_exports():
    from importlib import import_module

    for home in ("rejection", "engine", "detectors", "features", "encode", "facade", "checks"):
        module = import_module(f"rejex_stream.{home}")
        assert module.__doc__, home
        for name in module.__all__:
            assert getattr(module, name, None) is not None, f"{home}.{name}"
