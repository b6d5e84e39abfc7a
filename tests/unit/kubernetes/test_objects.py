"""Objects of an attempt: the oldest and newest cluster's own schemas take them, and they say what was asked for."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, cast

import pytest
from kubernetes_validate import validate

from ffdl_batch.domain.job.spec import Egress, Placement
from ffdl_batch.domain.launch.network_level import NetworkLevel
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_kubernetes.objects.carried_files import CARRIED_BYTES, carrying, has_room, without_files
from ffdl_kubernetes.objects.job import job, release
from ffdl_kubernetes.objects.names import Plain, is_shared, labels
from ffdl_kubernetes.objects.network_policy import NotAnAddress, Place, Ways, policy, service, shared_policy
from ffdl_kubernetes.objects.pod_files import PART_BYTES, configuration, model_parts, private
from ffdl_kubernetes.objects.pod_template import Mount, PodShape
from ffdl_kubernetes.settings import KubernetesSettings, parse_toleration, read_settings

ID, TOKEN = "training-0a1b2c3d4", "training-0a1b2c3d4-1"
SHAPE = PodShape(
    TOKEN, ID, 1, "registry/pytorch:2.5", ("/bin/sh", "/ffdl-seat/shim.sh"), ("/bin/sh", "-c", "true"),
    mounts=(Mount("attempt-1/state", "/job"), Mount("sets", "/mnt/data", read_only=True, claim="datasets")),
    memory_bytes=8 * 1000**3, gpus=2, gpu_type="a100",
)  # fmt: skip
PLAIN = KubernetesSettings()
RICH = read_settings(
    {
        "claim": "work", "queue": "team-a", "priority_class": "low", "runtime_class": "nvidia", "scheduler": "gangs",
        "gpu_types": {"a100": "NVIDIA-A100-SXM4-80GB"}, "node_selector": {"pool": "gpu"}, "image_pull_secrets": ["r"],
        "tolerations": ["nvidia.com/gpu", "team=a:NoSchedule"], "shm_bytes": 1 << 30,
    }
)  # fmt: skip
RELEASES = ("1.29", "1.37")
OWN = labels(ID, 1)
EGRESS = (Egress("192.0.2.7", 443), Egress("2001:db8::/32", 0))


def objects(shape: PodShape, settings: KubernetesSettings) -> list[Plain]:
    found = [
        job(shape, settings),
        service(TOKEN, ID, 1),
        configuration(TOKEN, ID, 1, {"launch.json": "{}"}),
        private(TOKEN, ID, 1, {"environment.json": "{}"}),
        *model_parts(TOKEN, ID, 1, b"PK"),
        carrying(job(shape, settings), {"launch.json": "{}"}, b"PK"),
        cast("Plain", shared_policy(Ways(NetworkLevel.JOB), settings)),
    ]
    policies = [policy(TOKEN, OWN, Ways(level, EGRESS), settings) for level in NetworkLevel if level != "auto"]
    return found + policies


def template(shape: PodShape, settings: KubernetesSettings = PLAIN) -> Any:
    return cast("Any", job(shape, settings))["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", RELEASES)
def test_kubernetes_objects_pass_schemas_of_supported_releases(version: str) -> None:
    shape = replace(SHAPE, learners=4, placement=Placement.PACK, storage_bytes=1 << 30, gres={"example.com/npu": 1})
    for one in objects(shape, RICH):
        validate(cast("dict[str, Any]", one), version, strict=True)


def test_job_object_is_created_suspended_without_kubernetes_retries() -> None:
    spec = cast("Any", job(replace(SHAPE, learners=3), PLAIN))["spec"]
    assert (spec["suspend"], spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (True, 0, 3, 3)
    assert spec["completionMode"] == "Indexed"
    assert release("") == {"spec": {"suspend": False}}
    assert release("team-a") == {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team-a"}}}


def test_pod_template_requests_devices_by_site_resource_names() -> None:
    (learner,) = template(SHAPE, RICH)["containers"]
    assert learner["resources"]["limits"] == {"memory": "8000000000", "nvidia.com/gpu": "2"}
    assert template(SHAPE, RICH)["nodeSelector"] == {"pool": "gpu", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    parts = read_settings({"gpu_resources": {"1g.10gb": "nvidia.com/mig-1g.10gb"}})
    shape = replace(SHAPE, gpus=1, gpu_type="1g.10gb", gres={"example.com/npu": 3})
    (learner,) = template(shape, parts)["containers"]
    assert learner["resources"]["requests"]["nvidia.com/mig-1g.10gb"] == "1"
    assert learner["resources"]["requests"]["example.com/npu"] == "3"
    assert "nodeSelector" not in template(shape, parts)


@pytest.mark.parametrize("storage_bytes", [1, 10 * 1000**3, None])
def test_pod_template_requests_and_limits_ephemeral_storage_by_manifest(storage_bytes: int | None) -> None:
    pod = template(replace(SHAPE, storage_bytes=storage_bytes, controller_storage_bytes=1 << 30))
    learner, controller = pod["containers"][0]["resources"], pod["initContainers"][0]["resources"]
    amount = None if storage_bytes is None else str(storage_bytes)
    assert [learner[part].get("ephemeral-storage") for part in ("requests", "limits")] == [amount, amount]
    assert [controller[part]["ephemeral-storage"] for part in ("requests", "limits")] == [str(1 << 30)] * 2


def test_pod_template_has_no_ephemeral_storage_of_controller_if_it_is_0() -> None:
    controller = template(SHAPE)["initContainers"][0]["resources"]
    assert all("ephemeral-storage" not in controller[part] for part in ("requests", "limits"))


def test_pod_template_grace_period_covers_checkpoint_and_upload() -> None:
    pod = template(replace(SHAPE, grace_s=100))
    assert pod["terminationGracePeriodSeconds"] == 100 + PLAIN.store_patience_s + 30


def test_pod_template_mounts_job_directory_within_volume_claim() -> None:
    def paths(settings: KubernetesSettings) -> dict[str, str]:
        (learner,) = template(SHAPE, settings)["containers"]
        return {mount["mountPath"]: mount.get("subPath", "") for mount in learner["volumeMounts"]}

    assert paths(PLAIN)["/job"] == "attempt-1/state"
    assert paths(RICH)["/job"] == f"jobs/{ID}/attempt-1/state"
    assert paths(RICH)["/mnt/data"] == paths(PLAIN)["/mnt/data"] == "sets"


@pytest.mark.parametrize(
    ("level", "inward", "outward"),
    [(NetworkLevel.NONE, 0, 0), (NetworkLevel.JOB, 1, 2), (NetworkLevel.EGRESS, 1, 4), (NetworkLevel.HOST, 1, 1)],
)
def test_network_policy_opens_rules_for_its_network_level(level: NetworkLevel, inward: int, outward: int) -> None:
    spec = cast("Any", policy(TOKEN, OWN, Ways(level, EGRESS), PLAIN))["spec"]
    assert spec["podSelector"]["matchLabels"]["ffdl-batch/job"] == ID
    assert (len(spec["ingress"]), len(spec["egress"])) == (inward, outward)
    assert spec["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize(
    ("level", "stores", "inward", "outward"),
    [
        (NetworkLevel.NONE, (), 0, 0), (NetworkLevel.JOB, (), 0, 1), (NetworkLevel.HOST, (), 1, 1),
        (NetworkLevel.HOST, (Place("192.0.2.7", 443),), 1, 1),
    ],
)  # fmt: skip
def test_shared_network_policy_allows_its_level_to_pods_with_its_name(
    level: NetworkLevel, stores: tuple[Place, ...], inward: int, outward: int
) -> None:
    found = cast("Any", shared_policy(Ways(level, stores=stores), PLAIN))
    spec, name = found["spec"], found["metadata"]["name"]
    assert spec["podSelector"] == {"matchLabels": {"ffdl-batch/network": name}}
    assert (len(spec["ingress"]), len(spec["egress"])) == (inward, outward)
    assert is_shared(found) and name.startswith(f"ffdl-batch-{level}-")
    own = cast("Any", job(replace(SHAPE, policy=name), PLAIN))["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= own.items()


@pytest.mark.parametrize("ways", [
    Ways(NetworkLevel.EGRESS, EGRESS), Ways(NetworkLevel.NONE, stores=(Place("192.0.2.7", 443),)),
    Ways(NetworkLevel.JOB, stores=(Place("", 443),)),
])  # fmt: skip
def test_policy_with_destinations_of_one_job_is_not_shared(ways: Ways) -> None:
    assert shared_policy(ways, PLAIN) is None


def test_shared_network_policy_of_other_cluster_dns_has_another_name() -> None:
    other = read_settings({"dns_namespace": "dns"})
    one, two = (cast("Any", shared_policy(Ways(NetworkLevel.JOB), known)) for known in (PLAIN, other))
    assert one["metadata"]["name"] != two["metadata"]["name"]


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_job_carries_files_of_its_pod_until_they_are_removed(size: int) -> None:
    archive, texts = bytes(number % 251 for number in range(size)), {"launch.json": "{}\n", "shim.sh": ":\n"}
    plain = cast("Any", job(SHAPE, PLAIN))
    found = carrying(plain, texts, archive)
    volumes = {one["name"]: one for one in found["spec"]["template"]["spec"]["volumes"]}
    assert volumes.keys() == {one["name"] for one in plain["spec"]["template"]["spec"]["volumes"]}
    values = found["spec"]["template"]["metadata"]["annotations"]
    files = {
        item["path"]: values[item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")]
        for name in ("plan", "model") for item in volumes[name]["downwardAPI"]["items"]
    }  # fmt: skip
    assert base64.b64decode(files.pop("model.zip.base64")) == archive and files == texts
    before = len(values)
    assert len(without_files(found)["spec"]["template"]["metadata"]["annotations"]) == before - 3


@pytest.mark.parametrize(("size", "fits"), [(0, True), (3 * (CARRIED_BYTES // 4) - 3, True), (CARRIED_BYTES, False)])
def test_job_carries_small_model_only(size: int, fits: bool) -> None:
    assert has_room({"launch.json": "{}"}, size) is fits


def test_network_policy_lists_each_allowed_address_once() -> None:
    ways = Ways(NetworkLevel.EGRESS, (Egress("192.0.2.7", 443),), (Place("192.0.2.7", 443), Place("192.0.2.8", 443)))
    rules = cast("Any", policy(TOKEN, OWN, ways, PLAIN))["spec"]["egress"]
    to = [block["cidr"] for rule in rules for one in rule["to"] if (block := one.get("ipBlock"))]
    assert to == ["192.0.2.7/32", "192.0.2.8/32"]


def test_network_policy_rejects_host_name_as_egress() -> None:
    with pytest.raises(NotAnAddress, match=r"host\.example"):
        policy(TOKEN, OWN, Ways(NetworkLevel.EGRESS, (Egress("host.example.org", 443),)), PLAIN)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_model_parts_rebuild_the_archive_in_name_order(size: int) -> None:
    archive = bytes(number % 251 for number in range(size))
    parts = [cast("dict[str, str]", part["binaryData"]) for part in model_parts(TOKEN, ID, 1, archive)]
    names = [name for part in parts for name in part]
    assert names == sorted(names) == [f"model.zip.{number:03d}" for number in range(max(1, -(-size // PART_BYTES)))]
    assert b"".join(base64.b64decode(text) for part in parts for text in part.values()) == archive


@pytest.mark.parametrize(("raw", "said"), [
    ({"image": "x"}, "unknown key 'image'; known: canary_interval_s, claim, context"),
    ({"claim": 3}, "claim is 3; a text is needed"),
    ({"keep_s": -1}, "keep_s is -1; a count is needed"),
    ({"tolerations": "x"}, "a list of texts is needed"),
    ({"volumes": {"data": "claim"}}, "absolute directories are needed"),
    ({"node_selector": {"a": 1}}, "a table of texts is needed"),
    ({"image_pull_policy": "Sometimes"}, "choose Always, IfNotPresent, Never"),
    ({"tolerations": ["a:Never"]}, "write key, key=value or key=value:Effect"),
    ({"controller_image": ""}, "controller_image is empty"),
])  # fmt: skip
def test_kubernetes_settings_reject_invalid_value_with_expected_form(raw: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=r"\[backend\.kubernetes\]") as error:
        read_settings(raw)
    assert said in str(error.value)


@pytest.mark.parametrize(("text", "found"), [
    ("gpu", {"key": "gpu", "operator": "Exists"}),
    ("gpu:NoExecute", {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
    ("gpu=yes:NoSchedule", {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}),
])  # fmt: skip
def test_parse_toleration_accepts_taint_syntax(text: str, found: dict[str, str]) -> None:
    assert parse_toleration(text) == found
