"""Names and labels of the objects of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffdl_batch.domain.launch.pod_protocol import ANNOTATIONS, ATTEMPT_LABEL, JOB_LABEL

MANAGER_LABEL, MANAGER = "app.kubernetes.io/managed-by", "ffdl-batch"
INDEX = "batch.kubernetes.io/job-completion-index"
"""Label of the pods of an Indexed Job (since 1.28), and their annotation."""
STORES_LABEL = f"{ANNOTATIONS}/stores"
STORING = "-store"
"""Suffix of a token: the Job that stores the pending uploads of that attempt, and the objects that it owns."""
NAME, USER = f"{ANNOTATIONS}/name", f"{ANNOTATIONS}/submitted-by"
"""Annotations of Jobs and pods: the manifest's name of the job, and the user who submitted it. A label's value could
not hold every name."""
POLICY_LABEL = f"{ANNOTATIONS}/network"
"""Label of pods that share a NetworkPolicy: its name."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CONTROLLER, LEARNER = "controller", "learner"
"""Names of the containers of a pod."""

Plain = dict[str, object]


def labels(job_id: str, attempt: int) -> dict[str, str]:
    """Return the labels of every object of an attempt, including its pods."""
    return {MANAGER_LABEL: MANAGER, JOB_LABEL: job_id, ATTEMPT_LABEL: str(attempt)}


def of_storing(found: dict[str, str]) -> dict[str, str]:
    """Return the labels of the objects that store the pending uploads of an attempt."""
    return {**found, STORES_LABEL: "true"}


def metadata(name: str, job_id: str, attempt: int) -> Plain:
    """Return the metadata of an object. `name` is the token, or begins with it. The owner is added later."""
    return {"name": name, "labels": labels(job_id, attempt)}


def is_shared(thing: Mapping[str, Any]) -> bool:
    """Return whether an object belongs to no attempt: no Job owns it, and several attempts need it."""
    return JOB_LABEL not in thing["metadata"]["labels"]


def placed(thing: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return the object with its namespace."""
    meta = thing["metadata"]
    place = {"namespace": namespace}
    return {**thing, "metadata": {"name": meta["name"], **place, **meta, **place}}


def model_part(token: str, number: int) -> str:
    """Return the name of the ConfigMap with part `number`, from 0, of the model archive."""
    return f"{token}-model-{number}"


def image_secret(token: str) -> str:
    """Return the name of the Secret with credentials of the image's registry."""
    return f"{token}-image"
