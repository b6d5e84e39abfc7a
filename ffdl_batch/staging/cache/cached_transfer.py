"""Lead a transfer through the cache: find, await or fill its entry, and link to it or copy from it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice

from ffdl_batch.domain.data.staging_protocol import Cache, Cached, Direction, FaultClass, Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.staging.cache.acquisition import Wanted, obtain
from ffdl_batch.staging.cache.capacity import free_space
from ffdl_batch.staging.cache.election import BEATS, JOURNAL, FillRight, Heartbeat
from ffdl_batch.staging.cache.entry import disk_bytes, new_entry, seal, write_entry
from ffdl_batch.staging.cache.user_cache import Unusable, open_shelf
from ffdl_batch.staging.faults import Fault, described, shown
from ffdl_batch.staging.journal import Journal, Planned, place_of
from ffdl_batch.staging.object_names import parts_of
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.file import FileStore
from ffdl_batch.staging.transfer.download import download_planned
from ffdl_batch.staging.transfer.planning import list_in
from ffdl_batch.staging.tree import Tree
from ffdl_batch.staging.workers import Workers

LISTINGS = 3
"""Maximum listings of a store whose objects change each time while they are read."""
OWN_FAULTS = (FaultClass.FULL, FaultClass.REFUSED)
"""The cache may be the cause of these. If the store is, they come again without the cache."""


def through_cache(route: Route, number: int, held: ExitStack) -> Route | None:
    """Return what is left to move: nothing, the copy of an entry, or the whole transfer if the cache is of no use.
    `held` keeps the entry from being removed. Raises Fault of the store."""
    cache, reporter = route.run.task.cache, route.run.reporter
    before = reporter.counted()
    assert cache is not None
    if route.transfer.optional:
        return route
    try:
        return _through(route, cache, number, held)
    except Unusable as why:
        reason = str(why)
    except Fault as fault:
        if fault.kind not in OWN_FAULTS:
            raise
        reason = fault.cause
    except OSError as error:
        reason = f"{shown(str(error.filename or cache.directory))}: {error.strerror or error}"
    finally:
        reporter.follow(None)
    reporter.restore(before)
    route.run.unreadable.forget()  # the whole transfer finds them again
    reporter.note(f"the cache is not used: {reason}")
    if route.transfer.link and os.path.islink(route.transfer.local):  # of an earlier run
        os.unlink(route.transfer.local)
    return route


def _through(route: Route, cache: Cache, number: int, held: ExitStack) -> Route | None:
    local = route.transfer.local
    if route.transfer.link and _has_files(local):
        return route
    shelf = open_shelf(cache.directory, os.geteuid())
    before = route.run.reporter.counted()
    for _ in range(LISTINGS):
        listing = _listed(route)
        route.run.reporter.expect(before.files_total + listing.files, before.bytes_total + listing.bytes)
        with suppress(StoreChanged):
            filled = obtain(_wanted(listing, cache), shelf, cache, held)
            break
        route.run.reporter.restore(before)
        route.run.journal.unplan(route.place)
    else:
        raise Unusable(f"what the store has was changed {LISTINGS} times while it was read")
    tree, use = shelf.tree(listing.key), shelf.use_lock(listing.key)
    route.run.reporter.say(Cached(number, listing.key, tree, use, listing.bytes, filled))
    free_space(shelf, cache.limit_bytes)
    if route.transfer.link:
        _link(tree, local)
        if not filled:
            route.run.reporter.keep_all(listing.files, listing.bytes)
        return None
    came = route.run.reporter.counted().moved - before.moved
    route.run.reporter.restore(before)
    route.run.reporter.expect_again(min(came, listing.bytes))
    return _copying(route, listing, tree)


def _listed(route: Route) -> Listing:
    """List the store. Raises Fault, Unusable."""
    directories: list[str] = []
    list_in(route, directories.append)
    route.run.unreadable.require_none("can be copied")
    journal, transfer = route.run.journal, route.transfer
    key = entry_key(transfer.store, transfer.prefix, directories, journal.planned(route.place))
    if route.place in route.run.indexes:
        route.run.reporter.note("links, modes and empty directories of these data are not kept in the cache")
    if key is None:
        raise Unusable("the store does not say which version of an object it has")
    room = sum(disk_bytes(planned.item.size) for planned in journal.planned(route.place))
    return Listing(route, directories, key, *journal.totals_of(route.place), room)


def _wanted(listing: Listing, cache: Cache) -> Wanted:
    def fill_in(right: FillRight) -> None:
        fill(listing, right, cache.stale_s / BEATS)

    return Wanted(listing.key, listing.size_bytes, listing.files, listing.bytes, fill_in, listing.route.run.reporter)


def _copying(route: Route, listing: Listing, tree: str) -> Route:
    """Return the transfer from the tree to its directory."""
    route.run.journal.unplan(route.place)
    with Tree(route.transfer.local, make=True) as target:
        for name in listing.directories:
            with target.directory(parts_of(name), make=True):
                continue
    store = StoreAddress(StoreKind.FILE, container=tree)
    transfer = replace(route.transfer, store=store, prefix="", only=())
    return Route(route.run, transfer, FileStore(store, route.run.unreadable.add), place_of(transfer))


def _has_files(local: str) -> bool:
    """Return whether the path has more than an empty directory or a link of ours."""
    if os.path.islink(local):
        return False
    with suppress(FileNotFoundError, NotADirectoryError):
        return bool(os.listdir(local))
    return os.path.exists(local)


def _link(tree: str, local: str) -> None:
    """Replace the directory with a link to the tree. Raises OSError."""
    temporary = f"{local}.ffdl-link-{os.getpid()}"
    os.makedirs(os.path.dirname(local), exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(tree, temporary)
    if os.path.isdir(local) and not os.path.islink(local):
        os.rmdir(local)
    os.replace(temporary, local)


KEY_FORMAT = 1


def entry_key(store: StoreAddress, prefix: str, directories: Iterable[str], planned: Iterable[Planned]) -> str | None:
    """Return the key of a listing in the order of names; None if the version of an object is unknown.

    The key includes endpoint and container: a store that claims to have the same objects as another one gets its own
    entry.
    """
    place = (KEY_FORMAT, store.kind.value, store.endpoint.rstrip("/"), store.region, store.container, prefix.strip("/"))
    digest = hashlib.sha256(json.dumps((place, sorted(directories))).encode())
    for one in planned:
        if not is_version(one.item.etag) or one.item.size < 0:
            return None
        digest.update(json.dumps((one.name, one.item.size, one.item.etag)).encode() + b"\n")
    return digest.hexdigest()


def is_version(etag: str) -> bool:
    """Return whether the ETag names one content. Weak ETags (RFC 9110, 8.8.1) do not."""
    return bool(etag) and not etag.startswith("W/")


PAGE = 500


class StoreChanged(Exception):
    """The objects of the store no longer match the key."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What the store has: the plan in the run's journal, directories without files, and the key."""

    route: Route
    directories: Sequence[str]
    key: str
    files: int
    bytes: int
    size_bytes: int


