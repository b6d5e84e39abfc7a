"""Store the tokens of a daemon: the SHA-256 of each secret, never the secret."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from ffdl_batch.domain.access import Scope
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.database import Database
from ffdl_batch.store.schema import TOKENS

KEPT_S = 86400.0
"""How long a token that cannot be used any more keeps its row, so that its id is not accepted again."""


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A row. Times are seconds since the epoch."""

    id: str
    name: str
    digest: str = field(repr=False)
    scopes: tuple[Scope, ...]
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    """None = it is not revoked."""


class Tokens:
    """The tokens of one database. Each method is a transaction, and raises the same errors as the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, token: StoredToken, most_live: int) -> bool:
        """Add a token; return False, and add nothing, if `most_live` can be used at its `created_at`.

        Rows of tokens that could not be used for KEPT_S are deleted. Raises StoreError if the id exists.
        """
        now = token.created_at
        unusable_since = func.coalesce(TOKENS.c.revoked_at, TOKENS.c.expires_at)
        with self._database.writing() as connection:
            live = select(func.count()).select_from(TOKENS).where(_is_live(now))
            if connection.execute(live).scalar_one() >= most_live:
                return False
            connection.execute(delete(TOKENS).where(unusable_since < now - KEPT_S))
            values = {name: getattr(token, name) for name in TOKENS.c.keys()}  # noqa: SIM118 - the names of columns
            connection.execute(insert(TOKENS), values | {"scopes": " ".join(token.scopes)})
        return True

    def get(self, token_id: str) -> StoredToken | None:
        """Return the token, also one that is expired or revoked; None if it does not exist."""
        with self._database.reading() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.id == token_id)).first()
            return None if row is None else _token(row)

    def live(self, now: float) -> list[StoredToken]:
        """Return the tokens that can be used at this time, newest first."""
        with self._database.reading() as connection:
            query = select(TOKENS).where(_is_live(now)).order_by(TOKENS.c.created_at.desc(), TOKENS.c.id)
            return [_token(row) for row in connection.execute(query)]

    def revoke(self, token_id: str, at: float) -> StoredToken | None:
        """Revoke a token and return it; None if it does not exist. One that is revoked does not change."""
        with self._database.writing() as connection:
            fresh = update(TOKENS).where(TOKENS.c.id == token_id, TOKENS.c.revoked_at.is_(None))
            connection.execute(fresh.values(revoked_at=at))
            row = connection.execute(select(TOKENS).where(TOKENS.c.id == token_id)).first()
            return None if row is None else _token(row)


def _is_live(now: float) -> Any:
    return TOKENS.c.revoked_at.is_(None) & (TOKENS.c.expires_at > now)


def _token(row: Any) -> StoredToken:
    scopes = tuple(Scope(word) for word in row.scopes.split())
    return StoredToken(row.id, row.name, row.digest, scopes, row.created_at, row.expires_at, row.revoked_at)
