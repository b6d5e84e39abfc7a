"""A supervisor that cannot take its job: the adapter says why in one line, without the interpreter's."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import ffdl_local
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand
from ffdl_batch.domain.scheduler_errors import SubmissionUncertain, TooMany
from ffdl_batch.host.resource_exhaustion import WHOSE_LIMITS
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_local.adapter import create
from ffdl_local.records import JOB_FILE

TOKEN = "training-000000001-1"
PACKAGES = str(Path(ffdl_local.__file__).resolve().parents[1])
CORE = str(Path(__file__).resolve().parents[3])
SUPERVISOR = (
    "import sys; sys.path[:0] = sys.argv[1:3]; del sys.argv[1:3]; from ffdl_local.supervisor import main; "
    "sys.exit(main())"
)


def plan(tmp_path: Path, argv: tuple[str, ...]) -> LaunchPlan:
    attempt = Root(str(tmp_path)).job("training-000000001").attempt(1)
    Path(attempt.path).mkdir(parents=True)
    job = {"token": TOKEN, "attempt_dir": attempt.path, "argv": ["true"], "log": os.devnull}
    Path(attempt.path, JOB_FILE).write_text(json.dumps(job))
    launch = LaunchFile("training-000000001", 1, TOKEN, "/j", attempt.path, "/d", LearnerCommand(("x",), {}))
    command = (*argv, f"{attempt.path}/{JOB_FILE}")
    return LaunchPlan("local", Token(TOKEN), AttemptDir(attempt.path), launch, (), command)


@pytest.mark.parametrize(
    ("argv", "cause"),
    [
        (  # nothing of the job's files can be written, as on a full disk
            ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-I", "-S", "-c", SUPERVISOR, PACKAGES, CORE),
            "[Errno 27] File too large",
        ),
        (
            (sys.executable, "-c", "raise OSError(28, 'No space left on device')"),
            "OSError: [Errno 28] No space left on device",
        ),
        (
            (sys.executable, "-c", "raise OSError(24, 'Too many open files')"),
            "Too many open files; in the daemon, it may not open as many files as it needs: raise the limit "
            f"(ulimit -n); {WHOSE_LIMITS}",
        ),
        (("sh", "-c", "exit 3"), "exit code 3"),
    ],
    ids=["no room", "no room for the interpreter", "no descriptor", "silent"],
)  # fmt: skip
def test_local_submit_reports_cause_in_one_line_if_supervisor_exits_at_once(
    tmp_path: Path, argv: tuple[str, ...], cause: str
) -> None:
    planned = plan(tmp_path, argv)
    with pytest.raises(SubmissionUncertain) as caught:
        create({}, AdapterContext(str(tmp_path), "ada", os.getuid())).submit(planned)
    said = str(caught.value)
    assert said.startswith("the job's supervisor ended at once: ") and cause in said.splitlines()[-1], said
    assert "Traceback" not in said and 'File "' not in said and "\n" not in said, said


@pytest.mark.parametrize("left", range(2, 8))
def test_local_submit_names_descriptor_limit_and_starts_nothing(tmp_path: Path, left: int) -> None:
    """Whichever of those that a process needs is the first too many; the lock and the record were opened before."""
    planned = plan(tmp_path, ("sh", "-c", "touch started"))
    adapter = create({}, AdapterContext(str(tmp_path), "ada", os.getuid()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    listed = list(Path("/proc/self/fd").iterdir())
    taken = {int(link.name) for link in listed if os.path.lexists(link)}  # without that of the listing itself
    free = [number for number in range(len(taken) + left + 1) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[left], hard))
    try:
        with pytest.raises(TooMany) as caught:
            adapter.submit(planned)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    said = str(caught.value)
    assert said.startswith("no process can be started on ") and said.endswith(WHOSE_LIMITS), said
    assert "in the daemon, it may not open as many files as it needs: raise the limit (ulimit -n); " in said
    assert adapter.find(planned.token, planned.attempt_dir) == frozenset()


@pytest.mark.parametrize(
    ("number", "limit"), [(errno.EAGAIN, "ulimit -u"), (errno.ENOMEM, "ulimit -v"), (errno.ENFILE, "fs.file-max")]
)
def test_local_submit_names_limit_if_process_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, limit: str
) -> None:
    planned = plan(tmp_path, ("true",))

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(TooMany, match=limit):
        create({}, AdapterContext(str(tmp_path), "ada", os.getuid())).submit(planned)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("new/out.txt", ""),
        ("link", ""),
        ("/dev/null", ""),
        ("attempt/batch.log", ""),
        ("directory", "Is a directory"),
        ("pipe", "No such device or address"),
        ("file/out.txt", "Not a directory|File exists"),
        ("/proc/none/out.txt", "No such file or directory"),
    ],
)
def test_local_supervisor_writes_to_batch_log_with_warning_if_output_cannot_be_written(
    tmp_path: Path, log: str, why: str
) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    path, batch_log = str(tmp_path / log), tmp_path / "attempt" / "batch.log"
    job = {"log": path, "attempt_dir": str(tmp_path / "attempt"), "umask": 0o22}
    program = (
        "import json, os, sys; sys.path[:0] = sys.argv[1:3]; from ffdl_local import supervisor; "
        "kept = os.dup(1); found = supervisor._detach_output(json.loads(sys.argv[3])); print('said', flush=True); "
        "os.write(kept, found.encode())"
    )
    argv = [sys.executable, "-I", "-c", program, PACKAGES, CORE, json.dumps(job)]
    warning = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout
    if why:
        said = f"the output cannot be written to {re.escape(path)}: ({why}); it is in {re.escape(str(batch_log))}"
        assert re.fullmatch(said, warning), warning
        assert batch_log.read_text() == "said\n"
    else:
        assert warning == ""
        assert path == "/dev/null" or Path(path).read_text() == "said\n"
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo() and (tmp_path / "directory").is_dir()
    assert not Path("/dev/null").is_file()
