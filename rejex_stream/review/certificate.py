"""A certificate of missed anomalies: what it rests on, so that somebody else comes to the same.

Drawn events that nobody has called normal count as missed, whatever the reason: an answer that is
"unsure", disputed, expired or not there yet can only make the bound worse, never wrong
(:mod:`rejex_stream.rejection.missed_bound`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from sqlite3 import Connection
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from rejex_stream.encode import decode_review, decode_verdict
from rejex_stream.encode.labels import LabelRecord, active_labels, resolve
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.rejection.missed_bound import Stratum, fewest_missed, most_missed
from rejex_stream.review.queue.labels import OF_KNOWN, resolution_of
from rejex_stream.review.queue.report import pipelines_of
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.run.audit_draw import AuditDraw, commitment
from rejex_stream.types import Label, Position, Verdict

__all__ = [
    "Answer",
    "AuditedStratum",
    "Certificate",
    "answers_in",
    "answers_of_log",
    "certificates",
    "certify",
    "differences",
    "said",
    "signed",
]

Answer = str | None
"""What people say of an event: ``normal``, ``anomaly``, ``unsure``, or nothing yet."""


class Audited(NamedTuple):
    """An accepted normal that was drawn."""

    event_time_ms: int
    drawn: float | None
    answer: Answer


class AuditedStratum(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted normals that were drawn with one probability.

    Attributes
    ----------
    drawn
        That probability.
    audited, normal, anomalous
        How many were drawn; called normal; called anomalous. The others wait, or stay unsure.
    """

    drawn: float
    audited: int
    normal: int
    anomalous: int


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """How many anomalies were called normal, valid at every look and for any stream.

    By the pipeline, or by who muted them, whatever the pipeline said.

    Attributes
    ----------
    pipeline, since_ms, until_ms
        Whose accepted normals; from which event time on, and up to the newest that was audited.
    alpha
        Probability that the bound is ever wrong.
    sensitivity
        The share of anomalies that reviewers are trusted to recognise.
    strata
        What was drawn, and what became of it.
    missed_at_most, missed_at_least
        The bounds.
    missed_at_most_if_rest_is_normal
        The upper one, would all that wait turn out normal.
    undated
        Audited events that carry no probability (of an earlier version): left out.
    commitment
        SHA-256 of the draw's key, as it was told at the start; ``None``: the draw has no key.
    signature
        HMAC-SHA256 with that key over everything else; ``None`` without one.
    """

    pipeline: str
    since_ms: int
    until_ms: int | None
    alpha: float
    sensitivity: float
    strata: tuple[AuditedStratum, ...]
    missed_at_most: int
    missed_at_least: int
    missed_at_most_if_rest_is_normal: int
    undated: int
    commitment: str | None = None
    signature: str | None = None


def certify(
    audited: Iterable[Audited],
    *,
    pipeline: str,
    since_ms: int = 0,
    alpha: float = 0.05,
    sensitivity: float = 1.0,
) -> Certificate:
    """Return what the audited events prove, unsigned. O(events).

    Parameters
    ----------
    audited
        The accepted normals that were drawn.
    since_ms
        From this event time on; fixed beforehand, or the promise is not one at every look.
    alpha
        In (0, 1).
    sensitivity
        In (0, 1]: a lower limit of the share of anomalies that reviewers recognise.

    Raises
    ------
    ConfigError
        If a number is out of range, or nothing was drawn.

    Examples
    --------
    >>> seen = [Audited(i, 0.01, "normal") for i in range(400)]
    >>> certify(seen, pipeline="pumps").missed_at_most
    416
    """
    if not 0.0 < sensitivity <= 1.0:
        raise ConfigError(f"sensitivity is {sensitivity}: expected a share above 0 and up to 1.")
    drawn, said = Counter[float](), Counter[tuple[float, Answer]]()
    undated, until_ms = 0, None
    for event in audited:
        if event.event_time_ms < since_ms:
            continue
        if event.drawn is None:
            undated += 1
            continue
        drawn[event.drawn] += 1
        said[event.drawn, event.answer] += 1
        until_ms = max(until_ms or event.event_time_ms, event.event_time_ms)
    strata = [
        AuditedStratum(
            drawn=share,
            audited=drawn[share],
            normal=said[share, "normal"],
            anomalous=said[share, "anomaly"],
        )
        for share in sorted(drawn)
        if share < 1.0  # where all are audited, none is missed unseen
    ]
    if not strata:
        raise ConfigError(
            "no accepted normal was drawn for an audit: set output.audit_rate, and let people "
            "answer what it sends."
        )
    at_worst = [_stratum(one, one.audited - one.normal, sensitivity) for one in strata]
    at_best = [_stratum(one, one.anomalous, sensitivity) for one in strata]
    at_least = [_stratum(one, one.anomalous, 1.0) for one in strata]  # all were recognised
    return Certificate(
        pipeline=pipeline,
        since_ms=since_ms,
        until_ms=until_ms,
        alpha=alpha,
        sensitivity=sensitivity,
        strata=tuple(strata),
        missed_at_most=most_missed(at_worst, alpha=alpha),
        missed_at_least=fewest_missed(at_least, alpha=alpha),
        missed_at_most_if_rest_is_normal=most_missed(at_best, alpha=alpha),
        undated=undated,
    )


def _stratum(one: AuditedStratum, found: int, sensitivity: float) -> Stratum:
    return Stratum(found, one.drawn * sensitivity)


