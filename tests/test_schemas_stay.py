"""A run keeps to what it decided about schemas, whatever the registry says when it replays."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.errors import CheckpointError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.types import Partition
from tests.doubles import ABORT, REBALANCE, RETRY, Crash, ListSink, ListSource, MemorySnapshotStore
from tests.test_decode_law import AB, BA, IDS, MAPPING, USELESS, Liar
from tests.test_runtime import ONE, by_partition, play

FEW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
TWO = Partition("input", 1)


def of(*ids):
    return [bytes([0, 0, 0, 0, id_, 2, 4]) if isinstance(id_, int) else id_ for id_ in ids]


def decoder(registry):
    """What a process begins with: it knows nothing, and asks again whenever it may."""
    times = itertools.count(step=3)
    return RegistryDecoder(MAPPING, registry, "AVRO", avro_reader, clock=lambda: float(next(times)))


def lives(source, sink, store, registry, knobs):
    for _ in range(100):
        try:
            play(source, sink, store, decoder=decoder(registry), knobs=knobs)
        except Crash:
            continue
        return
    raise AssertionError("the run never ends")


def assert_one_history(sink):
    """Each record once and in order, and the state behind each verdict has seen those before it."""
    for partition, outcomes in by_partition(sink).items():
        offsets = [outcome.record.position.offset for outcome in outcomes]
        assert offsets == list(range(sink.offsets[partition]))
        judged = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        assert [verdict.seq for verdict in judged] == list(range(len(judged)))
        window = [verdict.score for verdict in judged]
        for i, verdict in enumerate(judged):
            assert verdict.rank == sum(
                other <= verdict.score for other in window[max(0, i - 20) : i]
            )


class Fickle:
    def __init__(self, answers):
        self._answers = itertools.cycle(answers)

    def schema(self, schema_id):
        return next(self._answers)


SCRIPT = st.lists(st.sampled_from([*IDS, *IDS, ABORT, RETRY, REBALANCE]), min_size=5, max_size=60)


@pytest.mark.thorough
@FEW
@given(
    SCRIPT, SCRIPT,
    st.lists(st.sampled_from([None, None, AB, BA, USELESS]), min_size=1, max_size=12),
    st.lists(st.sampled_from(["ok", "fail", "ambiguous", "crash", "crash after"]), max_size=10),
    st.integers(1, 9), st.sampled_from([0.0, 0.05]), st.sampled_from([1, 7, 1000]),
)  # fmt: skip
def test_a_registry_that_lies_changes_nothing_before_the_committed_offset(
    one, two, answers, commits, most, interval, every
):
    sink, store = ListSink(commits), MemorySnapshotStore()
    source = ListSource({ONE: of(*one), TWO: of(*two)}, committed=sink.offsets)
    knobs = {
        "max_poll_records": most, "commit_interval_s": interval, "snapshot_every_events": every,
        "invalid_limit": 1.0,
    }  # fmt: skip
    lives(source, sink, store, Fickle(answers), knobs)
    assert_one_history(sink)


@pytest.mark.parametrize("learns", [True, False])
def test_between_a_crash_and_the_replay_a_registry_learns_or_forgets(learns):
    registry, sink, store = Liar(), ListSink(), MemorySnapshotStore()
    registry.says = {1: AB} | ({} if learns else {2: AB})
    script = of(*[1, 2, 2, 1, 2] * 6, ABORT, *[1, 2] * 5)
    source = ListSource(script, committed=sink.offsets)
    knobs = {"max_poll_records": 5, "commit_interval_s": 0.0, "invalid_limit": 1.0}
    with pytest.raises(Crash):
        play(source, sink, store, decoder=decoder(registry), knobs=knobs)
    committed = sink.offsets[ONE]
    assert committed > 0
    registry.says = {1: AB} | ({2: AB} if learns else {})
    play(source, sink, store, decoder=decoder(registry), knobs=knobs)
    assert_one_history(sink)
    later = sink.outcomes[committed:]
    if learns:  # from where it was not decided yet, it is asked again
        assert any(out.verdict for out in later if out.record.value[4] == 2)
    else:  # a schema that was known once is known
        assert all(out.verdict for out in later if out.record.value[4] == 2)


class Watched(MemorySnapshotStore):
    """Remembers how far the sink was when decisions were kept."""

    def __init__(self, sink):
        super().__init__()
        self.sink, self.saved = sink, []

    def save_journal(self, partition, decisions):
        self.saved.append((self.sink.offsets.get(partition), decisions))
        super().save_journal(partition, decisions)


def test_decisions_are_kept_with_the_first_commit_and_then_when_they_have_changed():
    registry, sink = Liar(), ListSink()
    registry.says = {1: AB, 2: AB}
    store = Watched(sink)
    source = ListSource(of(*[3] * 10, *[1] * 10, *[2] * 10, *[1, 2] * 20), committed=sink.offsets)
    knobs = {"max_poll_records": 5, "commit_interval_s": 0.0, "invalid_limit": 1.0}
    play(source, sink, store, decoder=decoder(registry), knobs=knobs)
    assert sink.n_commits > 5
    assert [offset for offset, _ in store.saved] == [None, 10, 20], "before the offset they are for"
    assert len({decisions for _, decisions in store.saved}) == 3


def test_a_commit_that_failed_has_not_kept_the_decisions():
    registry, sink = Liar(), ListSink(["fail"])
    registry.says = {1: AB}
    store = Watched(sink)
    source = ListSource(of(*[1] * 20), committed=sink.offsets)
    play(source, sink, store, decoder=decoder(registry), knobs={"commit_interval_s": 0.0})
    assert [offset for offset, _ in store.saved] == [None, None]
    assert_one_history(sink)


class Borrowed(ListSource):
    """At a rebalance another worker has the partition for a while."""

    def __init__(self, script, committed, meanwhile):
        super().__init__(script, committed=committed)
        self._meanwhile = meanwhile

    def _lose(self, partition):
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        super()._lose(partition)


@pytest.mark.parametrize("theirs", [{}, {1: AB}, {1: BA}])
def test_a_state_that_was_set_aside_does_not_outlive_what_another_worker_decided(theirs):
    """We found id 1 unknown and then known; the other worker decided the same records again."""
    sink, store, registry, their_registry = ListSink(), MemorySnapshotStore(), Liar(), Liar()
    their_registry.says = theirs
    records = of(*[1] * 40)
    registry.says = {1: AB}
    other = ListSink()
    other.outcomes, other.offsets = sink.outcomes, sink.offsets

    def meanwhile():
        assert not sink.offsets, "nothing of ours is durable"
        play(
            ListSource(records[:15], committed=sink.offsets), other, store,
            decoder=decoder(their_registry), knobs={"invalid_limit": 1.0},
        )  # fmt: skip

    source = Borrowed([*records[:20], REBALANCE, *records[20:]], sink.offsets, meanwhile)
    knobs = {"max_poll_records": 5, "commit_interval_s": 60.0, "invalid_limit": 1.0}
    play(source, sink, store, decoder=decoder(registry), knobs=knobs)
    assert_one_history(sink)


def test_a_folder_keeps_decisions_beside_the_snapshots(tmp_path):
    store = FolderSnapshotStore(tmp_path)
    assert store.load_journal(ONE) is None
    store.save_journal(ONE, b"known")
    store.save_journal(TWO, b"")
    store.save(ONE, SnapshotPiece(10, None, {"a": b"state"}))
    again = FolderSnapshotStore(tmp_path)
    assert (again.load_journal(ONE), again.load_journal(TWO)) == (b"known", b"")
    assert again.load(ONE, 99) == (10, {"a": b"state"})
    next(tmp_path.glob("*-0-decisions")).write_bytes(b"rejex-snapshot-1\nknown")
    with pytest.raises(CheckpointError, match="the registry and the control log are asked again"):
        again.load_journal(ONE)
