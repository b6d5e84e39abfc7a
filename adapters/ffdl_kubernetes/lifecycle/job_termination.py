"""How an attempt is ended from outside, so that its pods stay isolated until they have stored what they have.

What an attempt's Job owns (its NetworkPolicy among it) goes with the Job, in no order: the garbage collector deletes
all dependents at once, in the foreground as in the background (kubernetes/kubernetes#121113), while pods end with their
grace. So a Job whose pods may run is not deleted. It gets a deadline that is over: that field may be changed at any
time, also where Kueue has the Job; the Job controller then deletes the pods, with their grace, and the Job stays,
Failed by DeadlineExceeded, with all that it owns until `ttlSecondsAfterFinished`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ffdl_batch.attempt.layout import Root
from ffdl_batch.ports.scheduler import NotTaken
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.attempt_location import attempt_of, is_ours
from ffdl_kubernetes.objects.names import STORING
from ffdl_kubernetes.observing.job_states import has_begun, is_ending, is_finished

Plain = Mapping[str, Any]
DEADLINE_S = 1
"""From the start of the Job on: over, or about to be."""
HEARD_S = 10.0
"""So long after controllers were asked to end, their Job is ended if it has not ended by itself: kubelet brings changed
annotations into a pod within seconds."""
TRIES = 5


def may_run(job: Plain, pods: Sequence[Plain]) -> bool:
    """Whether containers of its pods may run: a suspended Job's may while there are pods, another's from when one of
    them has a node."""
    if job.get("spec", {}).get("suspend"):
        return bool(pods)
    return any(pod.get("spec", {}).get("nodeName") for pod in pods)


def end_job(client: ClusterClient, token: str, pods: Sequence[Plain]) -> Plain | None:
    """End the Job of an attempt, whose pods were last seen as `pods`; as it is then, or None where it is gone or has
    pods that its suspension ends. Raises Refused, SchedulerUnreachable, NotTaken where it changes all the time."""
    for _ in range(TRIES):
        job = client.get("Job", token)
        if job is None or is_finished(job) or is_ending(job):
            return job
        if may_run(job, pods):
            if job["spec"].get("suspend"):  # once they are gone, it is deleted
                return None
            return client.patch("Job", token, {"spec": {"activeDeadlineSeconds": DEADLINE_S}})
        if client.delete("Job", token, str(job["metadata"]["resourceVersion"])):
            return None
    raise NotTaken(f"Job {token} changes all the time; its end is asked for again")


def left_cancelled(
    jobs: Mapping[str, Plain], pods: Mapping[str, Sequence[Plain]], root: Root, heard_s: float
) -> Iterator[str]:
    """The attempts, of those in `jobs`, that go on although their owners cancelled them. Controllers that run have
    `heard_s` to hear it. Raises OSError."""
    for token, job in jobs.items():
        if is_finished(job) or is_ending(job) or token.endswith(STORING) or not is_ours(job, root):
            continue
        asked_s = marker_files.age_s(attempt_of(job, root), marker_files.CANCELLED)
        if asked_s is not None and (asked_s >= heard_s or not any(has_begun(pod) for pod in pods.get(token, ()))):
            yield token
