"""What was missed at most: valid at every look, checked by who tosses the coins again."""

from __future__ import annotations

import json
import math
from contextlib import closing

import msgspec
import numpy as np
import pytest

from rejex_stream.cli.main import main
from rejex_stream.config import load_config
from rejex_stream.encode import encode_verdict
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.rejection.audit_sampling import (
    Stratum,
    commitment,
    fewest_missed,
    log_evidence,
    most_missed,
)
from rejex_stream.review.certificate import (
    Evidence,
    Tally,
    certify,
    differences,
    read_log,
    sentence,
    signed,
    tally_of_store,
)
from rejex_stream.review.queue import labelling
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.label_store import LabelFile, read_labels
from rejex_stream.review.queue.labelling import LabelRequest
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.types import Audit
from tests.pump import pump_toml
from tests.review.test_review_store import episodes, item, read

LINES = 6000
KEY = "a secret of thirty-two characters"
CONFIG = pump_toml(
    source='fixed_sensor = "p"',
    more="""
[output]
audit_rate = { normal = 0.02, near = 0.4 }
audit_key_file = "key"
[review]
reviewers = ["ada"]
settle_s = 0
""",
)


# --------------------------------------------------------------------------- the mathematics
def quadrature(stratum, k, *, fewer):
    """E(k) by the trapezoid rule, from its definition."""
    found, p = stratum
    b = (1 - p) / p
    q = np.linspace(1e-12, p, 400_001) if fewer else np.linspace(p, 1 - 1e-9, 400_001)
    prior = b * (1 - q) ** (b - 1)
    with np.errstate(under="ignore"):
        ratio = np.exp(found * np.log(q / p) + (k - found) * (np.log1p(-q) - math.log1p(-p)))
    return np.trapezoid(prior * ratio, q) / np.trapezoid(prior, q)


@pytest.mark.parametrize("fewer", [True, False])
@pytest.mark.parametrize(("found", "rate", "k"), [(0, 0.01, 400), (3, 0.1, 60), (20, 0.01, 2500)])
def test_the_evidence_is_the_mixture_it_is_said_to_be(found, rate, k, fewer):
    stratum = Stratum(found, rate)
    wanted = math.log(quadrature(stratum, k, fewer=fewer))
    assert log_evidence(stratum, k, fewer=fewer) == pytest.approx(wanted, abs=2e-4)


def test_with_equal_coins_the_bounds_are_where_the_evidence_crosses():
    for found in (0, 1, 7, 60):
        one = Stratum(found, 0.05)
        most, least = most_missed([one]), fewest_missed([one])
        assert log_evidence(one, most) < math.log(20) <= log_evidence(one, most + 1)
        assert log_evidence(one, least, fewer=False) < math.log(20)
        assert least == found or log_evidence(one, least - 1, fewer=False) >= math.log(20)
        assert least <= found / 0.05 <= most


def test_strata_together_are_bounded_by_the_best_of_all_divisions():
    strata = [Stratum(0, 0.05), Stratum(3, 0.5)]
    best = max(
        k1 + k2
        for k1 in range(200)
        for k2 in range(3, 40)
        if sum(map(log_evidence, strata, (k1, k2))) < math.log(20)
    )
    assert best <= most_missed(strata) <= best + 1


@pytest.mark.thorough
@pytest.mark.parametrize("missed_in", ["all along", "one burst"])
def test_a_bound_is_wrong_at_some_look_in_no_more_than_one_of_twenty_deployments(missed_in):
    rng = np.random.default_rng(5)
    wrong = {"upper": 0, "lower": 0}
    deployments, rate = 150, 0.1
    bounds = {}
    for _ in range(deployments):
        found = missed = 0
        steps = np.full(60, 5) if missed_in == "all along" else rng.permutation([150] + 59 * [0])
        failed = set()
        for new in steps.tolist():  # a look after each
            missed, found = missed + new, found + rng.binomial(new, rate)
            if found not in bounds:
                one = [Stratum(found, rate)]
                bounds[found] = fewest_missed(one), most_missed(one)
            failed |= {"upper"} if missed > bounds[found][1] else set()
            failed |= {"lower"} if missed < bounds[found][0] else set()
        for side in failed:
            wrong[side] += 1
    # Binomial(150, 0.05): 15 or more come once in 100 times.
    assert max(wrong.values()) < 15, wrong


