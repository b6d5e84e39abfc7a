"""Nobody grants what he does not have (kubernetes.io, "Using RBAC Authorization", privilege escalation): who makes or
changes a role needs all of its permissions, or the verb `escalate` for roles; who binds one, or the verb `bind`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fakes.kubernetes.authorization import Authorizer, User, Wanted
from tests.fakes.kubernetes.kinds import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    Kind,
    Obj,
    name_of,
    namespace_of,
)
from tests.fakes.kubernetes.refusals import forbidden, not_found
from tests.fakes.kubernetes.store import Store

_BINDINGS = (ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS)


class Escalation:
    """Asked before a role or a binding is stored."""

    def __init__(self, store: Store, authorizer: Authorizer) -> None:
        self._store, self._authorizer = store, authorizer

    def refuse(self, user: User, kind: Kind, obj: Obj) -> None:
        """Refuse what grants more than the user has."""
        if kind in (ROLES, CLUSTER_ROLES):
            role_kind, rules, verb, named = kind, obj.get("rules") or [], "escalate", name_of(obj)
        elif kind in _BINDINGS:
            reference = obj["roleRef"]
            role_kind, verb, named = (
                CLUSTER_ROLES if reference["kind"] == "ClusterRole" else ROLES,
                "bind",
                reference["name"],
            )
            rules = []
        else:
            return
        namespace = namespace_of(obj)
        if self._authorizer.may(user, Wanted(verb, role_kind.group, role_kind.plural, namespace, named)):
            return
        if kind in _BINDINGS:
            role = self._store.get(role_kind, namespace if role_kind.namespaced else "", named)
            if role is None:  # without the verb, what it would grant has to be known
                raise not_found(role_kind, named)
            rules = role.get("rules") or []
        lacking = [one for rule in rules for one in _singly(rule, namespace) if not self._authorizer.may(user, one)]
        if lacking:
            listed = "".join(f"\n{_shown(one)}" for one in lacking)
            groups = " ".join(f'"{one}"' for one in user.groups)
            why = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:'
            raise forbidden(kind, name_of(obj), why + listed)


def _singly(rule: Obj, namespace: str) -> Iterator[Wanted]:
    for group in rule.get("apiGroups") or []:
        for resource in rule.get("resources") or []:
            for verb in rule.get("verbs") or []:
                for name in rule.get("resourceNames") or [""]:
                    yield Wanted(verb, group, resource, namespace, name)


def _shown(one: Wanted) -> str:
    names = f', ResourceNames:["{one.name}"]' if one.name else ""
    return f'{{APIGroups:["{one.group}"], Resources:["{one.resource}"]{names}, Verbs:["{one.verb}"]}}'
