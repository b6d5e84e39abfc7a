"""Copies directory trees so that several nodes may do it at once and a second pass is harmless."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from typing import Callable, Iterator, Tuple

from ffdl_batch.controller.machine.files import make_directory, open_at_once

CHUNK_BYTES = 4 * 1024 * 1024
_SUFFIX = ".ffdl-tmp"
_HALF_COPIED = re.compile(r"\.(.+)-([0-9]+)" + re.escape(_SUFFIX))
"""What a file is called until it is whole, by who copies it: host and process id."""


def _on() -> None:
    """Nothing stands in the way of going on."""


def copy_tree(
    source: str, target: str, *, link: bool = False, keep_newer: bool = False, go_on: Callable[[], None] = _on
) -> int:
    """Bring every file of `source` into `target`; the number of files. Raises OSError.

    Each file appears whole, by rename. `link`: hard links where both lie in one file system (for files that
    nobody writes any more). Symbolic links are copied as links; sockets, pipes and devices are left out. A file
    of the same size and time is taken to be there already. What vanishes meanwhile is left out: other nodes'
    learners may still be at work. A link in `target` where `source` has a directory is replaced, not followed: it came
    from an earlier pass. `keep_newer`: a file in `target` that was written later stays. `go_on` is called
    before each file and each CHUNK_BYTES of it, and may raise to end the copying; what is there then is whole.
    """
    os.makedirs(target, exist_ok=True)
    count = 0
    for directory, entry in _walk(source):
        path = os.path.join(target, directory, entry.name)
        if entry.is_dir(follow_symlinks=False):
            make_directory(path)
            continue
        go_on()
        if entry.is_symlink() or entry.is_file(follow_symlinks=False):
            try:
                if not (keep_newer and _is_newer(path, entry)):
                    _place(entry, path, link, go_on)
            except FileNotFoundError:
                if os.path.lexists(entry.path):
                    raise
                continue
            count += 1
    return count


def remove_half_copied(root: str, is_dead: Callable[[str, int], bool]) -> None:
    """Remove from `root` and below what copiers left half-made of which `is_dead`, by host and process id, is true.

    Raises OSError.
    """
    for directory, folders, files in os.walk(root):
        for name in (*folders, *files):
            match = _HALF_COPIED.fullmatch(name)
            path = os.path.join(directory, name)
            if match is not None and not _is_directory(path) and is_dead(match[1], int(match[2])):
                with contextlib.suppress(FileNotFoundError):  # somebody else pays, too
                    os.unlink(path)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _walk(root: str) -> Iterator[Tuple[str, "os.DirEntry[str]"]]:
    """Entries below `root` with their directory relative to it, parents first."""
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        with os.scandir(os.path.join(root, directory)) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                yield directory, entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(os.path.join(directory, entry.name))


def _is_newer(path: str, entry: "os.DirEntry[str]") -> bool:
    try:
        return os.lstat(path).st_mtime_ns > entry.stat(follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return False


def _place(entry: "os.DirEntry[str]", path: str, link: bool, go_on: Callable[[], None]) -> None:
    found = entry.stat(follow_symlinks=False)
    if os.path.lexists(path) and _same(found, os.lstat(path)):
        return
    temporary = os.path.join(os.path.dirname(path), f".{os.uname().nodename}-{os.getpid()}{_SUFFIX}")
    if os.path.lexists(temporary):  # of an earlier process with this number, or so named by a learner
        os.unlink(temporary)
    try:
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), temporary)
        elif not (link and _hard_link(entry.path, temporary)):
            _copy_file(entry.path, temporary, go_on)
            shutil.copystat(entry.path, temporary, follow_symlinks=False)
        os.replace(temporary, path)
        if os.path.lexists(temporary):  # rename(2) of two names of one file does nothing
            os.unlink(temporary)
    except BaseException as error:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # a write that fails does not say where
        raise


def _copy_file(source: str, target: str, go_on: Callable[[], None]) -> None:
    with open(source, "rb", opener=open_at_once) as reader, open(target, "xb") as writer:
        data = reader.read(CHUNK_BYTES)
        while data:
            writer.write(data)
            go_on()
            data = reader.read(CHUNK_BYTES)


def _hard_link(source: str, target: str) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, too many links, or one that has none: copied instead
        return False
    return True


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    both_files = stat.S_ISREG(one.st_mode) and stat.S_ISREG(other.st_mode)
    return both_files and one.st_size == other.st_size and one.st_mtime_ns == other.st_mtime_ns
