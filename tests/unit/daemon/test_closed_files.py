"""Replies to requests for files that a job closed to its user."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ffdl_batch.attempt.directory_tree import Directories
from ffdl_batch.daemon.error_replies import problem_of
from ffdl_batch.domain.exit_codes import ExitCode
from tests.file_modes import modes_count


@pytest.mark.parametrize("closed", ["attempt-1/logs", "attempt-1", "."])
@pytest.mark.parametrize("mode", [0o000, 0o200])
def test_request_names_directory_that_job_closed(closed: str, mode: int, tmp_path: Path) -> None:
    job = tmp_path / "training-000000000"
    logs = job / "attempt-1" / "logs"
    logs.mkdir(parents=True)
    place = job / closed
    place.chmod(mode)
    try:
        with modes_count():
            with pytest.raises(PermissionError) as denied:
                Directories(str(logs), below=str(job))
            problem = problem_of(denied.value, str(tmp_path))
    finally:
        place.chmod(0o700)
    assert problem is not None and problem.exit_code is ExitCode.UNAVAILABLE
    assert f"cannot be read, because '{place.name}' has mode {mode:04o}" in problem.message
    assert "chmod" in problem.cure


def test_request_does_not_explain_what_a_file_server_denies(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
    assert problem_of(denied, str(tmp_path)) is None
    assert problem_of(PermissionError(errno.EACCES, "Permission denied"), str(tmp_path)) is None
