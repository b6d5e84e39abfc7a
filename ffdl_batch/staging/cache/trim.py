"""Trims the whole cache, with the parts of all users, to its limit. Root runs it by a timer.

The size of each user's part is measured, not taken from the user's records. Root works in a part as its user, so that
no link in it leads anywhere that the user could not go.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import field, replace

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.cache.capacity import discard, entries, most_of
from ffdl_batch.staging.cache.election import remove_abandoned
from ffdl_batch.staging.cache.eviction_policy import Held, Need, choose_victims
from ffdl_batch.staging.cache.user_cache import Shelf, Unusable, Usage, existing_shelf, usages

ActAs = Callable[[int, int], AbstractContextManager[None]]


@dataclass(slots=True)
class Trimmed:
    """The result. `over`: bytes above the limit that could not be removed, because they are in use."""

    users: int = 0
    bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    over: int = 0
    notes: list[str] = field(default_factory=list)


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Act as this user while the body runs, if this process is root."""
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def trim(directory: str, limit_bytes: int, act_as: ActAs = acting_as) -> Trimmed:
    """Remove what is over the limit, and what users above an equal share hold that others want. Raises OSError."""
    done = Trimmed()
    shelves = dict(_shelves(directory, done))
    held = {uid: _held(shelf, act_as, done) for uid, shelf in shelves.items()}
    whole = [one for mine in held.values() for one in mine]
    limit = most_of(directory, limit_bytes, sum(one.bytes for one in whole))
    wanted = {str(uid): usage.wanted for uid, usage in usages(directory) if usage.wanted}
    sizes = {str(uid): sum(one.bytes for one in mine) for uid, mine in held.items()}
    promised: list[Held] = []
    for tenant in sorted(wanted, key=lambda tenant: sizes.get(tenant, 0)):
        choice = choose_victims([*whole, *promised], Need(limit, tenant, wanted[tenant]))
        if choice.enough:
            whole = _remove(whole, choice.victims, shelves, act_as, done)
            promised.append(Held(tenant, "", wanted[tenant], time.time(), False))
    choice = choose_victims(whole, Need(limit))
    whole = _remove(whole, choice.victims, shelves, act_as, done)
    done.users, done.bytes = len({one.tenant for one in whole}), sum(one.bytes for one in whole)
    done.over = max(0, done.bytes - limit)
    for uid, shelf in shelves.items():
        _publish(shelf, sum(one.bytes for one in whole if one.tenant == str(uid)), act_as)
    return done


def _shelves(directory: str, done: Trimmed) -> Iterator[tuple[int, Shelf]]:
    for name in sorted(os.listdir(directory)):
        path = f"{directory}/{name}"
        if not name.isdecimal():
            continue
        uid, owner = int(name), os.lstat(path).st_uid
        if owner != uid:
            done.notes.append(f"{path} belongs to user {owner}")
            if os.geteuid() == 0:
                _remove_strange(path)
        elif os.geteuid() in (0, uid):
            yield uid, Shelf(directory, uid)


def _held(shelf: Shelf, act_as: ActAs, done: Trimmed) -> list[Held]:
    """Return what a user holds. If it cannot be read, add a note and continue with other users."""
    try:
        with act_as(shelf.uid, os.lstat(shelf.root).st_gid):
            return _held_in(shelf)
    except (Unusable, OSError) as error:
        done.notes.append(f"{shelf.root}: {error}")
        return []


def _held_in(shelf: Shelf) -> list[Held]:
    if existing_shelf(shelf.directory, shelf.uid) is None:
        return []
    shelf.empty_trash()
    remove_abandoned(shelf)
    tenant = str(shelf.uid)
    whole = [
        Held(tenant, seen.key, _measured(shelf.entry(seen.key)), seen.used_at, seen.free) for seen in entries(shelf)
    ]
    half = [Held(tenant, path, _measured(path), time.time(), False) for path in shelf.fillings()]
    return whole + half


def _remove(
    whole: list[Held], victims: tuple[Held, ...], shelves: dict[int, Shelf], act_as: ActAs, done: Trimmed
) -> list[Held]:
    gone = set()
    for held in victims:
        shelf = shelves[int(held.tenant)]
        with act_as(shelf.uid, os.lstat(shelf.root).st_gid):
            if discard(shelf, held.key):
                gone.add(held)
                done.removed += 1
                done.removed_bytes += held.bytes
    return [held for held in whole if held not in gone]


def _publish(shelf: Shelf, size: int, act_as: ActAs) -> None:
    before = next((usage for uid, usage in usages(shelf.directory) if uid == shelf.uid), Usage())
    with act_as(shelf.uid, os.lstat(shelf.root).st_gid), suppress(OSError):
        shelf.publish(replace(before, bytes=size))


def _measured(path: str) -> int:
    size = 0
    for above, folders, files in os.walk(path):
        for name in (*folders, *files):
            with suppress(OSError):
                size += os.lstat(f"{above}/{name}").st_blocks * 512
    return size


def _remove_strange(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
