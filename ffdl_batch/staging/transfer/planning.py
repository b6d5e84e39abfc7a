"""What there is to move: listings of stores, files of directories, and whether there is room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import Entry, FaultClass, StoreKind
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.staging.faults import Fault, Passing, Skip, at_store, of_local, shown
from ffdl_batch.staging.journal import Planned
from ffdl_batch.staging.object_names import INDEX, below, is_wanted, key_of, parts_of, plain_names
from ffdl_batch.staging.run_context import Way
from ffdl_batch.staging.stores.store import Item
from ffdl_batch.staging.transfer.tree_metadata import Entries, collect
from ffdl_batch.staging.transfer.upload_source import version_of
from ffdl_batch.staging.tree import Tree

PAGE = 1000
_Local = tuple[Planned, str]
"""A local file, and its version."""


def plan_in(way: Way, tree: Tree) -> None:
    """List the objects into the journal; directories are made. Raises Fault, Stopped."""

    def make(name: str) -> None:
        with tree.directory(parts_of(name), make=True):
            return

    list_in(way, make)


def list_in(way: Way, directory: Callable[[str], None]) -> None:
    """List the objects into the journal; `directory` hears of those that are a directory's mark. Raises Fault."""
    prefix, found = below(way.transfer.prefix), False
    with at_store(way.transfer.store):
        for page in pages(way, prefix):
            found = found or bool(page)
            way.run.journal.plan(way.place, list(_files(way, directory, prefix, page)))
        if not found and must_have_something(way):
            item = single(way)
            if item.doubt:
                way.run.teller.note(f"{shown(item.key)} {item.doubt}")
            way.run.journal.plan(way.place, [Planned(item.key.rsplit("/", 1)[-1], item)])


def plan_out(way: Way, tree: Tree) -> Entries:
    """List the files into the journal, and what the store has. Return links, modes and empty directories, if they are
    to be kept. Raises Fault, Stopped."""
    prefix, run = way.transfer.prefix, way.run
    plain = plain_names(way.transfer.only)
    if plain:
        _plan_named(way, tree, plain)
        return {}
    found: Entries = {}
    keep = partial(collect, found, way.transfer.roots, run.teller.skip) if way.transfer.roots else None
    page: list[_Local] = []
    is_known = _is_known(way)
    with at_store(way.transfer.store):
        for name, status in tree.files((), lambda path, why: _left_out(way, path, why), run.unread.add, keep):
            if not is_wanted(name, way.transfer.only):
                continue
            try:
                page.append(_local(name, key_of(prefix, name), status))
            except Skip as why:
                _left_out(way, name, str(why))
            if len(page) == PAGE:
                _plan_page(way, page, is_known=is_known)
                page = []
        _plan_page(way, page, is_known=is_known)
        if is_known:
            return found
        start = len(below(prefix))
        for items in pages(way, below(prefix)):
            run.journal.note_there(way.place, [(item.key[start:], item) for item in items])
    return found


def _is_known(way: Way) -> bool:
    """Whether the journal's word is enough for what the store has."""
    return bool(way.run.task.rest_s) and way.run.journal.has_settled(way.place)


def _local(name: str, key: str, status: os.stat_result) -> _Local:
    return Planned(name, Item(key, status.st_size, "", status.st_mtime)), version_of(status)


def _plan_page(way: Way, page: list[_Local], *, is_known: bool) -> None:
    """What the journal knows to be stored is counted, and not looked at again."""
    journal = way.run.journal
    versions = journal.settled_versions(way.place, [planned.name for planned, _ in page]) if is_known else {}
    coming = [planned for planned, version in page if versions.get(planned.name) != version]
    kept = [planned.item.size for planned, version in page if versions.get(planned.name) == version]
    way.run.teller.kept_all(len(kept), sum(kept))
    journal.plan(way.place, coming)


def _plan_named(way: Way, tree: Tree, names: tuple[str, ...]) -> None:
    """As :func:`plan_out`, of files whose names are known: neither side is listed."""
    run = way.run
    is_known = _is_known(way)
    for name in names:
        try:
            status = tree.status(parts_of(name))
            if status is None:
                continue
            key = key_of(way.transfer.prefix, name)
        except Skip as why:
            _left_out(way, name, str(why))
            continue
        except OSError as error:
            run.unread.add(name, error)
            continue
        _plan_page(way, [_local(name, key, status)], is_known=is_known)
        if is_known:
            continue
        with at_store(way.transfer.store):
            there = run.patience.with_tries(partial(way.store.head, key), shown(key))
        run.journal.note_there(way.place, [(name, there)] if there else [])


