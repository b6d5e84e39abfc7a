"""Metrics: FfDL's records and their lines, the kinds of collectors, and a collector's task. Runs on Python 3.9.

A file of metrics has one record a line, in the form of FfDL's `emetrics`. It grows by whole lines; a reader ignores a
last line without an end. `rindex` counts the records of one file from 1, without gaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import field
from typing import Any, Dict, Mapping, Optional, Tuple

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.domain.untrusted_json import MAX_WHOLE, parse_json
from ffdl_batch.host.fast_dataclass import dataclass

STRING, JSONSTRING, INT, FLOAT = "STRING", "JSONSTRING", "INT", "FLOAT"
TYPES = (STRING, JSONSTRING, INT, FLOAT)
LOGS_ONLY, TENSORBOARD, EMETRICS_FILE, REGEX = "none", "tensorboard", "emetrics_file", "regex_extractor"
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("", "null", "nil", "none", "logger", "log_collector"), LOGS_ONLY),
    **dict.fromkeys(("tensorboard", "tensorboard_extractor", "tensorboard_extract"), TENSORBOARD),
    **dict.fromkeys(("emetrics_file", "file", "optivist", "emetrics_file_extractor"), EMETRICS_FILE),
    "regex_extractor": REGEX,
}
"""`evaluation_metrics.type` of a manifest -> the kind of its collector. LOGS_ONLY needs no collector. The last of
each are names of FfDL's images, which it ran for a manifest that had them as its type."""
_NEAR, LEAST_BEGINNING = 0.8, 4
LEAST_LOOKAHEAD, MOST_LOOKAHEAD = 0, 100
LATEST_MS = 10**14
"""Times of records must be between the epoch and this time, in milliseconds (in the year 5138)."""


class UnknownKind(ValueError):
    """A type of `evaluation_metrics` without a collector; the message lists the known ones."""


class RecordError(ValueError):
    """A line that is no record; the message says why."""


def kind_of(word: str) -> str:
    """Return the kind of collector of `evaluation_metrics.type`. Raises :class:`UnknownKind`."""
    kind = KINDS.get(word)
    if kind is None:
        known = ", ".join(sorted(name for name in KINDS if name))
        raise UnknownKind(f"there is no collector {quoted(word)} (FfDL ran an image of that name); there are: {known}")
    return kind


def nearest_kind(word: str) -> str:
    """Return the known type that an unknown one resembles; "" if there is none, or if it looks like the name of an
    image, with a path or a tag."""
    import difflib  # controllers load this module, and ask for no such thing

    folded = word.strip().lower().replace("-", "_").replace(" ", "_")
    if word in KINDS or not folded or any(sign in folded for sign in "/:.@"):
        return ""
    known = [name for name in KINDS if name]
    begun = [name for name in known if len(folded) >= LEAST_BEGINNING and name.startswith(folded)]
    near = difflib.get_close_matches(folded, known, n=1, cutoff=_NEAR)
    return (near or begun or [""])[0]


@dataclass(frozen=True)
class Measure:
    """A value in FfDL's form: one of TYPES, and its text."""

    type: str
    value: str


@dataclass(frozen=True)
class MetricRecord:
    """What was measured at one point in time."""

    training_id: str
    time_ms: int
    """Milliseconds since the epoch."""
    rindex: int
    subid: str
    """Name of a sub-run; "" = none."""
    group: str
    etimes: Mapping[str, Measure] = field(default_factory=dict)
    """Positions on the time axes."""
    values: Mapping[str, Measure] = field(default_factory=dict)
    """The measured values."""


@dataclass(frozen=True)
class ExtractionGroup:
    """One of `evaluation_metrics.groups`: a match of the regular expression becomes a record with this label.

    `time` and `subid`, and the values' texts, are `$group` of the expression or literal.
    """

    label: str
    regex: str
    time: str = ""
    subid: str = ""
    scalars: Mapping[str, Measure] = field(default_factory=dict)
    etimes: Mapping[str, Measure] = field(default_factory=dict)


@dataclass(frozen=True)
class Collecting:
    """What a job's manifest says about its collectors."""

    kind: str
    """A type as manifests have it."""
    groups: Tuple[ExtractionGroup, ...] = ()
    line_lookahead: int = 4


@dataclass(frozen=True)
class CollectorSpec:
    """The task of `python -m ffdl_batch.collectors SPEC.json`. Paths are absolute.

    The collector ends when `stop_file` exists and everything is read, or when `out` has `max_bytes`.
    """

    kind: str
    """A type as manifests have it."""
    training_id: str
    learner_id: int
    log_dir: str
    out: str
    """Grows; the position of the collector is stored in `<out>.position`."""
    stop_file: str
    groups: Tuple[ExtractionGroup, ...] = ()
    line_lookahead: int = 4
    more_dirs: Tuple[str, ...] = ()
    """Read like `log_dir` by the collectors of files (not the one of logs); the collector waits for directories that do
    not exist yet."""
    max_bytes: int = 0
    """0 = unlimited."""
    marks: str = ""
    """Written beside the log, as `log_files` is: shows when a line was printed; "" = the time at which the line is read
    counts."""
    log_files: str = ""


