"""Credentials that a program of the kubeconfig gives, and watches that go on whatever happens to who is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ffdl_batch.ports.scheduler import SchedulerMissing, SchedulerUnreachable
from ffdl_kubernetes import watching
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.watching import Watcher
from tests.fakes.kubernetes.rig import FakeCluster, cluster, eventually

PROTOCOL = "client.authentication.k8s.io/v1"
PROGRAM = """\
#!/bin/sh
printf '%s\\n' "$KUBERNETES_EXEC_INFO" >>"$ASKED"
[ -e "$SAYS" ] || { echo "nobody is logged in" >&2; exit 3; }
cat "$SAYS"
"""


class Login:
    """A kubeconfig whose user is known by a program, which lies beside it."""

    def __init__(self, base: Path, k8s: FakeCluster, opened: contextlib.ExitStack, protocol: str = PROTOCOL) -> None:
        self._asked, self._says, self.k8s = base / "asked", base / "says", k8s
        self._protocol, self.file = protocol, base / "kubeconfig"
        self._opened = opened
        (base / "program").write_text(PROGRAM)
        (base / "program").chmod(0o700)
        config = json.loads(k8s.kubeconfig.read_text())
        names = {"ASKED": self._asked, "SAYS": self._says}
        env = [{"name": name, "value": str(path)} for name, path in names.items()]
        program = {"apiVersion": protocol, "command": "./program", "env": env, "interactiveMode": "Never"}
        config["users"][0]["user"] = {"exec": program}
        self.file.write_text(json.dumps(config))

    def client(self) -> ClusterClient:
        found = ClusterClient(KubernetesSettings(kubeconfig=str(self.file), request_timeout_s=60))
        self._opened.callback(found.close)
        return found

    def says(self, **status: str) -> None:
        self._says.write_text(json.dumps({"kind": "ExecCredential", "apiVersion": self._protocol, "status": status}))

    def knows(self, token: str, **status: str) -> None:
        """The program says a token that the server takes."""
        self.k8s.do("token", token=token, user="admin", groups=["system:masters"])
        self.says(token=token, **status)

    @property
    def asked(self) -> list[Any]:
        return [json.loads(line) for line in self._asked.read_text().splitlines()]


@pytest.fixture
def k8s(tmp_path: Path) -> Iterator[FakeCluster]:
    with cluster(tmp_path) as found:
        yield found


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opened."""
    with contextlib.ExitStack() as found:
        yield found


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_cluster_client_runs_credential_program_once_with_cluster_info(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack, version: str
) -> None:
    login = Login(tmp_path, k8s, opened, f"client.authentication.k8s.io/{version}")
    login.knows("first")
    client = login.client()
    assert client.get("Namespace", k8s.namespace) and client.get("Namespace", "default")
    (told,) = login.asked
    assert (told["kind"], told["apiVersion"]) == ("ExecCredential", f"client.authentication.k8s.io/{version}")
    assert (told["spec"]["interactive"], told["spec"]["cluster"]["server"]) == (False, k8s.url)


