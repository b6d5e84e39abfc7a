"""Commands that hold what a manifest refers to leave no core dump."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, environment

WITH_CORES = ("/bin/sh", "-c", 'ulimit -S -c "$(ulimit -H -c)" && exec "$@"', "sh")
"""Before a command: it may leave core dumps."""
MANIFEST = """\
name: digits
framework: {name: custom, version: python-numpy, command: "true"}
data_stores:
  - type: mount_cos
    training_data: {container: set}
    connection: {user_name: "${env:KEY}", password: "${file:password}"}
"""
SLEEPS = "import time; print(1, flush=True); time.sleep(60)"


def dumped(process: subprocess.Popen[str]) -> bool:
    """Whether it leaves a core dump when a signal ends it that asks for one."""
    process.send_signal(signal.SIGQUIT)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == -signal.SIGQUIT
    return os.WCOREDUMP(status)


@pytest.fixture
def cores(tmp_path: Path) -> Path:
    """A directory in which processes leave core dumps."""
    directory = tmp_path / "cores"
    directory.mkdir()
    argv = [*WITH_CORES, sys.executable, "-c", SLEEPS]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=directory) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        if not dumped(process):
            pytest.skip("nothing leaves a core dump here (core_pattern, or a hard limit of 0)")
    return directory


@pytest.mark.parametrize("words", [FFDL_SUBMIT, (*FFDL_SUBMIT, "--dry-run"), (*FFDL, "drill", "halt")])
def test_submit_and_drill_leave_no_core_dump_after_reading_manifest(
    words: tuple[str, ...], cores: Path, short_dir: Path, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "manifest.yml").write_text(MANIFEST)
    (tmp_path / "password").write_text("planted")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:  # nobody answers
        path = short_dir / "ffdl.sock"
        listening.bind(str(path))
        listening.listen()
        process = subprocess.Popen(
            [*WITH_CORES, *words, str(tmp_path / "manifest.yml"), str(model)],
            env=environment(None, {"FFDL_SOCKET": str(path), "KEY": "planted", "HOME": str(tmp_path)}), cwd=cores,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            listening.settimeout(60)
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(60)
                assert connection.recv(1), "it asks for something when it has read the manifest"
                assert not dumped(process)


def test_validate_leaves_no_core_dump(cores: Path, tmp_path: Path) -> None:
    """It waits for a manifest that comes from a pipe, and has set its limits before."""
    pipe = tmp_path / "manifest.yml"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*WITH_CORES, *FFDL, "validate", str(pipe)],
        env=environment(None, {"HOME": str(tmp_path)}), cwd=cores,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process, pipe.open("w"):  # which is open once it reads
        assert not dumped(process)
