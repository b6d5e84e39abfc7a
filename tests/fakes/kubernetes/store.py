"""All objects, their versions, and what changed of late. One thread uses it."""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tests.fakes.kubernetes.kinds import Kind, Obj, clone, key_of

FIRST_VERSION = 1000
"""Versions are opaque; beginning above zero finds those who count them."""


def now() -> str:
    """The time as objects have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    """The time as events, leases and log lines have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an object. Nobody changes `obj` or `before`."""

    version: int
    kind: Kind
    what: str
    obj: Obj
    before: Obj | None


@dataclass
class Store:
    """Objects by kind, then by namespace and name. `history` holds the last changes; `oldest` is the version before
    them."""

    keep: int = 10_000
    version: int = FIRST_VERSION
    oldest: int = FIRST_VERSION
    history: deque[Change] = field(default_factory=deque)
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    _untold: deque[Change] = field(default_factory=deque)
    _objects: dict[str, dict[tuple[str, str], Obj]] = field(default_factory=dict)

    def get(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        """The object, not to be changed."""
        return self._of(kind).get((namespace, name))

    def list(self, kind: Kind, namespace: str | None = None) -> list[Obj]:
        """Objects in the order of their names, not to be changed."""
        found = self._of(kind)
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def each(self, kind: Kind) -> Iterator[Obj]:
        """All of a kind, in no order."""
        yield from list(self._of(kind).values())

    def insert(self, kind: Kind, obj: Obj) -> Obj:
        """A new object with a uid and a version of its own."""
        metadata = obj["metadata"]
        metadata["uid"] = str(uuid.uuid4()) if "uid" not in metadata else metadata["uid"]
        metadata["creationTimestamp"] = now()
        return self._put(kind, obj, "ADDED", None)

    def replace(self, kind: Kind, obj: Obj) -> Obj:
        """The object's next version; the same one where nothing changed."""
        before = self._of(kind)[key_of(obj)]
        obj["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        if obj == before:
            return before
        return self._put(kind, obj, "MODIFIED", before)

    def remove(self, kind: Kind, namespace: str, name: str) -> Obj:
        """Its last version, with a version of its own."""
        before = self._of(kind)[(namespace, name)]
        last: Obj = clone(before)
        self.version += 1
        last["metadata"]["resourceVersion"] = str(self.version)
        del self._of(kind)[(namespace, name)]
        self._tell(Change(self.version, kind, "DELETED", last, before))
        return last

    def expire(self) -> None:
        """Forget all history: every version but the latest is too old."""
        self.history.clear()
        self.oldest = self.version

    def since(self, version: int, kind: Kind) -> Sequence[Change]:
        """Changes of a kind after a version."""
        return [change for change in self.history if change.version > version and change.kind is kind]

    def _put(self, kind: Kind, obj: Obj, what: str, before: Obj | None) -> Obj:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._of(kind)[key_of(obj)] = obj
        self._tell(Change(self.version, kind, what, obj, before))
        return obj

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        while len(self.history) > self.keep:
            self.oldest = self.history.popleft().version
        self._untold.append(change)
        if len(self._untold) > 1:
            return  # a listener changed something: it is told in its turn
        while self._untold:
            for listener in list(self.listeners):
                listener(self._untold[0])
            self._untold.popleft()

    def _of(self, kind: Kind) -> dict[tuple[str, str], Obj]:
        return self._objects.setdefault(kind.resource, {})


def in_json(obj: Obj) -> bytes:
    """As it goes over the wire."""
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()
