"""A console of 1,000 sensors, 23 open incidents and 3,000 questions stays light."""

from __future__ import annotations

import time

import msgspec
import pytest

from rejex_stream.encode import encode_review, encode_verdict
from rejex_stream.review.queue.database import wall_clock_ms
from tests.review.console_server import running
from tests.review.incidents import incident, tell
from tests.review.test_review_store import item

SENSORS, INCIDENTS, QUESTIONS, HOUR_MS = 1_000, 23, 3_000, 3_600_000
PAGES = ("/now", "/queue", "/queue?q=s07", "/incidents", "/incidents/feed-0-100", "/audit")


def at(one, offset, sensor, t_ms):
    place = one.position._replace(offset=offset)
    return msgspec.structs.replace(
        one, position=place, stream_key=sensor, sensor=sensor, event_time_ms=t_ms, seq=offset
    )


@pytest.mark.thorough
def test_no_page_takes_more_than_a_seventh_of_a_second_of_a_processor(wall_store):
    store, now, one = wall_store(settle_s=0), wall_clock_ms(), item(1)
    names = [f"p{k // 50}/s{k % 50:02}" for k in range(SENSORS)]
    judged = [
        at(one.verdict, SENSORS * hour + k, name, now - HOUR_MS * (24 - hour))
        for hour in range(24)
        for k, name in enumerate(names)
    ]
    store.ingest("verdicts", map(encode_verdict, judged), pipeline="farm")
    items = [
        msgspec.structs.replace(one, verdict=at(one.verdict, 24 * SENSORS + q, names[q % SENSORS],
                                now - 24 * HOUR_MS * (1 + 9 * (q // SENSORS)) - 37_000 * q))
        for q in range(QUESTIONS)
    ]  # fmt: skip
    store.ingest("review", map(encode_review, items), pipeline="farm")
    begun = [(100 + k, names[7 * k], now - 2 * HOUR_MS * (k + 1)) for k in range(INCIDENTS)]
    open_ones = [
        msgspec.structs.replace(incident(opened=opened), stream_key=name, sensors=(name,),
                                onset_ms=t_ms, opened_ms=t_ms + 60_000, changed_ms=now)
        for opened, name, t_ms in begun
    ]  # fmt: skip
    tell(store, *open_ones, pipeline="farm")
    spent = {}
    with running(store) as console:
        for page in PAGES:
            for _ in range(8):  # the first one fills caches; of the others the least busy counts
                before = time.process_time()
                assert console.ask(page).status == 200
                spent[page] = min(spent.get(page, 9.0), time.process_time() - before)
    print({page: round(seconds, 3) for page, seconds in spent.items()})
    assert max(spent.values()) <= 0.15, spent
