"""A certificate of missed anomalies, what it rests on, and its verification by somebody else.

Every event that the pipeline called normal, or that a mute hid, is counted with the probability
with which it was drawn, 0 and 1 included. Drawn events that nobody has called normal count as
missed, whatever the reason: an answer that is "unsure", disputed, expired or not there yet can only
make the bound worse, never wrong (:mod:`rejex_stream.rejection.audit_sampling`). An event that
could not be drawn counts as one that may be missed.

A verifier trusts nobody. A verdict that could be drawn has its probability, whether it was drawn,
and the commitment to the key: anybody with the key can repeat the draw. What cannot be checked is
named, and what is not there counts as one event that may be missed: a log with holes never gives a
smaller bound.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from sqlite3 import Connection
from weakref import WeakKeyDictionary

import msgspec

from rejex_stream.encode import decode_review, decode_verdict
from rejex_stream.encode.label_records import LabelRecord, active_labels, resolve
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.incidents.calendar import Plan
from rejex_stream.rejection.audit_sampling import Stratum, commitment, fewest_missed, most_missed
from rejex_stream.rejection.band import label_of, rank_edges
from rejex_stream.review.queue.label_report import pipelines_of
from rejex_stream.review.queue.label_store import resolution_of
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.review.queue.series import HOUR_MS
from rejex_stream.run.review_items import AuditDraw, committed
from rejex_stream.types import (
    Command,
    CommandKind,
    Incident,
    IncidentState,
    Label,
    Partition,
    Position,
    Reason,
    ReviewItem,
    Verdict,
    could_be_missed,
    drawable,
    in_mode,
    without_limits,
)

Answer = str | None  # what people say of an event: `normal`, `anomaly`, `unsure`, or nothing yet


@dataclass
class Tally:
    """Accepted events, counted by how probably each was drawn."""

    # by probability above 0, how many; and how many of them were drawn
    accepted: Counter[float] = field(default_factory=Counter)
    drawn: Counter[float] = field(default_factory=Counter)
    # by probability and answer, drawn events; those without an answer need not be here
    answers: Counter[tuple[float, Answer]] = field(default_factory=Counter)
    undrawable: Counter[str] = field(default_factory=Counter)  # by why, how many could not be drawn
    # event times of the first and the newest; in whole hours where a store counted them
    from_ms: int | None = None
    until_ms: int | None = None

    def plus(self, other: Tally) -> Tally:
        names = "accepted", "drawn", "answers", "undrawable"
        return Tally(*(getattr(self, name) + getattr(other, name) for name in names))

    def count(self, t_ms: int, p: float, why: str, n: int, drawn: int) -> None:
        """Count `n` accepted events of one probability, of which `drawn` were drawn."""
        self.from_ms = t_ms if self.from_ms is None else min(self.from_ms, t_ms)
        self.until_ms = t_ms if self.until_ms is None else max(self.until_ms, t_ms)
        if not p:
            self.undrawable[why] += n
            return
        self.accepted[p] += n
        self.drawn[p] += drawn


class AuditedStratum(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted normals of one probability to be drawn."""

    drawn: float  # that probability, in (0, 1]
    accepted: int  # how many there were
    # how many were drawn; called normal; called anomalous. The others wait, or stay unsure
    audited: int
    normal: int
    anomalous: int


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """How many anomalies were called normal, valid at every look and for any stream."""

    # By the pipeline, or by who muted them, whatever the pipeline said.

    # whose events, and from which event time on, fixed beforehand (whole hours)
    pipeline: str
    since_ms: int
    from_ms: int | None  # the first and the last hour that holds some
    until_ms: int | None
    accepted: int  # how many events it is about
    # how many of them could not be drawn, by why: `held` by an incident, `planned`, or the audit's
    # rate was 0 (`rate`). Each may be an anomaly, and counts as one at most
    undrawable: Mapping[str, int]
    alpha: float  # probability that either bound is ever wrong
    sensitivity: float  # share of anomalies that reviewers recognise, at least
    reviewers: str  # `declared`, or `assumed`: nobody has said how many they recognise
    strata: tuple[AuditedStratum, ...]  # what was drawn, and what became of it
    missed_at_most: int  # the bounds, of all accepted events
    missed_at_least: int
    missed_at_most_of_drawable: int  # the upper one, of those that could be drawn
    missed_at_most_if_rest_is_normal: int  # the same, would all that wait turn out normal
    # SHA-256 of the draw's key; `None`: the draw has no key, and anybody could foresee it
    commitment: str | None = None
    # HMAC-SHA256 with that key over everything else; `None` without one
    signature: str | None = None


