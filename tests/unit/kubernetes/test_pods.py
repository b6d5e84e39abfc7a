"""When the end of a Job is told: Jobs and pods are watched apart, and what pods said last takes its time to be read."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.launch.pod_protocol import ATTEMPT_LABEL, FINALIZER, JOB_LABEL, PodAnnotation, unpack
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.plugins import AdapterContext
from ffdl_kubernetes.adapter import KubernetesScheduler, create
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.pod_sync import LOST_S, READ_MOST_S, READ_S, SILENT_S, Pods
from ffdl_kubernetes.objects.names import CONTROLLER, INDEX, MANAGER, MANAGER_LABEL, labels
from tests.unit.controller.rig import refusal
from tests.unit.kubernetes.request_rig import JOB

TOKEN = f"{JOB}-1"
KUBECONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
    "users": [{"name": "u", "user": {}}],
}  # fmt: skip


def ended_job(condition: str = "Complete", ago_s: float = 0.0, **status: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(time.time() - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{"type": condition, "status": "True", "lastTransitionTime": at}]
    return {
        "metadata": {"name": TOKEN, "labels": labels(JOB, 1), "resourceVersion": "9", "uid": "j"},
        "spec": {"completions": 1},
        "status": {"conditions": conditions, **status},
    }


def pod(name: str = "p", finalizers: tuple[str, ...] = (FINALIZER,)) -> dict[str, Any]:
    """One that ended; its record is in its termination message."""
    terminated = {"terminated": {"exitCode": 0, "message": json.dumps({"outcome": "completed"})}}
    return {
        "metadata": {"name": name, "labels": labels(JOB, 1), "resourceVersion": "5", "finalizers": list(finalizers)},
        "status": {"phase": "Succeeded", "initContainerStatuses": [{"name": CONTROLLER, "state": terminated}]},
    }


class World:
    """An adapter whose watches are in the test's hands, and that changes nothing in a cluster."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (base / "kubeconfig").write_text(json.dumps(KUBECONFIG))
        settings = {"kubeconfig": str(base / "kubeconfig"), "run_as_user": 1000}
        self.scheduler: KubernetesScheduler = create(settings, AdapterContext(str(base / "tree"), "alice", 1000))
        attempt = Root(str(base / "tree")).job(JOB).attempt(1)
        self.final = Path(attempt.final)
        marker_files.leave(attempt, marker_files.SENT_TO, "https://cluster, namespace team")
        self.pods = self.scheduler._pods
        self.let_go: list[str] = []
        monkeypatch.setattr(self.scheduler, "_synced", lambda: None)
        monkeypatch.setattr(
            self.pods._requests, "_queue", lambda name, what: self.let_go.append(name) if not what else None
        )
        monkeypatch.setattr(self.pods._follower, "follow", lambda name: None)

    def listed(self, thing: Mapping[str, Any]) -> None:
        """The pod watch holds it, and its listener was not told yet."""
        self.scheduler._watcher.put("Pod", thing)

    def heard(self, thing: Mapping[str, Any]) -> None:
        self.listed(thing)
        self.scheduler._on_change("ADDED", "Pod", thing)

    def went(self, thing: Mapping[str, Any]) -> None:
        self.scheduler._watcher._held["Pod"].things.pop(thing["metadata"]["name"])
        self.scheduler._on_change("DELETED", "Pod", thing)

    def ends(self, job: Mapping[str, Any]) -> None:
        self.scheduler._watcher.put("Job", job)

    def keep_record(self) -> None:
        self.final.parent.mkdir(parents=True, exist_ok=True)
        self.final.write_text("{}")

    def seen(self) -> tuple[Phase, EndCause | None]:
        native = NativeId(TOKEN)
        found = self.scheduler.observe([native])[native]
        return found.phase, found.end


WAITS, DONE = (Phase.COMPLETING, None), (Phase.ENDED, EndCause.SUCCESS)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.scheduler.close()


