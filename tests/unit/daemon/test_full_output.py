"""A daemon whose log has no room: how it ends is all that it can say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ffdl_batch.domain.exit_codes import ExitCode

DAEMON = (sys.executable, "-m", "ffdl_batch.daemon.main", "--personal")


@pytest.mark.parametrize(
    ("state", "code"), [("file/state", ExitCode.TRY_AGAIN), ("", ExitCode.BAD_MANIFEST)], ids=["directory", "settings"]
)
def test_daemon_exits_with_own_status_if_output_is_full(tmp_path: Path, state: str, code: ExitCode) -> None:
    """And not with 120, which the interpreter makes of a last flush that fails."""
    (tmp_path / "file").touch()
    (tmp_path / "ffdl.toml").write_text("" if state else "no_such_key = 1\n")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / (state or "state"))}
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            (*DAEMON, "--directory", str(tmp_path)), env=environ, cwd="/", stdin=subprocess.DEVNULL,
            stdout=full, stderr=full, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode == code