def certify(
    tally: Tally,
    *,
    pipeline: str,
    since_ms: int = 0,
    alpha: float = 0.05,
    sensitivity: float | None = None,
) -> Certificate:
    """Return what the audited events prove, unsigned. O(strata)."""
    # Both bounds hold together with probability 1 - `alpha`: each has half of it.
    if sensitivity is not None and not 0.0 < sensitivity <= 1.0:
        raise ConfigError(f"sensitivity is {sensitivity}: expected a share above 0 and up to 1.")
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha is {alpha}: expected a probability between 0 and 1.")
    strata = tuple(_stratum(tally, p) for p in sorted(tally.accepted))
    if not strata:
        raise ConfigError(
            "no accepted normal could be drawn for an audit: set output.audit_rate, and let people "
            "answer what it sends."
        )
    reviewers = "declared"
    if sensitivity is None:
        reviewers, sensitivity = "assumed", 1.0
    drawable = sum(one.accepted for one in strata)
    unseen = sum(tally.undrawable.values())
    at_most = _at_most(strata, [one.audited - one.normal for one in strata], sensitivity, alpha / 2)
    if_normal = _at_most(strata, [one.anomalous for one in strata], sensitivity, alpha / 2)
    return Certificate(
        pipeline=pipeline,
        since_ms=since_ms,
        from_ms=tally.from_ms,
        until_ms=tally.until_ms,
        accepted=drawable + unseen,
        undrawable=dict(sorted(tally.undrawable.items())),
        alpha=alpha,
        sensitivity=sensitivity,
        reviewers=reviewers,
        strata=strata,
        missed_at_most=at_most + unseen,
        missed_at_least=_at_least(strata, alpha / 2),
        missed_at_most_of_drawable=at_most,
        missed_at_most_if_rest_is_normal=if_normal,
    )


def _stratum(tally: Tally, p: float) -> AuditedStratum:
    normal, anomalous = tally.answers[p, "normal"], tally.answers[p, "anomaly"]
    audited = max(tally.drawn[p], sum(n for (q, _), n in tally.answers.items() if q == p))
    return AuditedStratum(
        drawn=p,
        accepted=max(tally.accepted[p], audited),
        audited=audited,
        normal=normal,
        anomalous=anomalous,
    )


def _at_most(
    strata: tuple[AuditedStratum, ...], finds: list[int], sensitivity: float, alpha: float
) -> int:
    """Return the upper bound; where every event is drawn and recognised, the finds themselves."""
    sampled, seen = list[Stratum](), 0
    for one, n in zip(strata, finds, strict=True):
        if one.drawn * sensitivity < 1.0:
            sampled.append(Stratum(n, one.drawn * sensitivity))
        else:
            seen += n
    bound = seen + (most_missed(sampled, alpha=alpha) if sampled else 0)
    # Nobody overlooks anything: what was called normal is no anomaly.
    surely = sum(one.normal for one in strata) if sensitivity == 1.0 else 0
    return min(bound, sum(one.accepted for one in strata) - surely)


def _at_least(strata: tuple[AuditedStratum, ...], alpha: float) -> int:
    seen = sum(stratum.anomalous for stratum in strata if stratum.drawn >= 1.0)
    sampled = [Stratum(s.anomalous, s.drawn) for s in strata if s.drawn < 1.0]
    return seen + (fewest_missed(sampled, alpha=alpha) if sampled else 0)


