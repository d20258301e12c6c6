"""What a record holds, by a jq program: zero or more flat objects, each a reading of its own.

A record of industry is seldom one reading: it is an array of them, pairs of names and values, an
envelope, a heartbeat. `jq <https://jqlang.org/manual/v1.7/>`_ is total on JSON and known to most
who work with data, and one line of it says all of that. A reading is known by (topic, partition,
offset, its index in the record), and all of a record share its fate in a commit.
"""

from __future__ import annotations

import faulthandler
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from rejex_stream.decode.json import JsonDecoder
from rejex_stream.decode.mapping import printable
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.errors import ConfigError
from rejex_stream.types import Invalid, Reading, Record, SelectedRecord

MAX_READINGS = 10_000
"""Of one record; one that gives more is a dead letter."""
_MAX_BYTES = 1 << 26
_TIMEOUT_S = 60
"""So long a program may work on the records of one poll; then the process ends, as it cannot be
interrupted. So do its successors, until the program steps over the record."""

_PURE = """
    IN INDEX JOIN abs acos acosh add all any arrays ascii ascii_downcase ascii_upcase asin asinh
    atan atan2 atanh booleans bsearch capture cbrt ceil combinations contains copysign cos cosh
    date dateadd datesub del delpaths drem empty endswith erf erfc error exp exp10 exp2 explode
    expm1 fabs fdim finites first flatten floor fma fmax fmin fmod format frexp from_entries
    fromdate fromdateiso8601 fromjson fromstream gamma getpath gmtime group_by gsub has hypot
    implode in index indices infinite inside isempty isfinite isinfinite isnan isnormal isvalid
    iterables j0 j1 jn join keys keys_unsorted last ldexp leaf_paths length lgamma lgamma_r limit
    log log10 log1p log2 logb ltrim ltrimstr map map_values match max max_by min min_by mktime modf
    nan nearbyint nextafter nexttoward normals not nth nulls numbers objects path paths pick pow
    pow10 range recurse recurse_down remainder repeat reverse rindex rint round rtrim rtrimstr
    scalars scalb scalbln scan select setpath significand sin sinh skip sort sort_by split splits
    sqrt startswith strftime strings strptime sub tan tanh test tgamma to_entries toarray toboolean
    todate todateiso8601 tojson tonumber tostream tostring transpose trim trimstr trunc
    truncate_stream type unique unique_by until utf8bytelength values walk while with_entries y0 y1
    yn
"""
"""The builtins of jq that depend on their input and arguments alone."""
_REFUSED = "rejex_refuses_"
_ZONE = """
def rejex_zone: if test("(^|[^%])(%%)*%[-_0^#]*[0-9]*[EO]*s")
  then error("%s in a format of time reads the machine's time zone") else . end;
def rejex_strftime(f): strftime(f | rejex_zone);
def rejex_strptime(f): strptime(f | rejex_zone);
def strftime(f): rejex_strftime(f);
def strptime(f): rejex_strptime(f);
"""


@cache
def _guard() -> str:
    """Return what stands before a program, so that jq itself finds what it may not call.

    Each builtin that is not pure is defined again with a body that does not compile. jq leaves
    out definitions that nothing calls, so only a program that calls one fails, by jq's own rules
    for scopes, strings and fields.
    """
    import jq

    builtins: list[str] = jq.compile("builtins").input_value(None).first()
    definitions, pure = [], set(_PURE.split())
    for builtin in sorted(builtins):
        name, _, arity = builtin.partition("/")
        if name not in pure:
            parameters = f"({'; '.join(f'p{i}' for i in range(int(arity)))})" if int(arity) else ""
            definitions.append(f"def {name}{parameters}: {_REFUSED}{name};")
    return " ".join(definitions) + _ZONE


def _check_purity(program: str) -> None:
    import jq

    refused = "$ENV" if re.search(r"\$ENV\b", program) else None
    try:
        jq.compile(f"{_guard()}\n{program}")
    except ValueError as error:
        impure = re.search(rf"{_REFUSED}(\w+)", str(error))
        if impure is None:
            raise ConfigError(
                "input.select must be one expression of jq, without import, include or module: "
                "write the definitions into the program."
            ) from None
        refused = impure[1]
    if refused is not None:
        raise ConfigError(
            f"input.select uses {refused}, and a program may depend on the record alone: it must "
            "say the same when the record is read again, on any machine. Take the value from a "
            "field of the record, or add it after the pipeline."
        )
    if (library := Path.home() / ".jq").is_file():
        raise ConfigError(
            f"jq reads {library} into every program, and input.select may depend on the record "
            "alone: rename that file, or start with another HOME."
        )


