"""Which network level a job with data stores gets on a cluster, and what its pods and those that only stage reach."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.job.spec import BatchOptions, DataStore, Egress, JobSpec, NetworkLevel, StoreType
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_kubernetes.objects.network_policy import Place, places_of
from tests.unit.kubernetes.request_rig import PLAIN, plan_of, pod_of

CLAIM: dict[str, object] = {"claim": "work"}
NAMED, ADDRESS = "https://s3.example.org", "http://192.0.2.9:9000"


def job(url: str = NAMED, network: NetworkLevel = NetworkLevel.AUTO, **words: Any) -> JobSpec:
    """Data and results are in a bucket there."""
    connection = {"auth_url": url, "user_name": "${secret:user}", "password": "${secret:key}"}
    store = DataStore("s3", StoreType.S3_DATASTORE, StoreType.S3_DATASTORE, "set", "out", connection)
    return replace(PLAIN, data_stores=(store,), batch=BatchOptions(network=network, **words))


def egress(plan: LaunchPlan) -> list[dict[str, Any]]:
    found: Any = next(one for one in plan.objects if one["kind"] == "NetworkPolicy")
    return list(found["spec"]["egress"])


def is_dns(rule: dict[str, Any]) -> bool:
    return {port["port"] for port in rule.get("ports", ())} == {53}


@pytest.mark.parametrize("network", [NetworkLevel.AUTO, NetworkLevel.NONE, NetworkLevel.JOB])
def test_kubernetes_plan_isolates_learners_from_stores_with_volume_claim(network: NetworkLevel) -> None:
    plan = plan_of(job(network=network), CLAIM)
    assert plan.network.level == ("job" if network is NetworkLevel.JOB else "none")
    assert plan.launch.cut_off and plan.launch.fetches and plan.launch.uploads
    assert not [rule for rule in egress(plan) if rule.get("ports") and not is_dns(rule)]


def secrets(plan: LaunchPlan, name: str) -> set[str]:
    """Names of what the pods of a Job get."""
    objects: list[Any] = list(plan.objects)
    found = [one for one in objects if one["kind"] == "Secret" and one["metadata"]["name"] == name]
    return {key for one in found for key in json.loads(one["stringData"].get("secrets.json", "{}"))}


@pytest.mark.parametrize("own", [{}, {"HUB": "${secret:hub}"}])
def test_kubernetes_plan_withholds_store_secrets_from_isolated_pods(own: dict[str, str]) -> None:
    plan = plan_of(job(secrets=own), CLAIM)
    assert secrets(plan, plan.token) == ({"hub"} if own else set())
    mounts = [one["name"] for one in pod_of(plan)["initContainers"][0]["volumeMounts"]]
    assert ("private" in mounts) is (bool(own) or bool(plan.launch.secrets))
    assert {"user", "key"} <= secrets(plan, f"{plan.token}-store"), "who stores has them"
    assert {"user", "key"} <= secrets(plan_of(job(secrets=own), CLAIM, only_stages=True), plan.token)


@pytest.mark.parametrize(("url", "settings", "rule"), [
    (NAMED, {}, {"ports": [{"protocol": "TCP", "port": 443}]}),
    (ADDRESS, {}, {"to": [{"ipBlock": {"cidr": "192.0.2.9/32"}}], "ports": [{"protocol": "TCP", "port": 9000}]}),
    (NAMED, {"store_networks": ["198.51.100.0/24"]},
     {"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}], "ports": [{"protocol": "TCP", "port": 443}]}),
])  # fmt: skip
def test_kubernetes_plan_lets_staging_pod_reach_only_store_and_dns(
    url: str, settings: dict[str, object], rule: dict[str, object]
) -> None:
    plan = plan_of(job(url), {**CLAIM, **settings}, only_stages=True)
    dns, *rest = egress(plan)
    assert is_dns(dns) and rest == [rule]
    assert plan.launch.only_stages and not plan.launch.cut_off and plan.launch.fetches
    told: Any = plan.objects[1]
    assert decode(told["data"]["launch.json"]) == plan.launch, "the pod is told the same as the daemon"


def test_kubernetes_plan_gives_staging_pod_controller_image_and_no_gpu() -> None:
    spec = replace(job(), resources=replace(PLAIN.resources, gpus=2))
    pod = pod_of(plan_of(spec, CLAIM, only_stages=True))
    (learner,) = pod["containers"]
    assert learner["image"] == pod["initContainers"][0]["image"] == "ffdl-batch-controller"
    assert "nvidia.com/gpu" not in learner["resources"]["requests"]
    assert not [mount for mount in learner["volumeMounts"] if mount["name"] == "work"]


@pytest.mark.parametrize("network", [NetworkLevel.NONE, NetworkLevel.JOB])
def test_kubernetes_plan_rejects_closed_network_level_for_stores_without_volume_claim(network: NetworkLevel) -> None:
    with pytest.raises(InvalidRequest, match=f"at network level {network} pods reach no data store.*name a claim"):
        plan_of(job(network=network))


def test_kubernetes_plan_auto_level_is_tightest_reaching_stores_without_volume_claim() -> None:
    by_address, by_name = plan_of(job(ADDRESS)), plan_of(job(NAMED))
    assert (by_address.network.requested, by_address.network.level) == ("auto", "egress")
    assert {"port": 9000, "protocol": "TCP"} in egress(by_address)[-1]["ports"]
    assert (by_name.network.level, egress(by_name)) == ("host", [{}])
    assert any("without a claim each pod asks the data stores itself" in one for one in by_name.warnings)
    by_networks = plan_of(job(NAMED), {"store_networks": ["198.51.100.0/24"]})
    assert by_networks.network.level == "egress"


def test_kubernetes_plan_rejects_level_looser_than_site_minimum_without_volume_claim() -> None:
    with pytest.raises(InvalidRequest, match="name a claim in"):
        plan_of(job(NAMED), minimum_network=NetworkLevel.NONE)


def test_kubernetes_plan_adds_known_store_addresses_to_named_egress() -> None:
    named: dict[str, Any] = {"network": NetworkLevel.EGRESS, "egress": (Egress("192.0.2.7", 443),)}
    assert len(egress(plan_of(job(ADDRESS, **named)))) == len(egress(plan_of(job(NAMED, **named)))) + 1
    assert any("s3.example.org is known by name" in one for one in plan_of(job(NAMED, **named)).warnings)


def test_kubernetes_plan_keeps_level_none_for_job_without_stores() -> None:
    plan = plan_of(PLAIN)
    assert (plan.network.level, plan.launch.cut_off) == ("none", False)


@pytest.mark.parametrize(("store", "place"), [
    (StoreAddress(StoreKind.S3), Place("", 443)),
    (StoreAddress(StoreKind.S3, "http://[2001:db8::1]:9000"), Place("2001:db8::1", 9000)),
    (StoreAddress(StoreKind.S3, "http://minio"), Place("minio", 80)),
    (StoreAddress(StoreKind.SWIFT, "https://keystone.example.org/v3"), Place("", 0)),
    (StoreAddress(StoreKind.GCS), Place("", 443)),
    (StoreAddress(StoreKind.HTTP, "https://data.example.org/sets"), Place("data.example.org", 443)),
    (StoreAddress(StoreKind.FSSPEC, "files.example.org"), Place("files.example.org", 22)),
    (StoreAddress(StoreKind.FSSPEC), Place("", 0)),
])  # fmt: skip
def test_places_of_maps_store_address_to_host_and_port_once(store: StoreAddress, place: Place) -> None:
    assert places_of([Transfer(store, "set", "/data"), Transfer(store, "more", "/more")]) == (place,)


def test_places_of_ignores_directory_store() -> None:
    assert places_of([Transfer(StoreAddress(StoreKind.FILE, container="/x"), "set", "/data")]) == ()


def test_kubernetes_plan_rejects_store_networks_that_are_not_networks() -> None:
    with pytest.raises(InvalidRequest, match="store_networks"):
        plan_of(PLAIN, {"store_networks": ["s3.example.org"]})
