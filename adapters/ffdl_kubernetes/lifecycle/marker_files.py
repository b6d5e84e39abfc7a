"""Write and read files in an attempt's directory that outlive the daemon and the Job: requested ends, and the cluster.

A daemon that is restarted may find another current context in the kubeconfig, or another namespace in its
configuration. What it does not see there may exist in the cluster that the attempt was sent to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import find_text, status_of
from ffdl_batch.domain.launch.pod_protocol import ATTEMPT_LABEL, JOB_LABEL
from ffdl_kubernetes.client import ClusterClient

CANCELLED = "submit/cancelled"
"""Empty: the daemon requested the end of its controllers, and has ended its Job or is about to."""
PREEMPTED = "submit/preempted"
"""Why the daemon has deleted its suspended Job, or is about to."""
NO_IMAGE = "submit/no-image"
"""Names the missing image for which the daemon has ended its Job, or is about to."""
NODE_LOST = "submit/node-lost"
"""Names the node that does not answer any more, for which the daemon ends the Job or has ended it."""
SENT_TO = "submit/cluster"
"""Names the cluster that it was sent to, or is about to be."""
END_REPORTED = "submit/end-reported"
"""Empty: its controllers left no final record, and the adapter has reported its end."""
ALL = (CANCELLED, PREEMPTED, NO_IMAGE, NODE_LOST)


def leave(attempt: AttemptDir, mark: str, why: str = "") -> None:
    """Write a marker file. An empty one is not replaced, so that its time stays. Raises OSError."""
    path = Path(attempt.path, mark)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why or status_of(str(path)) is None:
        write_text(str(path), why)


def is_marked(attempt: AttemptDir, mark: str) -> bool:
    """Return whether the marker file exists."""
    return os.path.lexists(Path(attempt.path, mark))


def read(attempt: AttemptDir, mark: str) -> str:
    """Return the text of a marker file; "" if there is none."""
    return find_text(str(Path(attempt.path, mark)))


def age_s(attempt: AttemptDir, mark: str) -> float | None:
    """Return the age of a marker file; None if there is none."""
    try:
        return abs(time.time() - Path(attempt.path, mark).lstat().st_mtime)
    except FileNotFoundError:
        return None


def attempt_of(thing: Mapping[str, Any], root: Root) -> AttemptDir:
    """Return the directory of the attempt of an object. It does not exist if another daemon sent the object."""
    labels = thing["metadata"]["labels"]
    return root.job(labels[JOB_LABEL]).attempt(int(labels[ATTEMPT_LABEL]))


def remember(attempt: AttemptDir, client: ClusterClient) -> None:
    """Record the cluster of an attempt, before its objects are sent. Raises OSError."""
    leave(attempt, SENT_TO, _here(client))


def is_ours(thing: Mapping[str, Any], root: Root) -> bool:
    """Return whether the daemon of this tree has sent the attempt of an object, or is about to."""
    labels = thing["metadata"].get("labels") or {}
    if not labels.get(JOB_LABEL) or not labels.get(ATTEMPT_LABEL, "").isdecimal():
        return False
    return is_marked(attempt_of(thing, root), SENT_TO)


def elsewhere(attempt: AttemptDir, client: ClusterClient) -> str:
    """Return why an attempt that this cluster does not show may run in another one; "" if it does not, or if its owner
    has cancelled it."""
    sent_to, here = read(attempt, SENT_TO), _here(client)
    if sent_to in ("", here) or is_marked(attempt, CANCELLED):
        return ""
    return (
        f"it was sent to {sent_to}, and this daemon asks {here}: name that context and namespace in "
        "[backend.kubernetes] and restart the daemon, or cancel the job if that cluster is gone"
    )


def _here(client: ClusterClient) -> str:
    return f"{client.config.cluster.server}, namespace {client.namespace}"