def fill(listing: Listing, right: FillRight, each_s: float) -> None:
    """Download everything, make it read-only and place it. A heartbeat is written every `each_s`. Raises Fault,
    StoreChanged, OSError."""
    began, run, sealed = time.time(), listing.route.run, Counter[str]()

    def heartbeat() -> Heartbeat:
        noted = run.reporter.counted()
        return Heartbeat(0, noted.files, noted.files_total, noted.bytes, noted.bytes_total, sealed["bytes"])

    right.begin(heartbeat, each_s)
    stop = threading.Event()
    journal, workers = Journal(f"{right.directory}/{JOURNAL}", Direction.IN), Workers(run.task.parallel, stop)
    try:
        inner = replace(run, journal=journal, workers=workers, stop=stop, retries=replace(run.retries, stop=stop))
        with Tree(f"{right.directory}/tree", make=True) as tree:
            route = replace(listing.route, run=inner, place=listing.key)
            _download(listing, route, tree)
            _require_same(route)
            sizes = seal(right.directory, tree, lambda size: sealed.update(bytes=size))
    finally:
        workers.end()
        journal.close()
    write_entry(right.directory, new_entry(listing.key, _source(listing.route.transfer), sizes, began))
    right.place()


def _download(listing: Listing, route: Route, tree: Tree) -> None:
    for name in listing.directories:
        with tree.directory(parts_of(name), make=True):
            continue
    planned = listing.route.run.journal.planned(listing.route.place)
    while page := list(islice(planned, PAGE)):
        route.run.journal.plan(route.place, page)
    route.run.workers.begin()
    download_planned(route, tree)
    route.run.workers.finish()
    route.run.unreadable.require_none("are copied")


def _require_same(route: Route) -> None:
    """Raise StoreChanged if objects changed while they were read."""
    journal, place = route.run.journal, route.place
    for planned in journal.planned(place):
        found = journal.settled(place, planned.name)
        if found is not None and found.etag != planned.item.etag:
            raise StoreChanged(planned.name)


def _source(transfer: Transfer) -> str:
    return described(transfer.store, transfer.prefix)
