"""An entry: a read-only tree, its record, and the status and digest of each file when it was filled."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ffdl_batch.attempt.reader import read_object
from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import boot_id
from ffdl_batch.staging.stores.digests import file_chunks
from ffdl_batch.staging.tree import Tree

RECORD, FILES, CHECKED = "entry.json", "files.jsonl", "checked"
FORMAT = 1
BLOCK_BYTES = 4096


class Damaged(Exception):
    """The entry differs from what was filled. The text says how."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The record of an entry. `source` is for people; `room` is the bytes that it takes, `bytes` those of its files."""

    key: str
    source: str
    files: int
    bytes: int
    size_bytes: int
    filled_at: float
    filled_by: str
    seconds: float = 0.0
    format: int = FORMAT


def disk_bytes(size: int) -> int:
    """Return about what a file of this size takes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES + BLOCK_BYTES


def read_entry(directory: str) -> Entry:
    """Return the record. Raises Damaged, FileNotFoundError if there is no entry, and OSError."""
    try:
        found = from_plain(Entry, read_object(f"{directory}/{RECORD}"))
    except FileNotFoundError:
        if os.path.isdir(directory):
            raise Damaged("it has no record") from None
        raise
    except (ValueError, CodecError):
        raise Damaged("its record cannot be read") from None
    if found.format != FORMAT:
        raise Damaged(f"its format {found.format} is not one of this release")
    return found


def seal(directory: str, tree: Tree, go_on: Callable[[int], None]) -> tuple[int, int, int]:
    """Make the tree read-only and record its files. Return files, bytes and room. Raises OSError."""
    count = size = room = 0
    with open(f"{directory}/{FILES}", "w", encoding="utf-8") as record:
        for name, _ in tree.files((), _none_else):
            descriptor = tree.open_file(tuple(name.split("/")))
            try:
                os.fchmod(descriptor, 0o444)
                digest = _sha256(descriptor, go_on)
                found = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            record.write(json.dumps((name, *_status(found), digest)) + "\n")
            count, size, room = count + 1, size + found.st_size, room + disk_bytes(found.st_size)
    for above, folders, _ in os.walk(tree.root):
        room += BLOCK_BYTES * len(folders)
        os.chmod(above, 0o555)  # noqa: S103 - its parent is closed to other users
    note_checked(directory)
    return count, size, room


def write_entry(directory: str, entry: Entry) -> None:
    """Write the record, last of all. Raises OSError."""
    Path(directory, RECORD).write_text(json.dumps(to_plain(entry), indent=1) + "\n", encoding="utf-8")


def check(directory: str, *, wholly: bool, go_on: Callable[[int], None]) -> None:
    """Compare the tree with its record: names, sizes, times, inodes, and with `wholly` digests. `go_on` gets the number
    of bytes that were read. Raises Damaged, OSError."""
    expected = {name: (status, digest) for name, status, digest in _recorded(directory)}
    skipped: list[str] = []
    try:
        with Tree(f"{directory}/tree") as tree:
            for name, found in tree.files((), lambda path, _why: skipped.append(path)):
                status, digest = expected.pop(name, ((), ""))
                if _status(found) != status:
                    raise Damaged(f"{name} was changed" if status else f"{name} was added")
                if wholly and _digest(tree, name, go_on) != digest:
                    raise Damaged(f"{name} has another content")
    except FileNotFoundError:
        raise Damaged("its tree is gone") from None
    for name in [*skipped, *expected]:
        raise Damaged(f"{name} is {'no file' if name in skipped else 'gone'}")


def was_checked_here(directory: str) -> bool:
    """Return whether a process of this boot has compared all digests, or filled the entry. A power cut may have lost
    data, and another node of a shared file system may have written: so each boot compares once."""
    with suppress(OSError, UnicodeDecodeError):
        return boot_id() in Path(directory, CHECKED).read_text(encoding="ascii").split()
    return False


def note_checked(directory: str) -> None:
    """Record it. If that fails, the entry is compared again."""
    with suppress(OSError), open(f"{directory}/{CHECKED}", "a", encoding="ascii") as file:
        file.write(f"{boot_id()}\n")


def new_entry(key: str, source: str, sizes: tuple[int, int, int], began: float) -> Entry:
    """Return the record of an entry that was filled just now; `sizes` are from :func:`seal`."""
    now = time.time()
    return Entry(key, source, *sizes, now, f"{socket.gethostname()}:{os.getpid()}", round(now - began, 3))


def _recorded(directory: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    try:
        with open(f"{directory}/{FILES}", encoding="utf-8") as record:
            for line in record:
                name, size, mtime_ns, inode, digest = json.loads(line)
                yield name, (size, mtime_ns, inode), digest
    except (FileNotFoundError, ValueError) as error:
        raise Damaged("the list of its files cannot be read") from error


def _status(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_size, found.st_mtime_ns, found.st_ino) if stat.S_ISREG(found.st_mode) else ()


def _digest(tree: Tree, name: str, go_on: Callable[[int], None]) -> str:
    descriptor = tree.open_file(tuple(name.split("/")))
    try:
        return _sha256(descriptor, go_on)
    except EOFError:
        raise Damaged(f"{name} was changed") from None
    finally:
        os.close(descriptor)


def _sha256(descriptor: int, go_on: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    for data in file_chunks(descriptor, 0, os.fstat(descriptor).st_size):
        go_on(len(data))
        digest.update(data)
    return digest.hexdigest()


def _none_else(_name: str, _why: str) -> None:
    """Do nothing: a tree that we filled has only files."""
