"""Who asks, and what the roles let them do and grant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.fakes.kubernetes.kinds import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Kind, Obj
from tests.fakes.kubernetes.objects import name_of, namespace_of
from tests.fakes.kubernetes.refusals import Refusal, about, forbidden, not_found
from tests.fakes.kubernetes.store import Store
from tests.fakes.kubernetes.web import Request

MASTERS = "system:masters"
_SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. A subresource is behind a slash: ``pods/log``."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


class Authorizer:
    def __init__(self, store: Store, tokens: dict[str, tuple[str, list[str]]]) -> None:
        self._store, self.tokens = store, tokens
        self.used: set[tuple[str, str, str, str]] = set()
        """User, API group, resource and verb of each request that was permitted."""

    def user_of(self, request: Request) -> User:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or token not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        name, groups = self.tokens[token]
        more = ("system:serviceaccounts",) if name.startswith(_SERVICE_ACCOUNT) else ()
        return User(name, (*groups, *more, "system:authenticated"))

    def may(self, user: User, wanted: Wanted) -> bool:
        return MASTERS in user.groups or any(_allows(rule, wanted) for rule in self._rules(user, wanted.namespace))

    def demand(self, user: User, wanted: Wanted, kind: Kind) -> None:
        if self.may(user, wanted):
            self.used.add((user.name, wanted.group, wanted.resource, wanted.verb))
            return
        shown = kind.resource + (f' "{wanted.name}"' if wanted.name else "")
        where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
        message = (
            f'{shown} is forbidden: User "{user.name}" cannot {wanted.verb} resource "{wanted.resource}" in API group '
            f'"{wanted.group}" {where}'
        )
        raise Refusal(403, "Forbidden", message, details=about(kind, wanted.name))

    def _rules(self, user: User, namespace: str) -> Iterator[Obj]:
        bindings = self._store.list(CLUSTER_ROLE_BINDINGS)
        for binding in bindings + (self._store.list(ROLE_BINDINGS, namespace) if namespace else []):
            if any(_is_meant(subject, user) for subject in binding.get("subjects") or []):
                role = self._role(binding, namespace)
                yield from (role or {}).get("rules") or []

    def _role(self, binding: Obj, namespace: str) -> Obj | None:
        reference = binding["roleRef"]
        where = (CLUSTER_ROLES, "") if reference["kind"] == "ClusterRole" else (ROLES, namespace)
        return self._store.get(*where, reference["name"])

    def guard(self, user: User, kind: Kind, obj: Obj) -> None:
        """Refuse a role or a binding that grants more than the user has (kubernetes.io, "Using RBAC Authorization",
        privilege escalation): who makes it needs all of its permissions, or the verb `escalate` or `bind`."""
        namespace = namespace_of(obj)
        if kind in (ROLES, CLUSTER_ROLES):
            role: Obj | None = obj
            wanted = Wanted("escalate", kind.group, kind.plural, namespace, name_of(obj))
        elif kind in (ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS):
            role, reference = self._role(obj, namespace), obj["roleRef"]
            role_kind = CLUSTER_ROLES if reference["kind"] == "ClusterRole" else ROLES
            wanted = Wanted("bind", kind.group, role_kind.plural, namespace, reference["name"])
        else:
            return
        if self.may(user, wanted):
            return
        if role is None:  # without the verb, what it would grant has to be known
            raise not_found(role_kind, wanted.name)
        each = [one for rule in role.get("rules") or [] for one in _singly(rule, namespace)]
        lacking = [one for one in each if not self.may(user, one)]
        if lacking:
            listed = "".join(f"\n{one.verb} {one.group}/{one.resource} {one.name}" for one in lacking)
            why = f'user "{user.name}" is attempting to grant RBAC permissions not currently held:{listed}'
            raise forbidden(kind, name_of(obj), why)


def _is_meant(subject: Obj, user: User) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"{_SERVICE_ACCOUNT}{subject['namespace']}:{subject['name']}"
    return bool(subject["name"] == user.name if subject["kind"] == "User" else subject["name"] in user.groups)


def _allows(rule: Obj, wanted: Wanted) -> bool:
    names = rule.get("resourceNames") or []
    asked = (("verbs", wanted.verb), ("apiGroups", wanted.group), ("resources", wanted.resource))
    return all({one, "*"} & set(rule.get(key) or []) for key, one in asked) and (not names or wanted.name in names)


def _singly(rule: Obj, namespace: str) -> Iterator[Wanted]:
    for group in rule.get("apiGroups") or []:
        for resource in rule.get("resources") or []:
            for verb in rule.get("verbs") or []:
                for name in rule.get("resourceNames") or [""]:
                    yield Wanted(verb, group, resource, namespace, name)
