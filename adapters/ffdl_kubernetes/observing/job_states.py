"""What a Job and its pods come to, in the words of the port. Pure.

Sources: kubernetes.io, "Jobs", "Pod Lifecycle", "Pod failure policy", "Disruptions".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.objects.names import CONTROLLER, LEARNER, QUEUE_LABEL
from ffdl_kubernetes.observing.cures import about_container, about_image, about_volume, reasons_alone, what_to_do
from ffdl_kubernetes.observing.disruptions import disruption_of, why_leaving
from ffdl_kubernetes.observing.kueue import why_evicted, why_queued
from ffdl_kubernetes.quantities import QUOTA, amounts, never_given

Plain = Mapping[str, Any]

_NO_IMAGE = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
    "ImageInspectError", "SignatureValidationFailed",
})  # fmt: skip
_NOT_MADE = frozenset({
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
    "PreStartHookError", "PostStartHookError",
})  # fmt: skip
"""Reasons of waiting containers (kubelet: `images/types.go`, `kuberuntime/kuberuntime_container.go`; the CRI's
`errors`)."""
_MORE_MEMORY = "out of memory; give it more (controller_memory_bytes in [backend.kubernetes])"
_POD_WARNINGS = {
    "FailedAttachVolume": "a volume of it cannot be attached to its node",
    "FailedCreatePodSandBox": "its node cannot set the pod up",
}
"""Reasons of events, beside those of mounts."""
_BY_REASON = {"DeadlineExceeded": EndCause.TIMEOUT, "PodFailurePolicy": EndCause.NODE_FAIL}
"""Of a Job whose pods are gone: our policy is about disruptions alone."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known of an attempt in addition to its Job and pods."""

    refusal: str = ""
    """The message of its latest FailedCreate event."""
    workload: Plain | None = None
    """Kueue's Workload."""
    began: bool = False
    """Whether a controller has claimed it."""
    cancelled: bool = False
    """Whether the daemon requested its end."""
    preempted: str = ""
    """Why the daemon deletes or has deleted its Job, which had been suspended."""
    no_image: str = ""
    """Why the daemon ended it: an image could not be pulled."""
    node_lost: str = ""
    """Why the daemon ended it: a node does not answer."""
    lost: frozenset[str] = frozenset()
    """Names of pods that are to end but never will, because their node does not answer."""
    pod_warnings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Reason and message of the latest event about volumes or network, by name of the pod."""


def is_put_back(job: Plain, beside: Beside) -> bool:
    """Return whether the Job ran and was suspended. The next attempt follows it, because its pods are gone with their
    data."""
    return bool(beside.began and job.get("spec", {}).get("suspend") and _condition(job, "Failed") is None)


def observe(job: Plain | None, pods: Sequence[Plain], beside: Beside = Beside()) -> Observation | None:
    """Return the state of one attempt; None if it has neither Job nor pod, and was not ended by the daemon."""
    nodes = ",".join(sorted({node for pod in pods if (node := _spec(pod).get("nodeName"))}))
    live = [pod for pod in pods if str(pod["metadata"]["name"]) not in beside.lost]
    if job is None:
        return _without_job(live, beside, nodes)
    times: dict[str, Any] = {
        "submitted_at": _epoch(job["metadata"].get("creationTimestamp")),
        "started_at": started(pods),
        "name": str(job["metadata"]["name"]),
        "nodes": nodes,
    }
    if (ended := _ended_as_asked(job, pods, live, beside, times)) is not None:
        return ended
    if (
        _condition(job, "FailureTarget")
        or _condition(job, "SuccessCriteriaMet")
        or job["metadata"].get("deletionTimestamp")
    ):
        leaving = "" if is_ending(job) else why_leaving(pods)
        return Observation(Phase.COMPLETING, "Terminating", lacks=leaving, **times)
    if is_put_back(job, beside):
        phase, end = (Phase.COMPLETING, None) if live else (Phase.ENDED, EndCause.PREEMPTED)
        return Observation(phase, "Suspended", end, reason=beside.preempted or why_evicted(beside.workload), **times)
    if job.get("spec", {}).get("suspend"):
        return Observation(Phase.PENDING, "Suspended", reason=_why_suspended(job, beside.workload), **times)
    if any(has_run(pod) for pod in pods):
        leaving = "" if is_ending(job) else why_leaving(pods)
        lacks = leaving or why_pending(pods, pod_warnings=beside.pod_warnings)
        return Observation(Phase.RUNNING, "Running", lacks=lacks, **times)
    is_short = len(pods) < int(job.get("spec", {}).get("completions", 1))
    refusal = beside.refusal if is_short else ""  # an event remains when its cause is gone
    return Observation(Phase.PENDING, "Pending", reason=why_pending(pods, refusal, beside.pod_warnings), **times)


def _without_job(live: Sequence[Plain], beside: Beside, nodes: str) -> Observation | None:
    known = Observation(Phase.ENDED, "Deleted", EndCause.CANCELLED, nodes=nodes)
    if live:
        return replace(known, phase=Phase.COMPLETING, end=None, reason=beside.no_image or beside.preempted)
    if beside.preempted and not beside.no_image:
        return replace(known, end=EndCause.PREEMPTED, reason=beside.preempted)
    if beside.cancelled or beside.no_image or beside.node_lost:
        return _as_asked(known, beside, by_us=True)
    return None


def _ended_as_asked(
    job: Plain, pods: Sequence[Plain], live: Sequence[Plain], beside: Beside, times: Mapping[str, Any]
) -> Observation | None:
    """Return the end; None if it has not ended. A Job that we end has ended, too, if all its pods but lost ones have:
    since 1.31 the cluster itself waits for those."""
    done = _condition(job, "Complete") or _condition(job, "Failed")
    if done is not None:
        return _as_asked(_ended(done, pods, times), beside, by_us=done.get("reason") == "DeadlineExceeded")
    if beside.lost and is_ending(job) and all(map(is_over, live)):
        return _as_asked(Observation(Phase.ENDED, "NodeLost", EndCause.NODE_FAIL, **times), beside, by_us=True)
    return None


def _as_asked(ended: Observation, beside: Beside, *, by_us: bool) -> Observation:
    """`by_us`: its deadline was over, and a Job of ours has none but the one that ends it."""
    if by_us and beside.no_image:
        return replace(ended, end=EndCause.NO_IMAGE, exit_code=None, reason=beside.no_image)
    if by_us and beside.node_lost and not beside.cancelled:
        return replace(ended, end=EndCause.NODE_FAIL, exit_code=None, reason=beside.node_lost)
    if beside.cancelled and (by_us or ended.end is EndCause.FAILURE):
        return replace(ended, end=EndCause.CANCELLED)
    return ended


def ended_at(job: Plain) -> float | None:
    """When a Job ended (epoch); None where it has not."""
    conditions = (_condition(job, kind) for kind in ("Complete", "Failed"))
    return next((_epoch(one.get("lastTransitionTime")) for one in conditions if one is not None), None)


def is_finished(job: Plain | None) -> bool:
    """Return whether a Job has ended, or does not exist."""
    return job is None or any(_condition(job, kind) is not None for kind in ("Complete", "Failed"))


def is_ending(job: Plain) -> bool:
    """Return whether the end of a Job was requested: it is being deleted, or has a deadline
    (:mod:`ffdl_kubernetes.lifecycle.termination`)."""
    return bool(job["metadata"].get("deletionTimestamp") or job.get("spec", {}).get("activeDeadlineSeconds"))


def number_ended(job: Plain) -> int:
    """Return how many pods ended, according to an ended Job; 0 if they were deleted, because pods are deleted once they
    were read."""
    status = job.get("status", {})
    if not is_finished(job) or is_ending(job):
        return 0
    return int(status.get("succeeded", 0)) + int(status.get("failed", 0))


def has_begun(pod: Plain) -> bool:
    """Return whether the controller of a pod runs, so that it gets requests."""
    return any(one.get("name") == CONTROLLER and "running" in one.get("state", {}) for one in _statuses(pod))


def is_over(pod: Plain) -> bool:
    """Return whether the containers of a pod have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_leaving(pod: Plain) -> bool:
    """Return whether a pod is about to end from outside: it is being deleted, or is marked for a disruption
    (kubernetes.io, "Pod disruption conditions"), which precedes the deletion."""
    leaves = pod["metadata"].get("deletionTimestamp") or _condition(pod, "DisruptionTarget")
    return bool(leaves) and not is_over(pod)


