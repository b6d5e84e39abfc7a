"""Bringing the schema up to date. Alembic is imported only when there is something to do.

Whoever migrates holds a lock that all others wait for: an advisory lock on PostgreSQL, an exclusive transaction
on SQLite. All steps are one transaction on both, so an interrupted migration leaves the schema of before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import column, func, inspect, select, table
from sqlalchemy.engine import Connection

from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import Conflict, SchemaTooNew, StoreError

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0001", "0002")
"""Every revision this release knows, oldest first; a test compares it with the migrations."""
HEAD = REVISIONS[-1]
_VERSION = table("alembic_version", column("version_num"))
_ADVISORY_KEY = 0x66666462  # "ffdb": any number that nobody else in the database uses


def bring_up_to_date(database: Database) -> None:
    """Migrate the database to HEAD where it is older or empty. Raises SchemaTooNew where it is newer."""
    with database.reading() as connection:
        found = current_revision(connection)
    if found == HEAD:
        return
    _refuse_unknown(found, database.place)
    try:
        with database.writing(begin="EXCLUSIVE") as connection:
            _migrate(connection, database)
    except Conflict as error:
        raise StoreError(f"the schema could not be made: {error}") from error


def current_revision(connection: Connection) -> str | None:
    """The schema's revision, None for an empty database."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    found = connection.execute(select(_VERSION.c.version_num)).scalars().first()
    return None if found is None else str(found)


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration for the migrations in this package, over an open connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _migrate(connection: Connection, database: Database) -> None:
    if database.is_postgres:
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_KEY)))
        _require_utf8(connection, database.place)
    found = current_revision(connection)  # another process may have migrated while this one waited
    _refuse_unknown(found, database.place)
    if found == HEAD:
        return
    from alembic import command

    command.upgrade(alembic_config(connection), HEAD)


def _require_utf8(connection: Connection, place: str) -> None:
    encoding = connection.execute(select(func.current_setting("server_encoding"))).scalar_one()
    if encoding != "UTF8":
        raise StoreError(f"the database {place} has the encoding {encoding}: make one with ENCODING 'UTF8'")


def _refuse_unknown(found: str | None, place: str) -> None:
    if found is not None and found not in REVISIONS:
        raise SchemaTooNew(
            f"the database {place} has schema revision {found}, this release knows {HEAD} and older: a newer release "
            "has migrated it. Run that release again, or restore the copy of the database from before"
        )
