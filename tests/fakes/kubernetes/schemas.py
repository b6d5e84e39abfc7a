"""Kubernetes' own schemas (of the ``kubernetes-validate`` package): types, unknown fields, required fields."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakes.kubernetes.kinds import Kind, Obj
from tests.fakes.kubernetes.refusals import Cause, bad_request, required

_GO_TYPES = {
    "string": "string",
    "integer": "int",
    "boolean": "bool",
    "number": "float64",
    "object": "map",
    "array": "[]",
}
_QUANTITY = re.compile(r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$")
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")


@dataclass
class Reading:
    """What was found on the way through an object."""

    kind: Kind
    unknown: list[str] = field(default_factory=list)
    missing: list[Cause] = field(default_factory=list)


@cache
def _definitions(release: str) -> Obj:
    return dict(json.loads((_folder(release) / "_definitions.json").read_text())["$defs"])


@cache
def _folder(release: str) -> Path:
    found = importlib.util.find_spec("kubernetes_validate")
    assert found is not None and found.submodule_search_locations is not None, "kubernetes-validate is not installed"
    return Path(found.submodule_search_locations[0]) / "kubernetes-json-schema" / f"v{release}.0-local"


@cache
def _schema(release: str, kind: Kind) -> Obj:
    group = kind.group.split(".")[0]
    name = "-".join(filter(None, [kind.kind.lower(), group, kind.version]))
    return dict(json.loads((_folder(release) / f"{name}.json").read_text()))


def read(kind: Kind, obj: Obj, release: str) -> tuple[Obj, Reading]:
    """The object without unknown fields, and what was found. A wrong type is refused at once, as decoding does it."""
    reading = Reading(kind)
    return _walk(obj, _schema(release, kind), "", release, reading), reading


def _walk(value: Any, schema: Obj, path: str, release: str, reading: Reading) -> Any:
    name = ""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        schema = _definitions(release)[name]
    special = _special(name, schema, value, path, reading)
    if special is not None:
        return special
    if value is None:
        return None
    wanted = schema.get("type")
    if isinstance(wanted, list):
        wanted = next((one for one in wanted if one != "null"), None)
    if wanted == "object" or (wanted is None and "properties" in schema):
        return _walk_map(value, schema, path, release, reading)
    if wanted == "array":
        if not isinstance(value, list):
            raise _mistyped(reading.kind, value, path, "[]")
        return [_walk(one, schema["items"], f"{path}[{at}]", release, reading) for at, one in enumerate(value)]
    _check_plain(value, wanted, path, reading.kind)
    return value


def _special(name: str, schema: Obj, value: Any, path: str, reading: Reading) -> Any:
    """Types whose schema says less than the server checks; None where there is nothing special."""
    if name.endswith("api.resource.Quantity"):
        if isinstance(value, bool) or not _QUANTITY.match(str(value)):
            raise bad_request(
                f"{_title(reading.kind)}: quantities must match the regular expression "
                "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            )
        return str(value)
    if name.endswith("IntOrString") or schema.get("format") == "int-or-string":
        return value
    if name.endswith(("meta.v1.Time", "meta.v1.MicroTime")) and isinstance(value, str) and not _TIME.match(value):
        raise bad_request(
            f'{_title(reading.kind)}: parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse'
        )
    return None


def _walk_map(value: Any, schema: Obj, path: str, release: str, reading: Reading) -> Any:
    if not isinstance(value, dict):
        raise _mistyped(reading.kind, value, path, "struct")
    properties, found = schema.get("properties"), {}
    more = schema.get("additionalProperties")
    for key, one in value.items():
        where = f"{path}.{key}" if path else key
        if properties and key in properties:
            kept = _walk(one, properties[key], where, release, reading)
            if kept is not None:
                found[key] = kept
        elif isinstance(more, dict):
            found[key] = _walk(one, more, where, release, reading)
        elif properties is None:
            found[key] = one
        else:
            reading.unknown.append(where)
    for key in schema.get("required", ()):
        # Of a status nothing says that a text may not be empty: `imageID` is until a container has its image.
        lacks = found.get(key) is None if path.startswith("status.") else found.get(key) in (None, "")
        if lacks and not (key == "status" or (not path and key in ("metadata", "spec"))):
            reading.missing.append(required(f"{path}.{key}" if path else key))
    return found


def _check_plain(value: Any, wanted: str | None, path: str, kind: Kind) -> None:
    right = {
        "string": lambda: isinstance(value, str),
        "integer": lambda: isinstance(value, int) and not isinstance(value, bool),
        "boolean": lambda: isinstance(value, bool),
        "number": lambda: isinstance(value, int | float) and not isinstance(value, bool),
    }.get(wanted or "")
    if right is not None and not right():
        raise _mistyped(kind, value, path, _GO_TYPES[str(wanted)])


def _mistyped(kind: Kind, value: Any, path: str, wanted: str) -> Exception:
    given = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}[type(value)]
    where = re.sub(r"\[\d+\]", "", path)
    return bad_request(f"{_title(kind)}: json: cannot unmarshal {given} into Go struct field {where} of type {wanted}")


def _title(kind: Kind) -> str:
    return f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'


def unknown_fields(kind: Kind, fields: list[str]) -> Exception:
    """The refusal under strict validation."""
    said = ", ".join(f'unknown field "{one}"' for one in fields)
    return bad_request(f"{_title(kind)}: strict decoding error: {said}")
