"""A new database and the migrations have the schema of the code; a killed or concurrent start leaves a whole one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.store import open_store
from ffdl_batch.store.database import connect
from ffdl_batch.store.schema import METADATA
from ffdl_batch.store.schema_upgrade import HEAD, REVISIONS, alembic_config, bring_up_to_date
from tests import preloaded
from tests.unit.store.jobs import add_job, assert_consistent

ROOT = Path(__file__).parents[3]


def kill_creation(url: str, statement: str) -> None:
    """Open the store in a process that is killed before the first statement with this text."""
    source = """
        import os, signal, sys
        from sqlalchemy import Engine, event
        from ffdl_batch.store import open_store

        @event.listens_for(Engine, "before_cursor_execute")
        def kill(connection, cursor, statement, *rest):
            if sys.argv[2] in statement:
                os.kill(os.getpid(), signal.SIGKILL)

        open_store(sys.argv[1])
        """
    argv = [sys.executable, "-c", textwrap.dedent(source), url, statement]
    killed = preloaded.run(argv, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert killed.returncode == -9, killed.stderr


def assert_usable(url: str) -> None:
    store = open_store(url)
    assert_consistent(store, add_job(store).id)
    store.close()


def describe_schema(connection: Connection) -> Mapping[str, object]:
    """Return all that the database reports about each table; the order of columns and constraints does not matter."""
    inspector = inspect(connection)
    reports = (
        inspector.get_columns,
        inspector.get_indexes,
        inspector.get_unique_constraints,
        inspector.get_foreign_keys,
        inspector.get_check_constraints,
    )
    return {
        table: (inspector.get_pk_constraint(table), *(sorted(map(repr, report(table))) for report in reports))
        for table in inspector.get_table_names()
    }


@pytest.mark.parametrize("by_migrations", [False, True])
def test_new_database_and_migrated_one_have_exactly_the_schema_of_code(empty_url: str, by_migrations: bool) -> None:
    database = connect(empty_url, None, SystemClock())
    if by_migrations:
        with database.writing() as connection:
            command.upgrade(alembic_config(connection, applied_at=0.0), HEAD)
    else:
        bring_up_to_date(database)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, METADATA) == []
        assert set(inspect(connection).get_table_names()) == {*METADATA.tables, "alembic_version"}
        assert context.get_current_revision() == HEAD
    database.close()


def test_new_database_has_the_same_schema_as_migrated_one(empty_url: str) -> None:
    database = connect(empty_url, None, SystemClock())
    bring_up_to_date(database)
    with database.reading() as connection:
        created = describe_schema(connection)
    with database.writing() as connection:
        METADATA.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
    with database.writing() as connection:
        command.upgrade(alembic_config(connection, applied_at=0.0), HEAD)
    with database.reading() as connection:
        assert describe_schema(connection) == created
    database.close()


def test_revision_list_matches_migration_scripts(empty_url: str) -> None:
    database = connect(empty_url, None, SystemClock())
    with database.reading() as connection:
        script = ScriptDirectory.from_config(alembic_config(connection))
    database.close()
    assert tuple(revision.revision for revision in script.walk_revisions())[::-1] == REVISIONS
    assert script.get_heads() == [HEAD]


def test_open_store_imports_no_alembic_for_new_or_up_to_date_database(empty_url: str) -> None:
    source = "import sys; from ffdl_batch.store import open_store; "
    source += "open_store(sys.argv[1]).close(); open_store(sys.argv[1]).close(); "
    source += "sys.exit('alembic was imported' if 'alembic' in sys.modules else 0)"
    argv = [sys.executable, "-c", source, empty_url]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_killed_creation_of_tables_leaves_no_table_and_can_be_repeated(empty_url: str) -> None:
    kill_creation(empty_url, "CREATE TABLE history")
    database = connect(empty_url, None, SystemClock())
    with database.reading() as connection:
        assert inspect(connection).get_table_names() == []
    database.close()
    assert_usable(empty_url)


def test_open_store_succeeds_in_concurrent_processes_on_empty_database(empty_url: str) -> None:
    source = """
        import sys
        from ffdl_batch.store import database, open_store
        database.BUSY_TIMEOUT_S = 60.0  # each waits for the others, which take long on a busy machine
        print("ready", flush=True)
        sys.stdin.readline()
        store = open_store(sys.argv[1])
        print(store.count_live(), flush=True)
        store.close()
        """
    argv = [sys.executable, "-c", textwrap.dedent(source), empty_url]
    openers = [
        preloaded.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(3)
    ]
    try:
        for opener in openers:
            assert opener.stdout is not None
            assert opener.stdout.readline() == "ready\n"
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write("go\n")
            opener.stdin.flush()
        ends = [opener.communicate(timeout=120) for opener in openers]
    finally:
        for opener in openers:
            if opener.poll() is None:
                opener.kill()
                opener.communicate()
    assert ends == [("0\n", "")] * 3
    store = open_store(empty_url)
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]
    store.close()
