"""What the spec of a pod must fulfil beside its schema, and what of it this cluster knows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.fakes.kubernetes.kinds import JOBS, PODS, Kind, Obj
from tests.fakes.kubernetes.objects import name_of
from tests.fakes.kubernetes.quantities import amount
from tests.fakes.kubernetes.refusals import Cause, Refusal, forbidden_field, required, unsupported, wrong

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_WHY = (
    "a lowercase RFC 1123 {} must consist of lower case alphanumeric characters{}, must start and end with an "
    "alphanumeric character, and be no more than {} characters"
)
_RESTARTS, _PULLS = ("Always", "OnFailure", "Never"), ("Always", "IfNotPresent", "Never")
_VOLUME_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
_FIELDS = (*_VOLUME_FIELDS[:3], "spec.nodeName", "spec.serviceAccountName", "status.podIP")
_ITEMS = ("configMap", "secret", "downwardAPI")


def dns_label(field: str, text: str) -> Iterator[Cause]:
    """Find what is wrong with a name that is one part of a host's name."""
    if not re.fullmatch(_LABEL, text) or len(text) > 63:
        yield wrong(field, text, _DNS_WHY.format("label", " or '-'", 63))


def dns_name(field: str, text: str) -> Iterator[Cause]:
    """Find what is wrong with the name of an object."""
    if not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text) or len(text) > 253:
        yield wrong(field, text, _DNS_WHY.format("subdomain", ", '-' or '.'", 253))


def check_pod_spec(spec: Obj, field: str) -> Iterator[Cause]:
    """Find what is wrong with a pod's spec, which is at `field`."""
    if not spec.get("containers"):
        yield required(f"{field}.containers")
    if spec["restartPolicy"] not in _RESTARTS:
        yield unsupported(f"{field}.restartPolicy", spec["restartPolicy"], _RESTARTS)
    for key, check in (("hostname", dns_label), ("subdomain", dns_label), ("serviceAccountName", dns_name),
                       ("priorityClassName", dns_name), ("nodeName", dns_name)):  # fmt: skip
        if spec.get(key):
            yield from check(f"{field}.{key}", spec[key])
    volumes: set[str] = set()
    for at, volume in enumerate(spec.get("volumes") or []):
        where, name = f"{field}.volumes[{at}]", volume["name"]
        if name in volumes:
            yield Cause(f"{where}.name", "FieldValueDuplicate", f"Duplicate value: {name}")
        volumes.add(name)
        yield from dns_label(f"{where}.name", name)
        yield from _volume(volume, where)
    names: set[str] = set()
    for part in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(part) or []):
            where, name = f"{field}.{part}[{at}]", container["name"]
            if name in names:
                yield Cause(f"{where}.name", "FieldValueDuplicate", f"Duplicate value: {name}")
            names.add(name)
            yield from dns_label(f"{where}.name", name)
            yield from _container(container, where, volumes)
    for at, one in enumerate(spec.get("tolerations") or []):
        where = f"{field}.tolerations[{at}]"
        if one.get("operator") == "Exists" and one.get("value"):
            yield wrong(f"{where}.operator", one, "value must be empty when `operator` is 'Exists'")
        if "tolerationSeconds" in one and one.get("effect") != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield wrong(f"{where}.effect", one.get("effect", ""), why)


def _volume(volume: Obj, field: str) -> Iterator[Cause]:
    if len(volume) > 2:
        yield forbidden_field(field, f"may not specify more than 1 volume type: {sorted(volume)}")
    projected = volume.get("projected", {})
    yield from _mode(projected.get("defaultMode", 0), f"{field}.projected.defaultMode")
    for one in (volume, *(projected.get("sources") or [])):
        for kind in set(_ITEMS) & one.keys():
            yield from _mode(one[kind].get("defaultMode", 0), f"{field}.{kind}.defaultMode")
            for at, item in enumerate(one[kind].get("items") or []):
                yield from _item(item, f"{field}.{kind}.items[{at}]")


