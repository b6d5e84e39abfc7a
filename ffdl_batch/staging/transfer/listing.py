"""What lies below a prefix, said for people: nothing moves."""

from __future__ import annotations

from ffdl_batch.domain.data.staging_protocol import Entry
from ffdl_batch.staging.faults import at_store
from ffdl_batch.staging.object_names import INDEX, below, is_wanted
from ffdl_batch.staging.run_context import Way
from ffdl_batch.staging.stores.store import Item
from ffdl_batch.staging.transfer.planning import must_have_something, pages, single


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
