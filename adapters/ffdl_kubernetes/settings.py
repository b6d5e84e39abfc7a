"""The settings of ``[backend.kubernetes]``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields, replace
from decimal import Decimal
from types import MappingProxyType

from ffdl_batch.domain.harmless_settings import HARMLESS, harmless_keys
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.domain.toml_text import toml_text
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import unknown_setting
from ffdl_kubernetes.quantities import amount

_TABLE = "[backend.kubernetes]"
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_NOTHING: Mapping[str, str] = MappingProxyType({})
IN_CLUSTER = "in-cluster"
"""`kubeconfig` of a daemon that runs in a pod: its service account is asked, and no file."""
USER = "{user}"
REQUEST = "request"
"""`cpu_limit` that is the learner's own request."""
_CPU_KEYS = ("cpu_limit", "controller_cpus", "controller_cpu_limit")
"""Keys with a quantity of CPUs, which is a number or a text."""
_LEAST_CPUS = "1m"
"""The precision of CPUs in Kubernetes."""
_LEAST_CPU_LIMIT = "10m"
"""The least CPU limit that Linux enforces: 1 ms in each 100 ms."""
_LEAST_BYTES: Mapping[str, int] = MappingProxyType(
    {"controller_memory_bytes": 64 * 1024**2, "controller_storage_bytes": 1024**2}
)
"""The least values with which a controller works."""
_NO_LABEL = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings that `batch.profile` of a manifest chooses. Labels of nodes and tolerations are added to those of
    all pods. A class replaces theirs, unless it is ""."""

    node_selector: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    tolerations: tuple[str, ...] = ()
    priority_class: str = ""
    runtime_class: str = ""
    cpu_limit: str = ""


_NO_PROFILES: Mapping[str, Profile] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """The settings of a cluster. Sizes are in bytes, times in seconds."""

    kubeconfig: str = ""
    """A file; "" = $KUBECONFIG, else ~/.kube/config, else the service account of a pod. ``in-cluster`` = only that
    account."""
    context: str = ""
    """A context of the file; "" = the current one."""
    namespace: str = ""
    """The namespace of jobs; "" = that of the context. ``{user}`` stands for the owner of the jobs."""
    controller_image: str = "ffdl-batch-controller"
    """The image of `containers/Dockerfile`."""
    python: str = "/usr/bin/python3"
    """The interpreter in that image."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    run_as_user: int = 0
    """The uid and gid of pods; 0 = that of the daemon, or 1000 if the daemon runs as root."""
    service_account: str = ""
    """The service account of pods, which get no token of it; "" = the default of the namespace."""
    claim: str = ""
    """A PersistentVolumeClaim of the namespace, in which each job has a directory."""
    volumes: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Directories that manifests name, as ``claim`` or ``claim/directory``."""
    store_networks: tuple[str, ...] = ()
    """Networks (CIDR) with all data stores, for the policies of pods that only move data. Without any, the policy
    allows the address of the store, or every address if the store has a name."""
    queue: str = field(default="", metadata=HARMLESS)
    """The LocalQueue of Kueue."""
    priority_class: str = field(default="", metadata=HARMLESS)
    runtime_class: str = ""
    scheduler: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    """The resource by which GPUs are requested."""
    gpu_resources: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """The resource by type of GPU (MIG: ``nvidia.com/mig-1g.10gb``)."""
    gpu_label: str = "nvidia.com/gpu.product"
    """The node label with the type of GPUs."""
    gpu_types: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """The value of that label by the type that manifests name."""
    node_selector: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    tolerations: tuple[str, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=lambda: _NO_PROFILES)
    """The profiles that manifests can name."""
    dns_namespace: str = "kube-system"
    dns_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"k8s-app": "kube-dns"}))
    """Cluster DNS is in the pods with these labels of `dns_namespace`."""
    cpu_limit: str = ""
    """CPU limit of learners: ``request`` = what they ask for, or a number of CPUs; "" = what the namespace demands."""
    controller_cpus: str = "100m"
    controller_cpu_limit: str = ""
    """CPU limit of controllers, in CPUs; "" = what the namespace demands."""
    controller_memory_bytes: int = 512 * 1024**2
    controller_storage_bytes: int = 0
    """Request and limit of ephemeral storage of controllers, which is their log (0 = none)."""
    shm_bytes: int = field(default=0, metadata=HARMLESS)
    load_patience_s: int = 6 * 3600
    """Maximum time to load data."""
    image_patience_s: int = 900
    """Maximum time that an image may be missing."""
    store_patience_s: int = 600
    request_timeout_s: int = 30
    network_policies: str = ""
    """``enforced`` if the site states that the network enforces policies; else a canary finds out."""
    canary_interval_s: int = 6 * 3600
    """Seconds between canaries; 0 = none."""
    keep_s: int = 86400
    """Seconds that ended Jobs are kept."""
    model_bytes: int = 8 * 1024**2
    """Maximum size of a model archive."""


HARMLESS_KEYS = harmless_keys(KubernetesSettings)
"""See :func:`ffdl_batch.plugins.harmless_settings`."""


def read_settings(raw: Mapping[str, object]) -> KubernetesSettings:
    """Check the table. Raises InvalidRequest that names the key, what is wrong and what would be right."""
    known = {one.name for one in fields(KubernetesSettings)}
    default = KubernetesSettings()
    values: dict[str, object] = {}
    for key, value in raw.items():
        if key not in known:
            raise unknown_setting(_TABLE, key, known)
        values[key] = _profiles(value) if key == "profiles" else _value(key, value, getattr(default, key))
    settings = KubernetesSettings(**values)  # type: ignore[arg-type] # each value was read by its field's own type
    _check(settings)
    return settings


def settle(settings: KubernetesSettings, user: str, uid: int) -> KubernetesSettings:
    """Return the settings of one owner of jobs, with their namespace and the uid of pods, which is never 0."""
    name = _NO_LABEL.sub("-", user.lower()).strip("-")
    namespace = settings.namespace.replace(USER, name)
    return replace(settings, namespace=namespace, run_as_user=settings.run_as_user or uid or 1000)


def as_table(settings: KubernetesSettings) -> dict[str, object]:
    """Return every key with its value in plain words."""
    found = {one.name: getattr(settings, one.name) for one in fields(settings)}
    for name, value in found.items():
        if isinstance(value, Mapping):
            found[name] = dict(value)
    found["profiles"] = {
        name: asdict(replace(profile, node_selector=dict(profile.node_selector)))
        for name, profile in settings.profiles.items()
    }
    return found


def _value(key: str, value: object, default: object) -> object:
    if key.rpartition(".")[2] in _CPU_KEYS:
        return _cpu_text(key, value)
    kind = next(kind for kind in _READERS if isinstance(default, kind))
    read, wanted = _READERS[kind]
    found = read(value)
    if found is None:
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; {wanted} is needed")
    return found


def _cpu_text(key: str, value: object) -> str:
    """Return a quantity of CPUs as text. TOML may have it as a number."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise _wrong_cpus(key, value)