def sentence(certificate: Certificate) -> str:
    """Return a certificate as a sentence: about which events, how many at most, on what premise."""
    c, seen = certificate, sum(one.accepted for one in certificate.strata)
    since = datetime.fromtimestamp((c.from_ms or 0) / 1000, UTC)
    waiting = sum(one.audited - one.normal - one.anomalous for one in c.strata)
    share = f"{100 * c.sensitivity:.3g} % of the anomalies at least"
    known = "all anomalies" if c.sensitivity == 1.0 else share
    text = (
        f"of {c.accepted:,} events called normal or muted since {since:%Y-%m-%d %H:%MZ}, "
        f"{seen:,} could be drawn: at most {c.missed_at_most_of_drawable:,} and at least "
        f"{c.missed_at_least:,} of them were anomalies ({100 * (1 - c.alpha):g} % for both "
        f"together, at every look, {c.reviewers} that reviewers recognise {known} and call no "
        "normal one)"
    )
    if waiting:
        have = "event has" if waiting == 1 else "events have"
        text += (
            f"; {waiting:,} audited {have} no clear answer: at best "
            f"{c.missed_at_most_if_rest_is_normal:,}"
        )
    if c.accepted > seen:
        why = ", ".join(f"{n:,} {_WHY.get(name, name)}" for name, n in c.undrawable.items() if n)
        text += (
            f". {c.accepted - seen:,} could not be drawn ({why}), so of all it is at most "
            f"{c.missed_at_most:,}"
        )
    return text


_WHY = {"rate": "at an audit rate of 0", "missing": "without a verdict in the log"}


# -------------------------------------------------------------------------------- from the store
def tally_of_store(connection: Connection, pipeline: str, since_ms: int = 0) -> Tally:
    """Count what a store knows of a pipeline's accepted events, from an hour on."""
    since_ms -= since_ms % HOUR_MS
    tally = Tally()
    for t_ms, p, why, n, drawn in connection.execute(
        "SELECT t_ms, p, why, n, drawn FROM accepted WHERE pipeline = ? AND t_ms >= ?",
        (pipeline, since_ms),
    ):
        tally.count(t_ms, p, why, n, drawn)
    if tally.until_ms is None:
        raise ConfigError(
            f"the store has counted no accepted verdict of {pipeline!r}"
            + (" since then" if since_ms else "")
            + ", so nobody knows how many could not be drawn: let it read the verdicts "
            "(output.verdicts), and set output.audit_rate."
        )
    rows = connection.execute(
        "SELECT v.item, e.episode_id FROM event v "
        "JOIN episode e USING (episode_id) JOIN sensor s ON s.sensor_id = v.sensor_id "
        "WHERE e.why = 'audit' AND s.pipeline = ? AND v.event_time_ms >= ? "
        "ORDER BY v.event_id",
        (pipeline, since_ms),
    ).fetchall()
    for row in rows:
        item = decode_review(row["item"])
        if could_be_missed(item.verdict) and item.drawn is not None:
            result = resolution_of(connection, row["episode_id"])
            tally.accepted[item.drawn] += 0  # a stratum even before its verdicts are read
            tally.answers[item.drawn, answer_of(result.state, result.verdict)] += 1
    return tally


def answer_of(state: str, verdict: Answer) -> Answer:
    """Return what people say: what the machine says once nobody has looked in time is no answer."""
    return None if state == "expired" else verdict


def certificates(store: ReviewStore, connection: Connection) -> Mapping[str, Certificate]:
    """Return what a store's answers prove of each pipeline that was audited, since its first event.

    O(audited events) after an answer or an event, O(1) until the next: those who ask, ask often.
    """
    version = tuple(
        connection.execute(
            "SELECT (SELECT max(label_seq) FROM label), (SELECT max(event_id) FROM event), "
            "(SELECT sum(n) FROM accepted)"
        ).fetchone()
    )
    known = _known.get(store)
    if known is None or known[0] != version:
        proven = {}
        for pipeline in pipelines_of(connection):
            with suppress(ConfigError):  # nothing was drawn
                tally = tally_of_store(connection, pipeline)
                proven[pipeline] = certify(tally, pipeline=pipeline)
        known = _known[store] = version, proven
    return known[1]


_Known = tuple[tuple[int | None, ...], Mapping[str, Certificate]]
_known: WeakKeyDictionary[ReviewStore, _Known] = WeakKeyDictionary()


