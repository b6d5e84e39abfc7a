"""CPU limits of pods, and refusals of which the controller beside the learner is the cause."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ffdl_batch.domain.job.spec import BatchOptions, JobSpec
from ffdl_batch.runtimes.learner_start import RequestRefused
from ffdl_kubernetes.observing.cures import name_controllers_part
from ffdl_kubernetes.observing.job_states import Beside, observe
from ffdl_kubernetes.pending.node_fit import Node, fit_on, read_request, too_much
from ffdl_kubernetes.pending.quotas import never_enough, read_quota
from ffdl_kubernetes.quantities import needed_cpu_limit, needed_storage
from ffdl_kubernetes.settings import KubernetesSettings
from tests.unit.kubernetes.request_rig import FACTS, PLAIN, plan_of, pod_of

BIG = replace(PLAIN, batch=BatchOptions(profile="big"))


def limit_range(**limits: object) -> dict[str, Any]:
    return {"spec": {"limits": [{"type": "Container", **limits}]}}


def quota(*names: str) -> dict[str, Any]:
    return {"spec": {"hard": dict.fromkeys(names, "8")}}


@pytest.mark.parametrize(("ranges", "quotas", "needed"), [
    ([], [], None),
    ([limit_range(default={"memory": "1Gi"})], [quota("requests.cpu", "limits.memory")], None),
    ([], [quota("limits.cpu")], 0.0),
    ([limit_range(default={"cpu": "500m"})], [quota("limits.cpu")], 0.5),
    ([limit_range(default={"cpu": "4"}), limit_range(default={"cpu": 2})], [], 2.0),
    ([limit_range(max={"cpu": "4"})], [], 0.0),
    ([limit_range(maxLimitRequestRatio={"cpu": "4"})], [], 0.0),
    ([{"spec": {}}], [{"spec": {}}], None),
])  # fmt: skip
def test_needed_cpu_limit_depends_on_limit_ranges_and_quotas(
    ranges: list[Any], quotas: list[Any], needed: float | None
) -> None:
    assert needed_cpu_limit(ranges, quotas) == needed


@pytest.mark.parametrize(("spec", "settings", "needed", "learner", "controller"), [
    (PLAIN, {}, None, None, None),
    (PLAIN, {}, 0.0, "2000m", "1000m"),  # a quota demands limits, and nothing gives one
    (PLAIN, {}, 0.5, "2000m", "500m"),  # the LimitRange's default is below the request
    (PLAIN, {}, 4.0, "4000m", "4000m"),
    (PLAIN, {"cpu_limit": "request"}, None, "2000m", None),
    (PLAIN, {"cpu_limit": "16"}, None, "16000m", None),
    (PLAIN, {"cpu_limit": "500m"}, None, "2000m", None),  # never below the request
    (BIG, {"cpu_limit": "16", "profiles": {"big": {"cpu_limit": "request"}}}, 4.0, "2000m", "4000m"),
    (PLAIN, {"controller_cpu_limit": "2", "controller_cpus": "1"}, 0.5, "2000m", "2000m"),
    (PLAIN, {"controller_cpu_limit": "250m"}, None, None, "250m"),
])  # fmt: skip
def test_kubernetes_plan_sets_cpu_limits_by_settings_profile_and_namespace(
    spec: JobSpec, settings: dict[str, object], needed: float | None, learner: str | None, controller: str | None
) -> None:
    pod = pod_of(plan_of(spec, settings, facts=replace(FACTS, cpu_limit=needed)))
    (own,), (one,) = pod["initContainers"], pod["containers"]
    assert (one["resources"]["limits"].get("cpu"), own["resources"]["limits"].get("cpu")) == (learner, controller)
    assert one["resources"]["requests"]["cpu"] == "2000m"


def test_kubernetes_plan_sets_ephemeral_storage_of_controller() -> None:
    (own,) = pod_of(plan_of(PLAIN, {"controller_storage_bytes": 1 << 27}))["initContainers"]
    for kind in ("requests", "limits"):
        assert own["resources"][kind]["ephemeral-storage"] == str(1 << 27)


DISK = "ephemeral-storage"


@pytest.mark.parametrize(("ranges", "quotas", "needed"), [
    ([], [], None),
    ([], [quota("limits.cpu", "requests.storage")], None),
    *(([], [quota(name)], 0.0) for name in (f"limits.{DISK}", f"requests.{DISK}", DISK)),
    ([limit_range(default={DISK: "10Gi"})], [quota(f"limits.{DISK}")], 10 * 2.0**30),
    ([limit_range(default={DISK: "10Gi"}), limit_range(default={DISK: "2Gi"})], [quota(DISK)], 2 * 2.0**30),
    ([limit_range(defaultRequest={DISK: "1Gi"})], [quota(f"limits.{DISK}")], 0.0),  # it gives no limit
    ([limit_range(defaultRequest={DISK: "1Gi"})], [quota(f"requests.{DISK}")], 2.0**30),
    ([limit_range(default={DISK: "10Gi"})], [], None),
    ([], [{"spec": {"hard": {f"limits.{DISK}": "1"}, "scopes": ["BestEffort"]}}], None),
    ([], [{"spec": {"hard": {f"limits.{DISK}": "1"}, "scopeSelector": {"matchExpressions": []}}}], None),
    ([{"spec": {}}], [{"spec": {}}], None),
])  # fmt: skip
def test_needed_storage_depends_on_limit_ranges_and_quotas(
    ranges: list[Any], quotas: list[Any], needed: float | None
) -> None:
    assert needed_storage(ranges, quotas) == needed


STORED = replace(PLAIN, resources=replace(PLAIN.resources, storage_bytes=5))


@pytest.mark.parametrize(("spec", "settings", "needed", "learner", "controller"), [
    (PLAIN, {}, None, None, None),
    (STORED, {}, None, "5", None),
    (STORED, {}, 0.0, "5", str(1 << 30)),
    (PLAIN, {}, 10 * 2.0**30, None, str(1 << 30)),  # the API server gives the learner the LimitRange's default
    (PLAIN, {}, 2.0**20, None, str(1 << 20)),
    (STORED, {"controller_storage_bytes": 1 << 21}, 0.0, "5", str(1 << 21)),
])  # fmt: skip
def test_kubernetes_plan_gives_controller_storage_that_a_quota_demands(
    spec: JobSpec, settings: dict[str, object], needed: float | None, learner: str | None, controller: str | None
) -> None:
    facts = replace(FACTS, default_storage_bytes=needed)
    pod = pod_of(plan_of(spec, settings, facts=facts))
    (own,), (one,) = pod["initContainers"], pod["containers"]
    for part in ("requests", "limits"):
        assert (one["resources"][part].get(DISK), own["resources"][part].get(DISK)) == (learner, controller)
    (idle,) = pod_of(plan_of(spec, settings, facts=facts, only_stages=True))["containers"]
    assert (DISK in idle["resources"]["limits"]) is bool(controller)


def test_kubernetes_plan_refuses_learner_without_storage_that_a_quota_demands() -> None:
    facts = replace(FACTS, default_storage_bytes=0.0)
    with pytest.raises(RequestRefused) as refused:
        plan_of(PLAIN, facts=facts)
    (finding,) = refused.value.findings
    assert (finding.path, finding.code) == ("storage", "C104")
    assert "a quota of the namespace demands an amount of ephemeral storage" in finding.message
    assert (finding.cure or "").startswith("write storage: 20GB")
    assert plan_of(PLAIN, facts=facts, only_stages=True).objects


RANGE = "[maximum memory usage per Container is 256Mi, but limit is 512Mi]"
MORE = (
    "[maximum memory usage per Container is 300Mi, but limit is 512Mi, "
    "minimum cpu usage per Container is 200m, but request is 100m]"
)
BOTH = (
    "[minimum cpu usage per Container is 200m, but request is 100m, "
    "maximum memory usage per Container is 2Gi, but limit is 4G]"
)
ONLY, TOO = "(only the controller's part is refused: ", "(the controller's part is refused too: "


@pytest.mark.parametrize(("refusal", "named"), [
    (RANGE, f"{ONLY}memory limit 512 MiB, set by controller_memory_bytes)"),
    (MORE, f"{ONLY}memory limit 512 MiB, set by controller_memory_bytes; cpu request 0.1, set by controller_cpus)"),
    (BOTH, f"{TOO}cpu request 0.1, set by controller_cpus)"),
    ("maximum memory usage per Container is 1Gi, but limit is 4G", ""),  # the learner's
    ("minimum cpu usage per Container is 200m, but request is 100m", f"{ONLY}cpu request 0.1, set by"),
    ("maximum cpu usage per Pod is 2, but request is 2100m", f"{ONLY}cpu request 0.1, set by controller_cpus"),
    ("maximum cpu usage per Pod is 1, but request is 2100m", ""),
    ("exceeded quota: q, requested: requests.cpu=2100m, used: requests.cpu=0, limited: requests.cpu=2",
     "(the controller's part is 0.1, set by controller_cpus in [backend.kubernetes])"),
    ("exceeded quota: q, requested: requests.memory=5G, used: requests.memory=0, limited: requests.memory=100Mi",
     "(the controller's part alone is 512 MiB, set by controller_memory_bytes in [backend.kubernetes])"),
    ("exceeded quota: q, requested: requests.cpu=2100m, used: requests.cpu=0, limited: requests.cpu=1", ""),
    ("exceeded quota: q, requested: requests.cpu=2100m, used: requests.cpu=4, limited: requests.cpu=6", ""),
    ("denied by a webhook", ""),
])  # fmt: skip
def test_refusal_names_settings_of_controller_if_its_part_is_too_large(refusal: str, named: str) -> None:
    job: Any = plan_of().objects[0]
    found = name_controllers_part(job, refusal)
    assert found.startswith(refusal) and (found != refusal) is bool(named) and named in found
    assert name_controllers_part(None, refusal) == refusal
    seen = observe(job | {"spec": {**job["spec"], "suspend": False}}, [], Beside(found))
    assert seen is not None and named in seen.reason


SMALL = replace(PLAIN, resources=replace(PLAIN.resources, cpus=0.4, memory_bytes=512 * 1024**2))


def test_refusal_of_equal_amounts_names_controller_beside_learner() -> None:
    job: Any = plan_of(SMALL).objects[0]
    seen = observe(job | {"spec": {**job["spec"], "suspend": False}}, [], Beside(name_controllers_part(job, RANGE)))
    assert seen is not None and f"{TOO}memory limit 512 MiB, set by controller_memory_bytes)" in seen.reason
    assert "; ask for an amount that the namespace's LimitRange allows, and change what sets" in seen.reason
    seen = observe(job | {"spec": {**job["spec"], "suspend": False}}, [], Beside(name_controllers_part(job, MORE)))
    assert seen is not None and TOO in seen.reason


@pytest.mark.parametrize(("settings", "most", "named"), [
    ({}, "1", "the controller has 1 and requests 0.1, the learner has 1 and requests 0.4"),
    ({"cpu_limit": "request"}, "1", "the controller has 1 and requests 0.1, the learner has 0.4 and requests 0.4"),
    ({}, "400m", ""),  # too little for the requests
])  # fmt: skip
def test_quota_of_cpu_limits_names_settings_of_limits(settings: dict[str, object], most: str, named: str) -> None:
    job: Any = plan_of(SMALL, settings, facts=replace(FACTS, cpu_limit=1.0)).objects[0]
    asked = "2" if not settings else "1400m"
    refusal = f"exceeded quota: q, requested: limits.cpu={asked}, used: limits.cpu=0, limited: limits.cpu={most}"
    found = name_controllers_part(job, refusal)
    assert ("CPU limits are above the requests" in found) is bool(named) and named in found
    seen = observe(job | {"spec": {**job["spec"], "suspend": False}}, [], Beside(found))
    assert seen is not None and ('set cpu_limit = "request" and a lower controller' in seen.reason) is bool(named)
    limit = read_quota(found)
    assert limit is not None and limit.cure.startswith("lower the CPU limits, not the request") is bool(named)
    quotas = [{"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": most}}}]
    known = never_enough(job, quotas)
    assert known is not None and known.cure.startswith("lower the CPU limits, not the request") is bool(named)
    two = never_enough({"spec": {**job["spec"], "completions": 3}}, quotas)
    assert two is not None and not two.cure  # the requests of three learners are too much


@pytest.mark.parametrize(("cpus", "named"), [("2", True), ("1", False)])
def test_capacity_evidence_names_controller_if_node_would_hold_learner_alone(cpus: str, named: bool) -> None:
    amounts = {"cpu": Decimal(cpus), "memory": Decimal(1 << 40), "pods": Decimal(9)}
    job: Any = plan_of().objects[0]
    said = too_much(fit_on((Node("n1", {}, amounts),), read_request(job)), KubernetesSettings())
    assert "each learner asks for 2.1 CPUs" in said
    assert ("lower controller_cpus or controller_memory_bytes" in said) is named
