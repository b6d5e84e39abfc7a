"""Capacity of a cache: what a user holds, which entries are removed, and what is published to other users.

A user's process removes only entries of its user. If others would have to free capacity, it publishes how much it
wants. Their next process, or ``ffdl-admin cache trim``, frees it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.cache.election import remove_abandoned, reserve, reserved
from ffdl_batch.staging.cache.entry import Damaged, Entry, read_entry
from ffdl_batch.staging.cache.eviction_policy import Held, Need, choose_victims
from ffdl_batch.staging.cache.user_cache import Shelf, Usage, drop, is_free, lock, locked, usages

ROUNDS = 5
"""Attempts to choose entries for removal. Each attempt sees which entries have come into use."""


@dataclass(frozen=True, slots=True)
class CachedEntry:
    """An entry in a cache. `entry` is None if it is damaged."""

    key: str
    entry: Entry | None
    used_at: float
    free: bool

    @property
    def room(self) -> int:
        """Return the bytes that it takes; 0 if it is damaged."""
        return self.entry.size_bytes if self.entry else 0


def entries(shelf: Shelf) -> Iterator[CachedEntry]:
    """Yield all entries. Raises OSError."""
    for key in shelf.names():
        path = shelf.use_lock(key)
        try:
            entry: Entry | None = read_entry(shelf.entry(key))
        except FileNotFoundError:
            continue
        except Damaged:
            entry = None
        used_at = entry.filled_at if entry else 0.0
        with suppress(FileNotFoundError):
            used_at = os.stat(path).st_mtime
        yield CachedEntry(key, entry, used_at, is_free(path))


def limit_of(shelf: Shelf, limit_bytes: int) -> int:
    """Return what all users may hold together, by what they publish. Raises OSError."""
    return most_of(shelf.directory, limit_bytes, sum(usage.bytes for _, usage in usages(shelf.directory)))


def most_of(directory: str, limit_bytes: int, held: int) -> int:
    """Return what all users, who hold `held` bytes, may hold: no more than is free, less a twentieth of the file
    system. Raises OSError."""
    found = os.statvfs(directory)
    whole, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return max(0, min(limit_bytes or whole // 2, held + free - whole // 20))


def reserve_space(shelf: Shelf, directory: str, size: int, limit_bytes: int) -> bool:
    """Reserve capacity for the entry that will be filled in the directory, and remove entries of the user for it.
    Return whether there is enough. Raises OSError."""
    with locked(shelf.mutex):
        remove_abandoned(shelf)
        publish_usage(shelf)
        tenant = str(shelf.uid)
        need = Need(limit_of(shelf, limit_bytes), tenant, max(0, size - reserved(directory)))
        done = _evict(shelf, need)
        if done:
            reserve(directory, size)
        publish_usage(shelf, 0 if done else size)
        return done


def free_space(shelf: Shelf, limit_bytes: int) -> None:
    """Remove entries of the user that others may claim: for those who want capacity now, and to keep the limit. Raises
    OSError."""
    with locked(shelf.mutex):
        for uid, usage in usages(shelf.directory):
            if usage.wanted and uid != shelf.uid:
                need = Need(limit_of(shelf, limit_bytes), str(uid), usage.wanted)
                _evict(shelf, need, only_if_enough=True)
        _evict(shelf, Need(limit_of(shelf, limit_bytes)))
        publish_usage(shelf)


def discard(shelf: Shelf, key: str) -> bool:
    """Remove an entry, unless a process uses it. Return whether it is gone. Raises OSError."""
    path = shelf.use_lock(key)
    descriptor = lock(path, exclusive=True, wait=False)
    if descriptor is None:
        return False
    try:
        shelf.remove(shelf.entry(key))
    finally:
        drop(descriptor, path)
    return True


def publish_usage(shelf: Shelf, wanted: int = 0) -> None:
    """Publish what the user holds, and for what there was no capacity. Raises OSError."""
    size = sum(held.bytes for held in _own(shelf))
    shelf.publish(Usage(size, wanted, time.time() if wanted else 0.0))


def _own(shelf: Shelf) -> list[Held]:
    tenant = str(shelf.uid)
    whole = [Held(tenant, seen.key, seen.room, seen.used_at, seen.free) for seen in entries(shelf)]
    half = [Held(tenant, os.path.basename(path), reserved(path), time.time(), False) for path in shelf.fillings()]
    return whole + half


def _evict(shelf: Shelf, need: Need, *, only_if_enough: bool = False) -> bool:
    """Remove entries. Return whether there is enough capacity then."""
    for _ in range(ROUNDS):
        others = [
            Held(str(uid), "", usage.bytes, 0.0, False) for uid, usage in usages(shelf.directory) if uid != shelf.uid
        ]
        choice = choose_victims([*_own(shelf), *others], need)
        if only_if_enough and not choice.enough:
            return False
        missed = [held for held in choice.victims if not discard(shelf, held.key)]
        if not missed:
            return choice.enough
    return False
