"""What Slurm's words mean for a request that was sent."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.scheduler_errors import (
    ArraysRefused,
    InvalidRequest,
    NoResources,
    NotNow,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_slurm.gateways.command_runner import CommandResult
from ffdl_slurm.gateways.error_mapping import (
    check_accounts,
    check_answer,
    check_request,
    check_requests,
    check_trial,
    explain_refusal,
    read_submission,
)

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
        ("Requested node configuration is not available", NoResources),
        ("More processors requested than permitted", NoResources),
        ("Memory required by task is not available", NoResources),
        ("Job dependency problem", InvalidRequest),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", NotUnderstood),
        ("Batch job submission failed: Invalid job array specification", ArraysRefused),
        ("", SubmissionUncertain),
        ("Invalid job credential", SchedulerUnreachable),
        ("Error generating job credential", SchedulerUnreachable),
        ("Invalid authentication credential", SchedulerUnreachable),
        ("Rate limit exceeded, please retry later", SchedulerUnreachable),
        ("MaxJobCount limit reached", TooMany),
        ("I/O error writing script/environment to file", NotTaken),
        ("Required partition not available (inactive or drain)", NotTaken),
        ("System submissions disabled", NotTaken),
        ("Invalid user id", NotTaken),
        ("Incompatible versions of client and server code", NotTaken),
        ("What no release has said so far", NotUnderstood),
        ("Operation not permitted", NotUnderstood),
        ("Unspecified error", NotUnderstood),
        ("Unknown error 9999", NotUnderstood),
        ("Protocol authentication error", SchedulerUnreachable),
        ("Munge encode failed: Failed to access socket", SchedulerUnreachable),
        ("Munge decode failed: Expired credential", SubmissionUncertain),
        ("Resource temporarily unavailable", SchedulerUnreachable),
    ],
)
def test_explain_refusal_maps_sbatch_message_to_error_type(said: str, kind: type[SchedulerError]) -> None:
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
def test_explain_refusal_distinguishes_temporary_from_permanent_limit(limit: str, kind: type[SchedulerError]) -> None:
    error = explain_refusal(f"sbatch: error: {limit}\nsbatch: error: Batch job submission failed: {POLICY}\n", "sbatch")
    assert type(error) is kind
    assert limit in str(error)


SOCKET = "Munge encode failed: Failed to connect to socket"
PROTOCOL = "Protocol authentication error"


@pytest.mark.parametrize(
    ("before", "last", "kind"),
    [
        (BUSY, "Invalid qos specification", InvalidRequest),
        (BUSY, BUSY, TooMany),
        (BUSY, CONNECT, SchedulerUnreachable),
        ("Socket timed out on send/recv operation", CONNECT, SubmissionUncertain),
        (SOCKET, PROTOCOL, SchedulerUnreachable),
        (SOCKET, "Unspecified error", SchedulerUnreachable),
        ("slurm_unpack_received_msg: Incomplete packet", "Unspecified error", SubmissionUncertain),
        ("slurm_unpack_received_msg: g_slurm_auth_verify: RESPONSE has authentication error", "Unspecified error",
         SubmissionUncertain),
        (BUSY, "Unspecified error", NotUnderstood),
        ("your budget is used up", POLICY, NotUnderstood),
        ("Munge encode failed: Connection refused\nsbatch: error: slurm_send_node_msg: auth_g_create: "
         "REQUEST_SUBMIT_BATCH_JOB has authentication error", PROTOCOL, SchedulerUnreachable),
        ("slurm_receive_msg: auth_g_verify: RESPONSE_SUBMIT_BATCH_JOB has authentication error: Rewound credential",
         PROTOCOL, SubmissionUncertain),
        ("lua: your jobs are watched; a connect failure is no excuse", "Invalid account", InvalidRequest),
        ("x" * 100_000, "Invalid account", InvalidRequest),
    ],
)  # fmt: skip
def test_explain_refusal_uses_last_and_earlier_reply_errors(before: str, last: str, kind: type[SchedulerError]) -> None:
    text = f"sbatch: error: {before}\nsbatch: error: Batch job submission failed: {last}\n"
    error = explain_refusal(text, "sbatch")
    assert type(error) is kind
    assert last in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    "words",
    [
        "you must name a project",
        "all jobs need --time\nsbatch: error: see https://site.example/limits, or call timed out users' help",
        "x" * 500,
        "Budget für GPUs überzogen",
        "your submission failed: name a project\nsbatch: error: retrying is of no use",
    ],
)
@pytest.mark.parametrize("last", ["sbatch: error: Batch job submission failed", "allocation failure"])
@pytest.mark.parametrize("code", ["Unspecified error", "Unknown error 9999"])
def test_refusal_with_error_code_of_plugin_quotes_message_of_site(words: str, last: str, code: str) -> None:
    """`slurm.user_msg` and `return slurm.ERROR` or a number of the site's own in a job_submit.lua."""
    text = f"sbatch: error: {words}\n{last}: {code}\n"
    error = explain_refusal(text, "sbatch")
    assert type(error) is RefusedBySite
    assert all(line.removeprefix("sbatch: error: ") in str(error) for line in words.splitlines())
    with pytest.raises(RefusedBySite, match=words[:20]):
        check_trial(CommandResult(("sbatch",), 1, "", text))


