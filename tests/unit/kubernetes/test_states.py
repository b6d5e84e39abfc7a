"""Jobs and pods as the API server shows them, and what they come to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_kubernetes.observing.job_states import Beside, missing_image, observe

CREATED = "2026-11-20T10:00:00Z"


def job(*conditions: dict[str, str], suspend: bool = False, queue: str = "") -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {
        "metadata": {"name": "training-0a1b2c3d4-1", "creationTimestamp": CREATED, "labels": labels},
        "spec": {"suspend": suspend},
        "status": {"conditions": [{"status": "True", "lastTransitionTime": CREATED, **one} for one in conditions]},
    }


def pod(index: int = 0, *conditions: dict[str, str], node: str = "", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"training-0a1b2c3d4-1-{index}-abcde"},
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": [{"status": "True", **one} for one in conditions], **status},
    }


def learner(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "learner", "image": "pytorch:2.5", "state": state}]}


def sidecar(**state: Any) -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": "controller", "image": "controller", "state": state}]}


def test_observe_returns_none_without_job_and_pods() -> None:
    assert observe(None, []) is None


@pytest.mark.parametrize(("shown", "pods", "refusal", "words"), [
    (job(suspend=True, queue="team-a"), [], "", "it waits in the queue team-a (Kueue)"),
    (job(suspend=True), [], "", "it is being created"),
    (job(), [], "", ""),
    (job(),
     [pod(0, {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient gpu."})],
     "", "no node has room now: 0/3 nodes are available: 3 Insufficient gpu.; "
     "ffdl why shows whether a node can ever hold it"),
    (job(), [pod(**learner(waiting={"reason": "ImagePullBackOff", "message": "not found"}))], "",
     "the image pytorch:2.5 cannot be had (ImagePullBackOff): not found; correct its name, or push it"),
    (job(), [], 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: '
     "requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8",
     "quota gpus is used up: requests.nvidia.com/gpu=8 of requests.nvidia.com/gpu=8, and "
     "requests.nvidia.com/gpu=2 is asked for: the job starts when others of the namespace end"),
    (job(), [],
     'pods "x" is forbidden: exceeded quota: small, requested: requests.cpu=70100m,requests.memory=1Gi, used: '
     "requests.cpu=0,requests.memory=1Gi, limited: requests.cpu=64,requests.memory=1Gi",
     "quota small never has so much: requests.cpu=70100m is asked for, and it has 64: ask for less, or for a "
     "larger quota"),
    (job(), [], "denied", "pods are refused: denied"),
])  # fmt: skip
def test_observe_reports_pending_reason_for_waiting_job(
    shown: dict[str, Any], pods: list[Any], refusal: str, words: str
) -> None:
    seen = observe(shown, pods, Beside(refusal))
    assert seen is not None
    assert (seen.phase, seen.reason) == (Phase.PENDING, words)
    assert seen.submitted_at == 1795168800.0 and seen.name == "training-0a1b2c3d4-1"


def test_observe_reports_running_when_controller_sidecar_runs() -> None:
    seen = observe(job(), [pod(1, node="n2"), pod(0, node="n1", **sidecar(running={"startedAt": CREATED}))])
    assert seen is not None
    assert (seen.phase, seen.nodes, seen.started_at) == (Phase.RUNNING, "n1,n2", 1795168800.0)


def test_observe_reports_success_for_complete_job() -> None:
    seen = observe(job({"type": "Complete"}), [])
    assert seen is not None
    assert (seen.phase, seen.end, seen.exit_code, seen.ended_at) == (Phase.ENDED, EndCause.SUCCESS, 0, 1795168800.0)


FAILED = {"type": "Failed", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}


@pytest.mark.parametrize(("pods", "end", "code", "words"), [
    ([pod(**learner(terminated={"exitCode": 3, "reason": "Error"}))], EndCause.FAILURE, 3, "BackoffLimitExceeded"),
    ([pod(**learner(terminated={"exitCode": 137, "reason": "OOMKilled"}))], EndCause.OUT_OF_MEMORY, 137, "memory"),
    ([pod(0, {"type": "DisruptionTarget", "reason": "PreemptionByScheduler"})], EndCause.PREEMPTED, None, "Preemption"),
    ([pod(0, {"type": "DisruptionTarget", "reason": "DeletionByTaintManager"})], EndCause.NODE_FAIL, None, "Taint"),
    ([pod(reason="Evicted", message="low on memory")], EndCause.NODE_FAIL, None, "low on memory"),
    ([pod(reason="DeadlineExceeded")], EndCause.TIMEOUT, None, "deadline"),
    ([pod(**sidecar(terminated={"exitCode": 1, "reason": "Error"}))], EndCause.FAILURE, 1, "the controller ended"),
    ([], EndCause.FAILURE, None, "BackoffLimitExceeded"),
    ([pod(0, **learner(terminated={"exitCode": 143})), pod(1, {"type": "DisruptionTarget",
        "reason": "DeletionByPodGC"})], EndCause.NODE_FAIL, None, "-1-abcde: DeletionByPodGC"),
])  # fmt: skip
def test_observe_reports_most_specific_cause_of_failed_job(
    pods: list[Any], end: EndCause, code: int | None, words: str
) -> None:
    seen = observe(job(FAILED), pods)
    assert seen is not None
    assert (seen.phase, seen.end, seen.exit_code) == (Phase.ENDED, end, code)
    assert words in seen.reason


def test_observe_reports_cancelled_once_pods_of_deleted_job_are_gone() -> None:
    seen = observe(None, [pod(node="n1")], Beside(cancelled=True))
    assert seen is not None and (seen.phase, seen.end) == (Phase.COMPLETING, None)
    seen = observe(None, [], Beside(cancelled=True))
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, EndCause.CANCELLED)


def test_observe_reports_completing_while_job_is_ending() -> None:
    for shown in (job({"type": "FailureTarget"}), job({"type": "SuccessCriteriaMet"})):
        seen = observe(shown, [])
        assert seen is not None and seen.phase is Phase.COMPLETING


SHORT_OF_DISK = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi."


@pytest.mark.parametrize(("status", "end", "words"), [
    ({"reason": "NodeLost"}, EndCause.NODE_FAIL, "NodeLost"),
    ({"reason": "Terminated", "message": "imminent node shutdown"}, EndCause.NODE_FAIL, "imminent node shutdown"),
    ({"reason": "NodeShutdown"}, EndCause.NODE_FAIL, "NodeShutdown"),
    ({"reason": "UnexpectedAdmissionError", "message": "no healthy devices"}, EndCause.NODE_FAIL, "healthy devices"),
    ({"reason": "OutOfcpu"}, EndCause.NODE_FAIL, "OutOfcpu"),
    ({"reason": "OutOfnvidia.com/gpu"}, EndCause.NODE_FAIL, "gpu"),
    ({"reason": "NodeAffinity"}, EndCause.NODE_FAIL, "NodeAffinity"),
    ({"reason": "Preempting", "message": "for a critical pod"}, EndCause.PREEMPTED, "for a critical pod"),
    ({"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}, EndCause.NODE_FAIL,
     "low on resource"),
    ({"reason": "Evicted", "message": 'Usage of EmptyDir volume "work" exceeds the limit "1Gi". '},
     EndCause.OUT_OF_STORAGE, 'exceeds the limit "1Gi".; ask for more (storage)'),
    ({"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi"},
     EndCause.OUT_OF_STORAGE, "the learner wrote more than its limit of storage: Pod ephemeral"),
    ({"reason": "Evicted", "message": 'Container learner exceeded its local ephemeral storage limit "1Gi". '},
     EndCause.OUT_OF_STORAGE, "the learner wrote more than its limit of storage"),
    ({"reason": "Evicted", "message": f"{SHORT_OF_DISK} Container learner was using 40Ki, request is 0, has larger "
      "consumption of ephemeral-storage. "}, EndCause.OUT_OF_STORAGE, ": the pod asked for no storage, so its node"),
    ({"reason": "Evicted", "message": f"{SHORT_OF_DISK} Container learner was using 60Gi, which exceeds its request of "
      "10Gi. "}, EndCause.OUT_OF_STORAGE, "the learner used 60Gi and asked for 10Gi of storage"),
    ({"reason": "Evicted", "message": f"{SHORT_OF_DISK} Container controller was using 8Ki, request is 0, has larger "
      "consumption of ephemeral-storage. "}, EndCause.NODE_FAIL, "available: 900Mi"),
    ({"reason": "Evicted", "message": "The node was low on resource: memory. Container learner was using 9Gi, request "
      "is 8Gi, has larger consumption of memory. "}, EndCause.NODE_FAIL, "low on resource: memory"),
    (sidecar(terminated={"exitCode": 137, "reason": "OOMKilled"}), EndCause.FAILURE,
     "the controller ended: out of memory"),
])  # fmt: skip
def test_observe_maps_pod_failure_reason_to_end_cause(status: dict[str, Any], end: EndCause, words: str) -> None:
    seen = observe(job(FAILED), [pod(0, **status)])
    assert seen is not None and seen.end is end and words in seen.reason


@pytest.mark.parametrize(("requests", "end"), [({}, EndCause.OUT_OF_STORAGE), (
    {"ephemeral-storage": "10Gi"}, EndCause.NODE_FAIL)])  # fmt: skip
def test_observe_blames_pod_without_storage_request_for_full_disk_of_its_node(
    requests: dict[str, str], end: EndCause
) -> None:
    """Whatever it writes into volumes is in no figure of kubelet's message."""
    shown = pod(
        0, {"type": "DisruptionTarget", "reason": "TerminationByKubelet"}, reason="Evicted", message=SHORT_OF_DISK
    )
    shown["spec"]["containers"] = [{"name": "learner", "resources": {"requests": {"cpu": "1", **requests}}}]
    seen = observe(job(FAILED), [shown])
    assert seen is not None and seen.end is end and "available: 900Mi" in seen.reason


