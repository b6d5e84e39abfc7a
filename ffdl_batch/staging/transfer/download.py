"""Download objects into a directory.

An incomplete file has a temporary name. When it is complete and matches what the store reports, it is renamed. Large
files come in parts, on several connections, and the journal records the parts. Nothing is synchronised: a node that
lost power has lost the attempt, and the next boot ignores its journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ffdl_batch.attempt.directory_tree import Gone
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.host.file_attributes import write_all, write_sparse
from ffdl_batch.staging.faults import (
    Denied,
    Fault,
    Mismatch,
    ObjectChanged,
    Skip,
    Stopped,
    TemporaryFailure,
    UnreadableObject,
    local_fault,
    located_at,
    shown,
)
from ffdl_batch.staging.journal import Planned, Settled, Started
from ffdl_batch.staging.object_names import part_name, parts_of
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.digests import count_of_parts, has_etag, new_digest, part_sizes
from ffdl_batch.staging.stores.store import UNKNOWN, Item
from ffdl_batch.staging.transfer.existing_files import has_time_of
from ffdl_batch.staging.transfer.partial_download import PartialFile, Verification
from ffdl_batch.staging.transfer.upload_source import version_of
from ffdl_batch.staging.tree import Tree, open_own

CHANGES = 3
"""Maximum number of readings of an object that changes, or never matches."""
PROGRESS_BYTES = 1 << 20
"""If so much came between two failures, the second counts as a first one."""
LARGEST_PART_BYTES = 512 << 20


class Download:
    """One transfer from a store."""

    def __init__(self, route: Route, tree: Tree) -> None:
        self._way, self._tree = route, tree
        self._run, self._store, self._place = route.run, route.store, route.place
        self._verification = Verification(route)

    def add(self, planned: Planned) -> None:
        """Submit one file to the workers. Raises what an earlier one raised."""
        submit = self._run.workers.submit
        if planned.item.size <= self._run.task.part_bytes:
            submit(partial(self._guarded, planned, partial(self._small, planned)))
            return
        half: list[PartialFile] = []
        self._guarded(planned, lambda: half.extend(self._begin_large(planned)))
        for begun in half:
            todo = [number for number in range(len(begun.ranges())) if number not in begun.digests]
            begun.remaining = len(todo)
            for number in todo:
                submit(partial(self._guarded, planned, partial(self._large_part, planned, begun, number)))
            if not todo:
                submit(partial(self._guarded, planned, partial(self._end_large, planned, begun)))

    def _guarded(self, planned: Planned, job: Callable[[], None]) -> None:
        """Report and skip names that no file can have. Convert errors of this machine to faults."""
        with located_at(self._way.transfer.store):
            try:
                job()
            except Skip as why:
                self._run.reporter.skip(f"{shown(planned.item.key)} is left out: {why}")
            except UnreadableObject as why:
                self._run.unreadable.add(planned.name, why.error)
            except Denied as fault:
                self._run.unreadable.deny(planned.name, fault)
            except OSError as error:
                raise local_fault(error, os.path.join(self._tree.root, planned.name)) from error

    def _small(self, planned: Planned) -> None:
        if not self._is_there(planned):
            self._whole(planned)

    def _is_there(self, planned: Planned) -> bool:
        """Return whether the file is in place: by the journal, or else by its content. If the store has no ETag, the
        file must be in the journal, with the object's size and time."""
        found, item = self._tree.status(parts_of(planned.name)), planned.item
        if found is None or not (item.etag or has_time_of(found, item)):
            return False
        settled = Settled(version_of(found), item.etag)
        if self._run.journal.settled(self._place, planned.name) != settled:
            if found.st_size != item.size or not self._has_content(planned):
                return False
            self._run.journal.settle(self._place, planned.name, settled)
        self._run.reporter.kept(found.st_size)
        return True

    def _has_content(self, planned: Planned) -> bool:
        """Return whether the ETag is that of the file's content."""
        with suppress(Gone, EOFError):
            file = self._tree.open_file(parts_of(planned.name))
            try:
                return has_etag(file, planned.item)
            finally:
                os.close(file)
        return False

    def _begin_large(self, planned: Planned) -> list[PartialFile]:
        """Return the file with the parts of an earlier run; [] if the file is in place."""
        if self._is_there(planned):
            return []
        item = planned.item
        if count_of_parts(item.etag):
            item = self._verification.look_up(item.key)
        half = self._open(planned.name, item, is_new=False)
        self._run.reporter.had(sum(half.length(number) for number in half.digests))
        return [half]

    def _large_part(self, planned: Planned, half: PartialFile, number: int) -> None:
        if half.wrong is None:
            try:
                self._part(half, number)
            except (ObjectChanged, Mismatch, UnreadableObject, Denied) as why:
                half.wrong = why
        with half.lock:
            half.remaining -= 1
            is_last = not half.remaining
        if is_last:
            self._end_large(planned, half)

    def _end_large(self, planned: Planned, half: PartialFile) -> None:
        try:
            if half.wrong is not None:
                raise half.wrong
            self._finish(half)
        except (ObjectChanged, Mismatch) as why:
            self._restart(half, why)
            self._whole(Planned(planned.name, self._verification.look_up(planned.item.key)), 2)
        except (UnreadableObject, Denied) as why:
            self._leave(half, why)
            raise
        finally:
            half.close()

    def _whole(self, planned: Planned, reading: int = 1) -> None:
        """Download the file, part by part. Read it again if it changes. Raises Fault, Skip, OSError."""
        item = planned.item
        while True:
            half = self._open(planned.name, item, is_new=True)
            try:
                for number in range(len(half.ranges())):
                    self._part(half, number)
                self._finish(half)
                return
            except (ObjectChanged, Mismatch) as why:
                if reading >= CHANGES:
                    raise Fault(FaultClass.CORRUPT, f"{_reason(why)} {CHANGES} times in a row", item.key) from why
                self._restart(half, why)
            except (UnreadableObject, Denied) as why:
                self._leave(half, why)
                raise
            finally:
                half.close()
            reading += 1
            item = self._verification.look_up(item.key)

    def _leave(self, half: PartialFile, why: UnreadableObject | Denied) -> None:
        """Remove an incomplete file that cannot be completed. Its parts stay if the store gave some: the credentials
        may have expired."""
        if half.digests and isinstance(why, Denied):
            return
        self._forget(half)
        with suppress(FileNotFoundError):
            os.unlink(half.temporary, dir_fd=half.directory)

    def _forget(self, half: PartialFile) -> None:
        done = sum(half.length(number) for number in half.digests)
        self._run.reporter.moved(-done)
        self._run.journal.forget(self._place, half.name)

    def _restart(self, half: PartialFile, why: Exception) -> None:
        self._forget(half)
        self._run.reporter.retry(f"{shown(half.item.key)}: {_reason(why)}; it is read again", 0)

    def _check_size(self, item: Item, size: int) -> None:
        """Raise Fault if a file of this size is too large."""
        most = self._run.task.most_file_bytes
        if most and size > most:
            has = f"has {size} bytes" if size == item.size else "has more bytes"
            raise Fault(FaultClass.TOO_LARGE, f"it {has}; the maximum is {most}", item.key)

    def _open(self, name: str, item: Item, *, is_new: bool) -> PartialFile:
        self._check_size(item, item.size)
        parts = parts_of(name)
        temporary = part_name(parts[-1])
        version = f"{item.etag} {item.size} {item.mtime}"
        journal, place = self._run.journal, self._place
        known = None if is_new or not item.etag else journal.started(place, name)
        with self._tree.directory(parts[:-1], make=True) as found:
            directory = os.dup(found)
        try:
            file = open_own(temporary, directory)
        except OSError:
            os.close(directory)
            raise
        half = PartialFile(name, item, parts, directory, temporary, file, self._part_bytes(item), {})
        resumes = known is not None and known.version == version and os.fstat(file).st_size == item.size
        if resumes and known is not None:
            half.part_bytes, half.digests = known.part_bytes, journal.parts(place, name)
            half.run_digest()
            return half
        if os.fstat(file).st_size:  # ext4 writes a file to disk when it is closed if it was truncated to nothing
            os.ftruncate(file, 0)
        os.ftruncate(file, max(item.size, 0))
        if len(half.ranges()) > 1:
            journal.start(place, name, Started(version, "", half.part_bytes))
        half.run_digest()
        return half

    def _part_bytes(self, item: Item) -> int:
        """Return the part size with which the object was stored, if possible: then the digests of the parts make its
        ETag."""
        wanted = self._run.task.part_bytes
        stored = next(iter(part_sizes(item)), 0)
        return stored if wanted / 4 <= stored <= LARGEST_PART_BYTES else wanted

    def _part(self, half: PartialFile, number: int) -> None:
        found = half.ranges()
        half.digests[number] = self._read(half, *found[number])
        if len(found) > 1:
            self._run.journal.part(self._place, half.name, number, half.digests[number])
        try:
            half.came(number)
        except EOFError:
            raise Mismatch("its file here was cut while it came") from None

    def _read(self, half: PartialFile, start: int, end: int) -> str:
        """Download a range into the file. Return its MD5, or "". Resume where a reply broke off. Raises ObjectChanged,
        Fault, Stopped."""
        item, reporter = half.item, self._run.reporter
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
                        reporter.moved(len(data))
                if end != UNKNOWN and at < end:
                    raise TemporaryFailure(f"the answer ended {end - at} bytes early")
                return "" if digest is None else digest.hexdigest()
            except TemporaryFailure as why:
                failed = 1 if at - tried_at >= PROGRESS_BYTES else failed + 1
                tried_at = at
                self._run.retries.pause_after(failed, why, shown(item.key))
                if end == UNKNOWN or not item.ranges:
                    reporter.moved(start - at)
                    at, digest = start, new_digest("md5")
                    os.ftruncate(half.file, 0)

    def _write(self, half: PartialFile, data: bytes, at: int) -> None:
        """Write data. Blocks of zeros become holes, if the file has its size already."""
        self._check_size(half.item, at + len(data))
        try:
            (write_all if half.item.size == UNKNOWN else write_sparse)(half.file, data, at)
        except OSError as error:
            raise local_fault(error, os.path.join(self._tree.root, half.name)) from error

    def _finish(self, half: PartialFile) -> None:
        """Compare the file with its object and rename it. Raises ObjectChanged, Mismatch, Skip, OSError."""
        if half.item.size >= 0 and os.fstat(half.file).st_size != half.item.size:
            os.ftruncate(half.file, half.item.size)
        self._verification.verify(half)
        if half.item.mtime > 0:
            os.utime(half.file, (half.item.mtime, half.item.mtime))
        os.close(os.dup(half.file))  # where a network file system says that there was no room
        self._tree.place(half.temporary, half.parts, half.directory)
        self._run.journal.settle(self._place, half.name, Settled(version_of(os.fstat(half.file)), half.item.etag))
        self._run.reporter.finished()


def download_planned(route: Route, tree: Tree) -> None:
    """Submit all planned files to the workers. Raises what an earlier one raised."""
    bringing, directories = Download(route, tree), route.run.journal.directories(route.place)
    for planned in route.run.journal.planned(route.place):
        if planned.name in directories:
            route.run.reporter.skip(f"{shown(planned.item.key)} is left out: it is a directory's name, too")
        else:
            bringing.add(planned)


def _reason(why: Exception) -> str:
    return str(why) or "it was changed while it was read"
