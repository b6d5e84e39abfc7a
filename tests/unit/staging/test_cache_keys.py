"""What an entry is called: the same for the same listing of the same store, another one for any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.staging import StoreAddress, StoreKind
from ffdl_batch.staging.cache.keys import key_of
from ffdl_batch.staging.journal import Planned
from ffdl_batch.staging.stores.store import UNKNOWN, Item

STORE = StoreAddress(StoreKind.S3, "http://store", "r", "bucket", credentials={"password": "one"})
FILES = (Planned("a", Item("p/a", 1, "e1")), Planned("b", Item("p/b", 2, "e2")))
KEY = key_of(STORE, "p", (), FILES)


def test_cache_key_is_equal_for_same_listing_with_other_credentials() -> None:
    assert KEY is not None
    assert len(KEY) == 64
    same = replace(STORE, endpoint="http://store/", credentials={"password": "another"}, options={"timeout_s": "1"})
    later = tuple(Planned(one.name, replace(one.item, mtime=7.0)) for one in FILES)
    assert key_of(same, "p/", iter(()), iter(later)) == KEY


@pytest.mark.parametrize(
    "change",
    [{"endpoint": "http://other"}, {"container": "other"}, {"kind": StoreKind.GCS}, {"region": "other"}],
    ids=lambda change: next(iter(change)),
)
def test_cache_key_depends_on_store_address(change: dict[str, str]) -> None:
    assert key_of(replace(STORE, **change), "p", (), FILES) != KEY  # type: ignore[arg-type]


def test_cache_key_depends_on_every_part_of_listing() -> None:
    others = {
        key_of(STORE, "q", (), FILES),
        key_of(STORE, "p", ("empty",), FILES),
        key_of(STORE, "p", (), FILES[:1]),
        key_of(STORE, "p", (), (FILES[0], Planned("c", FILES[1].item))),
        key_of(STORE, "p", (), (FILES[0], Planned("b", Item("p/b", 3, "e2")))),
        key_of(STORE, "p", (), (FILES[0], Planned("b", Item("p/b", 2, "e3")))),
    }
    assert len(others | {KEY}) == 7


@pytest.mark.parametrize("item", [Item("x", 1, ""), Item("x", 1, 'W/"1"'), Item("x", UNKNOWN, "e")])
def test_cache_key_is_none_for_object_without_known_version(item: Item) -> None:
    assert key_of(STORE, "p", (), (*FILES, Planned("x", item))) is None