@pytest.mark.parametrize(
    "words",
    [
        "license server: Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received by the quota service",
        "Line one\nBatch job submission failed: Zero Bytes were transmitted or received",
        "Line one\nsbatch: error: Batch job submission failed: Socket timed out on send/recv operation\nLine three",
        "Batch job submission failed: Job violates accounting/QOS policy",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "allocation failure: Rate limit exceeded",
        "the token server says: Munge encode failed: no socket",
        "your project: Munge decode failed in January",
        "ask slurm_receive_msg: the quota service is closed",
        "AssocMaxSubmitJobLimit of the project is 3",
        "Slurm temporarily unable to accept job from you",
        "Resource temporarily unavailable",
        "Connection reset by the license server",
        "Invalid account",
    ],
)
@pytest.mark.parametrize("prefixes_every_line", [True, False])
@pytest.mark.parametrize("last", ["sbatch: error: Batch job submission failed", "allocation failure"])
def test_message_of_site_that_looks_like_a_message_of_slurm_is_quoted_and_decides_nothing(
    words: str, prefixes_every_line: bool, last: str
) -> None:
    """`slurm.log_user` and `return slurm.ERROR` in a job_submit.lua."""
    lines = words.replace("\n", "\nsbatch: error: ") if prefixes_every_line else words
    error = explain_refusal(f"sbatch: error: {lines}\n{last}: Unspecified error\n", "sbatch")
    assert type(error) is RefusedBySite
    assert all(line.removeprefix("sbatch: error: ") in str(error) for line in words.splitlines())


@pytest.mark.parametrize(
    "line",
    [
        f"sbatch: error: {BUSY}.",
        "sbatch: error: Slurm job queue full, sleeping and retrying.",
        "sbatch: Job creation temporarily disabled, retrying",
    ],
)
@pytest.mark.parametrize("last", ["", "sbatch: error: Batch job submission failed: Resource temporarily unavailable\n"])
def test_retry_of_sbatch_is_a_refusal_for_now_and_quotes_message_of_site(line: str, last: str) -> None:
    """`return 11` in a job_submit.lua, with and without `slurm.log_user`, and a controller without room."""
    with pytest.raises(TooMany, match="retrying"):
        read_submission(CommandResult(("sbatch",), 1, "", f"{line}\n{last}"))
    warning = "sbatch: error: Ignoring obsolete FastSchedule=1 option.\n"
    with pytest.raises(TooMany, match="retrying"):
        read_submission(CommandResult(("sbatch",), 1, "", f"{warning}{line}\n{last}"))
    with pytest.raises(NotTaken, match=r"quota: try later.*retrying") as raised:
        read_submission(CommandResult(("sbatch",), 1, "", f"sbatch: error: quota: try later\n{line}\n{last}"))
    assert type(raised.value) is NotTaken


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("Invalid qos specification", InvalidRequest),
        ("Requested node configuration is not available", NoResources),
        ("Socket timed out on send/recv operation", SubmissionUncertain),
        ("System submissions disabled", NotTaken),
    ],
)
@pytest.mark.parametrize("words", ["Zero Bytes were transmitted", "Munge decode failed", "invalid account"])
def test_last_line_of_sbatch_decides_whatever_the_site_has_printed_before_it(
    words: str, last: str, kind: type[SchedulerError]
) -> None:
    text = f"sbatch: error: quota: {words}\nsbatch: error: Batch job submission failed: {last}\nbye, {words}\n"
    assert type(explain_refusal(text, "sbatch")) is kind


