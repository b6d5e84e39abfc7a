"""Creating, changing and deleting objects, by the rules that hold for everybody: requests and controllers alike."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fakes.kubernetes import schemas, validation
from tests.fakes.kubernetes.admission import Admission
from tests.fakes.kubernetes.defaults import apply_defaults, own_labels
from tests.fakes.kubernetes.kinds import EVENTS, JOBS, KUEUE, NAMESPACES, PODS, Kind, Obj, clone, name_of, namespace_of
from tests.fakes.kubernetes.refusals import (
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    required,
    wrong,
)
from tests.fakes.kubernetes.schemas import unknown_fields
from tests.fakes.kubernetes.store import Store, now, now_micro

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_SIDE = ("uid", "resourceVersion", "creationTimestamp", "generation", "deletionTimestamp", "selfLink",
                "deletionGracePeriodSeconds")  # fmt: skip
BACKGROUND, FOREGROUND = "Background", "Foreground"
FOREGROUND_FINALIZER = "foregroundDeletion"


def random_suffix() -> str:
    """Five characters, as generated names have them."""
    return "".join(random.choices(_LETTERS, k=5))


@dataclass
class Asked:
    """How a change is asked for. `guard` refuses what the user may not store."""

    dry_run: bool = False
    validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)
    guard: Callable[[Kind, Obj], None] = lambda kind, obj: None


@dataclass
class Deletion:
    """Options of a deletion."""

    propagation: str = ""
    grace: int | None = None
    uid: str = ""
    version: str = ""
    dry_run: bool = False


class Registry:
    """All that changes objects."""

    def __init__(self, store: Store, release: str) -> None:
        self.store, self.release = store, release
        self.admission = Admission(store)
        self._told: dict[tuple[str, str, str], str] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        """The object, not to be changed; NotFound."""
        found = self.store.get(kind, namespace, name)
        if found is None:
            raise not_found(kind, name)
        return found

    def create(self, kind: Kind, namespace: str, obj: Obj, asked: Asked | None = None) -> Obj:
        """A new object, as it was stored."""
        asked = asked or Asked()
        obj = self._read(kind, namespace, obj, asked)
        metadata = obj["metadata"]
        for key in _SERVER_SIDE:
            metadata.pop(key, None)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(kind, "", [required("metadata.name", "name or generateName is required")])
            metadata["name"] = metadata["generateName"][:58] + random_suffix()
        if kind.status and kind.group != KUEUE:
            obj.pop("status", None)
        if kind.generation:
            metadata["generation"] = 1
        asked.guard(kind, obj)
        apply_defaults(kind, obj)
        validation.check(kind, obj, None)
        self.admission.create(kind, obj, asked.warnings)
        # Kubernetes sees last of all that a name is taken: kubernetes/kubernetes issue 106842.
        if self.store.get(kind, namespace_of(obj), name_of(obj)) is not None:
            raise already_exists(kind, name_of(obj))
        if kind is JOBS:
            metadata["uid"] = _uid()
            own_labels(obj)
        if asked.dry_run:
            metadata.setdefault("uid", _uid())
            metadata["creationTimestamp"] = now()
            return obj
        return self.store.insert(kind, obj)

    def update(
        self, kind: Kind, namespace: str, name: str, obj: Obj, *, part: str = "", asked: Asked | None = None
    ) -> Obj:
        """The object's next version; of `part` ``status`` nothing else changes."""
        asked = asked or Asked()
        before = self.get(kind, namespace, name)
        obj = self._read(kind, namespace, obj, asked)
        if name_of(obj) != name:
            raise bad_request(f"the name of the object ({name_of(obj)}) does not match the name on the URL ({name})")
        given = obj["metadata"]
        if given.get("resourceVersion") not in (None, "", "0", before["metadata"]["resourceVersion"]):
            raise conflict(kind, name)
        if given.get("uid") and given["uid"] != before["metadata"]["uid"]:
            uid = before["metadata"]["uid"]
            why = f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {uid}"
            raise conflict(kind, name, why)
        return self._store_change(kind, before, _merged(kind, before, obj, part), part, asked)

    def change(self, kind: Kind, namespace: str, name: str, how: Callable[[Obj], object]) -> Obj | None:
        """A controller's change of anything, status and metadata included; None of an object that is gone."""
        before = self.store.get(kind, namespace, name)
        if before is None:
            return None
        obj = clone(before)
        how(obj)
        if obj == before:
            return before
        if kind.generation and obj.get("spec") != before.get("spec"):
            obj["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
        return self._settle(kind, self.store.replace(kind, obj))

    def _store_change(self, kind: Kind, before: Obj, obj: Obj, part: str, asked: Asked) -> Obj:
        if obj["metadata"].get("deletionTimestamp") and not part:
            more = set(obj["metadata"].get("finalizers") or []) - set(before["metadata"].get("finalizers") or [])
            if more:
                why = "no new finalizers can be added if the object is being deleted, found new finalizers "
                why += str(sorted(more))
                raise invalid(kind, name_of(obj), [wrong("metadata.finalizers", sorted(more), why)])
        asked.guard(kind, obj)
        if part != "status":
            apply_defaults(kind, obj)
            validation.check(kind, obj, before)
        if kind.generation and obj.get("spec") != before.get("spec"):
            obj["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
        if asked.dry_run:
            return obj
        return self._settle(kind, self.store.replace(kind, obj))

    def _settle(self, kind: Kind, obj: Obj) -> Obj:
        """Remove an object that is being deleted and that nothing holds any longer."""
        metadata = obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return obj
        if kind is PODS and metadata.get("deletionGracePeriodSeconds", 0) > 0 and not _pod_is_over(obj):
            return obj
        if kind is NAMESPACES and obj.get("spec", {}).get("finalizers"):
            return obj
        return self.store.remove(kind, namespace_of(obj), name_of(obj))

    def delete(self, kind: Kind, namespace: str, name: str, how: Deletion | None = None) -> Obj:
        """Delete, or begin to: finalizers and a pod's grace keep an object."""
        how = how or Deletion()
        before = self.get(kind, namespace, name)
        metadata = before["metadata"]
        if how.uid and how.uid != metadata["uid"]:
            why = f"Precondition failed: UID in precondition: {how.uid}, UID in object meta: {metadata['uid']}"
            raise conflict(kind, name, why)
        if how.version and how.version != metadata["resourceVersion"]:
            why = (
                f"Precondition failed: ResourceVersion in precondition: {how.version}, ResourceVersion in object meta: "
            )
            why += metadata["resourceVersion"]
            raise conflict(kind, name, why)
        if kind is NAMESPACES and name in ("default", "kube-system"):
            raise forbidden(kind, name, "this namespace may not be deleted")
        obj = clone(before)
        self._mark(kind, obj, how)
        if how.dry_run:
            return before
        return self._settle(kind, obj if obj == before else self.store.replace(kind, obj))

    def _mark(self, kind: Kind, obj: Obj, how: Deletion) -> None:
        metadata, grace = obj["metadata"], 0
        if kind is PODS:
            known = metadata.get("deletionGracePeriodSeconds")
            wished = how.grace if how.grace is not None else obj["spec"].get("terminationGracePeriodSeconds", 30)
            if not obj["spec"].get("nodeName") or _pod_is_over(obj):
                wished = 0
            grace = wished if known is None else min(known, wished)
        if how.propagation == FOREGROUND:
            _add_finalizer(metadata, FOREGROUND_FINALIZER)
        if kind is NAMESPACES:
            obj["status"]["phase"] = "Terminating"
        if "deletionTimestamp" not in metadata or metadata.get("deletionGracePeriodSeconds", 0) != grace:
            metadata["deletionTimestamp"] = now()
            metadata["deletionGracePeriodSeconds"] = grace
            if kind.generation:
                metadata["generation"] = metadata.get("generation", 0) + 1

    def tell(self, about: Kind, obj: Obj, reason: str, message: str, source: str, *, warning: bool = False) -> None:
        """An Event about an object; the same one again is counted."""
        namespace = namespace_of(obj) or "default"
        same = (str(obj["metadata"].get("uid", "")), reason, message)
        name = self._told.get(same, "")
        if self.store.get(EVENTS, namespace, name) is not None:
            self.change(EVENTS, namespace, name, _count)
            return
        self._told[same] = name = f"{name_of(obj)}.{random.getrandbits(60):015x}"
        self.store.insert(EVENTS, {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version, "kind": about.kind, "name": name_of(obj),
                "namespace": namespace_of(obj),
                "uid": same[0], "resourceVersion": obj["metadata"].get("resourceVersion", ""),
            },
            "reason": reason, "message": message, "type": "Warning" if warning else "Normal", "count": 1,
            "firstTimestamp": now(), "lastTimestamp": now(), "eventTime": None,
            "source": {"component": source}, "reportingComponent": source, "reportingInstance": "",
        })  # fmt: skip

    def _read(self, kind: Kind, namespace: str, obj: Obj, asked: Asked) -> Obj:
        """The object as it is decoded."""
        if not isinstance(obj, dict):
            raise bad_request("the object provided is unrecognized (must be of type Object)")
        obj = clone(obj)
        if obj.get("kind", kind.kind) != kind.kind or obj.get("apiVersion", kind.api_version) != kind.api_version:
            given = f"{obj.get('apiVersion')}, Kind={obj.get('kind')}"
            raise bad_request(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: no kind match: {given}'
            )
        obj["kind"], obj["apiVersion"] = kind.kind, kind.api_version
        if kind.group != KUEUE:
            obj = self._decode(kind, obj, asked)
        metadata = obj.setdefault("metadata", {})
        metadata.pop("managedFields", None)
        if kind.namespaced:
            if metadata.get("namespace", namespace) != namespace:
                given = metadata["namespace"]
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request: "
                    f"{given} {namespace}"
                )
            metadata["namespace"] = namespace
        return obj

    def _decode(self, kind: Kind, obj: Obj, asked: Asked) -> Obj:
        obj, reading = schemas.read(kind, obj, self.release)
        if reading.unknown:
            if asked.validation == "Strict":
                raise unknown_fields(kind, reading.unknown)
            if asked.validation == "Warn":
                asked.warnings += [f'unknown field "{one}"' for one in reading.unknown]
        if reading.missing:
            raise invalid(kind, str(obj.get("metadata", {}).get("name", "")), reading.missing)
        return obj


def _uid() -> str:
    digits = "".join(random.choices(string.hexdigits[:16], k=32))
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _merged(kind: Kind, before: Obj, obj: Obj, part: str) -> Obj:
    """What is stored of what was given."""
    merged: Obj
    if part == "status":
        merged = clone(before)
        merged["status"] = obj.get("status", {})
        for key in ("finalizers", "annotations", "labels"):
            if key in obj["metadata"]:
                merged["metadata"][key] = obj["metadata"][key]
        return merged
    merged = obj
    for key in _SERVER_SIDE:
        merged["metadata"].pop(key, None)
        if key in before["metadata"]:
            merged["metadata"][key] = before["metadata"][key]
    if kind.status and "status" in before:
        merged["status"] = clone(before["status"])
    return merged


def _add_finalizer(metadata: Obj, name: str) -> None:
    if name not in metadata.setdefault("finalizers", []):
        metadata["finalizers"].append(name)


def _pod_is_over(pod: Obj) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _count(event: Obj) -> None:
    event["count"] += 1
    event["lastTimestamp"] = now()


__all__ = ["Asked", "Deletion", "Registry", "now_micro", "random_suffix"]
