"""A log that somebody has changed after the fact, and signed again: caught, or named."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import msgspec
import pytest

from rejex_stream.cli.main import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly.control_line import ControlLine
from rejex_stream.config.assembly.running import audit_draw
from rejex_stream.encode import decode_reviewed, decode_verdict, encode_verdict
from rejex_stream.encode.label_records import LabelRecord
from rejex_stream.errors import ConnectorError, RejexError
from rejex_stream.review.certificate import Evidence, certify, read_log, signed, verify
from rejex_stream.run.review_items import AuditDraw, committed
from rejex_stream.types import Audit, Incident, IncidentState, Label, Position, Reason, ReviewItem
from tests.pump import pump_toml

KEY = "a secret of thirty-two characters"
LINES = 4000
CONFIG = pump_toml(
    source='fixed_sensor = "p"',
    more="""
[output]
audit_rate = { normal = 0.05, near = 0.4 }
audit_key_file = "key"
[review]
reviewers = ["ada"]
settle_s = 0
""",
)


@dataclass
class Log:
    """All that a verifier is given, and what a forger may change."""

    verdicts: list
    labels: list
    draw: AuditDraw
    items: dict | None
    incidents: dict
    commands: list
    pipeline: str = "pump"
    reviewers: tuple = ("ada",)
    lines: list | None = None
    known: tuple = ()

    def said(self):
        return Evidence(
            labels=self.labels, incidents=self.incidents, commands=self.commands,
            items=self.items, reviewers=self.reviewers,
        )  # fmt: skip

    def encoded(self):
        return self.lines or [encode_verdict(one) for one in self.verdicts]

    def forged(self, since_ms=0):
        """A certificate of this log as it is now, signed by who has the key."""
        found = read_log(self.encoded(), self.draw, self.said(), since_ms=since_ms)
        made = certify(found.tally, pipeline=self.pipeline, since_ms=since_ms)
        return signed(made, self.draw.key)

    def change(self, positions, **fields):
        self.verdicts = [
            msgspec.structs.replace(one, **fields) if one.position in positions else one
            for one in self.verdicts
        ]

    def drop(self, positions):
        self.verdicts = [one for one in self.verdicts if one.position not in positions]

    @property
    def finds(self):
        return {p for one in self.labels if one.verdict == "anomaly" for p in one.events}

    @property
    def waiting(self):
        answered = {p for one in self.labels for p in one.events}
        drawn = {one.position for one in self.verdicts if one.audit and one.audit.drawn}
        return {
            one.position for one in self.verdicts
            if one.position in drawn - answered and one.label is Label.NORMAL
        }  # fmt: skip


def lines_of(path):
    return path.read_bytes().splitlines()


def with_incident(log):
    """Let an incident have been open for a hundred events: HBOS would not open one here."""
    first, last = log.verdicts[2500], log.verdicts[2600]
    incident = Incident(
        position=last.position, id=str(first.position), version=3, state=IncidentState.CLOSED,
        stream_key="p", sensors=("p",), onset_ms=0, opened_ms=0, changed_ms=0,
        onset_seq=first.seq, opened_seq=first.seq, changed_seq=last.seq, peak_severity=5.0,
        peak_ms=0, ended="recovered",
    )  # fmt: skip
    log.incidents[incident.id] = incident
    held = {one.position for one in log.verdicts[2500:2601] if not one.muted}
    log.change(held, held=True, incident=incident.id, audit=msgspec.UNSET)
    log.items = {position: one for position, one in log.items.items() if position not in held}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A pipeline with an incident, planned work, a mute, finds, and draws that nobody answered."""
    folder = tmp_path_factory.mktemp("log")

    def flow(i):
        return i * 7919 % 1009 / 100

    def rows(start, stop):
        return "".join(f"{1_700_000_000 + i},{flow(i)}\n" for i in range(start, stop))

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "feed.csv").write_text("t,flow\n" + rows(0, 1500))
        (folder / "pump.toml").write_text(CONFIG)
        (folder / "key").write_text(KEY)
        assert main(["run", "pump.toml"]) == 0
        for kind, channel, hours in (
            ("planned", [], ("2023-11-14T22:43Z", "2023-11-14T22:48Z")),
            ("mute", ["--channel", "flow=2:3"], ("2023-11-14T00:00Z", "2023-11-16T00:00Z")),
        ):
            word = "plan" if kind == "planned" else kind
            stream = ["--stream", "p"] if kind == "planned" else []
            place = [] if kind == "planned" else ["p"]
            times = ["--from", hours[0], "--until", hours[1], "--note", "x", "--wait", "0"]
            assert main(["control", word, "pump.toml", *place, *channel, *stream, *times]) == 0
        with (folder / "feed.csv").open("a") as file:
            file.write(rows(1500, LINES))
        assert main(["run", "pump.toml"]) == 0
        config = load_config(folder / "pump.toml")
        line = ControlLine(config)
        verdicts = [decode_verdict(one) for one in lines_of(folder / "verdicts.jsonl")]
        items = [decode_reviewed(one) for one in lines_of(folder / "review.jsonl")]
        drawn = {
            one.verdict.position: one
            for one in items
            if isinstance(one, ReviewItem) and one.why == "audit"
        }
        log = Log(verdicts, [], audit_draw(config), drawn, line.incidents(), line.commands())
    with_incident(log)
    normals = [p for p, one in log.items.items() if one.verdict.label is Label.NORMAL]
    for number, position in enumerate(normals[:-15]):  # the last wait
        log.labels.append(
            LabelRecord(
                label_id=f"l{number}", episode_id=f"e{number}", root_id=f"e{number}",
                stream_key="p", sensor="p", events=(position,),
                verdict="anomaly" if number % 10 == 3 else "normal", reviewer="ada",
                created_ms=0, from_ms=0, to_ms=0, batch_id="b", why="audit",
            )
        )  # fmt: skip
    return log


