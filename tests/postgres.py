"""A real PostgreSQL server for tests: its own directory, a Unix socket in it, no TCP, gone afterwards.

As root the server runs as `postgres`, or as `nobody` where there is no such account (it refuses root).
fsync stays on, for all tests: what the store calls durable is durable here too, and a server without it is no faster
here (a test pays for the files of its database, not for its commits).

A test run has one server (the fixture `postgres` of tests/conftest.py). Tests with processes get a database of their
own, copied from one that holds the schema; the many small ones share a database that is emptied after each
(`SharedDatabase`). Tests that stop or crash a server start one for themselves.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from ffdl_batch.ports.clock import Clock
from ffdl_batch.store import Store
from ffdl_batch.store.database import Database, WriteHealth, connect
from ffdl_batch.store.schema import METADATA
from tests.fakes.clock import FakeClock

START_TIMEOUT_S = 60.0
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "log_min_messages": "warning",
}


class PostgresMissing(RuntimeError):
    """There is no server package on this machine."""


class PostgresServer:
    """One server. Use :func:`running_postgres`, which cleans up."""

    def __init__(self, directory: Path, binaries: Path) -> None:
        self._directory = directory
        self._binaries = binaries
        account = _account()
        self._uid = account.pw_uid if account else None
        self._gid = account.pw_gid if account else None
        self._extra_groups: list[int] | None = [] if account else None
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    @property
    def pid(self) -> int:
        """The postmaster's process."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def url(self, database: str, user: str = "ffdl") -> str:
        """SQLAlchemy's URL of one database."""
        return f"postgresql+psycopg://{user}@/{database}?host={self._directory}"

    def demand_password(self, user: str, password: str) -> None:
        """Make a user who is let in with a password only; everybody else is let in as before."""
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'".encode())
            rules = self._data / "pg_hba.conf"
            rules.write_text(f"local all {user} scram-sha-256\n" + rules.read_text())
            connection.execute("SELECT pg_reload_conf()")
        self._await(lambda: not self._lets_in(user), f"the server to refuse {user}")

    def _lets_in(self, user: str) -> bool:
        """Whether somebody without a password gets in."""
        try:
            psycopg.connect(f"host={self._directory} user={user} dbname=postgres passfile=/dev/null").close()
        except psycopg.OperationalError:
            return False
        return True

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.05)

    def initialise(self) -> None:
        """Make the data directory."""
        if self._uid is not None and self._gid is not None:
            os.chown(self._directory, self._uid, self._gid)
        argv = [str(self._binaries / "initdb"), "-D", str(self._data), "-U", "ffdl", "-A", "trust", "-E", "UTF8"]
        # --no-sync spares syncing the empty cluster; the server itself syncs.
        made = subprocess.run(
            [*argv, "--locale=C", "--no-sync"],
            check=False,
            capture_output=True,
            cwd=self._directory,
            env=self._environment(),
            user=self._uid,
            group=self._gid,
            extra_groups=self._extra_groups,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr.decode(errors='replace').strip()}")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert self._process is None, "the server is running already"
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        argv = [str(self._binaries / "postgres"), "-D", str(self._data), "-k", str(self._directory), *settings]
        setpriv = shutil.which("setpriv")
        if setpriv:  # the server ends with the test process even when that is killed
            argv = [setpriv, "--pdeathsig", "INT", *argv]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment(),
                start_new_session=True,
                user=self._uid,
                group=self._gid,
                extra_groups=self._extra_groups,
            )
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT closes all connections and shuts down cleanly, SIGQUIT is a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(timeout=30)

    def create_database(self, template: str = "template0", owner: str = "ffdl") -> str:
        """Make a fresh database and return its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {owner} TEMPLATE {template}".encode())
        return name

    @contextlib.contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The name of a fresh database that is removed afterwards, whoever is connected to it."""
        name = self.create_database(template)
        try:
            yield name
        finally:
            self.drop_database(name)

    def connect(self, database: str) -> psycopg.Connection:
        """A plain connection, each statement a transaction of its own."""
        return psycopg.connect(self._conninfo(database), autocommit=True)

    def drop_database(self, name: str) -> None:
        """Remove a database and end its connections."""
        with self.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"

    def _conninfo(self, database: str) -> str:
        return f"host={self._directory} user=ffdl dbname={database} connect_timeout=60"

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(self._directory)}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self._conninfo("postgres")).close()
                return
            except psycopg.OperationalError as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    log = self._log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start: {error}; its log ends with: {log}") from error
                time.sleep(0.05)


