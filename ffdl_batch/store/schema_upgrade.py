"""Create the schema of an empty database, or upgrade an older one.

An empty database gets the tables of `schema` directly. Alembic is imported only for an upgrade, because its modules
would stay in the daemon's memory: they need as much as the web framework.

The upgrading process holds a lock that all others wait for: an advisory lock on PostgreSQL, an exclusive transaction on
SQLite. Each revision is one transaction, which reads the present revision first. So a process that is killed leaves a
whole revision, and the next start continues from there. An empty database gets all tables in one transaction.

A SQLite database is copied to a file beside it before; PostgreSQL has backups of its own. A table records which release
applied each revision, for messages of a release that does not know it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Double,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.engine import Connection

from ffdl_batch import __version__
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.database import Database
from ffdl_batch.store.errors import Conflict, SchemaTooNew, StoreError
from ffdl_batch.store.existing_database import connect_file
from ffdl_batch.store.schema import METADATA
from ffdl_batch.store.sqlite_files import CopyFailed, copy_database, drop_old_copies, upgrade_copies, upgrade_copy

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""The revisions that this release knows, oldest first; a test compares them with the migrations."""
HEAD = REVISIONS[-1]
MIGRATIONS = Path(__file__).parent / "migrations"
APPLIED = Table(
    "schema_revisions",
    METADATA,
    Column("revision", Text, primary_key=True),
    Column("release", Text, nullable=False),
    Column("at", Double, nullable=False),
)
"""Which release applied which revision, and when."""
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, which has the present revision. The definition is Alembic's."""
_ADVISORY_KEY = 0x66666462  # "ffdb": any number that no other program uses in the database


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The result of an upgrade.

    `found` is the revision before (None = the database was empty), `copy` the copy of a SQLite database with content.
    """

    found: str | None
    applied: tuple[str, ...] = ()
    copy: Path | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """The schema revision of a database; `release` applied it at the time `at` ("" = not recorded)."""

    revision: str | None
    release: str = ""
    at: float = 0.0
    foreign: tuple[str, ...] = ()
    """Tables of another program that have the names of ours."""

    @property
    def is_known(self) -> bool:
        """Whether this release knows the revision, or the database is empty."""
        return (self.revision is None or self.revision in REVISIONS) and not self.foreign

    @property
    def missing(self) -> tuple[str, ...]:
        """The revisions that an upgrade would apply."""
        return REVISIONS[REVISIONS.index(self.revision) + 1 :] if self.revision in REVISIONS else REVISIONS


def bring_up_to_date(
    database: Database,
    may_begin: Callable[[str], None] | None = None,
    may_use: Callable[[], None] | None = None,
) -> Upgrade:
    """Upgrade an older or empty database to HEAD.

    `may_begin` is called before an empty SQLite database gets its tables, `may_use` before a database with tables is
    changed; they raise to forbid it. Raises SchemaTooNew if it is newer; nothing was written then, not even a journal's
    mode. Raises CopyFailed if a SQLite database cannot be copied before, and StoreError.
    """
    before = _look(database)
    refuse_unknown(before, database)
    if before.revision is not None and may_use is not None:
        may_use()
    if before.revision == HEAD:
        return Upgrade(HEAD)
    if before.revision is None and may_begin is not None and not database.is_postgres:
        may_begin(database.place)
    copy = None if before.revision is None or database.is_postgres else _copy(database, before.revision)
    applied: list[str] = []
    try:
        while not applied or applied[-1] != HEAD:
            with database.writing(begin="EXCLUSIVE") as connection:
                done = _apply_next(connection, database)
            if not done:  # another process finished while this one waited
                break
            applied += done
    except Conflict as error:
        raise StoreError(f"the schema could not be created: {error}") from error
    if before.revision is not None:
        kept = f"; the database of before is {copy}" if copy is not None else ""
        log.info("the schema of %s was brought from %s to %s%s", database.place, before.revision, HEAD, kept)
    return Upgrade(before.revision, tuple(applied), copy)


def standing_of(connection: Connection) -> Standing:
    """Return the revision of the database and the release that applied it."""
    revision = current_revision(connection)
    if revision is None:
        names = inspect(connection).get_table_names()
        return Standing(None, foreign=tuple(sorted(set(METADATA.tables).intersection(names))))
    if not inspect(connection).has_table(APPLIED.name):
        return Standing(revision)
    row = connection.execute(select(APPLIED.c.release, APPLIED.c.at).where(APPLIED.c.revision == revision)).first()
    return Standing(revision) if row is None else Standing(revision, row.release, row.at)


def current_revision(connection: Connection) -> str | None:
    """Return the revision of the schema, None for an empty database."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    found = connection.execute(select(_VERSION.c.version_num)).scalars().first()
    return None if found is None else str(found)


