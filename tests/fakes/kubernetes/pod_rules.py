"""What a pod must fulfil, and what of it may change."""

from __future__ import annotations

import re

from tests.fakes.kubernetes.kinds import Obj, clone
from tests.fakes.kubernetes.names import DNS_LABEL, DNS_NAME
from tests.fakes.kubernetes.quantities import amount
from tests.fakes.kubernetes.refusals import Cause, absent, duplicate, forbidden_field, required, unsupported, wrong

_ENV = re.compile(r"^[^=\x00-\x1f]+$")
_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
           "status.hostIP", "status.podIP", "status.podIPs", "status.hostIPs")  # fmt: skip
_VOLUME_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
_SOURCES = ("emptyDir", "configMap", "secret", "downwardAPI", "projected", "persistentVolumeClaim", "hostPath", "csi",
            "ephemeral", "image", "nfs")  # fmt: skip
_CHANGE_WHY = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(pod: Obj) -> list[Cause]:
    """A new pod."""
    return check_pod_spec(pod["spec"], "spec")


def check_pod_spec(spec: Obj, field: str) -> list[Cause]:
    """A pod's spec at `field`."""
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required(f"{field}.containers"))
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        causes.append(unsupported(f"{field}.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never")))
    volumes: set[str] = set()
    seen: set[str] = set()
    for at, volume in enumerate(spec.get("volumes") or []):
        causes += _volume(volume, f"{field}.volumes[{at}]", volumes)
        volumes.add(volume.get("name", ""))
    for part in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(part) or []):
            where = f"{field}.{part}[{at}]"
            if container.get("name") in seen:
                causes.append(duplicate(f"{where}.name", container["name"]))
            seen.add(container.get("name", ""))
            causes += _container(container, where, volumes, init=part == "initContainers")
    for key in ("hostname", "subdomain"):
        if spec.get(key) and not (DNS_LABEL[0].match(spec[key]) and len(spec[key]) <= 63):
            causes.append(wrong(f"{field}.{key}", spec[key], DNS_LABEL[1]))
    for key in ("serviceAccountName", "priorityClassName", "nodeName"):
        if spec.get(key) and not DNS_NAME[0].match(spec[key]):
            causes.append(wrong(f"{field}.{key}", spec[key], DNS_NAME[1]))
    return causes + _tolerations(spec, field)


def _volume(volume: Obj, field: str, names: set[str]) -> list[Cause]:
    causes, name = [], str(volume.get("name", ""))
    if name and not (DNS_LABEL[0].match(name) and len(name) <= 63):
        causes.append(wrong(f"{field}.name", name, DNS_LABEL[1]))
    if name in names:
        causes.append(duplicate(f"{field}.name", name))
    sources = [source for source in _SOURCES if source in volume]
    if len(sources) > 1:
        causes.append(forbidden_field(f"{field}.{sources[1]}", "may not specify more than 1 volume type"))
    for where, items in _downward(volume, field):
        for at, item in enumerate(items):
            reference = item.get("fieldRef", {}).get("fieldPath", "")
            plain = re.sub(r"\['[^']*'\]$", "", reference)
            if reference and plain not in _VOLUME_FIELDS:
                causes.append(unsupported(f"{where}[{at}].fieldRef.fieldPath", reference, _VOLUME_FIELDS))
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        causes += _items(volume.get(source, {}), f"{field}.{source}")
    return causes


def _downward(volume: Obj, field: str) -> list[tuple[str, list[Obj]]]:
    found = [(f"{field}.downwardAPI.items", volume.get("downwardAPI", {}).get("items") or [])]
    for at, source in enumerate(volume.get("projected", {}).get("sources") or []):
        found.append(
            (f"{field}.projected.sources[{at}].downwardAPI.items", source.get("downwardAPI", {}).get("items") or [])
        )
    return found


def _items(source: Obj, field: str) -> list[Cause]:
    causes = []
    mode = source.get("defaultMode", 0)
    if not 0 <= mode <= 0o777:
        causes.append(
            wrong(f"{field}.defaultMode", mode, "must be a number between 0 and 0777 (octal), both inclusive")
        )
    for at, item in enumerate(source.get("items") or []):
        path = str(item.get("path", ""))
        if path.startswith("/"):
            causes.append(wrong(f"{field}.items[{at}].path", path, "must be a relative path"))
        if ".." in path.split("/"):
            causes.append(wrong(f"{field}.items[{at}].path", path, "must not contain '..'"))
        if not 0 <= item.get("mode", 0) <= 0o777:
            causes.append(
                wrong(
                    f"{field}.items[{at}].mode",
                    item["mode"],
                    "must be a number between 0 and 0777 (octal), both inclusive",
                )
            )
    return causes


