"""Who watches a job sees what watchers of a worker see, whatever is cut, repeated or killed."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace
from rejex_connectors.files import FileSink
from rejex_connectors.files.sink import lines_of
from rejex_connectors.files.source import append_line
from rejex_connectors.kafka import partition_reader
from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import OutcomeMessages
from rejex_connectors.spark import sink
from rejex_connectors.spark.sink import FileBatches, Written

from rejex_stream.config import parse_config
from rejex_stream.config.assembly import (
    Judging,
    engine_spec,
    file_decoder,
    file_places,
    kafka_settings,
    open_source,
    records_of,
    run_pipeline,
    running,
)
from rejex_stream.config.assembly.running import open_run_monitor
from rejex_stream.encode import encode_dead_letter, encode_incident, encode_verdict
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.operate.open_situations import OpenSituations
from rejex_stream.operate.run_metrics import GAUGES
from rejex_stream.run import command_journal
from rejex_stream.run.command_journal import CommandJournal
from rejex_stream.run.run_events import IncidentsDurable, PartitionClosed, Progress
from rejex_stream.spark.job import _Input, _require_records
from rejex_stream.spark.job_journal import AtCommit, JobJournal, changes_in
from rejex_stream.spark.monitoring import OUTPUTS, JobMonitoring, outcomes_in, still_open
from rejex_stream.types import (
    IncidentState,
    Invalid,
    Label,
    Partition,
    Position,
    Reason,
    Record,
    Verdict,
)
from tests.operate.alerting import Receiver
from tests.operate.test_incidents_told import incident
from tests.waiting import until

pa = pytest.importorskip("pyarrow")

FEED = Partition("feed.csv", 0)
CONFIG = """
[pipeline]
name = "pumps"
[input]
path = "{folder}/feed.csv"
time = "t"
time_unit = "ms"
sensor = "id"
channels = ["flow", "pressure"]
[detector]
name = "HBOS"
[rejection]
contamination = 0.03
window = 300
review_budget = {{ rate = 0.04 }}
[hold]
adopt_after_events = 0
[refit]
refit_every_events = 400
executor = "inline"
[output]
verdicts = "{folder}/{out}/verdicts.jsonl"
audit_rate = 0.01
{more}
"""
OFTEN = "[state]\nsnapshot_interval_s = 0.001"


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    """One sensor has a fault that lasts, one is stuck, one drifts; some rows are nonsense."""
    folder = tmp_path_factory.mktemp("feed")
    rng, n = random.Random(7), 7_000
    lines = ["t,id,flow,pressure"]
    for i in range(n):
        name, at = i % 4, 1_700_000_000_000 + i // 4 * 60_000
        if i % 997 == 500:
            lines.append("nonsense,s1")
            continue
        fault = 15 if rng.random() < 0.01 or (name == 0 and 0.6 * n < i < 0.8 * n) else 0
        flow, pressure = rng.gauss(10, 1) + fault, rng.gauss(3, 0.2)
        if name == 1 and i > 0.7 * n:
            flow, pressure = 14.0, 3.7
        if name == 2 and i > 0.5 * n:
            pressure += (i - 0.5 * n) / n * 2
        lines.append(f"{at},s{name},{flow:.3f},{pressure:.3f}")
    (folder / "feed.csv").write_text("\n".join([*lines, ""]))
    return folder


def config_of(folder, out="spark", more=OFTEN):
    (folder / out).mkdir(exist_ok=True)
    config, problems = parse_config(CONFIG.format(folder=folder, out=out, more=more))
    assert not problems
    return config


@pytest.fixture(scope="module")
def worker(feed):
    alarms, changes, turns, found = [], [], [], []

    @contextmanager
    def seen(*arguments, **more):
        with open_run_monitor(*arguments, **more) as watch:
            note = watch.metrics.event

            def event(event):
                if isinstance(event, PartitionClosed):
                    found.append(figures(watch))
                if isinstance(event, IncidentsDurable):
                    changes.extend(event.incidents)
                note(event)

            watch.metrics.event = event
            yield watch

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "open_run_monitor", seen)
        run_pipeline(
            config_of(feed, "run"),
            on_alarm=lambda _, alarm: alarms.append(alarm),
            on_incident=turns.append,
        )
    assert {alarm.kind for alarm in alarms} >= {"health"}
    assert {change.state for change in turns} >= {IncidentState.OPEN, IncidentState.CLOSED}
    assert len(turns) < len(changes)
    return SimpleNamespace(alarms=alarms, changes=changes, turns=turns, figures=found[0])


@pytest.fixture(scope="module")
def outcomes(feed):
    config = config_of(feed)
    source = open_source(config)
    state = Judging(config).state(FEED, file_decoder(config, source))
    return state.process(list(records_of(source)))


class Batch:
    """A DataFrame of Spark's, as far as a sink asks it."""

    def __init__(self, outcomes, rng, form="full"):
        self.rows = [
            (*outcome.record.position[:3], place, *message)
            for outcome in outcomes
            for place, message in enumerate(lines_of([outcome], form=form))
        ]
        rng.shuffle(self.rows)

    def select(self, *names):
        return self

    def toArrow(self):  # noqa: N802
        names = ["topic", "partition", "offset", "place", "output", "value"]
        return pa.table([list(column) for column in zip(*self.rows, strict=True)], names)


