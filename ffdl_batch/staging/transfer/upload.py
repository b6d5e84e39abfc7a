"""Upload files of a directory. Nothing is ever deleted in the store.

Each object is a consistent copy of a file. If a file was written while it was read, it is uploaded again, at most
CHANGES times, and then stays as it was read last, which is reported. If another run follows (`rest_s`), this run does
not upload it again, and leaves large files that are being written to a later run.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import BinaryIO, cast

from ffdl_batch.attempt.directory_tree import Gone
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault, TemporaryFailure, UnknownUpload, local_fault, located_at, shown
from ffdl_batch.staging.journal import Planned, Settled, Started
from ffdl_batch.staging.object_names import key_of, parts_of
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.digests import (
    count_of_parts,
    digest_of,
    file_chunks,
    is_md5,
    part_sizes,
    parts_etag,
    ranges,
)
from ffdl_batch.staging.stores.store import Item, Sent, StoresInParts
from ffdl_batch.staging.transfer.download import CHANGES
from ffdl_batch.staging.transfer.upload_source import Opened, Slice, Written, version_of
from ffdl_batch.staging.tree import Tree

LEAST_PART_BYTES = 5 << 20
MOST_REFUSED = 20
"""After the store has refused so many names, the upload ends."""
AT_ONCE_BYTES = 1 << 20
"""Files up to this size are read into memory, once."""
LONGEST_WAIT_S = 600.0
"""After this time, a large file is stored even if it is still being written."""


class Upload:
    """One transfer to a store."""

    def __init__(self, route: Route, tree: Tree) -> None:
        self._way, self._tree = route, tree
        self._run, self._store, self._place = route.run, route.store, route.place
        self._parts = route.store if isinstance(route.store, StoresInParts) else None
        self._refused: list[Fault] = []

    def add_planned(self) -> None:
        """Submit all planned files to the workers. Raises what an earlier one raised."""
        for planned in self._run.journal.planned(self._place):
            self.add(planned)

    def add(self, planned: Planned) -> None:
        """Submit one file to the workers. Raises what an earlier one raised."""
        if self._parts is None or planned.item.size <= self._least():
            self._run.workers.submit(partial(self._guarded, planned, partial(self._small, planned)))
            return
        begun: list[Opened] = []
        self._guarded(planned, lambda: begun.extend(self._begin_large(planned)))
        for file in begun:
            todo = [number for number in range(len(file.ranges())) if number not in file.etags]
            file.remaining = len(todo)
            for number in todo:
                job = partial(self._large_part, planned, file, number)
                self._run.workers.submit(partial(self._guarded, planned, job))
            if not todo:
                self._run.workers.submit(partial(self._guarded, planned, partial(self._end_large, planned, file)))

    def abort_old_uploads(self) -> None:
        """Abort multipart uploads of earlier runs whose files are not uploaded any more."""
        if self._parts is None:
            return
        for name, upload in self._run.journal.unfinished(self._place):
            self._abort(name, upload)

    def require_all(self) -> None:
        """Raise Fault if the store refused names."""
        if not self._refused:
            return
        first, others = self._refused[0], len(self._refused) - 1
        if others:
            first.cause += f"; {others} more names were refused, too"
        raise first

    def _guarded(self, planned: Planned, job: Callable[[], None]) -> None:
        with located_at(self._way.transfer.store):
            try:
                job()
            except Fault as fault:
                self._defer(fault)
            except Gone:
                self._run.reporter.skip(f"{shown(planned.name)} is left out: it was removed, or is not a file any more")
            except OSError as error:
                self._skip_unreadable(planned.name, error)

    def _skip_unreadable(self, name: str, error: OSError) -> None:
        """Skip the file. Raises Fault if the error does not concern only this file."""
        try:
            self._run.unreadable.add(name, error)
        except OSError:
            raise local_fault(error, os.path.join(self._tree.root, name)) from error

    def _defer(self, fault: Fault) -> None:
        """Report a name that the store refuses, and continue: it may take other names. Raises Fault if it may not."""
        about_a_name = fault.key and fault.kind in (FaultClass.MISSING, FaultClass.REFUSED)
        if not about_a_name or len(self._refused) >= MOST_REFUSED:
            raise fault
        fault.store = fault.store or self._way.transfer.store
        if not self._way.transfer.only:  # the store was listed, so it is there
            fault.kind, fault.cure = FaultClass.REFUSED, "give it another name, or ask the administrators of the store"
        self._refused.append(fault)
        self._run.reporter.skip(f"{shown(fault.key)} cannot be stored: {fault.cause}")

    def _open(self, planned: Planned) -> Opened:
        file = self._tree.open_file(parts_of(planned.name))
        found = os.fstat(file)
        return Opened(planned.name, planned.item.key, file, found.st_size, found.st_mtime, version_of(found))

    def _small(self, planned: Planned) -> None:
        known = self._run.journal.started(self._place, planned.name)
        if known is not None:  # it was large once
            self._abort(planned.name, known.upload)
        for sending in range(1, CHANGES + 1):
            file = self._open(planned)
            try:
                if self._is_there(file):
                    return
                if file.size > self._least() and not self._may_go(file):  # in a store that takes no parts
                    self._postpone(file)
                    return
                etag = self._run.retries.call(partial(self._put, file), shown(file.key))
                self._run.reporter.moved(file.size)
                if self._is_settled(file, etag, sending):
                    return
            finally:
                os.close(file.file)

    def _is_settled(self, file: Opened, etag: str, sending: int) -> bool:
        """Return whether this file needs no further attempt."""
        if file.is_as_it_was():
            self._run.journal.settle(self._place, file.name, Settled(file.version, etag))
        elif self._run.task.rest_s:
            self._run.journal.settle(self._place, file.name, Settled("", etag))
            self._run.reporter.later()
        elif sending < CHANGES:
            self._run.reporter.retry(f"{shown(file.name)} was written while it was read; it is sent again", 0)
            return False
        else:
            self._run.journal.forget(self._place, file.name)
            self._run.reporter.note(f"{shown(file.name)} was written each time it was read; it is stored as read last")
        self._run.reporter.finished()
        return True

    def _put(self, file: Opened) -> str:
        found = os.fstat(file.file)
        file.size, file.mtime, file.version = found.st_size, found.st_mtime, version_of(found)
        return self._store.put(file.key, self._sent(file, 0, file.size))

    def _sent(self, file: Opened, start: int, end: int) -> Sent:
        try:
            if end - start <= AT_ONCE_BYTES:
                data = b"".join(file_chunks(file.file, start, end))
                return Sent(data, end - start, hashlib.md5(data, usedforsecurity=False).hexdigest())
            md5 = digest_of(file.file, start, end)
        except EOFError:
            if file.upload and self._is_postponed(file):
                raise Written from None
            raise TemporaryFailure("the file became shorter while it was read") from None
        body = cast(BinaryIO, Slice(file.file, start, end, self._run.stop))
        return Sent(body, end - start, md5)

    def _is_there(self, file: Opened) -> bool:
        """Return whether the store has it, or has another version that stays."""
        there = self._run.journal.stored_item(self._place, file.name)
        if there is None:
            return False
        known = self._run.journal.settled(self._place, file.name)
        same = known == Settled(file.version, there.etag) or (
            there.size == file.size and self._etag_like(file, there) == there.etag
        )
        if same:
            self._run.journal.settle(self._place, file.name, Settled(file.version, there.etag))
        elif not (self._is_brought(file) or (self._run.task.keep_newer and there.mtime > file.mtime)):
            return False
        self._run.reporter.kept(file.size)
        return True

    def _is_brought(self, file: Opened) -> bool:
        """Return whether the file was only brought here, so that another process stored the version that differs."""
        return self._run.brought is not None and self._run.brought.has_brought(file.name, file.version)

    def _etag_like(self, file: Opened, there: Item) -> str:
        """Return the ETag that an object with this file's content would have; "" if unknown."""
        try:
            if is_md5(there.etag):
                return digest_of(file.file, 0, file.size)
            usual = () if self._parts is None else (self._part_bytes(file.size),)
            for part_bytes in dict.fromkeys((*usual, *part_sizes(there))):
                found = ranges(file.size, part_bytes)
                if count_of_parts(there.etag) == len(found):
                    etag = parts_etag([digest_of(file.file, start, end) for start, end in found])
                    if etag == there.etag:
                        return etag
        except EOFError:
            return ""
        return ""

    def _least(self) -> int:
        """Return the maximum size of a file that is not uploaded in parts."""
        return max(self._run.task.part_bytes, LEAST_PART_BYTES)

    def _part_bytes(self, size: int) -> int:
        return max(self._least(), -(-size // self._in_parts().most_parts))

    def _begin_large(self, planned: Planned) -> list[Opened]:
        """Return the file with the parts of an earlier run; [] if the store has it."""
        file = self._open(planned)
        if self._is_there(file):
            os.close(file.file)
            return []
        known = self._run.journal.started(self._place, file.name)
        if known is not None and known.version == file.version:
            file.upload, file.part_bytes = known.upload, known.part_bytes
            file.etags = self._run.journal.parts(self._place, file.name)
            found = file.ranges()
            self._run.reporter.had(sum(found[number][1] - found[number][0] for number in file.etags))
            return [file]
        if known is not None:
            self._abort(file.name, known.upload)
        if not self._may_go(file):
            self._postpone(file)
            os.close(file.file)
            return []
        self._begin_upload(file)
        return [file]

    def _may_go(self, file: Opened) -> bool:
        """Return whether the file is not being written, or has waited too long."""
        rest_s, now = self._run.task.rest_s, time.time()
        if not rest_s:
            return True
        seen, since = self._run.journal.waiting(self._place, file.name) or ("", now)
        file.is_urgent = now - since >= LONGEST_WAIT_S
        return file.is_urgent or now - file.mtime >= rest_s or seen == file.version

    def _postpone(self, file: Opened) -> None:
        """Leave the file to a later run."""
        _, since = self._run.journal.waiting(self._place, file.name) or ("", time.time())
        self._run.journal.wait(self._place, file.name, version_of(os.fstat(file.file)), since)
        self._run.reporter.finished()
        self._run.reporter.later()

    def _is_postponed(self, file: Opened) -> bool:
        """Return whether the file is being written, and can wait."""
        return bool(self._run.task.rest_s) and not file.is_urgent and not file.is_as_it_was()

    def _begin_upload(self, file: Opened) -> None:
        parts = self._in_parts()
        found = os.fstat(file.file)
        file.size, file.mtime, file.version = found.st_size, found.st_mtime, version_of(found)
        file.part_bytes, file.etags, file.wrong = self._part_bytes(file.size), {}, None
        file.upload = self._run.retries.call(lambda: parts.begin(file.key), shown(file.key))
        started = Started(file.version, file.upload, file.part_bytes)
        self._run.journal.start(self._place, file.name, started)

    def _large_part(self, planned: Planned, file: Opened, number: int) -> None:
        if file.wrong is None:
            try:
                if self._is_postponed(file):
                    raise Written
                self._part(file, number)
            except (UnknownUpload, Written) as why:
                file.wrong = why
            except OSError as error:  # in the middle of a file that could be opened: no other part is to go
                raise local_fault(error, os.path.join(self._tree.root, file.name)) from error
        with file.lock:
            file.remaining -= 1
            is_last = not file.remaining
        if is_last:
            self._end_large(planned, file)

    def _part(self, file: Opened, number: int) -> None:
        """Upload a part. Raises UnknownUpload, Fault."""
        parts, (start, end) = self._in_parts(), file.ranges()[number]

        def put() -> str:
            return parts.put_part(file.key, file.upload, number + 1, self._sent(file, start, end))

        file.etags[number] = self._run.retries.call(put, shown(file.key))
        self._run.journal.part(self._place, file.name, number, file.etags[number])
        self._run.reporter.moved(end - start)

    def _end_large(self, planned: Planned, file: Opened) -> None:
        """Make the object of its parts. Upload it again if the file changed, or if the store forgot the upload."""
        try:
            for sending in range(1, CHANGES + 1):
                if isinstance(file.wrong, Written) or self._is_postponed(file):
                    self._abort(file.name, file.upload)
                    self._run.reporter.moved(-file.sent_bytes())
                    self._postpone(file)
                    return
                if file.wrong is None and (file.is_urgent or sending == CHANGES or file.is_as_it_was()):
                    with suppress(UnknownUpload):
                        self._is_settled(file, self._complete(file), CHANGES)
                        return
                    file.wrong = UnknownUpload()
                why = "the store has forgotten its parts" if file.wrong else "it was written while it was read"
                self._run.reporter.retry(f"{shown(file.name)}: {why}; it is sent again", 0)
                if file.wrong is None:
                    self._abort(file.name, file.upload)
                self._run.reporter.moved(-file.sent_bytes())
                self._begin_upload(file)
                for number in range(len(file.ranges())):
                    self._try_part(file, number)
            raise Fault(FaultClass.CORRUPT, f"the store forgot its parts {CHANGES} times in a row", planned.item.key)
        finally:
            os.close(file.file)

    def _try_part(self, file: Opened, number: int) -> None:
        try:
            self._part(file, number)
        except (UnknownUpload, Written) as why:
            file.wrong = why

    def _complete(self, file: Opened) -> str:
        """Return the object's ETag. Raises UnknownUpload."""
        parts, etags = self._in_parts(), [file.etags[number] for number in sorted(file.etags)]

        def complete() -> str:
            try:
                return parts.complete(file.key, file.upload, etags)
            except UnknownUpload:
                made = self._store.head(file.key)  # by the try before, whose answer was lost
                if made is None or made.size != file.size or made.etag != parts_etag(etags):
                    raise
                return made.etag

        return self._run.retries.call(complete, shown(file.key))

    def _abort(self, name: str, upload: str) -> None:
        parts, key = self._in_parts(), key_of(self._way.transfer.prefix, name)
        self._run.retries.call(lambda: parts.abort(key, upload), shown(name))
        self._run.journal.forget(self._place, name)

    def _in_parts(self) -> StoresInParts:
        assert self._parts is not None
        return self._parts
