"""One record, many readings: ``input.select``."""

import json
from pathlib import Path
from typing import Any

import pytest

from rejex_stream.decode import JsonDecoder, decode_records
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.select import MAX_READINGS, SelectingDecoder, Selector
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.loop import run
from rejex_stream.types import Outcome, Position, Reading, Record
from tests.doubles import ListSink, ListSource, MemorySnapshotStore

pytest.importorskip("jq")

ARRAY = ".machine as $m | .readings[] + {machine: $m}"
MAPPING = FieldMapping(["flow"], sensor="machine", time="t")


def record(tree: object, offset: int = 0) -> Record:
    value = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return Record(Position("in", 0, offset), None, value)


def burst(first: int, n: int, machine: str = "a") -> dict[str, Any]:
    readings = [{"t": i, "flow": (i * 7) % 17} for i in range(first, first + n)]
    return {"machine": machine, "readings": readings}


def decoder(program: str = ARRAY, mapping: FieldMapping = MAPPING) -> SelectingDecoder:
    return SelectingDecoder(Selector(program), JsonDecoder(mapping))


def items(program: str, tree: object) -> list[Any]:
    return decode_records(decoder(program), [record(tree)])[1]


def test_a_record_becomes_as_many_readings_as_the_program_gives() -> None:
    records, found = decode_records(decoder(), [record(burst(0, 3), 7), record(burst(3, 1), 8)])
    assert [str(one.position) for one in records] == ["in-0-7", "in-0-7.1", "in-0-7.2", "in-0-8"]
    assert all(isinstance(item, Reading) for item in found)
    assert [(i.sensor, i.event_time_ms, i.values) for i in found if isinstance(i, Reading)] == [
        ("a", i, (i * 7 % 17,)) for i in range(4)
    ]


@pytest.mark.parametrize("program", ["empty", ".after", 'select(.type == "reading")', ".after[]?"])
def test_a_record_without_a_reading_is_ignored(program: str) -> None:
    (item,) = items(program, {"type": "heartbeat", "after": None})
    assert item.silent
    assert item.stage == "ignored"


def test_a_tombstone_is_ignored_with_a_program_and_without() -> None:
    none = Record(Position("in", 0, 0), b"a", None)
    for one in (decoder(), JsonDecoder(MAPPING)):
        assert decode_records(one, [none])[1][0].stage == "ignored"  # type: ignore[union-attr]


def test_a_program_that_fails_says_why_in_the_words_of_jq() -> None:
    (item,) = items(".readings[]", {"readings": 5})
    assert item.stage == "select"
    assert item.reason == "the program of input.select fails: Cannot iterate over number (5)"


@pytest.mark.parametrize("value", [b"{", b"\xff", b"[" * 5000, b'{"a": "\\ud800"}', b"nul"])
def test_no_bytes_make_it_raise(value: bytes) -> None:
    (item,) = decode_records(decoder("."), [record(value)])[1]
    assert not isinstance(item, Reading)


