"""Why jobs wait: the adapters against the executables of a fake Slurm, the tests' API server, and this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import WaitingRequest
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.explanation import Explanation, WaitKind
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.ports.capabilities import ForetellsStart
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_slurm.adapter import SlurmScheduler
from tests.contract.scheduler_harness import FakeSlurmHarness, Harness, LocalHarness
from tests.contract.test_kubernetes_adapter import Site
from tests.contract.test_kubernetes_queues import say
from tests.fakes.kubernetes.rig import cluster, node

OTHERS = (
    "7|RUNNING|main|5000|bob|None|1795476014|1795476614|1|10:00|normal|ffdl|(null)|(null)|1795476012|gpu:a100:3|"
    "(null)|N/A|N/A|N/A|N/A|1|*|x\n"
)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    with FakeSlurmHarness(tmp_path) as harness:
        (harness.state / "others").write_text(OTHERS)
        yield harness


def explain(harness: Harness, *asked: tuple[NativeId | None, Resources]) -> list[Explanation | None]:
    spec = harness.request().spec
    requests = [
        WaitingRequest(replace(spec, resources=resources), harness.facts, native) for native, resources in asked
    ]
    return list(harness.scheduler.explain_waiting(requests))


ONE = Resources(cpus=1, gpus=2, gpu_type="a100", memory_bytes=128 * 1024**2)


def test_slurm_explains_pending_jobs_with_one_squeue_query(slurm: FakeSlurmHarness) -> None:
    (slurm.state / "hold").touch()
    natives = [slurm.submit("true", resources=ONE, batch=BatchOptions(hold=held))[0] for held in (True, False)]
    before = {name: len(slurm.calls(name)) for name in ("squeue", "scontrol")}
    held, other, none = explain(slurm, (natives[0], ONE), (natives[1], ONE), (NativeId("7"), ONE))
    assert held is not None and held.reason is not None
    assert other is not None and other.reason is not None and none is None  # it runs
    (room,) = other.capacity
    assert (room.gpus, room.gpus_free, room.fitting, room.wanted, room.gpus_each) == (4, 1, 0, 1, 2)
    assert [(away.name, away.why) for away in room.away] == [("n2", "no power")]
    assert other.figures == {"longest time in main": "1-00:00:00"}
    assert len(slurm.calls("squeue")) == before["squeue"] + 1
    assert len(slurm.calls("scontrol")) <= before["scontrol"] + 3
    assert not [call for call in slurm.calls("sbatch") if "--parsable" not in call["argv"]]


def test_slurm_pending_explanation_raises_unreachable_when_squeue_fails(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, _ = slurm.submit_waiting()
    assert isinstance(slurm.scheduler, SlurmScheduler)
    for fault in ("down", "timeout", "garbage", "empty", "hang"):
        slurm.spoil("squeue", fault)
        with monkeypatch.context() as patch:
            if fault == "hang":
                patch.setattr(slurm.scheduler._gateway, "_timeout_s", 3)
            with pytest.raises(SchedulerUnreachable):
                explain(slurm, (native, ONE))
    slurm.spoil("squeue")
    assert explain(slurm, (native, ONE))[0] is not None


def test_slurm_start_prediction_returns_nodes_and_submits_nothing(slurm: FakeSlurmHarness) -> None:
    assert isinstance(slurm.scheduler, ForetellsStart)
    plan: LaunchPlan = slurm.prepare()
    accepted = slurm.accepted()
    told = slurm.scheduler.foretell(plan)
    assert told is not None
    assert told.nodes == "n1" and told.at is not None
    slurm.spoil("sbatch", "refuse")
    with pytest.raises(InvalidRequest):
        slurm.scheduler.foretell(plan)
    assert slurm.accepted() == accepted


def test_local_scheduler_explains_pending_job_with_queue_position(tmp_path: Path) -> None:
    harness = LocalHarness(tmp_path)
    try:
        native, _ = harness.submit_waiting()
        (known, asked) = explain(harness, (native, Resources(cpus=1)), (None, Resources(cpus=1)))
        assert known is not None and known.reason is not None and known.position == 1
        assert (known.reason.kind, known.reason.code) == (WaitKind.LIMIT, "max_jobs")
        assert asked is not None and asked.reason is None and asked.ahead[0].jobs == 1
        harness.let_run()
        harness.await_end(native)
        assert explain(harness, (native, Resources(cpus=1))) == [None]
    finally:
        harness.close()


@pytest.mark.parametrize(("machine", "wanted"), [({}, 0), ({"": 4}, 3)])
def test_local_scheduler_counts_gpus_of_unsubmitted_request_if_machine_has_any(
    tmp_path: Path, machine: dict[str, int], wanted: int
) -> None:
    harness = LocalHarness(tmp_path)
    try:
        facts = replace(harness.facts, nodes=(replace(harness.facts.nodes[0], gpus=machine),))
        spec = replace(harness.request().spec, resources=Resources(gpus=1.5, learners=2))
        (known,) = harness.scheduler.explain_waiting([WaitingRequest(spec, facts, None)])
        assert known is not None
        (room,) = known.capacity
        assert (room.gpus, room.gpus_each) == (sum(machine.values()), wanted)
    finally:
        harness.close()


def kubernetes_explains(site: Site, native: NativeId | None) -> Explanation | None:
    facts = site.scheduler.probe()
    (known,) = site.scheduler.explain_waiting(
        [WaitingRequest(JobSpec("x", Framework("custom", "1", "x")), facts, native)]
    )
    return known


def test_kubernetes_explains_unschedulable_job_with_count_of_lacking_nodes(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=[node("n1", gpus=1), node("n2", gpus=1)]) as k8s:
        site = Site(tmp_path, k8s)
        try:
            native = site.scheduler.submit(site.plan(resources=Resources(cpus=0.5, gpus=2, memory_bytes=1 << 28)))
            site.wait(native, lambda one: one is not None and "Insufficient nvidia.com/gpu" in one.reason)
            known = kubernetes_explains(site, native)
            assert known is not None and known.reason is not None
            assert (known.reason.kind, known.reason.code) == (WaitKind.TOO_MUCH, "Unschedulable")
            assert "empty they have room for 0 of 1 learner; one node has at most 1 GPU, 8 CPUs" in known.reason.detail
            assert known.figures["nodes with Insufficient nvidia.com/gpu"] == "2 of 2"
        finally:
            site.close()


def test_kubernetes_explains_job_blocked_by_quota_with_its_usage(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=[node("n1")]) as k8s:
        site = Site(tmp_path, k8s)
        try:
            quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
            site.admin().create({**quota, "spec": {"hard": {"pods": "0"}}})
            native = site.scheduler.submit(site.plan())
            site.wait(native, lambda one: one is not None and "quota none never has so much" in one.reason)
            known = kubernetes_explains(site, native)
            assert known is not None and known.reason is not None and known.reason.limit is not None
            limit = known.reason.limit
            shown = (limit.owner, limit.name, limit.resource, limit.most, limit.asked)
            assert shown == ("quota", "none", "pods", "0", "1")
            assert known.figures["quota none, pods"].endswith("of 0 in use")
            plain = kubernetes_explains(site, None)
            never = {"quota none has": "0 pods, and all learners together ask for 1: they never start"}
            assert plain is not None and plain.reason is None and plain.figures == {**known.figures, **never}
        finally:
            site.close()


def test_kubernetes_explains_job_in_kueue_queue_with_its_position(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=[node("n1")], kueue=True) as k8s:
        site = Site(tmp_path, k8s)
        site.settings["queue"] = "gpus"
        site.scheduler = site.start()
        k8s.ask("POST", f"apis/kueue.x-k8s.io/v1beta1/namespaces/{k8s.namespace}/localqueues", {
            "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "gpus"},
            "spec": {"clusterQueue": "all"},
        })  # fmt: skip
        try:
            native = site.scheduler.submit(site.plan())
            say(site, native.job, ("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu"))
            site.wait(native, lambda one: one is not None and "insufficient" in one.reason)
            known = kubernetes_explains(site, native)
            assert known is not None and known.reason is not None
            assert (known.reason.kind, known.reason.detail) == (WaitKind.QUEUE, "insufficient unused quota for cpu")
            assert known.position == 1
            asked = kubernetes_explains(site, None)
            assert asked is not None and asked.figures == {"queue gpus": "1 job of the namespace waits in it"}
        finally:
            site.close()
