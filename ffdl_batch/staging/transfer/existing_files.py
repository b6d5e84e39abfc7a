"""Compare local files with a store, for tasks that must not replace a user's files."""

from __future__ import annotations

import os
from contextlib import suppress

from ffdl_batch.attempt.directory_tree import Gone, Parts
from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault, Skip, local_fault, located_at, shown
from ffdl_batch.staging.journal import Planned, Settled
from ffdl_batch.staging.object_names import parts_of
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.digests import count_of_parts, digest_of, has_etag, is_md5
from ffdl_batch.staging.stores.store import Item
from ffdl_batch.staging.transfer.upload_source import version_of
from ffdl_batch.staging.tree import Tree

NAMED = 3
_CURE = "name another directory (--out), or have them replaced (--force)"
"""Only users' commands have such tasks. These are their options."""


def require_same(route: Route, tree: Tree) -> None:
    """Raise Fault if a local file has the name of a planned one, and is neither the object nor a download of this task.
    Files that equal the object are recorded and do not move."""
    named: list[str] = []
    count = 0
    for planned in route.run.journal.planned(route.place):
        try:
            parts = parts_of(planned.name)
            same = tree.is_free(parts) or _is_same(route, tree, planned, parts)
        except Skip:
            continue
        except OSError as error:
            raise local_fault(error, os.path.join(tree.root, planned.name)) from error
        if not same:
            count += 1
            named = [*named, shown(planned.name)][:NAMED]
    if count:
        names = ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) else "")
        what = f"in {shown(tree.root)} on this machine there are files that are not what the store has ({names})"
        with located_at(route.transfer.store):
            raise Fault(FaultClass.REFUSED, f"{what}; nothing is brought", cure=_CURE)


def has_time_of(found: os.stat_result, item: Item) -> bool:
    """Return whether a file has the object's size and time, for stores that report no more."""
    return item.mtime > 0 and found.st_size == item.size and abs(found.st_mtime - item.mtime) < 1e-3


def _is_same(route: Route, tree: Tree, planned: Planned, parts: Parts) -> bool:
    try:
        file = tree.open_file(parts)
    except Gone:
        return _is_brought_link(route, tree, planned, parts)
    try:
        found = os.fstat(file)
        version, journal = version_of(found), route.run.journal
        if journal.has_brought(planned.name, version):
            return True
        if found.st_size != planned.item.size or not _has_content(route, file, found, planned.item):
            return False
        journal.settle(route.place, planned.name, Settled(version, planned.item.etag))
        return True
    finally:
        os.close(file)


def _is_brought_link(route: Route, tree: Tree, planned: Planned, parts: Parts) -> bool:
    """Return whether there is a link that the task has brought, because the object was one in an earlier run."""
    with suppress(Gone, FileNotFoundError), tree.directory(parts[:-1]) as directory:
        found = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        return route.run.journal.has_brought(planned.name, version_of(found))
    return False


def _has_content(route: Route, file: int, found: os.stat_result, item: Item) -> bool:
    """Return whether the file, which has the right size, equals the object. Raises Fault, OSError."""
    try:
        if has_etag(file, item):
            return True
        if is_md5(item.etag) and not item.opaque:
            return False
        with located_at(route.transfer.store):
            known = route.run.retries.call(lambda: route.store.head(item.key), shown(item.key))
        if known is None or known.etag != item.etag:
            return False
        for name, wanted in known.digests.items():
            return digest_of(file, 0, item.size, name) == wanted
        if known.part_bytes and has_etag(file, known):
            return True
        if count_of_parts(item.etag):
            return False
    except EOFError:
        return False
    return has_time_of(found, item)