@pytest.mark.parametrize(("strata", "alpha", "said"), [
    ([], 0.05, "no strata"), ([Stratum(0, 0.1)], 1.0, "alpha is 1.0"),
    ([Stratum(0, 1.0)], 0.05, "is no stratum"), ([Stratum(-1, 0.5)], 0.05, "is no stratum"),
])  # fmt: skip
def test_what_cannot_be_is_refused(strata, alpha, said):
    for bound in (most_missed, fewest_missed):
        with pytest.raises(ConfigError, match=said):
            bound(strata, alpha=alpha)


# ---------------------------------------------------------------------------- the certificate
def tally(*strata, undrawable=0):
    """Strata of (p, accepted, answers of those drawn)."""
    found = Tally()
    for p, accepted, answers in strata:
        found.count(0, p, "", accepted, len(answers))
        for answer in answers:
            found.answers[p, answer] += 1
    if undrawable:
        found.count(0, 0.0, "rate", undrawable, 0)
    return found


def certified(*strata, undrawable=0, **more):
    return certify(tally(*strata, undrawable=undrawable), pipeline="p", **more)


def test_whatever_is_not_called_normal_counts_as_missed():
    def most(*answers):
        return certified((0.1, 10_000, answers)).missed_at_most

    calm = ["normal"] * 50
    assert most(*calm) < most(*calm, "unsure") == most(*calm, None) == most(*calm, "anomaly")
    found = certified((0.1, 10_000, [None, "normal"]))
    assert found.missed_at_most_if_rest_is_normal < found.missed_at_most
    assert (found.strata[0].audited, found.strata[0].normal) == (2, 1)


def test_what_was_drawn_and_never_came_counts_as_missed():
    there, lost = tally((0.1, 10_000, ["normal"] * 50)), tally((0.1, 10_000, ["normal"] * 50))
    lost.drawn[0.1] += 5
    assert certify(lost, pipeline="p").strata[0].audited == 55
    more = certify(lost, pipeline="p").missed_at_most - certify(there, pipeline="p").missed_at_most
    assert more > 30


def test_finds_where_every_event_is_audited_are_in_both_bounds():
    found = certified((0.01, 20_000, ["normal"] * 200), (1.0, 1_486, ["anomaly"] * 1_486))
    assert found.missed_at_least == 1_486
    assert 1_486 < found.missed_at_most < 1_486 + 600
    alone = certified((1.0, 100, ["normal"] * 97 + ["anomaly", "unsure", None]))
    assert (alone.missed_at_least, alone.missed_at_most) == (1, 3)
    assert alone.missed_at_most_if_rest_is_normal == 1


def test_events_that_could_not_be_drawn_may_all_be_anomalies_and_the_sentence_says_so():
    found = certified((0.05, 1_500, ["normal"] * 74), undrawable=25_636)
    assert found.missed_at_most == found.missed_at_most_of_drawable + 25_636
    assert found.accepted == 27_136
    text = sentence(found)
    assert text.startswith(
        "of 27,136 events called normal or muted since 1970-01-01 00:00Z, 1,500 could be"
    )
    rest = "25,636 could not be drawn (25,636 at an audit rate of 0), so of all it is at most"
    assert f"{rest} {found.missed_at_most:,}" in text
    assert "(95 % for both together" in text
    with pytest.raises(ConfigError, match=r"set output\.audit_rate"):
        certified(undrawable=5)


def test_no_bound_is_beyond_what_there_is():
    assert certified((0.01, 60, ["normal"] * 2)).missed_at_most == 58


def test_both_bounds_together_have_the_level_that_is_said():
    found = certified((0.1, 90_000, ["anomaly"] * 9 + ["normal"] * 50))
    assert found.missed_at_most == most_missed([Stratum(9, 0.1)], alpha=0.025)
    assert found.missed_at_least == fewest_missed([Stratum(9, 0.1)], alpha=0.025)


def test_reviewers_who_overlook_some_make_the_bound_wider_and_the_lower_one_stays():
    seen = ["anomaly" if i < 9 else "normal" for i in range(50)]
    sure, unsure = (certified((0.1, 9_000, seen), sensitivity=s) for s in (1.0, 0.8))
    assert 1.15 < unsure.missed_at_most / sure.missed_at_most < 1.35
    assert unsure.missed_at_least == sure.missed_at_least > 9
    assert certified((1.0, 50, seen), sensitivity=0.8).missed_at_most > 9


