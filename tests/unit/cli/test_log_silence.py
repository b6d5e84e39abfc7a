"""What `ffdl logs` says where there is no output."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.views import AttemptView, LogLine
from tests.unit.cli.programs import FFDL, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"
RAN = (AttemptView(1, "4711", "slurm", 0.0, logs="/j/attempt-1/logs"),)
PLACES = {"logs": "/j/attempt-1/logs", "job_dir": "/j", "attempts": RAN}


@pytest.mark.parametrize("state", ["PENDING", "DEPLOYING", "QUEUED"])
def test_logs_reports_no_output_before_job_starts(daemon: FakeDaemon, state: str) -> None:
    daemon.jobs[JOB] = make_job(JOB, state=state, attempts=(AttemptView(1, "4711", "slurm", 0.0),))
    done = run(FFDL, "logs", JOB, daemon=daemon)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"ffdl: {JOB} is {state} and has no output yet; -f waits\n"
    daemon.lines = [LogLine(1, 1, "a", None, 1)]
    followed = run(FFDL, "logs", "-f", JOB, daemon=daemon)
    assert (followed.returncode, followed.stdout) == (0, "a\n")
    assert followed.stderr == f"ffdl: {JOB} is {state} and has no output yet; waiting for it\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "FAILED"}, "is FAILED, and none of its learners started"),
        ({"state": "PROCESSING", **PLACES}, "is PROCESSING and has printed nothing yet"),
        ({"state": "COMPLETED", "results": "/j/attempt-1/results", **PLACES}, "in /j/attempt-1/logs (any more)"),
        (
            {"state": "COMPLETED", "results": "/j/attempt-1/results", "stored_in": f"s3://bucket/{JOB}", **PLACES},
            f"(any more); what was stored of it is s3://bucket/{JOB}/learner-1/training-log.txt",
        ),
        (
            {"state": "COMPLETED", "results": f"/store/{JOB}", **PLACES},
            f"(any more); what was stored of it is /store/{JOB}/learner-1/training-log.txt",
        ),
    ],
)
def test_logs_explains_missing_output_and_names_stored_log(
    daemon: FakeDaemon, changes: dict[str, object], said: str
) -> None:
    daemon.jobs[JOB] = make_job(JOB, **changes)
    done = run(FFDL, "logs", JOB, daemon=daemon)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert done.stderr.endswith(f"{said}\n")
    assert run(FFDL, "logs", "-g", "x", JOB, daemon=daemon).stderr == "", "others may be there"
