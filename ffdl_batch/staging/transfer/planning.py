"""Plan a transfer: list stores and directories into the journal, and check the free space."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import Entry, FaultClass
from ffdl_batch.domain.data.store_kinds import StoreKind
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.staging.faults import Fault, Skip, TemporaryFailure, local_fault, located_at, shown
from ffdl_batch.staging.journal import Planned
from ffdl_batch.staging.object_names import INDEX, below, is_wanted, key_of, parts_of, plain_names
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.store import Item
from ffdl_batch.staging.transfer.tree_metadata import Entries, collect
from ffdl_batch.staging.transfer.upload_source import version_of
from ffdl_batch.staging.tree import Tree

PAGE = 1000
_Local = tuple[Planned, str]
"""A local file and its version."""


def plan_in(route: Route, tree: Tree) -> None:
    """List the objects into the journal, and create directories. Raises Fault, Stopped."""

    def make(name: str) -> None:
        with tree.directory(parts_of(name), make=True):
            return

    list_in(route, make)


def list_in(route: Route, directory: Callable[[str], None]) -> None:
    """List the objects into the journal. `directory` gets the names of directory markers. Raises Fault."""
    prefix, found = below(route.transfer.prefix), False
    with located_at(route.transfer.store):
        for page in pages(route, prefix):
            found = found or bool(page)
            route.run.journal.plan(route.place, list(_files(route, directory, prefix, page)))
        if not found and must_have_something(route):
            item = single(route)
            if item.doubt:
                route.run.reporter.note(f"{shown(item.key)} {item.doubt}")
            route.run.journal.plan(route.place, [Planned(item.key.rsplit("/", 1)[-1], item)])


def plan_out(route: Route, tree: Tree) -> Entries:
    """List the files into the journal, and what the store has. Return links, modes and empty directories, if they are
    to be kept. Raises Fault, Stopped."""
    prefix, run = route.transfer.prefix, route.run
    plain = plain_names(route.transfer.only)
    if plain:
        _plan_named(route, tree, plain)
        return {}
    found: Entries = {}
    keep = partial(collect, found, route.transfer.roots, run.reporter.skip) if route.transfer.roots else None
    page: list[_Local] = []
    is_known = _is_known(route)
    with located_at(route.transfer.store):
        for name, status in tree.files((), lambda path, why: _skip(route, path, why), run.unreadable.add, keep):
            if not is_wanted(name, route.transfer.only):
                continue
            try:
                page.append(_local(name, key_of(prefix, name), status))
            except Skip as why:
                _skip(route, name, str(why))
            if len(page) == PAGE:
                _plan_page(route, page, is_known=is_known)
                page = []
        _plan_page(route, page, is_known=is_known)
        if is_known:
            return found
        start = len(below(prefix))
        for items in pages(route, below(prefix)):
            run.journal.note_stored(route.place, [(item.key[start:], item) for item in items])
    return found


def _is_known(route: Route) -> bool:
    """Return whether the journal is enough to know what the store has."""
    return bool(route.run.task.rest_s) and route.run.journal.has_settled(route.place)


def _local(name: str, key: str, status: os.stat_result) -> _Local:
    return Planned(name, Item(key, status.st_size, "", status.st_mtime)), version_of(status)


def _plan_page(route: Route, page: list[_Local], *, is_known: bool) -> None:
    """Plan a page. Files that the journal knows to be stored are only counted."""
    journal = route.run.journal
    versions = journal.settled_versions(route.place, [planned.name for planned, _ in page]) if is_known else {}
    coming = [planned for planned, version in page if versions.get(planned.name) != version]
    kept = [planned.item.size for planned, version in page if versions.get(planned.name) == version]
    route.run.reporter.keep_all(len(kept), sum(kept))
    journal.plan(route.place, coming)


def _plan_named(route: Route, tree: Tree, names: tuple[str, ...]) -> None:
    """Plan files with known names, as :func:`plan_out`. Neither side is listed."""
    run = route.run
    is_known = _is_known(route)
    for name in names:
        try:
            status = tree.status(parts_of(name))
            if status is None:
                continue
            key = key_of(route.transfer.prefix, name)
        except Skip as why:
            _skip(route, name, str(why))
            continue
        except OSError as error:
            run.unreadable.add(name, error)
            continue
        _plan_page(route, [_local(name, key, status)], is_known=is_known)
        if is_known:
            continue
        with located_at(route.transfer.store):
            there = run.retries.call(partial(route.store.head, key), shown(key))
        run.journal.note_stored(route.place, [(name, there)] if there else [])


def require_space(pairs: list[tuple[Route, Tree]]) -> None:
    """Raise Fault if a file system has too little free space for what will be downloaded."""
    needed: dict[int, int] = {}
    for route, tree in pairs:
        local = existing(route.transfer.local)
        device = os.stat(local).st_dev
        needed[device] = needed.get(device, 0) + route.run.journal.to_come(route.place)
        with located_at(route.transfer.store):
            try:
                require_free(local, needed[device])
            except Fault:
                needed[device] -= _in_the_way(route, tree)
                require_free(local, needed[device])


def _in_the_way(route: Route, tree: Tree) -> int:
    """Return the bytes of existing files that have the planned size: they are the objects, or are replaced by them.
    Files that are downloaded at the same time exist twice meanwhile."""
    sizes: list[int] = []
    for planned in route.run.journal.planned(route.place):
        try:
            found = tree.status(parts_of(planned.name))
        except OSError:
            continue
        if found is not None and found.st_size == planned.item.size:
            is_counted = route.run.journal.settled(route.place, planned.name) is None
            sizes.append(found.st_size if is_counted else 0)
    return sum(sorted(sizes)[: -route.run.task.parallel])


def require_free(local: str, needed: int) -> None:
    """Raise Fault if the file system of the directory has less free space."""
    try:
        found = os.statvfs(local)
    except OSError as error:
        raise local_fault(error, local) from error
    free = found.f_bavail * found.f_frsize
    if needed > free:
        what = f"{size_text(needed)} are to come, and {size_text(free)} are free in {shown(local)} on this machine"
        raise Fault(FaultClass.FULL, what)


def existing(path: str) -> str:
    """Return the directory, or the first existing one above it."""
    here = Path(path)
    while not here.is_dir() and here != here.parent:
        here = here.parent
    return str(here)


def first_page(route: Route) -> list[Item]:
    """Return the first page of what is to be downloaded, by one or two requests. Raises Fault if there is nothing."""
    with located_at(route.transfer.store):
        page = next(pages(route, below(route.transfer.prefix)), [])
        if not page and must_have_something(route):
            return [single(route)]
        return page


def probe(route: Route) -> None:
    """Request one page below the prefix, which may be empty. Raises Fault."""
    with located_at(route.transfer.store):
        next(pages(route, below(route.transfer.prefix)), None)


def pages(route: Route, prefix: str) -> Iterator[list[Item]]:
    """Yield the pages of a listing. After a failure, continue after the last key."""
    failed, last = 0, ""
    while True:
        try:
            for page in route.store.listing(prefix, last):
                failed, last = 0, page[-1].key if page else last
                yield page
            return
        except TemporaryFailure as why:
            failed += 1
            route.run.retries.pause_after(failed, why)


def must_have_something(route: Route) -> bool:
    """Return whether there must be something to download. A whole container may be empty, and what cannot be read is
    reported at the end."""
    if route.transfer.optional or route.run.unreadable.has_any:
        return False
    if route.transfer.store.kind is StoreKind.HTTP and not route.transfer.prefix:
        raise Fault(FaultClass.TASK, "no file of the web server is named, and it has no listing")
    return bool(route.transfer.prefix)


def single(route: Route) -> Item:
    """Return the object that the prefix names. Raises Fault."""
    key = route.transfer.prefix.rstrip("/")
    found = route.run.retries.call(lambda: route.store.head(key), shown(key))
    if found is None:
        is_http = route.transfer.store.kind is StoreKind.HTTP
        raise Fault(FaultClass.MISSING, "there is no such file" if is_http else "there is nothing of that name", key)
    return found


def _files(route: Route, directory: Callable[[str], None], prefix: str, page: list[Item]) -> Iterator[Planned]:
    for item in page:
        name = item.key[len(prefix) :]
        if name == INDEX:
            route.run.indexes.add(route.place)
            continue
        is_marker = not name or (name.endswith("/") and item.size == 0)
        if not is_marker and not is_wanted(name, route.transfer.only):
            continue
        try:
            if not is_marker:
                parts_of(name)
                yield Planned(name, item)
            elif name and not route.transfer.only:
                parts_of(name[:-1])
                directory(name[:-1])
        except Skip as why:
            route.run.reporter.skip(f"{shown(item.key)} is left out: {why}")
        except OSError as error:
            raise local_fault(error, item.key) from error


def _skip(route: Route, name: str, why: str) -> None:
    route.run.reporter.skip(f"{shown(name)} is left out: {why}")


def list_objects(route: Route) -> None:
    """Report each object, in the order of keys. Raises Fault if the prefix names nothing."""
    prefix, found = below(route.transfer.prefix), False
    with located_at(route.transfer.store):
        for page in pages(route, prefix):
            for item in page:
                found = True
                _say(route, item.key[len(prefix) :], item)
        if not found and must_have_something(route):
            item = single(route)
            _say(route, item.key.rsplit("/", 1)[-1], item)


def _say(route: Route, name: str, item: Item) -> None:
    is_marker = not name or (name.endswith("/") and item.size == 0)
    if not is_marker and name != INDEX and is_wanted(name, route.transfer.only):
        route.run.reporter.say(Entry(name, item.size, item.mtime))
        route.run.reporter.kept(item.size)
