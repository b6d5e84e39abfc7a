"""Room in a cache: what a user holds, who has to give, and what the others are told.

A user's process removes entries of its own only. Where others would have to give, it says how much it wants; their next
process, or ``ffdl-admin cache trim``, gives it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ffdl_batch.staging.cache.election import remove_abandoned, reserve, reserved
from ffdl_batch.staging.cache.entry import Damaged, Entry, read_entry
from ffdl_batch.staging.cache.eviction_policy import Held, MaxMinFair, Need, Policy
from ffdl_batch.staging.cache.locks import drop, is_free, lock, locked
from ffdl_batch.staging.cache.user_cache import Shelf, Usage, usages

ROUNDS = 5
"""Choices of what has to go; each sees what has come into use since the one before."""


@dataclass(frozen=True, slots=True)
class CachedEntry:
    """An entry as it lies there. `entry` None: it is damaged."""

    key: str
    entry: Entry | None
    used_at: float
    free: bool

    @property
    def room(self) -> int:
        """Bytes that it takes; not known of a damaged one."""
        return self.entry.room if self.entry else 0


def entries(shelf: Shelf) -> Iterator[CachedEntry]:
    """Them all. Raises OSError."""
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
    """What all users may take together, by what they say that they hold. Raises OSError."""
    return most_of(shelf.directory, limit_bytes, sum(usage.bytes for _, usage in usages(shelf.directory)))


def most_of(directory: str, limit_bytes: int, held: int) -> int:
    """What all users, who hold so much, may hold: no more than is there, less a twentieth of the file system. Raises
    OSError."""
    found = os.statvfs(directory)
    whole, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return max(0, min(limit_bytes or whole // 2, held + free - whole // 20))


def reserve_room(shelf: Shelf, directory: str, size: int, limit_bytes: int, policy: Policy | None = None) -> bool:
    """Take room for what will be filled in the directory; entries of the user's go for it. Whether there is room.
    Raises OSError."""
    with locked(shelf.mutex):
        remove_abandoned(shelf)
        publish_usage(shelf)
        tenant = str(shelf.uid)
        need = Need(limit_of(shelf, limit_bytes), tenant, max(0, size - reserved(directory)))
        done = _evict(shelf, need, policy or MaxMinFair())
        if done:
            reserve(directory, size)
        publish_usage(shelf, 0 if done else size)
        return done


def give_room(shelf: Shelf, limit_bytes: int, policy: Policy | None = None) -> None:
    """Remove entries of the user's that others may claim: those who want room now, and the limit. Raises OSError."""
    with locked(shelf.mutex):
        for uid, usage in usages(shelf.directory):
            if usage.wanted and uid != shelf.uid:
                need = Need(limit_of(shelf, limit_bytes), str(uid), usage.wanted)
                _evict(shelf, need, policy or MaxMinFair(), only_if_enough=True)
        _evict(shelf, Need(limit_of(shelf, limit_bytes)), policy or MaxMinFair())
        publish_usage(shelf)


def discard(shelf: Shelf, key: str) -> bool:
    """Remove an entry, unless somebody uses it. Whether it is gone. Raises OSError."""
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
    """Tell the others what is held, and for what there was no room. Raises OSError."""
    size = sum(held.bytes for held in _own(shelf))
    shelf.publish(Usage(size, wanted, time.time() if wanted else 0.0))


def _own(shelf: Shelf) -> list[Held]:
    tenant = str(shelf.uid)
    whole = [Held(tenant, seen.key, seen.room, seen.used_at, seen.free) for seen in entries(shelf)]
    half = [Held(tenant, os.path.basename(path), reserved(path), time.time(), False) for path in shelf.fillings()]
    return whole + half


def _evict(shelf: Shelf, need: Need, policy: Policy, *, only_if_enough: bool = False) -> bool:
    """Whether there is room then."""
    for _ in range(ROUNDS):
        others = [
            Held(str(uid), "", usage.bytes, 0.0, False) for uid, usage in usages(shelf.directory) if uid != shelf.uid
        ]
        choice = policy.victims([*_own(shelf), *others], need)
        if only_if_enough and not choice.enough:
            return False
        missed = [held for held in choice.victims if not discard(shelf, held.key)]
        if not missed:
            return choice.enough
    return False