# ---------------------------------------------------------------------------------- signatures
def signed(certificate: Certificate, key: bytes) -> Certificate:
    """Return a certificate with the commitment to a key, and signed with it."""
    if not key:
        return certificate
    whole = msgspec.structs.replace(certificate, commitment=commitment(key), signature=None)
    return msgspec.structs.replace(whole, signature=_signature(whole, key))


def differences(
    certificate: Certificate, again: Certificate, key: bytes
) -> Mapping[str, tuple[object, object]]:
    """Return where a certificate and one that was made again from the log differ, by field."""
    if key and certificate.commitment != commitment(key):
        raise ConnectorError(
            "the key is not the one that the certificate commits to: its SHA-256 is "
            f"{commitment(key)}, not {certificate.commitment}."
        )
    whole = msgspec.structs.replace(certificate, signature=None)
    if key and not hmac.compare_digest(certificate.signature or "", _signature(whole, key)):
        raise ConnectorError("the signature is not of this certificate: it was changed since.")
    here, there = msgspec.structs.asdict(whole), msgspec.structs.asdict(again)
    return {
        name: (here[name], there[name])
        for name in here
        if name not in {"signature", "commitment"} and here[name] != there[name]
    }


def _signature(certificate: Certificate, key: bytes) -> str:
    return hmac.new(key, msgspec.json.encode(certificate), hashlib.sha256).hexdigest()


@dataclass
class Evidence:
    """What people and the pipeline said beside the verdicts."""

    labels: Iterable[LabelRecord] = ()  # what people said of events, in order
    # as they stand, by id; `None`: nobody has them, and nothing held can be checked
    incidents: Mapping[str, Incident] | None = None
    # what was commanded; `None` likewise for what is planned or muted
    commands: Collection[Command] | None = None
    # drawn review items by position; `None` likewise
    items: Mapping[Position, ReviewItem] | None = None
    reviewers: Collection[str] = ()  # who may answer; empty: anybody
    calendar: Collection[Plan] = ()  # when the config says that work is planned
    # positions of records that could not be read, which have no verdict
    unread: Collection[Position] = ()
    # why records may have no verdict, though none of them is missing; empty: each has one
    gaps: str = ""
    # where the input begins and ends; `None`: nobody has asked
    bounds: Mapping[Partition, tuple[int, int]] | None = None


@dataclass
class Testimony:
    """What a log says, and what is wrong with it."""

    # its accepted events, those that are missing among them
    tally: Tally = field(default_factory=Tally)
    # sentences, each with how often: any of them, and the log does not stand as it was written
    wrong: Counter[str] = field(default_factory=Counter)
    # what may be right and cannot be checked here, each with the events that it takes out of the
    # certificate, as they would be counted in it otherwise
    doubts: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    n_twice: int = 0  # verdicts that stand there twice
    missing: int = 0  # verdicts that the log lacks


def read_log(
    verdicts: Iterable[bytes], draw: AuditDraw, evidence: Evidence, *, since_ms: int = 0
) -> Testimony:
    """Read a log of verdicts and draw again. O(verdicts) time and memory."""
    return _Reader(draw, evidence, since_ms - since_ms % HOUR_MS).read(verdicts)


@dataclass(frozen=True)
class Verified:
    """What came of a verification."""

    again: Certificate  # the certificate as the log gives it
    wrong: tuple[str, ...]  # sentences; empty: the log says what the certificate says
    premises: tuple[str, ...]  # what was taken from the certificate, or could not be checked


def verify(
    certificate: Certificate,
    verdicts: Iterable[bytes],
    draw: AuditDraw,
    evidence: Evidence,
    *,
    pipeline: str,
) -> Verified:
    """Make a certificate again from a log, and say where the two differ."""
    testimony = read_log(verdicts, draw, evidence, since_ms=certificate.since_ms)
    declared = certificate.reviewers == "declared"
    again = certify(
        testimony.tally,
        pipeline=pipeline,
        since_ms=certificate.since_ms,
        alpha=certificate.alpha,
        sensitivity=certificate.sensitivity if declared else None,
    )
    wrong = [f"{count:,} {sentence}" for sentence, count in sorted(testimony.wrong.items())]
    if testimony.missing:
        wrong.append(
            f"incomplete: {testimony.missing:,} records have no verdict; each may be missed"
        )
    for name, (there, here) in differences(certificate, again, draw.key).items():
        wrong.append(f"{name}: the certificate says {there}, the log {here}")
    return Verified(again, tuple(wrong), tuple(_premises(testimony, certificate, draw, evidence)))