def is_beyond_reach(pod: Plain) -> bool:
    """Return whether the node of a pod is gone, and its logs with it."""
    target = _condition(pod, "DisruptionTarget")
    return target is not None and target.get("reason") == "DeletionByPodGC"


def _ended(condition: Plain, pods: Sequence[Plain], times: Mapping[str, Any]) -> Observation:
    at = _epoch(condition.get("lastTransitionTime"))
    reason = " ".join(part for part in (condition.get("reason", ""), condition.get("message", "")) if part)
    if condition["type"] == "Complete":
        return Observation(Phase.ENDED, "Complete", EndCause.SUCCESS, 0, ended_at=at, **times)
    cause, code, words = _cause(condition, pods)
    return Observation(Phase.ENDED, "Failed", cause, code, reason=words or reason, ended_at=at, **times)


def _cause(condition: Plain, pods: Iterable[Plain]) -> tuple[EndCause, int | None, str]:
    """Return the most informative pod of those that failed."""
    found: list[tuple[int, EndCause, int | None, str]] = []
    for pod in pods:
        name = pod["metadata"]["name"]
        if (disruption := disruption_of(pod)) is not None:
            cause, words = disruption
            found.append((-1 if cause is EndCause.OUT_OF_STORAGE else 0, cause, None, words))
        elif pod.get("status", {}).get("reason") == "DeadlineExceeded":
            found.append((1, EndCause.TIMEOUT, None, f"{name}: the pod ran longer than its deadline"))
        elif _killed_itself(pod):
            words = f"{name}: all processes were killed together, not for memory; does the training run `kill -9 -1`?"
            found.append((1, EndCause.KILLED_ITSELF, _KILLED, words))
        elif (ended := _terminated(pod, LEARNER)) is not None and ended.get("exitCode"):
            if ended.get("reason") == "OOMKilled":
                found.append((2, EndCause.OUT_OF_MEMORY, ended["exitCode"], f"{name}: the learner was out of memory"))
            else:
                found.append((4, EndCause.FAILURE, ended["exitCode"], ""))
        elif (ended := _terminated(pod, CONTROLLER)) is not None and ended.get("exitCode"):
            why = _MORE_MEMORY if ended.get("reason") == "OOMKilled" else ended.get("reason", "")
            words = f"{name}: the controller ended: {why}"
            found.append((3, EndCause.FAILURE, ended["exitCode"], words))
    if not found:
        return _BY_REASON.get(str(condition.get("reason")), EndCause.FAILURE), None, ""
    _, cause, code, words = min(found, key=lambda one: one[0])
    return cause, code, words


