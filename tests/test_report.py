"""The report of anybody's data: of a config that has run."""

import csv
import dataclasses
import shutil
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.reviewing import Channel as ChannelSetting
from rejex_stream.encode import decode_verdict
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.report import Channel, Fault, analyse_run, judged_run, read_run, write_report
from rejex_stream.report.page import after, in_words
from rejex_stream.types import Label, Position, Reason, Verdict
from tests.pages import Page, data_of

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The example of a file pipeline, run where it may write."""
    folder = tmp_path_factory.mktemp("ran")
    text = (EXAMPLES / "file.toml").read_text(encoding="utf-8")
    text = text.replace("examples/readings.csv", str(folder / "readings.csv"))
    text += f'\n[output]\nverdicts = "{folder}/verdicts.jsonl"\n'
    text += '[detector]\nname = "HBOS"\n[alerts]\nwebhook_secret = "very-secret"\n'
    text += 'webhook_url = "http://127.0.0.1:9/"\n'
    (folder / "file.toml").write_text(text, encoding="utf-8")
    shutil.copy(EXAMPLES / "readings.csv", folder)
    assert main(["run", str(folder / "file.toml"), "--output", "json"]) == 0
    return folder


def page_of(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert all(address.startswith("data:") for address in page.addresses)
    return page


def codes(path):
    (entry,) = data_of(path.read_text(encoding="utf-8"))
    return Counter("".join(series["code"] for series in entry["series"]))


# ------------------------------------------------------------------------------ of a config
@pytest.mark.thorough
def test_the_report_of_a_config_shows_what_its_run_wrote(ran, capsys):
    out = ran / "out.html"
    assert main(["report", str(ran / "file.toml"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"report: {out.as_uri()}\n"
    verdicts = [decode_verdict(x) for x in (ran / "verdicts.jsonl").read_bytes().splitlines()]
    labels = Counter(verdict.label for verdict in verdicts)
    warm_up = sum(verdict.reason is Reason.WARM_UP for verdict in verdicts)
    shown = codes(out)
    assert len(verdicts) == 1_500 == shown.total()
    assert (shown["a"], shown["n"]) == (labels[Label.ANOMALY], labels[Label.NORMAL])
    assert (shown["w"], shown["r"]) == (warm_up, labels[Label.REJECTED] - warm_up)
    text = " ".join(page_of(out).text)
    assert f"({labels[Label.ANOMALY]:,} events)" in text
    assert f"({shown['r']:,} rejected events)" in text
    assert "What became of the known faults" not in text  # nobody knows of any
    findings = analyse_run(read_run(load_config(ran / "file.toml")))
    for rate in (
        findings.counts.rejection_rate, findings.theory.frozen_bound, findings.theory.paper_bound
    ):  # fmt: skip
        assert f"{100 * rate:.1f} %" in text


def test_values_and_times_on_the_plots_are_those_of_the_input(ran):
    run = read_run(load_config(ran / "file.toml"))
    write_report(ran / "values.html", [analyse_run(run)], "")
    (entry,) = data_of((ran / "values.html").read_text(encoding="utf-8"))
    (series,) = entry["series"]
    with (ran / "readings.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name, values in zip(("flow", "pressure"), series["values"], strict=True):
        wanted = [float(row[name]) if row[name] else None for row in rows]
        assert values == pytest.approx(wanted, rel=1e-4)
    assert sum(series["time_ms"]) == run.events[-1][0].event_time_ms
    assert run.channels == (Channel("flow"), Channel("pressure"))
    shown = {"flow": ChannelSetting(label="Flow", unit="l/s")}
    named = read_run(load_config(ran / "file.toml").model_copy(update={"channels": shown}))
    assert named.channels == (Channel("Flow", "l/s"), Channel("pressure"))


def test_only_the_newest_events_are_shown_and_the_page_says_so(ran, monkeypatch):
    out = ran / "newest.html"
    monkeypatch.setattr(judged_run, "NEWEST", 200)
    assert main(["report", str(ran / "file.toml"), "--out", str(out)]) == 0
    assert codes(out).total() == 200
    assert "The 1,300 events before these are left out." in out.read_text(encoding="utf-8")


def test_secrets_of_the_config_stay_out_of_the_report(ran):
    out = ran / "secret.html"
    assert main(["report", str(ran / "file.toml"), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "contamination = 0.03" in text
    assert "very-secret" not in text
    assert "webhook" not in text


def test_a_pipeline_that_never_ran_is_told_to_run(tmp_path):
    config = load_config(EXAMPLES / "file.toml")
    nowhere = config.output.model_copy(update={"verdicts": str(tmp_path / "none.jsonl")})
    with pytest.raises(ConnectorError, match="holds no verdict: run the pipeline first"):
        read_run(config.model_copy(update={"output": nowhere}))


def test_what_cannot_be_read_again_is_refused_in_a_sentence(ran):
    config = load_config(ran / "file.toml")
    passing = config.output.model_copy(update={"verdicts": "-"})
    with pytest.raises(ConfigError, match="standard output, which cannot be read again"):
        read_run(config.model_copy(update={"output": passing}))


def test_another_input_than_the_one_that_was_judged_is_noticed(ran, tmp_path):
    short = tmp_path / "readings.csv"
    lines = (ran / "readings.csv").read_text(encoding="utf-8").splitlines()[:900]
    short.write_text("\n".join([*lines, ""]), encoding="utf-8")
    config = load_config(ran / "file.toml")
    other = config.input.model_copy(update={"path": str(short)})
    with pytest.raises(ConnectorError, match="give the input that was judged"):
        read_run(config.model_copy(update={"input": other}))


def test_a_report_that_cannot_be_written_is_a_sentence(ran, capsys):
    assert main(["report", str(ran / "file.toml"), "--out", str(ran / "no" / "r.html")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_text_from_the_data_stays_text(ran):
    hostile = '</script><img src=x onerror=alert(1)>"'
    run = read_run(load_config(ran / "file.toml"))
    events = tuple(
        (reading._replace(sensor=hostile), msgspec.structs.replace(verdict, sensor=hostile))
        for reading, verdict in run.events
    )
    first = events[700][0].event_time_ms
    changed = dataclasses.replace(
        run, events=events, title=hostile, about=hostile, settings=hostile,
        channels=(Channel(hostile, hostile), Channel(hostile)),
        faults=(Fault(hostile, first, first + 3_600_000, hostile),),
    )  # fmt: skip
    write_report(ran / "hostile.html", [analyse_run(changed)], hostile, credit=hostile)
    page = page_of(ran / "hostile.html")
    assert page.text.count(hostile) > 3
    (entry,) = data_of((ran / "hostile.html").read_text(encoding="utf-8"))
    assert entry["series"][0]["sensor"] == hostile


def test_a_known_fault_is_judged_by_the_events_inside_it(ran):
    run = read_run(load_config(ran / "file.toml"))
    at = [k for k, (_, verdict) in enumerate(run.events) if verdict.label is Label.ANOMALY]
    (first, _), (last, _) = run.events[at[3] - 2], run.events[at[3] + 2]
    fault = Fault(first.sensor, first.event_time_ms, last.event_time_ms, "something")
    elsewhere = Fault("another", 0, run.events[-1][0].event_time_ms, "not here")
    findings = analyse_run(dataclasses.replace(run, faults=(fault, elsewhere)))
    (found,) = findings.faults
    inside = [verdict for _, verdict in run.events[at[3] - 2 : at[3] + 3]]
    assert found.n_events == 5
    assert found.n_anomaly == sum(verdict.label is Label.ANOMALY for verdict in inside) >= 1
    assert found.outcome == "caught"
    assert findings.false_alarms == len(at) - found.n_anomaly
    early = dataclasses.replace(
        run, faults=(Fault(first.sensor, 0, run.events[20][0].event_time_ms, "early"),)
    )
    (found,) = analyse_run(early).faults
    assert (found.outcome, found.notice_after_s, found.n_warm_up) == ("missed", None, 21)


def test_why_is_written_as_people_say_it():
    odd = Verdict(
        position=Position("t", 0, 0), stream_key="a", sensor="a", seq=0, event_time_ms=0,
        label=Label.ANOMALY, score=3.25, rank=1000, window_len=1000, n_anomalies=50,
        band_lower=882, band_upper=987, threshold=2.5, stability=0.3,
    )  # fmt: skip
    assert in_words(odd) == "score 3.25 is above all of the last 1,000"
    unsure = msgspec.structs.replace(odd, label=Label.REJECTED, reason=Reason.AMBIGUOUS, rank=930)
    assert in_words(unsure) == (
        "other training data would flip the label in 30 % of cases; above 930 of the last 1,000"
    )
    assert [after(None), after(0.0), after(600)] == ["none", "at once", "after 10 min"]


def test_sensors_that_share_a_model_are_shown_apart(ran):
    run = read_run(load_config(ran / "file.toml"))
    shared = tuple(
        (reading, msgspec.structs.replace(verdict, stream_key="all", sensor=f"s{k % 3}"))
        for k, (reading, verdict) in enumerate(run.events[-90:])
    )
    series = analyse_run(dataclasses.replace(run, events=shared)).series
    assert [of.sensor for of in series] == ["s0", "s1", "s2"]
    assert [len(of.events) for of in series] == [30, 30, 30]
