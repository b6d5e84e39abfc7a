"""The way out: files of a directory become objects. Nothing is ever deleted in the store.

A file is stored as it is at one time: where it was written meanwhile it is sent again, CHANGES times at most, and then
as it was read last, which is told.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, cast

from ffdl_batch.domain.staging import FaultClass
from ffdl_batch.staging.bringing import CHANGES, version_of
from ffdl_batch.staging.digests import count_of_parts, digest_of, is_md5, parts_etag, ranges
from ffdl_batch.staging.faults import Fault, NoUpload, Passing, Stopped, at_store, of_local, shown
from ffdl_batch.staging.journal import Planned, Settled, Started
from ffdl_batch.staging.names import key_of, parts_of
from ffdl_batch.staging.stores.store import CHUNK_BYTES, Item, Sent, StoresInParts
from ffdl_batch.staging.tree import Gone, Tree
from ffdl_batch.staging.work import Way

LEAST_PART_BYTES = 5 << 20


class Slice(io.RawIOBase):
    """A range of an open file, read without moving its position. `stop` ends it early with Stopped."""

    def __init__(self, file: int, start: int, end: int, stop: threading.Event) -> None:
        self._file, self._start, self._end, self._stop = file, start, end, stop
        self._at = start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: self._start, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = max(self._start, min(base + offset, self._end))
        return self.tell()

    def tell(self) -> int:
        return self._at - self._start

    def read(self, size: int = -1) -> bytes:
        if self._stop.is_set():
            raise Stopped
        rest = self._end - self._at
        data = os.pread(self._file, min(CHUNK_BYTES, rest) if size < 0 else min(size, rest), self._at)
        if rest and size and not data:
            raise EOFError
        self._at += len(data)
        return data

    def __len__(self) -> int:
        return self._end - self._start


@dataclass(slots=True)
class _Open:
    """A local file that is being sent: its descriptor, and how it was when it was opened."""

    name: str
    key: str
    file: int
    size: int
    mtime: float
    version: str
    upload: str = ""
    part_bytes: int = 0
    etags: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    remaining: int = 0
    wrong: NoUpload | None = None

    def is_as_it_was(self) -> bool:
        return version_of(os.fstat(self.file)) == self.version


class Sending:
    """One transfer on its way out."""

    def __init__(self, way: Way, tree: Tree) -> None:
        self._way, self._tree = way, tree
        self._run, self._store, self._place = way.run, way.store, way.place
        self._parts = cast(StoresInParts, way.store) if hasattr(way.store, "begin") else None

    def send(self, planned: Planned) -> None:
        """Have one file sent by the workers. Raises what an earlier one did."""
        if self._parts is None or planned.item.size <= max(self._run.task.part_bytes, LEAST_PART_BYTES):
            self._run.workers.submit(partial(self._guarded, planned, partial(self._small, planned)))
            return
        begun: list[_Open] = []
        self._guarded(planned, lambda: begun.extend(self._begin_large(planned)))
        for file in begun:
            todo = [number for number in range(len(self._ranges(file))) if number not in file.etags]
            file.remaining = len(todo)
            for number in todo:
                job = partial(self._large_part, planned, file, number)
                self._run.workers.submit(partial(self._guarded, planned, job))
            if not todo:
                self._run.workers.submit(partial(self._guarded, planned, partial(self._end_large, planned, file)))

    def give_up_left_uploads(self) -> None:
        """Uploads in parts that earlier runs began, of files that are not sent any more."""
        if self._parts is None:
            return
        for name, upload in self._run.journal.unfinished(self._place):
            self._give_up(name, upload)

    def _guarded(self, planned: Planned, job: Callable[[], None]) -> None:
        with at_store(self._way.transfer.store):
            try:
                job()
            except Gone:
                self._run.teller.skip(f"{shown(planned.name)} is left out: it was removed, or is no file any more")
            except OSError as error:
                raise of_local(error, os.path.join(self._tree.root, planned.name)) from error

    def _open(self, planned: Planned) -> _Open:
        file = self._tree.open_file(parts_of(planned.name))
        found = os.fstat(file)
        return _Open(planned.name, planned.item.key, file, found.st_size, found.st_mtime, version_of(found))

    def _small(self, planned: Planned) -> None:
        known = self._run.journal.started(self._place, planned.name)
        if known is not None:  # it was large once
            self._give_up(planned.name, known.upload)
        for sending in range(1, CHANGES + 1):
            file = self._open(planned)
            try:
                if self._is_there(file):
                    return
                etag = self._run.patience.with_tries(partial(self._put, file), shown(file.key))
                self._run.teller.moved(file.size)
                if self._is_settled(file, etag, sending):
                    return
            finally:
                os.close(file.file)

    def _is_settled(self, file: _Open, etag: str, sending: int) -> bool:
        """Whether it is over with this file."""
        if file.is_as_it_was():
            self._run.journal.settle(self._place, file.name, Settled(file.version, etag))
        elif sending < CHANGES:
            self._run.teller.retry(f"{shown(file.name)} was written while it was read; it is sent again", 0)
            return False
        else:
            self._run.journal.forget(self._place, file.name)
            self._run.teller.note(f"{shown(file.name)} was written each time it was read; it is stored as read last")
        self._run.teller.finished()
        return True

    def _put(self, file: _Open) -> str:
        found = os.fstat(file.file)
        file.size, file.mtime, file.version = found.st_size, found.st_mtime, version_of(found)
        return self._store.put(file.key, self._sent(file, 0, file.size))

    def _sent(self, file: _Open, start: int, end: int) -> Sent:
        try:
            md5 = digest_of(file.file, start, end)
        except EOFError:
            raise Passing("the file became shorter while it was read") from None
        body = cast(BinaryIO, Slice(file.file, start, end, self._run.stop))
        return Sent(body, end - start, md5)

    def _is_there(self, file: _Open) -> bool:
        """Whether the store has it, or has something later that stays."""
        there = self._run.journal.there(self._place, file.name)
        if there is None:
            return False
        known = self._run.journal.settled(self._place, file.name)
        same = known == Settled(file.version, there.etag) or (
            there.size == file.size and self._etag_like(file, there) == there.etag
        )
        if same:
            self._run.journal.settle(self._place, file.name, Settled(file.version, there.etag))
        elif not (self._run.task.keep_newer and there.mtime > file.mtime):
            return False
        self._run.teller.kept(file.size)
        return True

    def _etag_like(self, file: _Open, there: Item) -> str:
        """What the ETag of the object would be if it was this file's; "" where that cannot be known."""
        try:
            if is_md5(there.etag):
                return digest_of(file.file, 0, file.size)
            found = ranges(file.size, self._part_bytes(file.size)) if count_of_parts(there.etag) else []
            if found and count_of_parts(there.etag) == len(found):
                return parts_etag([digest_of(file.file, start, end) for start, end in found])
        except EOFError:
            return ""
        return ""

    def _part_bytes(self, size: int) -> int:
        least = max(self._run.task.part_bytes, LEAST_PART_BYTES)
        return max(least, -(-size // self._in_parts().most_parts))

    def _ranges(self, file: _Open) -> list[tuple[int, int]]:
        return ranges(file.size, file.part_bytes)

    def _begin_large(self, planned: Planned) -> list[_Open]:
        """The file with the parts that an earlier run sent; none where the store has it."""
        file = self._open(planned)
        if self._is_there(file):
            os.close(file.file)
            return []
        known = self._run.journal.started(self._place, file.name)
        if known is not None and known.version == file.version:
            file.upload, file.part_bytes = known.upload, known.part_bytes
            file.etags = self._run.journal.parts(self._place, file.name)
            found = self._ranges(file)
            self._run.teller.had(sum(found[number][1] - found[number][0] for number in file.etags))
            return [file]
        if known is not None:
            self._give_up(file.name, known.upload)
        self._begin_upload(file)
        return [file]

    def _begin_upload(self, file: _Open) -> None:
        parts = self._in_parts()
        found = os.fstat(file.file)
        file.size, file.mtime, file.version = found.st_size, found.st_mtime, version_of(found)
        file.part_bytes, file.etags, file.wrong = self._part_bytes(file.size), {}, None
        file.upload = self._run.patience.with_tries(lambda: parts.begin(file.key), shown(file.key))
        started = Started(file.version, file.upload, file.part_bytes)
        self._run.journal.start(self._place, file.name, started)

    def _large_part(self, planned: Planned, file: _Open, number: int) -> None:
        if file.wrong is None:
            try:
                self._part(file, number)
            except NoUpload as why:
                file.wrong = why
        with file.lock:
            file.remaining -= 1
            is_last = not file.remaining
        if is_last:
            self._end_large(planned, file)

    def _part(self, file: _Open, number: int) -> None:
        """Send a part. Raises NoUpload, Fault."""
        parts, (start, end) = self._in_parts(), self._ranges(file)[number]

        def put() -> str:
            return parts.put_part(file.key, file.upload, number + 1, self._sent(file, start, end))

        file.etags[number] = self._run.patience.with_tries(put, shown(file.key))
        self._run.journal.part(self._place, file.name, number, file.etags[number])
        self._run.teller.moved(end - start)

    def _end_large(self, planned: Planned, file: _Open) -> None:
        """Make the object of its parts; send it anew while the file changes, or where the store forgot the upload."""
        try:
            for sending in range(1, CHANGES + 1):
                if file.wrong is None and (sending == CHANGES or file.is_as_it_was()):
                    with suppress(NoUpload):
                        self._is_settled(file, self._complete(file), CHANGES)
                        return
                    file.wrong = NoUpload()
                why = "the store has forgotten its parts" if file.wrong else "it was written while it was read"
                self._run.teller.retry(f"{shown(file.name)}: {why}; it is sent again", 0)
                if file.wrong is None:
                    self._give_up(file.name, file.upload)
                self._run.teller.moved(-self._sent_bytes(file))
                self._begin_upload(file)
                for number in range(len(self._ranges(file))):
                    self._try_part(file, number)
            raise Fault(FaultClass.CORRUPT, f"the store forgot its parts {CHANGES} times in a row", planned.item.key)
        finally:
            os.close(file.file)

    def _try_part(self, file: _Open, number: int) -> None:
        try:
            self._part(file, number)
        except NoUpload as why:
            file.wrong = why

    def _sent_bytes(self, file: _Open) -> int:
        found = self._ranges(file)
        return sum(found[number][1] - found[number][0] for number in file.etags)

    def _complete(self, file: _Open) -> str:
        """The object's ETag. Raises NoUpload."""
        parts, etags = self._in_parts(), [file.etags[number] for number in sorted(file.etags)]

        def complete() -> str:
            try:
                return parts.complete(file.key, file.upload, etags)
            except NoUpload:
                made = self._store.head(file.key)  # by the try before, whose answer was lost
                if made is None or made.size != file.size or made.etag != parts_etag(etags):
                    raise
                return made.etag

        return self._run.patience.with_tries(complete, shown(file.key))

    def _give_up(self, name: str, upload: str) -> None:
        parts, key = self._in_parts(), key_of(self._way.transfer.prefix, name)
        self._run.patience.with_tries(lambda: parts.abort(key, upload), shown(name))
        self._run.journal.forget(self._place, name)

    def _in_parts(self) -> StoresInParts:
        assert self._parts is not None
        return self._parts
