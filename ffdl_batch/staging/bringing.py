"""The way in: objects become files of a directory.

A file has a name of its own until it is whole and has been held against what the store says of it; then it is renamed.
Large ones come in parts, on several connections, and the journal has the parts that came. Nothing is synchronised: a
node that lost power has lost the attempt, and its journal says nothing to the next boot.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ffdl_batch.domain.staging import FaultClass
from ffdl_batch.staging.digests import count_of_parts, digest_of, is_md5, new_digest, part_sizes, parts_etag, ranges
from ffdl_batch.staging.faults import Changed, Fault, Mismatch, Passing, Skip, Stopped, at_store, of_local, shown
from ffdl_batch.staging.journal import Planned, Settled, Started
from ffdl_batch.staging.names import parts_of
from ffdl_batch.staging.stores.store import CHUNK_BYTES, UNKNOWN, Item, KnowsParts
from ffdl_batch.staging.tree import Parts, Tree, open_own
from ffdl_batch.staging.work import Way

CHANGES = 3
"""Readings of an object that is never the same, or never what it is said to be."""
PROGRESS_BYTES = 1 << 20
"""What came between two failures of a reading, so that the second is a first one."""
LARGEST_PART_BYTES = 512 << 20
_ZEROS = bytes(CHUNK_BYTES)


def version_of(found: os.stat_result) -> str:
    """Of a local file: another one after each writing."""
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


@dataclass(slots=True)
class _Half:
    """A file that is not whole: descriptors of it and its directory, and the parts that are to come."""

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

    def needs_digests(self) -> bool:
        """Whether the MD5 of a part says anything: of the only one, or of one that the object was stored in."""
        return count_of_parts(self.item.etag) > 0 or self.item.size <= self.part_bytes or not self.item.ranges

    def close(self) -> None:
        os.close(self.file)
        os.close(self.directory)


class Bringing:
    """One transfer on its way in."""

    def __init__(self, way: Way, tree: Tree) -> None:
        self._way, self._tree = way, tree
        self._run, self._store, self._place = way.run, way.store, way.place

    def bring(self, planned: Planned) -> None:
        """Have one file brought by the workers. Raises what an earlier one did."""
        submit = self._run.workers.submit
        if planned.item.size <= self._run.task.part_bytes:
            submit(partial(self._guarded, planned, partial(self._small, planned)))
            return
        half: list[_Half] = []
        self._guarded(planned, lambda: half.extend(self._begin_large(planned)))
        for begun in half:
            todo = [number for number in range(len(self._ranges(begun))) if number not in begun.digests]
            begun.remaining = len(todo)
            for number in todo:
                submit(partial(self._guarded, planned, partial(self._large_part, planned, begun, number)))
            if not todo:
                submit(partial(self._guarded, planned, partial(self._end_large, planned, begun)))

    def _guarded(self, planned: Planned, job: Callable[[], None]) -> None:
        """Names that cannot be are told and left out; errors of this machine become faults."""
        with at_store(self._way.transfer.store):
            try:
                job()
            except Skip as why:
                self._run.teller.skip(f"{shown(planned.item.key)} is left out: {why}")
            except OSError as error:
                raise of_local(error, os.path.join(self._tree.root, planned.name)) from error

    def _small(self, planned: Planned) -> None:
        if not self._is_there(planned):
            self._whole(planned)

    def _is_there(self, planned: Planned) -> bool:
        known = self._run.journal.settled(self._place, planned.name)
        if known is None or known.etag != planned.item.etag or not known.etag:
            return False
        found = self._tree.status(parts_of(planned.name))
        if found is None or version_of(found) != known.version:
            return False
        self._run.teller.kept(found.st_size)
        return True

    def _begin_large(self, planned: Planned) -> list[_Half]:
        """The file with the parts that an earlier run brought; none where it is there."""
        if self._is_there(planned):
            return []
        item = planned.item
        if count_of_parts(item.etag):
            item = self._looked_up(item.key)
        half = self._open(planned.name, item, anew=False)
        self._run.teller.had(sum(self._length(half, number) for number in half.digests))
        return [half]

    def _large_part(self, planned: Planned, half: _Half, number: int) -> None:
        if half.wrong is None:
            try:
                self._part(half, number)
            except (Changed, Mismatch) as why:
                half.wrong = why
        with half.lock:
            half.remaining -= 1
            is_last = not half.remaining
        if is_last:
            self._end_large(planned, half)

    def _end_large(self, planned: Planned, half: _Half) -> None:
        try:
            if half.wrong is not None:
                raise half.wrong
            self._finish(half)
        except (Changed, Mismatch) as why:
            self._again(half, why)
            self._whole(Planned(planned.name, self._looked_up(planned.item.key)), 2)
        finally:
            half.close()

    def _whole(self, planned: Planned, reading: int = 1) -> None:
        """Bring the file, part by part; it is read anew while it changes. Raises Fault, Skip, OSError."""
        item = planned.item
        while True:
            half = self._open(planned.name, item, anew=True)
            try:
                for number in range(max(1, len(self._ranges(half))) if item.size else 0):
                    self._part(half, number)
                self._finish(half)
                return
            except (Changed, Mismatch) as why:
                if reading >= CHANGES:
                    raise Fault(FaultClass.CORRUPT, f"{_said(why)} {CHANGES} times in a row", item.key) from why
                self._again(half, why)
            finally:
                half.close()
            reading += 1
            item = self._looked_up(item.key)

    def _again(self, half: _Half, why: Exception) -> None:
        done = sum(self._length(half, number) for number in half.digests)
        self._run.teller.moved(-done)
        self._run.journal.forget(self._place, half.name)
        self._run.teller.retry(f"{shown(half.item.key)}: {_said(why)}; it is read again", 0)

    def _looked_up(self, key: str) -> Item:
        found = self._run.patience.with_tries(lambda: self._store.head(key), shown(key))
        if found is None:
            raise Fault(FaultClass.MISSING, "it was there and is not any more", key)
        return found

    def _open(self, name: str, item: Item, *, anew: bool) -> _Half:
        parts = parts_of(name)
        temporary = f".ffdl-{hashlib.sha256(parts[-1].encode()).hexdigest()[:24]}.part"
        version = f"{item.etag} {item.size} {item.mtime}"
        journal, place = self._run.journal, self._place
        known = None if anew or not item.etag else journal.started(place, name)
        with self._tree.directory(parts[:-1], make=True) as found:
            directory = os.dup(found)
        try:
            file = open_own(temporary, directory)
        except OSError:
            os.close(directory)
            raise
        half = _Half(name, item, parts, directory, temporary, file, self._part_bytes(item), {})
        goes_on = known is not None and known.version == version and os.fstat(file).st_size == item.size
        if goes_on and known is not None:
            half.part_bytes, half.digests = known.part_bytes, journal.parts(place, name)
            return half
        os.ftruncate(file, 0)
        os.ftruncate(file, max(item.size, 0))
        if len(self._ranges(half)) > 1:
            journal.start(place, name, Started(version, "", half.part_bytes))
        return half

    def _part_bytes(self, item: Item) -> int:
        """As the object was stored, where that can be: then the parts' own digests are its ETag."""
        wanted = self._run.task.part_bytes
        stored = next(iter(part_sizes(item)), 0) if item.part_bytes else 0
        return stored if wanted / 4 <= stored <= LARGEST_PART_BYTES else wanted

    @staticmethod
    def _ranges(half: _Half) -> list[tuple[int, int]]:
        if half.item.size == UNKNOWN or not half.item.ranges:
            return [(0, half.item.size)]
        return ranges(half.item.size, half.part_bytes)

    def _length(self, half: _Half, number: int) -> int:
        start, end = self._ranges(half)[number]
        return max(0, end - start)

    def _part(self, half: _Half, number: int) -> None:
        found = self._ranges(half)
        half.digests[number] = self._read(half, *found[number])
        if len(found) > 1:
            self._run.journal.part(self._place, half.name, number, half.digests[number])

    def _read(self, half: _Half, start: int, end: int) -> str:
        """Bring a range into the file; its MD5, or "". Goes on where it broke. Raises Changed, Fault, Stopped."""
        item, teller = half.item, self._run.teller
        at, tried_at, failed = start, start, 0
        digest = new_digest("md5") if half.needs_digests() else None
        while True:
            try:
                with self._store.read(item, at, end) as chunks:
                    for data in chunks:
                        if self._run.stop.is_set():
                            raise Stopped
                        if end != UNKNOWN and at + len(data) > end:
                            raise Mismatch("more came than was asked for")
                        self._write(half, data, at)
                        if digest is not None:
                            digest.update(data)
                        at += len(data)
                        teller.moved(len(data))
                if end != UNKNOWN and at < end:
                    raise Passing(f"the answer ended {end - at} bytes early")
                return "" if digest is None else digest.hexdigest()
            except Passing as why:
                failed = 1 if at - tried_at >= PROGRESS_BYTES else failed + 1
                tried_at = at
                self._run.patience.bear(failed, why, shown(item.key))
                if end == UNKNOWN or not item.ranges:
                    teller.moved(start - at)
                    at, digest = start, new_digest("md5")
                    os.ftruncate(half.file, 0)

    @staticmethod
    def _write(half: _Half, data: bytes, at: int) -> None:
        """Zeros stay holes of the file."""
        if data == _ZEROS[: len(data)] and len(data) <= CHUNK_BYTES and half.item.size != UNKNOWN:
            return
        try:
            rest = memoryview(data)
            while rest:
                written = os.pwrite(half.file, rest, at)
                rest, at = rest[written:], at + written
        except OSError as error:
            raise of_local(error, half.name) from error

    def _finish(self, half: _Half) -> None:
        """Hold the file against its object and give it its name. Raises Changed, Mismatch, Skip, OSError."""
        if half.item.size >= 0:
            os.ftruncate(half.file, half.item.size)
        self._hold_against(half)
        if half.item.mtime > 0:
            os.utime(half.file, (half.item.mtime, half.item.mtime))
        os.close(os.dup(half.file))  # where a network file system says that there was no room
        self._tree.place(half.temporary, half.parts, half.directory)
        self._run.journal.settle(self._place, half.name, Settled(version_of(os.fstat(half.file)), half.item.etag))
        self._run.teller.finished()

    def _hold_against(self, half: _Half) -> None:
        """Raises Changed, Mismatch. Where the store says nothing of the content, the object must be the same still."""
        item = half.item
        is_plain = is_md5(item.etag) and not item.opaque
        if is_plain and self._digest(half, "md5") == item.etag:
            return
        if self._agrees(half, item):
            return
        now, size = self._now(item), os.fstat(half.file).st_size
        if is_plain and not now.opaque:
            raise Mismatch("what came is not what its ETag says")
        if not self._agrees(half, now) and now.size not in (UNKNOWN, size):
            raise Mismatch(f"{size} bytes came, and it has {now.size}")

    def _agrees(self, half: _Half, item: Item) -> bool:
        """Whether a digest agrees; False where there is none. Raises Mismatch."""
        for name, wanted in item.digests.items():
            if self._digest(half, name) != wanted:
                raise Mismatch(f"what came is not what its {name} says")
            return True
        if item.opaque:
            return False
        sizes = part_sizes(item)
        if any(self._etag_in_parts(half, size) == item.etag for size in sizes):
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
        now = self._looked_up(item.key)
        if now.etag != item.etag or (not item.etag and now.mtime != item.mtime):
            raise Changed
        return now

    @staticmethod
    def _digest(half: _Half, name: str) -> str:
        size = os.fstat(half.file).st_size
        if name == "md5" and len(half.digests) == 1 and (half.item.size <= half.part_bytes or not half.item.ranges):
            return half.digests[0]
        return digest_of(half.file, 0, size, name)

    @staticmethod
    def _etag_in_parts(half: _Half, part_bytes: int) -> str:
        if half.part_bytes == part_bytes and half.item.ranges:
            return parts_etag([half.digests[number] for number in sorted(half.digests)])
        found = ranges(half.item.size, part_bytes)
        return parts_etag([digest_of(half.file, start, end) for start, end in found])


def _said(why: Exception) -> str:
    return str(why) or "it was changed while it was read"
