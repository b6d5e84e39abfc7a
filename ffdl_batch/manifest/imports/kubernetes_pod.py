"""Reads the template of a pod of Kubernetes as one learner."""

from __future__ import annotations

import re
from collections.abc import Mapping as Mappings
from dataclasses import field
from decimal import Decimal, InvalidOperation

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest.credentials import secret_name
from ffdl_batch.manifest.document.tree import Place, path_text
from ffdl_batch.manifest.imports.foreign_file import QUIET, ForeignFile, lost, mapped, near
from ffdl_batch.manifest.imports.learner_parts import Variables, expanded, shell_words

_VOLUMES = "learners see no volume: name what they read and write under data_stores"
_PROFILE = "a profile of [backend.kubernetes] has it; name the profile as batch.profile"
_HEALTH = "the platform watches learners: see batch.health"
_NOT_PLACED = "the platform decides it"
_NO_SIDECAR = "a learner is one container: start the program in framework.command"
POD_FATES = {
    "spec.containers.name": QUIET,
    "spec.containers.image": mapped("framework.version"),
    "spec.containers.command": mapped("framework.command"),
    "spec.containers.args": mapped("framework.command"),
    "spec.containers.workingDir": near("framework.command", "the command goes there; the image has to have it"),
    "spec.containers.envFrom": lost("write the variables into batch.env, those of a Secret into batch.secrets"),
    "spec.containers.volumeMounts": lost(_VOLUMES),
    "spec.containers.volumeDevices": lost(_VOLUMES),
    "spec.containers.ports": lost("learners reach each other at every port, and others reach none"),
    "spec.containers.imagePullPolicy": lost("the site's configuration says when images are pulled"),
    "spec.containers.securityContext": lost("learners run as their user, without privileges"),
    "spec.containers.livenessProbe": lost(_HEALTH),
    "spec.containers.readinessProbe": lost(_HEALTH),
    "spec.containers.startupProbe": lost(_HEALTH),
    "spec.containers.lifecycle": lost("write the commands into framework.command"),
    "spec.containers.terminationMessagePath": lost("ffdl why says why a job failed"),
    "spec.containers.terminationMessagePolicy": lost("ffdl why says why a job failed"),
    "spec.containers.stdin": lost("learners have no standard input"),
    "spec.containers.tty": lost("learners have no terminal: use ffdl exec"),
    "spec.containers.resources.claims": lost("ask for devices by gpus: or batch.gres"),
    "spec.initContainers": lost("no container runs before a learner: write the commands into framework.command"),
    "spec.volumes": lost(_VOLUMES),
    "spec.tolerations": lost(_PROFILE),
    "spec.affinity": lost("batch.placement says how learners are placed; a profile can name labels of nodes"),
    "spec.topologySpreadConstraints": lost("batch.placement says how learners are placed"),
    "spec.nodeSelector": mapped("batch.kubernetes.node_selector", "it counts on Kubernetes only"),
    "spec.priorityClassName": mapped("batch.kubernetes.priority_class", "it counts on Kubernetes only"),
    "spec.runtimeClassName": mapped("batch.kubernetes.runtime_class", "it counts on Kubernetes only"),
    "spec.serviceAccountName": lost("pods of learners have no rights in the cluster"),
    "spec.serviceAccount": lost("pods of learners have no rights in the cluster"),
    "spec.automountServiceAccountToken": lost("pods of learners have no rights in the cluster"),
    "spec.imagePullSecrets": lost("the site's configuration has the credentials of registries"),
    "spec.securityContext": lost("learners run as their user, without privileges"),
    "spec.hostIPC": lost("learners share nothing with the node"),
    "spec.hostPID": lost("learners share nothing with the node"),
    "spec.shareProcessNamespace": lost("a learner is one container"),
    "spec.schedulerName": lost("the site's configuration names the scheduler"),
    "spec.terminationGracePeriodSeconds": lost("batch.checkpoint.grace_s is the time for a checkpoint"),
    "spec.dnsPolicy": lost(_NOT_PLACED), "spec.dnsConfig": lost(_NOT_PLACED), "spec.hostAliases": lost(_NOT_PLACED),
    "spec.hostname": lost(_NOT_PLACED), "spec.subdomain": lost(_NOT_PLACED),
    "spec.enableServiceLinks": lost(_NOT_PLACED), "spec.activeDeadlineSeconds": lost("use batch.time"),
    "metadata": lost("pods have the labels of the platform"),
}  # fmt: skip
"""The fields of a pod's template."""
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915")
_MIG = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb(?:\.me)?)", re.ASCII)
_EXTENDED = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z_][\w.-]*", re.ASCII)
_SUFFIXES = {"m": Decimal("0.001")}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate(" kMGTPE") if power}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate(" KMGTPE") if power}
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?\d{1,3})?)([kKMGTPEm]i?)?", re.ASCII)
_SELF = {
    "metadata.name": "learners have it as DOWNWARD_API_POD_NAME",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "learners have it as RANK",
    "metadata.labels['batch.kubernetes.io/job-completion-index']": "learners have it as RANK",
}


