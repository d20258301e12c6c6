"""A log of verdicts read by somebody who trusts nobody: what it says, and what is wrong with it.

A verdict that could be drawn says with which probability, whether it was, and to which key the draw
is committed: whoever has the key tosses every coin again. What cannot be checked is named, and what
is not there counts as one event that may be missed: a log with holes never gives a smaller bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rejex_stream.encode import decode_verdict
from rejex_stream.encode.label_records import LabelRecord, active_labels, resolve
from rejex_stream.rejection.band import label_of, rank_edges
from rejex_stream.review.certificate import (
    Certificate,
    Tally,
    answer_of,
    certify,
    differences,
)
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
)

__all__ = ["Said", "Testimony", "Verified", "read_log", "verify"]


@dataclass
class Said:
    """What people and the pipeline said beside the verdicts.

    Attributes
    ----------
    labels
        What people said of events, in order.
    incidents
        As they stand, by id; ``None``: nobody has them, and nothing held can be checked.
    commands
        What was commanded; ``None`` likewise for what is planned or muted.
    items
        Drawn review items by position; ``None`` likewise.
    reviewers
        Who may answer; empty: anybody.
    unread
        Positions of records that could not be read, which have no verdict.
    """

    labels: Iterable[LabelRecord] = ()
    incidents: Mapping[str, Incident] | None = None
    commands: Collection[Command] | None = None
    items: Mapping[Position, ReviewItem] | None = None
    reviewers: Collection[str] = ()
    unread: Collection[Position] = ()


@dataclass
class Testimony:
    """What a log says, and what is wrong with it.

    Attributes
    ----------
    tally
        Its accepted events, those that are missing among them.
    wrong
        Sentences, each with how often: any of them, and the log does not stand as it was written.
    doubts
        What may be right and cannot be told here, likewise.
    missing
        Verdicts that the log lacks.
    """

    tally: Tally = field(default_factory=Tally)
    wrong: Counter[str] = field(default_factory=Counter)
    doubts: Counter[str] = field(default_factory=Counter)
    missing: int = 0


def read_log(
    verdicts: Iterable[bytes], draw: AuditDraw, said: Said, *, since_ms: int = 0
) -> Testimony:
    """Read a log of verdicts and toss every coin again. O(verdicts) time and memory.

    Parameters
    ----------
    verdicts
        As they were written, a line each.
    draw
        Of the pipeline, with its key.
    said
        What stands beside them.
    since_ms
        From which hour of event time on accepted events are counted.

    Raises
    ------
    ConnectorError
        If a line is no verdict.
    """
    return _Reader(draw, said, since_ms - since_ms % HOUR_MS).read(verdicts)


@dataclass(frozen=True)
class Verified:
    """What came of a verification.

    Attributes
    ----------
    again
        The certificate as the log gives it.
    wrong
        Sentences; empty: the log says what the certificate says.
    premises
        What was taken from the certificate, or could not be checked.
    """

    again: Certificate
    wrong: tuple[str, ...]
    premises: tuple[str, ...]


def verify(
    certificate: Certificate,
    verdicts: Iterable[bytes],
    draw: AuditDraw,
    said: Said,
    *,
    pipeline: str,
) -> Verified:
    """Make a certificate again from a log, and say where the two differ.

    Parameters
    ----------
    certificate
        What is claimed.
    verdicts, draw, said
        As for :func:`read_log`.
    pipeline
        Whose log it is.

    Raises
    ------
    ConnectorError
        If a line is no verdict, or there is a key and the certificate is not signed with it.
    """
    found = read_log(verdicts, draw, said, since_ms=certificate.since_ms)
    declared = certificate.reviewers == "declared"
    again = certify(
        found.tally,
        pipeline=pipeline,
        since_ms=certificate.since_ms,
        alpha=certificate.alpha,
        sensitivity=certificate.sensitivity if declared else None,
        known=certificate.known,
    )
    wrong = [f"{count:,} {sentence}" for sentence, count in sorted(found.wrong.items())]
    if found.missing:
        wrong.append(f"incomplete: {found.missing:,} records have no verdict; each may be missed")
    for name, (there, here) in differences(certificate, again, draw.key).items():
        wrong.append(f"{name}: the certificate says {there}, the log {here}")
    premises = [f"{count:,} {sentence}" for sentence, count in sorted(found.doubts.items())]
    premises.append("answers are the word of the log of labels")
    if not draw.key:
        premises.append(
            "unsigned: the draw has no key, so anybody could foresee it, and write this"
        )
    if certificate.reviewers != "assumed":
        premises.append(
            f"what reviewers recognise is {certificate.reviewers}, and not checked here"
        )
    if said.items is None:
        premises.append("scores and ranks are the log's word: review items were not compared")
    return Verified(again, tuple(wrong), tuple(premises))


class _Reader:
    def __init__(self, draw: AuditDraw, said: Said, since_ms: int) -> None:
        self._draw, self._said, self._since_ms = draw, said, since_ms
        self._key = committed(draw.key)
        self._labels: dict[Position, list[LabelRecord]] = {}
        self._found = Testimony()
        self._seen: dict[Position, bytes] = {}
        self._seq: dict[str, int] = {}
        self._next: dict[Partition, int] = {}
        self._at_rates: set[tuple[Partition, float]] = set()
        self._unread = Counter(Partition(one.topic, one.partition) for one in said.unread)

    def read(self, verdicts: Iterable[bytes]) -> Testimony:
        found = self._found
        self._take_labels()
        for line in verdicts:
            if not line.strip():
                continue
            verdict = decode_verdict(line)
            if self._is_new(verdict, line):
                self._follow(verdict)
                self._check_label(verdict)
                self._check_absence(verdict)
                self._check_item(verdict)
                self._count(verdict)
        for position in self._labels:
            if position not in self._seen:
                found.wrong["answers are about events that have no verdict"] += 1
        for position in self._said.items or ():
            if position not in self._seen:
                found.wrong["review items are about events that have no verdict"] += 1
        if found.missing:
            found.tally.undrawable["missing"] += found.missing
        return found

    def _take_labels(self) -> None:
        retracted: dict[str, tuple[Position, ...]] = {}
        for record in self._said.labels:
            about = record.events or retracted.get(record.retracts or "", ())
            retracted[record.label_id] = about
            known = self._said.reviewers
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
            self._found.doubts["verdicts stand there twice, and are counted once"] += 1
        return False

    def _follow(self, verdict: Verdict) -> None:
        """Find what is missing: a sensor's events are numbered, and so are the input's records."""
        offset = verdict.position.offset
        place = Partition(verdict.position.topic, verdict.position.partition)
        after = self._next.get(place)
        again = bool(verdict.position.reading) and offset + 1 == after  # of the same record
        if after is not None and offset < after:
            self._found.wrong["verdicts are out of order"] += not again
        elif after is not None:
            gap = offset - after
            known = min(gap, self._unread[place])
            self._unread[place] -= known
            self._found.missing += gap - known
        self._next[place] = max(offset + 1, after or 0)
        if verdict.reason is Reason.TOO_MANY_SENSORS:
            return
        key = (
            verdict.stream_key
            if verdict.mode is None
            else in_mode(verdict.stream_key, verdict.mode)
        )
        last = self._seq.get(key, -1)
        if verdict.seq not in (0, last + 1):  # 0: it was forgotten, and came back
            self._found.wrong["verdicts do not follow the one before of their stream"] += 1
        self._seq[key] = verdict.seq

    def _check_label(self, verdict: Verdict) -> None:
        rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
        if (verdict.label is Label.REJECTED) != (verdict.reason is not None):
            self._found.wrong["verdicts give a reason and are not rejected, or the reverse"] += 1
        if verdict.reason not in (None, Reason.AMBIGUOUS) or verdict.learning:
            return
        if rank is None or lower is None or upper is None:
            self._found.wrong["accepted verdicts have no rank"] += 1
            return
        edges = rank_edges(verdict.window_len, verdict.n_anomalies, lower, upper)
        if label_of(rank, edges) is not verdict.label:
            self._found.wrong["labels are not those of their rank and band"] += 1

    def _check_absence(self, verdict: Verdict) -> None:
        """Check why nobody was asked: an incident, planned work, a mute."""
        incidents, commands, wrong = self._said.incidents, self._said.commands, self._found.wrong
        if verdict.held:
            if incidents is None:
                wrong["held verdicts cannot be checked: there are no incidents"] += 1
            elif not _holds(incidents.get(verdict.incident or ""), verdict):
                wrong["verdicts are held, and no incident of theirs was open"] += 1
        for kind, applies in (
            (CommandKind.PLANNED, verdict.planned),
            (CommandKind.MUTE, bool(verdict.muted)),
        ):
            if not applies:
                continue
            if commands is None:
                wrong[f"{kind} verdicts cannot be checked: there are no commands"] += 1
            elif not any(_commands(one, kind, verdict) for one in commands):
                wrong[f"verdicts are {kind}, and nobody commanded it"] += 1

    def _check_item(self, verdict: Verdict) -> None:
        items, drawn = self._said.items, bool(verdict.audit and verdict.audit.drawn)
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
                wrong["coins fall otherwise than the log says"] += 1
            self._check_rate(verdict, audit.p)
        drawn = bool(audit and audit.drawn)
        asked = drawn or verdict.label is Label.REJECTED or verdict.status is not None
        if not asked and verdict.position in self._labels:
            self._found.doubts["answers are about accepted events that were not drawn"] += 1
        if not could_be_missed(verdict) or verdict.event_time_ms < self._since_ms:
            return
        p, why = drawable(verdict)
        if not p:
            self._check_rate(verdict, 0.0)
        hour_ms = verdict.event_time_ms - verdict.event_time_ms % HOUR_MS
        self._found.tally.count(hour_ms, p, why, 1, drawn)
        if drawn:
            spoken = resolve(active_labels(self._labels.get(verdict.position, ())))
            self._found.tally.answer(p, answer_of(spoken.state, spoken.verdict))

    def _check_rate(self, verdict: Verdict, p: float) -> None:
        """Check a probability against the config's: rates are switched once, for all that come."""
        wanted = self._draw.probability(verdict)
        place = Partition(verdict.position.topic, verdict.position.partition), wanted
        if p == wanted:
            self._at_rates.add(place)
        elif place in self._at_rates:
            self._found.wrong["probabilities are not the config's, among others that are"] += 1
        else:
            self._found.doubts["events were drawn at other rates, before the config's"] += 1


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
