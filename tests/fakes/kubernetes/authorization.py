"""Who asks, and what the roles let them do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.fakes.kubernetes.kinds import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Kind, Obj
from tests.fakes.kubernetes.refusals import Refusal, unauthorized
from tests.fakes.kubernetes.store import Store
from tests.fakes.kubernetes.web import Request

MASTERS = "system:masters"
_SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()


CONTROLLER = User("system:kube-controller-manager", (MASTERS,))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. A subresource is behind a slash: ``pods/log``."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


class Authorizer:
    """Tokens and certificates to users, users to rules."""

    def __init__(self, store: Store, tokens: dict[str, tuple[str, list[str]]]) -> None:
        self._store, self.tokens = store, tokens

    def user_of(self, request: Request) -> User:
        """The user of a request; nobody is refused with 401."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token in self.tokens:
            name, groups = self.tokens[token]
            more = ("system:serviceaccounts",) if name.startswith(_SERVICE_ACCOUNT) else ()
            return User(name, (*groups, *more, "system:authenticated"))
        raise unauthorized()

    def may(self, user: User, wanted: Wanted) -> bool:
        """Whether a rule lets the user do it."""
        if MASTERS in user.groups:
            return True
        return any(_allows(rule, wanted) for rule in self._rules(user, wanted.namespace))

    def demand(self, user: User, wanted: Wanted, kind: Kind | None) -> None:
        """Refuse what no rule allows, in Kubernetes' words."""
        if self.may(user, wanted):
            return
        group = wanted.group
        shown = wanted.resource.split("/", maxsplit=1)[0] + (f".{group}" if group else "")
        named = f'{shown} "{wanted.name}"' if wanted.name else shown
        where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
        message = (
            f'{named} is forbidden: User "{user.name}" cannot {wanted.verb} resource "{wanted.resource}" '
            f'in API group "{group}" {where}'
        )
        details = {"name": wanted.name, "group": group, "kind": kind.plural if kind else wanted.resource}
        raise Refusal(403, "Forbidden", message, details={key: value for key, value in details.items() if value})

    def _rules(self, user: User, namespace: str) -> Iterator[Obj]:
        for binding in self._store.each(CLUSTER_ROLE_BINDINGS):
            if _binds(binding, user):
                yield from self._role(binding["roleRef"], "")
        for binding in self._store.list(ROLE_BINDINGS, namespace) if namespace else []:
            if _binds(binding, user):
                yield from self._role(binding["roleRef"], namespace)

    def _role(self, reference: Obj, namespace: str) -> list[Obj]:
        if reference["kind"] == "ClusterRole":
            role = self._store.get(CLUSTER_ROLES, "", reference["name"])
        else:
            role = self._store.get(ROLES, namespace, reference["name"])
        return list((role or {}).get("rules") or [])


def _binds(binding: Obj, user: User) -> bool:
    for subject in binding.get("subjects") or []:
        if subject["kind"] == "User" and subject["name"] == user.name:
            return True
        if subject["kind"] == "Group" and subject["name"] in user.groups:
            return True
        namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
        if subject["kind"] == "ServiceAccount" and user.name == f"{_SERVICE_ACCOUNT}{namespace}:{subject['name']}":
            return True
    return False


def _allows(rule: Obj, wanted: Wanted) -> bool:
    names = rule.get("resourceNames") or []
    return (
        _has(rule.get("verbs"), wanted.verb)
        and _has(rule.get("apiGroups"), wanted.group)
        and (_has(rule.get("resources"), wanted.resource) or _subresource(rule, wanted.resource))
        and (not names or wanted.name in names)
    )


def _has(listed: list[str] | None, one: str) -> bool:
    return one in (listed or []) or "*" in (listed or [])


def _subresource(rule: Obj, resource: str) -> bool:
    _, slash, below = resource.partition("/")
    return bool(slash) and f"*/{below}" in (rule.get("resources") or [])