def _premises(
    testimony: Testimony, certificate: Certificate, draw: AuditDraw, evidence: Evidence
) -> Iterator[str]:
    """Yield what was taken at its word, each with the bound that holds if it is not true."""
    tally = testimony.tally
    sensitivity = certificate.sensitivity if certificate.reviewers == "declared" else None

    def bound(accepted: Tally) -> str:
        again = certify(accepted, pipeline="", alpha=certificate.alpha, sensitivity=sensitivity)
        return f"at most {again.missed_at_most:,} were missed"

    for sentence, events in sorted(testimony.doubts.items()):
        count = sum(events.accepted.values()) + sum(events.undrawable.values())
        yield f"{count:,} {sentence}: if they count too, {bound(tally.plus(events))}"
    if testimony.n_twice:
        yield f"{testimony.n_twice:,} verdicts stand there twice, and are counted once"
    unanswered = replace(tally, answers=Counter())
    yield f"answers are the word of the log of labels: without them, {bound(unanswered)}"
    yield (
        "that the draw's key was fixed before the first event is the log's word: its SHA-256 is "
        f"{commitment(draw.key)}"
        if draw.key
        else "unsigned: the draw has no key, so anybody could foresee it, and write this"
    )
    if certificate.reviewers != "assumed":
        yield f"what reviewers recognise is {certificate.reviewers}, and not checked here"
    if evidence.items is None:
        yield "review items were not compared"
    if evidence.bounds is None:
        yield "that no partition is left out is the log's word"


