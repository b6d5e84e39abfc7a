"""The cache: who makes room when it is full, and what its entries are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging.cache.cached_transfer import entry_key
from ffdl_batch.staging.cache.eviction_policy import Choice, Held, Need, choose_victims
from ffdl_batch.staging.journal import Planned
from ffdl_batch.staging.stores.store import UNKNOWN, Item


def entries(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Held]:
    return st.builds(
        Held, st.sampled_from("abcd"), st.uuids().map(str), sizes, st.integers(0, 20).map(float), st.booleans()
    )


HELD = entries(st.integers(1, 60))
NEED = st.builds(Need, st.integers(1, 200), st.sampled_from("abcde"), st.integers(0, 120))


def holdings(usage: list[Held], need: Need) -> Counter[str]:
    found: Counter[str] = Counter()
    for held in usage:
        found[held.tenant] += held.bytes
    if need.bytes:
        found[need.tenant] += need.bytes
    return found


@given(st.lists(HELD, max_size=12), NEED)
def test_cache_policy_evicts_only_unused_entries_and_no_more_than_needed(usage: list[Held], need: Need) -> None:
    choice = choose_victims(usage, need)
    assert set(choice.victims) <= {held for held in usage if held.free}
    assert len(set(choice.victims)) == len(choice.victims)
    left = holdings(usage, need).total() - sum(held.bytes for held in choice.victims)
    if choice.enough:
        assert left <= need.limit_bytes
        assert all(left + held.bytes > need.limit_bytes for held in choice.victims)
    else:
        assert left > need.limit_bytes


@given(st.lists(HELD, max_size=12), NEED)
def test_cache_policy_evicts_no_other_tenant_below_equal_share(usage: list[Held], need: Need) -> None:
    holds = holdings(usage, need)
    share = need.limit_bytes / max(1, len(holds))
    for held in choose_victims(usage, need).victims:
        assert held.tenant == need.tenant or holds[held.tenant] > share


@given(st.lists(HELD, max_size=12), NEED)
def test_cache_policy_grants_equal_share_if_no_entry_is_in_use(usage: list[Held], need: Need) -> None:
    usage = [Held(held.tenant, held.key, held.bytes, held.used_at) for held in usage]
    holds = holdings(usage, need)
    assert choose_victims(usage, need).enough or holds[need.tenant] > need.limit_bytes / len(holds)


@given(st.lists(entries(st.just(10)), max_size=12), NEED)
def test_cache_policy_evicts_own_entries_before_those_of_smaller_tenant(usage: list[Held], need: Need) -> None:
    """Of one size, because a larger entry that goes later may make room for one that was to go before it."""
    holds = holdings(usage, need)
    victims = choose_victims(usage, need).victims
    kept = [held for held in usage if held.tenant == need.tenant and held.free and held not in victims]
    for held in victims:
        if held.tenant != need.tenant and holds[held.tenant] < holds[need.tenant]:
            evicted = sum(v.bytes for v in victims if v.tenant == need.tenant)
            assert not kept or holds[need.tenant] - evicted <= holds[held.tenant]


def test_cache_policy_evicts_least_recently_used_entry_first() -> None:
    usage = [Held("a", "old", 30, 1), Held("a", "new", 30, 3), Held("a", "used", 30, 0, False), Held("b", "b", 10, 0)]
    assert [held.key for held in choose_victims(usage, Need(100, "a", 20)).victims] == ["old"]


def test_cache_policy_evicts_largest_tenant_and_keeps_smaller_tenant() -> None:
    usage = [Held("a", f"a{n}", 10, float(n)) for n in range(8)] + [Held("b", "b", 20, 0)]
    for _ in range(10):
        choice = choose_victims(usage, Need(100, "a", 40))
        assert choice.enough
        assert {held.tenant for held in choice.victims} == {"a"}
    assert choose_victims(usage, Need(100, "b", 30)).victims == (usage[0], usage[1], usage[2])


def test_cache_policy_evicts_nothing_for_request_above_limit() -> None:
    assert choose_victims([Held("a", "a", 10, 0)], Need(100, "a", 101)) == Choice((), False)


# -------------------------------------------------------------------------------------------- what an entry is called


STORE = StoreAddress(StoreKind.S3, "http://store", "r", "bucket", credentials={"password": "one"})
FILES = (Planned("a", Item("p/a", 1, "e1")), Planned("b", Item("p/b", 2, "e2")))
KEY = entry_key(STORE, "p", (), FILES)


def test_cache_key_is_equal_for_same_listing_with_other_credentials() -> None:
    assert KEY is not None
    assert len(KEY) == 64
    same = replace(STORE, endpoint="http://store/", credentials={"password": "another"}, options={"timeout_s": "1"})
    later = tuple(Planned(one.name, replace(one.item, mtime=7.0)) for one in FILES)
    assert entry_key(same, "p/", iter(()), iter(later)) == KEY


@pytest.mark.parametrize(
    "change",
    [{"endpoint": "http://other"}, {"container": "other"}, {"kind": StoreKind.GCS}, {"region": "other"}],
    ids=lambda change: next(iter(change)),
)
def test_cache_key_depends_on_store_address(change: dict[str, str]) -> None:
    assert entry_key(replace(STORE, **change), "p", (), FILES) != KEY  # type: ignore[arg-type]


def test_cache_key_depends_on_every_part_of_listing() -> None:
    others = {
        entry_key(STORE, "q", (), FILES),
        entry_key(STORE, "p", ("empty",), FILES),
        entry_key(STORE, "p", (), FILES[:1]),
        entry_key(STORE, "p", (), (FILES[0], Planned("c", FILES[1].item))),
        entry_key(STORE, "p", (), (FILES[0], Planned("b", Item("p/b", 3, "e2")))),
        entry_key(STORE, "p", (), (FILES[0], Planned("b", Item("p/b", 2, "e3")))),
    }
    assert len(others | {KEY}) == 7


@pytest.mark.parametrize("item", [Item("x", 1, ""), Item("x", 1, 'W/"1"'), Item("x", UNKNOWN, "e")])
def test_cache_key_is_none_for_object_without_known_version(item: Item) -> None:
    assert entry_key(STORE, "p", (), (*FILES, Planned("x", item))) is None
