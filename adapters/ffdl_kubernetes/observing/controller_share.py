"""Finds the part of the controller beside each learner in an amount that is too large. Pure.

Sources of the wordings: the admission plugins LimitRanger (`limitranger/admission.go`) and ResourceQuota.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ffdl_kubernetes.objects.names import CONTROLLER
from ffdl_kubernetes.pod_resources import NOTHING, amount_text, read_amounts
from ffdl_kubernetes.quantities import QUOTA, amount, amounts, never_given

Plain = Mapping[str, Any]
_RANGE = re.compile(
    r"(?P<bound>maximum|minimum) (?P<name>\S+) usage per (?P<kind>Container|Pod) is (?P<most>[^,]+), "
    r"but (?P<part>limit|request) is (?P<asked>[^\s,.\]]+)"
)
SETTINGS = {
    "cpu": "controller_cpus and controller_cpu_limit",
    "memory": "controller_memory_bytes",
    "ephemeral-storage": "controller_storage_bytes",
}
"""Of ``[backend.kubernetes]``, by resource."""


def name_controllers_part(job: Plain | None, refusal: str) -> str:
    """Return the refusal of a Job's pods with what of it is the controller's, and the settings for that."""
    if job is None:
        return refusal
    containers = {str(one["name"]): one.get("resources") or {} for one in _containers(job)}
    own = containers.pop(CONTROLLER, {})
    if (found := _RANGE.search(refusal)) is not None:
        return refusal + _of_range(found, own, list(containers.values()))
    if (quota := QUOTA.search(refusal)) is not None:
        asked, most = amounts(quota["asked"]), amounts(quota["limit"])
        for name in never_given(quota):
            part = _part(name, own)
            if part and (amount(asked[name]) or NOTHING) - part <= (amount(most[name]) or NOTHING):
                return refusal + _named(name.rpartition(".")[2], part)
    return refusal


def _of_range(found: re.Match[str], own: Plain, others: list[Plain]) -> str:
    name, asked, most = found["name"], amount(found["asked"]), amount(found["most"])
    key = f"{found['part']}s.{name}"
    part = _part(key, own)
    if asked is None or most is None or not part:
        return ""
    is_own = asked == part and all(_part(key, one) != asked for one in others)
    if found["kind"] == "Pod":
        is_own = found["bound"] == "maximum" and asked - part <= most
    return _named(name, part) if is_own else ""


def _part(key: str, resources: Plain) -> Decimal:
    """Return what a container has of ``limits.cpu``, ``requests.memory``, or ``memory``, which is a request."""
    kind, _, name = key.rpartition(".")
    return read_amounts(resources.get(kind or "requests")).get(name, NOTHING)


def _named(resource: str, part: Decimal) -> str:
    setting = SETTINGS.get(resource, "controller_*")
    return f" (the controller's part is {amount_text(resource, part)}: {setting} in [backend.kubernetes])"


def _containers(job: Plain) -> list[Plain]:
    pod = job["spec"]["template"]["spec"]
    return [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
