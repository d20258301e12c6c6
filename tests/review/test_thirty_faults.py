"""Thirty faults of five invented plants: what is drawn leaves the range, and all say one sentence.

The real pipeline runs by the config that `init` writes, and posts to a real webhook. The console
knows what was published when the alert went out: whoever follows its link sees no more.
"""

from __future__ import annotations

import csv
import html
import json
import re

import numpy as np
import pytest

from rejex_stream.encode import decode_incidents
from rejex_stream.operate.incident_text import DisplayNames
from tests.operate.alerting import Receiver
from tests.review.console_server import running

pytestmark = pytest.mark.thorough
STEP_MS, T0, ROWS, LONG, FIRST = 60_000, 1_780_272_000_000, 2400, 120, 1500


def slow(draw):
    noise = np.zeros(ROWS)
    for i, shock in enumerate(draw.normal(0, 0.25, ROWS - 1), 1):
        noise[i] = 0.97 * noise[i - 1] + shock
    return noise


# Each reads a load that wanders over its whole range, and two channels that follow it.
PLANTS = {  # load: channel, low, high, noise; follower: channel, offset, slope, noise
    "pump": (("load", 20, 80, 0.8), ("flow", 0, 2, 1.5), ("current", 5, 0.2, 0.25)),
    "turbine": (("wind", 5, 11, 0.15), ("power", -1000, 250, 20), ("gearbox", 30, 2.5, 0.4)),
    "boiler": (("fuel", 1, 6, 0.05), ("steam", 0, 14, 0.9), ("stack", 150, 18, 1.5)),
    "press": (("valve", 20, 90, 1.0), ("pressure", 8, -0.05, 0.06), ("speed", 900, 6, 8)),
    "chiller": (("heat", 100, 400, 4.0), ("power", 0, 0.29, 1.5), ("lift", 10, 0.05, 0.25)),
}
FAULTS = {
    "bias": lambda x, sd: x + 9 * sd, "drop": lambda x, sd: x - 9 * sd,
    "gain": lambda x, _: 1.3 * x, "lossy": lambda x, _: 0.7 * x,
    "ramp": lambda x, sd: x + np.minimum(np.arange(LONG) / 20, 1) * 10 * sd,
    "creep": lambda x, sd: x - np.minimum(np.arange(LONG) / 40, 1) * 10 * sd,
}  # fmt: skip


def rows_of(plant, draw):
    """Six machines of one kind, each with another fault at another time: rows, and the truth."""
    (load, low, high, noise), *followers = PLANTS[plant]
    rows, truth = [], {}
    for k, fault in enumerate(FAULTS):
        wave = 0.6 * np.sin(np.arange(ROWS) / 40 + draw.uniform(0, 6)) + 0.4 * slow(draw)
        drive = low + (high - low) * (np.tanh(wave) + 1) / 2
        values = {load: drive + draw.normal(0, noise, ROWS)} | {
            name: offset + slope * drive + draw.normal(0, sd, ROWS)
            for name, offset, slope, sd in followers
        }
        name = followers[k % 2][0]
        sd = np.std(np.diff(values[name])) / 2**0.5
        begin = FIRST + k * LONG
        stretch = slice(begin, begin + LONG)
        values[name][stretch] = FAULTS[fault](values[name][stretch], sd)
        machine = f"{plant}-{fault}"
        truth[machine] = name, T0 + begin * STEP_MS
        rows += [
            (T0 + i * STEP_MS + k, machine, *(round(float(v[i]), 4) for v in values.values()))
            for i in range(begin + LONG)
        ]  # fmt: skip
    return sorted(rows), [load, *(one[0] for one in followers)], truth


def said(rejex, folder, *words):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        status, _, log = rejex(*words)
    assert status == 0, log
    return log


def text_of(page):
    return " ".join(html.unescape(re.sub("<.*?>", "", page)).split())


def written(folder, name):
    return (folder / f"plant.{name}.jsonl").read_bytes().splitlines()


