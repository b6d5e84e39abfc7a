"""Ends Jobs without a new request of a user: if an image is missing, if a node does not answer, or if the Job was
cancelled while the daemon used another cluster."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.ports.scheduler import SchedulerError
from ffdl_kubernetes.api_errors import explain
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.image_timeout import lacks_image
from ffdl_kubernetes.lifecycle.job_termination import HEARD_S, end_job, left_cancelled
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.disruptions import why_lost
from ffdl_kubernetes.observing.job_states import is_ending, is_finished
from ffdl_kubernetes.settings import KubernetesSettings

_log = logging.getLogger(__name__)


class AskedEnds(ABC):
    """A part of the adapter."""

    _settings: KubernetesSettings
    _client: ClusterClient
    _watcher: Watcher
    _root: Root

    @abstractmethod
    def _attempt(self, token: str) -> AttemptDir:
        """The directory of the attempt with this token."""

    def _judge_images(self, token: str, pods: Sequence[Mapping[str, Any]]) -> None:
        """End a Job whose pods would ask for their image for ever. The daemon decides what follows."""
        why = lacks_image(pods, self._attempt(token), self._settings.image_patience_s)
        if why:
            self._end_because(token, pods, marker_files.NO_IMAGE, why)

    def _give_up_lost(self, token: str, pods: Sequence[Mapping[str, Any]], lost: frozenset[str]) -> None:
        """End a Job of which a pod is lost, so that its other pods end, and the lost one when its node is back."""
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