@pytest.fixture
def log(honest):
    return copy.deepcopy(honest)


def checked(log, told=None, since_ms=0):
    told = told or log.forged(since_ms)
    return verify(told, log.encoded(), log.draw, log.said(), pipeline="pump")


@pytest.mark.thorough
def test_an_honest_log_says_what_its_certificate_says(log):
    found = checked(log)
    assert found.wrong == ()
    assert found.premises == ("answers are the word of the log of labels",)
    assert set(found.again.undrawable) >= {"held", "planned"}
    assert any(one.muted for one in log.verdicts)
    assert len(log.finds) > 10
    assert len(log.waiting) > 10


# --------------------------------------------------------------- the log, and the certificate again
def of_an_incident(log):
    return next(iter(log.incidents.values()))


def renumbered(log, positions):
    """Take verdicts out and close the gap in the numbers of the stream."""
    log.drop(positions)
    log.verdicts = [msgspec.structs.replace(one, seq=i) for i, one in enumerate(log.verdicts)]


def moved(log, positions):
    """Close the gap in the offsets, too: every coin falls again."""
    renumbered(log, positions)
    log.verdicts = [
        msgspec.structs.replace(one, position=one.position._replace(offset=i))
        for i, one in enumerate(log.verdicts)
    ]


def ground(log):
    """Look for a key whose coins pass the finds by, and show that one."""
    for number in range(400):
        key = f"another secret of this length {number:03}".encode()
        draw = replace(log.draw, key=key)
        if sum(draw.is_drawn(one, 0.05) for one in log.finds) < 2:
            break
    log.draw = draw


def rewritten(log):
    ground(log)
    log.verdicts = [
        msgspec.structs.replace(
            one,
            audit=Audit(
                one.audit.p, log.draw.is_drawn(one.position, one.audit.p), committed(log.draw.key)
            ),
        )
        if one.audit
        else one
        for one in log.verdicts
    ]


def flipped(log):
    log.change(log.finds, audit=Audit(0.05, False, committed(KEY.encode())))


def as_anomaly(log):
    """A label, a rank and a band that belong together: only the review item knows better."""
    log.verdicts = [
        msgspec.structs.replace(one, label=Label.ANOMALY, rank=one.window_len)
        if one.position in log.finds
        else one
        for one in log.verdicts
    ]


def twice_and_different(log):
    find = next(one for one in log.verdicts if one.position in log.finds)
    log.verdicts.insert(
        log.verdicts.index(find), msgspec.structs.replace(find, score=(find.score or 0) + 1)
    )


def swapped(log):
    v = log.verdicts
    v[700], v[701] = v[701], v[700]


def of_nobody(log):
    log.labels = [replace_label(one, reviewer="mallory") for one in log.labels]


def replace_label(one, **fields):
    return msgspec.structs.replace(one, **fields)


