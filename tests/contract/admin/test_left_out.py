"""Jobs that were executed and that the database does not have: restore leaves them out, check tells of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.daemon.platform import open_platform
from ffdl_batch.store import DatabaseMissing
from tests.captured.releases import later_release
from tests.contract.admin.conftest import Desk
from tests.unit.store.jobs import add_job

on_sqlite = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)


def start_daemon(desk: Desk) -> None:
    """As far as it opens what it works with."""
    environ = {"HOME": str(desk.state.parent), "FFDL_STATE_DIR": str(desk.state), "FFDL_DATABASE_URL": desk.url}
    open_platform(load_settings(cwd=desk.state.parent, environ=environ)).close()


def executed(desk: Desk, *names: str) -> list[str]:
    """Jobs that are accepted, and deployed."""
    with desk.store() as store:
        ids = [str(add_job(store, name).id) for name in names]
    for job_id in ids:
        (desk.state / "jobs" / job_id / "attempt-1").mkdir(parents=True)
    return ids


def test_daemon_starts_after_restore_left_out_executed_jobs(desk: Desk, tmp_path: Path) -> None:
    executed(desk, "known")
    desk.done("db", "backup", tmp_path / "copy")
    (late,) = executed(desk, "late")
    start_daemon(desk)
    (desk.state / "jobs" / "training-0000begun" / "model").mkdir(parents=True)  # which was never executed
    assert f"not in it: {late}. Their directories in" in desk.done("db", "restore", tmp_path / "copy", "--force")
    start_daemon(desk)
    out = desk.done("db", "check")
    assert f"left out by restore: {late}" in out
    told = json.loads(desk.done("db", "check", "--json"))
    assert (told["left_out"], told["unknown"], told["faults"]) == ([late], [], [])
    (later,) = executed(desk, "later")
    desk.done("db", "restore", tmp_path / "copy", "--force")
    start_daemon(desk)
    assert sorted(json.loads(desk.done("db", "check", "--json"))["left_out"]) == sorted([late, later])


def test_db_restore_clears_left_out_mark_and_accepts_database_without_missing_job(desk: Desk, tmp_path: Path) -> None:
    executed(desk, "known")
    desk.done("db", "backup", tmp_path / "copy")
    (late,) = executed(desk, "late")
    desk.done("db", "backup", tmp_path / "newer")
    desk.done("db", "restore", tmp_path / "copy", "--force")
    desk.done("db", "restore", tmp_path / "newer", "--force")
    told = json.loads(desk.done("db", "check", "--json"))
    assert (told["left_out"], told["unknown"]) == ([], [])
    desk.execute(f"DELETE FROM history WHERE job_id = '{late}'", f"DELETE FROM jobs WHERE id = '{late}'")
    code, out, _ = desk.run("db", "check")
    assert code == 1
    assert f"jobs: 1 job that was executed is not in it ({late})" in out
    told = json.loads(desk.run("db", "check", "--json")[1])
    assert (told["unknown"], told["faults"][0]["about"]) == ([late], "jobs")
    desk.execute("UPDATE jobs SET state = 'COMPLETED'")  # nor does another fault hide it
    assert json.loads(desk.run("db", "check", "--json")[1])["unknown"] == [late]
    desk.execute("UPDATE jobs SET state = 'PENDING'")
    with pytest.raises(DatabaseMissing, match="ffdl-admin db backup FILE; ffdl-admin db restore FILE --force"):
        start_daemon(desk)
    desk.done("db", "backup", tmp_path / "without")
    desk.done("db", "restore", tmp_path / "without", "--force")
    start_daemon(desk)


def test_db_restore_records_left_out_jobs_in_copy_of_older_release(desk: Desk, tmp_path: Path) -> None:
    with desk.store() as store:
        add_job(store)
    desk.done("db", "backup", tmp_path / "copy")
    (desk.state / "jobs" / "training-0000late0" / "attempt-1").mkdir(parents=True)
    with later_release(tmp_path):
        assert "not in it: training-0000late0" in desk.done("db", "restore", tmp_path / "copy", "--force")
        assert "left out by restore: training-0000late0" in desk.done("db", "check")
        start_daemon(desk)
        assert "left out by restore: training-0000late0" in desk.done("db", "check")


@on_sqlite
def test_db_check_reports_unreadable_jobs_dir_without_fault(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    executed(desk, "known")

    def fail(*_: object) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("ffdl_batch.services.job_files.database_binding.os.listdir", fail)
    out = desk.done("db", "check")
    assert "no fault in 1 job, " in out
    assert f"not compared with {desk.state}/jobs: Input/output error" in out
