"""What a reviewer sees of readings, in a real browser: holes, units, limits, and many channels."""

from __future__ import annotations

import json

import msgspec
import pytest

from rejex_stream.config.reviewing import Channel, Sensor
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.types import (
    ChannelEvidence,
    ContextPoint,
    Label,
    Position,
    Reason,
    ReviewItem,
    Verdict,
)
from tests.review.console_server import running
from tests.review.desk import counts, sees, shot, violations
from tests.review.incidents import incident, tell
from tests.review.test_review_store import episodes, item

pytestmark = pytest.mark.browser

CHANNELS = tuple(f"c{i}" for i in range(9))
SHOWN = DisplayNames(
    channels={"c7": Channel(unit="°C", label="Gearbox", low=0.0, high=30.0)},
    sensors={"pump*": Sensor(link="https://wiki.example/{sensor}")},
)
MIDNIGHT = 1_763_856_000_000
DRAWN = "[...document.querySelectorAll('#plots figure b')].map(b => b.textContent)"


def reading(t_s: int, *, far: float = 0.0, gone: bool = False) -> tuple[float | None, ...]:
    return tuple(
        None if gone and i == 7 else 10.0 + (t_s // 60) % 3 + (far if i == 7 else 0.0)
        for i in range(9)
    )


def filled(store):
    """A pump whose channel c7 goes astray at midnight, with a hole of each kind before it."""
    past = [t for t in range(-3600, -120, 60) if not -1800 < t < -1200]  # it was silent
    context = tuple(
        ContextPoint(MIDNIGHT + 1000 * t, reading(t, gone=t == -600), 0.1, Label.NORMAL)
        for t in past
        if not -3000 <= t < -2700
    )
    items, verdicts = [], []
    for t in (*past, -60, 0, 60):
        place = Position("feed", 0, 1000 + t // 60)
        away = t >= -60
        verdict = Verdict(
            position=place, stream_key="pump 1", sensor="pump 1", seq=100 + t // 60,
            event_time_ms=MIDNIGHT + 1000 * t, score=0.9 if away else 0.1,
            label=Label.REJECTED if away else Label.NORMAL,
            reason=Reason.AMBIGUOUS if away else None,
        )  # fmt: skip
        verdicts.append(verdict)
        if away:
            items.append(
                ReviewItem(
                    verdict=verdict, channels=CHANNELS, values=reading(t, far=9.0), context=context
                )
            )
    store.add(items, verdicts)
    (target,) = episodes(store)
    return f"/episode/{target.episode_id}"


def test_unknown_missing_and_silent_are_drawn_apart_with_units_limits_and_dates(wall_store, desk):
    store = wall_store(settle_s=0)
    address = filled(store)
    with running(store) as console, desk(console) as place:
        console.console.shown[""] = SHOWN
        page = place.open(address)
        page.wait_for_selector("#plots canvas")
        for words in ("readings not known here", "sensor silent", "channel missing"):
            sees(page, words, ".legend")
        holes = page.evaluate(
            "document.getElementById('plots').charts.map(c => c.plot.data[1].includes(null))"
        )
        assert all(holes[:-1]), "no line goes over a hole"
        sees(page, "Gearbox (°C)", "#plots")
        assert page.get_attribute("text=about this sensor", "href").endswith("/pump%201")
        sees(page, "2025-11-22 23:59:00 – 2025-11-23 00:01:00", ".sub")
        page.keyboard.press("[")
        sees(page, "2 of 3 events, 00:00:00 – 00:01:00", "#scope")
        page.keyboard.press("Escape")
        page.keyboard.press("]")
        sees(page, "2025-11-22 23:59:00 – 2025-11-23 00:00:00", "#scope")
        page.click("text=The same as a table")
        sees(page, "the sensor was silent", ".holes")
        sees(page, "which the console does not have", ".holes")
        assert place.complaints == []


def test_of_many_channels_those_that_speak_are_shown_and_others_can_be_pinned(
    wall_store, desk, axe
):
    store = wall_store(settle_s=0)
    address = filled(store)
    with running(store) as console, desk(console) as place:
        for scheme, width in (("light", 1280), ("dark", 390)):
            page = place.open(address, scheme=scheme, width=width)
            page.wait_for_selector("#plots canvas")
            drawn = page.evaluate(DRAWN)
            assert (drawn[0], drawn[-1], len(drawn)) == ("c7", "score", 7)
            assert violations(page, axe) == []
            shot(page, f"channels-{scheme}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.focus("#rest")
        page.keyboard.press("Enter")
        counts(page, "#plots figure", 10)
        page.focus("button[aria-label='pin c8']")
        page.keyboard.press("Enter")
        sees(page, "unpin", "#plots figure:first-child")
        assert page.evaluate(DRAWN)[:2] == ["c8", "c7"]
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "unpin c8"
        page.focus("#rest")
        page.keyboard.press("Enter")
        counts(page, "#plots figure", 7)
        page.reload()
        page.wait_for_selector("#plots canvas")
        assert page.evaluate(DRAWN)[0] == "c8", "for this sensor it stays"
        assert json.loads(page.evaluate("localStorage.getItem('rejex.pins.pump 1')")) == ["c8"]
        page.evaluate("scrollTo(0, 0)")
        assert page.evaluate(
            "document.querySelector('#plots figure:last-child').getBoundingClientRect().bottom"
            " <= innerHeight"
        ), "the score is in sight"
        assert place.complaints == []


def test_of_an_incident_with_many_channels_those_that_speak_are_drawn_first(wall_store, desk, axe):
    store = wall_store(settle_s=0)
    names = tuple(f"c{i}" for i in range(12))
    spoken = tuple(ChannelEvidence(name, 2.0, 0.1, Label.NORMAL) for name in ("c9", "c11"))
    opened = msgspec.structs.replace(
        incident(opened=45), onset_ms=40_000, changed_ms=60_000, channels=spoken
    )
    tell(store, opened, pipeline="farm")
    read = [
        (1000 * t, tuple(float(t % 3) + 50 * (t >= 40) * (i in {4, 9, 11}) for i in range(12)))
        for t in range(61)
    ]
    store.add_readings("T07/vib", "T07/vib", names, read, pipeline="farm")
    judged = [msgspec.structs.replace(item(t).verdict, label=Label.ANOMALY) for t in range(40, 61)]
    store.add([], judged)
    with running(store) as console, desk(console) as place:
        page = place.open("/incidents/feed-0-45")
        page.wait_for_selector("#plots canvas")
        drawn = page.evaluate(DRAWN)
        assert drawn[:3] == ["c9", "c11", "c4"], "what speaks, then what is far from its past"
        assert (drawn[-1], len(drawn)) == ("score", 7)
        assert violations(page, axe) == []
        page.focus("#rest")
        page.keyboard.press("Enter")
        counts(page, "#plots figure", 13)
        sees(page, "Only the channels it is based on most", "#rest")
        assert place.complaints == []


def test_a_case_shows_and_says_what_is_usual_in_units(wall_store, desk):
    store = wall_store(settle_s=0)
    store.add([item(60, sensor="p1")])
    read = [(1000 * t, (10_000.0 + t % 5 if t < 60 else 12_345.6,)) for t in range(70)]
    store.add_readings("p1", "p1", ("vib",), read)
    with running(store) as console, desk(console) as place:
        console.console.shown[""] = DisplayNames(
            channels={"vib": Channel(unit="rpm", label="Speed")}
        )
        (target,) = episodes(store)
        page = place.open(f"/episode/{target.episode_id}")
        page.wait_for_selector("#plots canvas")
        sees(page, "Speed 12,345.6 rpm, usually 10,000.0 to 10,004.0 rpm", ".reads")
        sees(page, "usual: the middle 95 % before it", ".legend")
        band = page.evaluate("document.querySelector('#plots').charts[0].line.band")
        assert band == [10_000, 10_004]