@pytest.mark.parametrize(
    ("controller", "deleted", "end"),
    [
        ({}, False, EndCause.KILLED_ITSELF),
        ({"reason": "OOMKilled"}, False, EndCause.FAILURE),
        ({"message": '{"outcome": "failed"}'}, False, EndCause.FAILURE),
        ({"finishedAt": "2026-01-01T00:09:00Z"}, False, EndCause.FAILURE),
        ({"exitCode": 143}, False, EndCause.FAILURE),
        ({}, True, EndCause.FAILURE),
    ],
)
def test_observe_blames_learner_if_kill_ended_it_and_its_controller_at_once(
    controller: dict[str, Any], deleted: bool, end: EndCause
) -> None:
    killed = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}
    one = pod(phase="Failed", **learner(terminated=killed), **sidecar(terminated={**killed, **controller}))
    if deleted:
        one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    seen = observe(job({"type": "Failed", "reason": "BackoffLimitExceeded"}), [one])
    assert seen is not None and seen.end is end


def test_observe_prefers_pod_that_filled_its_disk_to_pods_that_ended_with_it() -> None:
    gone = pod(0, {"type": "DisruptionTarget", "reason": "DeletionByTaintManager"})
    full = pod(1, reason="Evicted", message=f"{SHORT_OF_DISK} Container learner was using 60Gi, request is 0, has")
    seen = observe(job(FAILED), [gone, full])
    assert seen is not None and seen.end is EndCause.OUT_OF_STORAGE


