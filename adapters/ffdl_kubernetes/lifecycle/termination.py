"""End Jobs from outside, so that their pods stay isolated until they have stored what they have. Delete Jobs that have
ended and are kept for inspection, if a quota of Jobs is used up.

What an attempt's Job owns (its NetworkPolicy among it) is deleted with the Job, in no order: the garbage collector
deletes all dependents at once, in the foreground as in the background (kubernetes/kubernetes#121113), while pods end
with their grace. So a Job whose pods may run is not deleted. It gets a deadline that is over: that field may be changed
at any time, also if Kueue has the Job. The Job controller then deletes the pods, with their grace. The Job stays,
Failed by DeadlineExceeded, with all that it owns, until `ttlSecondsAfterFinished`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_text
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.launch.pod_protocol import FINALIZER
from ffdl_batch.domain.scheduler_errors import NotTaken, SchedulerError
from ffdl_kubernetes.api_errors import TooManyJobs, explain
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.marker_files import attempt_of, is_ours
from ffdl_kubernetes.objects.names import STORING
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.disruptions import why_lost
from ffdl_kubernetes.observing.job_states import ended_at, has_begun, is_ending, is_finished, missing_image, started
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
SHARE = 0.8
"""Share of the time until the controller requests a checkpoint: a learner that never began is to be reported as that,
not as one that reached its time limit."""


def lacks_image(pods: Sequence[Plain], attempt: AttemptDir, patience_s: float) -> str:
    """Return why pods without an image will not start: the patience with the registry is over, or nearly all of the
    job's time. "" if they may start."""
    lacking = missing_image(pods)
    if lacking is None:
        return ""
    since, why = lacking
    ends = [since + patience_s]
    began, limits = started(pods), _limits(attempt)
    if began is not None and limits.time_s is not None:
        ends.append(began + SHARE * (limits.time_s - _lead_s(limits, limits.time_s)))
    return why if time.time() >= min(ends) else ""


def _lead_s(limits: Limits, time_s: int) -> int:
    """Return the lead of the checkpoint request, as controllers compute it."""
    return min(limits.grace_s if limits.lead_s is None else limits.lead_s, time_s // 2)


def _limits(attempt: AttemptDir) -> Limits:
    """Return the limits in the launch file; no limits if it cannot be read."""
    try:
        return decode(find_text(attempt.launch, MAX_EVENT_BYTES)).limits
    except (OSError, LaunchFileError):
        return Limits()


DEADLINE_S = 1
"""The deadline from the start of the Job, so that it is over at once."""
HEARD_S = 10.0
"""Seconds from a request for the end of controllers until their Job is ended, if it has not ended by itself. kubelet
delivers changed annotations within seconds."""
TRIES = 5


def may_run(job: Plain, pods: Sequence[Plain]) -> bool:
    """Return whether containers of a Job may run: if it is suspended, while it has pods; else, once a pod has a
    node."""
    if job.get("spec", {}).get("suspend"):
        return bool(pods)
    return any(pod.get("spec", {}).get("nodeName") for pod in pods)


def end_job(client: ClusterClient, token: str, pods: Sequence[Plain]) -> Plain | None:
    """End the Job of an attempt, whose last known pods are `pods`. Return the Job then; None if it is gone, or if its
    suspension ends its pods. Raises Refused, SchedulerUnreachable, NotTaken if it changes all the time."""
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
    jobs: Mapping[str, Plain], pods: Mapping[str, Sequence[Plain]], root: Root, confirm_s: float
) -> Iterator[str]:
    """Yield the attempts in `jobs` that continue although their owners cancelled them. Controllers that run have
    `heard_s` to notice it. Raises OSError."""
    for token, job in jobs.items():
        if is_finished(job) or is_ending(job) or token.endswith(STORING) or not is_ours(job, root):
            continue
        asked_s = marker_files.age_s(attempt_of(job, root), marker_files.CANCELLED)
        if asked_s is not None and (asked_s >= confirm_s or not any(has_begun(pod) for pod in pods.get(token, ()))):
            yield token


_log = logging.getLogger(__name__)


