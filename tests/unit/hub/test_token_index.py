"""The hub's index of tokens on SQLite and on a real PostgreSQL, and the hub while its database is away."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ffdl_batch.site.hub.schema import create_tables
from ffdl_batch.site.hub.tokens import token_index
from ffdl_batch.site.hub.tokens.token_index import IndexRefused, TokenIndex
from ffdl_batch.store.database import connect
from tests.postgres import running_postgres
from tests.unit.hub.conftest import ID, OWN, Site, answer
from tests.unit.store.conftest import empty_url  # noqa: F401 - a fixture
from tests.unit.store.jobs import FakeClock

ADA, BOB, GONE = 7001, 7002, 7003
NAMES = {ADA: "ada", BOB: "bob", GONE: ""}
OTHER_ID = "zyx987zyx987"


@contextmanager
def opened(url: str) -> Iterator[TokenIndex]:
    """An index, as a hub has it that starts."""
    database = connect(url, False, FakeClock())
    try:
        create_tables(database)
        yield TokenIndex(database, account=lambda uid: NAMES[uid])
    finally:
        database.close()


def now(index: TokenIndex) -> float:
    with index._database.reading() as connection:
        return index._database.now(connection)


def test_index_keeps_owners_of_valid_tokens_across_restarts(empty_url: str) -> None:  # noqa: F811
    with opened(empty_url) as index:
        soon = now(index) + 1000
        for identity, uid in ((ID, ADA), (OTHER_ID, BOB)):
            index.put(identity, uid, soon)
            index.put(identity, uid, soon)  # a repeated request
    with opened(empty_url) as index:
        assert [index.owner(one) for one in (ID, OTHER_ID, "x" * 12)] == [ADA, BOB, None]
        index.remove(ID, BOB)
        index.remove(OTHER_ID, BOB)
        assert [index.owner(one) for one in (ID, OTHER_ID)] == [ADA, None]
        with pytest.raises(IndexRefused, match="is taken"):
            index.put(ID, BOB, soon)
        with pytest.raises(IndexRefused, match="has no account"):
            index.put(OTHER_ID, GONE, soon)
        index.put(ID, ADA, now(index) - 1)
        assert index.owner(ID) is None
        index.put(ID, BOB, soon)  # expired tokens are removed
        assert index.owner(ID) == BOB


def test_index_limits_tokens_of_a_user_and_knows_accounts_by_name(
    empty_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_index, "MOST_OF_USER", 2)
    with opened(empty_url) as index:
        soon = now(index) + 1000
        index.put(ID, ADA, soon)
        index.put(OTHER_ID, ADA, soon)
        with pytest.raises(IndexRefused, match="you have 2 valid tokens"):
            index.put("c" * 12, ADA, soon)
        index.put("c" * 12, BOB, soon)
        monkeypatch.setitem(NAMES, ADA, "another")
        assert index.owner(ID) is None
        index.put("d" * 12, ADA, soon)  # the former user's tokens do not count


@pytest.mark.postgres
def test_hub_answers_again_after_its_database_was_restarted_or_crashed(start_hub: Callable[..., Site]) -> None:
    with running_postgres() as server:
        site = start_hub(database_url=server.url(server.create_database()))
        site.serve_daemon(answer)
        for how in (signal.SIGINT, signal.SIGQUIT):
            assert site.ask("/api/v1/jobs").status == 200
            server.stop(how)
            refused = site.ask("/api/v1/jobs")
            assert (refused.status, refused.message) == (503, "the hub's database does not answer")
            assert site.ask("/api/site/v1/health", token="").status == 200
            server.start()
        assert site.ask("/api/v1/jobs").status == 200 and site.tokens.owner(ID) == OWN
        site.end()