def added(log):
    for number, position in enumerate(sorted(log.waiting)):
        log.labels.append(
            replace_label(log.labels[0], label_id=f"m{number}", events=(position,),
                          verdict="normal", reviewer="mallory")
        )  # fmt: skip


def without_incident(log):
    log.incidents = {}


def before_it_opened(log):
    incident = of_an_incident(log)
    first = [p for p in sorted(log.finds) if p.offset < incident.opened_seq]
    log.change(set(first), held=True, incident=incident.id)


def planned_elsewhere(log):
    log.commands = [msgspec.structs.replace(one, stream_key="other") for one in log.commands]


TAMPERED = {
    "finds deleted": (lambda log: log.drop(log.finds), "incomplete: "),
    "unanswered deleted": (lambda log: log.drop(log.waiting), "incomplete: "),
    "finds deleted, numbers closed": (lambda log: renumbered(log, log.finds), "incomplete: "),
    "unanswered deleted, numbers closed": (
        lambda log: renumbered(log, log.waiting), "incomplete: ",
    ),
    "finds deleted, offsets closed": (lambda log: moved(log, log.finds), "come out otherwise"),
    "the first thousand deleted": (
        lambda log: log.drop({one.position for one in log.verdicts[:1000]}), "do not follow",
    ),
    "finds held": (lambda log: log.change(log.finds, held=True), "no incident of theirs was open"),
    "unanswered held": (
        lambda log: log.change(log.waiting, held=True), "no incident of theirs was open",
    ),
    "finds held by the incident of another time": (
        before_it_opened, "no incident of theirs was open",
    ),
    "finds planned": (lambda log: log.change(log.finds, planned=True), "nobody commanded it"),
    "unanswered planned": (
        lambda log: log.change(log.waiting, planned=True), "nobody commanded it",
    ),
    "finds muted": (lambda log: log.change(log.finds, muted="c-0"), "nobody commanded it"),
    "finds relabelled anomaly": (
        lambda log: log.change(log.finds, label=Label.ANOMALY), "not those of their rank",
    ),
    "unanswered relabelled anomaly": (
        lambda log: log.change(log.waiting, label=Label.ANOMALY), "not those of their rank",
    ),
    "finds relabelled rejected": (
        lambda log: log.change(log.finds, label=Label.REJECTED, reason=Reason.AMBIGUOUS),
        "not those of their rank",
    ),
    "finds rejected without a reason": (
        lambda log: log.change(log.finds, label=Label.REJECTED), "give a reason",
    ),
    "finds unscorable": (
        lambda log: log.change(log.finds, label=Label.REJECTED, reason=Reason.UNSCORABLE),
        "differ from those of their review items",
    ),
    "finds ranked as anomalies": (as_anomaly, "differ from those of their review items"),
    "finds of another stream": (
        lambda log: log.change(log.finds, stream_key="q", seq=0), "do not follow",
    ),
    "finds before the time asked about": (
        lambda log: log.change(log.finds, event_time_ms=0), "differ from those of their review",
    ),
    "probability taken off finds": (
        lambda log: log.change(log.finds, audit=msgspec.UNSET), "are not the config's",
    ),
    "probability of finds raised to 1": (
        lambda log: log.change(log.finds, audit=Audit(1.0, True, committed(KEY.encode()))),
        "are not the config's",
    ),
    "finds said not to be drawn": (flipped, "come out otherwise"),
    "unanswered said not to be drawn": (
        lambda log: log.change(log.waiting, audit=Audit(0.05, False, committed(KEY.encode()))),
        "come out otherwise",
    ),
    "a key ground out after the run": (ground, "committed to another key"),
    "the log rewritten by such a key": (rewritten, "have no review item"),
    "a verdict twice, and different": (twice_and_different, "two verdicts that differ"),
    "verdicts in another order": (swapped, "out of order"),
    "answers of nobody": (of_nobody, "whom the config does not know"),
    "answers added by another name": (added, "whom the config does not know"),
    "incidents gone": (without_incident, "no incident of theirs was open"),
    "commands gone": (lambda log: log.commands.clear(), "nobody commanded it"),
    "commands of another stream": (planned_elsewhere, "nobody commanded it"),
    "incidents not shown": (
        lambda log: setattr(log, "incidents", None), "cannot be checked: there are no incidents",
    ),
    "commands not shown": (
        lambda log: setattr(log, "commands", None), "cannot be checked: there are no commands",
    ),
    "a review item taken out": (
        lambda log: log.items.pop(min(log.finds)), "have no review item",
    ),
    "a review item too many": (
        lambda log: log.items.update({Position("feed.csv", 0, 10**6): log.items[min(log.finds)]}),
        "review items are about events that have no verdict",
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", TAMPERED)
def test_a_log_that_was_changed_is_caught_though_it_was_certified_anew(log, name):
    change, sentence = TAMPERED[name]
    change(log)
    since_ms = 3_600_000 if "time asked" in name else 0
    assert sentence in "\n".join(checked(log, since_ms=since_ms).wrong), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["finds deleted", "unanswered deleted"])
def test_what_is_missing_never_makes_the_bound_smaller_than_its_count(log, name):
    before, n = log.forged(), len(log.finds if name.startswith("finds") else log.waiting)
    TAMPERED[name][0](log)
    after = checked(log).again
    assert after.undrawable["missing"] == n
    assert after.accepted == before.accepted


# ------------------------------------------------------------------- the certificate of a true log
@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields",
    [
        {"missed_at_most": 1}, {"since_ms": 1_700_003_600_000}, {"alpha": 0.5},
        {"sensitivity": 1.5}, {"signature": None}, {"signature": None, "commitment": None},
        {"commitment": "0" * 64}, {"pipeline": "other"}, {"accepted": 10**9}, {"undrawable": {}},
    ],
)  # fmt: skip
def test_a_certificate_that_was_changed_is_refused(log, fields):
    told = msgspec.structs.replace(log.forged(), **fields)
    with pytest.raises(ConnectorError, match=r"changed since|not the one that"):
        checked(log, told)


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [{"missed_at_most": 1}, {"strata": ()}, {"accepted": 5}])
def test_one_that_its_own_maker_has_changed_and_signed_differs_from_the_log(log, fields):
    told = signed(msgspec.structs.replace(log.forged(), **fields), log.draw.key)
    assert any("the certificate says" in one for one in checked(log, told).wrong)


