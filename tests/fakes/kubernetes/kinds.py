"""The kinds of objects that are served."""

from __future__ import annotations

import marshal
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
"""An object as it is in JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects. `generation` grows with each change of its spec."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    generation: bool = False
    short: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As error messages name it: ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """As messages about invalid objects name it: ``Job.batch``."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


_RBAC = "rbac.authorization.k8s.io"
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False, status=True, short=("ns",))
NODES = Kind("", "v1", "nodes", "Node", namespaced=False, status=True, short=("no",))
PODS = Kind("", "v1", "pods", "Pod", status=True, generation=True, short=("po",))
SERVICES = Kind("", "v1", "services", "Service", status=True, short=("svc",))
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap", short=("cm",))
SECRETS = Kind("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",))
EVENTS = Kind("", "v1", "events", "Event", short=("ev",))
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True, short=("pvc",))
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota", status=True, short=("quota",))
LIMIT_RANGES = Kind("", "v1", "limitranges", "LimitRange", short=("limits",))
JOBS = Kind("batch", "v1", "jobs", "Job", status=True, generation=True)
POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", generation=True, short=("netpol",))
ROLES = Kind(_RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Kind(_RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Kind(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short=("pc",))
RUNTIME_CLASSES = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
ACCESS_REVIEWS = Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)

KUEUE = "kueue.x-k8s.io"
FLAVORS = Kind(KUEUE, "v1beta1", "resourceflavors", "ResourceFlavor", namespaced=False, generation=True)
CLUSTER_QUEUES = Kind(KUEUE, "v1beta1", "clusterqueues", "ClusterQueue", False, status=True, generation=True)
LOCAL_QUEUES = Kind(KUEUE, "v1beta1", "localqueues", "LocalQueue", status=True, generation=True)
WORKLOADS = Kind(KUEUE, "v1beta1", "workloads", "Workload", status=True, generation=True)
KUEUE_KINDS = (FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS)

KINDS = (
    NAMESPACES, NODES, PODS, SERVICES, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, EVENTS, CLAIMS, QUOTAS, LIMIT_RANGES,
    JOBS, POLICIES, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, PRIORITY_CLASSES, RUNTIME_CLASSES,
    LEASES,
)  # fmt: skip
"""Kinds that are kept. Access reviews are answered and forgotten."""


def clone(value: Any) -> Any:
    """A copy that shares nothing."""
    return marshal.loads(marshal.dumps(value))


def name_of(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Obj) -> str:
    return str(obj["metadata"].get("namespace", ""))


def key_of(obj: Obj) -> tuple[str, str]:
    """Namespace and name."""
    return namespace_of(obj), name_of(obj)


def labels_of(obj: Obj) -> dict[str, str]:
    return dict(obj["metadata"].get("labels") or {})


def annotations_of(obj: Obj) -> dict[str, str]:
    return dict(obj["metadata"].get("annotations") or {})


def condition_of(obj: Obj, name: str) -> Obj | None:
    """The condition of the status with that type."""
    for condition in obj.get("status", {}).get("conditions") or []:
        if condition["type"] == name:
            return dict(condition)
    return None


def is_true(obj: Obj, name: str) -> bool:
    """Whether the condition holds."""
    found = condition_of(obj, name)
    return found is not None and found["status"] == "True"
