"""The Job of an attempt."""

from __future__ import annotations

from ffdl_kubernetes.objects.names import QUEUE_LABEL, Plain, metadata
from ffdl_kubernetes.objects.pod_template import PodShape, pod_template
from ffdl_kubernetes.settings import KubernetesSettings


def job(shape: PodShape, settings: KubernetesSettings) -> Plain:
    """Suspended: its pods need what is created after it, and owned by it. :func:`release` lets it go.

    A pod that fails fails the Job (`backoffLimit` 0). The policy only classifies: a Job that failed by a disruption
    (eviction, preemption, a lost node) has the reason PodFailurePolicy (kubernetes.io, "Pod failure policy").
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **metadata(shape.token, shape.job_id, shape.attempt),
            **({"annotations": dict(shape.about)} if shape.about else {}),
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": shape.learners,
            "parallelism": shape.learners,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "ttlSecondsAfterFinished": settings.keep_s,
            "template": pod_template(shape, settings),
        },
    }


def release(queue: str) -> Plain:
    """Return the patch that releases a Job: Kueue starts it if there is a queue."""
    if queue:
        return {"metadata": {"labels": {QUEUE_LABEL: queue}}}
    return {"spec": {"suspend": False}}