class _Reader:
    def __init__(self, draw: AuditDraw, evidence: Evidence, since_ms: int) -> None:
        self._draw, self._evidence, self._since_ms = draw, evidence, since_ms
        self._key = committed(draw.key)
        self._labels: dict[Position, list[LabelRecord]] = {}
        self._found = Testimony()
        self._seen: dict[Position, bytes] = {}
        self._seq: dict[str, int] = {}
        self._at_rates: set[tuple[Partition, float]] = set()

    def read(self, verdicts: Iterable[bytes]) -> Testimony:
        testimony = self._found
        self._take_labels()
        for line in verdicts:
            if not line.strip():
                continue
            verdict = decode_verdict(line)
            if self._is_new(verdict, line):
                self._check_seq(verdict)
                self._check_label(verdict)
                self._check_absence(verdict)
                self._check_item(verdict)
                self._count(verdict)
        self._find_missing()
        for position in self._labels:
            if position not in self._seen:
                testimony.wrong["answers are about events that have no verdict"] += 1
        for position in self._evidence.items or ():
            if position not in self._seen:
                testimony.wrong["review items are about events that have no verdict"] += 1
        if testimony.missing:
            testimony.tally.undrawable["missing"] += testimony.missing
        return testimony

    def _take_labels(self) -> None:
        retracted: dict[str, tuple[Position, ...]] = {}
        for record in self._evidence.labels:
            about = record.events or retracted.get(record.retracts or "", ())
            retracted[record.label_id] = about
            known = self._evidence.reviewers
            if known and record.source == "human" and record.reviewer not in known:
                self._found.wrong[
                    f"answers are by {record.reviewer!r}, whom the config does not know"
                ] += 1
                continue
            for position in about:
                self._labels.setdefault(position, []).append(record)

    def _is_new(self, verdict: Verdict, line: bytes) -> bool:
        before = self._seen.setdefault(verdict.position, line)
        if before is line:
            return True
        if before.strip() != line.strip():
            self._found.wrong["positions have two verdicts that differ"] += 1
        else:
            self._found.n_twice += 1
        return False

    def _find_missing(self) -> None:
        """Find records without a verdict: the input's records are numbered."""
        given: defaultdict[Partition, set[int]] = defaultdict(set)
        unread: defaultdict[Partition, set[int]] = defaultdict(set)
        for positions, offsets in ((self._seen, given), (self._evidence.unread, unread)):
            for position in positions:
                offsets[Partition(position.topic, position.partition)].add(position.offset)
        bounds = self._evidence.bounds or {}
        for place in {*given, *bounds}:
            begin, end = bounds.get(place, (0, 0))
            there, known = given[place], unread[place]
            first, last = (min(there), max(there)) if there else (end, end)
            # What was before the input's own beginning nobody can compare, if the log has none.
            before = range(0 if there else begin, first)
            self._doubt_absent(place, before, known, _BEFORE)
            absent = set(range(first, last)) - there
            if self._evidence.gaps:
                sentence = f"records between others have no verdict ({self._evidence.gaps})"
                self._doubt_absent(place, absent, known, sentence)
            else:
                self._found.missing += len(absent - known)
            self._doubt_absent(place, known & absent, (), _UNREAD)

    def _doubt_absent(
        self, place: Partition, offsets: Collection[int], known: Collection[int], sentence: str
    ) -> None:
        """Count records without a verdict as they would be had each been called normal."""
        if len(offsets) > _MOST_DRAWN_AGAIN:
            self._found.doubts[sentence].undrawable["missing"] += len(offsets)
            return
        for offset in offsets:
            if offset not in known:
                self._doubt(Position(*place, offset), sentence)

    def _doubt(self, position: Position, sentence: str, p: float | None = None) -> None:
        """Count an event that the certificate leaves out as it would be in it, or worse."""
        if p is None:  # of the shares at which it may have been drawn, what makes most of it
            rates = sorted({self._draw.rate, self._draw.near_rate or 0.0} - {0.0}) or [0.0]
            p = next((p for p in rates if self._draw.is_drawn(position, p)), rates[0])
        events, drawn = self._found.doubts[sentence], self._draw.is_drawn(position, p)
        events.count(0, p, "rate", 1, drawn)
        if drawn:
            events.answers[p, self._answer(position)] += 1

    def _answer(self, position: Position) -> Answer:
        result = resolve(active_labels(self._labels.get(position, ())))
        return answer_of(result.state, result.verdict)

    def _check_seq(self, verdict: Verdict) -> None:
        """Find what is missing: a stream's events are numbered."""
        if verdict.reason is Reason.TOO_MANY_SENSORS:
            return
        key = in_mode(verdict.stream_key, verdict.mode)
        last = self._seq.get(key, -1)
        if verdict.seq not in (0, last + 1):  # 0: it was forgotten, and came back
            self._found.wrong["verdicts do not follow the one before of their stream"] += 1
        self._seq[key] = verdict.seq

    def _check_label(self, verdict: Verdict) -> None:
        rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
        if verdict.limited:
            if verdict.label is not Label.ANOMALY or verdict.reason is not Reason.LIMIT:
                self._found.wrong["verdicts beyond a limit are no anomalies by it"] += 1
            verdict = without_limits(verdict)
        if (verdict.label is Label.REJECTED) != (verdict.reason is not None):
            self._found.wrong["verdicts give a reason and are not rejected, or the reverse"] += 1
        if verdict.reason not in (None, Reason.AMBIGUOUS):
            return
        if rank is None or lower is None or upper is None:
            self._found.wrong["accepted verdicts have no rank"] += 1
            return
        edges = rank_edges(verdict.window_len, verdict.n_anomalies, lower, upper)
        if label_of(rank, edges) is not verdict.label:
            self._found.wrong["labels are not those of their rank and band"] += 1

    def _check_absence(self, verdict: Verdict) -> None:
        """Check why nobody was asked: an incident, planned work, a mute."""
        evidence, wrong = self._evidence, self._found.wrong
        if verdict.held:
            if evidence.incidents is None:
                wrong["held verdicts cannot be checked: there are no incidents"] += 1
            elif not _holds(evidence.incidents.get(verdict.incident or ""), verdict):
                wrong["verdicts are held, and no incident of theirs was open"] += 1
        planned = verdict.planned and not any(
            plan.holds(verdict.stream_key, verdict.event_time_ms) for plan in evidence.calendar
        )
        for kind, applies in (
            (CommandKind.PLANNED, planned),
            (CommandKind.MUTE, bool(verdict.muted)),
        ):
            if not applies:
                continue
            if evidence.commands is None:
                wrong[f"{kind} verdicts cannot be checked: there are no commands"] += 1
            elif not any(_commands(one, kind, verdict) for one in evidence.commands):
                wrong[f"verdicts are {kind}, and nobody commanded it"] += 1

    def _check_item(self, verdict: Verdict) -> None:
        items, drawn = self._evidence.items, bool(verdict.audit and verdict.audit.drawn)
        if items is None:
            return
        item = items.get(verdict.position)
        if drawn and item is None:
            self._found.wrong["drawn events have no review item"] += 1
        elif item is not None and (item.verdict != verdict or not drawn):
            self._found.wrong["verdicts differ from those of their review items"] += 1

    def _count(self, verdict: Verdict) -> None:
        audit, wrong = verdict.audit, self._found.wrong
        if audit:
            if audit.key != self._key:
                wrong["draws are committed to another key"] += 1
            if audit.drawn != self._draw.is_drawn(verdict.position, audit.p):
                wrong["draws come out otherwise than the log says"] += 1
            self._check_rate(verdict, audit.p)
        drawn = bool(audit and audit.drawn)
        labels = self._labels.get(verdict.position, ())
        if not drawn and any(label.why == "audit" for label in labels):
            wrong["answers to the audit are about events that were not drawn"] += 1
        if not could_be_missed(verdict):
            self._doubt(verdict.position, _NO_RANK if verdict.rank is None else _RANKED)
            return
        p, why = drawable(verdict)
        if not p:
            self._check_rate(verdict, 0.0)
        hour_ms = verdict.event_time_ms - verdict.event_time_ms % HOUR_MS
        tally = self._found.tally
        if verdict.event_time_ms < self._since_ms:
            tally = self._found.doubts[_EARLIER]
        elif why in ("held", "planned"):
            # The certificate counts each as one; drawn and put away, it would have been 1 / p.
            self._doubt(verdict.position, _HELD)
        tally.count(hour_ms, p, why, 1, drawn)
        if drawn:
            tally.answers[p, self._answer(verdict.position)] += 1

    def _check_rate(self, verdict: Verdict, p: float) -> None:
        """Check a probability against the config's: rates are switched once, for all that come."""
        wanted = self._draw.probability(verdict)
        place = Partition(verdict.position.topic, verdict.position.partition), wanted
        if p == wanted:
            self._at_rates.add(place)
        elif place in self._at_rates:
            self._found.wrong["probabilities are not the config's, among others that are"] += 1
        else:
            self._doubt(verdict.position, _OTHER_RATES, wanted)