def refuse_unknown(found: Standing, database: Database) -> None:
    """Raise SchemaTooNew, with what to do, for a revision that this release does not know; StoreError for tables of
    another program."""
    if found.foreign:
        raise StoreError(
            f"the database {database.place} has tables of another program ({', '.join(found.foreign)}). Nothing was "
            "changed. Name another database (database_url), or move that one away"
        )
    if found.is_known:
        return
    copies = [] if database.is_postgres else upgrade_copies(Path(database.place))
    older = [path for revision, path in copies if revision in REVISIONS]
    copy = f" ({older[0]} is the newest)" if older else ""
    newer = f"ffdl-batch {found.release}" if found.release else "a newer release"
    raise SchemaTooNew(
        f"the database {database.place} has schema revision {found.revision}, made by {newer}; this is ffdl-batch "
        f"{__version__}, which knows {HEAD} and older. Nothing was changed. Run that newer release again, or put a "
        f"copy from before its upgrade back{copy}: ffdl-admin db restore FILE --force"
    )


def describe_revisions() -> Mapping[str, str]:
    """Return what each revision does, in a line, oldest first."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(MIGRATIONS))
    return {revision: (scripts.get_revision(revision).doc or "").strip() for revision in REVISIONS}


def alembic_config(connection: Connection, applied_at: float | None = None) -> Config:
    """Return Alembic's configuration for the migrations in this package, over an open connection.

    With `applied_at`, this release is recorded as the one that applied them at that time.
    """
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes.update(connection=connection, applied_at=applied_at)
    return config


def note_applied(connection: Connection, revision: str, at: float) -> None:
    """Record that this release applied the revision; called in its transaction."""
    APPLIED.create(connection, checkfirst=True)
    connection.execute(insert(APPLIED).values(revision=revision, release=__version__, at=at))


def _look(database: Database) -> Standing:
    """Return the revision. A SQLite file is first opened without changing its mode: a newer one stays as it is."""
    if not database.is_postgres:
        onlooker = connect_file(Path(database.place), database.clock, busy_timeout_s=0.0)
        try:
            with onlooker.reading() as connection:
                found = standing_of(connection)
            if not found.is_known:
                return found
        except StoreError:
            # Locked, or to be repaired after a crash: the next connection waits, or raises the cause.
            log.debug("%s cannot be read without being opened for writing", database.place)
        finally:
            onlooker.close()
    with database.reading() as connection:
        return standing_of(connection)


def _copy(database: Database, revision: str) -> Path:
    path = Path(database.place)
    target = upgrade_copy(path, revision, database.clock.now())
    try:
        with database.reading() as connection:
            current_revision(connection)  # begins the transaction whose state is copied
            copy_database(driver_connection(connection), target)
    except CopyFailed as error:
        raise CopyFailed(f"{path} stays at schema revision {revision} and cannot be used yet: {error}") from error
    drop_old_copies(path)
    return target


def _apply_next(connection: Connection, database: Database) -> tuple[str, ...]:
    """Apply the next revision in the open transaction, or create all tables; return the revisions applied."""
    if database.is_postgres:
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_KEY)))
        _require_utf8(connection, database.place)
    found = standing_of(connection)  # another process may have migrated while this one waited
    refuse_unknown(found, database)
    if found.revision is None:
        return _create_tables(connection, database.now(connection))
    following = found.missing[:1]
    if following:
        from alembic import command

        command.upgrade(alembic_config(connection, database.now(connection)), following[-1])
    return following


def _create_tables(connection: Connection, at: float) -> tuple[str, ...]:
    """Create what all revisions together create; return them."""
    METADATA.create_all(connection, checkfirst=False)
    _VERSION.create(connection, checkfirst=True)  # one without a row counts as an empty database
    connection.execute(insert(_VERSION).values(version_num=HEAD))
    for revision in REVISIONS:
        note_applied(connection, revision, at)
    return REVISIONS


def _require_utf8(connection: Connection, place: str) -> None:
    encoding = connection.execute(select(func.current_setting("server_encoding"))).scalar_one()
    if encoding != "UTF8":
        raise StoreError(f"the database {place} has the encoding {encoding}: make one with ENCODING 'UTF8'")


def driver_connection(connection: Connection) -> sqlite3.Connection:
    """Return the driver's connection, for functions that SQLAlchemy does not offer."""
    found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found
