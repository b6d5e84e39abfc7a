"""Garbage by owner references, what namespaces need and leave, quotas' status, claims.

No order is promised among what one object owned: all of it is deleted at once, whatever holds some of it, in the
foreground as in the background (kubernetes/kubernetes#121113); `blockOwnerDeletion` only says for what an owner that is
deleted in the foreground waits. Here pods are the last, which is the order that is worst for them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from tests.fakes.kubernetes.admission import quota_status
from tests.fakes.kubernetes.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    QUOTAS,
    SERVICE_ACCOUNTS,
    Kind,
    Obj,
    key_of,
    name_of,
    namespace_of,
)
from tests.fakes.kubernetes.loops import WorkQueue
from tests.fakes.kubernetes.registry import FOREGROUND_FINALIZER, Deletion, Registry
from tests.fakes.kubernetes.store import Change

Found = tuple[str, str, str]
"""Resource, namespace, name."""


class Collector:
    """Deletes what is owned by nobody any longer. `delay_s` is how late it comes, as the real one does."""

    def __init__(self, registry: Registry, kinds: tuple[Kind, ...], delay_s: float) -> None:
        self._registry, self._delay_s = registry, delay_s
        self._kinds = {kind.resource: kind for kind in kinds}
        self.queue: WorkQueue[Found] = WorkQueue(self._look)
        self._owned: dict[str, set[Found]] = {}
        self._uids: set[str] = set()
        registry.store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        found = (change.kind.resource, *key_of(change.obj))
        uid = change.obj["metadata"]["uid"]
        for owner in change.obj["metadata"].get("ownerReferences") or []:
            owned = self._owned.setdefault(owner["uid"], set())
            if change.what == "DELETED":
                owned.discard(found)
            else:
                owned.add(found)
                if owner["uid"] not in self._uids:
                    self.queue.later(found, self._delay_s)
            self._wake_owner(change.obj, owner)
        if change.what == "DELETED":
            self._uids.discard(uid)
            for dependent in _pods_last(self._owned.pop(uid, ())):
                self.queue.later(dependent, self._delay_s)
        else:
            self._uids.add(uid)
            if change.obj["metadata"].get("deletionTimestamp"):
                self.queue.add(found)
        self._housekeeping(change)

    def _wake_owner(self, obj: Obj, owner: Obj) -> None:
        for kind in self._kinds.values():
            if (kind.kind, kind.api_version) == (owner["kind"], owner["apiVersion"]):
                self.queue.add((kind.resource, namespace_of(obj) if kind.namespaced else "", owner["name"]))

    def _housekeeping(self, change: Change) -> None:
        namespace = namespace_of(change.obj)
        if change.kind is NAMESPACES and change.what == "ADDED":
            self._furnish(name_of(change.obj))
        if namespace and self._registry.store.list(QUOTAS, namespace):
            self.queue.add((QUOTAS.resource, namespace, ""))
        if change.kind is CLAIMS and change.what == "ADDED":
            self.queue.add((CLAIMS.resource, *key_of(change.obj)))
        if namespace and change.what == "DELETED":
            self.queue.add((NAMESPACES.resource, "", namespace))

    def _furnish(self, namespace: str) -> None:
        self._registry.create(SERVICE_ACCOUNTS, namespace, {"metadata": {"name": "default"}})
        self._registry.create(
            CONFIG_MAPS, namespace, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}}
        )

    def _look(self, found: Found) -> None:
        kind = self._kinds[found[0]]
        if kind is QUOTAS:
            for quota in self._registry.store.list(QUOTAS, found[1]):
                status = quota_status(self._registry.store, quota)
                self._registry.change(QUOTAS, *key_of(quota), functools.partial(_with_status, status))
        obj = self._registry.store.get(kind, *found[1:])
        if obj is None:
            return
        if kind is CLAIMS and obj["status"].get("phase") == "Pending":
            self._bind(obj)
        if kind is NAMESPACES and obj["metadata"].get("deletionTimestamp"):
            self._empty(obj)
        if self._ownerless(obj):
            self._registry.delete(kind, *found[1:], Deletion())
            return
        self._forget_dead_owners(kind, obj)
        finalizers = obj["metadata"].get("finalizers") or []
        if FOREGROUND_FINALIZER in finalizers:
            self._foreground(kind, obj)

    def _ownerless(self, obj: Obj) -> bool:
        owners = obj["metadata"].get("ownerReferences") or []
        return (
            bool(owners)
            and not obj["metadata"].get("deletionTimestamp")
            and not any(owner["uid"] in self._uids for owner in owners)
        )

    def _forget_dead_owners(self, kind: Kind, obj: Obj) -> None:
        """One that another owner keeps loses its references to those that are gone."""
        owners = obj["metadata"].get("ownerReferences") or []
        gone = [owner["uid"] for owner in owners if owner["uid"] not in self._uids]
        if gone and len(gone) < len(owners):
            for uid in gone:
                self._registry.change(kind, *key_of(obj), functools.partial(_disown, uid=uid))

    def _foreground(self, kind: Kind, obj: Obj) -> None:
        uid = obj["metadata"]["uid"]
        for resource, namespace, name in _pods_last(self._owned.get(uid, ())):
            dependent = self._registry.store.get(self._kinds[resource], namespace, name)
            if dependent is None or dependent["metadata"].get("deletionTimestamp") or self._kept(dependent, uid):
                continue
            self._registry.delete(self._kinds[resource], namespace, name, Deletion())
        left = (self._registry.store.get(self._kinds[one[0]], *one[1:]) for one in self._owned.get(uid, ()))
        if not any(one is not None and _blocks(one, uid) for one in left):
            self._finalized(kind, obj, FOREGROUND_FINALIZER)

    def _kept(self, dependent: Obj, uid: str) -> bool:
        """Whether another owner keeps it."""
        owners = dependent["metadata"].get("ownerReferences") or []
        return any(owner["uid"] != uid and owner["uid"] in self._uids for owner in owners)

    def _finalized(self, kind: Kind, obj: Obj, finalizer: str) -> None:
        self._registry.change(kind, *key_of(obj), lambda one: one["metadata"]["finalizers"].remove(finalizer))

    def _empty(self, namespace: Obj) -> None:
        left = 0
        for kind in self._kinds.values():
            for obj in self._registry.store.list(kind, name_of(namespace)) if kind.namespaced else []:
                self._registry.delete(kind, *key_of(obj), Deletion())
                left += self._registry.store.get(kind, *key_of(obj)) is not None
        if not left:
            self._registry.change(NAMESPACES, "", name_of(namespace), lambda one: one["spec"].update(finalizers=[]))

    def _bind(self, claim: Obj) -> None:
        def bind(one: Obj) -> None:
            one["spec"]["volumeName"] = f"pvc-{one['metadata']['uid']}"
            one["status"] = {
                "phase": "Bound", "accessModes": one["spec"].get("accessModes", []),
                "capacity": dict(one["spec"].get("resources", {}).get("requests") or {}),
            }  # fmt: skip

        self._registry.change(CLAIMS, *key_of(claim), bind)


def _pods_last(found: Iterable[Found]) -> list[Found]:
    return sorted(found, key=lambda one: (one[0] == PODS.resource, one))


def _blocks(dependent: Obj, uid: str) -> bool:
    owners = dependent["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)


def _disown(obj: Obj, uid: str) -> None:
    owners = [one for one in obj["metadata"].get("ownerReferences") or [] if one["uid"] != uid]
    obj["metadata"]["ownerReferences"] = owners


def _with_status(status: Obj, quota: Obj) -> None:
    quota["status"] = status
