"""Credentials that a program of the kubeconfig gives, against the tests' API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.scheduler_errors import SchedulerMissing
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.settings import KubernetesSettings
from tests.fakes.kubernetes.rig import FakeCluster, cluster

PROGRAM = """\
#!/bin/sh
printf '%s\\n' "$KUBERNETES_EXEC_INFO" >>"$ASKED"
[ -e "$SAYS" ] || { echo "nobody is logged in" >&2; exit 3; }
cat "$SAYS"
"""


class Login:
    """A kubeconfig whose user is known by a program, which lies beside it; and what asks by it."""

    def __init__(self, base: Path, k8s: FakeCluster) -> None:
        self._asked, self._says, self.k8s, self.file = base / "asked", base / "says", k8s, base / "kubeconfig"
        (base / "program").write_text(PROGRAM)
        (base / "program").chmod(0o700)
        self.config = json.loads(k8s.kubeconfig.read_text())
        self._clients: list[ClusterClient] = []
        self.speaks("client.authentication.k8s.io/v1")

    def speaks(self, protocol: str) -> None:
        """The program has this protocol."""
        self._protocol = protocol
        env = [{"name": name, "value": str(path)} for name, path in {"ASKED": self._asked, "SAYS": self._says}.items()]
        program = {"apiVersion": protocol, "command": "./program", "env": env, "interactiveMode": "Never"}
        self.write({"exec": program})

    def write(self, user: dict[str, Any]) -> None:
        self.config["users"][0]["user"] = user
        self.file.write_text(json.dumps(self.config))

    def client(self) -> ClusterClient:
        self._clients.append(ClusterClient(KubernetesSettings(kubeconfig=str(self.file), request_timeout_s=60)))
        return self._clients[-1]

    def says(self, **status: str) -> None:
        self._says.write_text(json.dumps({"kind": "ExecCredential", "apiVersion": self._protocol, "status": status}))

    def knows(self, token: str, **status: str) -> None:
        """The program says a token that the server takes."""
        self.k8s.do("token", token=token, user="admin", groups=["system:masters"])
        self.says(token=token, **status)

    @property
    def asked(self) -> list[Any]:
        return [json.loads(line) for line in self._asked.read_text().splitlines()]

    def close(self) -> None:
        for one in self._clients:
            one.close()


@pytest.fixture
def k8s(tmp_path: Path) -> Iterator[FakeCluster]:
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture
def login(tmp_path: Path, k8s: FakeCluster) -> Iterator[Login]:
    found = Login(tmp_path, k8s)
    yield found
    found.close()


def test_cluster_client_runs_credential_program_once_with_cluster_info(k8s: FakeCluster, login: Login) -> None:
    protocol = "client.authentication.k8s.io/v1beta1"
    login.speaks(protocol)
    login.knows("first")
    client = login.client()
    assert client.get("Namespace", k8s.namespace) and client.get("Namespace", "default")
    (told,) = login.asked
    assert (told["kind"], told["apiVersion"]) == ("ExecCredential", protocol)
    assert (told["spec"]["interactive"], told["spec"]["cluster"]["server"]) == (False, k8s.url)


def test_cluster_client_renews_token_when_expired_or_rejected(k8s: FakeCluster, login: Login) -> None:
    login.knows("first", expirationTimestamp="2026-01-02T03:04:05Z")
    client = login.client()
    assert client.get("Namespace", "default")
    login.knows("second")
    assert client.get("Namespace", "default")
    k8s.do("forget_token", token="second")
    login.knows("third")
    assert client.get("Namespace", "default")
    assert len(login.asked) == 3


def test_cluster_client_rereads_kubeconfig_after_new_login_to_same_server(k8s: FakeCluster, login: Login) -> None:
    """A login writes another token into the kubeconfig, and perhaps another current context."""

    def logs_in(token: str, server: str = k8s.url) -> None:
        login.config["clusters"][0]["cluster"]["server"] = server
        login.write({"token": token})

    for token in ("first", "second"):
        k8s.do("token", token=token, user="admin", groups=["system:masters"])
    logs_in("first")
    client = login.client()
    assert client.get("Namespace", "default")
    k8s.do("forget_token", token="first")
    with pytest.raises(Refused, match="Unauthorized; the credentials of the kubeconfig are not valid"):
        client.get("Namespace", "default")
    login.config["contexts"].append({"name": "other", "context": {"cluster": "none", "user": "none"}})
    login.config["current-context"] = "other"
    logs_in("second", "https://elsewhere.example.org")
    with pytest.raises(Refused, match="Unauthorized; the credentials of the kubeconfig are not valid"):
        client.get("Namespace", "default")  # what is meant for another server is not shown to this one
    logs_in("second")
    assert client.get("Namespace", "default")


def test_cluster_client_reports_untrusted_certificate_with_kubeconfig_entry(login: Login) -> None:
    del login.config["clusters"][0]["cluster"]["certificate-authority-data"]
    login.write({"token": "x"})
    name = login.config["clusters"][0]["name"]
    with pytest.raises(SchedulerMissing, match=f"; correct certificate-authority of cluster {name} in {login.file}"):
        login.client().version()


def test_cluster_client_reports_failed_credential_program_and_retries_it(login: Login) -> None:
    client = login.client()
    with pytest.raises(SchedulerMissing, match=r"program .* exited with status 3: nobody is logged in"):
        client.get("Namespace", "default")
    login.knows("first")
    assert client.get("Namespace", "default")


def test_cluster_client_rejects_credential_program_without_token_or_known_protocol(login: Login) -> None:
    login.says(clientCertificateData="...", clientKeyData="...")
    with pytest.raises(SchedulerMissing, match="gives no token; client certificates of such programs"):
        login.client().get("Namespace", "default")
    login.speaks("example.com/v7")
    with pytest.raises(SchedulerMissing, match=r"speaks example\.com/v7; known are"):
        login.client().get("Namespace", "default")
