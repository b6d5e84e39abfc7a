"""What these kubelets do of a pod's spec. All else is refused when it is created, so that no test believes in it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fakes.kubernetes.kinds import JOBS, PODS, Kind, Obj, name_of
from tests.fakes.kubernetes.refusals import Refusal

_POD = frozenset({
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsPolicy",
    "enableServiceLinks", "hostAliases", "hostname", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector",
    "preemptionPolicy", "priority", "priorityClassName", "restartPolicy", "runtimeClassName", "schedulerName",
    "schedulingGates",
    "securityContext", "serviceAccount", "serviceAccountName", "shareProcessNamespace", "subdomain",
    "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
})  # fmt: skip
_POD_SECURITY = frozenset({
    "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile", "supplementalGroups",
})  # fmt: skip
_CONTAINER = frozenset({
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
    "readinessProbe", "resources", "restartPolicy", "securityContext", "startupProbe", "terminationMessagePath",
    "terminationMessagePolicy", "volumeMounts", "workingDir",
})  # fmt: skip
_SECURITY = frozenset({
    "allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser",
    "seccompProfile",
})  # fmt: skip
_PROBE = frozenset({"exec", "failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold",
                    "timeoutSeconds"})  # fmt: skip
_MOUNT = frozenset({"mountPath", "name", "readOnly", "subPath", "subPathExpr"})
_VOLUME = frozenset({"configMap", "downwardAPI", "emptyDir", "name", "persistentVolumeClaim", "projected", "secret"})


def refuse_unknown(kind: Kind, obj: Obj) -> None:
    """Refuse a pod, or a Job of such pods, that asks for what is not done here."""
    if kind is PODS:
        spec = obj["spec"]
    elif kind is JOBS:
        spec = obj["spec"]["template"]["spec"]
    else:
        return
    found = sorted(unknown(spec))
    if found:
        raise Refusal(
            422, "Invalid", f"the tests' kubelet does not know, in {kind.kind} {name_of(obj)}: {', '.join(found)}"
        )


def unknown(spec: Obj) -> Iterator[str]:
    """Paths of the fields that mean nothing here."""
    yield from _beyond(spec, _POD, "spec")
    yield from _beyond(spec.get("securityContext") or {}, _POD_SECURITY, "spec.securityContext")
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            yield from _of_container(container, f"spec.{part}.{container.get('name')}", init=part == "initContainers")
    for volume in spec.get("volumes") or []:
        yield from _beyond(volume, _VOLUME, f"spec.volumes.{volume.get('name')}")
    for constraint in spec.get("topologySpreadConstraints") or []:
        if constraint.get("whenUnsatisfiable") != "ScheduleAnyway":
            yield "spec.topologySpreadConstraints.whenUnsatisfiable"
    affinity = spec.get("affinity") or {}
    if (affinity.get("podAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
        yield "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    if affinity.get("podAntiAffinity"):
        yield "spec.affinity.podAntiAffinity"


def _of_container(container: Obj, field: str, *, init: bool) -> Iterator[str]:
    yield from _beyond(container, _CONTAINER, field)
    security = container.get("securityContext") or {}
    yield from _beyond(security, _SECURITY, f"{field}.securityContext")
    capabilities = security.get("capabilities") or {}
    if capabilities.get("add") or capabilities.get("drop", ["ALL"]) != ["ALL"]:
        yield f"{field}.securityContext.capabilities"
    if container.get("restartPolicy") and not (init and container["restartPolicy"] == "Always"):
        yield f"{field}.restartPolicy"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        yield from _beyond(container.get(probe) or {}, _PROBE, f"{field}.{probe}")
    for hook, handler in (container.get("lifecycle") or {}).items():
        yield from _beyond(handler or {}, frozenset({"exec"}), f"{field}.lifecycle.{hook}")
    for mount in container.get("volumeMounts") or []:
        yield from _beyond(mount, _MOUNT, f"{field}.volumeMounts.{mount.get('name')}")


def _beyond(found: Obj, known: frozenset[str], field: str) -> Iterator[str]:
    for key in found.keys() - known:
        yield f"{field}.{key}"
