"""Reports which fields of a request do not match the interface: field, value and cause.

Values of fields that may contain secrets are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.terminal_text import quoted

_SECRET = frozenset({"value", "references", "environ", "manifest"})
"""Fields of requests that contain secrets, or in which a client may send some."""
_WHOLE, _NUMBER, _FLAG, _TEXT = "a whole number", "a number", "true or false", "text"
_LIST, _OBJECT = "a list", "an object of JSON"
_KINDS = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
    "string_type": _TEXT,
    "string_unicode": "text in UTF-8",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _OBJECT,
    "mapping_type": _OBJECT,
    "dataclass_type": _OBJECT,
}
"""What the value must be, by pydantic's type of error."""
_PATTERNS = {
    r"^[^\x00]*$": "text without a NUL character",
    r"^[0-9a-f]{64}$": "a SHA-256 digest of 64 hexadecimal digits in lower case",
}
_LIMITS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda limits: f"{limits['ge']} or more",
    "greater_than": lambda limits: f"greater than {limits['gt']}",
    "less_than_equal": lambda limits: f"{limits['le']} or less",
    "less_than": lambda limits: f"less than {limits['lt']}",
    "string_too_long": lambda limits: f"text of at most {limits['max_length']} characters",
    "string_too_short": lambda limits: f"text of at least {limits['min_length']} characters",
    "enum": lambda limits: str(limits["expected"]),
    "literal_error": lambda limits: str(limits["expected"]),
    "string_pattern_mismatch": lambda limits: _PATTERNS.get(limits["pattern"], f"text like {limits['pattern']}"),
}


def findings_of(errors: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return one finding for each field, in the order of pydantic's errors. A field that may have values of several
    kinds has an error for each kind."""
    fields: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for error in errors:
        fields.setdefault(_field(error), []).append(error)
    return [Finding(Severity.ERROR, _message(field, each), path=_path(field)) for field, each in fields.items()]


def _field(error: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the place of the field. In a query and a path, what follows the name is an index, or the kind of value
    that the error is about."""
    place = tuple(error["loc"])
    if error["type"] == "json_invalid":
        return place[:1]
    if place[0] != "body":
        return (*place[:2], *(part for part in place[2:] if isinstance(part, int)))
    return place


def _path(field: Sequence[object]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in field]
    return "".join(parts).removeprefix(".")


def _message(field: Sequence[object], errors: Sequence[Mapping[str, Any]]) -> str:
    first = errors[0]
    kind, limits = first["type"], first.get("ctx", {})
    if kind == "missing":
        return "it is missing"
    if kind == "json_invalid":
        return f"it is not JSON: {limits['error']} at character {first['loc'][1]}"
    if kind in ("too_long", "too_short"):
        bound, limit = ("at most", limits["max_length"]) if kind == "too_long" else ("at least", limits["min_length"])
        return f"it must have {bound} {counted(limit, 'entry', 'entries')}, and has {limits['actual_length']}"
    wanted = [
        _LIMITS[error["type"]](error["ctx"]) if error["type"] in _LIMITS else _KINDS.get(error["type"], "")
        for error in errors
    ]
    if not all(wanted):
        return f"{_shown(field, first['input'])} is not possible here ({kind})"
    return f"{_shown(field, first['input'])} must be {', or '.join(dict.fromkeys(wanted))}"


def _shown(field: Sequence[object], value: object) -> str:
    """Return the value for a message; for a list, an object or a value that may be secret, return its kind."""
    if isinstance(value, list | tuple):
        return "the list"
    if isinstance(value, Mapping):
        return "the object"
    if isinstance(value, bytes):
        return "a body that is not sent as application/json"
    if value is None:
        return "null"
    if _SECRET & set(map(str, field)):
        return "the value"
    return quoted(str(value).lower() if isinstance(value, bool) else str(value))
