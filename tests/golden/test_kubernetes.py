"""What is sent to a cluster, byte for byte, as ``--dry-run`` prints it. ``--update-golden`` rewrites the files.

Each is held against the schemas of Kubernetes' own releases and against the Pod Security level ``restricted``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from ffdl_batch.config.images import resolve_oci_image
from ffdl_batch.config.settings import Settings, builtin_frameworks
from ffdl_batch.domain.job.array import ArrayId, expand
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    DataStore,
    Egress,
    ImageLocation,
    JobSpec,
    NetworkLevel,
    Placement,
    Role,
    StoreType,
)
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.submission.dry_run import yaml_documents
from tests.fakes.kubernetes.kinds import KINDS
from tests.fakes.kubernetes.pod_security import violations
from tests.fakes.kubernetes.schemas import read
from tests.unit.kubernetes.request_rig import PLAIN, ROOT, plan_of

HERE = Path(__file__).parent / "kubernetes"
KIND = {(kind.api_version, kind.kind): kind for kind in KINDS}
RELEASES = ("1.29", "1.33", "1.36", "1.37")
SITE = Settings(state_dir=ROOT.path, jobs_dir=ROOT.path, frameworks=builtin_frameworks())
CLUSTER: dict[str, object] = {
    "controller_image": "registry.example.org/ffdl-batch-controller:1", "network_policies": "enforced",
    "gpu_types": {"a100": "NVIDIA-A100-SXM4-80GB"}, "tolerations": ["nvidia.com/gpu:NoSchedule"],
    "profiles": {"big": {"node_selector": {"pool": "a100"}, "priority_class": "high", "runtime_class": "nvidia"}},
}  # fmt: skip
CLAIMED: dict[str, object] = {**CLUSTER, "claim": "work", "volumes": {"/shared/datasets": "datasets/public"}}
FOUR = replace(PLAIN, resources=replace(PLAIN.resources, learners=4, gpus=1))
BUCKETS = DataStore(
    "s3", StoreType.MOUNT_COS, StoreType.MOUNT_COS, "digits/train", "trained",
    {"auth_url": "https://s3.example.org", "region": "eu-de", "user_name": "${secret:s3-user}",
     "password": "${secret:s3-password}"},
)  # fmt: skip
DIRECTORY = DataStore(
    "store", StoreType.MOUNT_VOLUME, StoreType.HOST_MOUNT, "digits", "trained", {"path": "/shared/datasets"}
)
LOCATION = ImageLocation("registry.example.org", "team", "", "${secret:hub-user}", "${secret:hub-token}")


def batch(**words: Any) -> JobSpec:
    """The plain job with these words under ``batch:``."""
    return replace(PLAIN, batch=BatchOptions(**words))


CASES: Mapping[str, tuple[JobSpec, dict[str, object]]] = {
    "plain": (PLAIN, {}),
    "gpus-of-a-type-and-other-accelerators": (
        replace(PLAIN, resources=replace(
            PLAIN.resources, gpus=2, gpu_type="a100", gres={"amd.com/gpu": 2}, storage_bytes=50 * 1000**3
        )),
        CLUSTER,
    ),
    "learners-spread": (replace(FOUR, batch=BatchOptions(placement=Placement.SPREAD)), CLUSTER),
    "learners-packed": (replace(FOUR, batch=BatchOptions(placement=Placement.PACK, time_s=7200)), CLAIMED),
    "roles": (replace(FOUR, batch=BatchOptions(roles={
        "chief": Role(), "worker": Role(2, command="python3 worker.py --braces {}"),
        "ps": Role(1, cpus=1, gpus=0, memory_bytes=2 * 1000**3, service=True),
    })), CLUSTER),
    "network-none": (batch(network=NetworkLevel.NONE), CLUSTER),
    "network-job": (batch(network=NetworkLevel.JOB), CLUSTER),
    "network-egress": (
        batch(network=NetworkLevel.EGRESS, egress=(Egress("192.0.2.7", 443), Egress("198.51.100.9", 8443))),
        CLUSTER,
    ),
    "network-host": (batch(network=NetworkLevel.HOST), CLUSTER),
    "buckets": (replace(PLAIN, data_stores=(BUCKETS,)), CLUSTER),
    "buckets-by-a-claim": (replace(PLAIN, data_stores=(BUCKETS,)), CLAIMED),
    "buckets-brought-ahead": (replace(PLAIN, data_stores=(BUCKETS,)), CLAIMED),
    "directories": (replace(PLAIN, data_stores=(DIRECTORY,)), CLAIMED),
    "profile": (batch(profile="big", checkpoint=Checkpoint(grace_s=300)), CLUSTER),
    "own-words": (
        batch(kubernetes={"priority_class": "urgent", "runtime_class": "kata", "node_selector": "disk=ssd"}),
        {**CLUSTER, "queue": "team-a", "scheduler": "gangs", "shm_bytes": 1 << 30},
    ),
    "private-image": (
        replace(PLAIN, framework=replace(PLAIN.framework, image_location=LOCATION)),
        {**CLUSTER, "image_pull_secrets": ["team"]},
    ),
    "variables-and-secrets": (
        replace(PLAIN, batch=BatchOptions(env={"LR": "0.1"}, secrets={"HF_TOKEN": "${secret:hub}"})),
        CLUSTER,
    ),
    "element-of-an-array": (expand(batch(array="3-5"), ArrayId("array-0a1b2c3d4"))[0], CLUSTER),
}  # fmt: skip


STAGING = {"buckets-brought-ahead"}
"""Of an attempt that only brings data."""


def planned(name: str) -> LaunchPlan:
    """As the services plan it."""
    spec, settings = CASES[name]
    environ = {**spec.batch.env, "EXPORTED": "planted-value"}
    image = resolve_oci_image(SITE, spec.framework)
    return plan_of(spec, settings, image=image, user_env=environ, only_stages=name in STAGING)


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_dry_run_text_parses_to_planned_objects_and_matches_golden_files(
    name: str, update_golden: bool
) -> None:
    plan = planned(name)
    documents = [*yaml_documents(plan.objects)]
    assert [yaml.safe_load(one) for one in documents] == [*plan.objects]
    text = "".join(f"---\n{document}" for document in documents).replace(plan.launch.written_by, "kubernetes RELEASE")
    path = HERE / f"{name}.yaml"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_golden_files_match_schemas_of_all_releases_and_restricted_pod_security(name: str) -> None:
    documents = [*yaml.safe_load_all((HERE / f"{name}.yaml").read_text())]
    for document in documents:
        for release in RELEASES:
            _, found = read(KIND[document["apiVersion"], document["kind"]], document, release)
            assert (found.unknown, found.missing) == ([], [])
    jobs = [one for one in documents if one["kind"] == "Job"]
    assert jobs and not any(violations("restricted", one["spec"]["template"]) for one in jobs)


@pytest.mark.parametrize("name", ["plain", "roles"])
def test_kubernetes_golden_files_pass_independent_validator(name: str) -> None:
    for document in yaml.safe_load_all((HERE / f"{name}.yaml").read_text()):
        validate(document, RELEASES[-1], strict=True)


def test_kubernetes_golden_files_hide_secret_and_variable_values() -> None:
    for path in HERE.glob("*.yaml"):
        text = path.read_text()
        assert "planted-value" not in text, path.name
        assert "(not shown)" in text, path.name


def test_kubernetes_golden_files_match_case_list() -> None:
    assert {path.stem for path in HERE.glob("*")} == set(CASES)
