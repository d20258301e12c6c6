"""What people called normal again and again: the box that the console offers to mute."""

from __future__ import annotations

import shlex

import msgspec
import numpy as np
import pytest

from rejex_stream.cli.commands.control import _box
from rejex_stream.encode import encode_command
from rejex_stream.encode.incidents import decode_command
from rejex_stream.review.patterns import LEAST, known_pattern
from rejex_stream.review.queue.detail import episode_detail
from rejex_stream.types import Command, CommandKind
from tests.review.test_review_store import ADA, BOB, episodes, item, label


def at(offset, *values, channels=("vib", "flow rate")):
    return msgspec.structs.replace(item(offset), channels=channels, values=values, context=())


@pytest.fixture
def queue(new_store):
    """A store of one sensor whose readings vary by about 1, and what somebody says of episodes."""
    store = new_store(settle_s=0, gap_events=0)
    draw = np.random.default_rng(0)
    points = [(i * 1_000 - 900_000, tuple(draw.normal(size=2).tolist())) for i in range(500)]
    store.add_readings("T07/vib", "T07/vib", ("vib", "flow rate"), points)

    def say(events, verdict="normal"):
        store.add(events)
        found = episodes(store)
        for one in found:
            label(store, ADA, [one], verdict, request=f"r{one.episode_id}")
        return [one.episode_id for one in found]

    def pattern(episode, viewer=ADA):
        with store.database.read() as connection:
            row = episode_detail(connection, episode, store.settings, viewer, 0).row
            return known_pattern(connection, row)

    return say, pattern, store


NEAR = [(5.0, 1.0), (5.5, 1.2), (4.8, -0.3)]


def test_three_that_lie_together_are_a_pattern_and_two_are_none(queue):
    say, pattern, _ = queue
    first, second = say([at(1000 * i, *where) for i, where in enumerate(NEAR[:2])])
    assert pattern(first) is None
    say([at(9_000, 50.0, 50.0)])
    assert pattern(second) is None, "what is far away is another one"
    (third,) = say([at(2_000, *NEAR[2])])
    found = pattern(third)
    assert found is not None
    assert found.n_episodes == LEAST
    assert found == pattern(first)._replace(command=found.command)
    for side, low, high in zip(found.sides, (4.8, -0.3), (5.5, 1.2), strict=True):
        assert low - 0.2 < side.low < low
        assert high < side.high < high + 0.2
    assert [side.channel for side in found.sides] == ["vib", "flow rate"]
    assert (found.n_inside, found.n_readings) == (3, 504), "of the store and of the episodes"


def test_the_command_is_one_that_the_pipeline_takes(queue):
    say, pattern, _ = queue
    *_, last = say([at(1000 * i, *where) for i, where in enumerate(NEAR)])
    found = pattern(last)
    words = shlex.split(found.command)
    assert words[:5] == ["rejex-stream", "control", "mute", "pipeline.toml", "T07/vib"]
    sides = [words[i + 1] for i, word in enumerate(words) if word == "--channel"]
    box = _box(sides)
    assert box == {side.channel: (side.low, side.high) for side in found.sides}
    command = Command(
        id="c", kind=CommandKind.MUTE, stream_key=words[4], box=box, by="ada", note="n",
        from_ms=0, until_ms=30 * 86_400_000,
    )  # fmt: skip
    assert decode_command(encode_command(command)) == command
    at_end = words[words.index("--from") + 1], words[words.index("--until") + 1]
    assert at_end == ("1970-01-01T00:33:20Z", "1970-01-31T00:33:20Z")


def test_a_box_with_an_anomaly_in_it_is_not_offered(queue):
    say, pattern, _ = queue
    *_, last = say([at(1000 * i, *where) for i, where in enumerate(NEAR)])
    assert pattern(last) is not None
    (anomaly,) = say([at(7_000, 5.1, 0.9)], "anomaly")
    assert pattern(last) is None
    assert pattern(anomaly) is None, "nor for an anomaly"


@pytest.mark.parametrize("apart", [(9.0, 1.0), (5.0, -2.9)])
def test_what_lies_apart_is_no_pattern(queue, apart):
    say, pattern, _ = queue
    *_, last = say([at(1000 * i, *where) for i, where in enumerate([*NEAR[:2], apart])])
    assert pattern(last) is None


def test_nothing_is_told_before_somebody_has_judged(queue):
    say, pattern, store = queue
    say([at(1000 * i, *where) for i, where in enumerate(NEAR)])
    store.add([at(9_000, 5.0, 1.0)])
    (waiting,) = episodes(store, BOB)
    assert pattern(waiting.episode_id, BOB) is None


def test_missing_channels_and_unknown_readings_make_no_box(queue, new_store):
    say, pattern, _ = queue
    found = say([at(0, 5.0, None), *(at(1000 * i, *where) for i, where in enumerate(NEAR, 1))])
    assert pattern(found[0]) is None
    assert pattern(found[1]) is not None
    bare = new_store("bare.db", settle_s=0, gap_events=0)
    bare.add([at(1000 * i, *where) for i, where in enumerate(NEAR)])
    every = episodes(bare)
    for one in every:
        label(bare, ADA, [one], request=one.episode_id)
    with bare.database.read() as connection:
        row = episode_detail(connection, every[0].episode_id, bare.settings, ADA, 0).row
        assert known_pattern(connection, row) is None


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_console_offers_it_where_it_was_answered(wall_store, desk, axe, width, scheme):
    pytest.importorskip("uvicorn", reason="the extra `review` is not installed")
    from tests.review.console_server import running
    from tests.review.desk import counts, sees, violations

    store = wall_store(settle_s=0, gap_events=0)
    points = [(i * 1_000 - 900_000, (i % 7 / 3.0, i % 5 / 2.0)) for i in range(500)]
    store.add_readings("T07/vib", "T07/vib", ("vib", "flow rate"), points)
    store.add([at(1000 * i, *where) for i, where in enumerate([*NEAR, NEAR[0]])])
    waiting, *answered = episodes(store, ADA)
    for one in answered:
        label(store, ADA, [one], request=one.episode_id)
    with running(store) as console, desk(console) as place:
        page = place.open(f"/episode/{answered[0].episode_id}?tab=done", width=width, scheme=scheme)
        sees(page, "3 cases of this sensor that were called normal", "#pattern-heading ~ p")
        page.focus("#pattern-heading ~ details summary")
        page.keyboard.press("Enter")
        sees(page, "rejex-stream control mute pipeline.toml T07/vib --channel vib=", "#mute")
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.goto(f"{console.base}/episode/{waiting.episode_id}")
        counts(page, "#ask-verdict", 1)
        counts(page, "#pattern-heading", 0)
    assert place.complaints == []
