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
"""Empty: its controllers were asked to end, and its Job was, or is about to be, ended by us."""
PREEMPTED = "submit/preempted"
"""Its Job was, or is about to be, deleted by us, because it had been suspended: why."""
NO_IMAGE = "submit/no-image"
"""Its Job was, or is about to be, ended by us, because an image of it could not be had for too long: which."""
NODE_LOST = "submit/node-lost"
"""Names the node that does not answer any more, for which the daemon ends the Job or has ended it."""
SENT_TO = "submit/cluster"
"""Where it was, or is about to be, sent to: no word about its end."""
END_REPORTED = "submit/end-told"
"""Empty: its controllers left no final record, and the adapter has reported that it ended, but not how."""
ALL = (CANCELLED, PREEMPTED, NO_IMAGE, NODE_LOST)


def leave(attempt: AttemptDir, mark: str, why: str = "") -> None:
    """Of several empty ones the first stays, and with it the time. Raises OSError."""
    path = Path(attempt.path, mark)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why or status_of(str(path)) is None:
        write_text(str(path), why)


def is_marked(attempt: AttemptDir, mark: str) -> bool:
    """Whether it was left."""
    return os.path.lexists(Path(attempt.path, mark))


def read(attempt: AttemptDir, mark: str) -> str:
    """Why ("" = it was not left)."""
    return find_text(str(Path(attempt.path, mark)))


def age_s(attempt: AttemptDir, mark: str) -> float | None:
    """How long ago it was left; None where it was not."""
    try:
        return abs(time.time() - Path(attempt.path, mark).lstat().st_mtime)
    except FileNotFoundError:
        return None


def attempt_of(thing: Mapping[str, Any], root: Root) -> AttemptDir:
    """The directory of the attempt that an object of ours belongs to; there is none where another daemon sent it."""
    labels = thing["metadata"]["labels"]
    return root.job(labels[JOB_LABEL]).attempt(int(labels[ATTEMPT_LABEL]))


def remember(attempt: AttemptDir, client: ClusterClient) -> None:
    """Before anything of it is sent. Raises OSError."""
    leave(attempt, SENT_TO, _here(client))


def is_ours(thing: Mapping[str, Any], root: Root) -> bool:
    """Whether the daemon of this tree has sent, or is about to send, the attempt that an object belongs to."""
    labels = thing["metadata"].get("labels") or {}
    if not labels.get(JOB_LABEL) or not labels.get(ATTEMPT_LABEL, "").isdecimal():
        return False
    return is_marked(attempt_of(thing, root), SENT_TO)


def elsewhere(attempt: AttemptDir, client: ClusterClient) -> str:
    """Why an attempt that this cluster does not show may be there all the same ("" = it is not). Of one that its owner
    has cancelled nothing more is expected."""
    sent_to, here = read(attempt, SENT_TO), _here(client)
    if sent_to in ("", here) or is_marked(attempt, CANCELLED):
        return ""
    return (
        f"it was sent to {sent_to}, and this daemon asks {here}: name that context and namespace in "
        "[backend.kubernetes] and restart the daemon, or cancel the job if that cluster is gone"
    )


def _here(client: ClusterClient) -> str:
    return f"{client.config.cluster.server}, namespace {client.namespace}"
