"""The ways to patch an object."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.fakes.kubernetes.kinds import Obj, clone
from tests.fakes.kubernetes.refusals import Refusal, bad_request, unsupported_media

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
KNOWN = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH, "application/apply-patch+cbor")

_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "env": "name", "volumes": "name",
    "volumeMounts": "mountPath", "ports": "containerPort", "conditions": "type", "ownerReferences": "uid",
    "imagePullSecrets": "name", "hostAliases": "ip", "containerStatuses": None, "taints": "key",
}  # fmt: skip
"""Lists that strategic merges know by a key of their elements; the others are replaced."""


def patched(obj: Obj, patch: Any, media: str) -> Obj:
    """The object with the patch applied."""
    if media == JSON_PATCH:
        return _json_patch(clone(obj), patch)
    if media == MERGE_PATCH:
        return dict(merge(clone(obj), patch))
    if media in (STRATEGIC_PATCH, APPLY_PATCH):
        return dict(strategic(clone(obj), patch, ""))
    raise unsupported_media(KNOWN)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def strategic(target: Any, patch: Any, field: str) -> Any:
    """As merge; some lists are merged by a key, finalizers as a set, and ``$patch: delete|replace`` is obeyed."""
    if isinstance(patch, dict):
        return _strategic_map(target, patch)
    if isinstance(patch, list) and isinstance(target, list):
        if field == "finalizers":
            return target + [one for one in patch if one not in target]
        if _MERGE_KEYS.get(field):
            return _strategic_list(target, patch, str(_MERGE_KEYS[field]))
    return patch


def _strategic_map(target: Any, patch: Obj) -> Obj:
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.split("/", 1)[1]
            found[name] = [one for one in found.get(name) or [] if one not in value]
        elif key.startswith(("$setElementOrder/", "$retainKeys", "$patch")):
            continue
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = strategic(found.get(key), value, key)
    return found


def _strategic_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    found = list(target)
    for one in patch:
        same = next((at for at, other in enumerate(found) if other.get(key) == one.get(key)), None)
        if one.get("$patch") == "delete":
            found = [other for other in found if other.get(key) != one.get(key)]
        elif same is None:
            found.append(one)
        else:
            found[same] = strategic(found[same], one, "")
    return found


def _json_patch(target: Any, patch: Any) -> Obj:
    if not isinstance(patch, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in patch:
        try:
            target = _operate(target, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            path = operation.get("path") if isinstance(operation, dict) else operation
            raise Refusal(
                422, "Invalid", f"the server rejected our request due to an error in our request: {path}: {error!r}"
            ) from None
    return dict(target)


def _operate(target: Any, operation: Obj) -> Any:
    what, path = operation["op"], _pointer(operation["path"])
    if what == "test":
        if _get(target, path) != operation["value"]:
            raise ValueError("testing value failed")
    elif what in ("add", "replace"):
        if what == "replace":
            _get(target, path)
        return _set(target, path, operation["value"], insert=what == "add")
    elif what == "remove":
        _drop(target, path)
    elif what in ("move", "copy"):
        source = _pointer(operation["from"])
        value = clone(_get(target, source))
        if what == "move":
            _drop(target, source)
        return _set(target, path, value, insert=True)
    else:
        raise ValueError(f"unknown operation {what}")
    return target


def _pointer(text: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _get(target: Any, path: list[str]) -> Any:
    for part in path:
        target = target[int(part)] if isinstance(target, list) else target[part]
    return target


def _set(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _get(target, path[:-1]), path[-1]
    if isinstance(parent, list):
        with contextlib.suppress(ValueError):
            if insert:
                parent.insert(int(last), value)
            else:
                parent[int(last)] = value
            return target
        parent.append(value)
    else:
        parent[last] = value
    return target


def _drop(target: Any, path: list[str]) -> None:
    parent, last = _get(target, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