def require_room(pairs: list[tuple[Way, Tree]]) -> None:
    """Hold what is to come against the free space of each file system. Raises Fault."""
    needed: dict[int, int] = {}
    for way, tree in pairs:
        local = existing(way.transfer.local)
        device = os.stat(local).st_dev
        needed[device] = needed.get(device, 0) + way.run.journal.to_come(way.place)
        with at_store(way.transfer.store):
            try:
                require_free(local, needed[device])
            except Fault:
                needed[device] -= _in_the_way(way, tree)
                require_free(local, needed[device])


def _in_the_way(way: Way, tree: Tree) -> int:
    """Bytes of files that are there with the size of what is to come: they are it, or are replaced by it. As many as
    are brought at once are there twice then."""
    sizes: list[int] = []
    for planned in way.run.journal.planned(way.place):
        try:
            found = tree.status(parts_of(planned.name))
        except OSError:
            continue
        if found is not None and found.st_size == planned.item.size:
            is_counted = way.run.journal.settled(way.place, planned.name) is None
            sizes.append(found.st_size if is_counted else 0)
    return sum(sorted(sizes)[: -way.run.task.parallel])


def require_free(local: str, needed: int) -> None:
    """Raises Fault where the file system of the directory has less room than that."""
    try:
        found = os.statvfs(local)
    except OSError as error:
        raise of_local(error, local) from error
    free = found.f_bavail * found.f_frsize
    if needed > free:
        what = f"{size_text(needed)} are to come, and {size_text(free)} are free in {shown(local)} on this machine"
        raise Fault(FaultClass.FULL, what)


def existing(path: str) -> str:
    """The directory, or the first above it that is there."""
    here = Path(path)
    while not here.is_dir() and here != here.parent:
        here = here.parent
    return str(here)


def first_page(way: Way) -> list[Item]:
    """Of what is to come; one request, or two. Raises Fault where there is nothing."""
    with at_store(way.transfer.store):
        page = next(pages(way, below(way.transfer.prefix)), [])
        if not page and must_have_something(way):
            return [single(way)]
        return page


def probe(way: Way) -> None:
    """Ask for one page below the prefix, which may be empty. Raises Fault."""
    with at_store(way.transfer.store):
        next(pages(way, below(way.transfer.prefix)), None)


def pages(way: Way, prefix: str) -> Iterator[list[Item]]:
    """Of a listing, which goes on after the last key that came."""
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


def must_have_something(way: Way) -> bool:
    """Whether there must be something to bring: of a whole container there may be nothing."""
    if way.transfer.optional:
        return False
    if way.transfer.store.kind is StoreKind.HTTP and not way.transfer.prefix:
        raise Fault(FaultClass.TASK, "no file of the web server is named, and it has no listing")
    return bool(way.transfer.prefix)


def single(way: Way) -> Item:
    """The object that the prefix names. Raises Fault."""
    key = way.transfer.prefix.rstrip("/")
    found = way.run.patience.with_tries(lambda: way.store.head(key), shown(key))
    if found is None:
        is_http = way.transfer.store.kind is StoreKind.HTTP
        raise Fault(FaultClass.MISSING, "there is no such file" if is_http else "there is nothing of that name", key)
    return found


def _files(way: Way, directory: Callable[[str], None], prefix: str, page: list[Item]) -> Iterator[Planned]:
    for item in page:
        name = item.key[len(prefix) :]
        if name == INDEX:
            way.run.indexes.add(way.place)
            continue
        is_marker = not name or (name.endswith("/") and item.size == 0)
        if not is_marker and not is_wanted(name, way.transfer.only):
            continue
        try:
            if not is_marker:
                parts_of(name)
                yield Planned(name, item)
            elif name and not way.transfer.only:
                parts_of(name[:-1])
                directory(name[:-1])
        except Skip as why:
            way.run.teller.skip(f"{shown(item.key)} is left out: {why}")
        except OSError as error:
            raise of_local(error, item.key) from error


def _left_out(way: Way, name: str, why: str) -> None:
    way.run.teller.skip(f"{shown(name)} is left out: {why}")


def list_objects(way: Way) -> None:
    """Say each object, in the order of keys. Raises Fault where the prefix is nothing's name."""
    prefix, found = below(way.transfer.prefix), False
    with at_store(way.transfer.store):
        for page in pages(way, prefix):
            for item in page:
                found = True
                _say(way, item.key[len(prefix) :], item)
        if not found and must_have_something(way):
            item = single(way)
            _say(way, item.key.rsplit("/", 1)[-1], item)


def _say(way: Way, name: str, item: Item) -> None:
    is_marker = not name or (name.endswith("/") and item.size == 0)
    if not is_marker and name != INDEX and is_wanted(name, way.transfer.only):
        way.run.teller.say(Entry(name, item.size, item.mtime))
        way.run.teller.kept(item.size)
