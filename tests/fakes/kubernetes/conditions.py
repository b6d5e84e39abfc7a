"""Conditions in the status of objects."""

from __future__ import annotations

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.store import now


def set_condition(
    obj: Obj, name: str, status: str, reason: str = "", message: str = "", *, probed: bool = True
) -> None:
    """Set a condition in place; its times change with its status alone."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    found = next((one for one in conditions if one["type"] == name), None)
    if found is None:
        found = {"type": name, "status": ""}
        conditions.append(found)
    if found["status"] != status:
        found["lastTransitionTime"] = now()
        if probed:
            found["lastProbeTime"] = now() if obj.get("kind") == "Job" else None
    found["status"] = status
    for key, value in (("reason", reason), ("message", message)):
        if value:
            found[key] = value
        else:
            found.pop(key, None)


def disrupt(pod: Obj, reason: str, message: str) -> None:
    """Say in a pod that it is ended by no fault of its own."""
    set_condition(pod, "DisruptionTarget", "True", reason, message)