class AskedEnds(ABC):
    """A part of the adapter."""

    _settings: KubernetesSettings
    _client: ClusterClient
    _watcher: Watcher
    _root: Root

    @abstractmethod
    def _attempt(self, token: str) -> AttemptDir:
        """Return the directory of the attempt with this token."""

    def _judge_images(self, token: str, pods: Sequence[Mapping[str, Any]]) -> None:
        """End a Job whose pods would ask for their image for ever. The daemon decides what follows."""
        why = lacks_image(pods, self._attempt(token), self._settings.image_patience_s)
        if why:
            self._end_because(token, pods, marker_files.NO_IMAGE, why)

    def _end_lost(self, token: str, pods: Sequence[Mapping[str, Any]], lost: frozenset[str]) -> None:
        """End a Job that lost a pod, so that its other pods end, and the lost one when its node is back."""
        job = self._watcher.job(token)
        if job is not None and not is_finished(job) and not is_ending(job):
            self._end_because(token, pods, marker_files.NODE_LOST, why_lost(pods, lost))

    def _end_because(self, token: str, pods: Sequence[Mapping[str, Any]], mark: str, why: str) -> None:
        marker_files.leave(self._attempt(token), mark, why)
        try:
            self._finish(token, pods)
        except SchedulerError as error:
            _log.warning("Job %s cannot be ended: %s; trying again (reason for its end: %s)", token, error, why)

    def _finish(self, token: str, pods: Sequence[Mapping[str, Any]]) -> None:
        """Raises SchedulerError."""
        try:
            job = end_job(self._client, token, pods)
        except Refused as refused:
            raise explain(refused, f"the end of Job {token}") from refused
        if job is not None:
            self._watcher.put("Job", job)

    def _end_cancelled(self) -> bool:
        """End Jobs whose owners cancelled them while this daemon used another cluster or namespace. Return whether all
        of them were ended. Raises OSError."""
        pods, done = self._watcher.pods_by_token(), True
        for token in left_cancelled(self._watcher.jobs(), pods, self._root, HEARD_S):
            try:
                self._finish(token, pods.get(token, []))
            except SchedulerError as error:
                done = False
                _log.warning("Job %s, which was cancelled, cannot be ended: %s; trying again", token, error)
        return done


SETTLED_S = 60.0
"""Minimum time that a Job is kept after its end, in which the daemon sees its end and reads its pods."""
AT_ONCE = 5
"""Jobs to delete at once, because more than one will be needed soon."""


def sent_after_cleanup(
    send: Callable[[], dict[str, Any]], client: ClusterClient, watcher: Watcher, sync: Callable[[], None], root: Root
) -> Plain:
    """Return the result of `send`. If a quota of Jobs is used up, delete ended Jobs of this daemon and try once more. A
    quota that still counts them admits a later attempt. `sync` starts the watcher if needed, and returns when it has
    seen all Jobs. Raises what `send` and `sync` raise.
    """
    try:
        return send()
    except TooManyJobs:
        sync()
        spare = spare_jobs(watcher, root)
        if not spare:
            raise
        for job in spare:
            name, version = str(job["metadata"]["name"]), str(job["metadata"]["resourceVersion"])
            _log.info("Job %s has ended and is deleted, because a quota of Jobs is used up", name)
            with contextlib.suppress(Refused):  # the refusal of the new one has to be reported
                client.delete("Job", name, version)
    return send()


def spare_jobs(watcher: Watcher, root: Root) -> list[Plain]:
    """Return at most AT_ONCE Jobs of this daemon that are not needed any more, those that ended first."""
    pods, latest, found = watcher.pods_by_token(), time.time() - SETTLED_S, []
    for name, job in watcher.jobs().items():
        at = ended_at(job)
        if at is not None and at < latest and _is_done_with(name, job, pods.get(name, ()), root):
            found.append((at, name, job))
    return [job for _, _, job in sorted(found, key=lambda one: one[:2])[:AT_ONCE]]


def _is_done_with(name: str, job: Plain, pods: Sequence[Plain], root: Root) -> bool:
    """Return whether all output of a Job and its pods is in the attempt's directory."""
    unread = any(FINALIZER in (one["metadata"].get("finalizers") or ()) for one in pods)
    if unread or job["metadata"].get("deletionTimestamp") or not is_ours(job, root):
        return False
    attempt = attempt_of(job, root)
    if name.endswith(STORING):
        return Path(attempt.uploaded).exists()
    if Path(attempt.final).exists():
        return True
    reported_s = marker_files.age_s(attempt, marker_files.END_REPORTED)  # a node that is lost leaves no final record
    return reported_s is not None and reported_s > SETTLED_S and not pods
