"""A directory as a store. Links in it are not followed. The directory itself may be reached through links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ffdl_batch.attempt.directory_tree import Gone, Parts
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.host.file_attributes import write_sparse
from ffdl_batch.staging.faults import ERRORS_OF_ONE, Fault, ObjectChanged, Skip, UnreadableObject, local_fault, shown
from ffdl_batch.staging.object_names import parts_of
from ffdl_batch.staging.stores.digests import file_chunks
from ffdl_batch.staging.stores.store import UNKNOWN, Item, Sent, in_pages
from ffdl_batch.staging.tree import Tree, TreeEntry, half_made


class FileStore:
    """The directory `container` below the path `endpoint`. One of them may be empty."""

    def __init__(self, address: StoreAddress, unreadable: Callable[[str, OSError], None]) -> None:
        """`unreadable` gets directories that cannot be listed, and files in directories that cannot be entered."""
        self._unreadable = unreadable
        self._root = os.path.join(address.endpoint or "/", address.container)

    def listing(self, prefix: str, start_after: str = "") -> Iterator[list[Item]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        with self._tree() as tree:
            found = tree.files(_above(prefix), lambda _name, _why: None, self._unreadable)
            yield from in_pages(_item(prefix + name, status) for name, status in found)

    def head(self, key: str) -> Item | None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        try:
            with self._tree() as tree, tree.directory(parts_of(key)[:-1]) as directory:
                found = os.stat(parts_of(key)[-1], dir_fd=directory, follow_symlinks=False)
        except (Gone, FileNotFoundError, Skip):
            return None
        except OSError as error:
            raise local_fault(error, os.path.join(self._root, key)) from error
        return _item(key, found) if stat.S_ISREG(found.st_mode) else None

    @contextmanager
    def read(self, item: Item, start: int, end: int) -> Iterator[Iterator[bytes]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        try:
            with self._tree() as tree:
                descriptor = tree.open_file(parts_of(item.key))
        except Gone:
            raise ObjectChanged from None
        except OSError as error:
            raise self._wrong(error, item) from error
        try:
            if _item(item.key, os.fstat(descriptor)) != item:
                raise ObjectChanged
            try:
                yield self._chunks(item, descriptor, start, item.size if end == UNKNOWN else end)
            except EOFError:
                raise ObjectChanged from None
            if _item(item.key, os.fstat(descriptor)) != item:
                raise ObjectChanged
        finally:
            os.close(descriptor)

    def _chunks(self, item: Item, descriptor: int, start: int, end: int) -> Iterator[bytes]:
        try:
            yield from file_chunks(descriptor, start, end)
        except OSError as error:
            raise self._wrong(error, item) from error

    def _wrong(self, error: OSError, item: Item) -> Exception:
        if error.errno in ERRORS_OF_ONE:
            return UnreadableObject(error)
        return local_fault(error, os.path.join(self._root, item.key))

    def put(self, key: str, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        *above, name = parts_of(key)
        try:
            with (
                self._tree(make=True) as tree,
                tree.directory(tuple(above), make=True) as directory,
                half_made(directory) as temporary,
            ):
                descriptor = os.open(
                    temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666, dir_fd=directory
                )
                try:
                    self._write(descriptor, sent)
                finally:
                    os.close(descriptor)
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                return _item(key, os.stat(name, dir_fd=directory, follow_symlinks=False)).etag
        except OSError as error:
            raise local_fault(error, os.path.join(self._root, key)) from error

    def entries(self, prefix: str, skipped: Callable[[str], None]) -> list[TreeEntry]:
        """See :class:`ffdl_batch.staging.stores.store.KeepsEntries`."""
        found: list[TreeEntry] = []

        def skip(name: str, why: str) -> None:
            skipped(f"{shown(name)} is left out: {why}")

        with self._tree() as tree:
            # The listing has reported what cannot be read.
            for _ in tree.files(_above(prefix), skip, lambda _name, _error: None, found.append):
                continue
        return found

    def keep(self, prefix: str, entries: Iterable[TreeEntry], skipped: Callable[[str], None]) -> None:
        """See :class:`ffdl_batch.staging.stores.store.KeepsEntries`."""
        top = "/".join(_above(prefix))
        named = [replace(one, name=f"{top}/{one.name}" if top else one.name) for one in entries]
        try:
            with self._tree(make=True) as tree:
                for _ in tree.restore(named, lambda _name, existing: stat.S_ISLNK(existing.st_mode), skipped):
                    continue
        except OSError as error:
            raise local_fault(error, os.path.join(self._root, top)) from error

    def close(self) -> None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        return

    @staticmethod
    def _write(descriptor: int, sent: Sent) -> None:
        """Write the file. Blocks of zeros become holes."""
        os.ftruncate(descriptor, sent.size)
        at = 0
        for data in sent.chunks():
            write_sparse(descriptor, data, at)
            at += len(data)
        os.ftruncate(descriptor, at)
        os.fsync(descriptor)

    def _tree(self, make: bool = False) -> Tree:
        try:
            return Tree(self._root, make=make)
        except (FileNotFoundError, NotADirectoryError):
            raise Fault(FaultClass.MISSING, "there is no such directory on this machine") from None
        except OSError as error:
            raise local_fault(error, self._root) from error


def _above(prefix: str) -> Parts:
    """Return the names of the directories that a prefix consists of."""
    return tuple(part for part in prefix.split("/") if part)


def _item(key: str, found: os.stat_result) -> Item:
    etag = f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
    return Item(key, found.st_size, etag, found.st_mtime, True, True)
