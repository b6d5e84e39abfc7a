"""What the API server writes into objects that leave it out."""

from __future__ import annotations

import base64

from tests.fakes.kubernetes.kinds import CLAIMS, JOBS, NAMESPACES, PODS, POLICIES, SECRETS, SERVICES, Kind, Obj
from tests.fakes.kubernetes.objects import containers_of

_POD = {
    "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
    "schedulerName": "default-scheduler",
}  # fmt: skip
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_JOB = {"parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}


def apply_defaults(kind: Kind, obj: Obj) -> None:
    spec = obj.setdefault("spec", {}) if kind in (PODS, JOBS, SERVICES, CLAIMS, POLICIES) else {}
    if kind is PODS:
        _pod(spec)
        obj.setdefault("status", {}).setdefault("phase", "Pending")
    elif kind is JOBS:
        _job(spec)
        obj.setdefault("status", {})
    elif kind is SERVICES:
        spec.setdefault("clusterIP", "10.96.0.1")
    elif kind is NAMESPACES:
        obj.setdefault("spec", {"finalizers": ["kubernetes"]})
        obj["status"] = {"phase": "Active", **obj.get("status", {})}
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    elif kind is SECRETS:
        texts = obj.pop("stringData", None) or {}
        data = obj.setdefault("data", {})
        data.update({name: base64.b64encode(text.encode()).decode("ascii") for name, text in texts.items()})
    elif kind is CLAIMS:
        obj.setdefault("status", {"phase": "Pending"})
    elif kind is POLICIES:
        spec.setdefault("podSelector", {})
        spec.setdefault("policyTypes", ["Ingress"] + (["Egress"] if "egress" in spec else []))


def _fill(obj: Obj, defaults: Obj) -> None:
    for key, value in defaults.items():
        obj.setdefault(key, value)


def _pod(spec: Obj) -> None:
    """The spec of a pod, or of a pod template."""
    _fill(spec, _POD)
    spec.setdefault("securityContext", {})
    for container in containers_of(spec):
        image = str(container.get("image", ""))
        latest = "@" not in image and image.rsplit("/", 1)[-1].partition(":")[2] in ("", "latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        if limits := resources.get("limits"):
            _fill(resources.setdefault("requests", {}), limits)
        if "startupProbe" in container:
            _fill(container["startupProbe"], _PROBE)
    for volume in spec.get("volumes") or []:
        for name in ("configMap", "secret", "downwardAPI", "projected"):
            if name in volume:
                volume[name].setdefault("defaultMode", 0o644)
        if volume.keys() == {"name"}:
            volume["emptyDir"] = {}


def _job(spec: Obj) -> None:
    _fill(spec, _JOB)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    _pod(template.setdefault("spec", {}))


def own_labels(job: Obj) -> None:
    """Write the selector and the labels that a new Job and its template get; they need its uid."""
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    labels = job["spec"]["template"]["metadata"].setdefault("labels", {})
    labels.update({
        "controller-uid": uid, "batch.kubernetes.io/controller-uid": uid,
        "job-name": name, "batch.kubernetes.io/job-name": name,
    })  # fmt: skip
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    job["metadata"].setdefault("labels", dict(labels))
