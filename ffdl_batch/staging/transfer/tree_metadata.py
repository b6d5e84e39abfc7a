"""Links, modes and empty directories of a tree, which object stores do not keep.

They are collected from the local directory and kept in an index object beside the data. A store that is a directory
keeps them itself. Any user who can write to a store can write an index, so no entry leads out of the tree or replaces
data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ffdl_batch.domain.number_text import size_text
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.file_attributes import MAX_DIRECTORY_MODE, MAX_FILE_MODE, inner_target
from ffdl_batch.staging.faults import ObjectChanged, Skip, local_fault, located_at, shown
from ffdl_batch.staging.journal import Settled
from ffdl_batch.staging.object_names import INDEX, below, is_wanted, key_of, parts_of
from ffdl_batch.staging.run_context import Route
from ffdl_batch.staging.stores.store import UNKNOWN, Item, KeepsEntries, Sent
from ffdl_batch.staging.transfer.upload_source import version_of
from ffdl_batch.staging.tree import Tree, TreeEntry

MAX_INDEX_BYTES = 16 << 20
"""Maximum size of an index: about 200,000 entries."""
FORMAT = 1
CHANGES = 3
"""Times that an index is read that changes while it is read."""

Entries = dict[str, TreeEntry]
Note = Callable[[str], None]


def collect(found: Entries, roots: tuple[str, ...], note: Note, entry: TreeEntry) -> None:
    """Add an entry of a local tree, with a link's target relative to the link. Links that lead elsewhere are
    reported."""
    try:
        parts = parts_of(entry.name.rstrip("/"))
        entry.target.encode()
    except (Skip, UnicodeEncodeError) as why:
        note(f"{shown(entry.name)} is left out: {why if isinstance(why, Skip) else 'its target is not UTF-8'}")
        return
    if entry.target:
        inner = inner_target(entry.target, parts[:-1], roots)
        if inner is None:
            note(_outward(entry))
            return
        entry = replace(entry, target=inner)
    found[entry.name] = entry


def store_entries(route: Route, tree: Tree, found: Entries) -> None:
    """Store the entries of the local tree, after its files. Entries of the store whose names this machine does not have
    stay: nothing is deleted there. Raises Fault."""
    run, prefix = route.run, route.transfer.prefix
    if isinstance(route.store, KeepsEntries):
        if found:
            with located_at(route.transfer.store):
                route.store.keep(prefix, found.values(), run.reporter.skip)
        return
    version = hashlib.sha256(_encode(found)).hexdigest()
    known = run.journal.settled(route.place, INDEX)
    if (known is not None and known.version == version and run.task.rest_s) or not (
        found or known or run.journal.stored_item(route.place, INDEX)
    ):
        return
    with located_at(route.transfer.store):
        key = key_of(prefix, INDEX)
        old, there = _read(route, key)
        stays = {name: one for name, one in old.items() if name not in found and not _is_here(tree, name)}
        data = _encode(found | old if run.task.keep_newer else stays | found)
        if len(data) > MAX_INDEX_BYTES:
            run.reporter.note(
                f"links, modes and empty directories are not stored: {shown(key)} would have {size_text(len(data))}, "
                f"more than the maximum of {size_text(MAX_INDEX_BYTES)}"
            )
            return
        if there is None or old != _decode(data):
            sent = Sent(data, len(data), hashlib.md5(data, usedforsecurity=False).hexdigest())
            run.retries.call(partial(route.store.put, key, sent), shown(key))
    run.journal.settle(route.place, INDEX, Settled(version, ""))


def restore_entries(route: Route, tree: Tree) -> None:
    """Restore links, modes and empty directories that the store has, after its files. Raises Fault."""
    run, transfer = route.run, route.transfer
    found: Entries = {}
    if isinstance(route.store, KeepsEntries):
        if transfer.roots:
            with located_at(transfer.store):
                for one in route.store.entries(transfer.prefix, run.reporter.skip):
                    collect(found, transfer.roots, run.reporter.skip, one)
    elif route.place in run.indexes:
        with located_at(transfer.store):
            found, _ = _read(route, below(transfer.prefix) + INDEX)

    def may_replace(name: str, existing: os.stat_result) -> bool:
        is_ours = run.task.replaces or run.journal.has_brought(name, version_of(existing))
        return is_ours and not run.journal.is_planned(route.place, name)

    wanted = [one for one in found.values() if is_wanted(one.name, transfer.only)]
    try:
        for name, status in tree.restore(wanted, may_replace, run.reporter.skip):
            run.journal.settle(route.place, name, Settled(version_of(status), ""))
    except OSError as error:
        raise local_fault(error, error.filename or tree.root) from error


def _outward(one: TreeEntry) -> str:
    return f"{shown(one.name)} is left out: it is a link that leads out of the directory, to {shown(one.target)}"


def _is_here(tree: Tree, name: str) -> bool:
    with suppress(Skip, OSError):
        return not tree.is_free(parts_of(name.rstrip("/")))
    return False


def _read(route: Route, key: str) -> tuple[Entries, Item | None]:
    """Return the entries of the store's index. A damaged index has none, and is reported. Raises Fault."""
    retries = route.run.retries
    for _ in range(CHANGES):
        item = retries.call(partial(route.store.head, key), shown(key))
        if item is None:
            return {}, None
        with suppress(ObjectChanged):
            data = retries.call(partial(_content, route, item), shown(key))
            try:
                return _decode(data), item
            except ValueError as why:
                route.run.reporter.note(
                    f"{shown(key)}, the index of links, modes and empty directories, cannot be used: {why}"
                )
                return {}, item
    return {}, None


def _content(route: Route, item: Item) -> bytes:
    data = bytearray()
    with route.store.read(item, 0, UNKNOWN) as chunks:
        for chunk in chunks:
            data += chunk
            if len(data) > MAX_INDEX_BYTES:
                break
    return bytes(data)


def _encode(entries: Entries) -> bytes:
    plain = [
        {"name": one.name}
        | ({"mode": f"{one.mode:o}"} if one.mode >= 0 else {})
        | ({"target": one.target} if one.target else {})
        for _, one in sorted(entries.items())
    ]
    return json.dumps({"format": FORMAT, "entries": plain}, indent=0).encode() + b"\n"


def _decode(data: bytes) -> Entries:
    """Return the entries. Raises ValueError."""
    if len(data) > MAX_INDEX_BYTES:
        raise ValueError(f"it has more than {MAX_INDEX_BYTES} bytes")
    plain = parse_json(data)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT or not isinstance(plain.get("entries"), list):
        raise ValueError("it is not an index of this format")
    found: Entries = {}
    for one in plain["entries"]:
        entry = TreeEntry(one["name"], int(one.get("mode", "-1"), 8), one.get("target", "")) if _is_entry(one) else None
        if entry is None or not -1 <= entry.mode <= _max_mode(entry):
            raise ValueError("an entry is damaged")
        found[entry.name] = entry
    return found


def _max_mode(entry: TreeEntry) -> int:
    return MAX_DIRECTORY_MODE if entry.name.endswith("/") else MAX_FILE_MODE


def _is_entry(one: object) -> bool:
    return isinstance(one, dict) and "name" in one and all(isinstance(value, str) for value in one.values())