def _wrong_cpus(key: str, value: object) -> InvalidRequest:
    more = f", or '{REQUEST}'" if key.rpartition(".")[2] == "cpu_limit" else ""
    return InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; write a number of CPUs, such as 2 or '500m'{more}")


def _profiles(raw: object) -> Mapping[str, Profile]:
    if not isinstance(raw, Mapping) or not all(isinstance(one, Mapping) for one in raw.values()):
        raise InvalidRequest(
            f"{_TABLE}: profiles is {toml_text(raw)}; tables [backend.kubernetes.profiles.NAME] are needed"
        )
    default = Profile()
    known = {one.name for one in fields(Profile)}
    found = {}
    for name, table in raw.items():
        for key in set(table) - known:
            raise unknown_setting(f"[backend.kubernetes.profiles.{name}]", key, known)
        values = {key: _value(f"profiles.{name}.{key}", value, getattr(default, key)) for key, value in table.items()}
        found[str(name)] = Profile(**values)  # type: ignore[arg-type] # as those of the settings
    return MappingProxyType(found)


def _check(settings: KubernetesSettings) -> None:
    if settings.image_pull_policy not in _PULL_POLICIES:
        raise InvalidRequest(
            f"{_TABLE}: image_pull_policy is {toml_text(settings.image_pull_policy)}; "
            f"choose {', '.join(_PULL_POLICIES)}"
        )
    if settings.network_policies not in ("", "enforced"):
        raise InvalidRequest(
            f"{_TABLE}: network_policies is {toml_text(settings.network_policies)}; write enforced, or leave it out"
        )
    _check_cpus(settings)
    _check_bytes(settings)
    if not settings.controller_image:
        raise InvalidRequest(f"{_TABLE}: controller_image is empty; name the image built from containers/Dockerfile")
    for network in settings.store_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise InvalidRequest(f"{_TABLE}: store_networks: {error}; write networks like 192.0.2.0/24") from None
    for path in settings.volumes:
        if not path.startswith("/"):
            raise InvalidRequest(f"{_TABLE}: volumes names {toml_text(path)}; absolute directories are needed")
    for toleration in (
        *settings.tolerations,
        *(one for each in settings.profiles.values() for one in each.tolerations),
    ):
        parse_toleration(toleration)


