"""What there is to move: listings of stores, files of directories, and whether there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ffdl_batch.domain.staging import FaultClass, StoreKind
from ffdl_batch.staging.faults import Fault, Passing, Skip, at_store, of_local, shown
from ffdl_batch.staging.journal import Planned
from ffdl_batch.staging.names import below, is_wanted, key_of, parts_of
from ffdl_batch.staging.stores.store import Item
from ffdl_batch.staging.tree import Tree
from ffdl_batch.staging.work import Way

PAGE = 1000


def plan_in(way: Way, tree: Tree) -> None:
    """List the objects into the journal; directories are made. Raises Fault, Stopped."""
    prefix, found = below(way.transfer.prefix), False
    with at_store(way.transfer.store):
        for page in _pages(way, prefix):
            found = found or bool(page)
            way.run.journal.plan(way.place, list(_files(way, tree, prefix, page)))
        if not found and _must_have_something(way):
            item = _single(way)
            way.run.journal.plan(way.place, [Planned(item.key.rsplit("/", 1)[-1], item)])


def plan_out(way: Way, tree: Tree) -> None:
    """List the files into the journal, and what the store has. Raises Fault, Stopped."""
    prefix, run = way.transfer.prefix, way.run
    page: list[Planned] = []
    with at_store(way.transfer.store):
        for name, status in tree.files((), lambda path, why: _left_out(way, path, why)):
            if not is_wanted(name, way.transfer.only):
                continue
            try:
                page.append(Planned(name, Item(key_of(prefix, name), status.st_size, "", status.st_mtime)))
            except Skip as why:
                _left_out(way, name, str(why))
            if len(page) == PAGE:
                run.journal.plan(way.place, page)
                page = []
        run.journal.plan(way.place, page)
        start = len(below(prefix))
        for items in _pages(way, below(prefix)):
            run.journal.note_there(way.place, [(item.key[start:], item) for item in items])


def require_room(ways: list[Way]) -> None:
    """Hold what is to come against the free space of each file system. Raises Fault."""
    needed: dict[int, int] = {}
    for way in ways:
        local = existing(way.transfer.local)
        device = os.stat(local).st_dev
        needed[device] = needed.get(device, 0) + way.run.journal.to_come(way.place)
        with at_store(way.transfer.store):
            require_free(local, needed[device])


def require_free(local: str, needed: int) -> None:
    """Raises Fault where the file system of the directory has less room than that."""
    try:
        found = os.statvfs(local)
    except OSError as error:
        raise of_local(error, local) from error
    free = found.f_bavail * found.f_frsize
    if needed > free:
        raise Fault(FaultClass.FULL, f"{needed} bytes are to come, and {free} are free in {shown(local)} on this node")


def existing(path: str) -> str:
    """The directory, or the first above it that is there."""
    here = Path(path)
    while not here.is_dir() and here != here.parent:
        here = here.parent
    return str(here)


def first_page(way: Way) -> list[Item]:
    """Of what is to come; one request, or two. Raises Fault where there is nothing."""
    with at_store(way.transfer.store):
        page = next(_pages(way, below(way.transfer.prefix)), [])
        if not page and _must_have_something(way):
            return [_single(way)]
        return page


def probe(way: Way) -> None:
    """Ask for one page below the prefix, which may be empty. Raises Fault."""
    with at_store(way.transfer.store):
        next(_pages(way, below(way.transfer.prefix)), None)


def _pages(way: Way, prefix: str) -> Iterator[list[Item]]:
    """A listing goes on after the last key that came."""
    failed, last = 0, ""
    while True:
        try:
            for page in way.store.listing(prefix, last):
                failed, last = 0, page[-1].key if page else last
                yield page
            return
        except Passing as why:
            failed += 1
            way.run.patience.bear(failed, why)


def _must_have_something(way: Way) -> bool:
    """Whether there must be something to bring: of a whole container there may be nothing."""
    if way.transfer.store.kind is StoreKind.HTTP and not way.transfer.prefix:
        raise Fault(FaultClass.TASK, "no file of the web server is named, and it has no listing")
    return bool(way.transfer.prefix)


def _single(way: Way) -> Item:
    """The object that the prefix names. Raises Fault."""
    key = way.transfer.prefix.rstrip("/")
    found = way.run.patience.with_tries(lambda: way.store.head(key), shown(key))
    if found is None:
        is_http = way.transfer.store.kind is StoreKind.HTTP
        raise Fault(FaultClass.MISSING, "there is no such file" if is_http else "there is nothing of that name", key)
    return found


def _files(way: Way, tree: Tree, prefix: str, page: list[Item]) -> Iterator[Planned]:
    for item in page:
        name = item.key[len(prefix) :]
        is_marker = not name or (name.endswith("/") and item.size == 0)
        if not is_marker and not is_wanted(name, way.transfer.only):
            continue
        try:
            if not is_marker:
                parts_of(name)
                yield Planned(name, item)
            elif name and not way.transfer.only:
                with tree.directory(parts_of(name[:-1]), make=True):
                    continue
        except Skip as why:
            way.run.teller.skip(f"{shown(item.key)} is left out: {why}")
        except OSError as error:
            raise of_local(error, item.key) from error


def _left_out(way: Way, name: str, why: str) -> None:
    way.run.teller.skip(f"{shown(name)} is left out: {why}")
