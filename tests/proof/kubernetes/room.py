"""The room of a run: a tenant's namespace, and a daemon that has no permissions but the shipped ones."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ffdl_batch.domain.launch.pod_protocol import FINALIZER
from ffdl_batch.domain.tenant import Tenant, TenantStep
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import KeepsTenants
from ffdl_kubernetes.client import STRATEGIC, ClusterClient
from ffdl_kubernetes.settings import read_settings
from ffdl_kubernetes.tenancy.provisioning import create_tenant
from tests.proof.kubernetes.values import Failed

HUB = "proof-hub"
"""The service account that requests the tokens of daemons, as the hub of a site does."""
TOKEN_S = 4 * 3600
RUN_LABEL = "ffdl-batch/proof"
KINDS = ("Job", "Pod", "ConfigMap", "Secret", "Service", "NetworkPolicy", "ResourceQuota")
"""What jobs and the proof leave in a namespace."""
PAUSE_S = 0.2


def await_(check: Callable[[], Any], what: str, seconds: float) -> Any:
    """The first true answer. Raises Failed."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > end:
            raise Failed(f"not so after {seconds:g} s: {what}")
        time.sleep(PAUSE_S)


class Room:
    """A namespace with a unique name, empty before :meth:`make`. Requests are those of the user of
    KUBECONFIG. With `beside` it is that of another tenant with the same hub."""

    def __init__(self, patience_s: float, *, debugging: bool = False, beside: Room | None = None) -> None:
        self._patience_s = patience_s
        self.run: str = beside.run if beside else secrets.token_hex(4)
        self.namespace = f"ffdl-proof-{self.run}" + ("-another" if beside else "")
        self._hub_namespace = beside.namespace if beside else self.namespace
        self.tenant = Tenant(
            self.namespace,
            hub_user=f"system:serviceaccount:{self._hub_namespace}:{HUB}",
            labels={RUN_LABEL: self.run},
            debugging=debugging,
        )
        self.admin = ClusterClient(read_settings({"namespace": self.namespace}))
        self.admin.paths["Node"] = ("api/v1", "nodes")
        self.admin.paths["PersistentVolumeClaim"] = ("api/v1", "persistentvolumeclaims")

    def make(self) -> list[TenantStep]:
        """The tenant, as `ffdl-admin tenant create` makes it, and the hub's service account."""
        steps = create_tenant(self.tenant, read_settings({}))
        account: dict[str, Any] = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": HUB}}
        if self._hub_namespace == self.namespace:
            self.admin.create(account)
        return list(steps)

    def make_claim(self, name: str, storage_class: str) -> None:
        """For one pod at a time."""
        wanted: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": wanted}
        self.admin.create(claim)

    def hub_kubeconfig(self, file: Path) -> Path:
        """Write a kubeconfig with a token of the hub's service account (the API's TokenRequest)."""
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_S},
        }
        path = f"api/v1/namespaces/{self._hub_namespace}/serviceaccounts/{HUB}/token"
        return self._write_kubeconfig(file, self.admin.raw("POST", path, asked)["status"]["token"])

    def kubeconfig(self, file: Path) -> Path:
        """Write a kubeconfig with a token of the daemon's service account, which the hub requests."""
        hub = self.hub_kubeconfig(file.with_name("hub.kubeconfig"))
        settings = {"kubeconfig": str(hub), "namespace": self.namespace}
        keeper = create_adapter("kubernetes", settings, AdapterContext(str(file.parent), "hub", 0))
        assert isinstance(keeper, KeepsTenants)
        token, _ = keeper.daemon_token(TOKEN_S)
        return self._write_kubeconfig(file, token)

    def _write_kubeconfig(self, file: Path, token: str) -> Path:
        context = {"cluster": "c", "user": "u", "namespace": self.namespace}
        plain = {
            "apiVersion": "v1", "kind": "Config", "current-context": "proof",
            "clusters": [{"name": "c", "cluster": self._cluster()}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "proof", "context": context}],
        }  # fmt: skip
        file.touch(mode=0o600)
        file.write_text(json.dumps(plain))
        return file

    def _cluster(self) -> Mapping[str, Any]:
        config = self.admin.config
        found: dict[str, Any] = {"server": config.cluster.server}
        if config.cluster.certificate_auth_data:
            found["certificate-authority-data"] = config.cluster.certificate_auth_data
        elif config.cluster.certificate_auth:
            data = Path(str(config.abs_file(config.cluster.certificate_auth))).read_bytes()
            found["certificate-authority-data"] = base64.b64encode(data).decode()
        if config.cluster.insecure:
            found["insecure-skip-tls-verify"] = True
        return found

    @contextlib.contextmanager
    def daemons_client(self, kubeconfig: Path) -> Iterator[ClusterClient]:
        """One that asks as the daemon does."""
        client = ClusterClient(read_settings({"kubeconfig": str(kubeconfig), "namespace": self.namespace}))
        try:
            yield client
        finally:
            client.close()

    # --------------------------------------------------------------------------------------------------- looks

    def owned(self, token: str) -> list[str]:
        """Kind and name of all that is there of an attempt."""
        return [
            f"{kind}/{one['metadata']['name']}"
            for kind in KINDS
            for one in self.admin.list(kind, {})[0]
            if one["metadata"]["name"] == token or one["metadata"]["name"].startswith(f"{token}-")
        ]

    def pods(self, token: str) -> list[dict[str, Any]]:
        """Those of an attempt."""
        return self.admin.list("Pod", {"labelSelector": f"batch.kubernetes.io/job-name={token}"})[0]

    def node_addresses(self) -> list[str]:
        """InternalIP of each node."""
        nodes = self.admin.raw("GET", "api/v1/nodes").get("items") or []
        return [
            one["address"]
            for node in nodes
            for one in node.get("status", {}).get("addresses") or ()
            if one["type"] == "InternalIP"
        ]

    def why_no_names(self) -> str:
        """What the cluster shows where it has no DNS; "" where a server of it is ready."""
        path = "api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-dns"
        pods = self.admin.raw("GET", path).get("items") or []
        if not pods:
            return "the cluster has no DNS: no pod of kube-system has the label k8s-app=kube-dns"
        ready = [
            pod
            for pod in pods
            for one in pod.get("status", {}).get("conditions") or ()
            if (one["type"], one["status"]) == ("Ready", "True")
        ]
        return "" if ready else f"the cluster's DNS does not run: of its {len(pods)} pods in kube-system none is ready"

    # ----------------------------------------------------------------------------------------------------- end

    def empty(self) -> None:
        """Delete all Jobs, and give the daemon, which runs still, the time to let their pods go."""
        for job in self.admin.list("Job", {})[0]:
            self.admin.delete("Job", job["metadata"]["name"])
        with contextlib.suppress(Failed):
            await_(lambda: not self.admin.list("Pod", {})[0], "pods are gone", self._patience_s)

    def clear(self) -> list[str]:
        """Delete the namespace and all in it, and wait for that; what had to be forced, in words. Raises Failed."""
        if self.admin.get("Namespace", self.namespace) is None:
            return []
        forced = []
        for pod in self.admin.list("Pod", {})[0]:
            name, held = pod["metadata"]["name"], pod["metadata"].get("finalizers") or []
            forced.append(f"pod {name} was there still" + (f", held by {FINALIZER}" if FINALIZER in held else ""))
            change = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
            self.admin.patch("Pod", name, change, STRATEGIC)
        self.admin.delete("Namespace", self.namespace)
        gone = f"namespace {self.namespace} is gone"
        await_(lambda: self.admin.get("Namespace", self.namespace) is None, gone, self._patience_s)
        return forced

    def left(self) -> list[str]:
        """Namespaces of this run that are there."""
        found = self.admin.raw("GET", f"api/v1/namespaces?labelSelector=ffdl-batch%2Fproof%3D{self.run}")
        return [one["metadata"]["name"] for one in found.get("items") or ()]
