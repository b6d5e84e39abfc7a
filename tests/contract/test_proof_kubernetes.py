"""`make proof-kubernetes` in a short form, against the tests' cluster, so that it cannot rot; and that it can fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.kubernetes_harness import CONTROLLER_IMAGE, images
from tests.fakes.kubernetes.rig import FakeCluster, cluster, eventually, node
from tests.proof.kubernetes import sizes
from tests.proof.kubernetes.__main__ import main
from tests.proof.kubernetes.values import BREAKS

GIVEN = ("--controller-image", CONTROLLER_IMAGE, "--python", sys.executable)


DNS = {
    "metadata": {"name": "coredns", "labels": {"k8s-app": "kube-dns"}},
    "spec": {
        "containers": [{"name": "coredns", "image": "registry.example.com/coredns:1", "command": ["sleep", "600"]}]
    },
}


@pytest.fixture
def k8s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeCluster]:
    """Parameters are knobs of the kubelets."""
    kubelet = {**images(), "memory_limits": True, **getattr(request, "param", {})}
    kubelet["images"]["missing"] = ["registry.invalid/*"]
    with cluster(tmp_path, nodes=[node("n1", cpu="4")], kubelet=kubelet) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
        yield found


def words(said: str) -> dict[str, str]:
    """Point -> word, of the lines that were printed."""
    lines = [line for line in said.splitlines() if " s  " in line]
    return {line.split(" s  ")[1].partition(":")[0]: line.partition("  ")[0] for line in lines}


def namespaces(k8s: FakeCluster) -> list[str]:
    """Those of proofs."""
    found = [one["metadata"]["name"] for one in k8s.ask("GET", "api/v1/namespaces")["items"]]
    return [name for name in found if name.startswith("ffdl-proof")]


@pytest.mark.full
def test_proof_runs_selected_points_and_removes_its_namespaces(
    k8s: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    only = "permissions,dry run,exit code,results,names,out of memory,policies,unschedulable,deletion,tenant's"
    status = main([*GIVEN, "--only", only])
    said = capsys.readouterr().out
    assert words(said) == {
        "tenant": "passed", "permissions": "passed", "dry run": "passed", "results are copied": "passed",
        "exit code": "passed", "names of pods": "not possible here", "out of memory": "passed", "policies": "passed",
        "unschedulable": "passed", "deletion": "passed",
        "another tenant's objects": "passed", "another tenant's learners": "not possible here",
        "nothing is left": "passed",
    }, said  # fmt: skip
    assert status == 0 and said.endswith("points 13 passed 11 failed 0 not possible here 2\n")
    assert "names of pods: the cluster has no DNS: no pod of kube-system has the label k8s-app=kube-dns" in said
    assert not namespaces(k8s)


@pytest.mark.full
def test_proof_passes_data_by_volume_claim(k8s: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--only", "by a claim", "--strict", "--claim-class", "any"]) == 0
    assert words(capsys.readouterr().out)["data by a claim"] == "passed"


@pytest.mark.full
def test_proof_changes_sizes_of_elastic_jobs(
    k8s: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "IN_PLACE", (6000, 2000))
    assert main([*GIVEN, "--only", "elastic,in place", "--strict"]) == 0
    said = capsys.readouterr().out
    found = words(said)
    assert (found["elastic jobs"], found["shrinks in place"]) == ("passed", "passed") and "none differs" in said, said


@pytest.mark.full
@pytest.mark.parametrize("debugging", [True, False])
def test_proof_passes_exec_commands_only_with_debugging_permission(
    k8s: FakeCluster, capsys: pytest.CaptureFixture[str], debugging: bool
) -> None:
    status = main([*GIVEN, "--only", "permissions,commands,processes", *(["--debugging"] if debugging else [])])
    said = capsys.readouterr().out
    found = words(said)
    assert (status, found["permissions"], found["processes"]) == (0, "passed", "passed"), said
    assert found["commands"] == ("passed" if debugging else "not possible here"), said


@pytest.mark.full
def test_proof_strict_fails_when_a_point_is_not_possible(k8s: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, "--only", "names", "--strict"]) == 1
    assert words(capsys.readouterr().out)["names of pods"] == "not possible here"


@pytest.mark.parametrize(
    ("k8s", "found"),
    [
        (
            {"policies": True},
            "a canary proved that the cluster's network enforces NetworkPolicies; level none is taken",
        ),
        pytest.param(
            {"policies": False},
            "it let through connections out of a pod that may make none; level none is refused",
            marks=pytest.mark.full,
        ),
    ],
    indirect=["k8s"],
)
def test_proof_reports_whether_network_policies_are_enforced(
    k8s: FakeCluster, capsys: pytest.CaptureFixture[str], found: str
) -> None:
    """Real processes: the listeners, and the clients that try to reach them."""
    assert main([*GIVEN, "--only", "policies"]) == 0
    said = capsys.readouterr().out
    assert words(said)["policies"] == "passed" and found in said, said


@pytest.mark.full
def test_proof_resolves_pod_names_when_cluster_has_dns(k8s: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    k8s.ask("POST", "api/v1/namespaces/kube-system/pods", DNS)
    assert main([*GIVEN, "--only", "names"]) == 0
    said = capsys.readouterr().out
    assert words(said)["names of pods"] == "passed" and "its Service has both pods" in said, said


@pytest.mark.full
def test_proof_fails_and_cleans_up_when_no_pod_runs(k8s: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    k8s.do("pause", controller="scheduler")
    assert main([*GIVEN, "--only", "a job completes", "--patience", "8"]) == 1
    said = capsys.readouterr().out
    assert words(said)["a job completes"] == "failed", said
    assert "not so after 8 s" in said
    eventually(lambda: not namespaces(k8s), "its namespace is gone")  # which may take longer than the proof waits


@pytest.mark.parametrize(("broken", "only", "point"), [
    pytest.param("role", "permissions", "permissions"),
    pytest.param("security", "permissions", "tenant"),
    pytest.param("bytes", "results", "results are copied", marks=pytest.mark.full),
    pytest.param("tenants", "tenant's objects", "another tenant's objects", marks=pytest.mark.full),
    pytest.param("image", "a job completes", "a job completes", marks=pytest.mark.full),
])  # fmt: skip
def test_proof_detects_deliberate_break(
    k8s: FakeCluster, capsys: pytest.CaptureFixture[str], broken: str, only: str, point: str
) -> None:
    assert main([*GIVEN, "--only", only, "--break", broken]) == 1
    said = capsys.readouterr().out
    assert words(said)[point] == "failed", said
    assert not namespaces(k8s)


def test_proof_break_cases_cover_all_breaks() -> None:
    (mark,) = test_proof_detects_deliberate_break.pytestmark  # type: ignore[attr-defined]
    assert {one.values[0] for one in mark.args[1]} == set(BREAKS)
