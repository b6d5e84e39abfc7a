"""Creating, changing and deleting objects, by the rules that hold for everybody: requests and controllers alike."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tests.fakes.kubernetes import schemas, validation
from tests.fakes.kubernetes.admission import Admission
from tests.fakes.kubernetes.defaults import apply_defaults, own_labels
from tests.fakes.kubernetes.kinds import EVENTS, JOBS, KUEUE, NAMESPACES, PODS, Kind, Obj
from tests.fakes.kubernetes.objects import clone, finalizers_of, is_deleted, is_over, key_of, name_of, namespace_of, now
from tests.fakes.kubernetes.refusals import Refusal, about, bad_request, conflict, invalid, not_found, required, wrong
from tests.fakes.kubernetes.store import Store

_SERVER_SIDE = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
FOREGROUND_FINALIZER = "foregroundDeletion"


def random_suffix() -> str:
    """Return five characters, as generated names have them."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


@dataclass(frozen=True)
class Asked:
    """How a change is asked for. `guard` refuses what the user may not store; `strict` refuses unknown fields."""

    dry_run: bool = False
    strict: bool = False
    guard: Callable[[Kind, Obj], None] = lambda kind, obj: None


@dataclass(frozen=True)
class Deletion:
    foreground: bool = False
    grace: int | None = None
    version: str = ""


