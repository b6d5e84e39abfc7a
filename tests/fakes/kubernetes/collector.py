"""Garbage by owner references, what namespaces need and leave, quotas' status, claims.

No order is promised among what one object owned: all of it is deleted at once, whatever holds some of it, in the
foreground as in the background (kubernetes/kubernetes#121113); `blockOwnerDeletion` only says for what an owner that is
deleted in the foreground waits. Here pods are the last, which is the order that is worst for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.fakes.kubernetes.admission import quota_status
from tests.fakes.kubernetes.kinds import CLAIMS, NAMESPACES, PODS, QUOTAS, SERVICE_ACCOUNTS, Kind, Obj
from tests.fakes.kubernetes.objects import finalizers_of, is_deleted, key_of, name_of, namespace_of, owners_of
from tests.fakes.kubernetes.registry import FOREGROUND_FINALIZER, Registry
from tests.fakes.kubernetes.store import Change, WorkQueue

DELAY_S = 0.1
"""How late it comes, as the real one does."""
Found = tuple[str, str, str]
"""Resource, namespace, name."""


class Collector:
    """Deletes what is owned by nothing any longer."""

    def __init__(self, registry: Registry, kinds: tuple[Kind, ...]) -> None:
        self._registry = registry
        self._kinds = {kind.resource: kind for kind in kinds}
        self._by_name = {(kind.api_version, kind.kind): kind for kind in kinds}
        self.queue: WorkQueue[Found] = WorkQueue(self._look)
        self._owned: dict[str, set[Found]] = {}
        self._uids: set[str] = set()
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        found, gone = (change.kind.resource, *key_of(change.obj)), change.what == "DELETED"
        uid, namespace = change.obj["metadata"]["uid"], namespace_of(change.obj)
        for owner in owners_of(change.obj):
            owned = self._owned.setdefault(owner["uid"], set())
            owned.discard(found)
            if not gone:
                owned.add(found)
            if not gone and owner["uid"] not in self._uids:
                self.queue.later(found, DELAY_S)
            kind = self._by_name[owner["apiVersion"], owner["kind"]]
            self.queue.add((kind.resource, namespace if kind.namespaced else "", owner["name"]))
        if gone:
            self._uids.discard(uid)
            for dependent in _pods_last(self._owned.pop(uid, ())):
                self.queue.later(dependent, DELAY_S)
            if namespace:
                self.queue.add((NAMESPACES.resource, "", namespace))
        else:
            self._uids.add(uid)
            if is_deleted(change.obj) or change.kind is CLAIMS:
                self.queue.add(found)
        if change.kind is NAMESPACES and change.what == "ADDED":
            self._registry.create(SERVICE_ACCOUNTS, name_of(change.obj), {"metadata": {"name": "default"}})
        for quota in self._registry.store.list(QUOTAS, namespace) if namespace else []:
            self.queue.add((QUOTAS.resource, *key_of(quota)))

    def _look(self, found: Found) -> None:
        kind, where = self._kinds[found[0]], found[1:]
        obj = self._registry.store.get(kind, *where)
        if obj is None:
            return
        if kind is QUOTAS:
            status = quota_status(self._registry.store, obj)
            self._registry.change(kind, *where, lambda one: one.update(status=status))
        if kind is CLAIMS:
            self._registry.change(kind, *where, lambda one: one["status"].update(phase="Bound"))
        if kind is NAMESPACES and is_deleted(obj):
            self._empty(name_of(obj))
        owners = {owner["uid"] for owner in owners_of(obj)}
        if owners and not owners & self._uids and not is_deleted(obj):
            self._registry.delete(kind, *where)
        elif FOREGROUND_FINALIZER in finalizers_of(obj):
            self._foreground(kind, obj)

    def _foreground(self, kind: Kind, obj: Obj) -> None:
        """Delete what an object owns, and the object when nothing is left that it has to wait for."""
        uid, blocked = obj["metadata"]["uid"], False
        for resource, namespace, name in _pods_last(self._owned.get(uid, ())):
            owned, where = self._kinds[resource], (namespace, name)
            dependent = self._registry.store.get(owned, *where)
            if dependent is not None and not is_deleted(dependent):
                self._registry.delete(owned, *where)
                dependent = self._registry.store.get(owned, *where)
            if dependent is not None:
                blocked |= any(one["uid"] == uid and one.get("blockOwnerDeletion") for one in owners_of(dependent))
        if not blocked:
            self._registry.unhold(kind, obj, FOREGROUND_FINALIZER)

    def _empty(self, namespace: str) -> None:
        left = 0
        for kind in self._kinds.values():
            for obj in self._registry.store.list(kind, namespace) if kind.namespaced else []:
                self._registry.delete(kind, *key_of(obj))
                left += self._registry.store.get(kind, *key_of(obj)) is not None
        if not left:
            self._registry.change(NAMESPACES, "", namespace, lambda one: one["spec"].update(finalizers=[]))


def _pods_last(found: Iterable[Found]) -> list[Found]:
    return sorted(found, key=lambda one: (one[0] == PODS.resource, one))
