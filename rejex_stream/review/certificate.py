"""A certificate of missed anomalies: what it rests on, so that somebody else comes to the same.

Every event that the pipeline called normal, or that a mute hid, is counted with the probability
with which it was drawn, 0 and 1 included. Drawn events that nobody has called normal count as
missed, whatever the reason: an answer that is "unsure", disputed, expired or not there yet can only
make the bound worse, never wrong (:mod:`rejex_stream.rejection.audit`). An event that could
not be drawn counts as one that may be missed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from sqlite3 import Connection
from weakref import WeakKeyDictionary

import msgspec

from rejex_stream.encode import decode_review
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.rejection.audit import (
    Stratum,
    count_at_most,
    fewest_missed,
    most_missed,
    share_at_most,
)
from rejex_stream.review.gold_cases.reviewer_errors import Errors, known_cases
from rejex_stream.review.queue.labels import OF_KNOWN, resolution_of
from rejex_stream.review.queue.report import pipelines_of
from rejex_stream.review.queue.series import HOUR_MS
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.run.review_items import commitment
from rejex_stream.types import could_be_missed

__all__ = [
    "Answer",
    "AuditedStratum",
    "Certificate",
    "Tally",
    "certificates",
    "certify",
    "differences",
    "said",
    "signed",
    "tally_of_store",
]

Answer = str | None
"""What people say of an event: ``normal``, ``anomaly``, ``unsure``, or nothing yet."""


_NOBODY = Errors()


@dataclass
class Tally:
    """Accepted events, counted by how probably each was drawn.

    Attributes
    ----------
    accepted, drawn
        By probability above 0, how many; and how many of them were drawn.
    answers
        By probability and answer, drawn events; those without an answer need not be here.
    undrawable
        By why, how many could not be drawn.
    from_ms, until_ms
        Event times of the first and the newest; in whole hours where a store counted them.
    """

    accepted: Counter[float] = field(default_factory=Counter)
    drawn: Counter[float] = field(default_factory=Counter)
    answers: Counter[tuple[float, Answer]] = field(default_factory=Counter)
    undrawable: Counter[str] = field(default_factory=Counter)
    from_ms: int | None = None
    until_ms: int | None = None

    def count(self, t_ms: int, p: float, why: str, n: int, drawn: int) -> None:
        """Count `n` accepted events of one probability, of which `drawn` were drawn."""
        self.from_ms = t_ms if self.from_ms is None else min(self.from_ms, t_ms)
        self.until_ms = t_ms if self.until_ms is None else max(self.until_ms, t_ms)
        if not p:
            self.undrawable[why] += n
            return
        self.accepted[p] += n
        self.drawn[p] += drawn

    def answer(self, p: float, answer: Answer) -> None:
        """Take what people say of a drawn event."""
        self.answers[p, answer] += 1


class AuditedStratum(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted normals of one probability to be drawn.

    Attributes
    ----------
    drawn
        That probability, in (0, 1].
    accepted
        How many there were.
    audited, normal, anomalous
        How many were drawn; called normal; called anomalous. The others wait, or stay unsure.
    """

    drawn: float
    accepted: int
    audited: int
    normal: int
    anomalous: int


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """How many anomalies were called normal, valid at every look and for any stream.

    By the pipeline, or by who muted them, whatever the pipeline said.

    Attributes
    ----------
    pipeline, since_ms
        Whose accepted normals, and from which event time on, fixed beforehand (whole hours).
    from_ms, until_ms
        The first and the last hour that holds some.
    accepted
        How many events it is about.
    undrawable
        How many of them could not be drawn, by why: ``held`` by an incident, ``planned``, or the
        audit's rate was 0 (``rate``). Each may be an anomaly, and counts as one at most.
    alpha
        Probability that either bound is ever wrong.
    sensitivity, false_alarms
        Share of anomalies that reviewers recognise, at least; of normals that they call
        anomalies, at most.
    reviewers
        ``declared``, ``measured`` by `known`, or ``assumed``: nobody has measured it.
    known
        What reviewers said of known cases.
    strata
        What was drawn, and what became of it.
    missed_at_most, missed_at_least
        The bounds, of all accepted events.
    missed_at_most_of_drawable
        The upper one, of those that could be drawn.
    missed_at_most_if_rest_is_normal
        The same, would all that wait turn out normal.
    commitment
        SHA-256 of the draw's key; ``None``: the draw has no key, and anybody could foresee it.
    signature
        HMAC-SHA256 with that key over everything else; ``None`` without one.
    """

    pipeline: str
    since_ms: int
    from_ms: int | None
    until_ms: int | None
    accepted: int
    undrawable: Mapping[str, int]
    alpha: float
    sensitivity: float
    false_alarms: float
    reviewers: str
    known: Errors
    strata: tuple[AuditedStratum, ...]
    missed_at_most: int
    missed_at_least: int
    missed_at_most_of_drawable: int
    missed_at_most_if_rest_is_normal: int
    commitment: str | None = None
    signature: str | None = None