def said(certificate: Certificate) -> str:
    """Return a certificate's bound as a sentence.

    Examples
    --------
    >>> seen = [Audited(i, 0.01, "normal" if i else None) for i in range(400)]
    >>> print(said(certify(seen, pipeline="pumps")))
    at most 656 accepted normals were anomalies (95 %, at every look, if reviewers recognise all \
they see); 1 audited event has no clear answer: at best 416
    """
    waiting = sum(one.audited - one.normal - one.anomalous for one in certificate.strata)
    rest = ""
    if waiting:
        have = "event has" if waiting == 1 else "events have"
        rest = (
            f"; {waiting:,} audited {have} no clear answer: at best "
            f"{certificate.missed_at_most_if_rest_is_normal:,}"
        )
    seen = (
        "all" if certificate.sensitivity == 1.0 else f"{100 * certificate.sensitivity:g} % of all"
    )
    return (
        f"at most {certificate.missed_at_most:,} accepted normals were anomalies "
        f"({100 * (1 - certificate.alpha):g} %, at every look, if reviewers recognise {seen} they "
        f"see){rest}"
    )


def certificates(store: ReviewStore, connection: Connection) -> Mapping[str, Certificate]:
    """Return what a store's answers prove of each pipeline that was audited, since its first event.

    O(audited events) after an answer or an event, O(1) until the next: those who ask, ask often.
    """
    version = tuple(
        connection.execute(
            "SELECT (SELECT max(label_seq) FROM label), (SELECT max(event_id) FROM event)"
        ).fetchone()
    )
    known = _known.get(store)
    if known is None or known[0] != version:
        found = {}
        for pipeline in pipelines_of(connection):
            with suppress(ConfigError):  # nothing was drawn
                found[pipeline] = certify(answers_in(connection, pipeline), pipeline=pipeline)
        known = _known[store] = version, found
    return known[1]


_Known = tuple[tuple[int | None, ...], Mapping[str, Certificate]]
_known: WeakKeyDictionary[ReviewStore, _Known] = WeakKeyDictionary()


def answers_in(connection: Connection, pipeline: str) -> Iterator[Audited]:
    """Yield the drawn normals of a pipeline from the queue's store."""
    rows = connection.execute(
        "SELECT v.event_time_ms, v.item, e.episode_id FROM event v "
        "JOIN episode e USING (episode_id) JOIN sensor s ON s.sensor_id = v.sensor_id "
        f"WHERE e.why = 'audit' AND s.pipeline = ? AND NOT {OF_KNOWN} ORDER BY v.event_id",
        (pipeline,),
    ).fetchall()
    for row in rows:
        item = decode_review(row["item"])
        if _is_told_normal(item.verdict):
            found = resolution_of(connection, row["episode_id"])
            yield Audited(row["event_time_ms"], item.drawn, _answer(found.state, found.verdict))


def answers_of_log(
    verdicts: Iterable[bytes], labels: Iterable[LabelRecord], draw: AuditDraw
) -> Iterator[Audited]:
    """Yield the drawn normals of a log of verdicts: every coin is tossed again.

    Parameters
    ----------
    verdicts
        Verdicts as they were written, a line each.
    labels
        What people said, in order.
    draw
        The draw of the pipeline, with its key.
    """
    said: dict[Position, list[LabelRecord]] = {}
    retracted: dict[str, tuple[Position, ...]] = {}
    for record in labels:
        about = record.events or retracted.get(record.retracts or "", ())
        retracted[record.label_id] = about
        for position in about:
            said.setdefault(position, []).append(record)
    for line in verdicts:
        verdict = decode_verdict(line)
        if not _is_told_normal(verdict):
            continue
        share = draw.draw(verdict)
        if share is not None:
            found = resolve(active_labels(said.get(verdict.position, ())))
            yield Audited(verdict.event_time_ms, share, _answer(found.state, found.verdict))


def _is_told_normal(verdict: Verdict) -> bool:
    """Whether an anomaly would be missed: called normal by the pipeline, or by who muted it."""
    return verdict.label is Label.NORMAL or bool(verdict.muted)


def _answer(state: str, verdict: Answer) -> Answer:
    return None if state == "expired" else verdict


def signed(certificate: Certificate, key: bytes) -> Certificate:
    """Return a certificate with the commitment to a key, and signed with it."""
    if not key:
        return certificate
    told = msgspec.structs.replace(certificate, commitment=commitment(key), signature=None)
    return msgspec.structs.replace(told, signature=_signature(told, key))


def differences(
    certificate: Certificate, again: Certificate, key: bytes
) -> Mapping[str, tuple[object, object]]:
    """Return where a certificate and one that was made again from the log differ, by field.

    Raises
    ------
    ConnectorError
        If the key is not the one that was committed to, or the signature is not of it.
    """
    if certificate.commitment is not None and certificate.commitment != commitment(key):
        raise ConnectorError(
            "the key is not the one that the certificate commits to: its SHA-256 is "
            f"{commitment(key)}, not {certificate.commitment}."
        )
    told = msgspec.structs.replace(certificate, signature=None)
    if certificate.signature is not None and not hmac.compare_digest(
        certificate.signature, _signature(told, key)
    ):
        raise ConnectorError("the signature is not of this certificate: it was changed since.")
    here, there = msgspec.structs.asdict(told), msgspec.structs.asdict(again)
    apart = {"signature", "commitment", "undated"}
    return {
        name: (here[name], there[name])
        for name in here
        if name not in apart and here[name] != there[name]
    }


def _signature(certificate: Certificate, key: bytes) -> str:
    return hmac.new(key, msgspec.json.encode(certificate), hashlib.sha256).hexdigest()