@dataclass(slots=True)
class Pod:
    """What a template asks for."""

    image: str = ""
    command: str = ""
    resources: dict[str, object] = field(default_factory=dict)
    """Keys of a manifest, or of a role: cpus, gpus, gpu_type, memory, storage."""
    gres: dict[str, int] = field(default_factory=dict)
    batch: dict[str, object] = field(default_factory=dict)
    """Other keys of `batch:`."""


def read_pod(file: ForeignFile, template: Place, main: str, variables: Variables, given: frozenset[str]) -> Pod:
    """Read a template. `main` is the name of the container that trains, or "" for the first one; `given` are variables
    that the system gives to it."""
    file.set_fates(template, POD_FATES)
    containers = (*template, "spec", "containers")
    numbers = file.items(*containers)
    if not numbers:
        raise file.error(f"{path_text(containers)} names no container", "write one", template)
    chosen = next((number for number in numbers if file.text(*containers, number, "name") == main), 0)
    for number in numbers:
        if number != chosen:
            file.judge((*containers, number), lost(_NO_SIDECAR))
    pod = read_container(file, (*containers, chosen), variables, given)
    spec = (*template, "spec")
    _read_restarts(file, (*spec, "restartPolicy"), pod)
    labels = (f"{name}={file.text(*spec, 'nodeSelector', name)}" for name in file.keys(*spec, "nodeSelector"))
    kubernetes = {
        "node_selector": ",".join(labels),
        "priority_class": file.text(*spec, "priorityClassName"),
        "runtime_class": file.text(*spec, "runtimeClassName"),
    }
    if any(kubernetes.values()):
        pod.batch["kubernetes"] = {name: text for name, text in kubernetes.items() if text}
    if file.is_true(*spec, "hostNetwork"):
        pod.batch["network"] = "host"
    file.judge((*spec, "hostNetwork"), mapped("batch.network"))
    return pod


def read_container(
    file: ForeignFile, place: Place, variables: Variables, given: frozenset[str], resources: str = "resources"
) -> Pod:
    """Read a container, or what has its fields; `resources` is the name of the field with the resources."""
    names = _read_env(file, (*place, "env"), variables)
    words = [*file.texts(*place, "command"), *file.texts(*place, "args")]
    if words and not file.texts(*place, "command"):
        cure = "write its program as command:"
        raise file.error(f"{path_text(place)} has args, and the program is the image's", cure, (*place, "args"))
    command = shell_words(words, names | given)
    directory = file.text(*place, "workingDir")
    if command and directory:
        command = f"cd {shell_words([directory], names)} && {command}"
    pod = Pod(file.text(*place, "image"), command)
    _read_resources(file, (*place, resources), pod)
    return pod