@pytest.mark.parametrize(("program", "said"), [
    (".a[", "line 1, column 3"),
    (".a |\n  foo(.)", "foo/1 is not defined in line 2, column 3"),
    ('import "a" as a; .', "module not found"),
    ("module {}; .", "without import, include or module"),
])  # fmt: skip
def test_a_program_that_cannot_be_is_refused_with_its_place(program: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Selector(program)


def builtins() -> list[str]:
    import jq

    found: list[str] = jq.compile("builtins | sort").input_value(None).first()
    return found


IMPURE = {
    "builtins", "debug", "env", "get_jq_origin", "get_prog_origin", "get_search_list", "halt",
    "halt_error", "have_decnum", "have_literal_numbers", "input", "input_filename",
    "input_line_number", "inputs", "localtime", "modulemeta", "now", "stderr", "strflocaltime",
}  # fmt: skip
CALLS = [
    "CALL", "{t:CALL,v:.v}", "def f: CALL; {v: f}", r'"\(CALL)"', r'{x: "a\("b\(CALL)")"}',
    "@base64 \"\\(CALL)\"", ".a |= CALL", "try CALL catch .", "reduce (CALL) as $x (0; $x)",
    ". as [$a] ?// $a | CALL", "{(CALL | tostring): 1}", "#now\nCALL", "{v: CALL }|.v",
    "def f(g): g; f(CALL)", "if CALL then 1 else 2 end", "(def NAME: 1; 2), CALL", ".[CALL]?",
]  # fmt: skip


@pytest.mark.parametrize("position", CALLS)
def test_a_builtin_is_allowed_anywhere_or_refused_anywhere(position: str) -> None:
    allowed = []
    for builtin in builtins():
        name, _, arity = builtin.partition("/")
        call = f"{name}({'; '.join('.' * int(arity))})" if int(arity) else name
        program = position.replace("CALL", call).replace("NAME", name)
        if name not in IMPURE:
            allowed.append(f"({program}\n)")
            continue
        with pytest.raises(ConfigError, match=rf"uses {name}, .* Take the value from a field"):
            Selector(program)
    Selector(", ".join(allowed))


@pytest.mark.parametrize("program", [
    "{NAME: .NAME}", "{NAME}", '."NAME"', '{b: "NAME input"}', ". # NAME", ". as $NAME | $NAME",
    "def NAME: 1; NAME", "def f(NAME): NAME; f(1)", "def f($NAME): NAME; f(1)", "{a: {NAME: 1}}",
    "def f: NAME; 1", '.["NAME"]', "..|.NAME?", "label $NAME | break $NAME",
])  # fmt: skip
def test_fields_variables_and_functions_may_be_called_as_what_is_refused(program: str) -> None:
    Selector(", ".join(f"({program.replace('NAME', name)}\n)" for name in IMPURE))


def test_a_program_sees_neither_the_environment_nor_the_zone_nor_a_file_of_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("$ENV.HOME", r'{x: "\($ENV.PATH)"}', "{$ENV}", ". as {a: $b} | $ENV"):
        with pytest.raises(ConfigError, match=r"uses \$ENV"):
            Selector(program)
    (item,) = items('. + {flow: (.t | strftime("%-s") | tonumber)}', {"machine": "a", "t": 1})
    assert "reads the machine's time zone" in item.reason
    (item,) = items('{t: ("7 %s" | strptime("%d %%s") | .[2]), flow: 1, machine: 1}', {})
    assert item.event_time_ms == 7
    (tmp_path / ".jq").write_text("def map(f): now;")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="rename that file"):
        Selector("map(.)")


def test_too_many_readings_are_a_dead_letter() -> None:
    (item,) = items("range(1e9) | {t: ., flow: 1}", {})
    assert item.stage == "select"
    assert f"{MAX_READINGS + 1:,} readings" in item.reason


# ------------------------------------------------------------------------------ in the loop
SPEC = EngineSpec(
    make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20), FeatureSpec(("flow",)),
    RejectionPolicy(0.1, tolerance=4), window=60,
)  # fmt: skip


def outcomes(lines: list[bytes], program: str | None, **crashes: Any) -> list[Outcome]:
    sink = ListSink()
    way: Any = JsonDecoder(MAPPING) if program is None else decoder(program)
    run(
        ListSource(lines), sink, MemorySnapshotStore(), lambda _, fits: Engine(SPEC, fits), way,
    )  # fmt: skip
    return sink.outcomes


def test_readings_in_arrays_are_judged_as_if_each_were_a_record() -> None:
    whole = [json.dumps(burst(i, 5)).encode() for i in range(0, 400, 5)]
    flat = [
        json.dumps(one | {"machine": "a"}).encode()
        for i in range(0, 400, 5)
        for one in burst(i, 5)["readings"]
    ]
    selected, plain = outcomes(whole, ARRAY), outcomes(flat, None)
    assert len(selected) == len(plain) == 400
    # A tie is broken by the position, which is another one: the score is not.
    for one, other in zip(selected, plain, strict=True):
        assert one.verdict
        assert other.verdict
        assert (one.verdict.score, one.verdict.seq) == (other.verdict.score, other.verdict.seq)


def test_a_dead_letter_of_a_reading_holds_its_whole_record(tmp_path: Path) -> None:
    from rejex_connectors.files.sink import lines_of

    tree = {"machine": "a", "readings": [{"t": 1, "flow": 2}, {"t": 2, "flow": "x"}]}
    dead = [
        json.loads(line)
        for role, line in lines_of(outcomes([json.dumps(tree).encode()], ARRAY))
        if role == "deadletter"
    ]
    assert [one["id"] for one in dead] == ["input-0-0.1"]
    assert json.loads(dead[0]["value_text"]) == tree


def test_the_identity_goes_over_the_wire_and_back() -> None:
    from rejex_stream.encode.records import decode_verdict, encode_verdict

    found = outcomes([json.dumps(burst(0, 12)).encode()], ARRAY)
    for outcome in found:
        assert outcome.verdict is not None
        line = encode_verdict(outcome.verdict)
        assert json.loads(line)["id"] == str(outcome.verdict.position)
        assert json.loads(line)["offset"] == 0
        assert decode_verdict(line).position == outcome.verdict.position
    assert str(found[11].verdict.position) == "input-0-0.11"  # type: ignore[union-attr]
