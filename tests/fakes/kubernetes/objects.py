"""What all objects have: names, labels, owners, conditions."""

from __future__ import annotations

import marshal
from datetime import UTC, datetime
from typing import Any

from tests.fakes.kubernetes.kinds import Key, Obj


def clone(value: Any) -> Any:
    return marshal.loads(marshal.dumps(value))


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Obj) -> str:
    return str(obj["metadata"].get("namespace", ""))


def key_of(obj: Obj) -> Key:
    return namespace_of(obj), name_of(obj)


def labels_of(obj: Obj) -> dict[str, str]:
    return dict(obj["metadata"].get("labels") or {})


def annotations_of(obj: Obj) -> dict[str, str]:
    return dict(obj["metadata"].get("annotations") or {})


def owners_of(obj: Obj) -> list[Obj]:
    return list(obj["metadata"].get("ownerReferences") or [])


def finalizers_of(obj: Obj) -> list[str]:
    return list(obj["metadata"].get("finalizers") or [])


def is_deleted(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def containers_of(spec: Obj) -> list[Obj]:
    """All containers of a pod's spec, in the order in which they start."""
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def is_over(pod: Obj) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def condition_of(obj: Obj, name: str) -> Obj | None:
    return next((one for one in obj.get("status", {}).get("conditions") or [] if one["type"] == name), None)


def is_true(obj: Obj, name: str) -> bool:
    found = condition_of(obj, name)
    return found is not None and found["status"] == "True"


def set_condition(obj: Obj, name: str, status: str, reason: str = "", message: str = "") -> None:
    """Set a condition in place; its time changes with its status alone."""
    found = condition_of(obj, name)
    if found is None:
        found = {"type": name, "status": ""}
        obj.setdefault("status", {}).setdefault("conditions", []).append(found)
    if found["status"] != status:
        found.update(status=status, lastTransitionTime=now())
    for key, value in (("reason", reason), ("message", message)):
        if value:
            found[key] = value
        else:
            found.pop(key, None)


def disrupt(pod: Obj, reason: str, message: str) -> None:
    """Write into a pod that it is ended by no fault of its own."""
    set_condition(pod, "DisruptionTarget", "True", reason, message)
