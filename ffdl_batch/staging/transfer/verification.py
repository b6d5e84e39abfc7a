"""Holds what came against what the store says of it."""

from __future__ import annotations

import itertools
import os

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Changed, Fault, Mismatch, shown
from ffdl_batch.staging.run_context import Way
from ffdl_batch.staging.stores.digests import digest_of, is_md5, part_sizes, parts_etag, ranges
from ffdl_batch.staging.stores.store import UNKNOWN, Item, KnowsParts
from ffdl_batch.staging.transfer.partial_download import Half


class Verifying:
    """Of one transfer."""

    def __init__(self, way: Way) -> None:
        self._run, self._store = way.run, way.store

    def hold_against(self, half: Half) -> None:
        """Raises Changed, Mismatch. Where the store says nothing of the content, the object must be the same still."""
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

    def looked_up(self, key: str) -> Item:
        """All that the store knows of an object. Raises Fault."""
        found = self._run.patience.with_tries(lambda: self._store.head(key), shown(key))
        if found is None:
            raise Fault(FaultClass.MISSING, "it was there and is not any more", key)
        return found

    def _agrees(self, half: Half, item: Item) -> bool:
        """Whether a digest agrees; False where there is none. Raises Mismatch."""
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
        """Asked for only where parts of one size do not make the ETag."""
        store = self._store
        if not item.part_bytes or not isinstance(store, KnowsParts):
            return []
        return self._run.patience.with_tries(lambda: store.lengths_of_parts(item), shown(item.key))

    def _now(self, item: Item) -> Item:
        now = self.looked_up(item.key)
        if now.etag != item.etag or (not item.etag and now.mtime != item.mtime):
            raise Changed
        return now


def _digest(half: Half, name: str) -> str:
    size = os.fstat(half.file).st_size
    if name == "md5" and len(half.digests) == 1 and (half.item.size <= half.part_bytes or not half.item.ranges):
        return half.digests[0]
    if half.running is not None and half.running.name == name:
        return half.running.hexdigest(size)
    return digest_of(half.file, 0, size, name)


def _etag_in_parts(half: Half, part_bytes: int) -> str:
    if half.part_bytes == part_bytes and half.item.ranges:
        return parts_etag([half.digests[number] for number in sorted(half.digests)])
    found = ranges(half.item.size, part_bytes)
    return parts_etag([digest_of(half.file, start, end) for start, end in found])
