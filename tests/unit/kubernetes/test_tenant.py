"""Objects of a tenant: schemas take them, and they allow what a daemon needs and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from kubernetes_validate import validate

from ffdl_batch.ports.tenancy import Tenant
from ffdl_kubernetes.objects.tenant import PERMISSIONS, tenant_objects

BARE = Tenant("team-a")
FULL = Tenant(
    "team-a", gpus=8, cpus=64, memory_bytes=1 << 40, jobs=100, users=("alice",), groups=("ml",),
    service_account="platform/ffdl-submitd", labels={"team": "a"},
)  # fmt: skip


@pytest.mark.parametrize("tenant", [BARE, FULL, replace(FULL, nodes=True)], ids=["bare", "full", "nodes"])
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_schemas_take_them(tenant: Tenant, version: str) -> None:
    for one in tenant_objects(tenant):
        validate(cast("dict[str, Any]", one), version, strict=True)


def by_kind(tenant: Tenant) -> dict[str, Any]:
    return {str(one["kind"]): one for one in tenant_objects(tenant)}


def test_only_what_is_limited_is_in_a_quota() -> None:
    assert "ResourceQuota" not in by_kind(BARE) and "RoleBinding" not in by_kind(BARE)
    assert by_kind(FULL)["ResourceQuota"]["spec"]["hard"] == {
        "requests.nvidia.com/gpu": "8", "requests.cpu": "64", "requests.memory": str(1 << 40),
        "count/jobs.batch": "100",
    }  # fmt: skip


def test_who_may_submit() -> None:
    subjects = by_kind(FULL)["RoleBinding"]["subjects"]
    assert [(one["kind"], one["name"], one.get("namespace")) for one in subjects] == [
        ("User", "alice", None), ("Group", "ml", None), ("ServiceAccount", "ffdl-submitd", "platform"),
    ]  # fmt: skip


def test_pods_are_held_to_the_restricted_level() -> None:
    assert by_kind(BARE)["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert by_kind(BARE)["NetworkPolicy"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_commands_in_pods_are_for_tenants_that_are_given_them() -> None:
    plain, debugging = by_kind(FULL)["Role"]["rules"], by_kind(replace(FULL, debugging=True))["Role"]["rules"]
    assert debugging == [*plain, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}]


def test_nobody_reads_secrets_or_runs_commands_in_pods() -> None:
    verbs = {resource: allowed for _, resources, allowed in PERMISSIONS for resource in resources}
    assert verbs["secrets"] == ("create",)
    assert "pods/exec" not in verbs and not any("*" in word for words in (verbs, *verbs.values()) for word in words)
