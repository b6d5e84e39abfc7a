"""Lists and watches, and the selectors of both."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable

from tests.fakes.kubernetes.kinds import EVENTS, PODS, Kind, Obj
from tests.fakes.kubernetes.objects import key_of, labels_of, namespace_of
from tests.fakes.kubernetes.refusals import Refusal, bad_request
from tests.fakes.kubernetes.store import Change, Store, in_json
from tests.fakes.kubernetes.web import Request

BOOKMARK_S = 60.0
"""How often a watcher that takes bookmarks gets the version."""
Check = Callable[[Obj], bool]
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][-A-Za-z0-9_./]*)\s*(?:(==|=|!=)\s*([^\s=!()]*)\s*)?$")
_POD_FIELDS = ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase")
_EVENT_FIELDS = ("involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "involvedObject.uid",
                 "reason", "type", "involvedObject.fieldPath")  # fmt: skip


def _requirements(selector: str) -> list[tuple[str, str | None, bool]]:
    """Parse a selector: (key, value, whether it must have that value). A key alone must not have the value None."""
    found = []
    for part in filter(None, selector.split(",")):
        match = _REQUIREMENT.match(part)
        if match is None:
            raise bad_request(f"unable to parse requirement '{part}': the tests' API server knows keys, = and !=")
        found.append((match[1], match[3], match[2] in ("=", "==")))
    return found


def _check_of(kind: Kind, request: Request) -> Check:
    """Return the check of both selectors of a request; fields that the kind does not have are refused."""
    labels = _requirements(request.query.get("labelSelector", ""))
    fields = _requirements(request.query.get("fieldSelector", ""))
    own = {PODS: _POD_FIELDS, EVENTS: _EVENT_FIELDS}.get(kind, ())
    for path, _, _ in fields:
        if path not in (*own, "metadata.name", "metadata.namespace"):
            raise bad_request(f"field label not supported: {path}")

    def check(obj: Obj) -> bool:
        given = labels_of(obj)
        found = [(given.get(key) == value) is equal for key, value, equal in labels]
        return all(found) and all((_field(obj, path) == value) is equal for path, value, equal in fields)

    return check


def _field(obj: Obj, path: str) -> str:
    found: object = obj
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def matches(selector: Obj, labels: dict[str, str]) -> bool:
    """Whether the LabelSelector of an object matches; our objects have `matchLabels` alone."""
    assert not selector.keys() - {"matchLabels"}, f"the tests' cluster does not know {selector}"
    return (selector.get("matchLabels") or {}).items() <= labels.items()


def list_of(store: Store, kind: Kind, namespace: str, request: Request) -> Obj:
    """Return a list, or a part of it. A token has the version of the first part and the last key of the one before."""
    version, _, after = request.query.get("continue", f"{store.version} ").partition(" ")
    check, limit = _check_of(kind, request), int(request.query.get("limit") or 0)
    found = [one for one in store.list(kind, namespace or None) if key_of(one) > tuple(after.split("/")) and check(one)]
    metadata = {"resourceVersion": version}
    if 0 < limit < len(found):
        found = found[:limit]
        metadata["continue"] = f"{version} {'/'.join(key_of(found[-1]))}"
    items = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found]
    return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}


class Watches:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._queues: dict[asyncio.Queue[Change | None], Kind] = {}
        store.listeners.append(self._tell)

    def _tell(self, change: Change) -> None:
        for queue, kind in self._queues.items():
            if kind is change.kind:
                queue.put_nowait(change)

    def close(self) -> None:
        """End them as a timeout ends them."""
        for queue in self._queues:
            queue.put_nowait(None)

    def begin(self, kind: Kind, namespace: str, request: Request) -> AsyncIterator[bytes]:
        check, version = _check_of(kind, request), int(request.query.get("resourceVersion") or 0)
        if version and version < self._store.oldest:
            message = f"too old resource version: {version} ({self._store.oldest})"
            return _one(_line("ERROR", Refusal(410, "Expired", message).status))
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        first = [Change(0, kind, "ADDED", obj, None) for obj in self._store.list(kind)]
        for change in self._store.since(version, kind) if version else first:
            queue.put_nowait(change)
        self._queues[queue] = kind
        seconds = float(request.query.get("timeoutSeconds") or random.uniform(1800, 3600))
        return self._stream(kind, namespace, check, queue, seconds, marks=request.asks("allowWatchBookmarks"))

    async def _stream(
        self, kind: Kind, namespace: str, check: Check, queue: asyncio.Queue[Change | None], seconds: float, *,
        marks: bool,
    ) -> AsyncIterator[bytes]:  # fmt: skip
        loop = asyncio.get_running_loop()
        end, next_mark = loop.time() + seconds, loop.time() + BOOKMARK_S
        try:
            while (left := end - loop.time()) > 0:
                try:
                    change = await asyncio.wait_for(queue.get(), min(left, max(next_mark - loop.time(), 0.001)))
                except TimeoutError:
                    next_mark = loop.time() + BOOKMARK_S
                    mark = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
                    if marks:
                        yield _line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": mark})
                    continue
                if change is None:
                    return
                if namespace in ("", namespace_of(change.obj)):
                    yield _of_change(change, check)
        finally:
            self._queues.pop(queue, None)


def _of_change(change: Change, check: Check) -> bytes:
    """Return what a watcher gets: nothing about an object that it did not choose, before or after."""
    now = change.what != "DELETED" and check(change.obj)
    before = change.before is not None and check(change.before)
    if not now and not before:
        return b""
    return _line("MODIFIED" if now and before else "ADDED" if now else "DELETED", change.obj)


def _line(what: str, obj: Obj) -> bytes:
    return in_json({"type": what, "object": obj}) + b"\n"


async def _one(line: bytes) -> AsyncIterator[bytes]:
    yield line
