"""Nodes and pods of a cluster at a moment, as values. Pure."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ffdl_batch.domain.launch.pod_protocol import TIME_LIMIT
from ffdl_kubernetes.observing.cluster_watch import token_of
from ffdl_kubernetes.pod_resources import Amounts, asked_of, read_amounts

Plain = Mapping[str, Any]
PODS = "pods"
"""The resource of which each pod takes one."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `closed` says why it takes no pods at all ("" = it does); `taints` are those that keep pods off."""

    name: str
    labels: Mapping[str, str]
    amounts: Amounts
    taints: tuple[Plain, ...] = ()
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds `amounts` of a node ("" = it waits for one), or of the node that is being emptied for it.
    `token` is our attempt that it belongs to ("" = none of ours); `until` is when its own time limit ends it (None =
    it has none); `since` is when it was made."""

    node: str
    amounts: Amounts
    namespace: str = ""
    token: str = ""
    priority: int = 0
    since: float = 0.0
    until: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """What there was at `known_at`. `lacks` = why nodes, or who holds what of them, could not be listed ("" = both
    were)."""

    known_at: float
    nodes: tuple[Node, ...] = ()
    holders: tuple[Holder, ...] = ()
    lacks: str = ""


def read_node(thing: Plain) -> Node:
    """A Node of the API."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    ready: Plain = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})
    closed = "cordoned" if spec.get("unschedulable") else ""
    if ready.get("status") != "True":
        closed = "not ready"
    kept = tuple(one for one in spec.get("taints") or () if one.get("effect") in ("NoSchedule", "NoExecute"))
    labels = {str(name): str(value) for name, value in (thing["metadata"].get("labels") or {}).items()}
    return Node(str(thing["metadata"]["name"]), labels, read_amounts(status.get("allocatable")), kept, closed)


def read_holder(thing: Plain) -> Holder | None:
    """A Pod of the API; None for one that has ended."""
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    begun, limit = moment(status.get("startTime")), spec.get("activeDeadlineSeconds")
    training = str((meta.get("annotations") or {}).get(TIME_LIMIT, ""))
    limit = int(training) if training.isdecimal() else limit
    until = begun + float(limit) if begun is not None and isinstance(limit, int) else None
    if (leaves := moment(meta.get("deletionTimestamp"))) is not None:
        until = leaves if until is None else min(until, leaves)
    return Holder(
        node=str(spec.get("nodeName") or status.get("nominatedNodeName") or ""),
        amounts={**asked_of(spec), PODS: Decimal(1)},
        namespace=str(meta.get("namespace", "")),
        token=token_of(thing),
        priority=int(spec.get("priority") or 0),
        since=moment(meta.get("creationTimestamp")) or 0.0,
        until=until,
    )


def moment(text: object) -> float | None:
    """A time of the API, in seconds since the epoch."""
    try:
        return float(calendar.timegm(time.strptime(str(text).partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None