def encode_spec(spec: CollectorSpec) -> str:
    """Return the text of SPEC.json."""
    return json.dumps(to_plain(spec), ensure_ascii=True, indent=1) + "\n"


def decode_spec(text: str) -> CollectorSpec:
    """Return the spec in the text of SPEC.json. Raises CodecError and UnknownKind."""
    try:
        spec = from_plain(CollectorSpec, parse_json(text))
    except ValueError as error:
        raise CodecError(str(error)) from None
    kind_of(spec.kind)
    return spec


def encode_record(record: MetricRecord) -> str:
    """FfDL's line of a record, with its end. Only ASCII: no text of a user's can break a line."""
    return json.dumps(plain_record(record), separators=(",", ":")) + "\n"


def plain_record(record: MetricRecord) -> Dict[str, Any]:
    """FfDL's form of a record."""
    meta: Dict[str, Any] = {"training_id": record.training_id, "time": record.time_ms, "rindex": record.rindex}
    if record.subid:
        meta["subid"] = record.subid
    return {"meta": meta, "grouplabel": record.group, "etimes": _plain(record.etimes), "values": _plain(record.values)}


def _plain(measures: Mapping[str, Measure]) -> Dict[str, Dict[str, str]]:
    return {name: {"type": measure.type, "value": measure.value} for name, measure in measures.items()}


def decode_record(line: str, *, training_id: str = "", time_ms: int = 0) -> MetricRecord:
    """Return the record of a line, as FfDL's tools or users write them: `type` may be missing, `meta` too.

    The arguments replace what the line lacks. Raises :class:`RecordError`.
    """
    try:
        body = parse_json(line, finite=False)
    except ValueError:
        raise RecordError("is not JSON") from None
    return read_record(body, training_id=training_id, time_ms=time_ms)


def read_record(body: Any, *, training_id: str = "", time_ms: int = 0) -> MetricRecord:
    """Return the record of a line that is parsed already; see :func:`decode_record`."""
    if not isinstance(body, dict):
        raise RecordError("is not a JSON object")
    meta = body.get("meta") or {}
    if not isinstance(meta, dict):
        raise RecordError("meta is not an object")
    values = _measures(body, "values")
    if not values:
        raise RecordError("has no values")
    return MetricRecord(
        training_id=_text(meta, "training_id") or training_id,
        time_ms=_whole(meta, "time", time_ms, LATEST_MS),
        rindex=_whole(meta, "rindex", 0, MAX_WHOLE),
        subid=_text(meta, "subid"),
        group=_text(body, "grouplabel"),
        etimes=_measures(body, "etimes"),
        values=values,
    )


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if isinstance(value, (dict, list)):
        raise RecordError(f"{key} is not a text")
    return "" if value is None else str(value)


def _whole(body: Mapping[str, Any], key: str, without: int, largest: int) -> int:
    """Return an integer from 0 to `largest`, or `without` if it is missing. FfDL's int64 are texts in JSON."""
    value = body.get(key)
    if value is None or value == "":
        return without
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise RecordError(f"{key} is not a number") from None
    if not 0 <= number <= largest:
        raise RecordError(f"{key} must be from 0 to {largest}")
    return number


def _measures(body: Mapping[str, Any], key: str) -> Dict[str, Measure]:
    found = body.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise RecordError(f"{key} is not an object")
    return {str(name): _measure(str(name), value) for name, value in found.items()}


def _measure(name: str, found: Any) -> Measure:
    if not isinstance(found, dict):
        return measure(found)
    if "value" not in found:
        raise RecordError(f"{name} has no value")
    word = found.get("type")
    if word is None or word == "":
        return measure(found["value"])
    if not isinstance(word, str) or word.upper() not in TYPES:
        raise RecordError(f"{name} has the type {word!r}, which is none of {', '.join(TYPES)}")
    return Measure(word.upper(), measure(found["value"]).value)


def measure(value: Any) -> Measure:
    """Return a JSON value with its type; a text that is a number is one."""
    if isinstance(value, bool) or value is None or isinstance(value, (dict, list)):
        return Measure(JSONSTRING, json.dumps(value))
    if isinstance(value, int):
        return Measure(INT, str(value))
    if isinstance(value, float):
        return Measure(FLOAT, float_text(value))
    text = str(value)
    return Measure(_type_of(text), text)


def _type_of(text: str) -> str:
    for kind, reads in ((INT, int), (FLOAT, float)):
        try:
            reads(text)
        except ValueError:
            continue
        return kind
    return STRING


def float_text(value: float) -> str:
    """The shortest text of a number; NaN, Infinity and -Infinity as JavaScript, Go and Python all read them."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def typed(type_: str, text: str) -> Optional[Measure]:
    """Return `text` as a value of that type ("" = its own type); None if it is not of that type."""
    if not type_:
        return measure(text)
    try:
        if type_ == INT:
            return Measure(INT, str(_integer(text)))
        if type_ == FLOAT:
            float(text)
    except (ValueError, OverflowError):
        return None
    return Measure(type_, text.strip() if type_ == FLOAT else text)


def _integer(text: str) -> int:
    """Return a decimal number, or one with 0x, 0o, 0b; a number with a fraction of zero is an integer, too."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(text, 0)
    except ValueError:
        number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)
