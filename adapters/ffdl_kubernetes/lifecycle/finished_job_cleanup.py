"""Delete Jobs that have ended and are kept for a while for inspection, if a quota of Jobs is used up."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.launch.pod_protocol import FINALIZER
from ffdl_kubernetes.api_errors import TooManyJobs
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.lifecycle import marker_files
from ffdl_kubernetes.lifecycle.marker_files import attempt_of, is_ours
from ffdl_kubernetes.objects.names import STORING
from ffdl_kubernetes.observing.cluster_watch import Watcher
from ffdl_kubernetes.observing.job_states import ended_at

Plain = Mapping[str, Any]
_log = logging.getLogger(__name__)
SETTLED_S = 60.0
"""So long after its end a Job stays in any case: the daemon has seen its end, and what its pods said, by then."""
AT_ONCE = 5
"""So many go where one more is wanted: others are wanted soon."""


def sent_after_cleanup(
    send: Callable[[], dict[str, Any]], client: ClusterClient, watcher: Watcher, sync: Callable[[], None], root: Root
) -> Plain:
    """What `send` makes. Where a quota of Jobs is used up, ended ones of ours go, and it is tried once more; a quota
    that counts them a while longer lets a later try through. `sync` returns when the watcher has seen all Jobs, and
    may begin it for that: if all jobs of a daemon wait here, nothing else does. Raises what `send` and `sync` raise.
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
            _log.info("Job %s has ended and goes: a quota of Jobs is used up", name)
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
    """Whether all that it, and its pods, had to say is in the attempt's directory."""
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
