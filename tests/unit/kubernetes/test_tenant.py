"""Objects of a tenant: schemas take them, and they allow what a daemon needs and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import yaml
from kubernetes_validate import validate

import ffdl_kubernetes
from ffdl_batch.domain.tenant import Tenant
from ffdl_kubernetes.api_discovery import groups
from ffdl_kubernetes.quantities import needed_storage
from ffdl_kubernetes.tenancy.provisioning import differences
from ffdl_kubernetes.tenancy.tenant_objects import PERMISSIONS, ROLE, quota_name, role, tenant_objects

BARE = Tenant("team-a")
FULL = Tenant(
    "team-a", gpus=8, cpus=64, memory_bytes=1 << 40, jobs=100, users=("alice",), groups=("ml",),
    service_account="platform/ffdl-submitd", labels={"team": "a"},
)  # fmt: skip


HUB = replace(BARE, hub_user="hub")


@pytest.mark.parametrize("tenant", [BARE, FULL, replace(FULL, nodes=True), HUB], ids=["bare", "full", "nodes", "hub"])
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_tenant_objects_pass_schemas_of_supported_releases(tenant: Tenant, version: str) -> None:
    for one in tenant_objects(tenant):
        validate(cast("dict[str, Any]", one), version, strict=True)


def by_kind(tenant: Tenant) -> dict[str, Any]:
    return {str(one["kind"]): one for one in tenant_objects(tenant)}


def test_tenant_quota_contains_only_configured_limits() -> None:
    assert "ResourceQuota" not in by_kind(BARE) and "RoleBinding" not in by_kind(BARE)
    assert by_kind(FULL)["ResourceQuota"]["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "8", "requests.cpu": "64", "requests.memory": str(1 << 40),
        "count/jobs.batch": "100",
    }  # fmt: skip


def test_tenant_with_quota_of_cpu_limits_gives_containers_without_one_a_default() -> None:
    made = by_kind(replace(BARE, resources={"limits.cpu": "128", "nvidia.com/mig-1g.10gb": "4"}))
    assert made["ResourceQuota"]["spec"]["hard"] == {"limits.cpu": "128", "requests.nvidia.com/mig-1g.10gb": "4"}
    assert made["LimitRange"]["spec"]["limits"][0]["default"] == {"cpu": "1", "memory": "1Gi"}
    assert by_kind(BARE)["LimitRange"]["spec"]["limits"][0]["default"] == {"memory": "1Gi"}


@pytest.mark.parametrize(
    ("resource", "request_", "limit"),
    [
        ("limits.ephemeral-storage", "1Gi", "10Gi"),
        ("ephemeral-storage", "1Gi", None),
        ("requests.ephemeral-storage", "1Gi", None),
        ("storage", None, None),
    ],
)
def test_tenant_with_quota_of_ephemeral_storage_gives_containers_without_one_a_default(
    resource: str, request_: str | None, limit: str | None
) -> None:
    made = by_kind(replace(BARE, resources={resource: "100Gi"}))
    (limits,) = made["LimitRange"]["spec"]["limits"]
    assert limits["defaultRequest"].get("ephemeral-storage") == request_
    assert limits["default"].get("ephemeral-storage") == limit
    demanded = needed_storage([made["LimitRange"]], [made["ResourceQuota"]])
    assert demanded == (None if request_ is None else 10 * 2.0**30 if limit else 2.0**30)


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        *((one, f"requests.{one}") for one in ("cpu", "memory", "ephemeral-storage", "storage", "hugepages-2Mi")),
        *((one, f"requests.{one}") for one in ("nvidia.com/gpu", "amd.com/gpu", "example.com/x.y")),
        *((one, one) for one in ("requests.cpu", "requests.nvidia.com/gpu", "requests.hugepages-1Gi")),
        *((one, one) for one in ("limits.cpu", "limits.memory", "limits.ephemeral-storage")),
        *((one, one) for one in ("pods", "services", "services.nodeports", "services.loadbalancers", "secrets")),
        *((one, one) for one in ("persistentvolumeclaims", "configmaps", "replicationcontrollers", "resourcequotas")),
        *((one, one) for one in ("count/jobs.batch", "count/pods", "count/widgets.example.com")),
        *(
            (one, one)
            for one in (
                "gold.storageclass.storage.k8s.io/requests.storage",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims",
                "gpu.deviceclass.resource.k8s.io/devices",
            )
        ),
        *((one, "") for one in ("jobs", "deployments", "requests.pods", "limits.pods", "limits.nvidia.com/gpu", "gpu")),
    ],
)
def test_quota_name_has_prefix_only_for_resources_that_pods_request(resource: str, name: str) -> None:
    assert quota_name(resource) == name


def test_tenant_quota_counts_objects_by_their_own_names() -> None:
    resources = {"pods": "10", "services": "2", "persistentvolumeclaims": "4", "count/secrets": "9", "memory": "1Gi"}
    assert by_kind(replace(BARE, resources=resources))["ResourceQuota"]["spec"]["hard"] == {
        "pods": "10", "services": "2", "persistentvolumeclaims": "4", "count/secrets": "9", "requests.memory": "1Gi",
    }  # fmt: skip


def test_tenant_role_binding_lists_users_groups_and_service_account() -> None:
    subjects = by_kind(FULL)["RoleBinding"]["subjects"]
    assert [(one["kind"], one["name"], one.get("namespace")) for one in subjects] == [
        ("User", "alice", None), ("Group", "ml", None), ("ServiceAccount", "ffdl-submitd", "platform"),
    ]  # fmt: skip


def test_hub_may_request_tokens_of_service_account_of_the_daemon_only() -> None:
    plain: list[Any] = list(tenant_objects(HUB))
    made = {(one["kind"], one["metadata"]["name"]): one for one in plain}
    assert made["Role", "ffdl-batch-hub"]["rules"] == [
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [ROLE], "verbs": ["create"]}
    ]
    assert [one["name"] for one in made["RoleBinding", "ffdl-batch-hub"]["subjects"]] == ["hub"]
    assert made["RoleBinding", ROLE]["subjects"] == [{"kind": "ServiceAccount", "namespace": "team-a", "name": ROLE}]
    assert made["ServiceAccount", ROLE]["automountServiceAccountToken"] is False


def test_tenant_namespace_enforces_restricted_pods_and_denies_traffic() -> None:
    assert by_kind(BARE)["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert by_kind(BARE)["NetworkPolicy"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_tenant_role_allows_pod_exec_only_with_debugging() -> None:
    plain, debugging = by_kind(FULL)["Role"]["rules"], by_kind(replace(FULL, debugging=True))["Role"]["rules"]
    assert debugging == [*plain, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}]


def test_tenant_permissions_exclude_secret_reads_exec_and_wildcards() -> None:
    verbs = {resource: allowed for _, resources, allowed in PERMISSIONS for resource in resources}
    assert verbs["secrets"] == ("create",)
    assert "pods/exec" not in verbs and not any("*" in word for words in (verbs, *verbs.values()) for word in words)


@pytest.mark.parametrize(("found", "words"), [
    (None, 'roleRef is not set, wanted {"name": "a"}'),
    ({"name": "b"}, "roleRef.name is b, wanted a"),
    ({}, "roleRef.name is not set, wanted a"),
    ({"name": "a", "kind": "Role"}, "roleRef.kind is Role, wanted not set"),
])  # fmt: skip
def test_differences_name_part_that_cluster_lacks_or_has_otherwise(found: object, words: str) -> None:
    wanted = {"metadata": {}, "roleRef": {"name": "a"}}
    assert list(differences({"metadata": {}, "roleRef": found}, wanted)) == [words]
    assert not list(differences(wanted, wanted))


def test_differences_in_spec_are_bounded_and_name_innermost_values() -> None:
    limits = [{"type": "Container", "default": {"memory": "1Gi"}}]
    wanted: dict[str, Any] = {"metadata": {}, "spec": {"limits": limits}}
    other = [{"type": "Container", "default": {"memory": "2Gi", "cpu": "1"}, "max": {"cpu": "2"}}]
    found = list(differences({"metadata": {}, "spec": {"limits": other}}, wanted))
    assert found == [
        "spec.limits[0].default.memory is 2Gi, wanted 1Gi",
        "spec.limits[0].default.cpu is 1, wanted not set",
    ]
    (words,) = differences({"metadata": {}, "spec": {"limits": other * 50}}, wanted)
    assert words.startswith('spec.limits is [{"type": "Container", "default": ') and len(words) < 400
    subjects = [{"kind": "User", "name": f"user{number}"} for number in range(30)]
    (words,) = differences({"metadata": {}, "subjects": []}, {"metadata": {}, "subjects": subjects})
    assert words.startswith("missing subjects: User user0, User user1, ") and words.endswith("user9, and 20 more")


def test_differences_compare_amounts_and_name_what_a_list_has_more_or_less() -> None:
    wanted = {"metadata": {}, "spec": {"hard": {"requests.memory": str(1 << 40)}}, "rules": [{"verbs": ["get"]}]}
    same = {**wanted, "spec": {"hard": {"requests.memory": "1024Gi"}}}
    assert not list(differences(same, wanted))
    more = {**same, "rules": [{"verbs": ["get"]}, {"verbs": ["list"]}]}
    assert list(differences(more, wanted)) == ['extra rules: {"verbs": ["list"]}']
    assert list(differences(wanted, more)) == ['missing rules: {"verbs": ["list"]}']


def test_groups_lists_preferred_version_first() -> None:
    served = {"name": "kueue.x-k8s.io", "versions": [{"version": "v1beta1"}, {"version": "v1"}]}
    client = Mock(raw=Mock(return_value={"groups": [{**served, "preferredVersion": {"version": "v1"}}]}))
    assert groups(client) == {"kueue.x-k8s.io": ("v1", "v1beta1")}


def test_shipped_role_manifest_equals_generated_role() -> None:
    shipped = Path(ffdl_kubernetes.__file__).with_name("manifests") / "role.yml"
    assert yaml.safe_load(shipped.read_text()) == role({"name": ROLE})
