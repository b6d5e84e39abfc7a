"""Synchronise pods with attempts: copy their output, find lost pods, and store the final record."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_text, status_of
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.launch.pod_protocol import (
    FINALIZER,
    JOB_LABEL,
    Frame,
    FrameKind,
    PodAnnotation,
    pack,
)
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, decode_events
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.marker_files import attempt_of, is_ours
from ffdl_kubernetes.lifecycle.pod_requests import RETRY_S, PodRequests
from ffdl_kubernetes.lifecycle.termination import end_job
from ffdl_kubernetes.objects.names import CONTROLLER, INDEX
from ffdl_kubernetes.observing.attempt_mirror import Mirror
from ffdl_kubernetes.observing.cluster_watch import token_of
from ffdl_kubernetes.observing.job_states import has_begun, is_beyond_reach, is_leaving, is_over, number_ended
from ffdl_kubernetes.observing.log_follower import Follower, termination_message
from ffdl_kubernetes.settings import KubernetesSettings

Plain = Mapping[str, Any]
LOST_S = 60.0
"""A pod that exists for this long after its grace period has no kubelet any more."""
SILENT_S = 120.0
"""A controller prints something every 20 s. If its pod was marked for deletion this long ago and it has printed nothing
since, the node does not answer; kubelet ends the pod when the node is back."""
WARNING = "URG"
"""The signal that warns controllers that their allocation is about to end."""
END, GANG = "end", "gang"
"""Work for a whole attempt: end its Job, and send the events of all its pods to each of them."""
READ_S, READ_MOST_S = 120.0, 1800.0
"""Seconds after this daemon saw a Job's end, and after any pod was read, until the end is reported although some pods
could not be read. The second is the maximum from the Job's end. So a daemon that was down, or that has hundreds of pods
to read, has time for them."""
_log = logging.getLogger(__name__)


class Pods:
    """All pods of one namespace. `root` is the tree of jobs. `make` returns a client for another thread."""

    def __init__(self, settings: KubernetesSettings, root: Root, make: Callable[[], ClusterClient]) -> None:
        self._root, self._make = root, make
        self._follower = Follower(settings, lambda: make().namespace, self)
        self._mirrors: dict[str, Mirror] = {}
        self._pods: dict[str, Plain] = {}
        self._ending: set[str] = set()
        self._read: set[str] = set()
        self._read_at = 0.0
        self._awaited: dict[str, float] = {}
        self._signs: dict[str, float] = {}
        """When a pod last printed something, or was first seen with a deletion time (monotonic)."""
        self._warned: set[str] = set()
        """Tokens of attempts whose pods were warned because one of them is about to end."""
        self._lock = threading.Lock()
        self._requests = PodRequests(make, {END: self._end, GANG: lambda _, token: self._notify_siblings(token)})

    def stop(self) -> None:
        """End the threads."""
        self._follower.stop()
        self._requests.stop()

    # ------------------------------------------------------------------------------------- what the watch reports

    def on_change(self, what: str, pod: Plain) -> None:
        """Handle a pod that was added, modified or deleted. Pods of other daemons in the namespace are ignored."""
        if not is_ours(pod, self._root):
            return
        name = str(pod["metadata"]["name"])
        if what == "DELETED":
            with self._lock:
                self._pods.pop(name, None)
                self._ending.discard(name)
                self._read.discard(name)
                self._signs.pop(name, None)
                if not any(token_of(one) == token_of(pod) for one in self._pods.values()):
                    self._mirrors.pop(token_of(pod), None)
                    self._warned.discard(token_of(pod))
            self._requests.forget(name)
            self._follower.forget(name)
            return
        with self._lock:
            before = self._pods.get(name)
            is_new = before is None
            if before is None or (_is_to_end(pod) and not _is_to_end(before)):
                self._signs[name] = time.monotonic()
            self._pods[name] = pod
        if is_leaving(pod):
            self._warn_gang(pod)
        if is_beyond_reach(pod):
            self.on_end(name)
            return
        state = _controller_state(pod)
        if "terminated" in state and is_over(pod):  # else it is started again
            self._follower.ended(name)
        if "running" in state or "terminated" in state or _restarts(pod):
            self._follower.follow(name)
            if is_new:
                self._bring_control(pod)
        elif _ends(pod):  # its controller never ran, so there is no log
            self.on_end(name)

    def _warn_gang(self, leaving: Plain) -> None:
        """Have the controllers of all pods of the attempt request a checkpoint now. The Job deletes the other pods only
        when this one has ended (`podReplacementPolicy` Failed), and the checkpoint of one pod alone is useless."""
        token = token_of(leaving)
        if (
            token in self._warned
            or marker_files.age_s(attempt_of(leaving, self._root), marker_files.CANCELLED) is not None
        ):
            return
        self._warned.add(token)
        self.signal(token, WARNING)

    def look_for_lost(self) -> None:
        """Release the pods whose node is lost, because their logs cannot be read any more."""
        with self._lock:
            pods = list(self._pods.values())
        for pod in pods:
            if self._is_lost(pod) or _is_late(pod):
                self.on_end(pod["metadata"]["name"])

    def lost(self, pods: Iterable[Plain]) -> frozenset[str]:
        """Return the names of the pods that are marked for deletion and do not end, because their node does not answer.
        The cluster keeps them until the node is back or its Node object is removed."""
        return frozenset(str(pod["metadata"]["name"]) for pod in pods if self._is_lost(pod))

    def _is_lost(self, pod: Plain) -> bool:
        if not _is_to_end(pod) or is_over(pod):
            return False
        with self._lock:
            sign = self._signs.get(str(pod["metadata"]["name"]))
        if _is_late(pod):
            return True
        if "terminated" in _controller_state(pod):  # it prints nothing more, and its node has reported that
            return False
        return sign is not None and time.monotonic() - sign > SILENT_S

    # --------------------------------------------------------------------------------- what the follower reports

    def on_frame(self, pod: str, frame: Frame, at: float) -> None:
        """See :class:`ffdl_kubernetes.observing.log_follower.Listener`."""
        with self._lock:
            known = self._pods.get(pod)
            if known is None:
                return
            self._signs[pod] = time.monotonic()
        mirror = self._mirror(known)
        before = dict(mirror.missing)
        try:
            mirror.apply(frame, at, index_of(known))
        except OSError as error:
            _log.warning("%s: its output cannot be written: %s", pod, error)
            return
        if mirror.missing != before and mirror.missing:
            self._requests.annotate(pod, PodAnnotation.RESEND, json.dumps(mirror.missing, sort_keys=True))
        if frame.kind is FrameKind.APPEND and frame.file.startswith("events/"):
            self._requests.work_on(token_of(known), GANG)

    def on_end(self, pod: str) -> None:
        """See :class:`ffdl_kubernetes.observing.log_follower.Listener`. Store the termination message, and release the
        pod. If it cannot be written, try again later, because the pod keeps it until its release."""
        with self._lock:
            known = self._pods.get(pod)
            if known is None or pod in self._ending:
                return
            self._ending.add(pod)
        message = termination_message(known)
        try:
            if message is not None and message.get("outcome"):
                self._keep_final(known, message)
        except OSError as error:
            _log.warning("%s: its termination message cannot be written: %s; it is tried again", pod, error)
            with self._lock:
                self._ending.discard(pod)
            timer = threading.Timer(RETRY_S, self.on_end, [pod])
            timer.daemon = True
            timer.start()
            return
        with self._lock:  # not before its output is written: a reader now reports the end
            self._read.add(pod)
            self._read_at = time.monotonic()
        self._requests.release(pod)
        self._mirror(known).ring()

    def _keep_final(self, pod: Plain, message: Mapping[str, Any]) -> None:
        """Write the head's final record if it was not copied, because the end of a log may be lost."""
        path = Path(attempt_of(pod, self._root).final)
        if status_of(str(path)) is not None:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(str(path), json.dumps(message, sort_keys=True) + "\n")

    def _mirror(self, pod: Plain) -> Mirror:
        token = token_of(pod)
        with self._lock:
            if token not in self._mirrors:
                job_id, attempt = pod["metadata"]["labels"][JOB_LABEL], attempt_of(pod, self._root)
                learners, limits = _from_launch(attempt)
                self._mirrors[token] = Mirror(attempt, self._root.doorbell, job_id, learners, limits)
            return self._mirrors[token]

    def has_more(self, job: Plain | None, present: Iterable[Plain], gone: Iterable[Plain]) -> bool:
        """Return whether pods of a Job have more output than was copied. Jobs and pods have watches of their own: a Job
        that has ended may count pods that the watch has not reported yet. Pods that an earlier daemon read and released
        may be gone, too; if there is a record, they are not awaited."""
        live = {str(pod["metadata"]["name"]): pod for pod in present}
        with self._lock:
            unread = [pod for name, pod in live.items() if name not in self._read]
        if any(FINALIZER in (pod["metadata"].get("finalizers") or ()) for pod in unread):
            return True
        if job is None or number_ended(job) <= len({*live, *(str(pod["metadata"]["name"]) for pod in gone)}):
            return False
        return status_of(attempt_of(job, self._root).final) is None

    def has_waited_enough(self, token: str) -> bool:
        """Return whether the time to read the pods of an attempt that has ended is over."""
        now = time.monotonic()
        with self._lock:
            since = self._awaited.setdefault(token, now)
            return now - max(since, self._read_at) > READ_S or now - since > READ_MOST_S

    def forget(self, token: str) -> None:
        """Forget an attempt whose Job is gone."""
        with self._lock:
            self._awaited.pop(token, None)

    # ------------------------------------------------------------------------------------------------- requests

    def annotate(self, token: str, annotation: PodAnnotation, value: str) -> None:
        """Set an annotation of all pods of an attempt, in the worker's thread."""
        for pod in self._of(token):
            self._requests.annotate(pod["metadata"]["name"], annotation, value)

    def signal(self, token: str, name: str) -> None:
        """Send a signal to the running controllers of an attempt."""
        for pod in filter(has_begun, self._of(token)):
            self._requests.signal(pod, name)

    def end_later(self, token: str, seconds: float, is_over: Callable[[], bool]) -> None:
        """End the Job of an attempt after some seconds, unless it is over."""

        def begin() -> None:
            if not is_over():
                self._requests.work_on(token, END)

        timer = threading.Timer(seconds, begin)
        timer.daemon = True
        timer.start()

    def _of(self, token: str) -> list[Plain]:
        with self._lock:
            return [pod for pod in self._pods.values() if token_of(pod) == token]

    def _bring_control(self, pod: Plain) -> None:
        """Set the annotation for requests that are older than the pod."""
        text = find_text(attempt_of(pod, self._root).control)
        if text:
            self._requests.annotate(pod["metadata"]["name"], PodAnnotation.CONTROL, text)

    def _end(self, client: ClusterClient, token: str) -> None:
        end_job(client, token, self._of(token))

    def _notify_siblings(self, token: str) -> None:
        """Send each pod of a gang the events of all node controllers, and those of the head if they have the final one.
        Raises OSError."""
        pods = self._of(token)
        if len(pods) < 2:
            return
        attempt = attempt_of(pods[0], self._root)
        texts = {}
        for number in sorted(index_of(pod) for pod in pods):
            text = find_text(attempt.event_file(f"node-{number}"), MAX_EVENT_BYTES)
            if text:
                texts[f"events/node-{number}.jsonl"] = text
        text = find_text(attempt.event_file(HEAD), MAX_EVENT_BYTES)
        if any(event.kind is EventKind.FINAL for event in decode_events(text)):
            texts[f"events/{HEAD}.jsonl"] = text
        packed = pack(json.dumps(texts))
        for pod in pods:
            self._requests.annotate(pod["metadata"]["name"], PodAnnotation.SIBLINGS, packed)


