"""Whether the quotas of a namespace leave room for a request. Pure.

Source: kubernetes.io, "Resource Quotas": what is counted, and of which pods (scopes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ffdl_kubernetes.pod_resources import NOTHING, Amounts, added, amount_text, asked_of, read_amounts

Plain = Mapping[str, Any]
_PLURALS = {
    "Job": ("count/jobs.batch",),
    "ConfigMap": ("configmaps", "count/configmaps"),
    "Secret": ("secrets", "count/secrets"),
    "Service": ("services", "count/services"),
    "NetworkPolicy": ("count/networkpolicies.networking.k8s.io",),
}


def lacking(objects: Sequence[Plain], quotas: Sequence[Plain], freed: Amounts) -> str:
    """What keeps `objects` from being made, in words ("" = nothing). `freed` is what the Job gives back whose place
    they take, under the names that quotas have."""
    need = needs_of(objects)
    for quota in _for(objects, quotas):
        used = read_amounts((quota.get("status") or {}).get("used"))
        for name, most in _hard(quota):
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
    objects = [{**job, "kind": "Job"}]
    need = needs_of(objects)
    for quota in _for(objects, [one for one in quotas if one["metadata"]["name"] == name]):
        for resource, most in _hard(quota):
            if need.get(resource, NOTHING) > most:
                return resource, amount_text(resource, most), amount_text(resource, need[resource])
    return None


def needs_of(objects: Sequence[Plain]) -> dict[str, Decimal]:
    """What they and their pods count for, under the names that quotas have."""
    pods: list[dict[str, Decimal]] = []
    for one in objects:
        if one["kind"] == "Job":
            count, spec = Decimal(int(one["spec"].get("completions") or 1)), one["spec"]["template"]["spec"]
            pods.append({name: value * count for name, value in needs_of_pod(spec).items()})
    return added([counts_of(objects), *pods])


def counts_of(objects: Sequence[Plain]) -> dict[str, Decimal]:
    """What they themselves count for, without pods."""
    return added({name: Decimal(1)} for one in objects for name in _PLURALS.get(str(one["kind"]), ()))


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


def _hard(quota: Plain) -> list[tuple[str, Decimal]]:
    """Resource and the most of it, in order."""
    return sorted(read_amounts((quota.get("status") or {}).get("hard") or quota.get("spec", {}).get("hard")).items())


def _for(objects: Sequence[Plain], quotas: Sequence[Plain]) -> list[Plain]:
    """The quotas that count `objects`, which are of one job."""
    job = next((one for one in objects if one["kind"] == "Job"), None)
    return [one for one in quotas if job is None or _is_for(one, job["spec"]["template"]["spec"])]


def _is_for(quota: Plain, pod: Plain) -> bool:
    """Whether the quota counts such pods. Those of a priority are taken as if it did: a class may have a default."""
    ends_itself = pod.get("activeDeadlineSeconds") is not None
    counts = {"Terminating": ends_itself, "NotTerminating": not ends_itself, "BestEffort": False}
    return all(counts.get(str(scope), True) for scope in quota.get("spec", {}).get("scopes") or ())