class KilledError(Exception):
    """A driver is gone."""


class Driver:
    """One process after the other over the same checkpoint and files.

    Each writes micro-batches until it is killed: `at` is told where it stands, and raises there.
    """

    def __init__(self, config, outcomes, rng):
        self.config, self.outcomes, self.rng = config, outcomes, rng
        self.places = file_places(config)
        self.done, self.cut = 0, None
        self.alarms, self.changes, self.figures = [], [], []

    @property
    def journal(self):
        where = self.places.state.absolute(), self.places.control.absolute()
        return JobJournal((FEED.topic,), *where, listens=False)

    def go_on(self, at=lambda moment, watch: None):
        heard = (lambda _, alarm: self.alarms.append(alarm), self.changes.append)
        spec = engine_spec(self.config)
        with open_run_monitor(self.config, spec, *heard, quiet=False) as watch:
            sink = FileSink(**self.places.outputs, state_dir=self.places.state)
            try:
                self._write(sink, watch, lambda moment: at(moment, watch))
            except KilledError:
                return False
            finally:
                self.figures.append(figures(watch))
                sink.close()
        return True

    def _write(self, sink, watch, at):
        journal = self.journal if self.config.alerts.webhook_url else None
        monitoring = JobMonitoring(watch, self.config, journal)
        where = {FEED: sink.committed(FEED)}
        lines = (self.places.state.parent / "incidents.jsonl").read_bytes().splitlines()
        monitoring.begin(where, still_open(lines, where))
        write, commit = FileBatches(sink, monitoring), sink.commit

        def commits(offsets):
            at("before the commit")
            commit(offsets)
            at("after the commit")

        sink.commit = commits
        while self.done < len(self.outcomes):
            self.cut = self.cut or self.done + self.rng.randrange(1, 900)
            batch = self.outcomes[self.done : self.cut]
            write(Batch(batch, self.rng, self.config.output.form), 0)
            monitoring.turn()
            at("when it is told")
            self.done, self.cut = self.cut, None  # now Spark takes note
        monitoring.end(lambda *_: None)


def figures(watch):
    """What is counted and measured, without the clock's share and what a control log holds."""
    watch.progress(Progress(0, 0, 0.0, 0, {}))
    watch.metrics.refresh(force=True)
    clocked = ("duration_seconds", "latency", "timestamp", "_created", "#", "consumer_lag",
               "commands_waiting", "untrusted_clocks")  # fmt: skip
    lines = watch.metrics.exposition().decode().splitlines()
    of_input = (line for line in lines if not any(word in line for word in clocked))
    return dict(line.rsplit(" ", 1) for line in of_input)


@pytest.fixture
def drive(feed, outcomes, tmp_path):
    def make(seed, more=OFTEN):
        (tmp_path / "feed.csv").symlink_to(feed / "feed.csv")
        return Driver(config_of(tmp_path, more=more), outcomes, random.Random(seed))

    return make


@pytest.mark.parametrize("seed", [1, 2])
def test_any_cut_raises_the_alarms_tells_the_incidents_and_has_the_figures_of_a_worker(
    worker, drive, seed
):
    driver = drive(seed)
    assert driver.go_on()
    assert driver.alarms == worker.alarms
    assert driver.changes == worker.turns
    differ = {name.partition("{")[0] for name, _ in
              set(driver.figures[0].items()) ^ set(worker.figures.items())}  # fmt: skip
    assert differ == {"rejex_silent_sensors"}, "which only a worker counts by its own clock"
    found = worker.figures
    assert found['rejex_open_incidents{pipeline="pumps",state="open"}'] == "1.0"
    assert found['rejex_streams{partition="0",pipeline="pumps",topic="feed.csv"}'] == "4.0"
    assert found['rejex_records_invalid_total{pipeline="pumps",reason="decode"}'] == "7.0"
    assert driver.go_on(), "there is nothing to write any more"
    of_incidents = ("rejex_open_incidents", "rejex_held")
    known = {name: value for name, value in found.items() if name.startswith(of_incidents)}
    assert known.items() <= driver.figures[1].items(), "a new driver knows what is open"
    assert driver.changes == worker.turns


