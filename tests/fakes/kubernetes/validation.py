"""What every object must fulfil beside its schema: names, labels, sizes; and the rules of all kinds but pods."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from tests.fakes.kubernetes import kinds
from tests.fakes.kubernetes.kinds import Kind, Obj
from tests.fakes.kubernetes.objects import finalizers_of, labels_of, name_of
from tests.fakes.kubernetes.pod_rules import check_pod_spec, dns_label, dns_name
from tests.fakes.kubernetes.refusals import Cause, forbidden_field, invalid, required, unsupported, wrong

ANNOTATIONS_BYTES, DATA_BYTES = 256 * 1024, 1024 * 1024
_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_WHY = (
    "must be no more than 63 characters, consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character"
)
_AMOUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_FIXED = ("selector", "completionMode", "podFailurePolicy", "podReplacementPolicy", "template")
"""What of a Job may not change."""
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")


def check(kind: Kind, obj: Obj, before: Obj | None) -> None:
    """Refuse an object that Kubernetes refuses; `before` is its last version."""
    causes = list(_metadata(kind, obj["metadata"], obj))
    if kind is kinds.JOBS:
        causes += _job(obj) if before is None else _job_change(before["spec"], obj["spec"])
    elif kind is kinds.PODS and before is None:
        causes += check_pod_spec(obj["spec"], "spec")
    elif kind is kinds.PODS and before is not None and obj["spec"] != before["spec"]:
        causes.append(
            forbidden_field("spec", "pod updates may not change fields other than `spec.containers[*].image`")
        )
    elif kind in (kinds.CONFIG_MAPS, kinds.SECRETS):
        causes += _data(kind, obj, before or {})
    elif kind is kinds.SERVICES and not obj["spec"].get("ports") and obj["spec"].get("clusterIP") != "None":
        causes.append(required("spec.ports"))
    elif kind is kinds.POLICIES:
        causes += _policy(obj["spec"])
    elif kind is kinds.ROLE_BINDINGS and before is not None and before["roleRef"] != obj["roleRef"]:
        causes.append(wrong("roleRef", obj["roleRef"], "cannot change roleRef"))
    if causes:
        raise invalid(kind, name_of(obj), causes)


def _metadata(kind: Kind, metadata: Obj, obj: Obj) -> Iterator[Cause]:
    name = name_of(obj)
    if kind in (kinds.SERVICES, kinds.NAMESPACES):
        yield from dns_label("metadata.name", name)
    elif kind.group != "rbac.authorization.k8s.io" and kind is not kinds.EVENTS:
        yield from dns_name("metadata.name", name)
    elif not re.fullmatch(r"[^/%]+", name):
        yield wrong("metadata.name", name, "may not contain '/' or '%'")
    yield from _labels(labels_of(obj), "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        yield from _qualified_name(key.lower(), "metadata.annotations")
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATIONS_BYTES:
        yield wrong("metadata.annotations", "...", f"may not be more than {ANNOTATIONS_BYTES} bytes")
    for finalizer in finalizers_of(obj):
        if "/" not in finalizer and finalizer not in ("foregroundDeletion", "orphan", "kubernetes"):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield wrong("metadata.finalizers", finalizer, why)


def _qualified_name(key: str, field: str) -> Iterator[Cause]:
    """The key of a label or an annotation."""
    prefix, slash, name = key.rpartition("/")
    if slash:
        yield from dns_name(field, prefix)
    if not name or len(name) > 63 or not _LABEL.fullmatch(name):
        yield wrong(field, key, f"name part {_LABEL_WHY}")


def _labels(labels: dict[str, str], field: str) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _qualified_name(key, field)
        if len(value) > 63 or not _LABEL.fullmatch(value):
            yield wrong(field, value, _LABEL_WHY)


def _data(kind: Kind, obj: Obj, before: Obj) -> Iterator[Cause]:
    size = 0
    for field in ("data", "binaryData"):
        for key, value in (obj.get(field) or {}).items():
            if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) or key in (".", ".."):
                yield wrong(field, key, "a valid config key must consist of alphanumeric characters, '-', '_' or '.'")
            try:
                is_text = kind is kinds.CONFIG_MAPS and field == "data"
                size += len(value.encode() if is_text else base64.b64decode(value, validate=True))
            except binascii.Error:
                yield wrong(f"{field}[{key}]", key, "illegal base64 data")
        if before.get("immutable") and before.get(field) != obj.get(field):
            yield forbidden_field(field, "field is immutable when `immutable` is set")
    if size > DATA_BYTES:
        yield wrong("data", "...", f"may not be more than {DATA_BYTES} bytes")


def _policy(spec: Obj) -> Iterator[Cause]:
    for direction, end in (("ingress", "from"), ("egress", "to")):
        for rule in spec.get(direction) or []:
            for peer in rule.get(end) or []:
                field = f"spec.{direction}.{end}"
                if not peer:
                    yield required(field, "must specify a peer")
                if "ipBlock" in peer and len(peer) > 1:
                    yield forbidden_field(field, "may not specify both ipBlock and another peer")
                cidr = peer.get("ipBlock", {}).get("cidr", "0.0.0.0/0")
                if not re.fullmatch(r"[0-9a-fA-F.:]+/\d+", cidr):
                    yield wrong(f"{field}.ipBlock.cidr", cidr, "must be a valid CIDR value")


def _job(job: Obj) -> Iterator[Cause]:
    spec, template = job["spec"], job["spec"]["template"]
    for key in _AMOUNTS:
        if spec.get(key, 0) < 0:
            yield wrong(f"spec.{key}", spec[key], "must be greater than or equal to 0")
    if spec["completionMode"] == "Indexed" and "completions" not in spec:
        yield required("spec.completions", "when completion mode is Indexed")
    elif spec["completionMode"] == "Indexed":
        longest = f"{name_of(job)}-{max(spec['completions'] - 1, 0)}"
        yield from dns_label("metadata.name: will not able to create pod", longest)
    restart, field = template["spec"]["restartPolicy"], "spec.template.spec.restartPolicy"
    if restart not in ("OnFailure", "Never"):
        yield unsupported(field, restart, ("OnFailure", "Never"))
    if "podFailurePolicy" in spec:
        if restart != "Never":
            yield wrong(field, restart, 'only "Never" is supported when podFailurePolicy is specified')
        if spec["podReplacementPolicy"] != "Failed":
            yield unsupported("spec.podReplacementPolicy", spec["podReplacementPolicy"], ("Failed",))
        for rule in spec["podFailurePolicy"].get("rules") or []:
            if rule.get("action") not in _ACTIONS:
                yield unsupported("spec.podFailurePolicy.rules.action", rule.get("action"), _ACTIONS)
            if not rule.get("onPodConditions") or "onExitCodes" in rule:
                yield wrong("spec.podFailurePolicy.rules", rule, "the tests' cluster knows onPodConditions alone")
    yield from _labels(template["metadata"].get("labels") or {}, "spec.template.labels")
    yield from check_pod_spec(template["spec"], "spec.template.spec")


def _job_change(before: Obj, spec: Obj) -> Iterator[Cause]:
    for key in _FIXED:
        if before.get(key) != spec.get(key):
            yield wrong(f"spec.{key}", spec.get(key), "field is immutable")
    if before.get("completions") != spec.get("completions"):
        why = "can only be modified in tandem with spec.parallelism" if spec["completionMode"] == "Indexed" else ""
        if not why or spec.get("completions") != spec["parallelism"]:
            yield wrong("spec.completions", spec.get("completions"), why or "field is immutable")
