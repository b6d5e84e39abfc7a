"""What the API server writes into objects that leave it out."""

from __future__ import annotations

import base64

from tests.fakes.kubernetes.kinds import JOBS, PODS, SERVICES, Kind, Obj

_PULL_ALWAYS = ("", "latest")


def apply_defaults(kind: Kind, obj: Obj) -> None:
    """Fill the object in place."""
    if kind is PODS:
        pod_spec(obj.setdefault("spec", {}))
        obj.setdefault("status", {}).setdefault("phase", "Pending")
        obj["status"].setdefault("qosClass", qos_class(obj["spec"]))
    elif kind is JOBS:
        _job(obj)
    elif kind is SERVICES:
        _service(obj.setdefault("spec", {}))
    elif kind.plural == "namespaces":
        obj.setdefault("spec", {"finalizers": ["kubernetes"]})
        obj["status"] = {"phase": "Active", **obj.get("status", {})}
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    elif kind.plural == "secrets":
        obj.setdefault("type", "Opaque")
        texts = obj.pop("stringData", None) or {}
        data = obj.setdefault("data", {})
        data.update({name: base64.b64encode(text.encode()).decode("ascii") for name, text in texts.items()})
    elif kind.plural == "persistentvolumeclaims":
        obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        obj.setdefault("status", {"phase": "Pending"})
    elif kind.plural == "networkpolicies":
        spec = obj.setdefault("spec", {})
        spec.setdefault("podSelector", {})
        spec.setdefault("policyTypes", ["Ingress"] + (["Egress"] if "egress" in spec else []))


def pod_spec(spec: Obj) -> None:
    """The defaults of a pod's spec, and of a pod template's."""
    for key, value in {
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
    }.items():  # fmt: skip
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _container(container)
    for volume in spec.get("volumes") or []:
        _volume(volume)


def _container(container: Obj) -> None:
    image = str(container.get("image", ""))
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    digested = "@" in image
    container.setdefault("imagePullPolicy", "Always" if tag in _PULL_ALWAYS and not digested else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    for name, value in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, value)
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        if name in container:
            for key, value in {
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            }.items():  # fmt: skip
                container[name].setdefault(key, value)
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for one in container.get("env") or []:
        reference = one.get("valueFrom", {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


def _volume(volume: Obj) -> None:
    for name in ("configMap", "secret", "downwardAPI", "projected"):
        if name in volume:
            volume[name].setdefault("defaultMode", 0o644)
    sources = [volume.get("downwardAPI", {})]
    sources += [one.get("downwardAPI", {}) for one in volume.get("projected", {}).get("sources", [])]
    for source in sources:
        for item in source.get("items", []):
            if "fieldRef" in item:
                item["fieldRef"].setdefault("apiVersion", "v1")
    if not set(volume) - {"name"}:
        volume["emptyDir"] = {}


def _job(job: Obj) -> None:
    spec = job.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for key, value in {
        "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False, "manualSelector": False,
        "podReplacementPolicy": "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed",
    }.items():  # fmt: skip
        spec.setdefault(key, value)
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))
    job.setdefault("status", {})


def own_labels(job: Obj) -> None:
    """The selector and the labels that a new Job and its template get; they need its uid."""
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    labels = job["spec"]["template"]["metadata"].setdefault("labels", {})
    labels.update({
        "controller-uid": uid, "batch.kubernetes.io/controller-uid": uid,
        "job-name": name, "batch.kubernetes.io/job-name": name,
    })  # fmt: skip
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    job["metadata"].setdefault("labels", dict(labels))


def _service(spec: Obj) -> None:
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    spec.setdefault("clusterIP", "None" if spec.get("clusterIP") == "None" else "10.96.0.1")
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def qos_class(spec: Obj) -> str:
    """BestEffort, Burstable or Guaranteed."""
    every = [one.get("resources", {}) for one in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]]
    if not any(one.get("requests") or one.get("limits") for one in every):
        return "BestEffort"
    names = ("cpu", "memory")
    if all((one.get("limits") or {}).get(name) for one in every for name in names) and all(
        (one.get("requests") or {}).get(name) == one["limits"][name] for one in every for name in names
    ):
        return "Guaranteed"
    return "Burstable"