def _check_cpus(settings: KubernetesSettings) -> None:
    _check_amount("controller_cpus", settings.controller_cpus)
    for key, text in (
        ("cpu_limit", settings.cpu_limit),
        *((f"profiles.{name}.cpu_limit", profile.cpu_limit) for name, profile in settings.profiles.items()),
    ):
        if text not in ("", REQUEST):
            _check_amount(key, text)
    if not settings.controller_cpu_limit:
        return
    limit = _check_amount("controller_cpu_limit", settings.controller_cpu_limit, _LEAST_CPU_LIMIT)
    if limit < (amount(settings.controller_cpus) or 0):
        raise InvalidRequest(
            f"{_TABLE}: controller_cpu_limit is {toml_text(settings.controller_cpu_limit)}, which is less than "
            f"controller_cpus, {toml_text(settings.controller_cpus)}; raise controller_cpu_limit or lower "
            "controller_cpus"
        )


def _check_amount(key: str, text: str, least: str = _LEAST_CPUS) -> Decimal:
    """Return the number of CPUs. Raises InvalidRequest."""
    found = amount(text)
    if found is None or found <= 0:
        raise _wrong_cpus(key, text)
    if found < (amount(least) or 0):
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(text)}; the minimum is '{least}'")
    return found


def _check_bytes(settings: KubernetesSettings) -> None:
    for key, least in _LEAST_BYTES.items():
        found = getattr(settings, key)
        if found < least and (found or key != "controller_storage_bytes"):
            none = ", or 0 for no limit" if key == "controller_storage_bytes" else ""
            raise InvalidRequest(f"{_TABLE}: {key} is {found}; the minimum is {least} ({size_text(least)}){none}")


def parse_toleration(text: str) -> dict[str, str]:
    """``key[=value][:effect]``, as taints are written by kubectl; no value = any. Raises InvalidRequest."""
    taint, _, effect = text.partition(":")
    key, is_equal, value = taint.partition("=")
    if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise InvalidRequest(
            f"{_TABLE}: toleration {toml_text(text)}; write key, key=value or key=value:Effect, with the effect "
            "NoSchedule, PreferNoSchedule or NoExecute"
        )
    found = {"key": key, "operator": "Equal" if is_equal else "Exists"}
    if is_equal:
        found["value"] = value
    return found | ({"effect": effect} if effect else {})


def _text(value: object) -> object | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> object | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _texts(value: object) -> object | None:
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return tuple(value)
    return None


def _table(value: object) -> object | None:
    if isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair):
        return MappingProxyType(dict(value))
    return None


_READERS: Mapping[type, tuple[Callable[[object], object | None], str]] = {
    str: (_text, "a text"),
    int: (_count, "a count"),
    tuple: (_texts, "a list of texts"),
    Mapping: (_table, "a table of texts"),
}
