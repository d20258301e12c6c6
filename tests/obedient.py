"""A small engine with incidents that obeys commands: misplace one, and all that follows differs."""

import zlib
from dataclasses import asdict, dataclass, field

import msgspec

from rejex_stream.engine.engine import Restored
from rejex_stream.engine.stream_state import StreamView
from rejex_stream.protocols import ControlRecords
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.types import CommandKind, CommandReply, Incident, IncidentState, Label, Verdict
from tests.streams import spec


def as_decided(partition, inputs, said, replies, end):
    """What a run has decided by its end, told from its replies: (offset, id of the command).

    A run that begins with it is one that nothing disturbs, with the commands at the same offsets.
    """
    journal, places = CommandJournal(partition, None, inputs), {}
    for offset, id_ in replies:
        places.setdefault(id_, []).append(offset)
    for record in said:
        journal.ingest(ControlRecords([record], record.position.offset + 1))
        if journal.can_assign:
            ((_, what),) = journal.unassigned
            mine = places.get(what.command if isinstance(what, CommandReply) else what.id)
            journal.assign_offset(mine.pop(0) if mine else end)
    return journal.encoded(None)


@dataclass
class Stream:
    """One stream: a checksum over everything that happened to it, and its incident."""

    seq: int = 0
    chain: int = 0
    incident: str | None = None
    version: int = 0
    state: str = "open"
    answer: str | None = None
    begun: int = 0


@dataclass
class Obedient:
    """Opens an incident at values that end in 7; scores are a checksum over all there was.

    `waits` times after each command it is not ready, as where a fit has to be waited for.
    """

    waits: int = 0
    known: dict[str, Stream] = field(default_factory=dict)
    plans: dict[str, list] = field(default_factory=dict)
    changes: list[Incident] = field(default_factory=list)
    failures: tuple[()] = ()
    asked: int = 0

    def ready(self, readings):
        if self.asked:
            self.asked -= 1
            return 0
        return len(readings)

    def process(self, readings):
        return [self._verdict(reading) for reading in readings]

    def _verdict(self, reading):
        stream = self.known.setdefault(reading.stream_key, Stream())
        plans = [
            plan for plan, (key, *_) in self.plans.items() if key in (None, reading.stream_key)
        ]
        what = repr((reading.values, [(plan, self.plans[plan]) for plan in sorted(plans)]))
        stream.chain = zlib.crc32(what.encode(), stream.chain)
        if stream.incident is None and reading.values[0] % 10 == 7:
            stream.incident, stream.version, stream.begun = str(reading.position), 0, stream.seq
            stream.state, stream.answer = "open", "?"
        verdict = Verdict(
            position=reading.position, stream_key=reading.stream_key, sensor=reading.sensor,
            event_time_ms=reading.event_time_ms, seq=stream.seq, label=Label.NORMAL,
            score=stream.chain / 2**32, planned=bool(plans), incident=stream.incident,
        )  # fmt: skip
        if stream.answer is not None:  # what was answered is reported with the next event
            stream.version += 1
            self.changes.append(self._incident(reading, stream))
            stream.answer = None
            if stream.state == "closed":
                stream.incident = None
        stream.seq += 1
        return verdict

    def _incident(self, reading, stream):
        return Incident(
            position=reading.position, id=stream.incident, version=stream.version,
            state=IncidentState(stream.state), stream_key=reading.stream_key,
            sensors=(reading.sensor,), onset_ms=0, opened_ms=0, changed_ms=reading.event_time_ms,
            onset_seq=stream.begun, opened_seq=stream.begun, changed_seq=stream.seq,
            peak_severity=1.0, peak_ms=0, n_events=stream.seq - stream.begun,
            answer=None if stream.answer == "?" else stream.answer,
        )  # fmt: skip

    def streams_of(self, command):
        meant = command.incident
        return [key for key, one in self.known.items() if meant and one.incident == meant]

    def command(self, command):
        reply = self._obeyed(command)
        if reply is not None:
            self.asked = self.waits
        return reply

    def _obeyed(self, command):
        if command.kind in (CommandKind.PLANNED, CommandKind.MUTE):
            if command.stream_key is not None and command.stream_key not in self.known:
                return None
            box = {name: list(side) for name, side in command.box.items()}  # as a head keeps it
            times = command.from_ms, command.until_ms
            self.plans[command.id] = [command.stream_key, *times, box]
        elif command.kind is CommandKind.CANCEL:
            if self.plans.pop(command.cancels, None) is None:
                return None
        else:
            return self._answered(command)
        return CommandReply(command=command.id, accepted=True, said=f"{command.kind} is noted")

    def _answered(self, command):
        found = [one for one in self.known.values() if one.incident == command.incident]
        if not found:
            return None
        (stream,) = found
        if command.version != stream.version:
            said = f"it is at version {stream.version}, not {command.version}"
            return CommandReply(command=command.id, accepted=False, said=said)
        stream.state = "fault" if command.kind is CommandKind.FAULT else "closed"
        stream.answer = command.id
        stream.chain = zlib.crc32(command.id.encode(), stream.chain)
        return CommandReply(command=command.id, accepted=True, said=f"it is {stream.state}")

    def take_incidents(self):
        changes, self.changes = self.changes, []
        return changes

    def forget(self, stream_key, sensor=None):
        self.known.pop(stream_key, None)

    def open_incidents(self):
        return []

    def take_failures(self):
        return []

    def streams(self):
        return list(self.known)

    def head(self):
        return msgspec.msgpack.encode(self.plans)

    def view(self, stream_key):
        state = msgspec.msgpack.encode(asdict(self.known[stream_key]))
        return StreamView(lambda: state, lambda: b"", 0)

    def restore_streams(self, head, streams, *, accept_environment):
        assert not self.known, "only a fresh engine is restored"
        self.plans = msgspec.msgpack.decode(head)
        for key, kept in streams.items():
            self.known[key] = Stream(**msgspec.msgpack.decode(kept.state))
        return Restored(spec().decision, spec().decision, ())

    def restore(self, blob, *, accept_environment):
        raise AssertionError("no earlier version wrote this")

    def decide(self, decision):
        pass
