"""The last resort: past a record that ends every process that takes it in hand.

What is known of earlier ends stands in the metadata of the committed offset itself, which every
commit replaces: a note of a run that is gone means that it ended without getting further.

1. A run that takes a partition over notes that it goes on from there; the first commit clears it.
2. After :data:`ENDS` runs that ended so at one offset, records are read by the careful reader and
   handed over :data:`FEW` at a time, each time with a durable note of which are in hand; after an
   end with them in hand, one at a time.
3. After :data:`ALONE` ends with one record alone in hand, that record becomes a dead letter unread,
   and stays one in every replay.

An end counts where the process was killed or crashed, or an exception was raised that is none of
ours. While what is in hand waits for a fit, which takes as long as it takes, the note says that
nobody has it in hand; it is written again before the record is judged. A stop, a failure of the
edge and a config that is wrong clear the note. A run that lost the partition to a rebalance has not
ended: it is in the group under the id it noted, whereas the group gives nothing of a dead member
away before it has put the member out. It costs a commit of offsets when partitions are taken over,
a question where a note of another run stands, and nothing for records.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from rejex_stream.types import Partition, Record, UnreadRecord

__all__ = ["ALONE", "ENDS", "FEW", "Note", "PoisonGuard"]

ENDS = 2
"""Ends at one offset after which records are read with care."""
ALONE = 3
"""Ends with one record alone in hand after which it is given up.

While records are read singly whatever ends the run finds one in hand, so the first of these proves
nothing.
"""
FEW = 100
"""Records in hand at a time while it is not known which of them it is."""
STRETCH = 5_000
"""Records that are read with care before all is taken to be well again."""
REMEMBERED = 100
"""Offsets that are kept out of replays; the oldest are forgotten first."""
STAGE = "last resort"

_log = logging.getLogger(__name__)


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known at a committed offset."""

    by: str = ""  # the run that went on from here; empty once it got further
    member: str = ""  # the id under which the group knew it
    in_hand: int = 0  # how many records it had in hand; 0 where that is not known
    ends: int = 0  # runs that ended so before
    left_out: tuple[int, ...] = ()  # offsets that were given up, for replays
    careful_to: int = 0  # records before this offset are read with care in replays

    def text(self) -> str:
        """Return it as the metadata of an offset; nothing known is the empty text."""
        return "" if self == Note() else msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> Note:
        """Read one; what others wrote there is no note."""
        text = text.rstrip("\0")  # librdkafka commits one behind it, and kafka-python reads it
        try:
            return msgspec.json.decode(text, type=cls) if text else cls()
        except msgspec.MsgspecError:
            return cls()


@dataclass
class _CarefulRead:
    """A partition read with care: from where, up to where, and how many records at a time."""

    next_offset: int
    until: int
    live_from: int
    step: int
    ends: int = 0
    alone_until: int = 0
    is_noted: bool = False
    records: Iterator[Record] | None = None
    is_paused: bool = False


