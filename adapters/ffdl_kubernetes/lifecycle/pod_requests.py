"""Send requests to pods, in one thread: annotations that their controllers read, and the release of pods."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ffdl_batch.domain.launch.pod_protocol import ANNOTATIONS, FINALIZER, PodAnnotation
from ffdl_batch.domain.scheduler_errors import SchedulerError
from ffdl_kubernetes.client import STRATEGIC, ClusterClient, Refused

RETRY_S = 5.0
"""Seconds until a request that failed is sent again."""
_RELEASE = ""
_log = logging.getLogger(__name__)


class PodRequests:
    """The requests to the pods of one namespace. A request that fails is sent again. Safe in every thread.

    `make` returns a client for the thread. `attempt_work` has functions by their names; each gets the client and the
    token of an attempt.
    """

    def __init__(
        self, make: Callable[[], ClusterClient], attempt_work: Mapping[str, Callable[[ClusterClient, str], None]]
    ) -> None:
        self._make, self._attempt_work = make, attempt_work
        self._lock = threading.Lock()
        self._work: queue.Queue[tuple[str, str]] = queue.Queue()
        self._waiting: set[tuple[str, str]] = set()
        self._annotations: dict[tuple[str, PodAnnotation], str] = {}
        self._worker: threading.Thread | None = None

    def stop(self) -> None:
        """End the thread."""
        self._work.put(("", ""))

    def annotate(self, pod: str, annotation: PodAnnotation, value: str) -> None:
        """Set an annotation of a pod, unless it was set to this value before."""
        with self._lock:
            if self._annotations.get((pod, annotation)) == value:
                return
            self._annotations[pod, annotation] = value
        self._queue(pod, annotation.value)

    def signal(self, pod: Mapping[str, Any], name: str) -> None:
        """Send a signal to the controller of a pod. It has a number above that of the last one."""
        meta = pod["metadata"]
        last = str((meta.get("annotations") or {}).get(f"{ANNOTATIONS}/{PodAnnotation.SIGNAL.value}", ""))
        with self._lock:
            waiting = self._annotations.get((meta["name"], PodAnnotation.SIGNAL), "")
        number = max(_number(last), _number(waiting)) + 1
        self.annotate(meta["name"], PodAnnotation.SIGNAL, f"{number} {name}")

    def release(self, pod: str) -> None:
        """Remove the finalizer that keeps a pod until its output is read."""
        self._queue(pod, _RELEASE)

    def work_on(self, token: str, what: str) -> None:
        """Do one kind of `attempt_work` for an attempt."""
        self._queue(token, what)

    def forget(self, pod: str) -> None:
        """Forget the annotations of a pod that is gone."""
        with self._lock:
            for annotation in PodAnnotation:
                self._annotations.pop((pod, annotation), None)

    def _queue(self, name: str, what: str) -> None:
        """Queue a request. Equal requests in the queue are sent once, because the pods of a gang print faster than
        requests can be sent."""
        with self._lock:
            if (name, what) in self._waiting:
                return
            self._waiting.add((name, what))
            if self._worker is None:
                self._worker = threading.Thread(target=self._run, name="pods", daemon=True)
                self._worker.start()
        self._work.put((name, what))

    def _run(self) -> None:
        client = self._make()
        while (job := self._work.get()) != ("", ""):
            with self._lock:
                self._waiting.discard(job)
            name, what = job
            try:
                self._do(client, name, what)
            except (Refused, SchedulerError, OSError) as error:
                _log.warning("%s of %s cannot be done: %s; it is tried again", what or "release", name, error)
                timer = threading.Timer(RETRY_S, self._queue, job)
                timer.daemon = True
                timer.start()
        client.close()

    def _do(self, client: ClusterClient, name: str, what: str) -> None:
        if what in self._attempt_work:
            self._attempt_work[what](client, name)
        elif what == _RELEASE:
            change: dict[str, Any] = {"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}
            client.patch("Pod", name, change, STRATEGIC)
        else:
            with self._lock:
                value = self._annotations.get((name, PodAnnotation(what)))
            if value is not None:  # else the pod is gone
                client.patch("Pod", name, {"metadata": {"annotations": {f"{ANNOTATIONS}/{what}": value}}})


def _number(text: str) -> int:
    first = text.partition(" ")[0]
    return int(first) if first.isdigit() else 0
