"""What is decided about objects that are well formed: service accounts, priorities, limits, quotas, security levels."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from tests.fakes.kubernetes import pod_security
from tests.fakes.kubernetes.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    RUNTIME_CLASSES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
    Obj,
    clone,
    labels_of,
    name_of,
    namespace_of,
)
from tests.fakes.kubernetes.quantities import amount, pod_requests, quantity
from tests.fakes.kubernetes.refusals import Refusal, forbidden
from tests.fakes.kubernetes.store import Store

_PATIENCE = 300
_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_COUNTED = {CONFIG_MAPS, SECRETS, SERVICES, JOBS, CLAIMS, PODS}


class Admission:
    """Changes a new object in place, or refuses it. Warnings are answered as headers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.webhooks: list[tuple[str, str, str]] = []
        """(plural, name of the webhook, message): refused at creation."""
        self.checks: list[Callable[[Kind, Obj], None]] = []
        """What this cluster cannot do; each raises :class:`Refusal`."""

    def create(self, kind: Kind, obj: Obj, warnings: list[str]) -> None:
        """A new object."""
        namespace = namespace_of(obj)
        if kind.namespaced:
            self._namespace(kind, obj, namespace)
        for check in self.checks:
            check(kind, obj)
        for plural, webhook, message in self.webhooks:
            if plural == kind.plural:
                raise Refusal(403, "Forbidden", f'admission webhook "{webhook}" denied the request: {message}')
        if kind is PODS:
            self._service_account(obj, namespace)
            self._priority(obj)
            self._runtime_class(obj)
            self._tolerations(obj["spec"])
            self._limits(obj, namespace)
            self._security(obj, namespace)
        elif kind is JOBS:
            self._warn(obj, namespace, warnings)
        if kind in _COUNTED:
            self._quota(kind, obj, namespace)

    def _namespace(self, kind: Kind, obj: Obj, namespace: str) -> None:
        found = self._store.get(NAMESPACES, "", namespace)
        if found is None:
            raise Refusal(
                404,
                "NotFound",
                f'namespaces "{namespace}" not found',
                details={"name": namespace, "kind": "namespaces"},
            )
        if found["status"]["phase"] == "Terminating":
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(kind, name_of(obj), why)

    def _service_account(self, pod: Obj, namespace: str) -> None:
        spec = pod["spec"]
        name = spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
        spec["serviceAccount"] = name
        account = self._store.get(SERVICE_ACCOUNTS, namespace, name)
        if account is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(PODS, name_of(pod), why)
        mounted = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        if mounted and not any(volume["name"] == "kube-api-access" for volume in spec.get("volumes") or []):
            sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]
            spec.setdefault("volumes", []).append(
                {"name": "kube-api-access", "projected": {"sources": sources, "defaultMode": 0o644}}
            )
            where = {
                "name": "kube-api-access",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
            for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
                container.setdefault("volumeMounts", []).append(dict(where))

    def _priority(self, pod: Obj) -> None:
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        value, policy = 0, "PreemptLowerPriority"
        if name in ("system-node-critical", "system-cluster-critical"):
            value = 2_000_000_000
        elif name:
            found = self._store.get(PRIORITY_CLASSES, "", name)
            if found is None:
                raise forbidden(PODS, name_of(pod), f"no PriorityClass with name {name} was found")
            value, policy = found["value"], found.get("preemptionPolicy", policy)
        spec["priority"], spec["preemptionPolicy"] = value, policy

    def _runtime_class(self, pod: Obj) -> None:
        name = pod["spec"].get("runtimeClassName")
        if name and self._store.get(RUNTIME_CLASSES, "", name) is None:
            why = f'pod rejected: RuntimeClass "{name}" not found'
            raise forbidden(PODS, name_of(pod), why)

    def _tolerations(self, spec: Obj) -> None:
        listed = spec.setdefault("tolerations", [])
        for key in _NODE_TAINTS:
            if not any(one.get("key") in (key, None) and one.get("effect") in ("NoExecute", None) for one in listed):
                listed.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _PATIENCE})

    def _limits(self, pod: Obj, namespace: str) -> None:
        problems: list[str] = []
        for limits in self._store.list(LIMIT_RANGES, namespace):
            for limit in limits["spec"].get("limits") or []:
                if limit["type"] == "Container":
                    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
                        _limit(container, limit, problems)
        if problems:
            raise forbidden(PODS, name_of(pod), problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")

    def _level(self, namespace: str, which: str) -> str:
        found = self._store.get(NAMESPACES, "", namespace)
        return labels_of(found).get(which, "") if found else ""

    def _security(self, pod: Obj, namespace: str) -> None:
        level = self._level(namespace, pod_security.ENFORCE)
        said = pod_security.violations(level, pod)
        if said:
            raise forbidden(PODS, name_of(pod), f'violates PodSecurity "{level}:latest": {said}')

    def _warn(self, job: Obj, namespace: str, warnings: list[str]) -> None:
        level = self._level(namespace, pod_security.WARN) or self._level(namespace, pod_security.ENFORCE)
        said = pod_security.violations(level, job["spec"]["template"])
        if said:
            warnings.append(f'would violate PodSecurity "{level}:latest": {said}')

    def _quota(self, kind: Kind, obj: Obj, namespace: str) -> None:
        asked = usage_of(kind, obj)
        for quota in self._store.list(QUOTAS, namespace):
            hard = {name: amount(value) for name, value in (quota["spec"].get("hard") or {}).items()}
            if not _in_scope(quota, kind, obj):
                continue
            if kind is PODS:
                _demand_figures(quota, hard, obj)
            used = namespace_usage(self._store, quota, namespace)
            over = [
                name for name in sorted(hard) if asked.get(name, 0) and used.get(name, 0) + asked[name] > hard[name]
            ]
            if over:
                shown = [
                    ",".join(
                        f"{name}={quantity(values.get(name, Decimal(0)), name.rpartition('.')[2])}" for name in over
                    )
                    for values in (asked, used, hard)
                ]
                why = f"exceeded quota: {name_of(quota)}, requested: {shown[0]}, used: {shown[1]}, limited: {shown[2]}"
                raise forbidden(kind, name_of(obj), why)


def _limit(container: Obj, limit: Obj, problems: list[str]) -> None:
    resources = container.setdefault("resources", {})
    given = {part: dict(resources.get(part) or {}) for part in ("limits", "requests")}
    for name, value in (limit.get("default") or {}).items():
        resources.setdefault("limits", {}).setdefault(name, value)
    for name, value in (limit.get("defaultRequest") or limit.get("default") or {}).items():
        if name not in given["requests"]:
            resources.setdefault("requests", {})[name] = given["limits"].get(name, value)
    for name, value in (limit.get("max") or {}).items():
        found = (resources.get("limits") or {}).get(name)
        if found is None:
            problems.append(f"maximum {name} usage per Container is {value}.  No limit is specified")
        elif amount(found) > amount(value):
            problems.append(f"maximum {name} usage per Container is {value}, but limit is {found}")
    for name, value in (limit.get("min") or {}).items():
        found = (resources.get("requests") or {}).get(name)
        if found is None:
            problems.append(f"minimum {name} usage per Container is {value}.  No request is specified")
        elif amount(found) < amount(value):
            problems.append(f"minimum {name} usage per Container is {value}, but request is {found}")


def usage_of(kind: Kind, obj: Obj) -> dict[str, Decimal]:
    """What an object counts for in quotas."""
    count = f"count/{kind.resource}"
    found = {count: Decimal(1)}
    if kind is not JOBS:
        found[kind.plural] = Decimal(1)
    if kind is PODS:
        if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return {count: Decimal(1)}
        requests, limits = pod_requests(obj["spec"]), pod_requests(obj["spec"], "limits")
        for name, value in requests.items():
            found[f"requests.{name}"] = value
            if name in _PLAIN:
                found[name] = value
        for name, value in limits.items():
            if name in _PLAIN:
                found[f"limits.{name}"] = value
    if kind is CLAIMS:
        asked = (obj["spec"].get("resources", {}).get("requests") or {}).get("storage", "0")
        found["requests.storage"] = amount(asked)
    return found


def namespace_usage(store: Store, quota: Obj, namespace: str) -> dict[str, Decimal]:
    """What the objects of a namespace use of a quota."""
    found: dict[str, Decimal] = {}
    for kind in _COUNTED:
        for obj in store.list(kind, namespace):
            if _in_scope(quota, kind, obj):
                for name, value in usage_of(kind, obj).items():
                    found[name] = found.get(name, Decimal(0)) + value
    return found


def quota_status(store: Store, quota: Obj) -> Obj:
    """The status that a quota has now."""
    used = namespace_usage(store, quota, namespace_of(quota))
    hard = clone(quota["spec"].get("hard") or {})
    shown = {name: quantity(used.get(name, Decimal(0)), name.rpartition(".")[2]) for name in hard}
    return {"hard": hard, "used": shown}


def _in_scope(quota: Obj, kind: Kind, obj: Obj) -> bool:
    """Scopes by priority class; other scopes are not known here."""
    selector = (quota["spec"].get("scopeSelector") or {}).get("matchExpressions") or []
    if not selector:
        return True
    if kind is not PODS:
        return False
    name = obj["spec"].get("priorityClassName", "")
    return all(name in (one.get("values") or []) for one in selector if one["scopeName"] == "PriorityClass")


def _demand_figures(quota: Obj, hard: dict[str, Decimal], pod: Obj) -> None:
    """A quota of CPU or memory demands that each container says how much it wants."""
    missing: dict[str, list[str]] = {}
    for name in sorted(hard):
        part, _, resource = name.rpartition(".")
        if resource not in _PLAIN or part not in ("", "requests", "limits"):
            continue
        for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
            if resource not in (container.get("resources", {}).get(part or "requests") or {}):
                missing.setdefault(name, []).append(container["name"])
    if missing:
        said = "; ".join(f"{name} for: {','.join(names)}" for name, names in missing.items())
        raise forbidden(PODS, name_of(pod), f"failed quota: {name_of(quota)}: must specify {said}")
