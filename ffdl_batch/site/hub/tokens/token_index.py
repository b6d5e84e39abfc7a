"""Store which user owns each token id. The index has neither tokens nor hashes: the user's daemon checks each token."""

from __future__ import annotations

import pwd
from collections.abc import Callable

from sqlalchemy import delete, func, insert, select, update

from ffdl_batch.site.hub.schema import LEVERS, TOKENS
from ffdl_batch.store.database import Database

ALL_TOKENS = "tokens"
"""Kind of the lever with which operators revoke all tokens that exist."""
MOST_OF_USER = 200
"""Maximum number of valid tokens of a user."""


class IndexRefused(Exception):
    """The token cannot be registered."""


def account_name(uid: int) -> str:
    """Return the name of an account; "" if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


class TokenIndex:
    """Maps token ids to users. Safe in every thread. Methods raise StoreError."""

    def __init__(self, database: Database, account: Callable[[int], str] = account_name) -> None:
        """`database` has the hub's tables."""
        self._database, self._account = database, account

    def put(self, token_id: str, uid: int, expires_at: float) -> None:
        """Register a token, or change its expiry. Raises IndexRefused if another user has the id, or if the user has
        too many tokens or no account."""
        account = self._account(uid)
        if not account:
            raise IndexRefused(f"user {uid} has no account on this host")
        with self._database.writing() as connection:
            now = self._database.now(connection)
            connection.execute(delete(TOKENS).where(TOKENS.c.expires_at <= now))
            found = connection.execute(
                select(TOKENS.c.uid, TOKENS.c.account).where(TOKENS.c.id == token_id)
            ).one_or_none()
            if found is not None:
                if (found.uid, found.account) != (uid, account):
                    raise IndexRefused(f"the id {token_id} is taken")
                connection.execute(update(TOKENS).where(TOKENS.c.id == token_id).values(expires_at=expires_at))
                return
            own = select(func.count()).select_from(TOKENS).where(TOKENS.c.uid == uid, TOKENS.c.account == account)
            if connection.execute(own).scalar_one() >= MOST_OF_USER:
                raise IndexRefused(f"you have {MOST_OF_USER} valid tokens; revoke some")
            values = {"id": token_id, "uid": uid, "account": account, "registered_at": now, "expires_at": expires_at}
            connection.execute(insert(TOKENS).values(**values))

    def remove(self, token_id: str, uid: int) -> None:
        """Forget a token of this user, if it is known."""
        with self._database.writing() as connection:
            connection.execute(delete(TOKENS).where(TOKENS.c.id == token_id, TOKENS.c.uid == uid))

    def remove_all(self, uid: int) -> None:
        """Forget all tokens of this user."""
        with self._database.writing() as connection:
            connection.execute(delete(TOKENS).where(TOKENS.c.uid == uid))

    def owner(self, token_id: str) -> int | None:
        """Return the uid of the token's owner; None for an id that is unknown, expired or revoked with all others, or
        if the uid belongs to another account now."""
        revoked = select(LEVERS.c.set_at).where(LEVERS.c.kind == ALL_TOKENS).scalar_subquery()
        with self._database.reading() as connection:
            query = select(TOKENS, revoked.label("revoked_at")).where(TOKENS.c.id == token_id)
            row = connection.execute(query).one_or_none()
            if row is None or row.expires_at <= self._database.now(connection):
                return None
            if row.revoked_at is not None and row.registered_at <= row.revoked_at:
                return None
        return row.uid if self._account(row.uid) == row.account else None