@pytest.mark.parametrize(("conditions", "meta", "words"), [
    ([{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}],
     {"deletionTimestamp": "2026-11-28T17:00:00Z"},
     "training-0a1b2c3d4-1-0-abcde is about to end: it is being evicted, for example because its node is drained "
     "(Eviction API: evicting); kubelet kills it at 2026-11-28T17:00:00Z if it still runs then"),
    ([{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}], {}, "a pod of higher priority takes its place"),
    ([{"type": "DisruptionTarget", "reason": "TerminationByKubelet"}], {}, "its node shuts down"),
    ([{"type": "DisruptionTarget", "reason": "SomethingNew"}], {}, "is about to end: SomethingNew"),
    ([], {"deletionTimestamp": "2026-11-28T17:00:00Z"}, "it is being deleted; kubelet kills it at"),
    ([], {}, ""),
])  # fmt: skip
def test_observe_reports_disruption_during_grace_of_pod(
    conditions: list[dict[str, str]], meta: dict[str, str], words: str
) -> None:
    shown = pod(0, *conditions, node="n1", phase="Running", **sidecar(running={"startedAt": CREATED}))
    shown["metadata"].update(meta)
    for state, phase in ((job(), Phase.RUNNING), (job({"type": "FailureTarget"}), Phase.COMPLETING)):
        seen = observe(state, [shown])
        assert seen is not None and seen.phase is phase
        assert words in seen.lacks and bool(seen.lacks) is bool(words)
    cancelled = job()
    cancelled["spec"]["activeDeadlineSeconds"] = 1
    seen = observe(cancelled, [shown])
    assert seen is not None and seen.lacks == ""


