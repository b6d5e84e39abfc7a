"""An incomplete download: its file, its parts, and the comparison with what the store reports."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import field

from ffdl_batch.attempt.directory_tree import Parts
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.faults import Fault, Mismatch, ObjectChanged, shown
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.digests import (
    count_of_parts,
    digest_of,
    is_md5,
    new_digest,
    part_sizes,
    parts_etag,
    ranges,
)
from ffdl_batch.staging.stores.store import UNKNOWN, Item, KnowsParts

STEP_BYTES = 4 << 20
"""Maximum size of a step of a running digest."""


class RunningDigest:
    """The digest of a file whose parts come in any order. It advances with each part that closes a gap, so the whole
    file need not be read again at the end. Methods may be called from several threads at once."""

    def __init__(self, file: int, name: str) -> None:
        self.name = name
        self._file, self._digest = file, new_digest(name)
        self._at, self._came, self._lock = 0, dict[int, int](), threading.Lock()
        self._buffer = bytearray()

    def came(self, start: int, end: int) -> None:
        """A range is in the file and stays as it is. Raises OSError, and EOFError where it is not."""
        self._came[start] = end
        while self._at in self._came and self._lock.acquire(blocking=False):  # else somebody is at it, and sees it
            try:
                while (until := self._came.pop(self._at, None)) is not None:
                    self._on(until)
            finally:
                self._lock.release()

    def hexdigest(self, size: int) -> str:
        """Return the digest of the whole file, which has all its parts. Raises OSError, EOFError."""
        with self._lock:
            self._on(size)
            return self._digest.hexdigest()

    def _on(self, until: int) -> None:
        """Advance in large steps: after each one, this thread competes with those that download."""
        if self._at < until and not self._buffer:
            self._buffer = bytearray(STEP_BYTES)
        while self._at < until:
            view = memoryview(self._buffer)[: until - self._at]
            size = os.preadv(self._file, [view], self._at)
            if not size:
                raise EOFError
            self._digest.update(view[:size])
            self._at += size


@dataclass(slots=True)
class PartialFile:
    """Descriptors of the file and its directory, and the missing parts."""

    name: str
    item: Item
    parts: Parts
    directory: int
    temporary: str
    file: int
    part_bytes: int
    digests: dict[int, str]
    lock: threading.Lock = field(default_factory=threading.Lock)
    remaining: int = 0
    wrong: Exception | None = None
    running: RunningDigest | None = None

    def ranges(self) -> list[tuple[int, int]]:
        """Of its parts, in order. An empty object has one part, whose reading shows whether it may be read."""
        if self.item.size in (0, UNKNOWN) or not self.item.ranges:
            return [(0, self.item.size)]
        return ranges(self.item.size, self.part_bytes)

    def length(self, number: int) -> int:
        """Return the bytes of a part."""
        start, end = self.ranges()[number]
        return max(0, end - start)

    def needs_digests(self) -> bool:
        """Return whether the MD5 of a part is useful: it is the only part, or one in which the object was stored."""
        return count_of_parts(self.item.etag) > 0 or self.item.size <= self.part_bytes or not self.item.ranges

    def run_digest(self) -> None:
        """Start the digest of the whole file, if the store reports one and there is more than one part."""
        item, found = self.item, self.ranges()
        name = "md5" if is_md5(item.etag) and not item.opaque else next(iter(item.digests), "")
        if not name or len(found) < 2:
            return
        self.running = RunningDigest(self.file, name)
        for number in self.digests:
            self.running.came(*found[number])

    def came(self, number: int) -> None:
        """A part is in the file. Raises OSError, EOFError."""
        if self.running is not None:
            self.running.came(*self.ranges()[number])

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.file)
        os.close(self.directory)


class Verification:
    """Compares files of one transfer with their objects."""

    def __init__(self, route: Route) -> None:
        self._run, self._store = route.run, route.store

    def verify(self, half: PartialFile) -> None:
        """Compare the file with the object. If the store reports nothing about the content, the object must be
        unchanged. Raises ObjectChanged, Mismatch."""
        item = half.item
        is_plain = is_md5(item.etag) and not item.opaque
        if is_plain and _digest(half, "md5") == item.etag:
            return
        if self._agrees(half, item):
            return
        now, size = self._now(item), os.fstat(half.file).st_size
        if is_plain and not now.opaque:
            raise Mismatch("what came is not what its ETag says")
        if not self._agrees(half, now) and now.size not in (UNKNOWN, size):
            raise Mismatch(f"{size} bytes came, and it has {now.size}")

    def look_up(self, key: str) -> Item:
        """Return all that the store reports about an object. Raises Fault."""
        found = self._run.retries.call(lambda: self._store.head(key), shown(key))
        if found is None:
            raise Fault(FaultClass.MISSING, "it was there and is not any more", key)
        return found

    def _agrees(self, half: PartialFile, item: Item) -> bool:
        """Return whether a digest matches; False if there is none. Raises Mismatch."""
        for name, wanted in item.digests.items():
            if _digest(half, name) != wanted:
                raise Mismatch(f"what came is not what its {name} says")
            return True
        if item.opaque:
            return False
        if any(_etag_in_parts(half, size) == item.etag for size in part_sizes(item)):
            return True
        lengths = self._lengths_of_parts(item)
        if not lengths:
            return False
        ends = list(itertools.accumulate(lengths))
        found = [digest_of(half.file, end - length, end) for length, end in zip(lengths, ends, strict=True)]
        if parts_etag(found) != item.etag:
            raise Mismatch("what came is not what its ETag says")
        return True

    def _lengths_of_parts(self, item: Item) -> list[int]:
        """Request the lengths of parts, only if parts of one size do not make the ETag."""
        store = self._store
        if not item.part_bytes or not isinstance(store, KnowsParts):
            return []
        return self._run.retries.call(lambda: store.lengths_of_parts(item), shown(item.key))

    def _now(self, item: Item) -> Item:
        now = self.look_up(item.key)
        if now.etag != item.etag or (not item.etag and now.mtime != item.mtime):
            raise ObjectChanged
        return now


def _digest(half: PartialFile, name: str) -> str:
    size = os.fstat(half.file).st_size
    if name == "md5" and len(half.digests) == 1 and (half.item.size <= half.part_bytes or not half.item.ranges):
        return half.digests[0]
    if half.running is not None and half.running.name == name:
        return half.running.hexdigest(size)
    return digest_of(half.file, 0, size, name)


def _etag_in_parts(half: PartialFile, part_bytes: int) -> str:
    if half.part_bytes == part_bytes and half.item.ranges:
        return parts_etag([half.digests[number] for number in sorted(half.digests)])
    found = ranges(half.item.size, part_bytes)
    return parts_etag([digest_of(half.file, start, end) for start, end in found])
