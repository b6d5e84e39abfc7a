"""Find and open the configured database, and keep daemons away from it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import ConfigError, load_settings
from ffdl_batch.config.daemon_location import PlaceRefused, check_own_directory, this_machine
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.filesystem import is_network, is_read_only
from ffdl_batch.services.daemon_lock import AlreadyServed, HeldElsewhere, acquire, own_record
from ffdl_batch.services.job_files.database_binding import refuse_to_forget
from ffdl_batch.services.os_errors import explain
from ffdl_batch.store import DatabaseMissing, StoreError, StoreUnavailable
from ffdl_batch.store.database import Database
from ffdl_batch.store.existing_database import NoDatabase, connect_existing, sqlite_file
from ffdl_batch.store.schema import JOBS, LEASES

PATIENCE_S = 5.0
"""How long to wait for a daemon that is starting or ending."""
HOW_TO_STOP = "end it first (jobs run on without it): ffdl daemon stop"


@dataclass(frozen=True, slots=True)
class Place:
    """The configured database, and the directories of its daemon."""

    url: str
    state_dir: Path
    jobs_dir: Path

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database."""
        return sqlite_file(self.url)


@contextmanager
def stopping_on_store_errors() -> Iterator[None]:
    """Inside, an error of the store ends the command with its message."""
    try:
        yield
    except DatabaseMissing as error:
        raise Stop(ExitCode.BAD_MANIFEST, str(error)) from error
    except NoDatabase as error:
        raise Stop(ExitCode.NO_INPUT, str(error)) from error
    except StoreUnavailable as error:
        raise Stop(ExitCode.TRY_AGAIN, str(error)) from error
    except StoreError as error:
        raise Stop(ExitCode.UNAVAILABLE, str(error)) from error


def find_place() -> Place:
    """Return the database of the configuration."""
    try:
        settings = load_settings()
        check_own_directory(Path(settings.state_dir))
    except ConfigError as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from error
    except PlaceRefused as refused:
        raise _stop(refused) from refused
    return Place(settings.database, Path(settings.state_dir), Path(settings.jobs_dir))


def _stop(refused: PlaceRefused) -> Stop:
    return Stop(ExitCode(refused.exit_code), f"{refused} ({refused.cure})")


@contextmanager
def opened(place: Place) -> Iterator[Database]:
    """Yield the database as it is; a daemon may run if its kind allows that.

    A daemon has SQLite on a network file system for itself, so none may run then. On a read-only file system there is
    no lock to hold; a process that writes the database on another host holds SQLite's own lock.
    """
    file = place.file
    with stopping_on_store_errors(), contextlib.ExitStack() as stack:
        if file is not None and file.exists():
            directory = Path(os.path.realpath(file)).parent
            if is_network(directory) and not is_read_only(directory):
                stack.enter_context(held(place))
        try:
            yield stack.enter_context(_connected(place))
        except NoDatabase as error:
            if file is not None:
                _refuse_to_forget(place, file, error)
            raise


def _refuse_to_forget(place: Place, file: Path, error: NoDatabase) -> None:
    """Raise what a daemon would raise that finds no database here."""
    try:
        refuse_to_forget(str(file), Root(str(place.jobs_dir)))
    except OSError as unreadable:
        raise StoreUnavailable(f"{error}, and {place.jobs_dir} cannot be read: {unreadable.strerror}") from unreadable


@contextmanager
def _connected(place: Place) -> Iterator[Database]:
    database = connect_existing(place.url)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def held(place: Place) -> Iterator[None]:
    """Hold the daemon's lock: no daemon of this state directory runs or starts inside."""
    machine = this_machine()
    record = own_record(machine)
    try:
        hold = acquire(place.state_dir, record, machine, patience_s=PATIENCE_S)
    except AlreadyServed as served:
        raise Stop(ExitCode.TRY_AGAIN, f"{served}; {HOW_TO_STOP}") from served
    except HeldElsewhere as error:
        cure = f"; {HOW_TO_STOP}" if error.exit_code == ExitCode.TRY_AGAIN else ""  # else there is no daemon to end
        raise Stop(ExitCode(error.exit_code), f"{error}{cure}") from error
    except PlaceRefused as refused:
        raise _stop(refused) from refused
    except OSError as error:
        why = explain(error, str(place.state_dir)) or error.strerror
        raise Stop(ExitCode.TRY_AGAIN, f"the state directory {place.state_dir} cannot be used: {why}") from error
    try:
        yield
    finally:
        hold.release()


def refuse_others(connection: Connection, database: Database) -> None:
    """Raise Stop if leases show that a daemon of another state directory works with a PostgreSQL database.

    A killed daemon counts as working until its leases expire.
    """
    owners = select(LEASES.c.owner).where(LEASES.c.until > database.now_expression())
    living = sorted(set(connection.execute(owners).scalars()))
    if database.is_postgres and living:
        raise Stop(
            ExitCode.TRY_AGAIN,
            f"a daemon works with {database.place}: {', '.join(living)} (host:state directory). End it on that host "
            "(ffdl daemon stop); the leases of a killed one expire within half a minute",
        )


def count_jobs(connection: Connection) -> int:
    """Return how many jobs the database has."""
    return int(connection.execute(select(func.count()).select_from(JOBS)).scalar_one())