@pytest.mark.parametrize(("reason", "end"), [
    ("PreemptionByScheduler", EndCause.PREEMPTED),
    ("EvictionByEvictionAPI", EndCause.PREEMPTED),
    ("DeletionByTaintManager", EndCause.NODE_FAIL),
    ("DeletionByPodGC", EndCause.NODE_FAIL),
    ("TerminationByKubelet", EndCause.NODE_FAIL),
    ("SomethingNew", EndCause.NODE_FAIL),
])  # fmt: skip
def test_observe_maps_disruption_reason_to_end_cause(reason: str, end: EndCause) -> None:
    shown = job({"type": "Failed", "reason": "PodFailurePolicy", "message": "matching FailJob rule"})
    seen = observe(shown, [pod(0, {"type": "DisruptionTarget", "reason": reason, "message": "why"})])
    assert seen is not None and (seen.end, seen.reason) == (end, f"training-0a1b2c3d4-1-0-abcde: {reason}: why")


def test_observe_reports_timeout_for_job_deadline() -> None:
    seen = observe(job({"type": "Failed", "reason": "DeadlineExceeded"}), [])
    assert seen is not None and seen.end is EndCause.TIMEOUT


def refused(message: str) -> str:
    seen = observe(job(), [], Beside(f'Error creating: pods "x" is forbidden: {message}'))
    assert seen is not None and seen.phase is Phase.PENDING
    return seen.reason


@pytest.mark.parametrize(("message", "advice"), [
    ('violates PodSecurity "restricted:latest": allowPrivilegeEscalation', "a setting of the site's breaks it"),
    ("failed quota: q: must specify limits.cpu for: controller,learner", "set cpu_limit and controller_cpu_limit"),
    ("failed quota: q: must specify requests.cpu,limits.cpu for: learner", "cancel the job and submit it again"),
    ("failed quota: q: must specify limits.ephemeral-storage for: controller", "write storage in the manifest"),
    ("failed quota: q: must specify limits.memory for: x", "ffdl-admin tenant create makes one"),
    ('spec.initContainers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
     "set controller_cpu_limit or controller_cpus"),
    ('spec.containers[0].resources.requests: Invalid value: "8": must be less than or equal to cpu limit of 1',
     'set cpu_limit = "request"'),
    ("cpu max limit to request ratio per Container is 2, but provided ratio is 10.000000", "controller_cpu_limit in"),
    ("maximum memory usage per Container is 4Gi, but limit is 8Gi", "the namespace's LimitRange allows"),
    ("no PriorityClass with name high was found", "correct priority_class"),
    ('pod rejected: RuntimeClass "gvisor" not found', "correct runtime_class"),
    ('error looking up service account a/b: serviceaccount "b" not found', "correct service_account"),
    ("unable to create new content in namespace a because it is being terminated", "cancel the job"),
])  # fmt: skip
def test_observe_reports_pending_with_cure_for_rejected_pods(message: str, advice: str) -> None:
    assert advice in refused(message)