def certify(
    tally: Tally,
    *,
    pipeline: str,
    since_ms: int = 0,
    alpha: float = 0.05,
    sensitivity: float | None = None,
    known: Errors = _NOBODY,
) -> Certificate:
    """Return what the audited events prove, unsigned. O(strata).

    Both bounds hold together with probability 1 - `alpha`: each has half of it, and where
    reviewers' errors were measured, their limits have half of that.

    Parameters
    ----------
    tally
        The accepted events.
    since_ms
        From which event time on they were counted.
    alpha
        In (0, 1).
    sensitivity
        In (0, 1]: a lower limit of the share of anomalies that reviewers recognise; ``None``: the
        limit that `known` gives, or 1 without an answer to a known anomaly.
    known
        What reviewers said of cases whose truth was known.

    Raises
    ------
    ConfigError
        If a number is out of range, or nothing could be drawn.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.count(0, 0.01, "", 40_000, 400)
    >>> for _ in range(400):
    ...     tally.answer(0.01, "normal")
    >>> certify(tally, pipeline="pumps").missed_at_most
    500
    """
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
    reviewers, upper, lower = "declared", alpha / 2, alpha / 2
    if sensitivity is None:
        reviewers, sensitivity = "assumed", 1.0
        if known.anomalies:
            reviewers, upper = "measured", alpha / 4
            sensitivity = 1.0 - share_at_most(known.overlooked, known.anomalies, alpha=upper)
    false_alarms = 0.0
    if known.normals:
        lower = alpha / 4
        false_alarms = share_at_most(known.false_alarms, known.normals, alpha=lower / 2)
    drawable = sum(one.accepted for one in strata)
    unseen = sum(tally.undrawable.values())
    at_most = _at_most(strata, [one.audited - one.normal for one in strata], sensitivity, upper)
    if_normal = _at_most(strata, [one.anomalous for one in strata], sensitivity, upper)
    return Certificate(
        pipeline=pipeline,
        since_ms=since_ms,
        from_ms=tally.from_ms,
        until_ms=tally.until_ms,
        accepted=drawable + unseen,
        undrawable=dict(sorted(tally.undrawable.items())),
        alpha=alpha,
        sensitivity=sensitivity,
        false_alarms=false_alarms,
        reviewers=reviewers,
        known=known,
        strata=strata,
        missed_at_most=at_most + unseen,
        missed_at_least=_at_least(strata, false_alarms, lower / 2 if known.normals else lower),
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
    strata: tuple[AuditedStratum, ...], found: list[int], sensitivity: float, alpha: float
) -> int:
    """Return the upper bound; where every event is drawn and recognised, the finds themselves."""
    coins, seen = list[Stratum](), 0
    for one, n in zip(strata, found, strict=True):
        if one.drawn * sensitivity < 1.0:
            coins.append(Stratum(n, one.drawn * sensitivity))
        else:
            seen += n
    bound = seen + (most_missed(coins, alpha=alpha) if coins else 0)
    # Nobody overlooks anything: what was called normal is no anomaly.
    surely = sum(one.normal for one in strata) if sensitivity == 1.0 else 0
    return min(bound, sum(one.accepted for one in strata) - surely)


