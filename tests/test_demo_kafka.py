"""The demo through a real broker: topics give the verdicts that files give."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec

import msgspec
import pytest

from rejex_stream.demo.live import Board
from rejex_stream.demo.pipelines import prepare
from rejex_stream.demo.play import play, read_lines
from rejex_stream.encode import decode_verdict, encode_verdict
from rejex_stream.types import Label

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def bootstrap():
    """A broker: yours, or one that lives as long as this module."""
    with warnings.catch_warnings():  # the client reads its own resources in a deprecated way
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("kafka")
    if yours := os.environ.get("REJEX_TEST_KAFKA"):
        yield yours
        return
    if find_spec("tools.kafka.broker") is None:
        pytest.skip("no Kafka to test against: tools/kafka is not here")
    from tools.kafka import broker

    try:
        cluster = broker.start()
    except broker.BrokerUnavailableError as error:
        if os.environ.get("REJEX_REQUIRE_KAFKA"):
            pytest.fail(f"no Kafka to test against: {error}")
        pytest.skip(f"no Kafka to test against: {error}")
    with cluster:
        yield cluster.bootstrap


def test_topics_give_the_verdicts_of_the_files(tmp_path, bootstrap):
    from rejex_stream.demo.through_kafka import play_through_kafka

    for pipeline in prepare(tmp_path):
        summary = play(Board(pipeline))
        compared = play_through_kafka(pipeline, bootstrap)
        assert compared.n_verdicts == summary.labels.total()
        assert compared.differing == ()


def test_the_comparison_sees_a_single_verdict_that_differs(tmp_path, bootstrap):
    from rejex_stream.demo.through_kafka import play_through_kafka

    water = prepare(tmp_path)[0]
    play(Board(water))
    lines = read_lines(water.verdicts_path)
    changed = msgspec.structs.replace(decode_verdict(lines[700]), label=Label.ANOMALY, reason=None)
    assert changed != decode_verdict(lines[700])
    lines[700] = encode_verdict(changed)
    water.verdicts_path.write_bytes(b"\n".join([*lines, b""]))
    assert play_through_kafka(water, bootstrap).differing == (("branch-1", 700),)
