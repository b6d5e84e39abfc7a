"""What the doctor says of a cluster, and how a daemon finds its way to it from within."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Verdict
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.ports.capabilities import Examines
from ffdl_kubernetes.api_discovery import may
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.observing.network_canary import FILE
from ffdl_kubernetes.settings import KubernetesSettings
from tests.contract.test_kubernetes_adapter import Site
from tests.fakes.kubernetes.rig import cluster


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with cluster(tmp_path) as k8s:
        found = Site(tmp_path, k8s)
        found.settings["network_policies"] = ""
        yield found
        found.close()


def said(site: Site, **changes: object) -> dict[str, tuple[Verdict, str]]:
    adapter = site.start(**changes)
    assert isinstance(adapter, Examines)
    return {item.about: (item.verdict, item.text) for item in adapter.examine("", Mounting.AUTO)}


def test_doctor_reports_ok_items_and_notes_for_working_cluster(site: Site) -> None:
    found = said(site)
    verdict, text = found["API server"]
    assert verdict is Verdict.OK and text.startswith(f"{site.k8s.url}, v1.")
    assert found[f"permissions in {site.k8s.namespace}"] == (Verdict.OK, "all that a daemon needs")
    assert found[f"pods/exec in {site.k8s.namespace}"] == (
        Verdict.OK,
        "allowed: ffdl exec and ffdl shell reach learners",
    )
    assert found["nodes of the cluster"][0] is Verdict.OK
    assert (
        found["network policies"][0] is Verdict.NOTE and "no canary has come back yet" in found["network policies"][1]
    )
    assert found["gangs"][0] is Verdict.NOTE and "there is no gang scheduling" in found["gangs"][1]
    assert said(site, network_policies="enforced")["network policies"][0] is Verdict.NOTE
    assert site.admin().list("Job", {})[0] == []


def test_doctor_reports_missing_namespace(site: Site) -> None:
    verdict, text = said(site, namespace="team-none")["permissions in team-none"]
    assert verdict is Verdict.WRONG and "no namespace team-none: have it made (ffdl-admin tenant create" in text


def test_doctor_reports_missing_permissions_network_policies_and_kueue(site: Site) -> None:
    (site.base / "tree").mkdir()
    known = {"enforced": False, "text": "they are not", "cluster": f"{site.k8s.url} {site.k8s.namespace}", "at": 1.0}
    (site.base / "tree" / FILE).write_text(json.dumps(known))
    found = said(site, queue="gpus", kubeconfig=str(site.k8s.kubeconfig_of("mallory")))
    verdict, text = found[f"permissions in {site.k8s.namespace}"]
    assert verdict is Verdict.WRONG and "not allowed: create, get, list, watch, patch, delete jobs.batch" in text
    assert "create secrets" in text and "ffdl-admin tenant permissions team-vision --user NAME" in text
    verdict, text = found[f"pods/exec in {site.k8s.namespace}"]
    assert verdict is Verdict.NOTE and text.startswith(
        "not allowed (get, create): ffdl exec and ffdl shell are refused"
    )
    assert text.endswith("; ffdl-admin tenant create team-vision --debugging --update gives it")
    verdict, text = found["nodes of the cluster"]
    assert verdict is Verdict.NOTE and text.startswith("not allowed (list nodes; get localqueues.kueue")
    assert text.endswith("; ffdl-admin tenant create team-vision --nodes --update gives it")
    assert found["network policies"] == (Verdict.WRONG, "they are not")
    assert found["gangs"][0] is Verdict.WRONG and "no Kueue" in found["gangs"][1]
    adapter = site.start()
    with pytest.raises(InvalidRequest, match="are not examined one by one"):
        adapter.examine("n1")


def test_doctor_reports_only_api_server_when_it_is_unreachable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_kubernetes.client.PAUSE_S", 0.0)
    site.k8s.stop()
    found = said(site)
    assert list(found) == ["API server"] and "cannot be reached" in found["API server"][1]


def test_cluster_client_rereads_service_account_token_in_pod(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the files that kubelet puts there; a token that was renewed is read again."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    for name, text in {"token": "first", "namespace": "team-vision", "ca.crt": site.k8s.authority.read_text()}.items():
        (account / name).write_text(text)
    host, port = site.k8s.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    from lightkube.config.kubeconfig import KubeConfig

    original = KubeConfig.from_service_account
    monkeypatch.setattr(KubeConfig, "from_service_account", lambda: original(account))
    groups = ["system:masters"]
    site.k8s.do("token", token="first", user="system:serviceaccount:team-vision:ffdl-submitd", groups=groups)
    client = ClusterClient(KubernetesSettings(kubeconfig="in-cluster"))
    assert client.namespace == "team-vision" and client.version().startswith("v1.")
    (account / "token").write_text("second")
    site.k8s.do("token", token="second", user="system:serviceaccount:team-vision:ffdl-submitd", groups=[])
    site.k8s.do("forget_token", token="first")
    assert not may(client, "create", "batch", "jobs")
    client.close()
