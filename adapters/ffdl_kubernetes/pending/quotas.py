"""What the quotas of a namespace have for a Job, and what they report. Pure.

Sources: kubernetes.io, "Resource Quotas" (what is counted, and for what pods); the admission plugin ResourceQuota.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ffdl_batch.domain.pending.explanation import Limit, Per
from ffdl_kubernetes.observing.cures import cpu_limits_cure, what_to_do
from ffdl_kubernetes.quantities import NOTHING, QUOTA, amount, amount_text, amounts, asked_of, never_given, read_amounts

Plain = Mapping[str, Any]
_RESOURCE = re.compile(r"(?:requests|limits|count)/?\.?(.+)")


def read_quota(refusal: str) -> Limit | None:
    """Return the quota that refuses pods, with its figures; None if no quota refuses them."""
    match = QUOTA.search(refusal)
    if match is None:
        return None
    asked, used, most = amounts(match["asked"]), amounts(match["used"]), amounts(match["limit"])
    never = never_given(match)
    resource, *more = never or list(asked)
    return Limit(
        "quota",
        f"{plain_name(resource)}{f' (and {len(more)} more)' if more else ''}",
        per=Per.JOB if never else Per.ALL,  # never enough, even if no other job uses it
        name=match["name"],
        most=most.get(resource, ""),
        used=used.get(resource, ""),
        asked=asked[resource],
        cure=what_to_do(refusal[match.end() :]).removeprefix("; "),
    )


def plain_name(resource: str) -> str:
    """Return the resource's name for users."""
    match = _RESOURCE.fullmatch(resource)
    name = match[1] if match is not None else resource
    return {"nvidia.com/gpu": "GPUs", "amd.com/gpu": "GPUs", "cpu": "CPUs"}.get(name, name)


def quota_figures(quotas: Sequence[Plain]) -> dict[str, str]:
    """Return how much of each quota is in use."""
    found: dict[str, str] = {}
    for quota in quotas:
        status = quota.get("status") or {}
        hard = status.get("hard") or quota.get("spec", {}).get("hard") or {}
        for resource, most in sorted(hard.items()):
            used = (status.get("used") or {}).get(resource, "0")
            shown = f"{_shown(resource, used)} of {_shown(resource, most)} in use"
            found[f"quota {quota['metadata']['name']}, {resource}"] = shown
    return found


def _shown(resource: str, text: str) -> str:
    known = amount(text)
    return text if known is None else amount_text(resource, known)


def never_enough(job: Plain, quotas: Sequence[Plain]) -> Limit | None:
    """Return the quota that is too small for all pods of the Job together, even if no other job uses it.

    The quota may be large enough for one pod, so its refusal of a pod does not show this.
    """
    need = needs_of(job)
    for quota in quotas:
        if not _counts(quota, job["spec"]["template"]["spec"]):
            continue
        hard = read_amounts((quota.get("status") or {}).get("hard") or quota.get("spec", {}).get("hard"))
        for resource, most in sorted(hard.items()):
            if (asked := need.get(resource, NOTHING)) > most:
                return Limit(
                    "quota",
                    plain_name(resource),
                    Per.JOB,
                    name=quota["metadata"]["name"],
                    most=amount_text(resource, most),
                    asked=amount_text(resource, asked),
                    cure=cpu_limits_cure(job, most) if resource == "limits.cpu" else "",
                )
    return None


def needs_of(job: Plain) -> dict[str, Decimal]:
    """Return what the Job and its pods count for, under the names that quotas have."""
    count, spec = Decimal(int(job["spec"].get("completions") or 1)), job["spec"]["template"]["spec"]
    asked, most = asked_of(spec), asked_of(spec, limits=True)
    plain = {name: value for name, value in asked.items() if name in ("cpu", "memory", "ephemeral-storage")}
    each = {
        "pods": Decimal(1),
        "count/pods": Decimal(1),
        **plain,
        **{f"requests.{name}": value for name, value in asked.items()},
        **{f"limits.{name}": value for name, value in most.items()},
    }
    return {**{name: value * count for name, value in each.items()}, "count/jobs.batch": Decimal(1)}


def _counts(quota: Plain, pod: Plain) -> bool:
    """Return whether the quota counts such pods. A quota for a priority is assumed to: the class may be the default."""
    ends_itself = pod.get("activeDeadlineSeconds") is not None
    counts = {"Terminating": ends_itself, "NotTerminating": not ends_itself, "BestEffort": False}
    return all(counts.get(str(scope), True) for scope in quota.get("spec", {}).get("scopes") or ())