class Registry:
    def __init__(self, store: Store, release: str) -> None:
        self.store, self.release = store, release
        self.admission = Admission(store)
        self._told: dict[tuple[str, str, str], str] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        """Return the object, not to be changed. Raises NotFound."""
        found = self.store.get(kind, namespace, name)
        if found is None:
            raise not_found(kind, name)
        return found

    def create(self, kind: Kind, namespace: str, obj: Obj, asked: Asked | None = None) -> Obj:
        """Store a new object; return it as it was stored."""
        asked = asked or Asked()
        obj = self._read(kind, namespace, obj, asked)
        metadata = obj["metadata"]
        for key in _SERVER_SIDE:
            metadata.pop(key, None)
        if not metadata.get("name"):
            raise invalid(kind, "", [required("metadata.name", "name or generateName is required")])
        if kind.status and kind.group != KUEUE:
            obj.pop("status", None)
        asked.guard(kind, obj)
        apply_defaults(kind, obj)
        validation.check(kind, obj, None)
        self.admission.create(kind, obj)
        # Kubernetes sees last of all that a name is taken: kubernetes/kubernetes issue 106842.
        if self.store.get(kind, *key_of(obj)) is not None:
            message = f'{kind.resource} "{name_of(obj)}" already exists'
            raise Refusal(409, "AlreadyExists", message, details=about(kind, name_of(obj)))
        metadata["uid"] = str(uuid.uuid4())
        if kind is JOBS:
            own_labels(obj)
        return obj if asked.dry_run else self.store.insert(kind, obj)

    def update(self, kind: Kind, namespace: str, obj: Obj, *, part: str = "", asked: Asked | None = None) -> Obj:
        """Store the object's next version; of `part` ``status`` nothing else changes."""
        asked = asked or Asked()
        obj = self._read(kind, namespace, obj, asked)
        before, given = self.get(kind, namespace, name_of(obj)), obj["metadata"]
        if given.get("resourceVersion", before["metadata"]["resourceVersion"]) != before["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind, name_of(obj), why)
        if part == "status":
            return self.change(kind, *key_of(obj), lambda one: one.update(status=obj.get("status", {}))) or obj
        for key in _SERVER_SIDE:
            given.pop(key, None)
            if key in before["metadata"]:
                given[key] = before["metadata"][key]
        if kind.status and "status" in before:
            obj["status"] = clone(before["status"])
        if is_deleted(obj) and (more := set(finalizers_of(obj)) - set(finalizers_of(before))):
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(more)}"
            raise invalid(kind, name_of(obj), [wrong("metadata.finalizers", sorted(more), why)])
        asked.guard(kind, obj)
        apply_defaults(kind, obj)
        validation.check(kind, obj, before)
        return obj if asked.dry_run else self._settle(kind, self.store.replace(kind, obj))

    def change(self, kind: Kind, namespace: str, name: str, how: Callable[[Obj], object]) -> Obj | None:
        """Let a controller change anything, status and metadata included; None of an object that is gone."""
        before = self.store.get(kind, namespace, name)
        if before is None:
            return None
        obj = clone(before)
        how(obj)
        return before if obj == before else self._settle(kind, self.store.replace(kind, obj))

    def unhold(self, kind: Kind, obj: Obj, finalizer: str) -> None:
        """Remove a finalizer, if the object has it."""
        if finalizer in finalizers_of(obj):
            self.change(kind, *key_of(obj), lambda one: one["metadata"]["finalizers"].remove(finalizer))

    def _settle(self, kind: Kind, obj: Obj) -> Obj:
        """Remove an object that is being deleted and that nothing holds any longer."""
        kept = finalizers_of(obj) or (kind is NAMESPACES and obj["spec"]["finalizers"])
        waits = kind is PODS and obj["metadata"].get("deletionGracePeriodSeconds", 0) > 0 and not is_over(obj)
        return obj if not is_deleted(obj) or kept or waits else self.store.remove(kind, *key_of(obj))

    def delete(self, kind: Kind, namespace: str, name: str, how: Deletion | None = None) -> Obj:
        """Delete, or begin to: finalizers and a pod's grace keep an object."""
        how, before = how or Deletion(), self.get(kind, namespace, name)
        version = before["metadata"]["resourceVersion"]
        if how.version not in ("", version):
            why = f"ResourceVersion in precondition: {how.version}, ResourceVersion in object meta: {version}"
            raise conflict(kind, name, f"Precondition failed: {why}")
        obj = clone(before)
        metadata, grace = obj["metadata"], 0
        if kind is PODS and obj["spec"].get("nodeName") and not is_over(obj):
            wanted = obj["spec"]["terminationGracePeriodSeconds"] if how.grace is None else how.grace
            grace = min(wanted, metadata.get("deletionGracePeriodSeconds", wanted))
        if how.foreground and FOREGROUND_FINALIZER not in finalizers_of(obj):
            metadata["finalizers"] = [*finalizers_of(obj), FOREGROUND_FINALIZER]
        if kind is NAMESPACES:
            obj["status"]["phase"] = "Terminating"
        if not is_deleted(obj) or metadata["deletionGracePeriodSeconds"] != grace:
            metadata.update(deletionTimestamp=now(), deletionGracePeriodSeconds=grace)
        return self._settle(kind, self.store.replace(kind, obj))

    def tell(self, about: Kind, obj: Obj, reason: str, message: str, level: str = "Warning") -> None:
        """Write an Event about an object; the same one again is counted."""
        namespace, uid = namespace_of(obj) or "default", str(obj["metadata"].get("uid", ""))
        name = self._told.setdefault((uid, reason, message), f"{name_of(obj)}.{random.getrandbits(60):015x}")
        if self.store.get(EVENTS, namespace, name) is not None:
            self.change(EVENTS, namespace, name, lambda one: one.update(count=one["count"] + 1))
            return
        self.store.insert(EVENTS, {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version, "kind": about.kind, "name": name_of(obj),
                "namespace": namespace_of(obj), "uid": uid,
            },
            "reason": reason, "message": message, "type": level, "count": 1,
        })  # fmt: skip

    def _read(self, kind: Kind, namespace: str, obj: Obj, asked: Asked) -> Obj:
        obj = {"kind": kind.kind, "apiVersion": kind.api_version, **clone(obj)}
        if (obj["kind"], obj["apiVersion"]) != (kind.kind, kind.api_version):
            raise bad_request(f"{obj['apiVersion']}, Kind={obj['kind']} cannot be handled as a {kind.kind}: no match")
        if kind.group != KUEUE:
            obj, reading = schemas.read(kind, obj, self.release)
            if reading.unknown and asked.strict:
                said = ", ".join(f'unknown field "{one}"' for one in reading.unknown)
                raise reading.refusal(f"strict decoding error: {said}")
            if reading.missing:
                raise invalid(kind, str(obj.get("metadata", {}).get("name", "")), reading.missing)
        metadata = obj.setdefault("metadata", {})
        if kind.namespaced and metadata.setdefault("namespace", namespace) != namespace:
            why = "the namespace of the provided object does not match the namespace sent on the request"
            raise bad_request(f"{why}: {metadata['namespace']} {namespace}")
        return obj
