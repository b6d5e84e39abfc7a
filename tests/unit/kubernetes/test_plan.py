"""What a manifest becomes on a cluster, and what is refused or ignored there."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from kubernetes_validate import validate

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    DataStore,
    Egress,
    Framework,
    JobSpec,
    NetworkLevel,
    Notify,
    Role,
    Staging,
    StoreType,
)
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_kubernetes.objects.names import NAME, USER
from tests.unit.kubernetes.request_rig import JOB, PLAIN, plan_of, pod_of

HERE = DataStore("here", StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, "digits", "", {"path": "/data"})
PROFILES: dict[str, object] = {
    "profiles": {
        "big": {
            "node_selector": {"pool": "a100"}, "tolerations": ["gpu=a100:NoSchedule"], "priority_class": "high",
            "runtime_class": "nvidia",
        }
    },
    "tolerations": ["team=a"], "node_selector": {"zone": "a"}, "priority_class": "low",
}  # fmt: skip


def test_kubernetes_plan_places_pods_by_profile() -> None:
    pod = pod_of(plan_of(replace(PLAIN, batch=BatchOptions(profile="big")), PROFILES))
    assert pod["nodeSelector"] == {"zone": "a", "pool": "a100"}
    assert [one["key"] for one in pod["tolerations"]] == ["team", "gpu"]
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("high", "nvidia")
    pod = pod_of(plan_of(settings=PROFILES))
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"zone": "a"}, "low")


def test_kubernetes_plan_prefers_manifest_options_over_profile() -> None:
    own = {"node_selector": "pool=v100, disk=ssd", "priority_class": "mine"}
    pod = pod_of(plan_of(replace(PLAIN, batch=BatchOptions(profile="big", kubernetes=own)), PROFILES))
    assert pod["nodeSelector"] == {"zone": "a", "pool": "v100", "disk": "ssd"}
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("mine", "nvidia")


@pytest.mark.parametrize(("settings", "known"), [(PROFILES, "big"), ({}, "none is configured")])
def test_kubernetes_plan_rejects_unknown_profile(settings: dict[str, object], known: str) -> None:
    with pytest.raises(InvalidRequest, match=f"there is no profile 'huge'; known: {known}") as caught:
        plan_of(replace(PLAIN, batch=BatchOptions(profile="huge")), settings)
    assert caught.value.findings[0].path == "batch.profile"


SLURM_ONLY = BatchOptions(
    partition="gpu", account="physics", qos="long", constraint="ib", exclude="n3", nodelist="n[1-2]", requeue=True,
    output="x.txt", priority="TOP", slurm_args=("--exclusive",), mount=Mounting.ALWAYS,
    notify=Notify("a@example.org", ("END",)),
)  # fmt: skip


def test_kubernetes_plan_ignores_slurm_options_with_warning() -> None:
    plan = plan_of(replace(PLAIN, batch=SLURM_ONLY))
    assert plan.objects == plan_of().objects
    told = {warning.partition(":")[0]: warning for warning in plan.warnings}
    named = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "requeue", "output", "priority")
    assert {f"batch.{name}" for name in (*named, "slurm", "mount", "notify")} <= set(told)
    assert told["batch.partition"] == "batch.partition: has no effect on Kubernetes; batch.profile says where pods go"


@pytest.mark.parametrize(("spec", "path", "words"), [
    (replace(PLAIN, batch=BatchOptions(begin="now+1hour")), "batch.begin", "starts as soon as there is room"),
    (replace(PLAIN, batch=BatchOptions(dependency="afterok:1")), "batch.dependency", "use Slurm"),
    (replace(PLAIN, batch=BatchOptions(hold=True)), "batch.hold", "use Slurm"),
    (replace(PLAIN, batch=BatchOptions(staging=Staging.AHEAD)), "batch.staging", "name a claim"),
    (replace(PLAIN, batch=BatchOptions(kubernetes={"queue": "a"})), "batch.kubernetes.queue", "known are"),
    (replace(PLAIN, resources=replace(PLAIN.resources, gpus=0.5)), "gpus", "name a MIG type"),
    (replace(PLAIN, resources=replace(PLAIN.resources, gres={"npu": 1})), "batch.gres", "gpu_resources = {npu"),
    (replace(PLAIN, resources=replace(PLAIN.resources, gres={"a.b/npu:x": 1})), "batch.gres", "its whole name"),
    (replace(PLAIN, framework=Framework("horovod", "0.13", "python3 x.py"), resources=replace(PLAIN.resources,
       learners=2)), "learners", "name a claim on a file system that pods share"),
    (replace(PLAIN, batch=BatchOptions(network=NetworkLevel.EGRESS, egress=(Egress("data.example.org", 443),))),
     "batch.network.allow[0]", "write its IPv4 address"),
    (replace(PLAIN, data_stores=(HERE,)), "data_stores[0].connection.path", "use a data store"),
])  # fmt: skip
def test_kubernetes_plan_rejects_unsupported_request_with_cure(spec: JobSpec, path: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
        plan_of(spec)
    assert caught.value.findings[0].path == path


def test_kubernetes_plan_accepts_mpi_and_ahead_staging_with_volume_claim() -> None:
    mpi = replace(
        PLAIN, framework=Framework("horovod", "0.13", "python3 x.py"), resources=replace(PLAIN.resources, learners=2)
    )
    assert plan_of(mpi, {"claim": "work"}).launch.commands
    assert plan_of(replace(PLAIN, batch=BatchOptions(staging=Staging.AHEAD)), {"claim": "work"})


def test_kubernetes_plan_warns_that_each_learner_runs_script_without_volume_claim() -> None:
    roles = {"batch": Role(1), "node": Role(1, command="take-steps bash job.sh")}
    taking = replace(
        PLAIN, resources=replace(PLAIN.resources, learners=2), batch=BatchOptions(slurm_environment=True, roles=roles)
    )
    alone, shared = plan_of(taking), plan_of(taking, {"claim": "work"})
    told = [any("each learner runs the script" in one for one in plan.warnings) for plan in (alone, shared)]
    assert told == [True, False]
    assert ["FFDL_STEPS" in plan.launch.learner.env for plan in (alone, shared)] == [False, True]


def test_kubernetes_plan_maps_gres_to_configured_resource_name() -> None:
    spec = replace(PLAIN, resources=replace(PLAIN.resources, gres={"npu:310": 2}))
    limits = pod_of(plan_of(spec, {"gpu_resources": {"npu:310": "huawei.com/Ascend310"}}))["containers"][0]["resources"]
    assert limits["limits"]["huawei.com/Ascend310"] == "2"


@pytest.mark.parametrize(("copied", "shared"), [(False, False), (False, True), (True, False)])
def test_kubernetes_plan_keeps_checkpoints_in_volume_of_results(copied: bool, shared: bool) -> None:
    kind = StoreType.S3_DATASTORE if copied else StoreType.MOUNT_VOLUME
    store = DataStore("here", kind, StoreType.HOST_MOUNT, "digits", "out", {"path": "/lab/ada"})
    spec = replace(PLAIN, data_stores=(store,), batch=BatchOptions(checkpoint=Checkpoint(shared=shared)))
    plan = plan_of(spec, {"volumes": {"/lab": "work/projects"}})
    assert plan.launch.checkpoints == f"/lab/ada/out/_wml_checkpoints{'' if shared else '/' + JOB}"
    mounts = {one["mountPath"]: one for one in pod_of(plan)["containers"][0]["volumeMounts"]}
    target = plan.launch.learner.env["CHECKPOINT_DIR"]
    if not shared:
        assert mounts[target]["subPath"] == f"projects/ada/out/_wml_checkpoints/{JOB}"
    assert not any("lost with the pod" in one for one in plan.warnings)


@pytest.mark.parametrize(
    ("stores", "settings", "lost"),
    [
        ((), {}, True),
        ((replace(HERE, connection={"path": "/lab"}),), {"volumes": {"/lab": "work"}}, True),
        ((), {"claim": "work"}, False),
    ],
)
def test_kubernetes_plan_warns_if_nothing_keeps_checkpoints(
    stores: tuple[DataStore, ...], settings: dict[str, object], lost: bool
) -> None:
    plan = plan_of(replace(PLAIN, data_stores=stores), settings)
    assert any("results and checkpoints are lost with the pod" in one for one in plan.warnings) == lost


@pytest.mark.parametrize(
    ("name", "user"),
    [("digits", "alice"), ("Ziffern: {1} über\nzwei", "PHYSIK\\alice"), ("x" * 400, ""), ("1.5", "007")],
)
def test_kubernetes_plan_annotates_job_and_pods_with_manifest_name_and_submitter(name: str, user: str) -> None:
    job: Any = plan_of(replace(PLAIN, name=name), user=user).objects[0]
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert {key: metadata["annotations"].get(key) for key in (NAME, USER)} == {NAME: name, USER: user or None}
        assert name not in metadata["labels"].values(), "labels allow neither blanks nor more than 63 characters"
    validate(job, "1.37", strict=True)


@pytest.mark.parametrize("storage_bytes", [None, 20 * 1000**3])
def test_kubernetes_plan_bounds_ephemeral_storage_by_manifest(storage_bytes: int | None) -> None:
    resources = replace(PLAIN.resources, storage_bytes=storage_bytes)
    (learner,) = pod_of(plan_of(replace(PLAIN, resources=resources)))["containers"]
    wanted = None if storage_bytes is None else str(storage_bytes)
    assert [learner["resources"][part].get("ephemeral-storage") for part in ("requests", "limits")] == [wanted] * 2
