"""What a reviewer is shown: words, the numbers behind them, and lines that keep their spikes."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.encode import encode_follow_up
from rejex_stream.rejection import rejection_band
from rejex_stream.review.queue import series
from rejex_stream.review.queue.detail import episode_detail, explain
from rejex_stream.review.queue.listing import in_short
from rejex_stream.review.queue.series import Point, SeriesBatch
from rejex_stream.types import (
    ChannelEvidence,
    ContextPoint,
    Evidence,
    FollowUp,
    Label,
    Position,
    Reason,
    ReviewItem,
)
from tests.review.test_review_store import ADA, episodes, item, read


def verdict(rank: int, n: int = 1000, gamma: float = 0.05, tolerance: float = 32.0):
    band = rejection_band(n, gamma, tolerance)
    return msgspec.structs.replace(
        item(0).verdict, rank=rank, window_len=n, n_anomalies=band.n_anomalies,
        band_lower=band.lower, band_upper=band.upper, psi=rank / n, tolerance=tolerance,
        threshold=0.79, score_lower=0.6, score_upper=0.9,
    )  # fmt: skip


@pytest.mark.parametrize("rank", [882, 900, 950, 951, 962, 980, 987])
def test_the_words_say_what_the_formula_says(rank):
    said = explain(verdict(rank), "rejected")
    assert said.headline.startswith("Borderline: slightly different reference data could flip")
    facts = dict(said.facts)
    assert facts["rank"] == f"{rank} of 1,000"
    assert facts["rejection band"] == "ranks 882–987 of 1,000"
    leaning = "anomaly" if rank > 950 else "normal"
    assert said.sentences == (f"It leans to {leaning}.",)
    assert facts["ψ, share of scores at or below"] == f"{rank / 1000:.4g}"
    assert facts["threshold λ"] == "0.79"


def test_blind_words_tell_no_leaning():
    seen = explain(verdict(962), "rejected", blind=True)
    text = " ".join([seen.headline, *seen.sentences, *(v for _, v in seen.facts)])
    assert "lean" in text, "it says that the leaning is hidden"
    for secret in ("962", "anomaly", "0.79", "0.9"):
        assert secret not in text
    assert in_short(verdict(962), "rejected", blind=True) == "inside the rejection band"


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words(reason):
    said = explain(msgspec.structs.replace(verdict(962), reason=reason), "rejected")
    assert said.headline.endswith(".")
    assert in_short(msgspec.structs.replace(verdict(962), reason=reason), "rejected")


def test_the_words_hold_for_a_band_of_another_method():
    said = explain(msgspec.structs.replace(verdict(962), band_lower=None, rank=None), "rejected")
    assert said.headline


@pytest.mark.thorough
def test_a_spike_of_one_sample_in_a_week_is_still_there(new_store):
    store = new_store()
    seconds = 7 * 86_400
    batch = SeriesBatch()
    with store.database.write() as connection:
        connection.execute(
            "INSERT INTO sensor (sensor_id, stream_key, sensor, grp, channels) "
            "VALUES (1, 's', 's', 's', '[\"v\"]')"
        )
        for second in range(0, seconds, 7):
            value = 9.0 if second == 7 * 43_210 else math.sin(second / 5000)
            batch.add(1, Point(second * 1000, (value,), value / 10, Label.NORMAL))
        batch.write(connection)
        series.forget(connection)
        found = series.read(connection, 1, ("v",), 0, seconds * 1000, most=800)
    t, v = found.values[0]
    assert len(t) < 900
    assert np.nanmax(v) == 9.0
    assert t[np.nanargmax(v)] == 7 * 43_210_000
    assert np.nanmax(found.score[1]) == pytest.approx(0.9)


def test_decimation_keeps_extremes_of_every_stretch_and_its_order():
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(3, 5000))
        t = np.cumsum(rng.exponential(1, n))
        v = rng.standard_cauchy(n)
        kept = series._extreme(t, v, 200)
        kept_t, kept_v = t[kept], v[kept]
        assert len(kept_t) <= 202
        assert (np.diff(kept_t) > 0).all()
        assert kept_v.max() == v.max()
        assert kept_v.min() == v.min()
        assert (kept_t[0], kept_t[-1]) == (t[0], t[-1])


def test_a_hole_in_the_readings_is_a_hole_in_the_line(new_store):
    store = new_store()
    points = [(1000 * i, (float(i),)) for i in range(100)]
    points += [(1000 * i, (float(i),)) for i in range(300, 400)]
    store.add_readings("s", "s", ("v",), points)
    found = read(store, series.read, 1, ("v",), 0, 400_000)
    t, v = found.values[0]
    assert np.isnan(v).sum() == 1
    assert 99_000 < t[np.isnan(v)][0] < 300_000


def series_of(store, points, heard=(), low=0, high=100_000):
    """What is drawn of a sensor: readings, and events of which only the verdict is known."""
    store.add_readings("s", "s", ("v", "w"), [(t, v) for t, v in points if v is not None])
    verdicts = [
        msgspec.structs.replace(
            item(t // 1000).verdict, stream_key="s", sensor="s", event_time_ms=t,
            label=Label.NORMAL, reason=None,
        )
        for t in heard
    ]  # fmt: skip
    store.add([], verdicts)
    return read(store, series.read, 1, ("v", "w"), low, high)


def test_unknown_missing_and_silent_are_three_things_and_no_line_goes_over_any(new_store):
    events = [1000 * i for i in (*range(40), *range(60, 101))]  # nothing came for 20 s
    unknown = set(range(10_000, 15_000, 1000))
    points = [(t, None if t in unknown else (1.0, None if t == 80_000 else 2.0)) for t in events]
    found = series_of(new_store(), points, heard=events)
    assert found.holes == ((9_000, 15_000, "unknown"), (39_000, 60_000, "silent"))
    assert found.missing == ((), (80_000,))
    (v_t, v), (_, w) = found.values
    assert np.isnan(v).sum() == 2
    assert 9_000 < v_t[np.isnan(v)][0] < 15_000, "five events were there, and no line goes on"
    assert np.isnan(w).sum() == 3
    assert np.isnan(found.score[1]).sum() == 1, "the score is known throughout, but in the silence"


def test_without_the_verdicts_of_a_time_nobody_is_called_silent(new_store):
    points = [(1000 * i, (1.0, 1.0)) for i in (*range(40), *range(60, 80))]
    found = series_of(new_store(), points)
    assert found.holes == ((39_000, 60_000, "unknown"), (79_000, 100_000, "unknown"))
    found = series_of(new_store(), points, heard=range(70_000, 80_000, 1000))
    assert found.holes[0] == (39_000, 60_000, "unknown"), "verdicts are here from 70 s on"
    assert found.holes[-1] == (79_000, 100_000, "unknown"), "nobody has heard of anything since"


def test_a_sensor_is_silent_while_its_pipeline_speaks(new_store):
    store = new_store()
    points = [(1000 * i, (1.0, 1.0)) for i in range(40)]
    series_of(store, points, heard=[t for t, _ in points])
    others = [
        msgspec.structs.replace(
            item(90 + k).verdict, stream_key=name, sensor=name, event_time_ms=90_000 + away
        )
        for k, (name, away) in enumerate((("o", 0), ("p", 0), ("q", 10**9)))
    ]
    store.add([], others[:1])
    assert read(store, series.read, 1, ("v", "w"), 0, 100_000).holes[-1].kind == "unknown"
    store.add([], others[1:])
    found = read(store, series.read, 1, ("v", "w"), 0, 100_000)
    assert found.holes == ((39_000, 90_000, "silent"), (90_000, 100_000, "unknown"))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=60))
def test_a_line_connects_neighbouring_events_alone(steps):
    t = np.cumsum([step for step, _ in steps]).astype(float)
    v = np.where([there for _, there in steps], np.arange(len(t), dtype=float), math.nan)
    for most in (2_000, 8):
        line_t, line_v = series._line(t, v, most)
        assert (np.diff(line_t) > 0).all()
        finite = np.isfinite(line_v)
        assert set(line_v[finite]) <= set(v[np.isfinite(v)])
        for i in np.flatnonzero(finite[:-1] & finite[1:]):
            a, b = (int(line_v[j]) for j in (i, i + 1))
            assert np.isfinite(v[a : b + 1]).all()
            assert not series._pauses(t)[a:b].any()


def test_readings_that_follow_an_item_are_stored_once(new_store):
    store = new_store(settle_s=0)
    store.add([item(0)])
    after = FollowUp(
        position=Position("t", 0, 2), of=Position("t", 0, 0), stream_key="s", sensor="s",
        channels=("v",), n_since=2,
        points=(ContextPoint(1_000, (5.0,), 0.1, Label.NORMAL),
                ContextPoint(2_000, (None,), 0.2, Label.NORMAL)),
    )  # fmt: skip
    for _ in range(2):
        counts = store.ingest("review", [encode_follow_up(after)])
        assert (counts.invalid, counts.items) == (0, 0)
    with store.database.read() as connection:
        (sensor,) = connection.execute("SELECT sensor_id FROM sensor WHERE sensor = 's'").fetchone()
        found = series.read(connection, sensor, ("v",), 500, 3_000)
    assert found.values[0][1].tolist() == [5.0]
    assert found.missing == ((2_000,),)
    assert found.score[1].tolist() == [0.1, 0.2]


def test_writing_points_again_changes_nothing_and_fills_what_was_missing(new_store):
    store = new_store()
    batch = SeriesBatch()
    with store.database.write() as connection:
        connection.execute(
            "INSERT INTO sensor (sensor_id, stream_key, sensor, grp) VALUES (1, 's', 's', 's')"
        )
        for point in (
            Point(0, None, 0.5, Label.REJECTED),
            Point(0, (1.0, None), None, None),
            Point(0, (7.0, 7.0), 0.9, Label.NORMAL),
        ):
            batch.add(1, point)
            batch.write(connection)
        found = series.read(connection, 1, ("a", "b"), 0, 0)
    assert [line[1].tolist() for line in found.values] == [[7.0], [7.0]]
    assert found.score[1].tolist() == [0.9]


def test_the_evidence_names_the_channel_that_speaks_and_the_nearest_flip(new_store):
    evidence = Evidence(
        channels=(
            ChannelEvidence("vib", 0.4, 0.2, Label.NORMAL),
            ChannelEvidence("rpm", 0.1, 0.5, Label.REJECTED),
        ),
        flip="vib", distance_ranks=3, distance_score=0.01, contamination=0.05, model_age_events=7,
    )  # fmt: skip
    one = item(0)
    one = ReviewItem(
        verdict=msgspec.structs.replace(one.verdict, evidence=evidence),
        channels=("rpm", "vib"),
        values=(12.0, 0.9),
    )
    store = new_store(settle_s=0)
    store.add([one])
    detail = read(
        store, episode_detail, episodes(store)[0].episode_id, store.settings, ADA, store.now_ms()
    )
    assert [bar.channel for bar in detail.bars] == ["vib", "rpm"]
    assert (detail.bars[0].share, detail.main_channel) == (1.0, 1)
    assert detail.flip == "Without vib the verdict would be normal."