@pytest.mark.parametrize(("message", "advice"), [
    ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "ffdl why shows whether a node can ever hold it"),
    ("0/3 nodes are available: 3 Too many pods.", "ffdl why shows whether a node can ever hold it"),
    ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", "gpu_type, node_selector"),
    ("0/3 nodes are available: 3 node(s) had untolerated taint {gpu: a100}.", "tolerations"),
    ("0/3 nodes are available: 3 node(s) had untolerated taint(s).", "kept for others, or not ready"),
    (
        "0/3 nodes are available: 3 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.",
        "when they are back",
    ),
    ('0/3 nodes are available: persistentvolumeclaim "data" not found.', "have the claim made"),
    ("pod has unbound immediate PersistentVolumeClaims.", "ask who runs the cluster"),
])  # fmt: skip
def test_observe_reports_pending_with_cure_for_unschedulable_pods(message: str, advice: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    seen = observe(job(), [pod(0, condition)])
    assert seen is not None and seen.phase is Phase.PENDING
    what = "it cannot be placed" if "persistentvolumeclaim" in message else "no node has room now"
    assert seen.reason.startswith(f"{what}: {message}; ") and advice in seen.reason


def test_observe_omits_preemption_details_from_pending_reason() -> None:
    reasons = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    more = "no new claims to deallocate, preemption: 0/3 nodes are available: 3 No preemption victims found."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"{reasons} {more}"}
    seen = observe(job(), [pod(0, condition)])
    assert seen is not None
    assert seen.reason == f"no node has room now: {reasons}; ffdl why shows whether a node can ever hold it"