def test_what_reviewers_recognise_is_assumed_until_somebody_declares_it():
    seen = 0.01, 40_000, ["normal"] * 400
    assumed, declared = certified(seen), certified(seen, sensitivity=1.0)
    assert (assumed.reviewers, declared.reviewers) == ("assumed", "declared")
    assert assumed.missed_at_most == declared.missed_at_most


@pytest.mark.thorough
@pytest.mark.parametrize("default_answer", ["model", "anomaly", "none"])
def test_what_nobody_looked_at_is_no_answer_whatever_it_expires_into(
    new_store, clock, tmp_path, default_answer
):
    """By the model's own word of 400 normals it would certify itself: 500, not 47,000."""
    store = new_store(settle_s=0, max_age_hours=10 / 3_600_000, default_answer=default_answer)
    drawn = [
        msgspec.structs.replace(
            one,
            drawn=0.01,
            verdict=msgspec.structs.replace(one.verdict, rank=500, audit=Audit(0.01, True)),
        )
        for one in (item(i, t_s=1e4 * i, why="audit") for i in range(400))
    ]
    store.add(drawn, [one.verdict for one in drawn])
    clock.pass_ms(20)
    while labelling.expire_due(store):
        pass
    with closing(LabelFile(tmp_path / "labels.jsonl")) as sink:
        store.send_labels(sink)
    expired = list(read_labels(tmp_path / "labels.jsonl"))
    said = {"model": "normal", "anomaly": "anomaly", "none": None}[default_answer]
    assert [(one.source, one.verdict) for one in expired] == [("expired", said)] * 400

    waiting = read(store, tally_of_store, "")
    verdicts = [encode_verdict(one.verdict) for one in drawn]
    again = read_log(verdicts, AuditDraw(0.01), Evidence(labels=expired)).tally
    assert waiting.answers == again.answers == {(0.01, None): 400}
    waiting.count(0, 0.01, "", 99_600, 0)
    found = certify(waiting, pipeline="p")
    assert found.missed_at_most == most_missed([Stratum(400, 0.01)], alpha=0.025) > 47_000
    assert found.strata[0].normal == 0
    assert found.missed_at_most_if_rest_is_normal == 500


def test_a_signature_is_of_this_certificate_and_of_the_key_that_was_committed_to():
    made = certified((0.1, 500, ["normal"]))
    told = signed(made, b"sesame")
    assert differences(told, made, b"sesame") == {}
    with pytest.raises(ConnectorError, match="not the one that the certificate commits to"):
        differences(told, made, b"simsim")
    better = msgspec.structs.replace(told, missed_at_most=1)
    with pytest.raises(ConnectorError, match="it was changed since"):
        differences(better, made, b"sesame")
    other = certified((0.1, 500, ["anomaly"]))
    assert differences(told, other, b"sesame")["missed_at_most"][0] == made.missed_at_most
    assert signed(made, b"").signature is None


# ------------------------------------------------------------------------------ as a user would
@pytest.fixture
def judged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = (f"{1_700_000_000 + i},{i * 7919 % 1009 / 100}" for i in range(LINES))
    (tmp_path / "feed.csv").write_text("t,flow\n" + "\n".join(rows) + "\n")
    (tmp_path / "pump.toml").write_text(CONFIG)
    (tmp_path / "key").write_text(KEY)
    assert main(["run", "pump.toml"]) == 0
    assert main(["review", "ingest", "--config", "pump.toml"]) == 0
    capsys.readouterr()
    return tmp_path


def answered(folder, who=("ada",), *, but=0):
    """Call all that waits in the store normal, but for so many, and let the labels leave."""
    section = load_config(folder / "pump.toml").review
    with closing(ReviewStore(folder / "review.db", section)) as store:
        waiting = episodes(store)
        decision = LabelRequest(
            request_id="r", verdict="normal", targets=tuple(waiting[: len(waiting) - but])
        )
        labelling.label_cases(store, decision, Viewer(*who))
        with closing(LabelFile(folder / "labels.jsonl")) as sink:
            store.send_labels(sink)
    return len(waiting)


