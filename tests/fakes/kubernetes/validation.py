"""What every object must fulfil beside its schema: names, labels, sizes; and the rules of small kinds."""

from __future__ import annotations

import base64
import binascii
import re

from tests.fakes.kubernetes.job_rules import check_job, check_job_change
from tests.fakes.kubernetes.kinds import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    PODS,
    POLICIES,
    ROLE_BINDINGS,
    SECRETS,
    SERVICES,
    Kind,
    Obj,
    name_of,
)
from tests.fakes.kubernetes.names import DNS_LABEL, DNS_NAME, LABEL_TEXT, check_labels, qualified_name
from tests.fakes.kubernetes.pod_rules import check_pod, check_pod_change
from tests.fakes.kubernetes.refusals import Cause, forbidden_field, invalid, required, too_long, wrong

ANNOTATIONS_BYTES = 256 * 1024
DATA_BYTES = 1024 * 1024
_ANY_NAME = re.compile(r"^[^/%]+$")
_FREE_NAMES = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")


def check(kind: Kind, obj: Obj, before: Obj | None) -> None:
    """Refuse an object that Kubernetes refuses; `before` is its last version."""
    causes = _metadata(kind, obj["metadata"])
    if kind is JOBS:
        causes += check_job(obj) if before is None else check_job_change(before, obj)
    elif kind is PODS:
        causes += check_pod(obj) if before is None else check_pod_change(before, obj)
    elif kind in (CONFIG_MAPS, SECRETS):
        causes += _data(kind, obj, before)
    elif kind is SERVICES:
        causes += _service(obj)
    elif kind is POLICIES:
        causes += _policy(obj)
    elif kind is ROLE_BINDINGS and before is not None and before["roleRef"] != obj["roleRef"]:
        causes.append(wrong("roleRef", obj["roleRef"], "cannot change roleRef"))
    if causes:
        raise invalid(kind, name_of(obj), causes)


def _metadata(kind: Kind, metadata: Obj) -> list[Cause]:
    causes, name = [], str(metadata["name"])
    pattern, why = DNS_NAME
    limit = 253
    if kind.plural in ("services", "namespaces"):
        (pattern, why), limit = DNS_LABEL, 63
    if kind.plural in _FREE_NAMES or kind is EVENTS:
        pattern, why = _ANY_NAME, "may not contain '/' or '%'"
    if not pattern.match(name):
        causes.append(wrong("metadata.name", name, why))
    if len(name) > limit:
        causes.append(wrong("metadata.name", name, f"must be no more than {limit} characters"))
    causes += check_labels(metadata.get("labels") or {}, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        problem = qualified_name(key.lower())
        if problem:
            causes.append(wrong("metadata.annotations", key, problem))
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATIONS_BYTES:
        causes.append(too_long("metadata.annotations", ANNOTATIONS_BYTES))
    for at, finalizer in enumerate(metadata.get("finalizers") or []):
        if "/" not in finalizer and finalizer not in ("foregroundDeletion", "orphan", "kubernetes"):
            causes.append(
                wrong(
                    f"metadata.finalizers[{at}]",
                    finalizer,
                    "name is neither a standard finalizer name nor is it fully qualified",
                )
            )
    for at, owner in enumerate(metadata.get("ownerReferences") or []):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                causes.append(required(f"metadata.ownerReferences[{at}].{key}", "must not be empty"))
    return causes


def _data(kind: Kind, obj: Obj, before: Obj | None) -> list[Cause]:
    causes, size = [], 0
    for field in ("data", "binaryData"):
        for key, value in (obj.get(field) or {}).items():
            if not re.fullmatch(r"[-._a-zA-Z0-9]+", key) or key in (".", "..") or len(key) > 253:
                causes.append(
                    wrong(
                        f"{field}[{key}]",
                        key,
                        "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
                    )
                )
            if kind is CONFIG_MAPS and field == "data":
                size += len(value.encode())
            else:
                try:
                    size += len(base64.b64decode(value, validate=True))
                except binascii.Error:
                    causes.append(wrong(f"{field}[{key}]", key, "illegal base64 data"))
    if size > DATA_BYTES:
        causes.append(too_long("[]" if kind is CONFIG_MAPS else "data", DATA_BYTES))
    if before is not None and before.get("immutable"):
        causes += [
            forbidden_field(field, "field is immutable when `immutable` is set")
            for field in ("data", "binaryData", "immutable")
            if before.get(field) != obj.get(field)
        ]
    return causes


def _service(obj: Obj) -> list[Cause]:
    spec, causes = obj["spec"], []
    if not spec.get("ports") and spec.get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    for at, port in enumerate(spec.get("ports") or []):
        if len(spec["ports"]) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{at}].name"))
        if not 1 <= int(port["port"]) <= 65535:
            causes.append(wrong(f"spec.ports[{at}].port", port["port"], "must be between 1 and 65535, inclusive"))
    return causes


def _policy(obj: Obj) -> list[Cause]:
    causes = []
    for direction, end in (("ingress", "from"), ("egress", "to")):
        for at, rule in enumerate(obj["spec"].get(direction) or []):
            for of, peer in enumerate(rule.get(end) or []):
                field = f"spec.{direction}[{at}].{end}[{of}]"
                if not peer:
                    causes.append(required(field, "must specify a peer"))
                if "ipBlock" in peer and len(peer) > 1:
                    causes.append(forbidden_field(field, "may not specify both ipBlock and another peer"))
                cidr = peer.get("ipBlock", {}).get("cidr", "0.0.0.0/0")
                if not re.fullmatch(r"[0-9a-fA-F.:]+/\d+", cidr):
                    causes.append(
                        wrong(
                            f"{field}.ipBlock.cidr",
                            cidr,
                            "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                        )
                    )
    return causes


__all__ = ["LABEL_TEXT", "check"]
