"""A tenant: a namespace, what may be used in it, and who may use it.

The policy denies everything in both directions, names (DNS) included: what a job may reach, its own policy says
(:mod:`ffdl_kubernetes.objects.network_policy`), so that names resolve for the jobs alone that need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffdl_batch.domain.tenant import Tenant
from ffdl_kubernetes.objects.names import MANAGER, MANAGER_LABEL, Plain
from ffdl_kubernetes.quantities import STORAGE

ROLE = "ffdl-batch-daemon"
"""The name of the Role, and of what else there is one of in a namespace."""
ACCOUNT = "ffdl-batch-learner"
"""The service account of pods: it may do nothing, and no pod gets a token of it."""
NODE_ROLE = "ffdl-batch-nodes"
"""The ClusterRole of tenants that may see what nodes have free."""
HUB_ROLE = "ffdl-batch-hub"
"""The Role of a site's hub, which requests tokens of the service account ROLE for the tenant's daemon."""
DENY_ALL = "ffdl-batch-deny-all"
Permissions = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
PERMISSIONS: Permissions = (
    ("batch", ("jobs",), ("create", "get", "list", "watch", "patch", "delete")),
    ("", ("pods",), ("list", "watch", "patch")),
    ("", ("pods/log",), ("get",)),
    ("", ("configmaps", "services"), ("create", "get")),
    ("", ("secrets",), ("create",)),
    ("networking.k8s.io", ("networkpolicies",), ("create", "get")),
    ("", ("events",), ("list", "watch")),
    ("", ("resourcequotas", "limitranges"), ("list",)),
    ("kueue.x-k8s.io", ("workloads",), ("list", "watch")),
)
"""All that a daemon asks of a namespace: API group, resources, verbs. What Jobs own is deleted by the cluster."""
DEBUGGING: Permissions = (("", ("pods/exec",), ("create", "get")),)
"""What commands in learners need beside it, where a tenant is to have that: a WebSocket is asked for by `get`, and
since 1.35 `create` is demanded of it as well (kubernetes/kubernetes#134577)."""
NODES: Permissions = (
    ("", ("nodes",), ("list",)),
    ("kueue.x-k8s.io", ("localqueues", "clusterqueues"), ("get",)),
)
"""What `ffdl why` reads in the whole cluster, for tenants that have it: nodes and queues."""
SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
_COMPUTE = ("cpu", "memory", STORAGE)
_OBJECTS = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    }
)
"""Kinds of objects whose number a quota can limit by their own name. Others need ``count/NAME.GROUP``."""
_OF_CLASSES = (".storageclass.storage.k8s.io/", ".deviceclass.resource.k8s.io/")
"""Parts of names that limit claims of one class."""
_RBAC = "rbac.authorization.k8s.io"


def tenant_objects(tenant: Tenant, gpu_resource: str = "nvidia.com/gpu") -> list[Plain]:
    """Return the objects in the order of their creation. Each of them may exist."""
    where = _where(tenant)
    namespace: Plain = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": tenant.namespace, "labels": {MANAGER_LABEL: MANAGER, **tenant.labels, **SECURITY}},
    }
    named = {quota_name(resource) for resource in tenant.resources}  # a quota refuses containers without an amount
    disk_limit = f"limits.{STORAGE}" in named
    disk = disk_limit or f"requests.{STORAGE}" in named
    limits: Plain = {
        "type": "Container",
        "defaultRequest": {"cpu": "100m", "memory": "128Mi", **({STORAGE: "1Gi"} if disk else {})},
        "default": {
            **({"cpu": "1"} if "limits.cpu" in named else {}),
            "memory": "1Gi",
            **({STORAGE: "10Gi"} if disk_limit else {}),
        },
    }
    limit_range: Plain = {"apiVersion": "v1", "kind": "LimitRange", "metadata": where, "spec": {"limits": [limits]}}
    deny: Plain = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {**where, "name": DENY_ALL},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }
    account: Plain = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {**where, "name": ACCOUNT},
        "automountServiceAccountToken": False,
    }
    of_daemon = [{**account, "metadata": where}] if tenant.hub_user else []
    accounts = [account, *of_daemon]
    return [namespace, *_quota(tenant, gpu_resource), limit_range, deny, *accounts, *permission_objects(tenant)]