def test_cluster_client_renews_token_when_expired_or_rejected(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    login = Login(tmp_path, k8s, opened)
    login.knows("first", expirationTimestamp="2026-01-02T03:04:05Z")
    client = login.client()
    assert client.get("Namespace", "default")
    login.knows("second")
    assert client.get("Namespace", "default")
    k8s.do("forget_token", token="second")
    login.knows("third")
    assert client.get("Namespace", "default")
    assert len(login.asked) == 3


def test_cluster_client_rereads_kubeconfig_after_new_login_to_same_server(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    """A login writes another token into the kubeconfig, and perhaps another current context."""
    file, config = tmp_path / "kubeconfig", json.loads(k8s.kubeconfig.read_text())

    def logs_in(token: str, server: str = k8s.url) -> None:
        config["users"][0]["user"], config["clusters"][0]["cluster"]["server"] = {"token": token}, server
        file.write_text(json.dumps(config))

    for token in ("first", "second"):
        k8s.do("token", token=token, user="admin", groups=["system:masters"])
    logs_in("first")
    client = ClusterClient(KubernetesSettings(kubeconfig=str(file), request_timeout_s=60))
    opened.callback(client.close)
    assert client.get("Namespace", "default")
    k8s.do("forget_token", token="first")
    with pytest.raises(Refused, match="Unauthorized; the credentials of the kubeconfig do not count"):
        client.get("Namespace", "default")
    config["contexts"].append({"name": "other", "context": {"cluster": "none", "user": "none"}})
    config["current-context"] = "other"
    logs_in("second", "https://elsewhere.example.org")
    with pytest.raises(Refused, match="Unauthorized; the credentials of the kubeconfig do not count"):
        client.get("Namespace", "default")  # what is meant for another server is not shown to this one
    logs_in("second")
    assert client.get("Namespace", "default")


def test_cluster_client_reports_untrusted_certificate_with_kubeconfig_entry(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    file, config = tmp_path / "kubeconfig", json.loads(k8s.kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    file.write_text(json.dumps(config))
    client = ClusterClient(KubernetesSettings(kubeconfig=str(file), request_timeout_s=60))
    opened.callback(client.close)
    name = config["clusters"][0]["name"]
    with pytest.raises(SchedulerMissing, match=f"; correct certificate-authority of cluster {name} in {file}"):
        client.version()


def test_cluster_client_reports_failed_credential_program_and_retries_it(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    login = Login(tmp_path, k8s, opened)
    client = login.client()
    with pytest.raises(SchedulerMissing, match=r"program .* ended with 3: nobody is logged in"):
        client.get("Namespace", "default")
    login.knows("first")
    assert client.get("Namespace", "default")


def test_cluster_client_rejects_credential_program_without_token_or_known_protocol(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    login = Login(tmp_path, k8s, opened)
    login.says(clientCertificateData="...", clientKeyData="...")
    with pytest.raises(SchedulerMissing, match="gives no token; client certificates of such programs"):
        login.client().get("Namespace", "default")
    with pytest.raises(SchedulerMissing, match=r"speaks example\.com/v7; known are"):
        Login(tmp_path, k8s, opened, "example.com/v7").client().get("Namespace", "default")


@pytest.mark.parametrize(
    ("part", "key", "value", "cure"),
    [
        ("cluster", "proxy-url", "http://proxy:3128", "set HTTPS_PROXY where the daemon runs"),
        ("cluster", "tls-server-name", "other.example.org", "write the name that the server's certificate has"),
        ("user", "as", "somebody", "its own credentials"),
    ],
)
def test_cluster_client_rejects_unsupported_kubeconfig_field(
    tmp_path: Path, k8s: FakeCluster, opened: contextlib.ExitStack, part: str, key: str, value: str, cure: str
) -> None:
    config = json.loads(k8s.kubeconfig.read_text())
    config[f"{part}s"][0][part][key] = value
    config[f"{part}s"].append({"name": "another", part: {}})
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    client = ClusterClient(KubernetesSettings(kubeconfig=str(file)))
    opened.callback(client.close)
    with pytest.raises(SchedulerMissing, match=f"{key} of {part} .* is not supported: .*{cure}"):
        client.version()
    assert not k8s.counts(reset=True), "nobody was asked"


def test_cluster_client_increases_pauses_on_429_and_then_gives_up(
    k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    """A server, or a proxy before it, that does not say when."""
    client = ClusterClient(KubernetesSettings(kubeconfig=str(k8s.kubeconfig)))
    opened.callback(client.close)
    pauses: list[float] = []
    client._pause = pauses.append
    k8s.fault("status", method="GET", path="/namespaces", code=429, count=3)
    assert client.get("Namespace", "default")
    assert len(pauses) == 3 and 0 < pauses[0] < pauses[1] < pauses[2] <= 4.0
    k8s.fault("status", method="GET", path="/namespaces", code=429, count=9)
    with pytest.raises(SchedulerUnreachable, match="has received too many requests"):
        client.get("Namespace", "default")


def test_watcher_redelivers_object_after_listener_error(k8s: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PAUSES_S", (0.05,))
    told: list[str] = []

    def hear(_what: str, _kind: str, thing: Mapping[str, Any]) -> None:
        told.append(thing["metadata"]["name"])
        if told[-1] == "one" and told.count("one") == 1:
            raise OSError(28, "No space left on device")

    make = {"metadata": {"name": "one"}, "data": {}}
    k8s.ask("POST", f"api/v1/namespaces/{k8s.namespace}/configmaps", make)
    settings = KubernetesSettings(kubeconfig=str(k8s.kubeconfig))
    watcher = Watcher(lambda: ClusterClient(settings), hear, {"ConfigMap": {}})
    watcher.start()
    try:
        eventually(lambda: told.count("one") == 2, "what was not taken is told again")
        k8s.ask("POST", f"api/v1/namespaces/{k8s.namespace}/configmaps", {**make, "metadata": {"name": "two"}})
        eventually(lambda: "two" in told, "the watch goes on")
        watcher.await_sync(60)
    finally:
        watcher.stop()
        k8s.do("close_watches")


def test_watcher_recovers_after_interrupted_watch_without_new_events(
    k8s: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PAUSES_S", (0.05,))
    monkeypatch.setattr(watching, "STALE_S", 0.0)
    settings = KubernetesSettings(kubeconfig=str(k8s.kubeconfig))
    watcher = Watcher(lambda: ClusterClient(settings), lambda *_: None, {"ConfigMap": {}})
    watcher.start()
    watcher.await_sync(60)
    try:
        k8s.fault("status", method="GET", path=r"configmaps\?watch", code=429, count=100_000)
        k8s.do("close_watches")
        with pytest.raises(SchedulerUnreachable, match=r"ConfigMaps cannot be watched: .*too many requests"):
            eventually(lambda: watcher.await_sync(0), "the break is seen")
        k8s.do("clear_faults")

        def is_whole() -> bool:
            try:
                watcher.await_sync(0)
            except SchedulerUnreachable:
                return False
            return True

        eventually(is_whole, "the watch is whole again before anything is told")
    finally:
        watcher.stop()
        k8s.do("close_watches")


def test_cluster_client_raises_unreachable_for_invalid_api_response(
    k8s: FakeCluster, opened: contextlib.ExitStack
) -> None:
    client = ClusterClient(KubernetesSettings(kubeconfig=str(k8s.kubeconfig)))
    answers = iter(["<html>a proxy's page</html>", '{"type": "ADDED", "object": {"metad'])
    opened.callback(client.close)
    client._http = httpx2.Client(
        transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text=next(answers))), base_url=k8s.url
    )
    with pytest.raises(SchedulerUnreachable, match="answered what is no object of its API"):
        client.version()
    with pytest.raises(SchedulerUnreachable, match="broke off within a line of a watch"):
        list(client.watch("Pod", {}, "1", 5))
