"""The pods of a Job: how they are made, and what its failure policy says of them."""

from __future__ import annotations

from tests.fakes.kubernetes.kinds import Obj, annotations_of, clone, name_of, namespace_of
from tests.fakes.kubernetes.registry import random_suffix

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


def job_pod(job: Obj, index: int | None) -> Obj:
    """A pod of the Job, for an index or for none."""
    template: Obj = clone(job["spec"]["template"])
    metadata, spec, name = template["metadata"], template["spec"], name_of(job)
    metadata["finalizers"] = [*(metadata.get("finalizers") or []), TRACKING]
    metadata["namespace"] = namespace_of(job)
    metadata["ownerReferences"] = [{
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True,
        "blockOwnerDeletion": True,
    }]  # fmt: skip
    if index is None:
        metadata["name"] = f"{name[:57]}-{random_suffix()}"
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    ending = f"-{index}-"
    metadata["name"] = f"{name[: 63 - len(ending) - 5]}{ending}{random_suffix()}"
    metadata.setdefault("annotations", {})[INDEX] = str(index)
    metadata.setdefault("labels", {})[INDEX] = str(index)
    spec.setdefault("hostname", f"{name}-{index}")
    reference = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']", "apiVersion": "v1"}}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        if not any(one["name"] == "JOB_COMPLETION_INDEX" for one in container.get("env") or []):
            container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": reference})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def index_of(pod: Obj) -> int:
    """Its completion index."""
    return int(annotations_of(pod).get(INDEX, -1))


def failure_rule(job: Obj, pod: Obj) -> tuple[str, str]:
    """What the failure policy says of a failed pod: (action, message); the first rule that matches decides."""
    for at, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        where = f"{namespace_of(pod)}/{name_of(pod)}"
        behind = f"matching {rule['action']} rule at index {at}"
        for pattern in rule.get("onPodConditions") or []:
            for condition in pod["status"].get("conditions") or []:
                if condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True"):
                    return rule["action"], f"Pod {where} has condition {condition['type']} {behind}"
    return "Count", ""


def packed(indexes: set[int]) -> str:
    """As ``completedIndexes`` has them: ``0-2,5``."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