class Selector:
    r"""A compiled jq program, from a record's value to flat objects; ``null`` is no reading."""

    def __init__(self, program: str) -> None:
        try:
            import jq
        except ImportError:
            raise ConfigError(
                "input.select is a jq program, and jq is not installed: pip install "
                "'rejex-stream[select]'."
            ) from None
        try:
            jq.compile(program)
        except ValueError as error:
            raise ConfigError(f"input.select is no jq program: {_in_words(error)}") from None
        _check_purity(program)
        # Never more than one reading too many; a comment ends with its line.
        self._program = jq.compile(f"limit({MAX_READINGS + 1};\n{_guard()}\n{program}\n)")

    def readings(self, record: Record, value: bytes) -> list[Record]:
        """Return what a record holds, at least one: readings, or why there is none. O(bytes)."""
        try:
            text: str = self._program.input_text(value.decode()).text()
        except (ValueError, UnicodeDecodeError) as error:
            return [self._failed(record, f"the program of input.select fails: {_in_words(error)}")]
        lines = [line for line in text.split("\n") if line and line != "null"]
        if not lines:
            none = Invalid(record.position, "ignored", "input.select finds no reading in it")
            return [SelectedRecord.of(record, 0, None, none)]
        if len(lines) > MAX_READINGS or len(text) > _MAX_BYTES:
            return [
                self._failed(
                    record,
                    f"input.select makes {len(lines):,} readings of it, {len(text):,} characters: "
                    f"more than {MAX_READINGS:,}, or than {_MAX_BYTES:,}",
                )
            ]
        return [SelectedRecord.of(record, i, line.encode()) for i, line in enumerate(lines)]

    def _failed(self, record: Record, reason: str) -> Record:
        invalid = Invalid(record.position, "select", reason)
        return SelectedRecord.of(record, 0, None, invalid)


@contextmanager
def _bounded() -> Iterator[None]:
    if sys.__stderr__ is None:  # nowhere to say why
        yield
        return
    faulthandler.dump_traceback_later(_TIMEOUT_S, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _in_words(error: Exception) -> str:
    text = str(error).removeprefix("jq: error: ").replace("jq: 1 compile error", "")
    first = " ".join(line.strip() for line in text.splitlines()[:1])
    return printable(first.removesuffix(":").replace(" at <top-level>, ", " in "), 300)[1:-1]


class SelectingDecoder:
    """Decodes the readings that a program makes of a record."""

    def __init__(self, selector: Selector, decoder: JsonDecoder) -> None:
        self._selector = selector
        self._decoder = decoder
        self._text_of: Callable[[Record], bytes | Invalid] = decoder.text_of
        self.channels = decoder.channels

    def expand(self, records: Sequence[Record]) -> list[Record]:
        """Return the readings of records, in order, at least one a record. O(bytes)."""
        with _bounded():
            return [reading for record in records for reading in self._readings(record)]

    def _readings(self, record: Record) -> list[Record]:
        if type(record) is not Record:  # it could not be read, or is a reading already
            return [record]
        text = self._text_of(record)
        if isinstance(text, Invalid):
            return [SelectedRecord.of(record, 0, None, text)]
        return self._selector.readings(record, text)

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one that :meth:`expand` gave; of another record, its first reading."""
        if type(record) is Record:
            record = self.expand([record])[0]
        if isinstance(record, SelectedRecord) and record.invalid is not None:
            return record.invalid
        return self._decoder.decode(record)

    def decode_all(self, records: Sequence[Record]) -> list[Reading | Invalid]:
        return self._decoder.decode_all(records)

    def lacking(self, record: Record) -> str:
        return self._decoder.lacking(record)


class RegistrySelectingDecoder(SelectingDecoder):
    """The same of records of a schema registry, which are made JSON of first."""

    def __init__(self, selector: Selector, decoder: JsonDecoder, registry: RegistryDecoder) -> None:
        super().__init__(selector, decoder)
        self._registry = registry
        self._text_of = registry.text_of

    def of_partition(
        self, decisions: bytes | None, *, decided_until: int
    ) -> RegistrySelectingDecoder:
        """Return a decoder of one partition alone, see :meth:`RegistryDecoder.of_partition`."""
        registry = self._registry.of_partition(decisions, decided_until=decided_until)
        return RegistrySelectingDecoder(self._selector, self._decoder, registry)

    def decisions(self) -> bytes:
        return self._registry.decisions()
