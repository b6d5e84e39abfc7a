"""ffdl-admin db check on databases with one fault each."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store.schema_upgrade import HEAD
from tests.captured.releases import later_release
from tests.contract.admin.conftest import Desk
from tests.unit.store.jobs import add_job, applied, deploying, steps


@pytest.fixture
def job_id(desk: Desk) -> str:
    """A job that is queued, beside one that waits."""
    with desk.store() as store:
        job, token = deploying(store, "queued")
        queued = applied(store, job, steps(JobState.QUEUED, native_id="47"), lease_token=token)
        add_job(store, "waits")
        return str(queued.id)


def test_db_check_reports_no_fault_in_intact_database(desk: Desk, job_id: str) -> None:
    assert desk.done("db", "check") == f"no fault in 2 jobs, 1 attempt, 4 changes of state; schema revision {HEAD}\n"
    told = json.loads(desk.done("db", "check", "--json"))
    assert (told["schema"], told["jobs"], told["attempts"], told["entries"], told["faults"]) == (1, 2, 1, 4, [])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM history WHERE job_id = '{id}' AND seq = 2", "{id}: its history has a gap"),
        ("UPDATE attempts SET token = 'training-000000000-9'", "{id}: attempt 1 has the token 'training-000000000-9'"),
        ("UPDATE jobs SET spec = '{{\"name\": 1}}' WHERE id = '{id}'", "{id}: its row cannot be read: CodecError"),
        (f"UPDATE jobs SET spec = '{'[' * 9999}' WHERE id = '{{id}}'", "{id}: its row cannot be read: RecursionError"),
        ("UPDATE attempts SET checkpoint = '[]'", "{id}: the row of attempt 1 cannot be read: CodecError"),
        ("INSERT INTO leases VALUES ('watcher', 'login1', '', 0.0)", "lease watcher: it has the owner 'login1' and"),
        ("INSERT INTO leases VALUES ('watcher', 'x', 't', 9999999999.0)", "lease watcher: it lasts for"),
        ("DROP INDEX ix_attempts_upload_pending", "ix_attempts_upload_pending: the index of attempts is missing"),
        ("ALTER TABLE attempts DROP COLUMN simulated", "attempts: the column simulated is missing"),
        ("DROP TABLE leases", "leases: the table is missing"),
    ],
)
def test_db_check_names_damaged_row_index_or_table(desk: Desk, job_id: str, damage: str, said: str) -> None:
    desk.execute(damage.format(id=job_id))
    code, out, err = desk.run("db", "check")
    assert (code, err) == (1, "")
    assert said.format(id=job_id) in out, out
    code, out, _ = desk.run("db", "check", "--json")
    told = json.loads(out)
    assert code == 1
    assert said.format(id=job_id) in "{about}: {text}".format_map(told["faults"][0])


def test_db_check_reports_duplicate_attempt_tokens(desk: Desk, job_id: str) -> None:
    if desk.is_postgres:
        desk.execute("ALTER TABLE attempts DROP CONSTRAINT uq_attempts_token")
    else:
        desk.execute(
            "CREATE TABLE other AS SELECT * FROM attempts", "DROP TABLE attempts",
            "ALTER TABLE other RENAME TO attempts",
            "CREATE INDEX ix_attempts_upload_pending ON attempts (upload_pending)",
        )  # fmt: skip
    alike = "token, backend, native_id, created_at, outcome_code, network, nodes"
    desk.execute(f"INSERT INTO attempts (job_id, number, {alike}) SELECT job_id, 2, {alike} FROM attempts")
    _, out, _ = desk.run("db", "check")
    assert f"tokens: 2 attempts have the token {job_id}-1" in out
    assert "uq_attempts_token: the index of attempts is missing" in out


def test_db_check_reports_rows_of_deleted_job(desk: Desk, job_id: str) -> None:
    if desk.is_postgres:
        for table in ("attempts", "history"):
            desk.execute(f"ALTER TABLE {table} DROP CONSTRAINT fk_{table}_job_id")
    desk.execute(f"DELETE FROM jobs WHERE id = '{job_id}'")
    code, out, _ = desk.run("db", "check")
    assert code == 1
    assert f"{job_id}: it has rows in history, and there is no such job" in out
    assert f"{job_id}: it has rows in attempts, and there is no such job" in out


def test_db_check_reads_older_schema_without_upgrade(desk: Desk, job_id: str, tmp_path: Path) -> None:
    with later_release(tmp_path):
        assert "no fault in 2 jobs" in desk.done("db", "check")
        assert json.loads(desk.run("db", "current", "--json")[1])["revision"] == HEAD


def overwrite(path: Path, whole: bytes, at: int, data: bytes) -> None:
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])


DAMAGED_FILES: dict[str, Callable[[Path, bytes], object]] = {
    "header": lambda path, whole: overwrite(path, whole, 0, b"\xff" * 2000),
    "middle": lambda path, whole: overwrite(path, whole, len(whole) // 2, b"\xff" * 2000),
    "page": lambda path, whole: overwrite(path, whole, 4096 * 3, b"\0" * 4096),
    "truncated": lambda path, whole: path.write_bytes(whole[:8192]),
    "text": lambda path, whole: path.write_text("no database\n" * 1000),
    "directory": lambda path, whole: path.mkdir(),
    "named pipe": lambda path, whole: os.mkfifo(path),
    "link to a device": lambda path, whole: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
@pytest.mark.parametrize("damage", DAMAGED_FILES)
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_db_check_reports_damaged_file_with_path_and_cure(
    desk: Desk, job_id: str, damage: str, arguments: tuple[str, ...]
) -> None:
    whole = desk.file.read_bytes()
    desk.file.unlink()
    DAMAGED_FILES[damage](desk.file, whole)
    code, out, err = desk.run("db", "check", *arguments)
    assert code == 69, err
    assert f"the database {desk.file} is damaged" in err
    assert err.endswith("ffdl daemon stop, and put a copy in its place (ffdl-admin db restore FILE --force)\n")
    if not stat.S_ISREG(desk.file.stat().st_mode):
        assert out == ""
    elif arguments:
        assert {fault["about"] for fault in json.loads(out)["faults"]} == {"file"}
    else:
        assert " in 0 jobs, " in out and "  file: " in out