def _mode(mode: int, field: str) -> Iterator[Cause]:
    if not 0 <= mode <= 0o777:
        yield wrong(field, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _item(item: Obj, field: str) -> Iterator[Cause]:
    yield from _relative(item["path"], f"{field}.path")
    yield from _mode(item.get("mode", 0), f"{field}.mode")
    path = item.get("fieldRef", {}).get("fieldPath", "metadata.name")
    if re.sub(r"\['[^']*'\]$", "", path) not in _VOLUME_FIELDS:
        yield unsupported(f"{field}.fieldRef.fieldPath", path, _VOLUME_FIELDS)


def _relative(path: str, field: str) -> Iterator[Cause]:
    if path.startswith("/"):
        yield wrong(field, path, "must be a relative path")
    if ".." in path.split("/"):
        yield wrong(field, path, "must not contain '..'")


def _container(container: Obj, field: str, volumes: set[str]) -> Iterator[Cause]:
    image, pull = container.get("image", ""), container["imagePullPolicy"]
    if not image:
        yield required(f"{field}.image")
    elif image != image.strip():
        yield wrong(f"{field}.image", image, "must not have leading or trailing whitespace")
    if pull not in _PULLS:
        yield unsupported(f"{field}.imagePullPolicy", pull, _PULLS)
    yield from _mounts(container.get("volumeMounts") or [], f"{field}.volumeMounts", volumes)
    for at, one in enumerate(container.get("env") or []):
        yield from _variable(one, f"{field}.env[{at}]")
    yield from _resources(container["resources"], f"{field}.resources")
    if "exec" not in container.get("startupProbe", {"exec": {}}):
        yield required(f"{field}.startupProbe", "must specify a handler type")


def _mounts(mounts: list[Obj], field: str, volumes: set[str]) -> Iterator[Cause]:
    paths = [mount["mountPath"] for mount in mounts]
    for at, mount in enumerate(mounts):
        where, path = f"{field}[{at}]", paths[at]
        if mount["name"] not in volumes:
            yield Cause(f"{where}.name", "FieldValueNotFound", f"Not found: {mount['name']}")
        if path in paths[:at]:
            yield wrong(f"{where}.mountPath", path, "must be unique")
        if ":" in path:
            yield wrong(f"{where}.mountPath", path, "must not contain ':'")
        if mount.get("subPath") and mount.get("subPathExpr"):
            yield wrong(f"{where}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive")
        yield from _relative(mount.get("subPath") or mount.get("subPathExpr") or "", f"{where}.subPath")


def _variable(one: Obj, field: str) -> Iterator[Cause]:
    if not re.fullmatch(r"[^=\x00-\x1f]+", one["name"]):
        yield wrong(f"{field}.name", one["name"], "must consist only of printable ASCII characters other than '='")
    if one.get("value") and one.get("valueFrom"):
        yield wrong(f"{field}.valueFrom", "", "may not be specified when `value` is not empty")
    path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "metadata.name")
    if path not in _FIELDS and not path.startswith(("metadata.labels[", "metadata.annotations[")):
        yield unsupported(f"{field}.valueFrom.fieldRef.fieldPath", path, _FIELDS)


def _resources(resources: Obj, field: str) -> Iterator[Cause]:
    limits = resources.get("limits") or {}
    for name, value in (resources.get("requests") or {}).items():
        if amount(value) < 0:
            yield wrong(f"{field}.requests[{name}]", value, "must be greater than or equal to 0")
        if name in limits and amount(value) > amount(limits[name]):
            yield wrong(f"{field}.requests", value, f"must be less than or equal to {name} limit of {limits[name]}")
        if "/" in name and amount(value) != amount(limits.get(name, -1)):
            yield wrong(f"{field}.requests", value, f"must be equal to {name} limit of {limits.get(name, 0)}")
    for name, value in limits.items():
        if "/" in name and amount(value) != amount(value).to_integral_value():
            yield wrong(f"{field}.limits[{name}]", value, "must be an integer")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JOB = _words("""
    activeDeadlineSeconds backoffLimit completionMode completions manualSelector parallelism podFailurePolicy
    podReplacementPolicy selector suspend template ttlSecondsAfterFinished
""")
_POD = _words("""
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsPolicy enableServiceLinks hostname
    imagePullSecrets initContainers nodeName nodeSelector priority priorityClassName restartPolicy runtimeClassName
    schedulerName securityContext serviceAccountName shareProcessNamespace subdomain terminationGracePeriodSeconds
    tolerations topologySpreadConstraints volumes
""")
_POD_SECURITY = _words("""
    fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seccompProfile
""")
_CONTAINER = _words("""
    args command env image imagePullPolicy lifecycle livenessProbe name readinessProbe resources restartPolicy
    securityContext startupProbe terminationMessagePath terminationMessagePolicy volumeMounts workingDir
""")
_SECURITY = _words("""
    allowPrivilegeEscalation capabilities readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seccompProfile
""")
_PROBE = _words("exec failureThreshold initialDelaySeconds periodSeconds successThreshold timeoutSeconds")
_MOUNT = _words("mountPath name readOnly subPath subPathExpr")
_VOLUME = _words("configMap downwardAPI emptyDir name persistentVolumeClaim projected secret")


