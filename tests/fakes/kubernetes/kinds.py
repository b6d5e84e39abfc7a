"""The kinds of objects that are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]
"""An object as it is in JSON."""
Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects. `status`: it has a part of that name, which clients do not write with the rest."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As error messages name it: ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_RBAC = "rbac.authorization.k8s.io"
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False, status=True)
NODES = Kind("", "v1", "nodes", "Node", namespaced=False, status=True)
PODS = Kind("", "v1", "pods", "Pod", status=True)
SERVICES = Kind("", "v1", "services", "Service", status=True)
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
SECRETS = Kind("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Kind("", "v1", "events", "Event")
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True)
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota", status=True)
LIMIT_RANGES = Kind("", "v1", "limitranges", "LimitRange")
JOBS = Kind("batch", "v1", "jobs", "Job", status=True)
POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLES = Kind(_RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Kind(_RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Kind(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
ACCESS_REVIEWS = Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)

KUEUE = "kueue.x-k8s.io"
FLAVORS = Kind(KUEUE, "v1beta1", "resourceflavors", "ResourceFlavor", namespaced=False)
CLUSTER_QUEUES = Kind(KUEUE, "v1beta1", "clusterqueues", "ClusterQueue", False, status=True)
LOCAL_QUEUES = Kind(KUEUE, "v1beta1", "localqueues", "LocalQueue", status=True)
WORKLOADS = Kind(KUEUE, "v1beta1", "workloads", "Workload", status=True)
KUEUE_KINDS = (FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS)

KINDS = (
    NAMESPACES, NODES, PODS, SERVICES, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, EVENTS, CLAIMS, QUOTAS, LIMIT_RANGES,
    JOBS, POLICIES, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, PRIORITY_CLASSES, RUNTIME_CLASSES,
)  # fmt: skip
"""Kinds that are kept. Access reviews are answered and forgotten."""
