"""A log that somebody has changed after the fact, and signed again: caught, or named."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from rejex_stream.cli.main import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly.control_line import ControlLine
from rejex_stream.config.assembly.running import audit_draw
from rejex_stream.encode import decode_reviewed, decode_verdict, encode_verdict
from rejex_stream.encode.label_records import LabelRecord
from rejex_stream.errors import ConnectorError, RejexError
from rejex_stream.incidents.calendar import Plan
from rejex_stream.review.certificate import Evidence, certify, read_log, signed, verify
from rejex_stream.run.review_items import AuditDraw, committed
from rejex_stream.types import (
    Audit,
    Incident,
    IncidentState,
    Label,
    Partition,
    Position,
    Reason,
    ReviewItem,
)
from tests.pump import pump_toml

pytestmark = pytest.mark.thorough
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
    more: dict = field(default_factory=dict)  # of the evidence

    def said(self):
        return Evidence(
            labels=self.labels, incidents=self.incidents, commands=self.commands,
            items=self.items, reviewers=self.reviewers, **self.more,
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
    """A log to change: its records themselves nobody can."""
    parts = ("verdicts", "labels", "items", "incidents", "commands")
    return replace(honest, **{part: getattr(honest, part).copy() for part in parts}, more={})


def checked(log, told=None, since_ms=0):
    told = told or log.forged(since_ms)
    return verify(told, log.encoded(), log.draw, log.said(), pipeline="pump")


def test_an_honest_log_says_what_its_certificate_says(log):
    found = checked(log)
    assert found.wrong == ()
    about = ("held or planned", "by their ranks", "without a rank", "answers are", "SHA-256 is")
    for sentence, word in zip(found.premises, (*about, "no partition"), strict=True):
        assert word in sentence
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
    "verdicts in another order": (swapped, "do not follow"),
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


@pytest.mark.parametrize("name", TAMPERED)
def test_a_log_that_was_changed_is_caught_though_it_was_certified_anew(log, name):
    change, sentence = TAMPERED[name]
    change(log)
    since_ms = 3_600_000 if "time asked" in name else 0
    assert sentence in "\n".join(checked(log, since_ms=since_ms).wrong), name


# ---------------------------------------------- a forger who rewrites all that the pipeline wrote
def rewrite_all(log):
    known = {one.position: one for one in log.verdicts}
    drawn = {p for p, one in known.items() if one.audit and one.audit.drawn}
    log.items = {
        p: msgspec.structs.replace(item, verdict=known[p], drawn=known[p].audit.p)
        for p, item in log.items.items() if p in drawn
    }  # fmt: skip
    log.labels = [one for one in log.labels if drawn.issuperset(one.events)]


def rejected(log, reason):
    log.change(
        log.finds, label=Label.REJECTED, reason=reason, rank=None, band_lower=None,
        band_upper=None, audit=msgspec.UNSET,
    )  # fmt: skip


def renamed(log, **fields):
    log.change(log.finds, audit=msgspec.UNSET, **fields)


def in_wider_bands(log):
    log.verdicts = [
        msgspec.structs.replace(
            one, label=Label.REJECTED, reason=Reason.AMBIGUOUS, audit=msgspec.UNSET,
            band_lower=min(one.rank, one.band_lower),
        )
        if one.position in log.finds else one for one in log.verdicts
    ]  # fmt: skip


def without_head(log):
    """Take the first half away, where most of what was found is, and number the rest anew."""
    half = {one.position for one in log.verdicts[: LINES // 2]}
    log.drop(half)
    log.verdicts = [msgspec.structs.replace(one, seq=i) for i, one in enumerate(log.verdicts)]


def with_forged_incident(log):
    first = log.verdicts[0]
    forged = msgspec.structs.replace(
        of_an_incident(log), id=str(first.position), opened_seq=0, changed_seq=LINES
    )
    log.incidents[forged.id] = forged
    renamed(log, held=True, incident=forged.id)


def with_forged_plan(log):
    renamed(log, planned=True)
    log.more["calendar"] = [Plan(0, 2**53)]


def unread(log):
    log.more["unread"] = set(log.finds)
    renumbered(log, log.finds)


def ignored(log):
    log.more["gaps"] = "input.select may ignore them"
    renumbered(log, log.finds)


def other_rate(log):
    """Say of all up to the last find that the rate was higher then."""
    last = max(log.finds)
    log.verdicts = [
        msgspec.structs.replace(
            one, audit=Audit(0.9, log.draw.is_drawn(one.position, 0.9), committed(log.draw.key))
        )
        if one.audit and one.position <= last else one
        for one in log.verdicts
    ]  # fmt: skip
    answer_all(log, last)


def answer_all(log, last):
    """Let everything that is drawn now, up to an event, have an item, and the answer *normal*."""
    answers = {p for one in log.labels for p in one.events}
    item = next(iter(log.items.values()))
    for at, one in enumerate(log.verdicts):
        if one.audit and one.audit.drawn and one.position not in answers and one.position <= last:
            label = replace_label(log.labels[0], label_id=f"r{at}", events=(one.position,))
            log.labels.append(replace_label(label, verdict="normal"))
            log.items[one.position] = replace_label(item, verdict=one)


def of_another_key(log):
    rewritten(log)
    answer_all(log, log.verdicts[-1].position)


def all_normal(log):
    log.labels = [replace_label(one, verdict="normal") for one in log.labels]


def one_of_two(log):
    log.more["bounds"] = {Partition("feed.csv", n): (0, LINES) for n in (0, 1)}
    log.drop(log.finds)  # they were in the other one
    log.verdicts = [
        msgspec.structs.replace(one, seq=i, position=one.position._replace(offset=i))
        for i, one in enumerate(log.verdicts)
    ]


REWRITTEN = {
    "finds unscorable": (lambda log: rejected(log, Reason.UNSCORABLE), "without a rank"),
    "finds in a warm-up": (lambda log: rejected(log, Reason.WARM_UP), "without a rank"),
    "finds ranked as anomalies": (
        lambda log: (as_anomaly(log), renamed(log)), "by their ranks",
    ),
    "finds in wider bands": (in_wider_bands, "by their ranks"),
    "finds before the time asked about": (
        lambda log: log.change(log.finds, event_time_ms=0), "before the time",
    ),
    "a time chosen afterwards": (lambda log: None, "before the time"),
    "the first half taken away": (without_head, "before the first verdict"),
    "an incident forged": (with_forged_incident, "held or planned"),
    "a calendar forged": (with_forged_plan, "held or planned"),
    "dead letters forged": (unread, "could not be read"),
    "finds ignored": (ignored, "input.select may ignore them"),
    "a higher rate before": (other_rate, "at other rates"),
    "a key ground out": (of_another_key, "SHA-256 is"),
    "answers turned": (all_normal, "answers are the word"),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_premise_names_what_nobody_can_catch_and_its_bound_is_no_smaller(log, name):
    """A forger who can write all outputs, and the answers too, and who has the key."""
    change, words = REWRITTEN[name]
    honest = log.forged().missed_at_most
    change(log)
    rewrite_all(log)
    since_ms = 1_700_002_800_000 if "time" in name else 0
    told = log.forged(since_ms)
    assert told.missed_at_most < honest
    found = checked(log, told, since_ms)
    premise = next((one for one in (*found.wrong, *found.premises) if words in one), "")
    figure = re.search(r"at most ([\d,]+) were missed", premise)
    assert premise, found
    if name != "a key ground out":
        assert figure, premise
        assert int(figure[1].replace(",", "")) >= honest, premise


def test_a_partition_that_was_left_out_is_named(log):
    one_of_two(log)
    rewrite_all(log)
    premises = "\n".join(checked(log).premises)
    assert f"{LINES:,} records before the first verdict of their partition" in premises


def test_an_answer_to_the_audit_is_about_an_event_that_was_drawn(log):
    rejected(log, Reason.UNSCORABLE)
    log.items = {p: one for p, one in log.items.items() if p not in log.finds}
    assert any("answers to the audit" in one for one in checked(log).wrong)


@pytest.mark.parametrize("name", ["finds deleted", "unanswered deleted"])
def test_what_is_missing_never_makes_the_bound_smaller_than_its_count(log, name):
    before, n = log.forged(), len(log.finds if name.startswith("finds") else log.waiting)
    TAMPERED[name][0](log)
    after = checked(log).again
    assert after.undrawable["missing"] == n
    assert after.accepted == before.accepted


# ------------------------------------------------------------------- the certificate of a true log
@pytest.mark.parametrize("fields", [
    {"missed_at_most": 1}, {"since_ms": 1_700_003_600_000}, {"alpha": 0.5},
    {"sensitivity": 1.5}, {"signature": None}, {"signature": None, "commitment": None},
    {"commitment": "0" * 64}, {"pipeline": "other"}, {"accepted": 10**9}, {"undrawable": {}},
])  # fmt: skip
def test_a_certificate_that_was_changed_is_refused(log, fields):
    told = msgspec.structs.replace(log.forged(), **fields)
    with pytest.raises(ConnectorError, match=r"changed since|not the one that"):
        checked(log, told)


@pytest.mark.parametrize("fields", [{"missed_at_most": 1}, {"strata": ()}, {"accepted": 5}])
def test_one_that_its_own_maker_has_changed_and_signed_differs_from_the_log(log, fields):
    told = signed(msgspec.structs.replace(log.forged(), **fields), log.draw.key)
    assert any("the certificate says" in one for one in checked(log, told).wrong)


def test_answers_taken_back_or_turned_differ_from_what_was_certified(log):
    told = log.forged()
    log.labels = log.labels[:-20]
    assert any("missed_at_most" in one for one in checked(log, told).wrong)
    log.labels = [replace_label(one, verdict="normal") for one in log.labels]
    assert any("missed_at_least" in one or "strata" in one for one in checked(log, told).wrong)


def test_what_cannot_be_told_is_named(log):
    log.verdicts.insert(9, log.verdicts[9])  # delivered twice
    found = checked(log)
    assert found.wrong == ()
    assert "1 verdicts stand there twice, and are counted once" in found.premises
    log.items = None
    assert "review items were not compared" in checked(log).premises
    log.draw = replace(log.draw, key=b"")
    log.verdicts = [
        msgspec.structs.replace(one, audit=msgspec.structs.replace(one.audit, key=None))
        if one.audit else one for one in log.verdicts
    ]  # fmt: skip
    assert any(one.startswith("unsigned: ") for one in checked(log).premises)


def test_rates_that_were_switched_are_strata_of_their_own_and_named(log):
    half = log.verdicts[1000].position.offset
    early = {one.position for one in log.verdicts if one.audit and one.position.offset < half}
    log.verdicts = [
        msgspec.structs.replace(
            one, audit=Audit(0.01, log.draw.is_drawn(one.position, 0.01), committed(log.draw.key)),
        )
        if one.position in early else one for one in log.verdicts
    ]  # fmt: skip
    log.items, log.labels = None, []
    found = checked(log)
    assert found.wrong == ()
    assert {one.drawn for one in found.again.strata} == {0.01, 0.05, 0.4}
    assert any("at other rates, before the config's" in one for one in found.premises)


@pytest.mark.parametrize("lines", [[], [b"{broken"]])
def test_what_is_no_log_is_refused(log, lines):
    told = log.forged()
    log.lines = lines or [b"\n"]
    with pytest.raises(RejexError):
        checked(log, told)