def refuse_unknown(kind: Kind, obj: Obj) -> None:
    """Refuse a pod, or a Job of such pods, that asks for what is not done here, so that no test believes in it."""
    found: list[str] = []
    if kind is PODS:
        found += _unknown(obj["spec"])
    elif kind is JOBS:
        found += [*_beyond(obj["spec"], _JOB, "spec"), *_unknown(obj["spec"]["template"]["spec"])]
    found.sort()
    if kind is JOBS and obj["spec"]["completionMode"] != "Indexed":
        found.append("spec.completionMode NonIndexed")
    if found:
        said = f"the tests' cluster does not know, in {kind.kind} {name_of(obj)}: {', '.join(found)}"
        raise Refusal(422, "Invalid", said)


def _unknown(spec: Obj) -> Iterator[str]:
    """Find the fields of a pod's spec that mean nothing here."""
    yield from _beyond(spec, _POD, "spec")
    yield from _beyond(spec.get("securityContext"), _POD_SECURITY, "spec.securityContext")
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            yield from _of_container(container, f"spec.{part}.{container['name']}", init=part == "initContainers")
    for volume in spec.get("volumes") or []:
        yield from _beyond(volume, _VOLUME, f"spec.volumes.{volume['name']}")
    for constraint in spec.get("topologySpreadConstraints") or []:
        if constraint.get("whenUnsatisfiable") != "ScheduleAnyway":
            yield "spec.topologySpreadConstraints.whenUnsatisfiable"
    affinity, preferred = spec.get("affinity") or {}, _words("preferredDuringSchedulingIgnoredDuringExecution")
    yield from _beyond(affinity, _words("podAffinity"), "spec.affinity")
    yield from _beyond(affinity.get("podAffinity"), preferred, "spec.affinity.podAffinity")


def _of_container(container: Obj, field: str, *, init: bool) -> Iterator[str]:
    yield from _beyond(container, _CONTAINER, field)
    security = container.get("securityContext") or {}
    yield from _beyond(security, _SECURITY, f"{field}.securityContext")
    if (security.get("capabilities") or {}) not in ({}, {"drop": ["ALL"]}):
        yield f"{field}.securityContext.capabilities"
    if container.get("restartPolicy") != ("Always" if init else None):  # all init containers are sidecars
        yield f"{field}.restartPolicy"
    for probe, known in (("startupProbe", _PROBE), ("livenessProbe", frozenset()), ("readinessProbe", frozenset())):
        yield from _beyond(container.get(probe), known, f"{field}.{probe}")
    yield from _beyond(container.get("lifecycle"), _words("preStop"), f"{field}.lifecycle")
    for hook, handler in (container.get("lifecycle") or {}).items():
        yield from _beyond(handler, _words("exec"), f"{field}.lifecycle.{hook}")
    for mount in container.get("volumeMounts") or []:
        yield from _beyond(mount, _MOUNT, f"{field}.volumeMounts.{mount['name']}")


def _beyond(found: Obj | None, known: frozenset[str], field: str) -> Iterator[str]:
    yield from (f"{field}.{key}" for key in (found or {}).keys() - known)
