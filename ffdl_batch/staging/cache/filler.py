"""An entry is filled: the transfer's objects come into a directory of the cache, which becomes the entry when whole."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ffdl_batch.domain.data.staging_protocol import Direction, Transfer
from ffdl_batch.staging.cache.election import JOURNAL, Right, Signs
from ffdl_batch.staging.cache.entry import new_entry, seal, write_entry
from ffdl_batch.staging.faults import described
from ffdl_batch.staging.journal import Journal
from ffdl_batch.staging.object_names import parts_of
from ffdl_batch.staging.run_context import Way
from ffdl_batch.staging.transfer.download import bring_planned
from ffdl_batch.staging.tree import Tree
from ffdl_batch.staging.workers import Workers

PAGE = 500


class Moved(Exception):
    """The store's objects are others than those that the key stands for."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What the store has: the plan of the way in its run's journal, directories without files, and its key."""

    way: Way
    directories: Sequence[str]
    key: str
    files: int
    bytes: int
    room: int


def fill(listing: Listing, right: Right, each_s: float) -> None:
    """Bring all, make it read-only, and give it its place; signs of life come after so many seconds each. Raises Fault,
    Moved, OSError."""
    began, run, sealed = time.time(), listing.way.run, Counter[str]()

    def signs() -> Signs:
        told = run.teller.counted()
        return Signs(0, told.files, told.files_total, told.bytes, told.bytes_total, sealed["bytes"])

    right.begin(signs, each_s)
    stop = threading.Event()
    journal, workers = Journal(f"{right.directory}/{JOURNAL}", Direction.IN), Workers(run.task.parallel, stop)
    try:
        inner = replace(run, journal=journal, workers=workers, stop=stop, patience=replace(run.patience, stop=stop))
        with Tree(f"{right.directory}/tree", make=True) as tree:
            way = replace(listing.way, run=inner, place=listing.key)
            _bring(listing, way, tree)
            _require_same(way)
            sizes = seal(right.directory, tree, lambda size: sealed.update(bytes=size))
    finally:
        workers.end()
        journal.close()
    write_entry(right.directory, new_entry(listing.key, _source(listing.way.transfer), sizes, began))
    right.place()


def _bring(listing: Listing, way: Way, tree: Tree) -> None:
    for name in listing.directories:
        with tree.directory(parts_of(name), make=True):
            continue
    planned = listing.way.run.journal.planned(listing.way.place)
    while page := list(islice(planned, PAGE)):
        way.run.journal.plan(way.place, page)
    way.run.workers.begin()
    bring_planned(way, tree)
    way.run.workers.finish()


def _require_same(way: Way) -> None:
    """Objects that changed while they were read are others than those of the key. Raises Moved."""
    journal, place = way.run.journal, way.place
    for planned in journal.planned(place):
        found = journal.settled(place, planned.name)
        if found is not None and found.etag != planned.item.etag:
            raise Moved(planned.name)


def _source(transfer: Transfer) -> str:
    return described(transfer.store, transfer.prefix)