def _container(container: Obj, field: str, volumes: set[str], *, init: bool) -> list[Cause]:
    causes, name = [], str(container.get("name", ""))
    if name and not (DNS_LABEL[0].match(name) and len(name) <= 63):
        causes.append(wrong(f"{field}.name", name, DNS_LABEL[1]))
    if not container.get("image"):
        causes.append(required(f"{field}.image"))
    elif container["image"] != container["image"].strip():
        causes.append(wrong(f"{field}.image", container["image"], "must not have leading or trailing whitespace"))
    if container["imagePullPolicy"] not in ("Always", "IfNotPresent", "Never"):
        causes.append(
            unsupported(f"{field}.imagePullPolicy", container["imagePullPolicy"], ("Always", "IfNotPresent", "Never"))
        )
    paths: set[str] = set()
    for at, mount in enumerate(container.get("volumeMounts") or []):
        causes += _mount(mount, f"{field}.volumeMounts[{at}]", volumes, paths)
        paths.add(mount.get("mountPath", ""))
    for at, one in enumerate(container.get("env") or []):
        causes += _variable(one, f"{field}.env[{at}]")
    if init:
        causes += _init(container, field)
    elif container.get("restartPolicy") not in (None, "Always", "OnFailure", "Never"):
        causes.append(unsupported(f"{field}.restartPolicy", container["restartPolicy"], ("Always",)))
    return causes + _resources(container["resources"], f"{field}.resources") + _probes(container, field)


def _mount(mount: Obj, field: str, volumes: set[str], paths: set[str]) -> list[Cause]:
    causes = []
    if mount.get("name") not in volumes:
        causes.append(absent(f"{field}.name", str(mount.get("name", ""))))
    path = str(mount.get("mountPath", ""))
    if path in paths:
        causes.append(wrong(f"{field}.mountPath", path, "must be unique"))
    if ":" in path:
        causes.append(wrong(f"{field}.mountPath", path, "must not contain ':'"))
    below = str(mount.get("subPath", ""))
    if below.startswith("/"):
        causes.append(wrong(f"{field}.subPath", below, "must be a relative path"))
    if ".." in below.split("/"):
        causes.append(wrong(f"{field}.subPath", below, "must not contain '..'"))
    return causes


def _variable(one: Obj, field: str) -> list[Cause]:
    causes, name = [], str(one.get("name", ""))
    if name and not _ENV.match(name):
        causes.append(
            wrong(
                f"{field}.name",
                name,
                "a valid environment variable name must consist only of printable ASCII characters other than '='",
            )
        )
    if one.get("value") and one.get("valueFrom"):
        causes.append(wrong(f"{field}.valueFrom", "", "may not be specified when `value` is not empty"))
    reference = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    if (
        reference
        and not reference.startswith(("metadata.labels[", "metadata.annotations["))
        and reference not in _FIELDS
    ):
        causes.append(unsupported(f"{field}.valueFrom.fieldRef.fieldPath", reference, _FIELDS))
    return causes


def _init(container: Obj, field: str) -> list[Cause]:
    restart = container.get("restartPolicy")
    if restart not in (None, "Always", "OnFailure", "Never"):
        return [unsupported(f"{field}.restartPolicy", restart, ("Always",))]
    if restart == "Always":
        return []
    why = "may not be set for init containers without restartPolicy=Always"
    keys = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
    return [forbidden_field(f"{field}.{key}", why) for key in keys if key in container]


def _resources(resources: Obj, field: str) -> list[Cause]:
    causes = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, value in requests.items():
        if amount(value) < 0:
            causes.append(wrong(f"{field}.requests[{name}]", value, "must be greater than or equal to 0"))
        if name in limits and amount(value) > amount(limits[name]):
            causes.append(
                wrong(f"{field}.requests", value, f"must be less than or equal to {name} limit of {limits[name]}")
            )
        if "/" in name and amount(value) != amount(limits.get(name, -1)):
            causes.append(wrong(f"{field}.requests", value, f"must be equal to {name} limit of {limits.get(name, 0)}"))
    for name, value in limits.items():
        if "/" in name and amount(value) != amount(value).to_integral_value():
            causes.append(wrong(f"{field}.limits[{name}]", value, "must be an integer"))
    return causes


def _probes(container: Obj, field: str) -> list[Cause]:
    causes = []
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(name)
        if probe is None:
            continue
        if not set(probe) & {"exec", "httpGet", "tcpSocket", "grpc"}:
            causes.append(required(f"{field}.{name}", "must specify a handler type"))
        if name != "readinessProbe" and probe["successThreshold"] != 1:
            causes.append(wrong(f"{field}.{name}.successThreshold", probe["successThreshold"], "must be 1"))
    return causes


def _tolerations(spec: Obj, field: str) -> list[Cause]:
    causes = []
    for at, one in enumerate(spec.get("tolerations") or []):
        if one.get("operator") == "Exists" and one.get("value"):
            causes.append(
                wrong(f"{field}.tolerations[{at}].operator", one, "value must be empty when `operator` is 'Exists'")
            )
        if "tolerationSeconds" in one and one.get("effect") != "NoExecute":
            causes.append(
                wrong(
                    f"{field}.tolerations[{at}].effect",
                    one.get("effect", ""),
                    "effect must be 'NoExecute' when `tolerationSeconds` is set",
                )
            )
    return causes


def check_pod_change(before: Obj, pod: Obj) -> list[Cause]:
    """The next version of a pod."""
    return [] if _fixed(before) == _fixed(pod) else [forbidden_field("spec", _CHANGE_WHY)]


def _fixed(pod: Obj) -> Obj:
    spec: Obj = clone(pod["spec"])
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        container.pop("image", None)
    for key in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"):
        spec.pop(key, None)
    return spec