@pytest.mark.thorough
def test_from_a_run_to_a_certificate_that_somebody_else_recomputes(judged, capsys):
    assert answered(judged, but=2) > 50
    assert main(["review", "certify", "--config", "pump.toml"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert [one["drawn"] for one in told["strata"]] == [0.02, 0.4]
    assert sum(one["audited"] for one in told["strata"]) > 100
    assert "could be drawn: at most " in printed.err
    (judged / "certificate.json").write_text(printed.out)

    verify = [
        "review", "verify-certificate", "certificate.json", "--config", "pump.toml",
        "--verdicts", "verdicts.jsonl",
    ]  # fmt: skip
    assert main(verify) == 0
    assert "the log says the same" in capsys.readouterr().out
    for what in ("verdicts", "review", "incidents"):
        dump = ["review", "dump", what, f"dumped-{what}", "--config", "pump.toml"]
        assert main(dump) == 0
        there = judged / f"{what}.jsonl"
        assert (judged / f"dumped-{what}").read_bytes() == there.read_bytes()
    assert f"{LINES:,} records" in capsys.readouterr().err.replace("\n", " ")
    assert main([*verify[:-1], "dumped-verdicts", "--review", "dumped-review"]) == 0
    (judged / "verdicts.jsonl").rename(judged / "elsewhere")
    assert main(["review", "dump", "verdicts", "d", "--config", "pump.toml"]) == 2
    assert "no file with verdicts" in capsys.readouterr().err
    assert not list(judged.glob("d*.part")) + list(judged.glob("d"))
    (judged / "elsewhere").rename(judged / "verdicts.jsonl")

    fewer = (judged / "labels.jsonl").read_text().splitlines(keepends=True)
    (judged / "labels.jsonl").write_text("".join(fewer[:-40]))
    assert main(verify) == 1
    assert "missed_at_most: the certificate says" in capsys.readouterr().out
    (judged / "labels.jsonl").write_text("".join(fewer))

    (judged / "key").write_text("another secret of this length it is")
    assert main(verify) == 1
    assert "is not the one that the certificate commits to" in capsys.readouterr().err
    (judged / "key").write_text(KEY)
    told["missed_at_most"] = 1
    (judged / "certificate.json").write_text(json.dumps(told))
    assert main(verify) == 1
    assert "it was changed since" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_fault_that_a_mute_hides_is_looked_for_and_counted(judged, capsys):
    """Rejected ones, too, are drawn, asked about, certified and found in the log again."""
    times = ["--from", "2023-11-01T00:00Z", "--until", "2023-12-01T00:00Z"]
    mute = ["--channel", "flow=-1:99", *times, "--note", "known", "--wait", "0"]
    assert main(["control", "mute", "pump.toml", "p", *mute]) == 0
    with (judged / "feed.csv").open("a") as file:
        file.writelines(
            f"{1_700_000_000 + i},{i * 7919 % 1009 / 100}\n" for i in range(LINES, 2 * LINES)
        )
    assert main(["run", "pump.toml"]) == 0
    assert main(["review", "ingest", "--config", "pump.toml"]) == 0
    answered(judged)
    lines = (judged / "review.jsonl").read_bytes().splitlines()
    items = [item for item in map(json.loads, lines) if "verdict" in item]  # no follow-ups
    muted = [item for item in items if item["verdict"].get("muted")]
    assert {item["why"] for item in muted} == {"audit"}
    assert {item["verdict"]["label"] for item in muted} == {"normal", "rejected"}
    normal = sum(i["why"] == "audit" and i["verdict"]["label"] == "normal" for i in items)
    hidden = sum(item["verdict"]["label"] != "normal" for item in muted)
    capsys.readouterr()
    assert main(["review", "certify", "--config", "pump.toml"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert sum(one["audited"] for one in told["strata"]) == normal + hidden
    (judged / "certificate.json").write_text(printed.out)
    verify = ["review", "verify-certificate", "certificate.json", "--config", "pump.toml"]
    assert main([*verify, "--verdicts", "verdicts.jsonl"]) == 0


@pytest.mark.thorough
def test_the_commitment_is_told_before_the_first_event(judged, capsys):
    (judged / "verdicts.jsonl").unlink()
    config = CONFIG.replace('name = "pump"', 'name = "again"')
    (judged / "again.toml").write_text(config)
    assert main(["run", "again.toml", "--dry-run"]) == 0
    assert commitment(KEY.encode()) in capsys.readouterr().err
    (judged / "key").write_text("short")
    assert main(["run", "again.toml", "--dry-run"]) == 2
    assert "The key in output.audit_key_file key has 5 bytes" in capsys.readouterr().err
