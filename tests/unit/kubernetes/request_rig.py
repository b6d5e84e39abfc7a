"""Requests for plans of a cluster, without one."""

from __future__ import annotations

from typing import Any

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.backend_facts import BackendFacts, PartitionShape
from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import Framework, JobSpec, NetworkLevel, Resources
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.runtimes.learner_start import staging_arguments
from ffdl_kubernetes.planning.launch_plan import make_plan
from ffdl_kubernetes.settings import KubernetesSettings, read_settings, settle

JOB = JobId("training-0a1b2c3d4")
ROOT = Root("/home/alice/ffdl")
PYTHON = "/usr/bin/python3"
FACTS = BackendFacts(
    partitions=(PartitionShape("team-vision", is_default=True),),
    network_levels=frozenset({NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS, NetworkLevel.HOST}),
    version="Kubernetes v1.36.0",
    python=PYTHON,
    controller=("-I", "-m", "ffdl_batch.controller"),
    staging=staging_arguments(PYTHON),
    pulls_images=True,
)
PLAIN = JobSpec(
    "digits",
    Framework("pytorch", "2.5", "python3 train.py --epochs 3"),
    resources=Resources(cpus=2, memory_bytes=4 * 1000**3),
    base_dir="/home/alice",
)


def request_of(spec: JobSpec = PLAIN, **changes: Any) -> LaunchRequest:
    """An attempt of that job; `changes` are fields of the request."""
    attempt = int(changes.pop("attempt", 1))
    directory = ROOT.job(JOB)
    fields: dict[str, Any] = {
        "job_id": JOB, "attempt": attempt, "token": attempt_token(JOB, attempt), "spec": spec, "job_dir": directory,
        "attempt_dir": directory.attempt(attempt), "doorbell": ROOT.doorbell, "facts": FACTS,
        "image": "pytorch/pytorch:2.5", "user": "alice", **changes,
    }  # fmt: skip
    return LaunchRequest(**fields)


def plan_of(spec: JobSpec = PLAIN, settings: dict[str, object] | None = None, **changes: Any) -> LaunchPlan:
    """What is sent under these settings of the backend."""
    return make_plan(request_of(spec, **changes), settled(settings or {}))


def settled(raw: dict[str, object]) -> KubernetesSettings:
    """As the adapter of a daemon of alice's has them."""
    return settle(read_settings(raw), "alice", 1000)


def pod_of(plan: LaunchPlan) -> Any:
    """``spec`` of the pods."""
    job: Any = plan.objects[0]
    return job["spec"]["template"]["spec"]
