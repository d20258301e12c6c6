"""Fixtures: a real Apache Kafka, one node by default, three where a test asks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kafka_harness import Kafka

from tools.kafka import broker


def _unavailable(reason: str) -> None:
    """Skip with the reason; where Kafka is required (CI), fail instead."""
    message = f"no Kafka to test against: {reason}"
    if os.environ.get("REJEX_REQUIRE_KAFKA"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Address of a running broker: yours, or one that lives as long as the test session."""
    yours = os.environ.get("REJEX_TEST_KAFKA")
    if yours:
        yield yours
        return
    try:
        cluster = broker.start()
    except broker.BrokerUnavailableError as error:
        _unavailable(str(error))
        raise AssertionError("unreachable") from error
    with cluster:
        yield cluster.bootstrap


@pytest.fixture
def kafka(bootstrap: str) -> Iterator[Kafka]:
    """Topics of its own for each test."""
    with Kafka(bootstrap) as fresh:
        yield fresh


@pytest.fixture(scope="session")
def require_own_broker() -> None:
    """Skip where only a foreign broker may be used: this test kills brokers."""
    try:
        broker.jars()
    except broker.BrokerUnavailableError as error:
        _unavailable(str(error))
