"""What is installed is whole: every module can be imported, with and without the sources."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import pytest

PACKAGES = ("rejex_stream", "rejex_connectors")


def modules():
    for name in PACKAGES:
        yield name
        for found in walk_packages(import_module(name).__path__, f"{name}."):
            if found.name != "rejex_stream.__main__":  # is the program
                yield found.name


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_can_be_imported(name):
    if name in {
        "rejex_connectors.kafka.confluent_client",
        "rejex_connectors.kafka.guards.librdkafka_errors",
    }:
        pytest.importorskip("confluent_kafka", reason="the extra `confluent` is not here")
    assert import_module(name).__name__ == name