def test_a_new_checkpoint_needs_the_records_that_its_states_are_made_of(monkeypatch):
    settings = KafkaSettings(bootstrap_servers="nobody:1")
    earliest = {FARM: 0}
    monkeypatch.setattr(partition_reader, "committed_offsets", lambda *_: {FARM: 20})
    monkeypatch.setattr(partition_reader, "bounds_of", lambda *_: {FARM: (earliest[FARM], 30)})
    _require_records(settings, [FARM])
    for changed in (settings.replace(start="latest"), settings):
        with pytest.raises(CheckpointError, match="farm-0 is committed up to offset 20"):
            _require_records(changed, [FARM])
        earliest[FARM] = 1


def test_the_readings_of_one_record_are_seen_one_by_one():
    records = [
        Record(Position("feed", 0, offset, reading), None, b"{}")
        for offset, reading in ((3, 0), (3, 1), (4, 0))
    ]
    invalid = [Invalid(record.position, "decode", f"no {record.position}") for record in records]
    letters = [
        Written(
            record.position.offset, "deadletter", encode_dead_letter(record, why),
            reading=record.position.reading,
        )
        for record, why in zip(records, invalid, strict=True)
    ]  # fmt: skip
    found = list(outcomes_in(Partition("feed", 0), letters))
    assert [one.record.position for one in found] == [record.position for record in records]
    assert [one.invalid.reason for one in found] == [why.reason for why in invalid]


# ------------------------------------------------------------------------- who is told, and when
@pytest.fixture
def receiver():
    journal = Receiver()
    yield journal
    journal.close()


def told_to(receiver):
    """The changes of incidents that were taken, in order."""
    events = [json.loads(body) for body in receiver.taken]
    of_incidents = [one["data"] for one in events if ".incident." in one["type"]]
    return [(one["incident"], one["version"]) for one in of_incidents]


def named(changes):
    return [(change.id, change.version) for change in changes]


def news(changes):
    """The changes that people are told of: not how it goes on, nor that it is held."""
    seen = OpenSituations()
    return named(one for one in changes if seen.update(one, ()) and seen.is_news(one))


def written(driver):
    with open(driver.places.incidents, "rb") as file:
        return named(changes_in(file))


MOMENTS = ("before the commit", "after the commit", "when it is told")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_moment_and_people_are_told_of_what_is_durable(
    worker, outcomes, drive, receiver, moment
):
    driver = drive(5, f'[alerts]\nwebhook_url = "{receiver.url}"\n{OFTEN}')
    killed, cut_off, steps = set(), 0, news(worker.changes)

    def at(now, watch):
        nonlocal cut_off
        if now != "after the commit":  # then it is durable, and about to be told
            until(lambda: not watch.outbox.pending(FEED))
            assert set(told_to(receiver)) <= set(written(driver))
        found = [change for one in outcomes[driver.done : driver.cut] for change in one.incidents]
        changed = len([one for one in named(found) if one in steps])
        if now == moment and changed and driver.done not in killed:
            killed.add(driver.done)
            cut_off += changed
            raise KilledError

    while not driver.go_on(at):
        pass
    assert len(killed) > 1
    told = told_to(receiver)
    assert written(driver) == named(worker.changes)
    # Killed in the middle of a commit it may say once more that an incident is held.
    once = dict.fromkeys(told)
    assert [one for one in once if one in steps] == steps
    held = {(one.id, one.version) for one in worker.changes if one.held}
    assert {*once} - {*steps} <= (held if moment != "before the commit" else set())
    # What was taken, and is not known to be, is told again, with its id; nothing else is.
    said = [json.loads(body)["data"] for body in receiver.taken if b".incident." in body]
    stages = [json.dumps(one, sort_keys=True) for one in said]
    again = len(stages) - len(set(stages))
    assert len(stages) == len(told)
    assert len(killed) <= again <= cut_off if moment == "when it is told" else again == 0
    assert driver.journal.pending(FEED, 10**9) == []
    if moment != "after the commit":  # what nobody saw, the next process does not count
        expected, *found = (
            Counter({n: float(v) for n, v in one.items() if n.startswith("rejex_events_total")})
            for one in (worker.figures, *driver.figures)
        )
        assert sum(found, Counter()) == expected