def test_changed_requests_are_brought_again_after_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    control, brought = Path(world.scheduler._attempt(TOKEN).control), list[str]()
    control.write_text('{"learners": 1}')

    def fail(_token: str) -> None:
        raise OSError("stale file handle")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="stale"):
        patched.setattr(world.scheduler, "_bring_control", fail)
        world.scheduler._bring_changed_control(TOKEN)
    monkeypatch.setattr(world.scheduler, "_bring_control", brought.append)
    for _ in range(2):
        world.scheduler._bring_changed_control(TOKEN)
    assert brought == [TOKEN]


def test_only_requests_are_brought_to_pods(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    control, brought = Path(world.scheduler._attempt(TOKEN).control), list[str]()
    monkeypatch.setattr(world.scheduler, "_bring_control", brought.append)
    for number, (cell, count) in enumerate(
        [({"attempt": 1}, 0), ({"attempt": 1, "drill": "preemption", "run": 1}, 1), ({"attempt": 2}, 2)]
    ):
        control.write_text(json.dumps(cell))
        os.utime(control, ns=(number, number))
        world.scheduler._bring_changed_control(TOKEN)
        assert len(brought) == count


@pytest.mark.parametrize(
    "cell",
    [{"attempt": 2}, {"requested_action": "halt"}, {"drill": "halt"}, {"learners": 1}, {"abandon_mark": {"run": 1}}],
)
def test_first_sight_of_request_brings_it_to_pods(world: World, monkeypatch: pytest.MonkeyPatch, cell: Any) -> None:
    brought = list[str]()
    monkeypatch.setattr(world.scheduler, "_bring_control", brought.append)
    Path(world.scheduler._attempt(TOKEN).control).write_text(json.dumps(cell))
    world.scheduler._bring_changed_control(TOKEN)
    assert brought == [TOKEN]


def test_kubernetes_job_end_waits_for_unseen_pod_and_its_log(world: World) -> None:
    world.ends(ended_job(succeeded=1))
    assert world.seen() == WAITS
    world.heard(pod())
    assert world.seen() == WAITS, "its log is being read"
    world.pods.on_end("p")
    assert world.final.exists() and world.seen() == DONE


def test_kubernetes_job_end_waits_for_last_pod_of_gang(world: World) -> None:
    world.ends(ended_job("Failed", succeeded=1, failed=1))
    world.heard(pod("p", finalizers=()))
    assert world.seen() == WAITS
    world.heard(pod("q", finalizers=()))
    assert world.seen() == (Phase.ENDED, EndCause.FAILURE)


def test_kubernetes_job_end_waits_for_listed_but_unprocessed_pod(world: World) -> None:
    world.keep_record()
    world.ends(ended_job(succeeded=1))
    world.listed(pod())
    assert world.seen() == WAITS


def test_kubernetes_job_end_counts_pod_that_was_read_and_then_deleted(world: World) -> None:
    world.ends({**ended_job(), "status": {}})
    world.heard(pod(finalizers=()))
    world.went(pod(finalizers=()))
    world.scheduler._watcher._held["Job"].things.clear()
    world.ends(ended_job(succeeded=1))
    assert world.seen() == DONE


def test_kubernetes_job_end_does_not_wait_for_pods_read_by_earlier_daemon(world: World) -> None:
    world.keep_record()
    world.ends(ended_job(succeeded=1))
    assert world.seen() == DONE


def test_kubernetes_job_end_waits_for_pods_if_job_ended_while_daemon_was_down(world: World) -> None:
    """An end is an hour old, and nobody has told it."""
    world.ends(ended_job(ago_s=3600.0, succeeded=1))
    assert world.seen() == WAITS
    world.heard(pod())
    assert world.seen() == WAITS
    world.pods.on_end("p")
    assert world.final.exists() and world.seen() == DONE


@pytest.mark.parametrize(("since_s", "reads", "seen"), [
    (READ_S - 60, False, WAITS),
    (READ_S + 60, False, DONE),
    (READ_S + 60, True, WAITS),
    (READ_MOST_S + 60, True, DONE),
])  # fmt: skip
def test_kubernetes_job_end_waits_for_unreadable_pods_only_until_timeout(
    world: World, since_s: float, reads: bool, seen: tuple[Phase, EndCause | None]
) -> None:
    """`reads`: those of others are being read meanwhile."""
    world.ends(ended_job(succeeded=1))
    assert world.seen() == WAITS
    world.pods._awaited[TOKEN] -= since_s
    world.pods._read_at = time.monotonic() - (0 if reads else since_s)
    assert world.seen() == seen


def test_kubernetes_job_end_is_immediate_for_failed_job_without_pods(world: World) -> None:
    world.ends(ended_job("Failed"))
    assert world.seen() == (Phase.ENDED, EndCause.FAILURE)


def test_kubernetes_job_end_does_not_wait_for_pods_of_job_being_deleted(world: World) -> None:
    job = ended_job("Failed", failed=1)
    world.ends({**job, "metadata": {**job["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert world.seen() == (Phase.ENDED, EndCause.FAILURE)


def test_pod_reader_releases_pod_only_after_its_record_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ends(ended_job(succeeded=1))
    world.heard(pod())
    keep, during = world.pods._keep_final, []

    def slow(known: Any, word: Any) -> None:
        during.append((world.seen(), world.let_go[:]))
        keep(known, word)

    monkeypatch.setattr(world.pods, "_keep_final", slow)
    world.pods.on_end("p")
    assert during == [(WAITS, [])]
    assert (world.seen(), world.let_go) == (DONE, ["p"])


def test_pod_reader_retries_record_after_write_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[tuple[Any, list[str]]] = []

    class Timer:
        daemon = False

        def __init__(self, _seconds: float, what: Any, given: list[str]) -> None:
            later.append((what, given))

        def start(self) -> None:
            """The test does."""

    monkeypatch.setattr(threading, "Timer", Timer)
    world.ends(ended_job(succeeded=1))
    world.heard(pod())
    with monkeypatch.context() as full_disk:
        full_disk.setattr("ffdl_kubernetes.lifecycle.pod_sync.write_text", refusal(errno.ENOSPC))
        world.pods.on_end("p")
    assert (world.seen(), world.let_go) == (WAITS, []), "the pod has its record still"
    ((again, given),) = later
    again(*given)
    assert (world.seen(), world.let_go, world.final.exists()) == (DONE, ["p"], True)


def running(name: str, **meta: Any) -> dict[str, Any]:
    one = pod(name)
    one["metadata"].update(meta)
    one["status"] = {"phase": "Running", "initContainerStatuses": [{"name": CONTROLLER, "state": {"running": {}}}]}
    return one


DELETED = {"deletionTimestamp": "2999-01-01T00:00:00Z"}
EVICTED = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]


@pytest.mark.parametrize(
    ("deleted", "evicted", "cancelled", "warned"),
    [(True, False, False, True), (False, True, False, True), (True, True, True, False), (False, False, False, False)],
)
def test_pod_reader_warns_other_pods_of_gang_once_when_one_is_about_to_end(
    world: World, deleted: bool, evicted: bool, cancelled: bool, warned: bool
) -> None:
    if cancelled:
        marker_files.leave(Root(world.scheduler._root.path).job(JOB).attempt(1), marker_files.CANCELLED)
    for name in ("p", "q"):
        world.heard(running(name))
    leaving = running("q", **(DELETED if deleted else {}))
    leaving["status"]["conditions"] = EVICTED if evicted else []
    for _ in range(2):
        world.heard(leaving)
    assert world.pods._requests._annotations.get(("p", PodAnnotation.SIGNAL)) == ("1 URG" if warned else None)


ANNOTATIONS_BYTES = 256 * 1024
"""Of one object, all together (kubernetes.io, "Annotations")."""


def test_pod_reader_sibling_events_of_large_gang_fit_into_annotations(world: World) -> None:
    for number in range(150):
        one = pod(f"p-{number}")
        one["metadata"]["labels"][INDEX] = str(number)
        world.heard(one)
        said = [{"seq": n, "at": time.time(), "kind": "phase", "x_host": f"host-{number}"} for n in range(35)]
        path = world.final.parent / f"events/node-{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in said))
    world.pods._notify_siblings(TOKEN)
    brought = {
        value for (_, kind), value in world.pods._requests._annotations.items() if kind is PodAnnotation.SIBLINGS
    }
    (text,) = brought
    files = json.loads(unpack(text))
    assert len(files) == 150 and sum(map(len, files.values())) > ANNOTATIONS_BYTES
    assert len(text) < ANNOTATIONS_BYTES / 2


class SlowServer:
    """A client whose first request waits; those that it was asked for."""

    def __init__(self) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.sent: list[str] = []

    def patch(self, kind: str, name: str, change: Mapping[str, Any], content: str = "") -> None:
        self.began.set()
        assert self.goes_on.wait(60)
        self.sent += change["metadata"]["annotations"].values()

    def close(self) -> None: ...


def test_pod_reader_merges_pending_requests_for_one_pod(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = SlowServer()
    pods = Pods(world.scheduler._settings, Root(str(tmp_path / "tree")), lambda: cast(ClusterClient, server))
    pods.on_change("ADDED", pod())
    pods.annotate(TOKEN, PodAnnotation.CONTROL, "0")
    assert server.began.wait(60)
    for number in range(1, 100):
        pods.annotate(TOKEN, PodAnnotation.CONTROL, str(number))
    server.goes_on.set()
    pods.stop()
    assert pods._requests._worker is not None
    pods._requests._worker.join(60)
    assert server.sent == ["0", "99"]


def test_pod_reader_neither_copies_nor_releases_pods_of_another_daemon(world: World) -> None:
    foreign = pod("theirs")
    foreign["metadata"]["labels"] = labels("training-another01", 1)
    world.heard(foreign)
    world.pods.on_end("theirs")
    lost = {**foreign, "metadata": {**foreign["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    world.heard(lost)
    assert world.let_go == []
    assert not Path(Root(world.scheduler._root.path).job("training-another01").path).exists()
    world.heard(pod("mine"))
    world.pods.on_end("mine")
    assert world.let_go == ["mine"]


@pytest.mark.parametrize("others", [{}, {JOB_LABEL: JOB}, {JOB_LABEL: JOB, ATTEMPT_LABEL: "first"}])
def test_pod_reader_ignores_pods_without_valid_attempt_labels(world: World, others: dict[str, str]) -> None:
    """Somebody gave theirs the label by which ours are watched."""
    foreign = pod("theirs")
    foreign["metadata"]["labels"] = {MANAGER_LABEL: MANAGER, **others}
    world.heard(foreign)
    world.went(foreign)
    assert world.let_go == []


class DeadNode:
    """A Job of which the pods `names` are on nodes; :meth:`fall_silent` is the death of one."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.world, self.job, self.version = world, ended_job(), 10
        monkeypatch.setattr(world.scheduler, "_synced", world.pods.look_for_lost)
        self.job["status"] = {}
        self.job["spec"]["completions"] = len(names)
        self.world.ends(self.job)
        monkeypatch.setattr("ffdl_kubernetes.lifecycle.termination.end_job", self.end)
        for name in names:
            self.shows(name)

    def end(self, *_: object) -> dict[str, Any]:
        """As an API server of 1.31 and later shows a Job whose deadline is over, while pods of it are there."""
        self.job["spec"]["activeDeadlineSeconds"] = 1
        self.job["status"]["conditions"] = [{"type": "FailureTarget", "status": "True"}]
        return self.job

    def shows(
        self, name: str, *, by_s: float | None = None, phase: str = "Running", controller: str = "running"
    ) -> None:
        """The pod; `by_s`: it is to end, by so many seconds from now."""
        shown = pod(name)
        shown["spec"] = {"nodeName": "n1"}
        state = {controller if phase == "Running" else "terminated": {"startedAt": "2026-01-01T00:00:00Z"}}
        shown["status"] = {"phase": phase, "initContainerStatuses": [{"name": CONTROLLER, "state": state}]}
        self.version += 1
        shown["metadata"]["resourceVersion"] = str(self.version)
        if by_s is not None:
            at = datetime.fromtimestamp(time.time() + by_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            shown["metadata"]["deletionTimestamp"] = at
        self.world.heard(shown)

    def fall_silent(self, name: str, seconds: float = SILENT_S + 1) -> None:
        self.world.pods._signs[name] -= seconds


def test_kubernetes_job_fails_as_node_failure_when_pod_to_end_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = DeadNode(world, monkeypatch, "p")
    node.fall_silent("p", 3600)
    assert world.seen() == (Phase.RUNNING, None), "silence alone is the platform's to judge"
    node.shows("p", by_s=700)
    assert world.seen() == (Phase.RUNNING, None), "it has its grace"
    node.fall_silent("p", SILENT_S - 10)
    node.shows("p", by_s=700)
    assert world.seen() == (Phase.RUNNING, None)
    node.fall_silent("p", 20)
    assert world.seen() == (Phase.ENDED, EndCause.NODE_FAIL)
    native = NativeId(TOKEN)
    reason = world.scheduler.observe([native])[native].reason
    assert reason == "a pod cannot end, because its node does not answer: p on n1"
    world.pods.look_for_lost()
    assert world.let_go == ["p"]


def test_kubernetes_job_fails_as_node_failure_when_pod_outlives_its_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a daemon that has just been started, and heard nothing of the silence."""
    DeadNode(world, monkeypatch, "p").shows("p", by_s=-LOST_S - 10)
    assert world.seen() == (Phase.ENDED, EndCause.NODE_FAIL)


def test_kubernetes_pod_whose_controller_has_ended_keeps_its_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node lives, for it has reported that; the learner's container may still end."""
    node = DeadNode(world, monkeypatch, "p")
    node.shows("p", by_s=700, controller="terminated")
    node.fall_silent("p")
    assert world.pods.lost(world.scheduler._watcher.pods_by_token()[TOKEN]) == frozenset()


def test_kubernetes_cancel_completes_when_pod_to_end_is_silent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = DeadNode(world, monkeypatch, "p")
    marker_files.leave(world.pods._root.job(JOB).attempt(1), marker_files.CANCELLED)
    world.ends(node.end())
    node.shows("p", by_s=700)
    assert world.seen() == WAITS
    node.fall_silent("p")
    assert world.seen() == (Phase.ENDED, EndCause.CANCELLED)


def test_kubernetes_gang_with_lost_pod_ends_when_its_other_pods_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = DeadNode(world, monkeypatch, "p", "q")
    node.shows("p", by_s=700)
    node.fall_silent("p")
    assert world.seen() == WAITS
    node.shows("q", phase="Failed")
    world.pods.on_end("q")
    assert world.seen() == (Phase.ENDED, EndCause.NODE_FAIL)


def test_kubernetes_job_of_lost_pod_that_cluster_fails_at_once_is_node_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 1.30 the deadline makes it Failed before its pods have ended; and so it stays for a later daemon."""
    node = DeadNode(world, monkeypatch, "p")
    node.shows("p", by_s=700)
    node.fall_silent("p")
    failed = ended_job("Failed")
    failed["spec"]["activeDeadlineSeconds"] = 1
    failed["status"]["conditions"][0]["reason"] = "DeadlineExceeded"
    failed["metadata"]["resourceVersion"] = "10"
    monkeypatch.setattr("ffdl_kubernetes.lifecycle.termination.end_job", lambda *_: failed)
    assert world.seen() == (Phase.ENDED, EndCause.NODE_FAIL)
    world.went({"metadata": {"name": "p", "labels": labels(JOB, 1)}})
    assert world.seen() == (Phase.ENDED, EndCause.NODE_FAIL)
