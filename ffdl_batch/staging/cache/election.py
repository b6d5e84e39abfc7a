"""Elect the process that fills an entry, and another one as soon as that one is dead or hangs.

A filler holds the lock of the entry, whose file names the filler, and writes heartbeats beside what it fills. If it
dies, the kernel releases its lock at once, and the next process of the same boot resumes what it had. If it hangs, or
runs on another node whose locks are not visible here, its heartbeats stop: the lock's file is removed, and the next
process starts again under another name, so that two processes never write into the same files.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.reader import NO_FILE, find_object, find_text, read_head
from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import boot_id
from ffdl_batch.staging.cache.user_cache import Shelf, drop, lock, locked

HEARTBEAT, BYTES, JOURNAL = OWN = ("signs", "bytes", "journal")
"""Files beside the tree while it is filled."""
BEATS = 10
"""Heartbeats in the time after which a process without one counts as dead."""
ABANDONED_S = 3600.0
_OWNER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that fills an entry, and its name."""

    host: str
    boot: str
    pid: int
    token: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Progress of a filler. `beat` counts heartbeats."""

    beat: int = 0
    files: int = 0
    files_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    sealed: int = 0
    """Bytes that were read again for their digests."""


class FillRight:
    """The right to fill an entry, in a directory of its own, until `release`."""

    def __init__(self, shelf: Shelf, key: str, descriptor: int, token: str) -> None:
        self._shelf, self._key, self._descriptor = shelf, key, descriptor
        self.directory = shelf.filling(key, token)
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, counts: Callable[[], Heartbeat], each_s: float) -> None:
        """Start writing heartbeats."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self._thread = threading.Thread(target=self._beat, args=(counts, each_s), daemon=True)
        self._thread.start()

    def place(self) -> None:
        """Make the entry visible by one rename. Raises OSError."""
        self._stop_heartbeat()
        for name in OWN:
            if os.path.isdir(f"{self.directory}/{name}"):
                shutil.rmtree(f"{self.directory}/{name}")
            elif os.path.exists(f"{self.directory}/{name}"):
                os.unlink(f"{self.directory}/{name}")
        try:
            os.rename(self.directory, self._shelf.entry(self._key))
        except OSError:
            if not os.path.isdir(self._shelf.entry(self._key)):  # another one has come before, who took us for dead
                raise

    def release(self, *, keep: bool) -> None:
        """Release the right. With `keep`, incomplete files stay for the next process."""
        self._stop_heartbeat()
        if keep:
            os.close(self._descriptor)
            return
        with suppress(OSError):
            self._shelf.remove(self.directory)
        with suppress(OSError):
            drop(self._descriptor, self._shelf.fill_lock(self._key))

    def _stop_heartbeat(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self, counts: Callable[[], Heartbeat], each_s: float) -> None:
        beat = 0
        while True:
            beat += 1
            heartbeat = counts()
            with suppress(OSError):  # no room: it may be taken for dead, and ends soon
                text = json.dumps(to_plain(replace(heartbeat, beat=beat)))
                write_text(f"{self.directory}/{HEARTBEAT}", text, durable=False)
            if self._end.wait(each_s):
                return


def try_for(shelf: Shelf, key: str) -> FillRight | None:
    """Return the right to fill the entry; None if another process has it, or may have it on another node. Raises
    OSError."""
    path = shelf.fill_lock(key)
    descriptor = lock(path, exclusive=True, wait=False)
    if descriptor is None:
        return None
    before = _owner_in(os.pread(descriptor, _OWNER_BYTES, 0))
    if before is not None and before.host != socket.gethostname():
        os.close(descriptor)
        return None
    here, token = boot_id(), os.urandom(8).hex()
    if before is not None and os.path.isdir(shelf.filling(key, before.token)):
        if before.boot == here:
            token = before.token
        else:
            shelf.remove(shelf.filling(key, before.token))
    owner = Owner(socket.gethostname(), here, os.getpid(), token)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(to_plain(owner)).encode(), 0)
    return FillRight(shelf, key, descriptor, token)


class Watch:
    """What a waiting process sees of the filler. Raises OSError."""

    def __init__(self, shelf: Shelf, key: str, stale_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._shelf, self._key, self._stale_s, self._clock = shelf, key, stale_s, clock
        self._seen: tuple[Owner | None, Heartbeat] | None = None
        self._seen_at = self._moved_at = clock()

    def look(self) -> tuple[Owner | None, Heartbeat]:
        """Return the filler and its progress. A filler that hangs loses its right."""
        owner = owner_of(self._shelf, self._key)
        heartbeat = (
            Heartbeat()
            if owner is None
            else _heartbeat_in(f"{self._shelf.filling(self._key, owner.token)}/{HEARTBEAT}")
        )
        now, seen = self._clock(), self._seen
        if seen is None or (owner, heartbeat) != seen:
            self._seen_at = now
        if seen is None or (owner, replace(heartbeat, beat=0)) != (seen[0], replace(seen[1], beat=0)):
            self._moved_at = now
        self._seen = (owner, heartbeat)
        if now - self._seen_at > self._stale_s:
            self._depose(owner)
            self._seen = None
        return owner, heartbeat

    def idle_s(self) -> float:
        """Return for how long there has been no progress."""
        return self._clock() - self._moved_at

    def _depose(self, owner: Owner | None) -> None:
        with locked(self._shelf.mutex):
            if owner_of(self._shelf, self._key) == owner:
                with suppress(FileNotFoundError):
                    os.unlink(self._shelf.fill_lock(self._key))


def owner_of(shelf: Shelf, key: str) -> Owner | None:
    """Return the process that fills the entry, or did when it died. Raises OSError."""
    try:
        return _owner_in(read_head(shelf.fill_lock(key), _OWNER_BYTES))
    except NO_FILE:
        return None


def remove_abandoned(shelf: Shelf) -> None:
    """Remove incomplete entries whose process died long ago. Raises OSError."""
    now = _now_of(shelf)
    for directory in shelf.fillings():
        key, _, token = os.path.basename(directory).rpartition(".")
        with suppress(FileNotFoundError):
            if now - max(os.stat(directory).st_mtime, _mtime(f"{directory}/{HEARTBEAT}")) < ABANDONED_S:
                continue
            descriptor = lock(shelf.fill_lock(key), exclusive=True, wait=False)
            if descriptor is None and (owner := owner_of(shelf, key)) and owner.token == token:
                continue
            shelf.remove(directory)
            if descriptor is not None:
                drop(descriptor, shelf.fill_lock(key))


def reserve(directory: str, size: int) -> None:
    """Record the bytes that will be taken. Raises OSError."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    write_text(f"{directory}/{BYTES}", str(size), durable=False)


def reserved(directory: str) -> int:
    """Return the bytes that the entry in the directory will take."""
    try:
        return int(find_text(f"{directory}/{BYTES}"))
    except (OSError, ValueError):
        return 0


def _owner_in(data: bytes) -> Owner | None:
    try:
        return from_plain(Owner, parse_json(data))
    except (ValueError, CodecError):
        return None


def _heartbeat_in(path: str) -> Heartbeat:
    try:
        return from_plain(Heartbeat, find_object(path))
    except (OSError, CodecError):
        return Heartbeat()


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _now_of(shelf: Shelf) -> float:
    """Return the time by the clock of the file system, which may be another machine's."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(f"{shelf.root}/locks/.now", flags, 0o600)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