def test_what_nobody_takes_waits_for_the_next_job_or_a_worker(worker, drive, receiver):
    driver = drive(6, f'[alerts]\nwebhook_url = "{receiver.url}"\n{OFTEN}')
    receiver.refusing = True
    assert driver.go_on()
    assert told_to(receiver) == []
    steps = news(worker.changes)
    assert named(driver.journal.pending(FEED, 10**9)) == steps
    receiver.refusing = False
    run_pipeline(driver.config)
    assert told_to(receiver) == steps
    assert driver.journal.pending(FEED, 10**9) == []


FARM = Partition("farm", 0)


class Recorded(JobJournal):
    def pending(self, partition, committed):
        return ()

    def at_commit(self, partition, next_offset, *, decides=True, pending=None):
        return decides, pending and named(pending)


def test_a_task_that_is_tried_again_records_what_its_first_try_has_committed():
    """Nobody saw that one; what was there before the micro-batch, the record lists already."""
    old, one, two = incident(3), incident(9), incident(12)
    commit = AtCommit(Recorded(("farm",)), {FARM: 5}, {FARM: [old]}, {FARM: [old]})
    lines = [Written(i.position.offset, "incidents", encode_incident(i)) for i in (old, one, two)]
    assert commit(FARM, 4, lines[:1], False) == (False, None), "nothing is new"
    assert commit(FARM, 10, lines[:2], False) == (False, named([old, one]))
    assert commit(FARM, 13, lines, True) == (True, named([old, one, two]))
    nobody = AtCommit(Recorded(("farm",)), {FARM: 5}, None, {})
    assert nobody(FARM, 13, lines, True) == (True, None)
    taken = AtCommit(Recorded(("farm",)), {FARM: 5}, {FARM: []}, {FARM: [old]})
    assert taken(FARM, 13, (), False) == (False, [])


def test_each_transaction_of_a_task_records_who_is_untold_and_another_try_shows_all(monkeypatch):
    transactions = []
    writer = SimpleNamespace(write=lambda *what: transactions.append(what), close=nobody)
    monkeypatch.setattr(sink, "_writer", lambda *_: writer)
    monkeypatch.setattr(sink, "_TRANSACTION_MESSAGES", 2)
    monkeypatch.setattr(
        partition_reader, "committed_offsets", lambda _, where: dict.fromkeys(where, done)
    )
    topics = SimpleNamespace(model_dump=lambda: {role: f"farm.{role}" for role in OUTPUTS})
    settings, nothing = SimpleNamespace(topics=topics), msgspec.msgpack.encode([])
    rows = [
        SimpleNamespace(
            topic="farm", partition=0, offset=offset, place=place, output=output, to=0, key=None,
            value=bytearray(output[:1] + str(offset), "utf-8"), headers=bytearray(nothing),
        )
        for offset in range(5)
        for place, output in enumerate(("verdicts", "incidents")[: 1 + (offset in {0, 3})])
    ]  # fmt: skip

    def at_commit(partition, next_offset, incidents, last):
        asked.append((next_offset, [one.value for one in incidents], last))
        return [Message("farm.state", 0, b"k", b"%d" % next_offset, [])]

    for done in (0, 2):
        asked = []
        transactions.clear()
        ((topic, number, seen, end),) = sink._write(settings, at_commit, {"incidents"}, iter(rows))
        assert (topic, number, end) == ("farm", 0, 5)
        assert [one[:3] for one in seen] == [(0, "incidents", b"i0"), (3, "incidents", b"i3")]
        ends = [next_offset for next_offset, _, _ in asked]
        assert ends == ([1, 3, 4, 5] if done == 0 else [4, 5])
        assert [values for _, values, _ in asked][-2:] == [[b"i0", b"i3"]] * 2
        assert [last for _, _, last in asked] == [False] * (len(ends) - 1) + [True]
        for (records, offsets), next_offset in zip(transactions, ends, strict=True):
            assert offsets == {FARM: next_offset}
            assert records[-1].value == b"%d" % next_offset
        values = [record.value for records, _ in transactions for record in records[:-1]]
        assert values == [bytes(row.value) for row in rows if row.offset >= done]


