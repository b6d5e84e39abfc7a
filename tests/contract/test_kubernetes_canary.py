"""The canary against the tests' API server. What its pods find is up to the test: no network is enforced here."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.spec import BatchOptions, NetworkLevel
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_kubernetes.adapter import KubernetesScheduler
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.observing import network_canary
from ffdl_kubernetes.settings import read_settings
from tests.contract.test_kubernetes_adapter import Site
from tests.fakes.kubernetes.rig import cluster, eventually, node

INDEX = "batch.kubernetes.io/job-completion-index"
ADDRESSES = {"servers-0": "10.0.0.10", "servers-1": "10.0.0.11"}
Outcome = Callable[[str], dict[str, int]]


def enforced(client: str) -> dict[str, int]:
    return {"10.0.0.10": 3 if client == "clients-0" else 0, "10.0.0.11": 0}


def let_through(client: str) -> dict[str, int]:
    return {"10.0.0.10": 3, "10.0.0.11": 3}


class Kubelet:
    """Gives the canary's pods addresses and last words; servers are in the phase `servers`."""

    def __init__(self, site: Site, outcome: Outcome, namespace: str, servers: str = "Running") -> None:
        self.site, self.outcome, self.stopped, self.servers = site, outcome, threading.Event(), servers
        self.client = ClusterClient(read_settings({"kubeconfig": str(site.k8s.kubeconfig), "namespace": namespace}))
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            for pod in self.client.list("Pod", {"labelSelector": "ffdl-batch/canary"})[0]:
                meta = pod["metadata"]
                part = f"{meta['labels']['ffdl-batch/canary-part']}-{meta['labels'][INDEX]}"
                status: dict[str, Any] = {"phase": self.servers, "podIP": ADDRESSES.get(part, "10.0.0.20")}
                one = {"name": "clients", "image": "c", "imageID": "c", "ready": False, "restartCount": 0}
                if self.servers == "Failed":
                    ended = {"exitCode": 127, "reason": "Error"}
                    status["containerStatuses"] = [{**one, "name": "servers", "state": {"terminated": ended}}]
                if part.startswith("clients"):
                    ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps(self.outcome(part))}
                    status |= {"phase": "Succeeded", "containerStatuses": [{**one, "state": {"terminated": ended}}]}
                path = f"api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
                if pod.get("status", {}).get("phase") == "Pending":
                    self.client._ask("PATCH", path, body={"status": status}, content="application/merge-patch+json")

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()
        self.client.close()


@contextlib.contextmanager
def kubelet(site: Site, outcome: Outcome, namespace: str = "", servers: str = "Running") -> Iterator[None]:
    found = Kubelet(site, outcome, namespace, servers)
    try:
        yield
    finally:
        found.stop()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(network_canary, "POLL_S", 0.05)
    with cluster(tmp_path, nodes=[node("n1")]) as k8s:
        found = Site(tmp_path, k8s)
        found.settings["network_policies"] = ""
        yield found
        found.close()


def levels(site: Site, **changes: object) -> frozenset[NetworkLevel]:
    return site.start(**changes).probe().network_levels


def warned(adapter: KubernetesScheduler, words: str) -> BackendFacts:
    """Return what a probe says of the cluster, once its first warning has these words."""
    found = eventually(lambda: (facts := adapter.probe()) and words in facts.warnings[0] and facts, words)
    assert isinstance(found, BackendFacts)
    return found


def test_canary_proves_network_policies_for_all_daemons_of_cluster_until_proof_expires(site: Site) -> None:
    adapter = site.scheduler = site.start()
    facts = adapter.probe()
    assert facts.network_levels == {NetworkLevel.HOST} and "it is not known yet" in facts.warnings[0]
    with kubelet(site, enforced):
        eventually(lambda: NetworkLevel.JOB in adapter.probe().network_levels, "the canary is back")
    assert adapter.probe().warnings == ()
    eventually(lambda: not site.admin().list("Job", {})[0], "nothing of it is left")
    site.k8s.counts(reset=True)
    assert NetworkLevel.NONE in levels(site)
    assert "create jobs" not in site.k8s.counts()
    plan = site.plan()
    assert (plan.network.level, plan.network.mechanism) == ("none", "NetworkPolicy, proved by a canary")
    file = site.base / "tree" / network_canary.FILE
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, "cluster": "https://elsewhere team-a"}))
    assert levels(site, canary_interval_s=0) == {NetworkLevel.HOST}
    file.write_text(json.dumps({**known, "at": known["at"] - 7 * 3600}))
    assert NetworkLevel.JOB in levels(site)
    file.write_text(json.dumps({**known, "at": known["at"] - 19 * 3600}))
    assert levels(site) == {NetworkLevel.HOST}


def test_canary_disproof_limits_plans_to_host_network_and_rejects_plan_for_closed_level(site: Site) -> None:
    adapter = site.scheduler = site.start()
    with kubelet(site, let_through):
        facts = warned(adapter, "does not enforce")
    assert facts.network_levels == {NetworkLevel.HOST}
    with pytest.raises(InvalidRequest, match="does not enforce NetworkPolicies"):
        site.plan(batch=BatchOptions(network=NetworkLevel.JOB))
    plan = site.plan()
    assert plan.network.level == "host" and any("does not enforce" in one for one in plan.warnings)
    site.scheduler = site.start(network_policies="enforced")
    plan = site.plan(batch=BatchOptions(network=NetworkLevel.NONE))
    with pytest.raises(InvalidRequest, match="was planned with a network level that needs them"):
        adapter.submit(plan)
    assert site.admin().get("Job", plan.token) is None


def test_canary_warns_without_result_when_pods_never_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_canary, "LIFE_S", 0.5)
    site.k8s.do("pause", controller="scheduler")
    adapter = site.start()
    adapter.probe()
    facts = warned(adapter, "did not run")
    assert "; if the network enforces NetworkPolicies and no canary can show it, set" in facts.warnings[0]
    assert facts.network_levels == {NetworkLevel.HOST}
    assert not (site.base / "tree" / network_canary.FILE).exists()
    assert site.admin().list("Job", {})[0] == []


def test_canary_reports_exit_status_when_server_pods_end(site: Site) -> None:
    adapter = site.start()
    adapter.probe()
    with kubelet(site, enforced, servers="Failed"):
        facts = warned(adapter, "has ended")
    assert re.search(r"-servers-[01]\S*: exit status 127", facts.warnings[0])
    assert site.admin().list("Job", {})[0] == []


def test_canary_warning_names_missing_permission(site: Site) -> None:
    adapter = site.start(kubeconfig=str(site.k8s.kubeconfig_of("mallory")))
    adapter.probe()
    facts = warned(adapter, "cannot create")
    assert 'User "mallory" cannot create resource "jobs"' in facts.warnings[0]
    assert facts.warnings[0].endswith("to correct: ffdl sends the canary again by itself")


def test_canary_warning_in_missing_namespace_says_that_it_is_sent_again(site: Site) -> None:
    adapter = site.start(namespace="lim")
    adapter.probe()
    (warning,) = warned(adapter, "could not be sent").warnings
    assert warning.startswith("only network level host is offered: the canary could not be sent: namespaces")
    assert "not found; do nothing, unless the reason names something to correct" in warning
