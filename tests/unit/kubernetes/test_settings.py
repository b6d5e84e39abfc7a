"""The table ``[backend.kubernetes]``: which cluster, whose namespace, what a profile stands for."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from lightkube.config.kubeconfig import KubeConfig

from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.plugins import AdapterContext, adapter_names, create_adapter
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.connection import load_config
from ffdl_kubernetes.settings import KubernetesSettings, Profile, as_table, read_settings, settle

CONFIG = """\
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: c, cluster: {server: "https://SERVER:6443"}}
- {name: d, cluster: {server: "https://two:6443"}}
users:
- {name: u, user: {token: t}}
contexts:
- {name: one, context: {cluster: c, user: u, namespace: team-a}}
- {name: two, context: {cluster: d, user: u, namespace: team-b}}
"""
CONTEXT = AdapterContext("/tree", "Ada.Lovelace", 1234)


def kubeconfig(path: Path, server: str = "one") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG.replace("SERVER", server))
    return path


def test_kubernetes_adapter_is_registered_and_explains_settings() -> None:
    assert "kubernetes" in adapter_names()
    adapter = create_adapter("kubernetes", {"namespace": "jobs-{user}", "model_bytes": 7}, CONTEXT)
    assert adapter.traits.model_bytes == 7 and adapter.traits.own_keys == {"kubernetes", "profile"}
    settings = adapter.effective_settings()
    assert (settings["namespace"], settings["run_as_user"]) == ("jobs-ada-lovelace", 1234)


@pytest.mark.parametrize("backend", ["kubernetes", "local", "slurm"])
def test_create_adapter_names_settings_files_of_unknown_key(backend: str) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"^/b\.toml, /etc/a\.toml: \[backend\.{backend}\]: unknown key 'xq'; known"
    ):
        create_adapter(backend, {"xq": "x"}, CONTEXT, ("/b.toml", "/etc/a.toml"))


def test_create_adapter_suggests_nearest_known_key() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown key 'gpus_label'; did you mean gpu_label\?$"):
        create_adapter("kubernetes", {"gpus_label": "x"}, CONTEXT)


def test_kubernetes_settings_replace_root_user_with_unprivileged_user() -> None:
    assert settle(KubernetesSettings(), "root", 0).run_as_user == 1000
    assert settle(KubernetesSettings(run_as_user=7), "root", 0).run_as_user == 7


def test_kubernetes_adapter_names_pip_extra_if_client_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightkube", None)
    monkeypatch.setitem(sys.modules, "lightkube.config.client_adapter", None)
    adapter = create_adapter("kubernetes", {"namespace": "jobs"}, CONTEXT)
    with pytest.raises(SchedulerMissing, match=r"pip install 'ffdl-batch\[kubernetes\]'"):
        adapter.probe()
    with pytest.raises(SchedulerMissing):
        load_config(KubernetesSettings())


def test_cluster_client_uses_named_kubeconfig_and_context(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "config")
    client = ClusterClient(KubernetesSettings(kubeconfig=str(file)))
    assert (client.config.cluster.server, client.namespace) == ("https://one:6443", "team-a")
    other = ClusterClient(KubernetesSettings(kubeconfig=str(file), context="two"))
    assert (other.config.cluster.server, other.namespace) == ("https://two:6443", "team-b")
    with pytest.raises(SchedulerMissing, match="Context 'three' not found; name the file"):
        load_config(KubernetesSettings(kubeconfig=str(file), context="three"))
    with pytest.raises(SchedulerMissing, match="no cluster is configured in /nowhere"):
        load_config(KubernetesSettings(kubeconfig="/nowhere"))


WHOLE = """\
apiVersion: v1
clusters: [{name: c, cluster: {server: "https://one:6443"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
users: [{name: u, user: %s}]
"""


def with_cluster(field: str) -> str:
    return (
        (WHOLE % "{token: t}")
        .replace("clusters: [{", "clusters: [{name: a, cluster: {}}, {")
        .replace('6443"', f'6443", {field}')
    )


@pytest.mark.parametrize(("text", "message"), [
    ("", "is not a kubeconfig: .*; correct it, or write a new one"),
    ("- a\n", "is not a kubeconfig"),
    ("a: [b\n", "is not a kubeconfig: .*line 2"),
    ("clusters: 7\ncontexts: []\n", "is not a kubeconfig"),
    (WHOLE.replace("user: u}", "user: other}") % "{token: t}", "no cluster is configured in .*other"),
    (WHOLE % '{token: ""}', "user u of .* has an empty token; log in again"),
    (WHOLE.replace(", user: u}", "}") % "{token: t}", "cannot be used: .*; correct its user"),
    (WHOLE % "{client-certificate-data: x, client-key-data: y}", "cannot be used: .*; correct its user"),
    (with_cluster("proxy-url: http://proxy:3128"), "proxy-url of cluster c .* set HTTPS_PROXY where the daemon"),
    (with_cluster("tls-server-name: x"), "tls-server-name of cluster c .* write the name that the server's cert"),
    (WHOLE % "{as: somebody, token: t}", "as of user u in .* is not supported: .*its own credentials"),
])  # fmt: skip
def test_cluster_client_reports_broken_kubeconfig_and_reads_it_again(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    client = ClusterClient(KubernetesSettings(kubeconfig=str(file), request_timeout_s=1))
    with pytest.raises(SchedulerMissing, match=message):
        client.version()
    file.write_text(WHOLE % "{token: t}")
    assert client.config.cluster.server == "https://one:6443"
    assert client._client is not None
    client.close()


def answered(tmp_path: Path, *replies: httpx2.Response) -> ClusterClient:
    """A client of a server that gives these answers, in that order."""
    client, left = ClusterClient(KubernetesSettings(kubeconfig=str(kubeconfig(tmp_path / "config")))), iter(replies)
    transport = httpx2.MockTransport(lambda _: next(left))
    client._http = httpx2.Client(transport=transport, base_url="https://one:6443")
    return client


def test_cluster_client_waits_as_long_as_429_says_or_ever_longer_and_then_gives_up(tmp_path: Path) -> None:
    """A server, or a proxy before it, that does not always say when."""
    busy, pauses = httpx2.Response(429, json={"message": "too many requests"}), list[float]()
    hint = httpx2.Response(429, headers={"Retry-After": "3"})
    client = answered(
        tmp_path, *[busy] * 3, httpx2.Response(200, json={}), hint, httpx2.Response(200, json={}), *[busy] * 9
    )
    client._pause = pauses.append
    client.version()
    assert len(pauses) == 3 and 0 < pauses[0] < pauses[1] < pauses[2] <= 4.0
    client.version()
    assert pauses[3:] == [3.0]
    with pytest.raises(SchedulerUnreachable, match="too many requests"):
        client.version()
    client.close()


def test_cluster_client_raises_unreachable_for_invalid_api_response(tmp_path: Path) -> None:
    texts = "<html>a proxy's page</html>", '{"type": "ADDED", "object": {"metad'
    client = answered(tmp_path, *(httpx2.Response(200, text=text) for text in texts))
    with pytest.raises(SchedulerUnreachable, match="did not answer with an object of its API"):
        client.version()
    with pytest.raises(SchedulerUnreachable, match="broke off within a line of a watch"):
        list(client.watch("Pod", {}, "1", 5))
    client.close()


def test_load_config_prefers_kubeconfig_variable_over_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(SchedulerMissing, match="no cluster is configured"):
        load_config(KubernetesSettings())
    kubeconfig(tmp_path / ".kube" / "config", "home")
    assert load_config(KubernetesSettings()).cluster.server == "https://home:6443"
    other = kubeconfig(tmp_path / "other", "other")
    monkeypatch.setenv("KUBECONFIG", f"{other}:{tmp_path}/missing")
    assert load_config(KubernetesSettings()).cluster.server == "https://other:6443"
    monkeypatch.setenv("KUBECONFIG", f"{other}:{other}")
    with pytest.raises(SchedulerMissing, match="several files"):
        load_config(KubernetesSettings())


def test_load_config_uses_service_account_for_in_cluster_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/some/file")
    with pytest.raises(SchedulerMissing, match=r"no cluster is configured in in-cluster: .*serviceaccount/token"):
        load_config(KubernetesSettings(kubeconfig="in-cluster"))


def test_read_settings_parses_profile_tables() -> None:
    raw = {"big": {"node_selector": {"pool": "a100"}, "tolerations": ["gpu=a100:NoSchedule"], "priority_class": "high"}}
    settings = read_settings({"profiles": raw})
    assert settings.profiles["big"] == Profile({"pool": "a100"}, ("gpu=a100:NoSchedule",), "high")
    shown = as_table(settings)["profiles"]
    assert isinstance(shown, dict) and shown["big"]["node_selector"] == {"pool": "a100"}


@pytest.mark.parametrize(("raw", "message"), [
    ({"profiles": ["big"]}, r"tables \[backend.kubernetes.profiles.NAME\] are needed"),
    ({"profiles": {"big": {"nodes": "a"}}}, r"kubernetes\.profiles\.big\]: unknown key 'nodes'; known: cpu_limit, "),
    ({"profiles": {"big": {"node_selector": "a=b"}}}, "profiles.big.node_selector is 'a=b'; a table of texts"),
    ({"profiles": {"big": {"tolerations": ["a:Never"]}}}, "toleration 'a:Never'"),
    ({"profiles": {"big": {"cpu_limit": "all"}}}, "big.cpu_limit is 'all'; write a number of CPUs, .*, or 'request'"),
    ({"cpu_limit": "-1"}, "cpu_limit is '-1'; write a number of CPUs"),
    ({"controller_cpus": ""}, "controller_cpus is ''; write a number of CPUs, such as 2 or '500m'$"),
    ({"controller_cpus": "request"}, "controller_cpus is 'request'"),
    ({"controller_cpu_limit": "2 cores"}, "controller_cpu_limit is '2 cores'"),
    ({"cpu_limit": True}, "cpu_limit is true; write a number of CPUs, such as 2 or '500m', or 'request'$"),
    ({"profiles": {"big": {"cpu_limit": [1]}}}, r"big.cpu_limit is \[1\]; write a number of CPUs"),
    ({"controller_cpus": 0}, "controller_cpus is '0'; write a number of CPUs"),
    ({"controller_cpu_limit": float("inf")}, "controller_cpu_limit is 'inf'; write a number of CPUs"),
    ({"controller_cpus": "1n"}, "controller_cpus is '1n'; the minimum is '1m'$"),
    ({"cpu_limit": 0.0001}, "cpu_limit is '0.0001'; the minimum is '1m'$"),
    ({"controller_cpu_limit": "1n"}, "controller_cpu_limit is '1n'; the minimum is '10m'$"),
    ({"controller_cpus": "5m", "controller_cpu_limit": "9m"}, "controller_cpu_limit is '9m'; the minimum is '10m'$"),
    ({"controller_cpu_limit": "50m"}, "limit is '50m', which is less than controller_cpus, '100m'; raise"),
    ({"controller_cpus": 2, "controller_cpu_limit": 1.5}, "limit is '1.5', which is less than controller_cpus, '2'"),
    ({"controller_memory_bytes": 5}, r"controller_memory_bytes is 5; the minimum is 67108864 \(64 MiB\)$"),
    ({"controller_memory_bytes": 0}, "controller_memory_bytes is 0; the minimum is 67108864"),
    ({"controller_storage_bytes": 5}, r"is 5; the minimum is 1048576 \(1 MiB\), or 0 for no limit$"),
    ({"priority_class": True}, "priority_class is true; a text is needed"),
    ({"node_selector": {"a b": 1.5, "c": False}}, "node_selector is {'a b' = 1.5, c = false}; a table of texts"),
])  # fmt: skip
def test_read_settings_rejects_invalid_profile_with_its_path(raw: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_settings(raw)


@pytest.mark.parametrize(("number", "text"), [(2, "2"), (0.5, "0.5"), ("500m", "500m")])
def test_read_settings_accepts_cpus_as_number_or_text(number: float | str, text: str) -> None:
    keys = ("cpu_limit", "controller_cpus", "controller_cpu_limit")
    settings = read_settings({**dict.fromkeys(keys, number), "profiles": {"big": {"cpu_limit": number}}})
    assert [getattr(settings, key) for key in keys] == [text] * 3
    assert settings.profiles["big"].cpu_limit == text


def test_threads_read_kubeconfigs_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """msgspec 0.22, which converts them, crashes the process if two threads are the first to use a type."""
    read, reading = KubeConfig.from_file, threading.Lock()

    def read_alone(path: Path) -> KubeConfig:
        assert reading.acquire(blocking=False), "two threads read at the same time"
        try:
            time.sleep(0.05)
            return read(path)
        finally:
            reading.release()

    monkeypatch.setattr(KubeConfig, "from_file", read_alone)
    settings = KubernetesSettings(kubeconfig=str(kubeconfig(tmp_path / "config")))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: load_config(settings).namespace, range(4)))
    assert found == ["team-a"] * 4
