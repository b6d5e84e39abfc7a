"""What Slurm's words mean for a request that was sent."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerError, SchedulerUnreachable, SubmissionUncertain
from ffdl_slurm.refusals import check_accounts, check_answer, check_request, explain_refusal, read_submission
from ffdl_slurm.run import CommandResult


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Unable to contact slurm controller (connect failure)", SchedulerUnreachable),
        ("Unable to contact slurm controller (send failure)", SubmissionUncertain),
        ("Unable to contact slurm controller (receive failure)", SubmissionUncertain),
        ("Socket timed out on send/recv operation", SubmissionUncertain),
        ("Zero Bytes were transmitted or received", SubmissionUncertain),
        ("Connection timed out reading", SubmissionUncertain),
        ("Connection timed out establishing", SchedulerUnreachable),
        ("Slurm temporarily unable to accept job, sleeping and retrying", SchedulerUnreachable),
        ("Invalid account or account/partition combination specified", InvalidRequest),
        ("invalid partition specified: nonsense", InvalidRequest),
        ("Requested node configuration is not available", InvalidRequest),
        ("Job dependency problem", InvalidRequest),
        ("", SubmissionUncertain),
    ],
)
def test_messages(said: str, kind: type[SchedulerError]) -> None:
    error = explain_refusal(said, "sbatch")
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    ("code", "out"), [(0, ""), (0, "Submitted?"), (-9, ""), (-9, "12\n"), (1, "12\n")], ids=str
)  # fmt: skip
def test_ends_that_prove_nothing(code: int, out: str) -> None:
    with pytest.raises(SubmissionUncertain):
        read_submission(CommandResult(("sbatch",), code, out, "Invalid qos specification"))


def test_an_id_is_an_id() -> None:
    assert read_submission(CommandResult(("sbatch",), 0, "12;c\n", "sbatch: warning: x")) == "12"


@pytest.mark.parametrize(
    "said", ["Invalid job id specified", "Job/step already completing or completed", "job 3 does not exist"]
)
def test_a_job_that_is_gone_is_no_error(said: str) -> None:
    check_request(CommandResult(("scancel",), 1, "", f"scancel: error: Kill job error on job id 3: {said}"), "x")


def test_other_refusals_of_scancel() -> None:
    with pytest.raises(InvalidRequest, match="Access/permission denied"):
        check_request(CommandResult(("scancel",), 1, "", "Access/permission denied"), "the cancellation of job 3")
    with pytest.raises(SchedulerUnreachable):
        check_request(CommandResult(("scancel",), -9, "", ""), "x")


def test_queries() -> None:
    check_answer(CommandResult(("squeue",), 0, "", "squeue: error: Ignoring obsolete CacheGroups option"))
    with pytest.raises(SchedulerUnreachable):
        check_answer(CommandResult(("squeue",), 1, "JOBID\n", ""))
    with pytest.raises(SchedulerUnreachable):
        check_accounts(CommandResult(("sacct",), 0, "JobID|State\n", "error: Problem talking to the database: refused"))
