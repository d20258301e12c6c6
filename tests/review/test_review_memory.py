"""A live view that is left open: what the tab keeps, after more messages than ten minutes bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("starlette", reason="the extra `review` is not installed")
pytest.importorskip("uvicorn", reason="the extra `review` is not installed")

from rejex_stream.review.console.rates import PipelineWatch
from rejex_stream.types import Verdict
from tests.review.console_server import running
from tests.review.desk import sees
from tests.review.turbines import Farm

pytestmark = pytest.mark.browser

# The console sends at most two messages a second, and the page asks for its list every five.
MINUTES = 12
MESSAGES, TURNS = MINUTES * 60 * 2, MINUTES * 60 // 5
COUNTED = """
  window.heard = 0;
  let woken = null;
  window.hears = (before) => new Promise((then) => {
    woken = () => { if (window.heard > before) then(); };
    woken();
  });
  window.EventSource = class extends EventSource {
    constructor(...given) {
      super(...given);
      this.addEventListener("rate", () => { window.heard += 1; woken?.(); });
    }
  };
"""
NODES = """() => {
  const walker = document.createTreeWalker(document);
  let count = 1;
  while (walker.nextNode()) count += 1;
  return count;
}"""


def endless(farm: Farm) -> Iterator[list[Verdict]]:
    """The farm's verdicts again and again, each time later, a minute of event time at once."""
    first, last = farm.verdicts[0].event_time_ms, farm.verdicts[-1].event_time_ms
    span = (last - first) // 60_000 * 60_000 + 60_000
    minutes: dict[int, list[Verdict]] = {}
    for verdict in farm.verdicts:
        minutes.setdefault((verdict.event_time_ms - first) // 60_000, []).append(verdict)
    lap = 0
    while True:
        for verdicts in minutes.values():
            yield [
                msgspec.structs.replace(verdict, event_time_ms=verdict.event_time_ms + lap * span)
                for verdict in verdicts
            ]
        lap += 1


def is_list(request: Any) -> bool:
    """Whether the page asked for its list of streams."""
    return "/live/streams" in request.url


def kept(page: Any, devtools: Any) -> tuple[int, int, int]:
    """Bytes, nodes off the page and listeners that are still there after a collection."""
    for _ in range(2):  # what a finalizer lets go of falls to the second
        devtools.send("HeapProfiler.collectGarbage")
    counters = devtools.send("Memory.getDOMCounters")
    heap = devtools.send("Runtime.getHeapUsage")["usedSize"]
    return int(heap), counters["nodes"] - page.evaluate(NODES), counters["jsEventListeners"]


def test_a_live_view_left_open_keeps_no_more_than_it_shows(wall_store, desk, farm):
    store = wall_store()
    watch = PipelineWatch(store, "farm")
    feed = endless(farm)
    for _ in range(120):  # the hour on the screen is full from the beginning
        watch.observe(next(feed))
    with running(store, watches={"farm": watch}, tick_s=0.001) as console, desk(console) as place:
        page = place.open("/help")
        page.add_init_script(COUNTED)
        page.clock.install()
        page.goto(console.base + "/live?hours=1")
        sees(page, "live", "#connection")
        devtools = page.context.new_cdp_session(page)
        devtools.send("HeapProfiler.enable")
        asked = []
        page.on("requestfinished", lambda one: asked.append(is_list(one)))
        found, turns = [], 0
        for third in (1, 2, 3):
            while (heard := page.evaluate("window.heard")) < third * MESSAGES // 3:
                watch.observe(next(feed))
                page.evaluate("heard => window.hears(heard)", heard)
                if heard // (MESSAGES // TURNS) > turns:  # several may have come at once
                    turns = heard // (MESSAGES // TURNS)
                    # While one answer is awaited the page does not ask again.
                    with page.expect_event("requestfinished", is_list):
                        page.clock.run_for(5000)
            page.wait_for_load_state("networkidle")
            found.append(kept(page, devtools))
        assert page.evaluate("window.heard") >= MESSAGES
        assert sum(asked) >= TURNS * 0.9, "the list was asked for as in as many minutes"
        assert page.evaluate("document.getElementById('chart').probe().samples") <= 61
        page.goto("about:blank")
    _, (heap, nodes, listeners), (last_heap, last_nodes, last_listeners) = found
    assert last_heap - heap < 128 * 1024, found
    assert last_nodes - nodes < 10, found
    assert last_listeners - listeners < 10, found
