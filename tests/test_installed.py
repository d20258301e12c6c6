"""What is installed is whole: every module can be imported, with and without the sources."""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import walk_packages

import pytest

pytestmark = pytest.mark.text

PACKAGES = ("rejex_stream", "rejex_connectors")


def modules():
    for name in PACKAGES:
        yield name
        for found in walk_packages(import_module(name).__path__, f"{name}."):
            if found.name != "rejex_stream.__main__":  # is the program
                yield found.name


def test_every_module_can_be_imported():
    extra = {"rejex_connectors.kafka.confluent_client"}
    if find_spec("confluent_kafka") is not None:  # else the extra `confluent` is not here
        extra = set()
    wanted = sorted(set(modules()) - extra)
    assert [import_module(name).__name__ for name in wanted] == wanted