class _KeptOpen(Database):
    """A database whose connections outlive the store of one test: a connection costs more than most tests."""

    def close(self) -> None:
        """Leave the connections to the next test."""


class SharedDatabase:
    """A database with the schema for many small tests, one after the other.

    Its connections and its compiled statements are kept, its rows are not.
    """

    def __init__(self, server: PostgresServer, template: str, options: str = "") -> None:
        name = server.create_database(template)
        self.url = f"{server.url(name)}{options}"
        self.own = server.connect(name)
        """A connection of the tests."""
        self.own.execute("SET synchronous_commit = off")
        self._opened: Database | None = None

    def open(self, clock: Clock) -> Store:
        """Return a store over this database. The schema is not checked."""
        if self._opened is None:
            self._opened = connect(self.url, None, clock)
        known = self._opened
        return Store(_KeptOpen(known.engine, known.place, clock, WriteHealth(clock.now)))

    def empty(self) -> None:
        """Delete all rows, after ending connections that still hold locks."""
        tables = "".join(f"DELETE FROM {table.name};" for table in reversed(METADATA.sorted_tables))
        self.own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            f"AND pid <> pg_backend_pid() AND state <> 'idle'; {tables}".encode()
        )

    def close(self) -> None:
        """Close all connections."""
        self.own.close()
        if self._opened is not None:
            self._opened.close()


class TurnedServerClock(FakeClock):
    """The server's clock in one database, as tests turn it: `clock_timestamp()` returns the time that is set here.

    A function of that name in the schema `public` stands before PostgreSQL's own for connections with OPTIONS.
    Everything else that the server does with time (timeouts, its log) stays true.
    """

    OPTIONS = "&options=-csearch_path%3Dpublic%2Cpg_catalog"

    def __init__(self, database: SharedDatabase) -> None:
        self.database = database
        super().__init__()

    @staticmethod
    def prepare(database: SharedDatabase) -> None:
        """Put the function into a database."""
        database.own.execute(
            "CREATE TABLE turned_clock (at double precision);"
            "INSERT INTO turned_clock VALUES (0);"
            "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE "
            "AS 'SELECT to_timestamp(at) FROM public.turned_clock'"
        )

    @property
    def at(self) -> float:
        """Seconds since the epoch."""
        return self._at

    @at.setter
    def at(self, seconds: float) -> None:
        self._at = seconds
        self.database.own.execute("UPDATE public.turned_clock SET at = %s", (seconds,))


def find_binaries(root: Path = Path("/usr/lib/postgresql")) -> Path:
    """Debian's directory of initdb and postgres, of the newest version. Raises :class:`PostgresMissing`."""
    found = [path.parent for path in root.glob("*/bin/initdb") if (path.parent / "postgres").exists()]
    if not found:
        raise PostgresMissing(
            "no PostgreSQL server is installed: `apt-get install postgresql`, or leave these tests out with "
            "`pytest -m 'not postgres'`"
        )
    return max(found, key=lambda path: float(path.parent.name))


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A running server with no database of its own yet; stopped and removed at the end, whatever happens."""
    binaries = find_binaries()
    # Not pytest's directory: a socket's path may have 107 bytes, and the server's account must get there.
    directory = Path(tempfile.mkdtemp(prefix="ffdl-pg-", dir="/tmp"))
    server = PostgresServer(directory, binaries)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def _account() -> pwd.struct_passwd | None:
    """The account the server runs as; None = the own one."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
