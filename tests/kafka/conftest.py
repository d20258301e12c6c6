"""Fixtures: a real Apache Kafka, one node by default, three where a test asks."""

from __future__ import annotations

import fcntl
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
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running broker: yours, or one that all workers of the test session share.

    Who asks first starts it, and stops it once nobody holds the lock of those who use it.
    """
    yours = os.environ.get("REJEX_TEST_KAFKA")
    if yours:
        yield yours
        return
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    address = folder / "kafka.address"
    with (folder / "kafka.lock").open("a") as door, (folder / "kafka.users").open("a") as users:
        fcntl.flock(door, fcntl.LOCK_EX)
        cluster = None if address.exists() else _started()
        if cluster is not None:
            address.write_text(cluster.bootstrap)
        bootstrap = address.read_text()
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield bootstrap
        fcntl.flock(users, fcntl.LOCK_UN)
        if cluster is not None:
            fcntl.flock(users, fcntl.LOCK_EX)  # the others are done, or dead
            address.unlink()
            with cluster:
                pass


def _started() -> broker.Cluster:
    try:
        return broker.start()
    except broker.BrokerUnavailableError as error:
        _unavailable(str(error))
        raise AssertionError("unreachable") from error


@pytest.fixture
def kafka(bootstrap: str) -> Iterator[Kafka]:
    with Kafka(bootstrap) as fresh:
        yield fresh


@pytest.fixture
def three_nodes() -> Iterator[tuple[broker.Cluster, Kafka]]:
    with broker.start(3) as cluster, Kafka(cluster.bootstrap) as kafka:
        yield cluster, kafka


@pytest.fixture(scope="session")
def require_own_broker() -> None:
    """Skip where only a foreign broker may be used: this test kills brokers."""
    try:
        broker.jars()
    except broker.BrokerUnavailableError as error:
        _unavailable(str(error))
