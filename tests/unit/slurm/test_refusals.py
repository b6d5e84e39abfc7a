"""What Slurm's words mean for a request that was sent."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.scheduler import (
    ArraysRefused,
    InvalidRequest,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_slurm.refusals import (
    check_accounts,
    check_answer,
    check_request,
    check_trial,
    explain_refusal,
    read_submission,
)
from ffdl_slurm.run import CommandResult

CONNECT = "Unable to contact slurm controller (connect failure)"
BUSY = "Slurm temporarily unable to accept job, sleeping and retrying"
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


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
        ("Slurm temporarily unable to accept job, sleeping and retrying", TooMany),
        ("Invalid account or account/partition combination specified", InvalidRequest),
        ("invalid partition specified: nonsense", InvalidRequest),
        ("Requested node configuration is not available", InvalidRequest),
        ("Job dependency problem", InvalidRequest),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", TooMany),
        ("Batch job submission failed: Invalid job array specification", ArraysRefused),
        ("", SubmissionUncertain),
        ("Protocol authentication error", SchedulerUnreachable),
        ("Munge encode failed: Failed to access socket", SchedulerUnreachable),
        ("Munge decode failed: Expired credential", SubmissionUncertain),
        ("Resource temporarily unavailable", SchedulerUnreachable),
    ],
)
def test_messages(said: str, kind: type[SchedulerError]) -> None:
    for text in (said, f"sbatch: error: Batch job submission failed: {said}" if said else ""):
        error = explain_refusal(text, "sbatch")
        assert type(error) is kind
        assert said in str(error)


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        ("QOSMaxSubmitJobPerUserLimit", TooMany),
        ("AssocGrpSubmitJobsLimit", TooMany),
        ("AssocMaxSubmitJobLimit", TooMany),
        ("QOSMaxWallDurationPerJobLimit", InvalidRequest),
        ("AssocMaxWallDurationPerJobLimit", InvalidRequest),
        ("PartitionTimeLimit", InvalidRequest),
    ],
)
def test_a_limit_that_is_named_tells_whether_waiting_helps(limit: str, kind: type[SchedulerError]) -> None:
    error = explain_refusal(f"sbatch: error: {limit}\nsbatch: error: Batch job submission failed: {POLICY}\n", "sbatch")
    assert type(error) is kind
    assert limit in str(error)


@pytest.mark.parametrize(
    ("before", "last", "kind"),
    [
        (BUSY, "Invalid qos specification", InvalidRequest),
        (BUSY, "Slurm temporarily unable to accept job, sleeping and retrying", TooMany),
        (BUSY, "Unable to contact slurm controller (connect failure)", SchedulerUnreachable),
        ("Socket timed out on send/recv operation", CONNECT, SubmissionUncertain),
        ("Munge encode failed: Failed to connect to socket", "Protocol authentication error", SchedulerUnreachable),
        ("Munge encode failed: Failed to connect to socket", "Unspecified error", SchedulerUnreachable),
        (
            "Munge encode failed: Connection refused\nsbatch: error: slurm_send_node_msg: auth_g_create: "
            "REQUEST_SUBMIT_BATCH_JOB has authentication error",
            "Protocol authentication error",
            SchedulerUnreachable,
        ),
        (
            "slurm_receive_msg: auth_g_verify: RESPONSE_SUBMIT_BATCH_JOB has authentication error: Rewound credential",
            "Protocol authentication error",
            SubmissionUncertain,
        ),
        ("lua: your jobs are watched; a connect failure is no excuse", "Invalid account", InvalidRequest),
        ("x" * 100_000, "Invalid account", InvalidRequest),
    ],
)
def test_the_last_word_counts_and_what_was_said_of_a_reply_before(
    before: str, last: str, kind: type[SchedulerError]
) -> None:
    text = f"sbatch: error: {before}\nsbatch: error: Batch job submission failed: {last}\n"
    error = explain_refusal(text, "sbatch")
    assert type(error) is kind
    assert last in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("code", "out"), [(0, ""), (0, "Submitted?"), (-9, ""), (-9, "12\n"), (1, "12\n")], ids=str
)  # fmt: skip
def test_ends_that_prove_nothing(code: int, out: str) -> None:
    with pytest.raises(SubmissionUncertain):
        read_submission(CommandResult(("sbatch",), code, out, "Invalid qos specification"))


def test_an_id_is_an_id() -> None:
    assert read_submission(CommandResult(("sbatch",), 0, "12;c\n", "sbatch: warning: x")) == "12"


@pytest.mark.parametrize(
    "said",
    [
        "Invalid job id specified",
        "Job/step already completing or completed",
        "Job has already finished for job 3",
        "job 3 does not exist",
    ],
)
def test_a_job_that_is_gone_is_no_error(said: str) -> None:
    check_request(CommandResult(("scancel",), 1, "", f"scancel: error: Kill job error on job id 3: {said}"), "x")


def test_other_refusals_of_scancel() -> None:
    with pytest.raises(InvalidRequest, match="Access/permission denied"):
        check_request(CommandResult(("scancel",), 1, "", "Access/permission denied"), "the cancellation of job 3")
    with pytest.raises(SchedulerUnreachable):
        check_request(CommandResult(("scancel",), -9, "", ""), "x")


def test_what_is_gone_is_known_however_much_else_was_said() -> None:
    check_request(CommandResult(("scancel",), 1, "", "Invalid job id specified\n" + "welcome\n" * 100), "it")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Socket timed out on send/recv operation", SchedulerUnreachable),
        (CONNECT, SchedulerUnreachable),
        ("Unable to contact slurm controller (receive failure)", SchedulerUnreachable),
        ("", SchedulerUnreachable),
        (BUSY, TooMany),
        ("invalid partition specified: nonsense", InvalidRequest),
    ],
)
def test_a_trial_submission_leaves_nothing_to_look_for_and_is_tried_by_nobody(
    said: str, kind: type[SchedulerError]
) -> None:
    complaint = f"sbatch: error: Batch job submission failed: {said}" if said else ""
    with pytest.raises(kind) as raised:
        check_trial(CommandResult(("sbatch",), 1, "", complaint))
    assert said in str(raised.value)
    assert "looked for" not in str(raised.value) and "it is tried again" not in str(raised.value)
    assert kind is InvalidRequest or "nothing was submitted" in str(raised.value)


def test_queries() -> None:
    check_answer(CommandResult(("squeue",), 0, "", "squeue: error: Ignoring obsolete CacheGroups option"))
    with pytest.raises(SchedulerUnreachable):
        check_answer(CommandResult(("squeue",), 1, "JOBID\n", ""))
    with pytest.raises(SchedulerUnreachable):
        check_accounts(CommandResult(("sacct",), 0, "JobID|State\n", "error: Problem talking to the database: refused"))
