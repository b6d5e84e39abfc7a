"""A supervisor that cannot take its job: the adapter says why in one line, without the interpreter's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import ffdl_local
from ffdl_batch.domain.job import Token
from ffdl_batch.domain.jobdir import AttemptDir, Root
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand
from ffdl_batch.ports.registry import AdapterContext
from ffdl_batch.ports.scheduler import LaunchPlan, SubmissionUncertain
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
        (("sh", "-c", "exit 3"), "exit code 3"),
    ],
    ids=["no room", "no room for the interpreter", "silent"],
)  # fmt: skip
def test_a_supervisor_that_ends_at_once_is_one_line(tmp_path: Path, argv: tuple[str, ...], cause: str) -> None:
    planned = plan(tmp_path, argv)
    with pytest.raises(SubmissionUncertain) as caught:
        create({}, AdapterContext(str(tmp_path), "ada", os.getuid())).submit(planned)
    said = str(caught.value)
    assert said.startswith("the job's supervisor ended at once: ") and said.endswith(cause), said
    assert "Traceback" not in said and 'File "' not in said and "\n" not in said, said