def test_what_people_say_is_decided_by_the_last_commit_of_a_micro_batch_alone(tmp_path):
    """What is recorded before that is who is pending."""
    journal = JobJournal(("farm",), tmp_path, tmp_path / "control.jsonl")
    append_line(
        journal.control, b'{"id": "c-1", "kind": "planned", "by": "a", "from_ms": 1, "until_ms": 2}'
    )
    orders = []
    for next_offset, last in ((10, False), (20, True)):
        journal.at_commit(FARM, next_offset, decides=last, pending=[incident(3)])
        orders.append(CommandJournal(FARM, journal.decided(FARM), ("farm",)).next_effective_offset)
        assert journal.pending(FARM, 20) == [incident(3)]
    assert orders == [None, 20]


def test_a_job_stores_so_many_commands_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(command_journal, "MAX_ENTRIES", 2)
    journal = JobJournal(("farm",), tmp_path, tmp_path / "control.jsonl")
    planned = b'{"id": "c-%d", "kind": "planned", "by": "a", "from_ms": 1, "until_ms": 2}'
    for n in range(3):
        append_line(journal.control, planned % n)
    for next_offset in (10, 20):
        journal.at_commit(FARM, next_offset)
    stored = CommandJournal(FARM, journal.decided(FARM), ("farm",))
    assert len(stored._durable.entries) == 2


def test_the_record_lists_what_was_untold_when_the_micro_batch_began(tmp_path, receiver):
    """What is taken while it is written is struck out by the next."""
    receiver.refusing = True
    config = config_of(tmp_path, more=f'[alerts]\nwebhook_url = "{receiver.url}"')
    lines = [Written(n, "incidents", encode_incident(incident(n))) for n in (3, 9)]
    with open_run_monitor(config, engine_spec(config), nobody, nobody, quiet=False) as watch:
        watch.outbox = SimpleNamespace(post=nobody, pending=lambda _: left, flush=nobody)
        monitoring = JobMonitoring(watch, config, Recorded(("farm",)))
        monitoring.begin({}, ())
        left = []
        assert monitoring.begun()(FARM, 4, lines[:1], True) == (True, named([incident(3)]))
        monitoring.durable({FARM: lines[:1]}, {FARM: 4})
        left = [incident(3)]
        assert monitoring.begun()(FARM, 6, (), True) == (True, None), "it lists that already"
        left = []
        monitoring.durable({}, {FARM: 6})
        assert monitoring.begun()(FARM, 8, (), True) == (True, []), "it was taken meanwhile"
        assert monitoring.begun()(FARM, 10, lines, True) == (True, named([incident(9)]))


def test_an_orderly_end_lets_people_be_told_and_strikes_out_what_they_took(tmp_path):
    config = config_of(tmp_path)
    left, wrote = [incident(3), incident(9)], []
    with open_run_monitor(config, engine_spec(config), nobody, nobody, quiet=False) as watch:
        watch.outbox = SimpleNamespace(
            post=nobody, pending=lambda _: [*left], flush=lambda _: left.pop(0)
        )
        monitoring = JobMonitoring(watch, config, Recorded(("farm",)))
        monitoring.begin({FARM: 4}, ())
        monitoring.begun()
        monitoring.durable({}, {FARM: 12})
        monitoring.end(lambda *what: wrote.append(what))
        assert wrote == [(FARM, (False, named([incident(9)])))]
        monitoring.begun()  # which breaks off: it may be durable all the same
        left.append(incident(9))
        monitoring.end(lambda *what: wrote.append(what))
        assert len(wrote) == 1


def test_how_far_the_input_goes_is_asked_of_the_broker_and_shown(tmp_path):
    config = config_of(tmp_path)
    with open_run_monitor(config, engine_spec(config), nobody, nobody, quiet=False) as watch:
        monitoring = JobMonitoring(watch, config, None)
        monitoring.begin({FARM: 4}, ())
        broker = SimpleNamespace(bounds=lambda partitions: {p: (2, 30) for p in partitions})
        watch.source = _Input(broker, [FARM], monitoring)
        monitoring.begun()
        monitoring.durable({}, {FARM: 12})
        watch.progress(Progress(0, 0, 0.0, 0, {}))
        lines = watch.metrics.exposition().decode().splitlines()
        assert watch.health.is_ready
    where = '{partition="0",pipeline="pumps",topic="farm"}'
    assert f"rejex_committed_offset{where} 12.0" in lines
    assert f"rejex_consumer_lag_records{where} 18.0" in lines


