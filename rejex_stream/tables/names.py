"""What columns, fields and words of quality are called: the one table of patterns for guessing.

Tables and records share it. A name is compared as :func:`plain` writes it, a path by its last part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rejex_stream.decode.mapping import TimeUnit


def plain(name: str) -> str:
    """Write a name as patterns want it: ``Zeit [s]`` is ``zeit``."""
    bare = re.sub(r"(?<=\w)\s*[\[(][^\])]*[\])]\s*$", "", name.strip().lstrip("#% ") or name)
    return re.sub(r"[\s_/&.-]+", "_", bare).strip("_").lower()


def last_of(path: str) -> str:
    return plain(re.split(r"(?<!\\)\.", path)[-1])


def _exactly(*words: str) -> re.Pattern[str]:
    return re.compile(f"^({'|'.join(words)})$")


# ---------------------------------------------------------------------------------- whose it is
_ENDING = r"(_?(id|name|key|nr|no|number|nummer|code|serial|tag|instance))?"
_STRONG = (
    r"(sensor|device|machine|unit|asset|meter|station|site|pump|motor|engine|turbine|node|plant"
    r"|messstelle|messpunkt|pumpe|anlage|gerät|geraet|maschine|zähler|zaehler|standort|fühler"
    r"|fuehler|capteur|pompe|equipo|equipment|appareil|máquina|maquina|macchina|instrument|logger"
    r"|gateway|slave|inverter|well|thing|robot|client|compressor|kompressor|aggregat|aggregate"
    r"|vehicle|vin|truck|patient|transformer|chiller|boiler|ahu|elevator|rig|drone"
    r"|end_?device|data_?set_?writer|writer|connection_?device|dev|dev_?eui|tool|instance)s?"
)
_WEAK = r"valve|source|tank|line|cell|road|location|id|name|key|ort|tag|host|serial|area|zone"
STRONG_SENSOR = _exactly(_STRONG + _ENDING)
SENSOR = _exactly(f"({_STRONG}|{_WEAK}){_ENDING}", ".*_(id|name|nr)")
TEXT_SENSOR = re.compile(
    r"(id|name|key|connection|source|src|subject|host|topic|location|site|area|group|entity|urn|label|serial"
    r"|address|mac|eui|imei|payload)$"
)
"""A text called so may say whose a record is."""
TAG = _exactly(
    r"((tag|param|parameter|variable|var|metric|signal|quantity|channel|kanal|measurement|measure"
    r"|measurand|property|field|(data_?)?item|resource|data_?point|point|attribute|alias|observable|feature|signalname"
    r"|mess(größe|groesse|wert_?name|kanal)|(kenn)?(größe|groesse)|merkmal|grandeur|variable_?name"
    r"|magnitud|magnitude|register)(_?(id|name|nr|no|code|key|alias))?)"
)
"""What names a quantity, where a row or record holds one value."""
PAIR = _exactly(
    TAG.pattern[1:-1], r"n|k|name|id|key|type|(display|browse|node|param|sensor|series)_?name",
    r"(expanded_?)?node_?id|address|path|topic|label",
)  # fmt: skip
"""What may name a quantity beside its value, in an array of pairs."""
VALUE = _exactly(
    r"((param|property|tag|metric|sensor|channel|measure(ment)?|data|item|point|raw|actual|current"
    r"|present)_?)?"
    r"(values?|val|wert|messwert|valeur|valor)(_?(num|float|double))?|v|vb|vd|vs|reading|y",
    r"(double|float|int|integer|long|numeric|num|bool|boolean)_?value",
)
_WITH_DIGITS = re.compile(r"(1|[^\W\d_]+[23]?)/[^\W\d_]+[23]?|[dckm]?m[23]")  # units such as m3/h
_UNIT = re.compile(r"(^|_)(units?(_?(code|of_measure(ment)?))?|uom|einheit)$")
COUNTER = re.compile(
    r"(^|[_.])(seq|seq_?(no|nr|num|number)|sequence(_?number)?|counter|count|cnt|f_?cnt|version|qos"
    r"|offset|lsn|tx_?id|xid|msg_?id|message_?(id|no|nr|number)|(item|host)?_?id|retain|partition|row_?id|uptime\w*"
    r"|\w*in_?nanos|nanos|nano_?seconds?"
    r"|\w+writer_?id)$", re.I,
)  # fmt: skip
TOTAL = re.compile(
    r"total|accum|cumul|(^|_)(energy|k?wh|mwh|counts?|cnt|pulses?|odometer|run_?hours|hours_run)(_|$)"
    r"|z(ä|ae)hler|betriebsstunden|meter_?reading"
)
"""What adds up, and never falls."""
ASIDE = _exactly(r"m(illi)?s(ec(ond)?s?)?|index|row|split|fold|change_?point|rul|unnamed.*|")
LABEL = _exactly(
    r"(is_?)?(anomal(y|ies|ous)|outlier|attack|fault|faulty|fail(ed|ure)?)(_?(label|flag))?|labels?",
    r"(att|attack|anomaly|fault|outlier)_?(flag|label)|machine_?failure|normal_attack",
    r"ground_?truth|is_?(anomaly|outlier|attack|fault|failure)",
)
MAYBE_LABEL = _exactly("class|target|y|event")
"""Called so, a column is the truth only where it says yes and no, and others are measured."""

MODE = re.compile(
    r"(^|_)((operating_?)?modes?|(sub_?)?states?|status|phase|recipe|program(me)?|betriebsart|zustand"
    r"|execution|regime|step|stage|product|batch|shift|schicht|rezept)(_?(id|name|nr|no))?$"
)
"""What names how a machine runs, not which it is."""

# ----------------------------------------------------------------------------------------- when
TIME = _exactly(
    r"time|t(ime)?_?stamp|datetime|date|date_?time|ts|t|when|event_?time.*|.*_(time|at|ts|utc)|utc.*",
    r".*timestamp|(time|date|timestamp)_.*|datum|zeit|zeitpunkt|zeitstempel|datum_.*|.*_?datum",
    r"messzeit.*|fecha.*|heure|horodatage|tijd|tijdstip|(unix|epoch).*|.*(datenum|filetime|ticks)",
    r"yyyy_?mm_?dd|m?jd|julian.*|serial_?(date|time)|gps_?(time|seconds?|s)|zeit_.*|data_?ora|data_?hora",
)
TIME_OF_RECORD = re.compile(
    rf"{TIME.pattern}|(^|_)(at|moment|t0|start|created|updated|epoch)(_?(ms|us|ns|s))?$"
    r"|time(_?in_?seconds)?(_?(ms|us|ns|s))?$"
)
ELAPSED = _exactly(
    r"elapsed.*|ms|millis.*|micros.*|msec|seconds?|secs?|minutes|hours|days|sekunden|minuten|stunden|tage"
    r"|t_(s|ms|us|ns|sec|min|h|d)|x_value|time_elapsed.*|relative_time.*|laufzeit"
    r"|(.*_)?(time|zeit)_(in_)?(s|ms|us|ns|sec|seconds|min|minutes|h|hours|d|days)"
)
CLOCK = _exactly(
    r"(local_?|utc_?)?time(_?of_?day)?|uhrzeit|zeit|clock|hora|heure|ora|tijd|hour(_?ending)?"
    r"|stunde|he|hh|hr|.*hhmm|時刻|時間|时间|[pmceu]st|utc|gmt"
)
PARTS = tuple(
    _exactly(words)
    for words in (
        "year|jahr|yyyy|yy|yr|ann[eé]e?|a[nñ]o|anno|jaar",
        "month|monat|mon|mo|mm|mois|mes|mese|maand",
        "day(_?of_?month)?|tag|dy|dd|jour|d[ií]a|giorno|dag",
        "hour|stunde|std|hr|hh|h|heure|hora|ora|uur|time|.*hhmm|[pmceu]st|[lu]tc?|gmt",
        "minute|minuten?|min|mm|mi|minut[oei]|minutes",
        "second|sekunde|sec|ss|s|segundo|seconde|seconds",
    )
)
"""Columns that make a time together, from the year on."""
DAY_OF_YEAR = _exactly("doy|j?day(_?of_?(the_?)?year)?|julian(_?day)?|yday|tag_des_jahres")
STEP = _exactly(
    r"(dt|delta_?t|interval|period|step|sample_?(interval|period|time)|spacing)_?(ns|us|ms|s|sec)?",
    r"(fs|rate|sample_?rate|sampling_?rate|frequency|freq)_?(hz)?",
)


def _unit(words: str) -> re.Pattern[str]:
    return re.compile(rf"([\W_]|^)({words})\W*$", re.I)


HOURS = re.compile(r"(h|hr|hour|he|std)?_?\d{1,2}(:[0-5]\d|h)?", re.I)
"""What the columns of a table are called that has a row a day."""
NAMED_UNITS: tuple[tuple[re.Pattern[str], TimeUnit], ...] = (
    (re.compile("gps", re.I), "gps"),
    (re.compile("datenum|matlab", re.I), "matlab"),
    (re.compile("filetime", re.I), "filetime"),
    (re.compile(r"(^|[\W_])mjd", re.I), "mjd"),
    (re.compile(r"(^|[\W_])jd([\W_]|$)|julian", re.I), "jd"),
    (_unit("ms|msec|millis|milliseconds?"), "ms"),
    (_unit("us|usec|micros|microseconds?|µs"), "us"),
    (_unit("ns|nsec|nanos|nanoseconds?"), "ns"),
    (_unit("s|sec|secs|seconds?|sekunden"), "s"),
    (_unit("min|mins|minutes?|minuten"), "min"),
    (_unit("h|hrs?|hours?|std|stunden"), "h"),
    (_unit("d|days?|tage"), "d"),
)

# -------------------------------------------------------------------------------------- quality
_QUALITY = _exactly(
    r"q|qc|qf|(opc_?|data_?)?qualit(y|ät|aet|é|e|à|a)?(_?(code|flag))?|calidad|qualidade|kwaliteit"
    r"|kvalite[td]|jakość|laatu|品質|güte|guete|status|qn(_\d+)?"
    r"|status_?code|symbol|(is_?)?(valid|good|ok)|sts?|stat|validity|confidence|gültig|gueltig|code|flag|state|zustand"
)
_GOOD = re.compile(
    r"good.*|ok|okay|valid|true|normal|gut|gültig|gueltig|bon|bonne|bueno|buena|buono|goed|dobra?"
    r"|gemessen|measured"
    r"|0x0+|no[ _]?error|192|passed|pass|healthy|in[ _]?service", re.I,
)  # fmt: skip
_BAD = re.compile(
    r"(bad|uncertain|invalid|false|err|fail|fault|schlecht|unsicher|ungültig|stale|questionable)",
    re.I,
)
_VAGUE = _exactly("(.*_)?(sts?|stat|status|state|code|flag|symbol|zustand)")
"""Called so, a field is one of quality only where all its words are: a machine has a status."""
_SURE = re.compile(
    r"good|bad|uncertain|(in)?valid|gut|schlecht|unsicher|(un)?gültig|0x|\{[\w,]*\}$"
    r"|ersatz|gemessen|substitut|estimat|measured", re.I,
)  # fmt: skip
MOST_QUALITIES = 12


def is_quality(name: str, values: Sequence[object], *, alone: bool = False) -> bool:
    """Whether a field says of others how good they are: by its name, and few values.

    One that is `alone`, for all values of a record, must be called so beyond doubt: the status of a
    machine is none.
    """
    last = last_of(name)
    texts = last == "s" and all(isinstance(v, str | None) for v in values)
    called = texts or _QUALITY.match(last) or _QUALITY.match(last.rsplit("_", 1)[-1])
    braces = all(re.fullmatch(r"\{[\w,]*\}", str(v)) for v in values if v)  # of Niagara
    vague = alone and (_VAGUE.match(last) or last == "s") and not braces
    return bool(called and not vague) and len(set(map(str, values))) <= MOST_QUALITIES


def is_unit(name: str, values: Sequence[object]) -> bool:
    """Whether texts are units of values, and no names with numbers in them."""
    digits = [v for v in set(map(str, values)) if any(map(str.isdigit, v))]
    return _UNIT.search(last_of(name)) is not None and all(map(_WITH_DIGITS.fullmatch, digits))


def good_among(values: Sequence[object], name: str = "") -> list[Any]:
    """Return those of the values of a field of quality that say that all is well, if any do.

    Words say so; codes of OPC DA from 192 on; 0 among the codes of OPC UA, whose errors begin at
    2**30, or at 128 where most are 0; 1 where the name is ``valid`` or ``good``. O(values).
    """
    known = list({json.dumps(v): v for v in values if v not in (None, "")}.values())
    words = [v for v in known if isinstance(v, str)]
    vague = _VAGUE.match(last_of(name)) and not all(map(_SURE.match, words))
    both = any(map(_BAD.match, words)) and any(map(_GOOD.fullmatch, words))
    if vague and not (both and all(_BAD.match(word) or _GOOD.fullmatch(word) for word in words)):
        return []
    codes = [v for v in known if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(words) == len(known) and all(len(word) == 1 for word in words):
        return [word for word in words if word in "Gg"]
    good: list[Any] = [
        v for v in known if v is True or (isinstance(v, str) and _GOOD.fullmatch(v.strip("{}")))
    ]
    if codes and all(0 <= code <= 255 or 65_536 > code >= 192 for code in codes):
        good += [code for code in codes if int(code) & 0xC0 == 0xC0]
    most = 128 if not good and 2 * values.count(0) > len(values) else 2**30
    if 0 in codes and len(codes) > 1 and all(code == 0 or code >= most for code in codes):
        good += [0]
    if last_of(name) == "qc" and max(codes, default=0) == 3 and 2 * values.count(3) > len(values):
        good += [3]  # of Siemens
    if set(codes) in ({0, 100}, {100}):
        good += [100]
    if set(codes) == {0, 1} and re.search("valid|good|gültig|gueltig", name, re.I):
        good += [1]
    if not good and words and all(map(_BAD.match, words)):
        return ["Good"]
    return good
