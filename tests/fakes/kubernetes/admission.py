"""What is decided about objects that are well formed: service accounts, priorities, limits, quotas, security levels."""

from __future__ import annotations

from decimal import Decimal

from tests.fakes.kubernetes import kinds
from tests.fakes.kubernetes.kinds import Kind, Obj
from tests.fakes.kubernetes.objects import clone, containers_of, is_over, labels_of, name_of, namespace_of
from tests.fakes.kubernetes.pod_rules import refuse_unknown
from tests.fakes.kubernetes.pod_security import ENFORCE, violations
from tests.fakes.kubernetes.quantities import Amounts, add, amount, pod_requests, quantity
from tests.fakes.kubernetes.refusals import Refusal, forbidden, not_found
from tests.fakes.kubernetes.store import Store

_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_COUNTED = (kinds.CONFIG_MAPS, kinds.SECRETS, kinds.SERVICES, kinds.JOBS, kinds.CLAIMS, kinds.PODS)


class Admission:
    """Changes a new object in place, or refuses it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.webhooks: list[tuple[str, str, str]] = []
        """(plural, name of the webhook, message): refused at creation."""

    def create(self, kind: Kind, obj: Obj) -> None:
        namespace = self._store.get(kinds.NAMESPACES, "", namespace_of(obj))
        if kind.namespaced and namespace is None:
            raise not_found(kinds.NAMESPACES, namespace_of(obj))
        if kind.namespaced and namespace is not None and namespace["status"]["phase"] == "Terminating":
            why = f"unable to create new content in namespace {name_of(namespace)} because it is being terminated"
            raise forbidden(kind, name_of(obj), why)
        level = labels_of(namespace).get(ENFORCE, "") if namespace else ""
        refuse_unknown(kind, obj)
        for plural, webhook, message in self.webhooks:
            if plural == kind.plural:
                raise Refusal(403, "Forbidden", f'admission webhook "{webhook}" denied the request: {message}')
        if kind is kinds.PODS:
            self._pod(obj, obj["spec"])
            if said := violations(level, obj):
                raise forbidden(kinds.PODS, name_of(obj), f'violates PodSecurity "{level}:latest": {said}')
        if kind in _COUNTED:
            self._quota(kind, obj)

    def _pod(self, pod: Obj, spec: Obj) -> None:
        namespace, account = namespace_of(pod), spec.setdefault("serviceAccountName", "default")
        if self._store.get(kinds.SERVICE_ACCOUNTS, namespace, account) is None:
            why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
            raise forbidden(kinds.PODS, name_of(pod), why)
        priority = spec.get("priorityClassName")
        found = self._store.get(kinds.PRIORITY_CLASSES, "", priority) if priority else {"value": 0}
        if found is None:
            raise forbidden(kinds.PODS, name_of(pod), f"no PriorityClass with name {priority} was found")
        spec["priority"] = found["value"]
        runtime = spec.get("runtimeClassName")
        if runtime and self._store.get(kinds.RUNTIME_CLASSES, "", runtime) is None:
            raise forbidden(kinds.PODS, name_of(pod), f'pod rejected: RuntimeClass "{runtime}" not found')
        listed = spec.setdefault("tolerations", [])
        for key in _NODE_TAINTS:
            if not any(one.get("key") in (key, None) and one.get("effect") in ("NoExecute", None) for one in listed):
                more = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                listed.append({"key": key, **more})
        problems: list[str] = []
        for limits in self._store.list(kinds.LIMIT_RANGES, namespace):
            for limit in limits["spec"].get("limits") or []:
                for container in containers_of(spec) if limit["type"] == "Container" else []:
                    _limit(container, limit, problems)
        if problems:
            raise forbidden(kinds.PODS, name_of(pod), problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")

    def _quota(self, kind: Kind, obj: Obj) -> None:
        asked = _usage(kind, obj)
        for quota in self._store.list(kinds.QUOTAS, namespace_of(obj)):
            hard = {name: amount(value) for name, value in (quota["spec"].get("hard") or {}).items()}
            if kind is kinds.PODS:
                _demand_figures(quota, hard, obj)
            used = _namespace_usage(self._store, namespace_of(obj))
            over = [name for name in sorted(hard) if asked.get(name) and used.get(name, 0) + asked[name] > hard[name]]
            if over:
                parts = (("requested", asked), ("used", used), ("limited", hard))
                said = [f"{what}: {','.join(f'{n}={_shown(n, all_)}' for n in over)}" for what, all_ in parts]
                raise forbidden(kind, name_of(obj), f"exceeded quota: {name_of(quota)}, {', '.join(said)}")


def _limit(container: Obj, limit: Obj, problems: list[str]) -> None:
    """One limit of a LimitRange: fill in its defaults, and find what goes beyond it."""
    resources = container["resources"]
    limits, requests = resources.setdefault("limits", {}), resources.setdefault("requests", {})
    given = dict(limits)
    for name, value in (limit.get("default") or {}).items():
        limits.setdefault(name, value)
    for name, value in (limit.get("defaultRequest") or limit.get("default") or {}).items():
        requests.setdefault(name, given.get(name, value))
    for bound, part, found, sign in (("max", "limit", limits, 1), ("min", "request", requests, -1)):
        for name, value in (limit.get(bound) or {}).items():
            said = f"{bound}imum {name} usage per Container is {value}"
            if name not in found:
                problems.append(f"{said}.  No {part} is specified")
            elif sign * (amount(found[name]) - amount(value)) > 0:
                problems.append(f"{said}, but {part} is {found[name]}")


def _usage(kind: Kind, obj: Obj) -> Amounts:
    """Return what an object counts for in quotas."""
    found = {f"count/{kind.resource}": Decimal(1)}
    if kind is kinds.PODS and is_over(obj):
        return found
    if kind is not kinds.JOBS:
        found[kind.plural] = Decimal(1)
    if kind is kinds.PODS:
        requests, limits = pod_requests(obj["spec"]), pod_requests(obj["spec"], "limits")
        found |= {f"requests.{name}": value for name, value in requests.items()}
        found |= {name: value for name, value in requests.items() if name in _PLAIN}
        found |= {f"limits.{name}": value for name, value in limits.items() if name in _PLAIN}
    if kind is kinds.CLAIMS:
        found["requests.storage"] = amount(obj["spec"]["resources"]["requests"]["storage"])
    return found


def _namespace_usage(store: Store, namespace: str) -> Amounts:
    found: Amounts = {}
    for kind in _COUNTED:
        for obj in store.list(kind, namespace):
            add(found, _usage(kind, obj))
    return found


def quota_status(store: Store, quota: Obj) -> Obj:
    """Return the status that a quota has now."""
    used, hard = _namespace_usage(store, namespace_of(quota)), clone(quota["spec"].get("hard") or {})
    return {"hard": hard, "used": {name: _shown(name, used) for name in hard}}


def _shown(name: str, amounts: Amounts) -> str:
    return quantity(amounts.get(name, Decimal(0)), name.rpartition(".")[2])


def _demand_figures(quota: Obj, hard: Amounts, pod: Obj) -> None:
    """Refuse a pod with a container that does not say how much it wants of CPU or memory, where a quota has it."""
    missing: dict[str, list[str]] = {}
    for name in sorted(hard):
        part, _, resource = name.rpartition(".")
        if resource not in _PLAIN or part not in ("", "requests", "limits"):
            continue
        for container in containers_of(pod["spec"]):
            if resource not in (container["resources"].get(part or "requests") or {}):
                missing.setdefault(name, []).append(container["name"])
    if missing:
        said = "; ".join(f"{name} for: {','.join(names)}" for name, names in missing.items())
        raise forbidden(kinds.PODS, name_of(pod), f"failed quota: {name_of(quota)}: must specify {said}")
