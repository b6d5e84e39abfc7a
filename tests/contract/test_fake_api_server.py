"""What real API servers refuse and take, the tests' own does, too, where our adapter could trip over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_kubernetes.client import MERGE, ClusterClient, Refused
from ffdl_kubernetes.settings import read_settings
from tests.fakes.kubernetes.rig import FakeCluster, cluster, eventually, node

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def k8s(tmp_path: Path) -> Iterator[FakeCluster]:
    with cluster(tmp_path, nodes=[node("n1")]) as found:
        yield found


def role(name: str, *rules: tuple[str, str, str]) -> dict[str, Any]:
    listed = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in rules]
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name}, "rules": listed}


def binding(name: str, role_name: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role_name},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
    }


@pytest.mark.parametrize("more", [(), ("escalate", "bind")])
def test_fake_api_server_rejects_rbac_escalation_without_escalate_and_bind(
    k8s: FakeCluster, more: tuple[str, ...]
) -> None:
    admin = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig)}))
    own = [(RBAC, "roles", verb) for verb in ("create", "get", "patch", *more)]
    admin.create(role("own", *own, (RBAC, "rolebindings", "create"), ("", "pods", "list")))
    admin.create(binding("own", "own", "carol"))
    admin.create(role("large", ("", "secrets", "get")))
    carol = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig_of("carol"))}))
    carol.create(role("small", ("", "pods", "list")))
    carol.create(binding("small", "small", "dave"))
    asked: list[Callable[[], object]] = [
        lambda: carol.create(role("wide", ("", "pods", "list"), ("", "secrets", "get"))),
        lambda: carol.patch("Role", "small", {"rules": role("small", ("*", "*", "*"))["rules"]}),
        lambda: carol.create(binding("large", "large", "carol")),
    ]
    for one in asked:
        if more:
            one()
            continue
        with pytest.raises(Refused, match="attempting to grant RBAC permissions not currently held") as refused:
            one()
        assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    for client in (admin, carol):
        client.close()


def test_fake_api_server_allows_empty_text_in_status_but_not_in_spec(k8s: FakeCluster) -> None:
    """Of a status the server demands no text that is not empty; of a spec it does."""
    admin = ClusterClient(read_settings({"kubeconfig": str(k8s.kubeconfig)}))
    where = "api/v1/namespaces/kube-system/pods"  # which takes any pod
    pod: dict[str, Any] = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    k8s.ask("POST", where, pod)
    eventually(lambda: k8s.ask("GET", f"{where}/one")["spec"].get("nodeName"), "it has a node")
    waits = {"waiting": {"reason": "ErrImagePull"}}
    status = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": waits}
    found = admin._ask("PATCH", f"{where}/one/status", body={"status": {"containerStatuses": [status]}}, content=MERGE)
    assert found["status"]["containerStatuses"][0]["imageID"] == ""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "two"}, "spec": {"containers": [{"name": ""}]}}
    with pytest.raises(Refused) as refused:
        admin._ask("POST", where, body=pod)
    assert refused.value.status == 422
    admin.close()
