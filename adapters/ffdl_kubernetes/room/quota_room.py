"""Whether the quotas of a namespace leave room for a request. Pure.

Source: kubernetes.io, "Resource Quotas": what is counted, and of which pods (scopes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ffdl_kubernetes.room.amounts import NOTHING, Amounts, added, amount_text, asked_of, read_amounts

Plain = Mapping[str, Any]
_PLURALS = {
    "Job": ("count/jobs.batch",),
    "ConfigMap": ("configmaps", "count/configmaps"),
    "Secret": ("secrets", "count/secrets"),
    "Service": ("services", "count/services"),
    "NetworkPolicy": ("count/networkpolicies.networking.k8s.io",),
}
_OWN = {"Terminating": True, "NotTerminating": False, "BestEffort": False, "NotBestEffort": True}


def lacking(objects: Sequence[Plain], quotas: Sequence[Plain], freed: Amounts) -> str:
    """What keeps `objects` from being made, in words ("" = nothing). `freed` is what the Job gives back whose place
    they take, under the names that quotas have."""
    need = needs_of(objects)
    job = next((one for one in objects if one["kind"] == "Job"), None)
    for quota in quotas:
        if job is not None and not _is_for(quota, job["spec"]["template"]["spec"]):
            continue
        status = quota.get("status") or {}
        hard = read_amounts(status.get("hard") or quota.get("spec", {}).get("hard"))
        used = read_amounts(status.get("used"))
        for name, most in sorted(hard.items()):
            left = most - used.get(name, NOTHING) + freed.get(name, NOTHING)
            if need.get(name, NOTHING) > left:
                shown = f"{amount_text(name, max(left, NOTHING))} {name} left of {amount_text(name, most)}"
                fate = "it would never start" if need[name] > most else "it would wait until others end"
                asked = amount_text(name, need[name])
                return f"quota {quota['metadata']['name']} has {shown}, and it asks for {asked}: {fate}"
    return ""


def never(job: Plain, name: str, quotas: Sequence[Plain]) -> tuple[str, str, str] | None:
    """What of the quota `name` the pods of a Job together never get, whoever else uses it (of one pod it may have
    enough): resource, what the quota has, what the Job asks for."""
    need = needs_of([{**job, "kind": "Job"}])
    for quota in quotas:
        hard = read_amounts((quota.get("status") or {}).get("hard") or quota.get("spec", {}).get("hard"))
        for resource, most in sorted(hard.items()):
            if quota["metadata"]["name"] == name and need.get(resource, NOTHING) > most:
                return resource, amount_text(resource, most), amount_text(resource, need[resource])
    return None


def needs_of(objects: Sequence[Plain]) -> dict[str, Decimal]:
    """What they count for, under the names that quotas have."""
    counted = [{name: Decimal(1)} for one in objects for name in _PLURALS.get(str(one["kind"]), ())]
    pods: list[dict[str, Decimal]] = []
    for one in objects:
        if one["kind"] == "Job":
            count, spec = Decimal(int(one["spec"].get("completions") or 1)), one["spec"]["template"]["spec"]
            pods.append({name: value * count for name, value in needs_of_pod(spec).items()})
    return added([*counted, *pods])


def needs_of_pod(spec: Plain) -> dict[str, Decimal]:
    """The same of one pod."""
    asked, most = asked_of(spec), asked_of(spec, limits=True)
    plain = {name: value for name, value in asked.items() if name in ("cpu", "memory", "ephemeral-storage")}
    return {
        "pods": Decimal(1),
        "count/pods": Decimal(1),
        **plain,
        **{f"requests.{name}": value for name, value in asked.items()},
        **{f"limits.{name}": value for name, value in most.items()},
    }


def _is_for(quota: Plain, pod: Plain) -> bool:
    """Whether the quota counts such pods. Those of a priority are taken as if it did: a class may have a default."""
    for scope in quota.get("spec", {}).get("scopes") or ():
        counts = _OWN.get(str(scope), True)
        if scope in ("Terminating", "NotTerminating"):
            counts = (pod.get("activeDeadlineSeconds") is not None) is (scope == "Terminating")
        if not counts:
            return False
    return True
