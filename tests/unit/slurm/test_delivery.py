"""Where the controller's code is, as the nodes see it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.runtimes.learner_start import staging_arguments
from ffdl_slurm.planning.controller_delivery import deliver_controller


def test_deliver_controller_writes_one_executable_zipapp_for_configured_python_and_keeps_it(tmp_path: Path) -> None:
    first = deliver_controller(str(tmp_path), "/opt/python3")
    path = Path(first.controller[-1])
    before = path.stat()
    assert first == deliver_controller(str(tmp_path), "/opt/python3")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert first.python == "/opt/python3"
    assert path.suffix == ".pyz" and list((tmp_path / "controller").iterdir()) == [path]
    ran = subprocess.run([sys.executable, *first.controller, "--help"], capture_output=True, text=True, check=True)
    assert "execute an attempt" in ran.stdout


def test_deliver_controller_imports_nothing_from_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zipfile.py").write_text("raise SystemExit('a file of another user was executed')")
    monkeypatch.chdir(tmp_path)
    assert Path(deliver_controller(str(tmp_path), "/opt/python3").controller[-1]).is_file()


def test_controller_zipapp_imports_bytecode_of_building_interpreter(tmp_path: Path) -> None:
    path = deliver_controller(str(tmp_path), "/opt/python3").controller[-1]
    says = "import sys; sys.path.insert(0, sys.argv[1]); from ffdl_batch.controller import node; print(node.__file__)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", says, path], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{path}/ffdl_batch/controller/node/__init__.pyc\n"


def test_deliver_controller_writes_one_file_from_concurrent_threads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=4) as pool:
        delivered = set(pool.map(lambda _: deliver_controller(str(tmp_path), "/opt/python3"), range(4)))
    assert len(delivered) == 1
    assert len(list((tmp_path / "controller").iterdir())) == 1


def test_deliver_controller_raises_retryable_error_if_directory_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "controller").write_text("in the way")
    with pytest.raises(SchedulerUnreachable, match="controller cannot be written below"):
        deliver_controller(str(tmp_path), "/opt/python3")


def test_deliver_controller_returns_staging_command_of_configured_python(tmp_path: Path) -> None:
    assert deliver_controller(str(tmp_path), "/opt/python3").staging in ((), staging_arguments(sys.executable))
    named = deliver_controller(str(tmp_path), "/opt/python3", "/opt/ffdl/bin/python3")
    assert named.staging == ("/opt/ffdl/bin/python3", "-I", "-m", "ffdl_batch.staging")
