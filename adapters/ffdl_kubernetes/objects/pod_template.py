"""The pod of one learner: the controller as a native sidecar, and the learner's image behind a shim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace

from ffdl_batch.domain.job.spec import Placement
from ffdl_batch.domain.launch.pod_protocol import (
    ANNOTATIONS,
    ANNOTATIONS_DIR,
    FINALIZER,
    MODEL_DIR,
    OPEN,
    PLAN_DIR,
    POD_DIR,
    PRIVATE_DIR,
    SEAT_DIR,
    TIME_LIMIT,
    TREE,
    PodAnnotation,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.objects.names import (
    CONTROLLER,
    LEARNER,
    POLICY_LABEL,
    Plain,
    image_secret,
    labels,
    model_part,
    of_storing,
)
from ffdl_kubernetes.objects.pod_files import MODEL_KEY
from ffdl_kubernetes.settings import KubernetesSettings, parse_toleration

PROBE_S = 2
PLAN, MODEL = "plan", "model"
"""The volumes with the launch file and the shim, and with the model archive."""
MARGIN_S = 30
"""Of the time that a pod has to end in, for what is neither a checkpoint nor storing."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the learner: `source` of the pod's volume `volume` (``work`` begins at the job's directory) or,
    with `claim`, of that claim ("" = all of it). `per_pod`: the pod's index is in `source`, as a variable."""

    source: str
    target: str
    read_only: bool = False
    claim: str = ""
    volume: str = "work"
    per_pod: bool = False


@dataclass(frozen=True, slots=True)
class ClaimMount:
    """`source` of a claim ("" = all of it), for the controller, at `target`."""

    claim: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class PodShape:
    """What the pods of an attempt differ in from those of others. Amounts are those of each learner.

    `limit_s` is how long a pod may run at all (None = without end), `time_s` how long its training may, `grace_s` how
    long its learner's checkpoint may take. `outside` are directories of claims that the controller works in.
    `placement` as in the manifest. Labels of nodes and tolerations are added to those of the settings, a class that is
    named replaces theirs. `has_private`: it has variables or secrets. `stores`: it stores what the attempt left.
    `about` are annotations. `cpu_limit` and `controller_cpu_limit` are in CPUs (None = without limit).
    `controller_storage_bytes` is 0 without request and limit. `policy` is the name of the NetworkPolicy that the pod
    shares with others ("" = the attempt has its own).
    """

    token: str
    job_id: str
    attempt: int
    image: str
    shim: tuple[str, ...]
    pre_stop: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    outside: tuple[ClaimMount, ...] = ()
    learners: int = 1
    cpus: float = 1.0
    memory_bytes: int = 0
    gpus: int = 0
    gpu_type: str = ""
    gres: Mapping[str, int] = field(default_factory=dict)
    storage_bytes: int | None = None
    uid: int = 1000
    grace_s: int = 60
    limit_s: int | None = None
    time_s: int | None = None
    placement: Placement = Placement.NODE
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    priority_class: str = ""
    runtime_class: str = ""
    has_image_secret: bool = False
    has_private: bool = True
    stores: bool = False
    about: Mapping[str, str] = field(default_factory=dict)
    cpu_limit: float | None = None
    controller_cpu_limit: float | None = None
    controller_storage_bytes: int = 0
    policy: str = ""


IDLE_CPUS, IDLE_LIMIT, IDLE_BYTES = 0.01, 0.1, 64 * 1024**2
"""Of a learner's container that only waits for the controller."""


def for_staging(shape: PodShape, settings: KubernetesSettings) -> PodShape:
    """Return the shape of the one pod that moves data and starts no learner. Its controller does all, and the other
    container has the controller's image, too."""
    return replace(
        shape, image=settings.controller_image, mounts=(), outside=(), learners=1, cpus=IDLE_CPUS,
        memory_bytes=IDLE_BYTES, storage_bytes=IDLE_BYTES if shape.controller_storage_bytes else None, gpus=0,
        gpu_type="", gres={}, has_image_secret=False, time_s=None,
        cpu_limit=None if shape.cpu_limit is None else IDLE_LIMIT,
    )  # fmt: skip