@pytest.mark.parametrize(
    ("code", "out", "number"),
    [(0, "", ""), (0, "Submitted?", ""), (-9, "", ""), (-9, "12\n", ""), (1, "12\n", ""),
     (0, "Welcome to the cluster\n0\n", "0"), (0, "Welcome to the cluster\n4294967999\n", "4294967999")],
)  # fmt: skip
def test_read_submission_is_uncertain_without_proof_or_valid_id(code: int, out: str, number: str) -> None:
    with pytest.raises(SubmissionUncertain) as error:
        read_submission(CommandResult(("sbatch",), code, out, "" if number else "Invalid qos specification"))
    assert number in str(error.value)


NO_CONF = (
    "sbatch: error: s_p_parse_file: cannot stat file /home/alice/slurm.conf: No such file or directory, retrying in "
    "1sec up to 60sec\nsbatch: fatal: Unable to process configuration file\n"
)
NO_LIBRARY = (
    "sbatch: error while loading shared libraries: libslurmfull.so: cannot open shared object file: No such file"
)
NO_VALUE = "sbatch: option '--mem' requires an argument\nTry \"sbatch --help\" for more information"


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (1, NO_CONF, SchedulerUnreachable),
        (127, NO_LIBRARY, SchedulerUnreachable),
        (1, "/usr/local/bin/sbatch: fork: Cannot allocate memory", NotTaken),
        (254, "/usr/local/bin/sbatch: fork: retry: Resource temporarily unavailable", NotTaken),
        (127, "/usr/local/bin/sbatch: line 3: exec: sbatch.real: not found", NotTaken),
        (
            1,
            "sbatch: error: your certificate timed out\nsbatch: error: cli_filter plugin terminated with error",
            NotUnderstood,
        ),
        (1, "ERROR: name a project with --account", NotUnderstood),
        (
            255,
            "Invalid time specification (pos=0): nonsense\nsbatch: error: Invalid --begin specification",
            InvalidRequest,
        ),
        (126, "sbatch: error: invalid number of nodes (-N 0-0)", NotTaken),
        (137, "Killed", SubmissionUncertain),
        (255, "ssh: connect to host login2 port 22: No route to host", NotTaken),
        (255, "sbatch: error: Ignoring obsolete option\nConnection to login2 closed by remote host.", NotTaken),
        (255, "sbatch: error: Invalid --time specification\n", InvalidRequest),
        (255, NO_VALUE, InvalidRequest),
        (1, "sbatch: error: invalid number of nodes (-N 0-0)\n", InvalidRequest),
        (1, "sbatch: error: Batch script is empty!\n", InvalidRequest),
        (1, "sbatch: error: Unable to open file /jobs/7/script.sh\n", NotTaken),
        (1, "sbatch: error: Socket timed out on send/recv operation\n", SubmissionUncertain),
        (1, "", SubmissionUncertain),
    ],
)
def test_read_submission_rejects_job_only_for_errors_printed_by_slurm_and_returns_id_otherwise(
    code: int, said: str, kind: type[SchedulerError]
) -> None:
    assert read_submission(CommandResult(("sbatch",), 0, "12;c\n", "sbatch: warning: x")) == "12"
    result = CommandResult(("sbatch",), code, "", said)
    with pytest.raises(SchedulerError) as error:
        read_submission(result)
    assert type(error.value) is kind
    assert said.strip().rpartition("\n")[2] in str(error.value)
    assert ("tried again" in str(error.value)) == (kind in (SchedulerUnreachable, NotTaken, NotUnderstood))
    with pytest.raises(SchedulerError) as error:
        check_trial(result)
    assert isinstance(error.value, InvalidRequest) == (kind is InvalidRequest)


