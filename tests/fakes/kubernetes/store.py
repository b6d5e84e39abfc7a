"""All objects, their versions, what changed of late, and the queues of the controllers that look at it. One thread uses
it."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.fakes.kubernetes.kinds import Key, Kind, Obj
from tests.fakes.kubernetes.objects import clone, key_of, now

FIRST_VERSION = 1000
"""Versions are opaque; beginning above zero finds those who count them."""
KEPT = 10_000
"""How many changes are remembered."""
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an object. Nothing changes `obj` or `before`."""

    version: int
    kind: Kind
    what: str
    obj: Obj
    before: Obj | None


class Store:
    """Objects by kind, then by namespace and name. `oldest` is the version before the changes that are remembered."""

    def __init__(self) -> None:
        self.version = self.oldest = FIRST_VERSION
        self.listeners: list[Callable[[Change], None]] = []
        self._history: deque[Change] = deque()
        self._untold: deque[Change] = deque()
        self._objects: dict[str, dict[Key, Obj]] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        """Return the object, not to be changed."""
        return self._of(kind).get((namespace, name))

    def list(self, kind: Kind, namespace: str | None = None) -> list[Obj]:
        """Return objects in the order of their names, not to be changed."""
        found = self._of(kind)
        return [found[key] for key in sorted(found) if namespace is None or key[0] == namespace]

    def insert(self, kind: Kind, obj: Obj) -> Obj:
        """Store a new object with a uid and a version of its own."""
        obj["metadata"].setdefault("uid", str(uuid.uuid4()))
        obj["metadata"]["creationTimestamp"] = now()
        return self._put(kind, obj, "ADDED", None)

    def replace(self, kind: Kind, obj: Obj) -> Obj:
        """Store the object's next version; the same one where nothing changed."""
        before = self._of(kind)[key_of(obj)]
        obj["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        return before if obj == before else self._put(kind, obj, "MODIFIED", before)

    def remove(self, kind: Kind, namespace: str, name: str) -> Obj:
        """Remove the object; return its last version, with a version of its own."""
        before = self._of(kind).pop((namespace, name))
        last: Obj = clone(before)
        self.version += 1
        last["metadata"]["resourceVersion"] = str(self.version)
        self._tell(Change(self.version, kind, "DELETED", last, before))
        return last

    def expire(self) -> None:
        """Forget all history: every version but the latest is too old."""
        self._history.clear()
        self.oldest = self.version

    def since(self, version: int, kind: Kind) -> Sequence[Change]:
        return [change for change in self._history if change.version > version and change.kind is kind]

    def _put(self, kind: Kind, obj: Obj, what: str, before: Obj | None) -> Obj:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._of(kind)[key_of(obj)] = obj
        self._tell(Change(self.version, kind, what, obj, before))
        return obj

    def _tell(self, change: Change) -> None:
        self._history.append(change)
        while len(self._history) > KEPT:
            self.oldest = self._history.popleft().version
        self._untold.append(change)
        if len(self._untold) > 1:
            return  # a listener changed something: listeners get that after the change that it was made for
        while self._untold:
            for listener in list(self.listeners):
                listener(self._untold[0])
            self._untold.popleft()

    def _of(self, kind: Kind) -> dict[Key, Obj]:
        return self._objects.setdefault(kind.resource, {})


class WorkQueue(Generic[Item]):
    """A controller's work: items that `step` looks at, now or later, in the order in which they came."""

    def __init__(self, step: Callable[[Item], None]) -> None:
        self._step = step
        self._waiting: dict[Item, None] = {}
        self._some = asyncio.Event()
        self.paused = False

    def add(self, item: Item) -> None:
        self._waiting[item] = None
        self._some.set()

    def later(self, item: Item, seconds: float) -> None:
        asyncio.get_running_loop().call_later(max(seconds, 0.0), self.add, item)

    async def run(self) -> None:
        """Work for ever. A step that fails is printed and tried again."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self.paused:
                await asyncio.sleep(0.05)
            items, self._waiting = list(self._waiting), {}
            for number, item in enumerate(items):
                try:
                    self._step(item)
                except Exception:  # noqa: BLE001 - a fault of the fake must not end it
                    print(traceback.format_exc(), file=sys.stderr, flush=True)
                    self.later(item, 1.0)
                if number % 20 == 19:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)


def in_json(obj: Obj) -> bytes:
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()