_MOST_DRAWN_AGAIN = 1_000_000
_BEFORE = "records before the first verdict of their partition are not in the log"
_UNREAD = "records have no verdict, as dead letters say that they could not be read"
_EARLIER = "accepted events are before the time that the certificate begins at"
_NO_RANK = "verdicts were rejected without a rank (warm-up, unscorable), by the log's word"
_RANKED = "verdicts were rejected or anomalies by their ranks, which are the log's word"
_HELD = "accepted events are held or planned, by the word of incidents, commands and calendar"
_OTHER_RATES = "events were drawn at other rates, before the config's"


def _holds(incident: Incident | None, verdict: Verdict) -> bool:
    if incident is None or incident.stream_key != verdict.stream_key:
        return False
    over = incident.state is IncidentState.CLOSED
    return (
        incident.mode == verdict.mode
        and incident.opened_seq <= verdict.seq
        and (not over or verdict.seq <= incident.changed_seq)
    )


def _commands(command: Command, kind: CommandKind, verdict: Verdict) -> bool:
    if command.kind is not kind or (
        verdict.muted and kind is CommandKind.MUTE and command.id != verdict.muted
    ):
        return False
    begun, over = command.from_ms or 0, command.until_ms
    return (
        command.stream_key in (None, verdict.stream_key)
        and begun <= verdict.event_time_ms
        and (over is None or verdict.event_time_ms < over)
    )
