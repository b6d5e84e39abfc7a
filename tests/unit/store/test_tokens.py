"""Rows of tokens on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.access import Scope
from ffdl_batch.store import Store, StoredToken, StoreError
from ffdl_batch.store.tokens import KEPT_S

FIRST = StoredToken("aaaaaaaaaaaa", "laptop \udcff", "d" * 64, (Scope.READ, Scope.WRITE), 100.0, 200.0)


def test_added_token_is_returned_until_it_expires(store: Store) -> None:
    second = replace(FIRST, id="bbbbbbbbbbbb", created_at=150.0)
    assert store.tokens.add(FIRST, 100) and store.tokens.add(second, 100)
    assert store.tokens.get(FIRST.id) == FIRST and store.tokens.get("cccccccccccc") is None
    assert store.tokens.live(150.0) == [second, FIRST]
    assert store.tokens.live(200.0) == []


def test_token_beyond_limit_is_not_added_until_another_ends(store: Store) -> None:
    assert store.tokens.add(FIRST, 1)
    second = replace(FIRST, id="bbbbbbbbbbbb", created_at=101.0)
    assert not store.tokens.add(second, 1) and store.tokens.get(second.id) is None
    store.tokens.revoke(FIRST.id, 102.0)
    assert store.tokens.add(second, 1)


def test_revoked_token_keeps_time_of_first_revocation(store: Store) -> None:
    store.tokens.add(FIRST, 1)
    assert store.tokens.revoke(FIRST.id, 110.0) == replace(FIRST, revoked_at=110.0)
    assert store.tokens.revoke(FIRST.id, 120.0) == store.tokens.get(FIRST.id) == replace(FIRST, revoked_at=110.0)
    assert store.tokens.live(115.0) == []
    assert store.tokens.revoke("cccccccccccc", 120.0) is None


def test_unusable_token_is_forgotten_after_a_day(store: Store) -> None:
    store.tokens.add(FIRST, 100)
    for name, at in (("bbbbbbbbbbbb", FIRST.expires_at + KEPT_S), ("cccccccccccc", FIRST.expires_at + KEPT_S + 1)):
        assert store.tokens.get(FIRST.id) == FIRST
        store.tokens.add(replace(FIRST, id=name, created_at=at, expires_at=at + 1), 100)
    assert store.tokens.get(FIRST.id) is None


def test_second_token_with_same_id_is_refused(store: Store) -> None:
    store.tokens.add(FIRST, 100)
    with pytest.raises(StoreError):
        store.tokens.add(FIRST, 100)


def test_digest_is_not_in_representation() -> None:
    assert FIRST.digest not in repr(FIRST)
