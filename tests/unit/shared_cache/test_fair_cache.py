"""What a shared cache keeps and charges, window by window."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ffdl_batch.staging.shared_cache.fair_cache import MOST_ITEMS, FairCache

READS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("uvwxyz"), st.booleans()), min_size=1, max_size=60)
SIZES = {"u": 10, "v": 20, "w": 30, "x": 40, "y": 7, "z": 90}


def read(cache: FairCache, tenant: str, item: str, size: int) -> bool:
    """Read as the service does; return whether it was a hit."""
    if cache.ask(tenant, item, size):
        return True
    victims = cache.victims(item, size)
    if victims is not None:
        for victim in victims:
            cache.drop(victim)
        cache.hold(item, size)
        cache.charge_fill(tenant, item, size)
    return False


@settings(deadline=None)
@given(READS)
def test_cache_never_exceeds_its_limit_and_never_removes_what_is_licensed(
    reads: list[tuple[str, str, bool]],
) -> None:
    cache, filled = FairCache(100, Random(1)), 0
    for tenant, item, ends in reads:
        victims = cache.victims(item, SIZES[item])
        assert not set(victims or ()) & cache.licensed
        held = set(cache.held)
        read(cache, tenant, item, SIZES[item])
        filled += SIZES[item] if item in set(cache.held) - held else 0
        assert cache.bytes <= 100
        if ends:
            cache.end_window()
            assert sum(SIZES[one] for one in cache.licensed) <= 100
    assert round(sum(cache.filled.values()), 6) == filled


@settings(deadline=None)
@given(READS)
def test_licensed_item_is_always_admitted(reads: list[tuple[str, str, bool]]) -> None:
    cache = FairCache(100, Random(2))
    for tenant, item, ends in reads:
        read(cache, tenant, item, SIZES[item])
        if ends:
            cache.end_window()
        assert all(one in cache.held or cache.victims(one, SIZES[one]) is not None for one in cache.licensed)


def test_tenant_who_floods_removes_nothing_of_a_tenant_with_a_steady_demand() -> None:
    cache = FairCache(100, Random(3))
    for _ in range(3):
        read(cache, "ada", "set", 40)
        read(cache, "eve", "one-more", 60)
        cache.end_window()
    assert "set" in cache.licensed
    for number in range(500):
        read(cache, "eve", f"flood-{number}", 30)
    assert "set" in cache.held


def test_kept_bytes_are_charged_once_among_those_who_need_them() -> None:
    cache = FairCache(100, Random(4))
    for tenant in ("ada", "bob"):
        read(cache, tenant, "set", 40)
    cache.end_window()
    assert cache.kept == {"ada": 20.0, "bob": 20.0}
    assert cache.filled == {"ada": 40.0}
    cache.drop("set")
    read(cache, "bob", "set", 40)
    assert cache.filled == {"ada": 60.0, "bob": 20.0}


def test_demand_of_a_tenant_is_bounded_and_is_forgotten() -> None:
    cache = FairCache(100, Random(5))
    for number in range(3 * MOST_ITEMS):
        cache.ask("eve", f"item-{number}", 1 + number % 7)
    cache.end_window()
    for _ in range(8):
        cache.end_window()
    assert not cache.lottery.contents
    assert not cache.licensed