def _at_least(strata: tuple[AuditedStratum, ...], false_alarms: float, alpha: float) -> int:
    answered = sum(one.normal + one.anomalous for one in strata)
    wrong = count_at_most(answered, false_alarms, alpha=alpha)
    coins, seen = list[Stratum](), 0
    for one in strata:  # the least probable first: there a find says most, and so does a wrong one
        taken = min(wrong, one.anomalous)
        wrong -= taken
        if one.drawn < 1.0:
            coins.append(Stratum(one.anomalous - taken, one.drawn))
        else:
            seen += one.anomalous - taken
    return seen + (fewest_missed(coins, alpha=alpha) if coins else 0)


def said(certificate: Certificate) -> str:
    """Return a certificate as a sentence: about which events, how many at most, on what premise.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.count(0, 0.01, "", 40_000, 400)
    >>> tally.count(0, 0.0, "held", 1_500, 0)
    >>> for _ in range(399):
    ...     tally.answer(0.01, "normal")
    >>> print(said(certify(tally, pipeline="pumps")))
    of 41,500 accepted normals since 1970-01-01 00:00Z, 40,000 could be drawn: at most 748 and at \
least 0 of them were anomalies (95 % for both together, at every look, assumed that reviewers \
recognise all anomalies and call no normal one: known cases would measure it); 1 audited event has \
no clear answer: at best 500. 1,500 could not be drawn (1,500 held), so of all it is at most 2,248
    """
    c, seen = certificate, sum(one.accepted for one in certificate.strata)
    since = datetime.fromtimestamp((c.from_ms or 0) / 1000, UTC)
    waiting = sum(one.audited - one.normal - one.anomalous for one in c.strata)
    text = (
        f"of {c.accepted:,} accepted normals since {since:%Y-%m-%d %H:%MZ}, {seen:,} could be "
        f"drawn: at most {c.missed_at_most_of_drawable:,} and at least {c.missed_at_least:,} of "
        f"them were anomalies ({100 * (1 - c.alpha):g} % for both together, at every look, "
        f"{_premise(c)})"
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


def _premise(c: Certificate) -> str:
    recognise = (
        "all anomalies"
        if c.sensitivity == 1.0
        else f"{100 * c.sensitivity:.3g} % of the anomalies at least"
    )
    wrong = (
        "no normal one"
        if not c.false_alarms
        else f"{100 * c.false_alarms:.3g} % of the normals at most"
    )
    text = f"{c.reviewers} that reviewers recognise {recognise} and call {wrong}"
    return text + (": known cases would measure it" if c.reviewers == "assumed" else "")


# -------------------------------------------------------------------------------- from the store
def tally_of_store(connection: Connection, pipeline: str, since_ms: int = 0) -> Tally:
    """Count what a store knows of a pipeline's accepted events, from an hour on.

    Raises
    ------
    ConfigError
        If it has counted no verdicts: how many could not be drawn is then unknown.
    """
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
        f"WHERE e.why = 'audit' AND s.pipeline = ? AND v.event_time_ms >= ? AND NOT {OF_KNOWN} "
        "ORDER BY v.event_id",
        (pipeline, since_ms),
    ).fetchall()
    for row in rows:
        item = decode_review(row["item"])
        if could_be_missed(item.verdict) and item.drawn is not None:
            found = resolution_of(connection, row["episode_id"])
            tally.accepted[item.drawn] += 0  # a stratum even before its verdicts are read
            tally.answer(item.drawn, answer_of(found.state, found.verdict))
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
        found = {}
        for pipeline in pipelines_of(connection):
            with suppress(ConfigError):  # nothing was drawn
                found[pipeline] = certify(
                    tally_of_store(connection, pipeline),
                    pipeline=pipeline,
                    known=known_cases(connection, pipeline=pipeline).all,
                )
        known = _known[store] = version, found
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
    """Return where a certificate and one that was made again from the log differ, by field.

    Raises
    ------
    ConnectorError
        If there is a key and the certificate is not signed with it: changed, stripped, or of
        another key.
    """
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
