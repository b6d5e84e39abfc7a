"""What becomes of a request that is not sent: quotas, the queue, and the nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.pending.explanation import Foretold
from ffdl_kubernetes.pending.cluster_snapshot import ClusterNow
from ffdl_kubernetes.pending.node_capacity import Wish, find_room, opening_for
from ffdl_kubernetes.pending.queue_capacity import QueueNow, admit
from ffdl_kubernetes.pending.quota_capacity import counts_of, lacking, needs_of_pod
from ffdl_kubernetes.pod_resources import added

Plain = Mapping[str, Any]
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class There:
    """What is known of the cluster. `queue` None = jobs go to no queue. `own_job` and `own_pods` are those in whose
    place the request would be (None, empty = of nobody)."""

    cluster: ClusterNow
    quotas: Sequence[Plain] = ()
    queue: QueueNow | None = None
    own_job: Plain | None = None
    own_pods: Sequence[Plain] = ()


def foretell(objects: Sequence[Plain], wish: Wish, there: There, now: float, token: str) -> Foretold | None:
    """When the pods of a Job could start; None where nobody can say."""
    if obstacle := lacking(objects, there.quotas, _freed(objects, there)):
        return Foretold(obstacle, counted=True)
    if there.queue is not None:
        admission = admit(wish, there.queue, waits_itself=there.own_job is not None)
        if admission.obstacle:
            return None if there.queue.cluster_queue is None else Foretold(admission.obstacle, counted=True)
        wish = wish.beside(admission.labels, admission.tolerations)
    if there.cluster.lacks:
        return None
    found = find_room(opening_for(wish, there.cluster, token), now)
    if found.at is None:
        return Foretold(_never(wish, found.ever), counted=True)
    shown = ", ".join(found.nodes[:_SHOWN]) + (f" and {len(found.nodes) - _SHOWN} more" if found.nodes[_SHOWN:] else "")
    return Foretold(
        f"room for {counted(wish.pods, 'learner')} on {shown}", found.at, ",".join(found.nodes), counted=True
    )


def _freed(objects: Sequence[Plain], there: There) -> dict[str, Decimal]:
    """What quotas get back: of the pods that are there, and of all that is made beside the Job's pods."""
    if there.own_job is None:
        return {}
    present = [pod for pod in there.own_pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    return added([counts_of(objects), *(needs_of_pod(pod["spec"]) for pod in present)])


def _never(wish: Wish, ever: int) -> str:
    if ever < wish.pods:
        return (
            f"even if nothing else ran, the nodes that take such pods now have room for {ever} of "
            f"{counted(wish.pods, 'learner')}"
        )
    return "what runs there has no time limit, so that nobody can say when there is room"