def pod_template(shape: PodShape, settings: KubernetesSettings) -> Plain:
    """``spec.template`` of the Job."""
    spec: Plain = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": shape.grace_s + settings.store_patience_s + MARGIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": shape.uid,
            "runAsGroup": shape.uid,
            "fsGroup": shape.uid,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_controller(shape, settings)],
        "containers": [_learner(shape, settings)],
        "volumes": _volumes(shape, settings),
        **_scheduling(shape, settings),
    }
    if shape.learners > 1:
        spec["subdomain"] = shape.token
    if shape.limit_s is not None:
        spec["activeDeadlineSeconds"] = shape.limit_s
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if names := (*settings.image_pull_secrets, *([image_secret(shape.token)] if shape.has_image_secret else [])):
        spec["imagePullSecrets"] = [{"name": name} for name in names]
    own = labels(shape.job_id, shape.attempt) | ({POLICY_LABEL: shape.policy} if shape.policy else {})
    meta: Plain = {"labels": of_storing(own) if shape.stores else own, "finalizers": [FINALIZER]}
    if about := {**shape.about, **({} if shape.time_s is None else {TIME_LIMIT: str(shape.time_s)})}:
        meta["annotations"] = about
    return {"metadata": meta, "spec": spec}


def _scheduling(shape: PodShape, settings: KubernetesSettings) -> Plain:
    selector = {**settings.node_selector, **shape.node_selector}
    if shape.gpus and shape.gpu_type and shape.gpu_type not in settings.gpu_resources:
        selector[settings.gpu_label] = settings.gpu_types.get(shape.gpu_type, shape.gpu_type)
    found: Plain = {}
    if selector:
        found["nodeSelector"] = selector
    if tolerations := dict.fromkeys((*settings.tolerations, *shape.tolerations)):
        found["tolerations"] = [parse_toleration(text) for text in tolerations]
    if priority := shape.priority_class or settings.priority_class:
        found["priorityClassName"] = priority
    if runtime := shape.runtime_class or settings.runtime_class:
        found["runtimeClassName"] = runtime
    if settings.scheduler:
        found["schedulerName"] = settings.scheduler
    if shape.learners > 1 and shape.placement is Placement.SPREAD:
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(shape.job_id, shape.attempt)},
            }
        ]
    if shape.learners > 1 and shape.placement is Placement.PACK:
        near = {
            "labelSelector": {"matchLabels": labels(shape.job_id, shape.attempt)},
            "topologyKey": "kubernetes.io/hostname",
        }
        weighed = [{"weight": 100, "podAffinityTerm": near}]
        found["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighed}}
    return found


_CONFINED: Plain = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _controller(shape: PodShape, settings: KubernetesSettings) -> Plain:
    bounded = {"memory": str(settings.controller_memory_bytes)}
    if shape.controller_storage_bytes:
        bounded["ephemeral-storage"] = str(shape.controller_storage_bytes)
    return {
        "name": CONTROLLER,
        "image": settings.controller_image,
        "imagePullPolicy": settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["ffdl-controller", "pod", "--launch", f"{PLAN_DIR}/launch.json"],
        "env": [
            {"name": "FFDL_NATIVE_ID", "value": shape.token},
            _from_field("FFDL_POD_IP", "status.podIP"),
            _from_field("FFDL_POD_NAME", "metadata.name"),
            _from_field("FFDL_NODE_NAME", "spec.nodeName"),
        ],
        "resources": {
            "requests": {"cpu": settings.controller_cpus, **bounded},
            "limits": {**_cpu(shape.controller_cpu_limit), **bounded},
        },
        "securityContext": _CONFINED,
        "startupProbe": {
            "exec": {"command": ["/bin/sh", "-c", f"test -e {POD_DIR}/seat/{OPEN}"]},
            "periodSeconds": PROBE_S,
            "failureThreshold": max(1, math.ceil(settings.load_patience_s / PROBE_S)),
        },
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "work", "mountPath": f"{TREE}/jobs/{shape.job_id}", **_below_claim(shape, settings)},
            {"name": "pod", "mountPath": POD_DIR},
            {"name": PLAN, "mountPath": PLAN_DIR, "readOnly": True},
            {"name": MODEL, "mountPath": MODEL_DIR, "readOnly": True},
            *([{"name": "private", "mountPath": PRIVATE_DIR, "readOnly": True}] if shape.has_private else []),
            {"name": "annotations", "mountPath": ANNOTATIONS_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp", "subPath": CONTROLLER},  # noqa: S108 - a volume of the pod's own
            *(_mounted(Mount(one.source, one.target, claim=one.claim), shape, settings) for one in shape.outside),
        ],
    }


