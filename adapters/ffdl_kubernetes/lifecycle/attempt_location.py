"""Where an attempt's directory is, and which cluster and namespace it was sent to.

A daemon that is started anew may find another current context in the kubeconfig, or another namespace in its
configuration: what it does not see there is not gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.launch.pod_protocol import ATTEMPT_LABEL, JOB_LABEL
from ffdl_kubernetes.client import ClusterClient
from ffdl_kubernetes.lifecycle import marker_files


def attempt_of(thing: Mapping[str, Any], root: Root) -> AttemptDir:
    """The directory of the attempt that an object of ours belongs to; there is none where another daemon sent it."""
    labels = thing["metadata"]["labels"]
    return root.job(labels[JOB_LABEL]).attempt(int(labels[ATTEMPT_LABEL]))


def remember(attempt: AttemptDir, client: ClusterClient) -> None:
    """Before anything of it is sent. Raises OSError."""
    marker_files.leave(attempt, marker_files.SENT_TO, _here(client))


def is_ours(thing: Mapping[str, Any], root: Root) -> bool:
    """Whether the daemon of this tree has sent, or is about to send, the attempt that an object belongs to."""
    labels = thing["metadata"].get("labels") or {}
    if not labels.get(JOB_LABEL) or not labels.get(ATTEMPT_LABEL, "").isdecimal():
        return False
    return marker_files.is_there(attempt_of(thing, root), marker_files.SENT_TO)


def elsewhere(attempt: AttemptDir, client: ClusterClient) -> str:
    """Why an attempt that this cluster does not show may be there all the same ("" = it is not). Of one that its owner
    has cancelled nothing more is expected."""
    sent_to, here = marker_files.read(attempt, marker_files.SENT_TO), _here(client)
    if sent_to in ("", here) or marker_files.is_there(attempt, marker_files.CANCELLED):
        return ""
    return (
        f"it was sent to {sent_to}, and this daemon asks {here}: name that context and namespace in "
        "[backend.kubernetes] and restart the daemon, or cancel the job if that cluster is gone"
    )


def _here(client: ClusterClient) -> str:
    return f"{client.config.cluster.server}, namespace {client.namespace}"