@pytest.mark.parametrize(("reason", "message", "advice"), [
    ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", "credentials"),
    ("ErrImagePull", 'failed to resolve reference "x": not found', "correct its name, or push it"),
    ("InvalidImageName", "couldn't parse image name: invalid reference format", "correct its name"),
    ("ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never', "have it on the nodes"),
    ("ImagePullBackOff", "429 Too Many Requests: toomanyrequests", "it is tried again"),
    ("RegistryUnavailable", "dial tcp: lookup r on 10.0.0.1: no such host", "nodes do not reach the registry"),
    ("ImagePullBackOff", 'Back-off pulling image "x"', "check its name, and that nodes may pull it"),
    ("ImageInspectError", "failed to inspect", "check its name"),
    ("SignatureValidationFailed", "no valid signature", "check its name"),
])  # fmt: skip
def test_observe_reports_pending_with_cure_for_image_that_cannot_be_pulled(
    reason: str, message: str, advice: str
) -> None:
    waits = learner(waiting={"reason": reason, "message": message})
    seen = observe(job(), [pod(**waits)])
    assert seen is not None and seen.phase is Phase.PENDING
    assert f"({reason}): {message}; " in seen.reason and advice in seen.reason
    beside = observe(job(), [pod(**waits, **sidecar(running={"startedAt": CREATED}))])
    assert beside is not None and (beside.phase, beside.lacks) == (Phase.RUNNING, seen.reason)


@pytest.mark.parametrize(("reason", "message", "advice"), [
    ("CreateContainerConfigError", 'secret "x" not found', "cancel and submit again"),
    ("CreateContainerConfigError", "failed to prepare subPath for volumeMount", "claim or volumes"),
    ("CreateContainerError", "context deadline exceeded", "ask who runs the cluster"),
    ("RunContainerError", 'exec: "/bin/sh": stat /bin/sh: no such file or directory', "images have /bin/sh"),
    ("PostStartHookError", "", "ask who runs the cluster"),
])  # fmt: skip
def test_observe_reports_cure_for_container_that_cannot_be_created(reason: str, message: str, advice: str) -> None:
    """Also while the sidecar runs: then the job does."""
    waits = learner(waiting={"reason": reason, "message": message})
    seen = observe(job(), [pod(**waits)])
    assert seen is not None and f"container learner cannot be made ({reason})" in seen.reason and advice in seen.reason
    beside = observe(job(), [pod(**waits, **sidecar(running={"startedAt": CREATED}))])
    assert beside is not None and (beside.phase, beside.lacks) == (Phase.RUNNING, seen.reason)


def test_observe_reports_scheduling_gates_as_pending_reason() -> None:
    seen = observe(job(), [pod(0, {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"})])
    assert seen is not None and "scheduling gates" in seen.reason


def test_observe_omits_outdated_refusal_once_pod_is_placed() -> None:
    seen = observe(job(), [pod(node="n1")], Beside("exceeded quota: long ago"))
    assert seen is not None and (seen.phase, seen.reason) == (Phase.PENDING, "")


AT = 1_795_000_000.0
LACKS = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}


def at(seconds: float) -> str:
    """As conditions have it."""
    return datetime.fromtimestamp(AT + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_missing_image_counts_from_when_container_could_start() -> None:
    scheduled = {"type": "PodScheduled", "lastTransitionTime": at(10)}
    initialized = {"type": "Initialized", "lastTransitionTime": at(4000)}
    assert missing_image([pod(0, scheduled, **sidecar(running={}))]) is None
    (since, words) = missing_image([pod(0, scheduled, **sidecar(waiting=LACKS))]) or (0.0, "")
    assert since == AT + 10
    assert words.startswith(f"the image controller cannot be had (ImagePullBackOff): {LACKS['message']}; ")
    late = pod(0, scheduled, initialized, **sidecar(running={}), **learner(waiting={"reason": "ErrImagePull"}))
    (since, words) = missing_image([late]) or (0.0, "")
    assert since == AT + 4000, "data took their time"
    assert words.startswith("the image pytorch:2.5 cannot be had (ErrImagePull); ")


def test_missing_image_counts_from_end_of_previous_container() -> None:
    again = sidecar(waiting=LACKS)
    again["initContainerStatuses"][0]["lastState"] = {"terminated": {"finishedAt": at(900), "exitCode": 1}}
    (since, _) = missing_image([pod(0, {"type": "PodScheduled", "lastTransitionTime": at(0)}, **again)]) or (0.0, "")
    assert since == AT + 900


def test_missing_image_returns_longest_wait_of_placed_pods() -> None:
    pods = [
        pod(number, {"type": "PodScheduled", "lastTransitionTime": at(begun)}, **sidecar(waiting=LACKS))
        for number, begun in enumerate((50, 20, 80))
    ]
    assert (missing_image(pods) or (0.0, ""))[0] == AT + 20
    assert missing_image([pod(0, **sidecar(waiting=LACKS))]) is None, "it has no node yet"


def test_observe_reports_no_image_once_pods_of_abandoned_job_are_gone() -> None:
    beside = Beside(cancelled=True, no_image="the image x cannot be had (ErrImagePull)")
    seen = observe(None, [], beside)
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, EndCause.NO_IMAGE)
    assert seen.reason == "the image x cannot be had (ErrImagePull)"
    seen = observe(None, [pod(node="n1")], beside)
    assert seen is not None and (seen.phase, seen.end) == (Phase.COMPLETING, None)


def test_observe_prefers_requested_cancel_over_failure_but_not_over_success() -> None:
    ended = pod(0, **learner(terminated={"exitCode": 143, "reason": "Error"}))
    failed = job({"type": "Failed", "reason": "BackoffLimitExceeded"})
    assert observe(failed, [ended]).end is EndCause.FAILURE  # type: ignore[union-attr]
    assert observe(failed, [ended], Beside(cancelled=True)).end is EndCause.CANCELLED  # type: ignore[union-attr]
    done = job({"type": "Complete"})
    assert observe(done, [], Beside(cancelled=True)).end is EndCause.SUCCESS  # type: ignore[union-attr]


@pytest.mark.parametrize(("beside", "end"), [
    (Beside(cancelled=True), EndCause.CANCELLED),
    (Beside(no_image="the image x cannot be had"), EndCause.NO_IMAGE),
    (Beside(), EndCause.TIMEOUT),
])  # fmt: skip
@pytest.mark.parametrize("status", [{}, {"reason": "DeadlineExceeded"}])
def test_observe_takes_cause_of_deadline_from_cancel_or_image_mark(
    beside: Beside, end: EndCause, status: dict[str, Any]
) -> None:
    over = job({"type": "Failed", "reason": "DeadlineExceeded", "message": "Job was active longer than its deadline"})
    seen = observe(over, [pod(**status)] if status else [], beside)
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, end)
    assert not beside.no_image or seen.reason == beside.no_image


def test_observe_reports_node_failure_for_disrupted_job_without_pods() -> None:
    seen = observe(job({"type": "Failed", "reason": "PodFailurePolicy", "message": "Pod x has condition y"}), [])
    assert seen is not None and seen.end is EndCause.NODE_FAIL


NAME = "training-0a1b2c3d4-1-0-abcde"
READY = {"type": "PodReadyToStartContainers"}


@pytest.mark.parametrize(("trouble", "words"), [
    (("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1"'),
     "a volume of it cannot be attached to its node (FailedAttachVolume): " 'Multi-Attach error for volume "pvc-1"; '
     "another pod has the volume, which one node can use at a time: it continues when that pod ends; a claim that pods "
     "share is ReadWriteMany"),
    (("FailedMount", "mount.nfs: access denied by server"),
     "a volume of it cannot be mounted (FailedMount): mount.nfs: access denied by server; the storage does not "
     "let its node in: ask who runs the cluster"),
    (("FailedCreatePodSandBox", "failed to setup network for sandbox"),
     "its node cannot set the pod up (FailedCreatePodSandBox): failed to setup network for sandbox; it is tried "
     "again; if it stays so, ask who runs the cluster and its network"),
])  # fmt: skip
def test_observe_reports_volume_or_sandbox_event_of_waiting_pod(trouble: tuple[str, str], words: str) -> None:
    beside = Beside(pod_warnings={NAME: trouble})
    waiting = sidecar(waiting={"reason": "PodInitializing"})
    seen = observe(job(), [pod(0, node="n1", **waiting)], beside)
    assert seen is not None and (seen.phase, seen.reason) == (Phase.PENDING, words)


@pytest.mark.parametrize("shown", [
    pod(0, READY, node="n1", **sidecar(waiting={"reason": "PodInitializing"})),
    pod(0, node="n1", **sidecar(running={"startedAt": CREATED})),
    pod(0),
])  # fmt: skip
def test_observe_ignores_event_after_its_cause_is_over(shown: dict[str, Any]) -> None:
    seen = observe(job(), [shown], Beside(pod_warnings={NAME: ("FailedMount", "x")}))
    assert seen is not None and (seen.reason, seen.lacks) == ("", "")


def test_observe_reports_controller_out_of_memory_in_crash_loop() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    shown = sidecar(**waiting)
    shown["initContainerStatuses"][0]["lastState"] = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    seen = observe(job(), [pod(0, READY, node="n1", **shown)])
    assert seen is not None and seen.reason.endswith(
        "back-off 40s restarting failed container; it was out of memory; give it more (controller_memory_bytes in "
        "[backend.kubernetes])"
    )
