"""What a cluster does to the pods of a job, and what its owner is told of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job.spec import BatchOptions, Checkpoint, Resources
from ffdl_batch.domain.launch.pod_protocol import JOB_LABEL
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_kubernetes import adapter
from ffdl_kubernetes.objects.names import INDEX
from tests.contract.kubernetes_harness import KubernetesHarness, policies_of
from tests.fakes.kubernetes.rig import eventually

SAVES = "trap 'echo saved; exit 0' USR2; echo up; while :; do sleep 0.2; done"
TWO = Resources(learners=2, cpus=0.1, memory_bytes=1 << 28)
QUICK, SLOW = (BatchOptions(checkpoint=Checkpoint(grace_s=seconds)) for seconds in (5, 300))


class World(KubernetesHarness):
    """The harness, with hands on the cluster."""

    def pods(self) -> list[dict[str, Any]]:
        """Those of jobs: the probe's own are beside them."""
        where = f"api/v1/namespaces/{self.k8s.namespace}/pods?labelSelector={JOB_LABEL}"
        return list(self.k8s.ask("GET", where)["items"])

    def do(self, request: str, **more: Any) -> None:
        """To the one pod."""
        (pod,) = self.pods()
        self.k8s.do(request, namespace=self.k8s.namespace, pod=pod["metadata"]["name"], **more)

    def run(self, command: str) -> tuple[NativeId, LaunchPlan]:
        """A learner that has printed ``up``."""
        native, plan = self.submit(command, batch=SLOW if command == SAVES else QUICK)  # which is waited out
        self.await_log(plan, "up")
        return native, plan

    def final(self, plan: LaunchPlan) -> dict[str, Any]:
        return dict(json.loads(Path(plan.attempt_dir.final).read_text()))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_final_record_reports_out_of_memory_when_kernel_kills_learner_process(world: World) -> None:
    """Not the first process of its container: the cluster sees an exit status alone, the controller the counters."""
    native, plan = world.run("echo up; sleep 600")
    world.do("out_of_memory", container="learner", whole=False)
    assert world.await_end(native).end is EndCause.FAILURE
    assert world.final(plan)["error_code"] == "C202"


def test_evicted_pod_saves_checkpoint_and_records_preemption(world: World) -> None:
    """A learner that answers ends with status 0, so that the cluster sees a success: the record says what it was."""
    native, plan = world.run(SAVES)
    world.do("evict")
    world.await_end(native)
    assert "saved" in world.log(plan)
    assert (world.final(plan)["outcome"], world.final(plan)["interruption"]) == ("halted", "preemption")


@pytest.mark.parametrize("index", ["0", "1"])
def test_eviction_of_one_pod_of_gang_asks_all_learners_to_save_at_once(world: World, index: str) -> None:
    native, plan = world.submit(f'echo "up $LEARNER_ID"; {SAVES}', resources=TWO, batch=SLOW)

    def printed(number: int, text: str) -> bool:
        log = Path(plan.attempt_dir.training_log(number))
        return log.exists() and text in log.read_text()

    def wait_for(text: str) -> None:
        world.wait(lambda: all(printed(number, text) for number in (1, 2)), world.diagnosis)

    wait_for("up")
    names = {pod["metadata"]["labels"][INDEX]: pod["metadata"]["name"] for pod in world.pods()}
    world.k8s.do("evict", namespace=world.k8s.namespace, pod=names[index])
    evicted_at = time.monotonic()
    seen = world.await_end(native)
    wait_for("saved")
    assert time.monotonic() - evicted_at < 60
    record = world.final(plan)
    assert (record["outcome"], record["interruption"]) == ("halted", "preemption"), seen


def test_evicted_pod_records_preemption_when_kubelet_loses_container_exits(tmp_path: Path) -> None:
    """One that ended by itself would be lost on this kubelet, and with it the grace of the pod: eleven minutes here."""
    world = World(tmp_path, None, loses_ends=True)
    try:
        native, plan = world.run("echo up; sleep 600")
        world.do("evict")
        world.await_end(native)
        assert world.final(plan)["interruption"] == "preemption"
    finally:
        world.close()


def test_evicted_pod_records_preemption_without_checkpoint(world: World) -> None:
    """One that has not begun is PREEMPTED for the cluster, too: tests/unit/kubernetes/test_states.py."""
    native, plan = world.run("echo up; sleep 600")
    world.do("evict")
    seen = world.await_end(native)
    record = world.final(plan)
    assert (seen.end, record["outcome"], record["interruption"]) == (EndCause.SUCCESS, "halted", "preemption")
    assert record["checkpoint"]["confirmed"] is False and "no checkpoint was confirmed" in record["message"]


def test_controller_container_restart_resumes_learner(world: World) -> None:
    native, plan = world.run('echo "up $RESUME"; [ "$RESUME" = 0 ] || exit 0; sleep 600')
    world.do("kill", container="controller")
    seen = world.await_end(native)
    assert seen.end is EndCause.SUCCESS, (seen, world.log(plan))
    assert world.executions(plan.attempt_dir) == 2


def test_job_log_is_complete_when_kubelet_rotates_container_log(world: World) -> None:
    command = "echo up; until [ -e $JOB_STATE_DIR/go ]; do sleep 0.1; done; seq 1 3000"
    native, plan = world.run(command)
    world.do("rotate", container="controller")
    (world.seen_by_job(plan.attempt_dir.state) / "go").touch()
    assert world.await_end(native).end is EndCause.SUCCESS
    assert world.log(plan) == "up\n" + "".join(f"{number}\n" for number in range(1, 3001))


def test_cancelled_pod_keeps_network_policy_until_it_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its learner heeds nothing, so that the pod has all of its grace: that is when results are stored."""
    monkeypatch.setattr(adapter, "HEARD_S", 0.0)
    native, plan = world.submit("trap '' TERM USR2; echo up; exec sleep 600", batch=SLOW)
    world.await_log(plan, "up")
    world.scheduler.cancel(native)
    eventually(lambda: world.pods()[0]["metadata"].get("deletionTimestamp"), "its pod is about to end")
    assert policies_of(world.k8s, world.pods()[0]["metadata"]["labels"]), "and is isolated meanwhile"
    assert world.scheduler.observe([native])[native].end is None
    world.do("kill", container="learner")
    assert world.await_end(native).end is EndCause.CANCELLED
    eventually(lambda: not world.pods(), "its pod is gone")
    assert world.scheduler.observe([native])[native].end is EndCause.CANCELLED, "its Job says so from now on"


def test_withdraw_deletes_waiting_job_whose_status_changes_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Job controller writes the status at any time; the version that was read is then an old one."""
    native, _ = world.submit_waiting()
    client = world.scheduler._client  # type: ignore[attr-defined]
    get, changes = client.get, iter(range(2))

    def get_and_change(kind: str, name: str) -> Any:
        found = get(kind, name)
        if (number := next(changes, None)) is not None:
            path = f"apis/batch/v1/namespaces/{world.k8s.namespace}/jobs/{name}"
            change = {"metadata": {"labels": {"changed": str(number)}}}
            world.k8s.ask("PATCH", path, change, content="application/merge-patch+json")
        return found

    monkeypatch.setattr(client, "get", get_and_change)
    world.scheduler.withdraw(native)
    assert next(changes, None) is None
    assert world.await_end(native).end is EndCause.CANCELLED
