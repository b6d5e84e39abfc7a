"""Lists and watches."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator

from tests.fakes.kubernetes.kinds import Kind, Obj, namespace_of
from tests.fakes.kubernetes.refusals import Refusal, bad_request, expired
from tests.fakes.kubernetes.selectors import Check, field_check, label_check
from tests.fakes.kubernetes.store import Change, Store, in_json
from tests.fakes.kubernetes.web import Request

_TOO_OLD_LIST = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
)


def checks_of(kind: Kind, request: Request) -> Check:
    """Both selectors of a request."""
    labels = label_check(request.query.get("labelSelector", ""))
    selector = request.query.get("fieldSelector", "")
    fields = field_check(kind, selector) if selector else None
    return lambda obj: labels(obj) and (fields is None or fields(obj))


class Lists:
    """Lists in one part or in several; the parts of a list are of one moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rest: dict[str, tuple[int, list[Obj]]] = {}

    def forget(self) -> None:
        """Every continue token is too old."""
        self._rest.clear()

    def answer(self, kind: Kind, namespace: str, request: Request) -> Obj:
        """The list that is asked for."""
        token, limit = request.query.get("continue", ""), int(request.query.get("limit", "0") or 0)
        if token:
            version, found = self._continued(token)
        else:
            version, found = self._store.version, self._fresh(kind, namespace, request)
        metadata: Obj = {"resourceVersion": str(version)}
        if limit and len(found) > limit:
            key = f"{random.getrandbits(64):x}"
            self._rest[key] = (version, found[limit:])
            metadata["continue"] = base64.urlsafe_b64encode(
                json.dumps({"v": "meta.k8s.io/v1", "k": key}).encode()
            ).decode()
            if not request.query.get("labelSelector") and not request.query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        items = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}

    def _fresh(self, kind: Kind, namespace: str, request: Request) -> list[Obj]:
        asked = request.query.get("resourceVersion", "")
        if asked and not asked.isdigit():
            raise bad_request(
                f'invalid resource version "{asked}": strconv.ParseUint: parsing "{asked}": invalid syntax'
            )
        if asked and int(asked) > self._store.version:
            message = f"Too large resource version: {asked}, current: {self._store.version}"
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            raise Refusal(504, "Timeout", message, details={"causes": causes}, retry_after=1)
        if request.query.get("resourceVersionMatch") == "Exact" and int(asked or 0) < self._store.version:
            raise expired("The resourceVersion for the provided list is too old.")
        check = checks_of(kind, request)
        return [obj for obj in self._store.list(kind, namespace or None) if check(obj)]

    def _continued(self, token: str) -> tuple[int, list[Obj]]:
        try:
            key = json.loads(base64.urlsafe_b64decode(token))["k"]
        except (ValueError, KeyError, TypeError):
            raise bad_request(f"continue key is not valid: {token}") from None
        if key not in self._rest:
            raise expired(_TOO_OLD_LIST)
        return self._rest.pop(key)


class Watches:
    """Streams of changes. `bookmark_s` is how often those who like to hear it are told the version."""

    def __init__(self, store: Store, bookmark_s: float) -> None:
        self._store, self.bookmark_s = store, bookmark_s
        self._queues: dict[asyncio.Queue[Change | None], Kind] = {}
        self.refuse_by_status = False
        self._lines: dict[tuple[int, str], bytes] = {}
        store.listeners.append(self._tell)

    def _tell(self, change: Change) -> None:
        for queue, kind in self._queues.items():
            if kind is change.kind:
                queue.put_nowait(change)

    @property
    def open(self) -> int:
        """How many there are."""
        return len(self._queues)

    def close(self, plural: str = "") -> int:
        """End them as a timeout ends them; how many."""
        found = [queue for queue, kind in self._queues.items() if plural in ("", kind.plural)]
        for queue in found:
            queue.put_nowait(None)
        return len(found)

    def begin(self, kind: Kind, namespace: str, request: Request) -> AsyncIterator[bytes]:
        """The stream of a request."""
        asked = request.query.get("resourceVersion", "")
        if asked and not asked.isdigit():
            raise bad_request(
                f'invalid resource version "{asked}": strconv.ParseUint: parsing "{asked}": invalid syntax'
            )
        version = int(asked or 0)
        check = checks_of(kind, request)
        if version and version < self._store.oldest:
            refusal = expired(f"too old resource version: {version} ({self._store.oldest})")
            if self.refuse_by_status:
                raise refusal
            return _one(in_json({"type": "ERROR", "object": refusal.status}) + b"\n")
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        first = []
        if version:
            for change in self._store.since(version, kind):
                queue.put_nowait(change)
        else:
            first = [obj for obj in self._store.list(kind, namespace or None) if check(obj)]
        self._queues[queue] = kind
        seconds = float(request.query.get("timeoutSeconds", "0") or 0) or random.uniform(1800, 3600)
        marks = request.asks("allowWatchBookmarks")
        initial = request.asks("sendInitialEvents")
        return self._stream(kind, namespace, check, queue, first, seconds, marks=marks, initial=initial)

    async def _stream(
        self, kind: Kind, namespace: str, check: Check, queue: asyncio.Queue[Change | None], first: list[Obj],
        seconds: float, *, marks: bool, initial: bool,
    ) -> AsyncIterator[bytes]:  # fmt: skip
        loop = asyncio.get_running_loop()
        end, version = loop.time() + seconds, self._store.version
        next_mark = loop.time() + self.bookmark_s
        try:
            yield b"".join(in_json({"type": "ADDED", "object": obj}) + b"\n" for obj in first)
            if initial:
                yield _bookmark(kind, version, {"k8s.io/initial-events-end": "true"})
            while loop.time() < end:
                wait = min(end, next_mark if marks else end) - loop.time()
                change: Change | None = None
                try:
                    change = await asyncio.wait_for(queue.get(), max(wait, 0.001))
                except TimeoutError:
                    if marks and loop.time() >= next_mark:
                        next_mark = loop.time() + self.bookmark_s
                        yield _bookmark(kind, max(version, self._store.version), {})
                    continue
                if change is None:
                    return
                version = change.version
                if namespace and namespace_of(change.obj) != namespace:
                    continue
                yield self._line(change, check)
        finally:
            self._queues.pop(queue, None)

    def _line(self, change: Change, check: Check) -> bytes:
        """What a watcher is told; nothing of an object that is none of its."""
        now, before = check(change.obj), change.before is not None and check(change.before)
        if change.what == "DELETED":
            now = False
        if not now and not before:
            return b""
        what = "MODIFIED" if now and before else "ADDED" if now else "DELETED"
        key = (change.version, what)
        if key not in self._lines:
            if len(self._lines) > 2000:
                self._lines.clear()
            self._lines[key] = in_json({"type": what, "object": change.obj}) + b"\n"
        return self._lines[key]


async def _one(line: bytes) -> AsyncIterator[bytes]:
    yield line


def _bookmark(kind: Kind, version: int, annotations: dict[str, str]) -> bytes:
    metadata: Obj = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    return (
        in_json(
            {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}}
        )
        + b"\n"
    )