def _learner(shape: PodShape, settings: KubernetesSettings) -> Plain:
    bounded = {"memory": str(shape.memory_bytes)} if shape.memory_bytes else {}
    if shape.storage_bytes:  # of a pod's volumes on its node's disk, too
        bounded["ephemeral-storage"] = str(shape.storage_bytes)
    bounded |= {name: str(count) for name, count in _devices(shape, settings).items()}
    mounts = [
        {"name": "pod", "mountPath": SEAT_DIR, "subPath": "seat"},
        {"name": "tmp", "mountPath": "/tmp", "subPath": LEARNER},  # noqa: S108
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        *(_mounted(mount, shape, settings) for mount in shape.mounts),
    ]
    return {
        "name": LEARNER,
        "image": shape.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": list(shape.shim),
        "lifecycle": {"preStop": {"exec": {"command": list(shape.pre_stop)}}},
        "resources": {
            "requests": {**_cpu(shape.cpus), **bounded},
            "limits": {**_cpu(shape.cpu_limit), **bounded},
        },
        "securityContext": _CONFINED,
        "volumeMounts": mounts,
    }


def _cpu(cpus: float | None) -> dict[str, str]:
    return {} if cpus is None else {"cpu": f"{max(1, math.ceil(cpus * 1000))}m"}


def _mounted(mount: Mount, shape: PodShape, settings: KubernetesSettings) -> Plain:
    """`source` of the job's own directory is in the volume `work`, which begins there."""
    found: Plain = {"name": _claim_volume(mount.claim) if mount.claim else mount.volume, "mountPath": mount.target}
    is_work = not mount.claim and mount.volume == "work"
    below = str(_below_claim(shape, settings).get("subPath", "")) if is_work else ""
    if path := "/".join(part for part in (below, mount.source) if part):
        found["subPathExpr" if mount.per_pod else "subPath"] = path
    if mount.read_only:
        found["readOnly"] = True
    return found


def _below_claim(shape: PodShape, settings: KubernetesSettings) -> Plain:
    return {"subPath": f"jobs/{shape.job_id}"} if settings.claim else {}


def _volumes(shape: PodShape, settings: KubernetesSettings) -> list[Plain]:
    work: Plain = {"emptyDir": {"sizeLimit": str(shape.storage_bytes)} if shape.storage_bytes else {}}
    if settings.claim:
        work = {"persistentVolumeClaim": {"claimName": settings.claim}}
    shared_memory = {"medium": "Memory", **({"sizeLimit": str(settings.shm_bytes)} if settings.shm_bytes else {})}
    claims = sorted({claim for claim in (*(m.claim for m in shape.mounts), *(m.claim for m in shape.outside)) if claim})
    found: list[Plain] = [
        {"name": "work", **work},
        {"name": "pod", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": shared_memory},
        {"name": PLAN, "configMap": {"name": shape.token}},
        model_volume(shape.token),
        {"name": "annotations", "downwardAPI": {"items": [_annotation_file(request) for request in PodAnnotation]}},
    ]
    if shape.has_private:
        found.append({"name": "private", "secret": {"secretName": shape.token, "defaultMode": 0o440}})
    found += [{"name": _claim_volume(one), "persistentVolumeClaim": {"claimName": one}} for one in claims]
    return found


def model_volume(token: str, parts: int = 0) -> Plain:
    """Return the volume with the model archive: the ConfigMap with the launch file, or that many `parts`."""
    key = MODEL_KEY.format(0)
    sources: list[Plain] = [{"configMap": {"name": model_part(token, number)}} for number in range(parts)]
    return {
        "name": MODEL,
        "projected": {"sources": sources or [{"configMap": {"name": token, "items": [{"key": key, "path": key}]}}]},
    }


def _annotation_file(annotation: PodAnnotation) -> Plain:
    field_path = f"metadata.annotations['{ANNOTATIONS}/{annotation.value}']"
    return {"path": annotation.value, "fieldRef": {"fieldPath": field_path}}


def _claim_volume(claim: str) -> str:
    return f"claim-{claim}"


def _from_field(name: str, path: str) -> Plain:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _devices(shape: PodShape, settings: KubernetesSettings) -> dict[str, int]:
    """Extended resources: GPUs by their type's name where the site gives one (MIG), and what else was asked for."""
    found = dict(shape.gres)
    if shape.gpus:
        found[settings.gpu_resources.get(shape.gpu_type, settings.gpu_resource)] = shape.gpus
    return found