def index_of(pod: Plain) -> int:
    """Return the completion index of a pod."""
    meta = pod["metadata"]
    return int((meta.get("labels") or {}).get(INDEX) or (meta.get("annotations") or {}).get(INDEX) or 0)


def _from_launch(attempt: AttemptDir) -> tuple[int, LogLimits]:
    try:
        launch = decode(find_text(attempt.launch, MAX_EVENT_BYTES))
    except (OSError, LaunchFileError):
        return 1, LogLimits()
    return launch.learners, launch.logs


def _controller_state(pod: Plain) -> Plain:
    for status in pod.get("status", {}).get("initContainerStatuses") or ():
        if status.get("name") == CONTROLLER:
            found: Plain = status.get("state") or {}
            return found
    return {}


def _restarts(pod: Plain) -> int:
    return sum(int(one.get("restartCount", 0)) for one in pod.get("status", {}).get("initContainerStatuses") or ())


def _ends(pod: Plain) -> bool:
    return is_over(pod) or _is_to_end(pod)


def _is_to_end(pod: Plain) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _is_late(pod: Plain) -> bool:
    """Return whether the pod has outlived its grace period by more than :data:`LOST_S`."""
    by = pod["metadata"].get("deletionTimestamp")
    return bool(by) and time.time() > datetime.fromisoformat(by).timestamp() + LOST_S
