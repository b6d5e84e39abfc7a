"""The ways to patch an object."""

from __future__ import annotations

from typing import Any

from tests.fakes.kubernetes.kinds import Obj, clone
from tests.fakes.kubernetes.refusals import unsupported_media

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
KNOWN = (MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH, "application/apply-patch+cbor")

_MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "env": "name", "volumes": "name",
    "volumeMounts": "mountPath", "ports": "containerPort", "conditions": "type", "ownerReferences": "uid",
    "imagePullSecrets": "name", "hostAliases": "ip", "containerStatuses": None, "taints": "key",
}  # fmt: skip
"""Lists that strategic merges know by a key of their elements; the others are replaced."""


def patched(obj: Obj, patch: Any, media: str) -> Obj:
    """The object with the patch applied."""
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