class PoisonGuard:
    """Decides what is read with care, and what a commit has to note."""

    def __init__(self, read: Callable[[Partition, int], Iterator[Record]]) -> None:
        self._read = read
        self.member = ""
        """The id under which the group knows this run."""
        self._run = uuid.uuid4().hex[:8]
        self._notes: dict[Partition, Note] = {}
        self._careful: dict[Partition, _CarefulRead] = {}
        self._begun: set[Partition] = set()
        self._idle: set[Partition] = set()

    # ------------------------------------------------------------------------- taking over
    def load_note(self, partition: Partition, text: str) -> None:
        """Load the note from the metadata of a partition's committed offset."""
        self.forget(partition)
        self._notes[partition] = Note.of(text)

    def forget(self, partition: Partition) -> None:
        """Drop a partition."""
        self._careful.pop(partition, None)
        self._notes.pop(partition, None)
        self._begun.discard(partition)
        self._idle.discard(partition)

    def begin_reading(
        self,
        partition: Partition,
        offset: int,
        committed: int,
        members: Callable[[], Collection[str]] = tuple,
    ) -> bool:
        """Return whether a partition is to be read with care from `offset` on.

        Where it is not, :meth:`note_for` says what to make durable before it is read for the first
        time. `members` says by which ids the group knows its members.
        """
        if partition in self._begun:
            care = self._careful.get(partition)
            if care is not None:
                care.next_offset, care.records, care.is_paused = offset, None, False
            return care is not None
        self._begun.add(partition)
        note = self._notes[partition]
        care = _CarefulRead(offset, offset, committed, step=0)
        others = note.by not in ("", self._run)  # ours was set back
        ended = others and note.member not in members()
        ends = note.ends + ended
        if note.in_hand == 0 and ends < ENDS:
            self._notes[partition] = self._own_note(note, 0, ends)
        elif note.in_hand == 0:
            care.step, care.until = FEW, committed + STRETCH
        elif ended:
            care.step, care.until = 1, committed + FEW
            care.ends = ends if note.in_hand == 1 else 0
        else:
            care.step, care.ends = note.in_hand, note.ends
            care.until = committed + (STRETCH if note.in_hand > 1 else FEW)
        if care.ends >= ALONE:
            care.ends = 0
            self._give_up(partition, committed)
        note = self._notes[partition]
        care.until = max(care.until, note.careful_to, *(at + 1 for at in note.left_out), 0)
        if care.until <= offset:
            return False
        if care.step:
            _log.warning(
                "%s-%d: a run before this one ended at offset %d without getting further; records "
                "are read with care, %d at a time",
                *partition,
                committed,
                care.step,
            )
        self._careful[partition] = care
        return True

    def _own_note(self, note: Note, in_hand: int, ends: int) -> Note:
        """Return a note of what we have in hand."""
        return msgspec.structs.replace(
            note, by=self._run, member=self.member, in_hand=in_hand, ends=ends
        )

    def read_with_care(self, partition: Partition, offset: int) -> None:
        """Read some records with care that the library cannot read."""
        self._careful[partition] = _CarefulRead(offset, offset + FEW, offset, step=0)

    def _give_up(self, partition: Partition, offset: int) -> None:
        _log.error(
            "%s-%d-%d is given up: %d runs ended with this record alone in hand; it becomes a dead "
            "letter with its position, and the next record is read",
            *partition,
            offset,
            ALONE,
        )
        note = self._notes[partition]
        left_out = (*note.left_out, offset)[-REMEMBERED:]
        self._notes[partition] = msgspec.structs.replace(note, left_out=left_out)

    # --------------------------------------------------------------------------- reading
    def partitions_with_care(self) -> list[Partition]:
        """Return the partitions that are read with care now."""
        return [partition for partition, care in self._careful.items() if not care.is_paused]

    def pause(self, partition: Partition) -> None:
        """Return no records until :meth:`begin_reading`."""
        if partition in self._careful:
            self._careful[partition].is_paused = True

    def mark_idle(self, partition: Partition) -> bool:
        """Note that no record is being judged: they wait for a fit; return whether the note is new.

        Records that were not read with care need no note: they are never given up by what happens
        to this run.
        """
        note = self._notes.get(partition)
        if note is None or note.by != self._run or not note.in_hand:
            return False
        self._notes[partition] = msgspec.structs.replace(note, by="", member="")
        self._idle.add(partition)
        return True

    def mark_busy(self, partition: Partition) -> bool:
        """Note that records are judged again; return whether they were idle."""
        if partition not in self._idle:
            return False
        self._idle.remove(partition)
        note = self._notes[partition]
        self._notes[partition] = self._own_note(note, note.in_hand, note.ends)
        return True

    def is_new(self, partition: Partition) -> bool:
        """Whether a partition is about to be read for the first time since its note was loaded."""
        return partition not in self._begun

    def awaits_commit(self, partition: Partition, committed: int) -> bool:
        """Whether the records of the last step have to be durable first."""
        care = self._careful[partition]
        return bool(care.step) and care.next_offset > max(committed, care.live_from)

    def next_records(
        self, partition: Partition, max_records: int
    ) -> tuple[list[Record], Note | None]:
        """Return the next records, and a note to make durable before they are judged.

        Where the list is empty, :meth:`resume_offset` says from where the library may go on.
        """
        care = self._careful[partition]
        if care.records is None:
            care.records = self._read(partition, care.next_offset)
        replaying = care.next_offset < care.live_from
        step = max_records if replaying or not care.step else min(max_records, care.step)
        end = care.live_from if replaying else care.until
        records: list[Record] = []
        left_out = self._notes[partition].left_out
        while len(records) < step and care.next_offset < end:
            record = next(care.records, None)
            if record is None:
                care.until = care.next_offset
                break
            care.next_offset = record.position.offset + 1
            if record.position.offset in left_out:
                reason = f"given up: {ALONE} runs ended with this record alone in hand"
                record = UnreadRecord.of(record.position, record.timestamp_ms, reason, STAGE)
            records.append(record)
        unread = [r.position.offset + 1 for r in records if isinstance(r, UnreadRecord)]
        note = self._notes[partition]
        if unread and unread[-1] > note.careful_to:
            self._notes[partition] = note = msgspec.structs.replace(note, careful_to=unread[-1])
        if replaying or not care.step or care.is_noted or not records:
            return records, None
        care.is_noted = True
        self._notes[partition] = note = self._own_note(note, care.step, care.ends)
        return records, note

    def resume_offset(self, partition: Partition) -> int | None:
        """Return from where the library may go on, once the careful reader is through."""
        care = self._careful[partition]
        if care.next_offset < care.until:
            return None
        del self._careful[partition]
        return care.next_offset

    def close(self) -> None:
        """Stop reading."""
        self._careful.clear()

    # --------------------------------------------------------------------------- noting
    def note_for(self, partition: Partition, next_offset: int, committed: int) -> str:
        """Return the note to commit with `next_offset`, where `committed` stood before."""
        known = self._notes.get(partition)
        if known is None:
            return ""
        if next_offset == committed:
            return known.text()
        care = self._careful.get(partition)
        if care is not None and care.is_noted and next_offset < care.until:
            return self._own_note(known, care.step, 0).text()
        return _unowned_note(known).text()

    def note_committed(self, partition: Partition, text: str) -> None:
        """Load the note that was committed."""
        if partition in self._notes:
            self._notes[partition] = Note.of(text)

    def noted_by_us(self) -> Mapping[Partition, Note]:
        """Return the partitions with a note of this run at their committed offset."""
        ours = self._idle
        return {p: note for p, note in self._notes.items() if note.by == self._run or p in ours}

    def clear_note(self, partition: Partition) -> None:
        """Take back the note: this run ends, or has no record in hand."""
        self._idle.discard(partition)
        self._notes[partition] = _unowned_note(self._notes[partition])


def _unowned_note(note: Note) -> Note:
    """Return a note that nobody has anything in hand, nor ended with it."""
    return msgspec.structs.replace(note, by="", member="", in_hand=0, ends=0)
