"""Running Jobs that become smaller, on the tests' API server and Job controller, without a kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.job.spec import Resources
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_batch.domain.scheduler_errors import NotNow
from ffdl_kubernetes.client import MERGE, Refused
from tests.contract.test_kubernetes_adapter import Site
from tests.fakes.kubernetes.rig import cluster, eventually, node

LEARNER = {
    "name": "learner", "ready": True, "restartCount": 0, "image": "", "imageID": "",
    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The parameter is the queue of Kueue."""
    monkeypatch.setattr("ffdl_kubernetes.client.PAUSE_S", 0.0)
    queue = getattr(request, "param", "")
    with cluster(tmp_path, nodes=[node("n1")], kueue=bool(queue)) as k8s:
        found = Site(tmp_path, k8s)
        found.scheduler = found.start(queue=queue)
        try:
            yield found
        finally:
            found.close()


def runs(site: Site, learners: int) -> NativeId:
    """A running Job with so many pods."""
    plan = site.plan(resources=Resources(learners=learners, cpus=0.1, memory_bytes=64 * 1024**2), user_env={})
    native = site.scheduler.submit(plan)
    site.admin().patch("Job", native.job, {"spec": {"suspend": False}})  # as Kueue does
    eventually(lambda: len(site.pods(native.job)) == learners, "it has its pods")
    site.set_status(native.job, phase="Running", containerStatuses=[LEARNER])
    site.wait(native, lambda seen: seen.phase is Phase.RUNNING)
    return native


def ends(site: Site, native: NativeId, index: int, phase: str) -> None:
    """The pod with this index ends."""
    for pod in site.pods(native.job):
        if pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(index):
            path = f"api/v1/namespaces/{site.k8s.namespace}/pods/{pod['metadata']['name']}/status"
            site.k8s.ask("PATCH", path, {"status": {"phase": phase}}, content=MERGE)


def sizes(site: Site, native: NativeId) -> tuple[int, int]:
    spec = site.job(native.job)["spec"]
    return spec["completions"], spec["parallelism"]


def leaving(site: Site, native: NativeId) -> list[str]:
    """Indexes of pods that are being deleted."""
    pods = [pod["metadata"] for pod in site.pods(native.job) if "deletionTimestamp" in pod["metadata"]]
    return [pod["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods]


def shrinks(site: Site, native: NativeId, size: int) -> bool:
    """Ask for the size; False while pods that leave still run."""
    try:
        site.scheduler.shrink(native, ["n1"] * size)
    except NotNow as error:
        assert "have not ended yet" in str(error)
        return False
    return True


def test_kubernetes_shrink_waits_for_pods_that_leave_and_changes_both_sizes(site: Site) -> None:
    native = runs(site, 4)
    assert not shrinks(site, native, 2)
    ends(site, native, 3, "Succeeded")
    assert not shrinks(site, native, 2) and sizes(site, native) == (4, 4)
    ends(site, native, 2, "Succeeded")
    eventually(lambda: shrinks(site, native, 2), "the pods that leave have ended")
    assert shrinks(site, native, 2), "it may be asked again"
    assert sizes(site, native) == (2, 2)
    assert site.wait(native).phase is Phase.RUNNING
    for index in (0, 1):
        ends(site, native, index, "Succeeded")
    eventually(lambda: site.job(native.job)["status"].get("succeeded") == 2, "the pods that stayed count")


@pytest.mark.parametrize("site", ["gpus"], indirect=True)
def test_kubernetes_shrink_leaves_job_of_kueue_as_it_is(site: Site) -> None:
    native = runs(site, 2)
    ends(site, native, 1, "Succeeded")
    eventually(lambda: shrinks(site, native, 1), "the pod that leaves has ended")
    assert sizes(site, native) == (2, 2)
    assert not site.job(native.job)["spec"]["suspend"]


def test_kubernetes_observation_brings_changed_requests_to_pods(site: Site) -> None:
    native = runs(site, 2)
    control = Path(site.root.job(native.job.rpartition("-")[0]).attempt(1).control)

    def brought() -> list[str]:
        site.scheduler.observe([native])
        return [pod["metadata"].get("annotations", {}).get("ffdl-batch/control", "") for pod in site.pods(native.job)]

    for text in ('{"learners": 2}', '{"learners": 1}'):
        control.write_text(text)
        eventually(lambda text=text: brought() == [text] * 2, text)  # type: ignore[misc]


def test_fake_cluster_changes_completions_only_with_parallelism(site: Site) -> None:
    native = runs(site, 3)
    for spec in ({"completions": 2}, {"completions": 2, "parallelism": 1}):
        with pytest.raises(Refused, match="in tandem"):
            site.admin().patch("Job", native.job, {"spec": spec})
    site.admin().patch("Job", native.job, {"spec": {"completions": 2, "parallelism": 2}})
    eventually(lambda: leaving(site, native) == ["2"], "the pod with the highest index is deleted")
