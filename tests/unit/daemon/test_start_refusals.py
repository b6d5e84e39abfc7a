"""How a daemon ends that cannot start: what it says, and its exit status if its log has no room."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.daemon.main import describe, without_promises
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.services.os_errors import explain
from ffdl_batch.store.errors import translate


def sentences() -> Iterator[str]:
    for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        error = sqlite3.OperationalError("refused")
        error.sqlite_errorcode = code
        yield str(translate(error, "/state/ffdl.sqlite3"))
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE):
        yield str(explain(OSError(number, os.strerror(number)), "/state"))


def test_daemon_start_errors_omit_automatic_recovery_that_running_daemon_mentions() -> None:
    found = list(sentences())
    assert [text for text in found if "by itself" in text], "else there would be nothing to leave out"
    for sentence in found:
        said = without_promises(sentence)
        assert "by itself" not in said
        assert sentence.startswith(said.split(" (", maxsplit=1)[0])


def test_daemon_start_error_names_cure_if_lock_cannot_be_written() -> None:
    said = describe(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/lock"))
    assert said == "no space is left in /state/lock: free space there, or raise the quota"
    assert describe(OSError(errno.EACCES, "Permission denied", "/state")) == "[Errno 13] Permission denied: '/state'"


DAEMON = (sys.executable, "-m", "ffdl_batch.daemon.main", "--personal")


@pytest.mark.parametrize(
    ("state", "code"),
    [("file/state", ExitCode.TRY_AGAIN), ("open", ExitCode.NOT_ALLOWED), ("", ExitCode.BAD_MANIFEST)],
    ids=["directory", "writable", "settings"],
)
def test_daemon_exits_with_own_status_if_output_is_full(tmp_path: Path, state: str, code: ExitCode) -> None:
    """And not with 120, which the interpreter makes of a last flush that fails."""
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    (tmp_path / "ffdl.toml").write_text("" if state else "no_such_key = 1\n")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / (state or "state"))}
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            (*DAEMON, "--directory", str(tmp_path)), env=environ, cwd="/", stdin=subprocess.DEVNULL,
            stdout=full, stderr=full, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode == code
