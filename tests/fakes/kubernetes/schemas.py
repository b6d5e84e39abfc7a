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
from tests.fakes.kubernetes.refusals import Cause, Refusal, bad_request, required

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "boolean": (bool,), "number": (int, float), "object": (dict,),
    "array": (list,),
}  # fmt: skip
_QUANTITY = re.compile(r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$")
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")


@dataclass
class Reading:
    """What was found on the way through an object."""

    kind: Kind
    unknown: list[str] = field(default_factory=list)
    missing: list[Cause] = field(default_factory=list)

    def refusal(self, why: str) -> Refusal:
        kind = self.kind
        return bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


@cache
def _load(release: str, name: str) -> Obj:
    found = importlib.util.find_spec("kubernetes_validate")
    assert found is not None and found.submodule_search_locations is not None, "kubernetes-validate is not installed"
    folder = Path(found.submodule_search_locations[0]) / "kubernetes-json-schema" / f"v{release}.0-local"
    return dict(json.loads((folder / f"{name}.json").read_text()))


def read(kind: Kind, obj: Obj, release: str) -> tuple[Obj, Reading]:
    """Return the object without unknown fields, and what was found. Refuses a wrong type, as decoding does."""
    reading, group = Reading(kind), kind.group.split(".")[0]
    schema = _load(release, "-".join(filter(None, [kind.kind.lower(), group, kind.version])))
    return _walk(obj, schema, "", release, reading), reading


def _walk(value: Any, schema: Obj, path: str, release: str, reading: Reading) -> Any:
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    if name:
        schema = _load(release, "_definitions")["$defs"][name]
    if name.endswith("api.resource.Quantity"):
        if isinstance(value, bool) or not _QUANTITY.match(str(value)):
            raise reading.refusal(f"{path}: quantities must match the regular expression '{_QUANTITY.pattern}'")
        return str(value)
    if name.endswith("IntOrString") or schema.get("format") == "int-or-string" or value is None:
        return value
    if name.endswith(("meta.v1.Time", "meta.v1.MicroTime")) and isinstance(value, str) and not _TIME.match(value):
        raise reading.refusal(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse')
    wanted = schema.get("type") or ("object" if "properties" in schema else None)
    if isinstance(wanted, list):
        wanted = next((one for one in wanted if one != "null"), None)
    if wanted and (not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")):
        given = type(value).__name__
        raise reading.refusal(f"json: cannot unmarshal {given} into Go struct field {path} of type {wanted}")
    if wanted == "array":
        return [_walk(one, schema["items"], f"{path}[{at}]", release, reading) for at, one in enumerate(value)]
    return _walk_map(value, schema, path, release, reading) if wanted == "object" else value


def _walk_map(value: Obj, schema: Obj, path: str, release: str, reading: Reading) -> Obj:
    properties, more = schema.get("properties"), schema.get("additionalProperties")
    found: Obj = {}
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
        # In a status a text may be empty: `imageID` is until a container has its image.
        lacks = found.get(key) is None if path.startswith("status.") else found.get(key) in (None, "")
        if lacks and not (key == "status" or (not path and key in ("metadata", "spec"))):
            reading.missing.append(required(f"{path}.{key}" if path else key))
    return found