STEP = "scancel: error: Kill job error on job step id 76: "
ZERO_BYTES = "scancel: error: slurm_receive_msgs: Zero Bytes were transmitted or received"


@pytest.mark.parametrize(
    ("said", "is_outage"),
    [
        (f"{STEP}Socket timed out on send/recv operation", False),
        (f"{ZERO_BYTES}\n{STEP}Unspecified error", False),
        (f"{STEP}Communication connection failure\n{STEP}Invalid job id specified", False),
        (f"{STEP}{CONNECT}", True),
        (f"{STEP}Unspecified error\nscancel: error: Kill job error on job id 77: {CONNECT}", True),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", True),
    ],
)
def test_check_request_separates_unreachable_node_from_scheduler_outage(said: str, is_outage: bool) -> None:
    for check in (check_request, check_requests):
        with pytest.raises(SchedulerUnreachable, match="the signal URG for job 76") as error:
            check(CommandResult(("scancel",), 140, "", said), "the signal URG for job 76")
        assert isinstance(error.value, NotNow) != is_outage


def test_check_requests_accepts_ended_steps_by_exit_status_or_message() -> None:
    """ESLURM_ALREADY_DONE is 2021, of which the exit code has eight bits."""
    check_requests(CommandResult(("scancel",), 2021 % 256, "", ""), "the signal")
    check_requests(CommandResult(("scancel",), 1, "", f"{STEP}Job step not running"), "the signal")


def test_check_request_raises_for_denied_or_killed_scancel() -> None:
    with pytest.raises(InvalidRequest, match="Access/permission denied"):
        check_request(CommandResult(("scancel",), 1, "", "Access/permission denied"), "the cancellation of job 3")
    with pytest.raises(SchedulerUnreachable):
        check_request(CommandResult(("scancel",), -9, "", ""), "x")


KILL = "scancel: error: Kill job error on job id 3: "


@pytest.mark.parametrize(
    "said",
    [
        f"{KILL}Invalid job id specified",
        f"{KILL}Job/step already completing or completed",
        f"{KILL}Job has already finished for job 3",
        f"{KILL}job 3 does not exist",
        pytest.param("Invalid job id specified\n" + "welcome\n" * 100, id="banner"),
    ],
)
def test_check_request_accepts_scancel_error_for_ended_job(said: str) -> None:
    check_request(CommandResult(("scancel",), 1, "", said), "x")


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
def test_check_trial_error_mentions_no_retry_or_search_for_job(said: str, kind: type[SchedulerError]) -> None:
    complaint = f"sbatch: error: Batch job submission failed: {said}" if said else ""
    with pytest.raises(kind) as raised:
        check_trial(CommandResult(("sbatch",), 1, "", complaint))
    assert said in str(raised.value)
    assert "looked for" not in str(raised.value) and "it is tried again" not in str(raised.value)
    assert kind is InvalidRequest or "nothing was submitted" in str(raised.value)


def test_check_answer_ignores_warnings_and_rejects_failed_query() -> None:
    check_answer(CommandResult(("squeue",), 0, "", "squeue: error: Ignoring obsolete CacheGroups option"))
    with pytest.raises(SchedulerUnreachable):
        check_answer(CommandResult(("squeue",), 1, "JOBID\n", ""))
    with pytest.raises(SchedulerUnreachable):
        check_accounts(CommandResult(("sacct",), 0, "JobID|State\n", "error: Problem talking to the database: refused"))