def test_monitors_see_no_sensor_too_many_and_forget_one_that_begins_again(tmp_path):
    config = config_of(tmp_path)
    base = Verdict(Position("farm", 0, 0), "a", "a", 0, 0, Label.REJECTED, Reason.WARM_UP)
    verdicts = [
        replace(base, seq=seq, position=Position("farm", 0, i))
        for i, seq in enumerate([0, 1, 2, 3, 4, 5, 0, 1])
    ]
    turned_away = replace(base, stream_key="b", reason=Reason.TOO_MANY_SENSORS)
    verdicts.append(replace(turned_away, position=Position("farm", 0, 8)))
    lines = [Written(v.position.offset, "verdicts", encode_verdict(v)) for v in verdicts]
    with open_run_monitor(config, engine_spec(config), nobody, nobody, quiet=False) as watch:
        monitoring = JobMonitoring(watch, config, None)
        monitoring.begin({FARM: 0}, ())
        for i in range(0, len(lines), 3):
            monitoring.begun()
            monitoring.durable({FARM: lines[i : i + 3]}, {FARM: i + 3})
        found = figures(watch)
        bank = monitoring._monitors[FARM].bank
        assert list(bank) == ["a"]
        assert bank.stream("a").status().warm_up_events == 2
    assert found['rejex_events_total{pipeline="pumps",sensor_group="",verdict="rejected"}'] == "9.0"


def test_a_webhook_over_topics_needs_a_place_that_executors_reach(tmp_path):
    text = CONFIG.format(folder=tmp_path, out="x", more="[state]\nfolder = 'kept'")
    config, problems = parse_config(
        text.replace(f'path = "{tmp_path}/feed.csv"', 'kind = "kafka"\ntopics = ["farm"]').replace(
            f'verdicts = "{tmp_path}/x/verdicts.jsonl"', ""
        )
    )
    assert not problems
    with pytest.raises(ConfigError, match="what the webhook is still to be told, is kept in a top"):
        JobJournal.of(config, listens=False)


def nobody(*_):
    pass


def test_open_are_the_incidents_that_did_not_close_before_the_job():
    opened, closed = incident(3), incident(9, version=2, state=IncidentState.CLOSED)
    lines = [opened, incident(9), incident(3, version=2), closed, incident(50)]
    found = still_open([*map(encode_incident, lines), b"?"], {FARM: 20})
    assert named(found) == [("farm-0-3", 2)]
    assert still_open(map(encode_incident, lines), {Partition("other", 0): 99}) == []


def test_messages_of_topics_say_what_lines_of_files_do(feed, outcomes):
    config, problems = parse_config(
        CONFIG.format(folder=feed, out="run", more="")
        .replace(f'path = "{feed}/feed.csv"', 'kind = "kafka"\ntopics = ["feed.csv"]')
        .replace(f'verdicts = "{feed}/run/verdicts.jsonl"', "")
    )
    assert not problems
    settings = kafka_settings(config)
    roles = {getattr(settings.topics, role): role for role in OUTPUTS}
    of, encode = OutcomeMessages(settings, lambda _: 1).of, msgspec.msgpack.encode
    on_topics, in_files = [], []
    for outcome in outcomes:
        at = outcome.record.position.offset
        for m in of([outcome]):
            headers = encode(m.headers) if roles[m.topic] == "deadletter" else b""
            on_topics.append(Written(at, roles[m.topic], m.value, headers))
        in_files += [Written(at, *line) for line in lines_of([outcome])]
    seen = list(outcomes_in(FEED, on_topics))
    assert seen == list(outcomes_in(FEED, in_files))
    unsaid = {"record": None, "follow_up": None}  # values, and what follows a review item
    assert [one._replace(**unsaid) for one in seen] == [one._replace(**unsaid) for one in outcomes]


def test_lean_verdicts_are_counted_and_not_monitored(worker, drive, caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = drive(3, f'form = "lean"\n[metrics]\nport = {port}')
    assert driver.go_on()
    assert "on Spark they read what is written" in caplog.text
    found = driver.figures[0]
    differ = {name.partition("{")[0] for name, value in found.items() - worker.figures.items()}
    assert differ == {"rejex_active_alarms"}, "nobody looks for any"
    missing = {name.partition("{")[0] for name in worker.figures.keys() - found.keys()}
    unsaid = {"withheld_events_total", "monitor_alarms_total", "streams", "silent_sensors"}
    assert missing == {f"rejex_{name}" for name in unsaid | GAUGES.keys()}
    assert driver.alarms == []
    assert driver.changes == worker.turns
