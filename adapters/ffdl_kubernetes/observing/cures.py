"""Name what a user can do if pods wait or are refused, and the controller's part of an amount that is too large. Pure.

Sources of the wordings: kube-scheduler's plugins (FailedScheduling), kubelet's image manager, the admission plugins
LimitRanger (`limitranger/admission.go`), PodSecurity, Priority, ServiceAccount and ResourceQuota, the attach/detach
controller, kubelet's volume manager and sandboxes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ffdl_kubernetes.objects.names import CONTROLLER
from ffdl_kubernetes.quantities import NOTHING, QUOTA, amount, amount_text, amounts, never_given, read_amounts

CPU_LIMITS = (
    'lower the CPU limits, not the request: set cpu_limit = "request" and a lower controller_cpu_limit in '
    "[backend.kubernetes], or have the default of the namespace's LimitRange lowered; then cancel the job and submit "
    "it again, or ask for a larger quota"
)
"""What to do if a quota is too small for the CPU limits of a job, and large enough for its requests."""
_OF_PODS = (
    (r"Insufficient |Too many pods", "ffdl why shows whether a node can ever hold it"),
    (r"didn't match Pod's node (affinity|selector)", "no node has the labels: gpu_type, node_selector or the profile"),
    (
        r"had untolerated taint \{node\.kubernetes\.io/",
        "nodes are not ready, or take nothing now: it starts when they are back",
    ),
    (r"had untolerated taint\(s\)", "they are kept for others, or not ready: ffdl why shows which"),
    (
        r"had untolerated taint",
        "the nodes are kept for others: tolerations in [backend.kubernetes], or another profile",
    ),
    (
        r'persistentvolumeclaim "[^"]*" not found',
        "have the claim made, or correct claim or volumes in [backend.kubernetes] and submit it again",
    ),
    (r"unbound immediate PersistentVolumeClaims", "its claim has no volume yet: ask who runs the cluster"),
    (r"volume node affinity conflict", "its claim is bound to nodes that do not fit: ask who runs the cluster"),
    (r"violates PodSecurity", "pods of ours pass the level restricted: a setting of the site's breaks it"),
    (
        r"must specify [^:]*limits\.cpu",
        "the quota demands CPU limits: cancel the job and submit it again, and the daemon sets them; if not, set "
        "cpu_limit and controller_cpu_limit in [backend.kubernetes]",
    ),
    (
        r"must specify [^:]*ephemeral-storage",
        "the quota demands amounts of ephemeral storage: cancel the job, write storage in the manifest and submit it "
        "again; if the controller still has none, set controller_storage_bytes in [backend.kubernetes]",
    ),
    (r"must specify ", "the quota wants amounts that no LimitRange fills in: ffdl-admin tenant create makes one"),
    (
        r"initContainers\S* .*must be less than or equal to cpu limit",
        "the namespace's LimitRange gives controllers a lower CPU limit: set controller_cpu_limit or controller_cpus "
        "in [backend.kubernetes], cancel the job and submit again",
    ),
    (
        r"must be less than or equal to cpu limit",
        'the namespace\'s LimitRange gives a lower CPU limit: set cpu_limit = "request" in [backend.kubernetes], '
        "cancel the job and submit again",
    ),
    (
        r"max limit to request ratio",
        "the namespace's LimitRange allows less: set cpu_limit, controller_cpus or controller_cpu_limit in "
        "[backend.kubernetes], cancel the job and submit again",
    ),
    (
        r"only the controller's part is refused",
        "the job itself is allowed: change what sets the controller's part in [backend.kubernetes], cancel the job and "
        "submit it again",
    ),
    (
        r"the controller's part is refused too",
        "ask for an amount that the namespace's LimitRange allows, and change what sets the controller's part in "
        "[backend.kubernetes]; cancel the job and submit it again",
    ),
    (
        r"the controller's part alone is",
        "the job itself may fit: lower the controller's part in [backend.kubernetes], cancel the job and submit it "
        "again; or ask for a larger quota",
    ),
    (r"CPU limits are above the requests", CPU_LIMITS),
    (r"(maximum|minimum) \S+ usage per (Container|Pod)", "ask for an amount that the namespace's LimitRange allows"),
    (r"no PriorityClass with name", "correct priority_class"),
    (r"RuntimeClass \S+ not found", "correct runtime_class"),
    (r"error looking up service account", "correct service_account, or have it made: ffdl-admin tenant create"),
    (r"is being terminated", "its namespace is being deleted: cancel the job"),
    (r"admission webhook|ValidatingAdmissionPolicy", "that is a rule of the cluster's own: ask who runs it"),
)
_OF_IMAGES = (
    (
        r"unauthorized|authentication required|denied|403 Forbidden",
        "the registry wants credentials: image_pull_secrets",
    ),
    (r"not found|manifest unknown|name unknown|404", "correct its name, or push it"),
    (r"couldn't parse image|invalid reference format", "correct its name"),
    (r"Container image .* is not present with pull policy of Never", "have it on the nodes, or pull it: pull policy"),
    (r"toomanyrequests|rate limit", "the registry has had enough for now; it is tried again"),
    (
        r"no such host|i/o timeout|connection refused|TLS handshake",
        "nodes do not reach the registry; it is tried again",
    ),
    (
        r"",
        "check its name, and that nodes may pull it (image_pull_secrets)",
    ),  # kubelet may have said why, and says it no more
)
_OF_CONTAINERS = (
    (
        r'(secret|configmap) "[^"]*" not found|find key',
        "it is made with the job: if it stays so, cancel and submit again",
    ),
    (
        r"no such file or directory|executable file not found",
        "the image lacks a program: learners' images have /bin/sh",
    ),
    (r"subPath", "its claim is not as claim or volumes in [backend.kubernetes] say"),
    (r"", "it is tried again; if it stays so, ask who runs the cluster"),
)
_OF_VOLUMES = (
    (
        r"Multi-Attach error",
        "another pod has the volume, which one node can use at a time: it continues when that pod ends; a claim that "
        "pods share is ReadWriteMany",
    ),
    (r'(secret|configmap) "[^"]*" not found|non-existent', "it is made with the job: if it stays so, cancel the job"),
    (r"list of registered CSI drivers", "its node lacks the storage's driver: ask who runs the cluster"),
    (r"sandbox", "it is tried again; if it stays so, ask who runs the cluster and its network"),
    (r"access denied|permission denied", "the storage does not let its node in: ask who runs the cluster"),
    (r"", "it is tried again; if it stays so, ask who runs the cluster and its storage"),
)


_PREEMPTION_DETAIL = re.compile(r"(?<=\.) [a-z].*", re.DOTALL)


def reasons_alone(message: str) -> str:
    """Return the scheduler's message about nodes, without the result of preemption at its end: ``no new claims to
    deallocate, preemption: 0/3 nodes are available: ...``."""
    return _PREEMPTION_DETAIL.sub("", message)


def what_to_do(message: str) -> str:
    """About pods that find no node, or are refused: behind a semicolon, or "" where nothing is known."""
    return _first(_OF_PODS, message)


def about_image(message: str) -> str:
    """About an image that cannot be had, likewise."""
    return _first(_OF_IMAGES, message)


def about_container(message: str) -> str:
    """About a container that its node cannot make, likewise."""
    return _first(_OF_CONTAINERS, message)


def about_volume(message: str) -> str:
    """About a volume that a pod waits for, likewise."""
    return _first(_OF_VOLUMES, message)


def _first(table: tuple[tuple[str, str], ...], message: str) -> str:
    return next((f"; {advice}" for pattern, advice in table if re.search(pattern, message)), "")


Plain = Mapping[str, Any]
_RANGE = re.compile(
    r"(?P<bound>maximum|minimum) (?P<name>\S+) usage per (?P<kind>Container|Pod) is (?P<most>[^,]+), "
    r"but (?P<part>limit|request) is (?P<asked>[^\s,.\]]+)"
)
_SETTINGS = {
    "requests.cpu": "controller_cpus",
    "limits.cpu": "controller_cpu_limit",
    "memory": "controller_memory_bytes",
    "ephemeral-storage": "controller_storage_bytes",
}
"""Settings of ``[backend.kubernetes]`` by part and resource, or by resource."""


def name_controllers_part(job: Plain | None, refusal: str) -> str:
    """Return the refusal of a Job's pods with what of it is the controller's, and the settings for that."""
    if job is None:
        return refusal
    own, others = _resources(job)
    if ranges := list(_RANGE.finditer(refusal)):
        return refusal + _of_ranges(ranges, own, others, is_all="is specified" not in refusal)
    if (quota := QUOTA.search(refusal)) is not None:
        asked, most = amounts(quota["asked"]), amounts(quota["limit"])
        for name in never_given(quota):
            whole, limit = amount(asked[name]) or NOTHING, amount(most[name]) or NOTHING
            if name == "limits.cpu" and _requested_cpus(own, *others) <= limit:
                return refusal + _of_cpu_limits(own, others)
            part = _part(name, own)
            if part and (part > limit or whole - part <= limit):
                alone = " alone" if part > limit else ""
                return f"{refusal} (the controller's part{alone} is {_named(name, part)} in [backend.kubernetes])"
    return refusal


def cpu_limits_cure(job: Plain, most: Decimal) -> str:
    """Return what to do if a quota has less than the CPU limits of all pods of the Job; "" if the requests alone are
    too much for it."""
    own, others = _resources(job)
    count = int(job["spec"].get("completions") or 1)
    return CPU_LIMITS if _requested_cpus(own, *others) * count <= most else ""


def _of_ranges(ranges: list[re.Match[str]], own: Plain, others: list[Plain], *, is_all: bool) -> str:
    """Return what a LimitRange refuses of the controller. `is_all`: it refuses nothing beside these `ranges`."""
    parts: dict[str, str] = {}
    for found in ranges:
        key, asked, most = f"{found['part']}s.{found['name']}", amount(found["asked"]), amount(found["most"])
        part = _part(key, own)
        is_own, is_others = asked == part, any(_part(key, one) == asked for one in others)
        if found["kind"] == "Pod":
            is_own = found["bound"] == "maximum" and asked is not None and most is not None and asked - part <= most
        if part and is_own:
            parts[key] = f"{found['name']} {found['part']} {_named(key, part)}"
        is_all = is_all and bool(part) and is_own and not is_others
    if not parts:
        return ""
    which = "only the controller's part is refused" if is_all else "the controller's part is refused too"
    return f" ({which}: {'; '.join(parts.values())})"


def _of_cpu_limits(own: Plain, others: list[Plain]) -> str:
    names = ["the controller", *["the learner"] * len(others)]
    said = []
    for name, one in zip(names, (own, *others), strict=True):
        limit, request = _part("limits.cpu", one), amount_text("cpu", _part("requests.cpu", one))
        said.append(f"{name} has {amount_text('cpu', limit) if limit else 'the default'} and requests {request}")
    cause = "they are the default of the namespace's LimitRange, or set by cpu_limit and controller_cpu_limit"
    return f" (CPU limits are above the requests: {', '.join(said)}; {cause})"


def _requested_cpus(*containers: Plain) -> Decimal:
    return sum((_part("requests.cpu", one) for one in containers), NOTHING)


def _resources(job: Plain) -> tuple[Plain, list[Plain]]:
    """Return the resources of the controller's container, and those of the others."""
    pod = job["spec"]["template"]["spec"]
    both = [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
    found = {str(one["name"]): one.get("resources") or {} for one in both}
    own = found.pop(CONTROLLER, {})
    return own, list(found.values())


def _part(key: str, resources: Plain) -> Decimal:
    """Return what a container has of ``limits.cpu``, ``requests.memory``, or ``memory``, which is a request."""
    kind, _, name = key.rpartition(".")
    return read_amounts(resources.get(kind or "requests")).get(name, NOTHING)


def _named(key: str, part: Decimal) -> str:
    """Return the amount, and the setting for it."""
    kind, _, name = key.rpartition(".")
    setting = _SETTINGS.get(f"{kind or 'requests'}.{name}", _SETTINGS.get(name, "controller_*"))
    return f"{amount_text(name, part)}, set by {setting}"