def _read_env(file: ForeignFile, place: Place, variables: Variables) -> frozenset[str]:
    """Read the variables of a container, and return their names."""
    names: set[str] = set()
    literals: dict[str, str] = {}
    for number in file.items(*place):
        at = (*place, number)
        name, source = file.text(*at, "name"), (*at, "valueFrom")
        names.add(name)
        if file.node(*source, "secretKeyRef") is not None:
            secret = secret_name(file.text(*source, "secretKeyRef", "name"), file.text(*source, "secretKeyRef", "key"))
            variables.keep(file, at, name, secret)
        elif file.node(*source, "fieldRef") is not None:
            path = file.text(*source, "fieldRef", "fieldPath")
            file.judge(at, lost(_SELF.get(path, "learners do not know their pod: see the variables of the contract")))
        elif file.node(*source) is not None:
            file.judge(at, lost("write its value into batch.env"))
        else:
            literals[name] = expanded(file.text(*at, "value"), literals)
            variables.put(file, at, name, literals[name])
    return frozenset(names)


def _read_restarts(file: ForeignFile, place: Place, pod: Pod) -> None:
    policy = file.text(*place)
    if policy in ("OnFailure", "Always", "ExitCode"):
        pod.batch["restart"] = "learner"
        why = "a learner that failed starts again as often as batch.retry.failures says"
        file.judge(place, near("batch.restart", why))
    else:
        file.judge(place, mapped("batch.restart"))


def _read_resources(file: ForeignFile, place: Place, pod: Pod) -> None:
    """Read requests and limits. CPUs are those of the request, the rest is that of the limit."""
    amounts: dict[str, str] = {}
    for section, other in (("limits", "requests"), ("requests", "limits")):
        for name in file.keys(*place, section):
            text, beside = file.text(*place, section, name), file.text(*place, other, name)
            counts = (section == "requests") == (name == "cpu") or not beside
            if counts:
                amounts[name] = text
            elif text != beside:
                file.judge((*place, section, name), near(_KEYS.get(name, ""), f"the {other[:-1]} counts: {beside}"))
                continue
            file.judge((*place, section, name), mapped(_KEYS.get(name, "batch.gres")))
            if counts:
                _read_amount(file, (*place, section, name), name, pod)


_KEYS = {"cpu": "cpus", "memory": "memory", "ephemeral-storage": "storage", **dict.fromkeys(_GPUS, "gpus")}


def _read_amount(file: ForeignFile, place: Place, name: str, pod: Pod) -> None:
    amount = _quantity(file, place)
    mig = _MIG.fullmatch(name)
    if name == "cpu":
        pod.resources["cpus"] = float(amount)
    elif name in ("memory", "ephemeral-storage"):
        pod.resources[_KEYS[name]] = f"{int(amount)}B"
    elif name in _GPUS:
        pod.resources["gpus"] = int(amount)
    elif mig:
        pod.resources |= {"gpus": int(amount), "gpu_type": mig[1]}
        file.judge(place, mapped("gpus, gpu_type"))
    elif _EXTENDED.fullmatch(name) and amount:
        pod.gres[name] = int(amount)
        file.judge(place, near("batch.gres", "the name is that of Kubernetes; Slurm has names of its own"))
    else:
        file.judge(place, lost("no manifest asks for it"))


def _quantity(file: ForeignFile, place: Place) -> Decimal:
    """Return an amount of Kubernetes, as ``500m``, ``16Gi`` or ``1e9``. Raises CannotConvert."""
    text = file.text(*place)
    match = _QUANTITY.fullmatch(text)
    try:
        if match is not None and (match[2] or "") in {"", *_SUFFIXES}:
            return Decimal(match[1]) * _SUFFIXES.get(match[2] or "", Decimal(1))
    except InvalidOperation:
        pass
    raise file.error(f"{path_text(place)}: {text[:60]!r} is not a quantity", "write one as 500m, 4 or 16Gi", place)


def without_defaults(pod: Pod) -> Mappings[str, object]:
    """Return the resources as the keys of a manifest, with readable amounts."""
    return {name: _readable(value) for name, value in pod.resources.items()}


def _readable(value: object) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, str) and value.endswith("B") and value[:-1].isdigit():
        size = int(value[:-1])
        for unit, factor in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("GB", 1000**3), ("MB", 1000**2)):
            if size >= factor and size % factor == 0:
                return f"{size // factor}{unit}"
    return value