@pytest.mark.thorough
def test_answers_taken_back_or_turned_differ_from_what_was_certified(log):
    told = log.forged()
    log.labels = log.labels[:-20]
    assert any("missed_at_most" in one for one in checked(log, told).wrong)
    log.labels = [replace_label(one, verdict="normal") for one in log.labels]
    assert any("missed_at_least" in one or "strata" in one for one in checked(log, told).wrong)


@pytest.mark.thorough
def test_what_cannot_be_told_is_named(log):
    log.verdicts.insert(9, log.verdicts[9])  # delivered twice
    found = checked(log)
    assert found.wrong == ()
    assert "1 verdicts stand there twice, and are counted once" in found.premises
    log.items = None
    assert any("review items were not compared" in one for one in checked(log).premises)
    log.draw = replace(log.draw, key=b"")
    log.verdicts = [
        msgspec.structs.replace(one, audit=msgspec.structs.replace(one.audit, key=None))
        if one.audit else one for one in log.verdicts
    ]  # fmt: skip
    assert any(one.startswith("unsigned: ") for one in checked(log).premises)
    undrawn = next(v for v in log.verdicts if v.audit and not v.audit.drawn)
    log.labels.append(replace_label(log.labels[0], label_id="k", events=(undrawn.position,)))
    assert any("that were not drawn" in one for one in checked(log).premises)


def test_rates_that_were_switched_are_strata_of_their_own_and_named(log):
    half = log.verdicts[1000].position.offset
    early = {one.position for one in log.verdicts if one.audit and one.position.offset < half}
    log.verdicts = [
        msgspec.structs.replace(
            one,
            audit=Audit(0.01, log.draw.is_drawn(one.position, 0.01), committed(log.draw.key)),
        )
        if one.position in early else one for one in log.verdicts
    ]  # fmt: skip
    log.items, log.labels = None, []
    found = checked(log)
    assert found.wrong == ()
    assert {one.drawn for one in found.again.strata} == {0.01, 0.05, 0.4}
    assert any("at other rates, before the config's" in one for one in found.premises)


@pytest.mark.thorough
@pytest.mark.parametrize("lines", [[], [b"{broken"]])
def test_what_is_no_log_is_refused(log, lines):
    told = log.forged()
    log.lines = lines or [b"\n"]
    with pytest.raises(RejexError):
        checked(log, told)
