"""Take an entry of the cache, wait for the process that fills it, or fill it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

from ffdl_batch.domain.data.staging_protocol import Cache, FaultClass, Progress
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.cache.capacity import discard, reserve_space
from ffdl_batch.staging.cache.election import FillRight, Heartbeat, Owner, Watch, try_for
from ffdl_batch.staging.cache.entry import Damaged, check, note_checked, read_entry, was_checked_here
from ffdl_batch.staging.cache.user_cache import Shelf, Unusable, lock
from ffdl_batch.staging.faults import Fault, shown
from ffdl_batch.staging.reporter import Reporter

POLL_S = 0.25
FILLINGS = 2
"""Maximum fillings by one process. On some file systems a file changes at each look."""
HALF_IS_KEPT = (FaultClass.NETWORK, FaultClass.CREDENTIALS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry that is needed. `room` is about what it will take; `files` and `bytes` are for progress. `fill` fills
    the entry and places it; it raises Fault, Unusable, OSError and errors of its own."""

    key: str
    size_bytes: int
    files: int
    bytes: int
    fill: Callable[[FillRight], None]
    reporter: Reporter


def obtain(wanted: Wanted, shelf: Shelf, cache: Cache, held: ExitStack) -> bool:
    """Take the entry, and fill it if it is missing. Return whether this process filled it. Raises what filling raises,
    Unusable, OSError."""
    rights, filled, watch = 0, False, Watch(shelf, wanted.key, cache.stale_s)
    noted: Owner | None = None
    while not _take(wanted, shelf, held):
        right = try_for(shelf, wanted.key)
        if right is not None:
            wanted.reporter.follow(None)
            rights += 1
            if rights > FILLINGS:
                right.release(keep=False)
                raise Unusable("what was filled is not as it was when it is looked at")
            filled = _fill_by(right, wanted, shelf, cache) or filled
            continue
        owner, heartbeat = watch.look()
        if owner is not None and owner != noted:
            wanted.reporter.note(f"waits for process {owner.pid} on {owner.host}, which fills the cache")
            noted = owner
        wanted.reporter.follow(_progress_of(heartbeat, wanted))
        if watch.idle_s() > cache.patience_s:
            raise Unusable(f"who fills it has brought nothing for {cache.patience_s:.0f} s")
        time.sleep(POLL_S)
    return filled


def _take(wanted: Wanted, shelf: Shelf, held: ExitStack) -> bool:
    """Return whether there is a complete entry. From then on no process removes it. Raises Unusable, OSError."""
    key, reporter = wanted.key, wanted.reporter
    directory = shelf.entry(key)
    if not os.path.isdir(directory):
        return False
    with ExitStack() as mine:
        descriptor = lock(shelf.use_lock(key), exclusive=False, wait=True)
        assert descriptor is not None
        mine.callback(os.close, descriptor)
        try:
            read_entry(directory)
            wholly = not was_checked_here(directory)
            check(directory, wholly=wholly, go_on=lambda _size: None)
        except FileNotFoundError:
            return False
        except Damaged as why:
            damage = str(why)
        else:
            if wholly:
                note_checked(directory)
            os.utime(descriptor)
            held.push(mine.pop_all())
            return True
    if not discard(shelf, key):
        raise Unusable(f"an entry is damaged ({shown(damage)}), and in use")
    reporter.note(f"an entry of the cache was damaged ({shown(damage)}) and is filled again")
    return False


def _fill_by(right: FillRight, wanted: Wanted, shelf: Shelf, cache: Cache) -> bool:
    """Fill the entry, unless another process has filled it. Return whether this process did. Raises what filling
    raises, Unusable, OSError."""
    keep = False
    try:
        if os.path.isdir(shelf.entry(wanted.key)):
            return False
        if not reserve_space(shelf, right.directory, wanted.size_bytes, cache.limit_bytes):
            raise Unusable(
                f"it has no room for {size_text(wanted.size_bytes)}; `ffdl cache` on this node says who holds how much"
            )
        wanted.fill(right)
        return True
    except Fault as fault:
        keep = fault.kind in HALF_IS_KEPT
        raise
    finally:
        right.release(keep=keep)


def _progress_of(heartbeat: Heartbeat, wanted: Wanted) -> Progress:
    return Progress(heartbeat.files, wanted.files, heartbeat.bytes, wanted.bytes, 0.0)
