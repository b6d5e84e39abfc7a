"""Jobs that have ended and are kept for a while, for whoever looks at them: they count against a quota of Jobs."""

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


def sent_with_room(
    send: Callable[[], dict[str, Any]], client: ClusterClient, watcher: Watcher, sync: Callable[[], None], root: Root
) -> Plain:
    """What `send` makes. Where a quota of Jobs is used up, ended ones of ours go, and it is tried once more; a quota
    that counts them a while longer lets a later try through. `sync` returns when the watcher has seen all Jobs, and
    may begin it for that: of a daemon whose jobs all wait here nobody else does. Raises what `send` and `sync` raise.
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
            with contextlib.suppress(Refused):  # the refusal of the new one is what has to be told
                client.delete("Job", name, version)
    return send()


def spare_jobs(watcher: Watcher, root: Root) -> list[Plain]:
    """Jobs of ours that nobody needs any more, those that ended first; not more than AT_ONCE."""
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
        return Path(attempt.paid).exists()
    if Path(attempt.final).exists():
        return True
    told_s = marker_files.age_s(attempt, marker_files.END_TOLD)  # a node that is lost leaves no last word
    return told_s is not None and told_s > SETTLED_S and not pods