def judged(rejex, folder, rows, channels):
    """Run a plant as a user would; returns what the webhook was told, the log and the report."""
    with (folder / "plant.csv").open("w") as file:
        csv.writer(file).writerows([("time", "sensor", *channels), *rows])
    said(rejex, folder, "init", "plant.csv")
    receiver, config = Receiver(), folder / "plant.toml"
    config.write_text(f'{config.read_text()}\n[alerts]\nwebhook_url = "{receiver.url}"\n')
    log = said(rejex, folder, "run", "plant.toml")
    receiver.close()  # a run that ends has posted what it had to
    said(rejex, folder, "report", "plant.toml", "--out", "report.html")
    events = [json.loads(body)["data"] for body in receiver.taken]
    return events, log, text_of((folder / "report.html").read_text())


def left(console, points, at, channel, opened, begin_ms):
    """The share of a fault's readings that lie outside the range which its page draws."""
    span = f"from={begin_ms - 500 * STEP_MS}&to={begin_ms + LONG * STEP_MS}&px=1000"
    (drawn,) = console.ask(f"/api/incident-readings/{opened.id}?{span}").json
    (line,) = [one for one in drawn["channels"] if one["name"] == channel]
    expected = {t_ms: limits for t_ms, *limits in line["expected"]}
    beyond = [
        not low <= values[at] <= high
        for t_ms, values in points
        if t_ms >= begin_ms
        for low, high in [expected.get(t_ms, line["usual"])]
    ]
    return np.mean(beyond)


def test_what_is_drawn_shows_the_fault_and_alert_page_card_report_and_log_say_it_alike(
    tmp_path, wall_store, rejex
):
    drawn, silent, names = [], [], DisplayNames()
    for seed, plant in enumerate(PLANTS, 20):
        folder = tmp_path / plant
        folder.mkdir()
        rows, channels, truth = rows_of(plant, np.random.default_rng(seed))
        events, log, report = judged(rejex, folder, rows, channels)
        verdicts, changes = written(folder, "verdicts"), written(folder, "incidents")
        incidents = list(map(decode_incidents, changes))
        store, known = wall_store(f"{plant}/review.db", settle_s=0), 0
        with running(store) as console:
            for machine, (channel, begin_ms) in truth.items():
                opened = next((one for one in reversed(incidents) if one.stream_key == machine
                               and one.changed_ms >= begin_ms + 20 * STEP_MS), None)  # fmt: skip
                alert = next((one for one in events if opened and one.get("id") == opened.id), None)
                if opened is None or alert is None:
                    silent.append((machine, "nobody is told"))
                    continue
                at = next(k for k, one in enumerate(incidents) if one.id == opened.id)
                now = incidents[at].position.offset  # the link is followed as the alert comes
                store.ingest("verdicts", verdicts[known:now], pipeline=plant)
                store.ingest("incidents", changes[: at + 1], pipeline=plant)
                known = max(known, now)
                told = re.search(r": (.*?); since", alert["summary"])[1]
                page = console.ask(f"/incidents/{opened.id}").text
                head = re.search('(?s)<header class="page-head" id="head">.*?</header>', page)[0]
                newest = names.evidence(opened) or names.unusual(opened)  # of what was added since
                places = {"page": text_of(head), "card": text_of(console.ask("/now").text)}
                silent += [(machine, name, told) for name in places if told not in places[name]]
                silent += [(machine, "report", newest)] * (newest not in report)
                silent += [(machine, "log", told)] * ("expected" in told and told not in log)
                store.ingest("verdicts", verdicts[known:], pipeline=plant)
                known = len(verdicts)
                points = [(t_ms, values) for t_ms, sensor, *values in rows if sensor == machine]
                store.add_readings(machine, machine, channels, points, pipeline=plant)
                share = left(console, points, channels.index(channel), channel, opened, begin_ms)
                drawn.append((share, machine))
    assert not silent
    assert sum(share >= 0.8 for share, _ in drawn) >= 27, sorted(drawn)[:4]