def permission_objects(tenant: Tenant) -> list[Plain]:
    """Return the Role of daemons and its bindings. Permissions for the whole cluster are in a role of their own."""
    found, subjects = [role(_where(tenant), debugging=tenant.debugging)], _subjects(tenant)
    if subjects:
        found.append(_binding("Role", _where(tenant), ROLE, subjects))
    if tenant.hub_user:
        found += _token_objects(tenant)
    if tenant.nodes:
        where: Plain = {"name": NODE_ROLE, "labels": {MANAGER_LABEL: MANAGER}}
        found.append({"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": where, "rules": _rules(NODES)})
        if subjects:
            found.append(node_binding(tenant.namespace, subjects))
    return found


def _token_objects(tenant: Tenant) -> list[Plain]:
    """Return the Role to request tokens of one service account, and its binding for the hub."""
    where = {**_where(tenant), "name": HUB_ROLE}
    rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [ROLE], "verbs": ["create"]}
    made: Plain = {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": where, "rules": [rule]}
    hub = {"apiGroup": _RBAC, "kind": "User", "name": tenant.hub_user}
    return [made, _binding("Role", where, HUB_ROLE, [hub])]


def node_binding(namespace: str, subjects: Sequence[Mapping[str, object]]) -> Plain:
    """Return the binding of the tenant's members who may see nodes."""
    where: Plain = {"name": f"{NODE_ROLE}-{namespace}", "labels": {MANAGER_LABEL: MANAGER}}
    return _binding("ClusterRole", where, NODE_ROLE, subjects)


def _binding(kind: str, metadata: Plain, name: str, subjects: Sequence[Mapping[str, object]]) -> Plain:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": list(subjects),
    }


def _rules(permissions: Permissions) -> list[Plain]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources, verbs in permissions
    ]


def role(metadata: Mapping[str, object], *, debugging: bool = False) -> Plain:
    """:data:`PERMISSIONS` as an object, with :data:`DEBUGGING` where that is wanted."""
    rules = _rules((*PERMISSIONS, *(DEBUGGING if debugging else ())))
    return {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": dict(metadata), "rules": rules}


def _where(tenant: Tenant) -> Plain:
    return {"name": ROLE, "namespace": tenant.namespace, "labels": {MANAGER_LABEL: MANAGER}}


def quota_name(resource: str) -> str:
    """Return the name by which a quota limits a resource; "" if no quota can limit it.

    Compute resources, huge pages and extended resources get the prefix ``requests.``. Numbers of objects and names of
    classes have none (kubernetes.io, "Resource Quotas"; ValidateResourceQuotaResourceName of Kubernetes).
    """
    if resource.startswith("count/") or resource in _OBJECTS or any(part in resource for part in _OF_CLASSES):
        return resource
    if resource.startswith("limits."):
        return resource if resource.removeprefix("limits.") in _COMPUTE else ""
    bare = resource.removeprefix("requests.")
    is_known = bare in (*_COMPUTE, "storage") or bare.startswith("hugepages-") or "/" in bare
    return f"requests.{bare}" if is_known else ""


def is_counted(resource: str) -> bool:
    """Return whether a quota counts the resource in whole numbers: objects, and resources of device plugins."""
    name = quota_name(resource)
    return name in _OBJECTS or ("/" in name and not any(part in name for part in _OF_CLASSES))


def quota_amounts(tenant: Tenant, gpu_resource: str) -> list[tuple[str, str]]:
    """Return the limits that the tenant names, under the names that quotas have. A name can occur twice."""
    amounts = [
        (f"requests.{gpu_resource}", tenant.gpus),
        ("requests.cpu", None if tenant.cpus is None else f"{tenant.cpus:g}"),
        ("requests.memory", tenant.memory_bytes),
        ("requests.storage", tenant.storage_bytes),
        ("count/jobs.batch", tenant.jobs),
        *((quota_name(resource), amount) for resource, amount in tenant.resources.items()),
    ]
    return [(name, str(amount)) for name, amount in amounts if amount is not None]


def _quota(tenant: Tenant, gpu_resource: str) -> list[Plain]:
    hard = dict(quota_amounts(tenant, gpu_resource))
    if not hard:
        return []
    return [{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": _where(tenant), "spec": {"hard": hard}}]


def _subjects(tenant: Tenant) -> list[Plain]:
    found: list[Plain] = [{"apiGroup": _RBAC, "kind": "User", "name": name} for name in tenant.users]
    found += [{"apiGroup": _RBAC, "kind": "Group", "name": name} for name in tenant.groups]
    if tenant.service_account:
        namespace, _, name = tenant.service_account.rpartition("/")
        found.append({"kind": "ServiceAccount", "namespace": namespace or tenant.namespace, "name": name})
    if tenant.hub_user:
        found.append({"kind": "ServiceAccount", "namespace": tenant.namespace, "name": ROLE})
    return found