_KILLED = 137
"""Exit code of a container whose first process ended by KILL."""
AT_ONCE_S = 2.0


def _killed_itself(pod: Plain) -> bool:
    """Return whether a KILL ended both containers of a pod at the same time, neither for memory, and the pod was not
    deleted: only a process of their user does so. A controller that ended in order has left a message."""
    learner, controller = _terminated(pod, LEARNER) or {}, _last_terminated(pod, CONTROLLER)
    both = (learner, controller)
    if any(one.get("exitCode") != _KILLED or one.get("reason") != "Error" for one in both):
        return False
    times = [_epoch(one.get("finishedAt")) or 0.0 for one in both]
    at_once = abs(times[0] - times[1]) <= AT_ONCE_S
    return at_once and not controller.get("message") and not pod["metadata"].get("deletionTimestamp")


def _why_suspended(job: Plain, workload: Plain | None) -> str:
    queue = job["metadata"].get("labels", {}).get(QUEUE_LABEL)
    return why_queued(queue, workload) if queue else "it is being created"


def why_pending(
    pods: Sequence[Plain], refusal: str = "", pod_warnings: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> str:
    """Return why the first pod that has not begun waits. The others wait for the same reason, or for this pod."""
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        scheduled = _condition(pod, "PodScheduled", "False")
        if scheduled is not None:
            if scheduled.get("reason") == "SchedulingGated":
                return "its pods are held back by scheduling gates, which somebody else's controller sets"
            said = reasons_alone(str(scheduled.get("message", "")))
            what = "it cannot be placed" if "persistentvolumeclaim" in said else "no node has room now"
            return f"{what}: {said}{what_to_do(said)}".rstrip(": ")
        for status in _statuses(pod):
            waiting = status.get("state", {}).get("waiting") or {}
            message = str(waiting.get("message", ""))
            said = f": {message}" if message else ""
            if waiting.get("reason") in _NO_IMAGE:
                why = f"({waiting['reason']}){said}{about_image(message)}"
                return f"the image {status.get('image', '')} cannot be had {why}"
            if waiting.get("reason") in _NOT_MADE:
                why = f"({waiting['reason']}){said}{about_container(message)}"
                return f"container {status.get('name', '')} cannot be made {why}"
            if waiting.get("reason") == "CrashLoopBackOff":
                return f"container {status.get('name', '')} ends again and again{said}{_of_last_end(status)}"
        if (trouble := pod_warnings.get(str(pod["metadata"]["name"]))) is not None and _is_bare(pod):
            return _of_volumes(*trouble)
    return _describe(refusal)


def _of_last_end(status: Plain) -> str:
    """Return what ended a container that was restarted, if it is known."""
    last = status.get("lastState", {}).get("terminated") or {}
    return f"; it was {_MORE_MEMORY}" if last.get("reason") == "OOMKilled" else ""


def _is_bare(pod: Plain) -> bool:
    """Return whether a pod has a node, but not its volumes and network yet (kubernetes.io, "Pod Conditions":
    PodReadyToStartContainers)."""
    begun = _condition(pod, "PodReadyToStartContainers") is not None or has_run(pod)
    return bool(_spec(pod).get("nodeName")) and not begun and not is_over(pod)


def _of_volumes(reason: str, message: str) -> str:
    what = _POD_WARNINGS.get(reason, "a volume of it cannot be mounted")
    return f"{what} ({reason}): {message}{about_volume(message)}"


def missing_image(pods: Sequence[Plain]) -> tuple[float, str] | None:
    """Since when (epoch) a pod has waited for an image, and for which in the words of its node; None where none does.

    A container's image is asked for when all before it is done: the first when the pod has its node, the learner's when
    the controller lets it start (kubernetes.io, "Pod Conditions"), another start's when the run before has ended.
    """
    found = []
    for pod in pods:
        for status in _statuses(pod):
            waiting = status.get("state", {}).get("waiting") or {}
            if waiting.get("reason") not in _NO_IMAGE:
                continue
            begun = "Initialized" if status.get("name") == LEARNER else "PodScheduled"
            last = status.get("lastState", {}).get("terminated") or {}
            times = (_epoch((_condition(pod, begun) or {}).get("lastTransitionTime")), _epoch(last.get("finishedAt")))
            if known := [at for at in times if at is not None]:
                found.append((max(known), why_pending([pod])))
    return min(found, default=None)


def _describe(refusal: str) -> str:
    """Return a refusal of pods: that of a quota with its figures, others unchanged."""
    if not refusal:
        return ""
    match = QUOTA.search(refusal)
    if match is None:
        return f"pods are refused: {refusal}{what_to_do(refusal)}"
    if never := never_given(match):
        asked, most = amounts(match["asked"]), amounts(match["limit"])
        of = ", ".join(f"{name}={asked[name]} is asked for, and it has {most[name]}" for name in never)
        more = refusal[match.end() :]
        cure = what_to_do(more).removeprefix("; ") or "ask for less, or for a larger quota"
        return f"quota {match['name']} never has so much: {of}{more}: {cure}"
    return (
        f"quota {match['name']} is used up: {match['used']} of {match['limit']}, and {match['asked']} is asked for: "
        "the job starts when others of the namespace end"
    )


def has_run(pod: Plain) -> bool:
    """Return whether a container of a pod runs or ran. It did not if its node was just chosen."""
    return any("running" in one.get("state", {}) or "terminated" in one.get("state", {}) for one in _statuses(pod))


def started(pods: Iterable[Plain]) -> float | None:
    """When the first container of them began (epoch)."""
    times = []
    for pod in pods:
        for status in _statuses(pod):
            state = status.get("state", {})
            at = _epoch((state.get("running") or state.get("terminated") or {}).get("startedAt"))
            if at is not None:
                times.append(at)
    return min(times, default=None)


def _statuses(pod: Plain) -> list[Plain]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _terminated(pod: Plain, container: str) -> Plain | None:
    for status in _statuses(pod):
        if status.get("name") == container:
            state = status.get("state", {})
            return state.get("terminated") or None
    return None


def _last_terminated(pod: Plain, container: str) -> Plain:
    """Return how the container last ended, also if it was started again since."""
    for status in _statuses(pod):
        if status.get("name") == container:
            found: Plain = (
                status.get("lastState", {}).get("terminated") or status.get("state", {}).get("terminated") or {}
            )
            return found
    return {}


def _condition(thing: Plain, kind: str, status: str = "True") -> Plain | None:
    for one in thing.get("status", {}).get("conditions") or ():
        if one.get("type") == kind and one.get("status") == status:
            found: Plain = one
            return found
    return None


def _spec(pod: Plain) -> Plain:
    found: Plain = pod.get("spec", {})
    return found


def _epoch(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
