"""Submissions that Slurm loses, doubles, refuses, or answers with nonsense. Against the fake executables."""

from __future__ import annotations

import fcntl
import getpass
import os
from pathlib import Path

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId
from ffdl_batch.ports.capabilities import TrialSubmission
from ffdl_batch.ports.registry import AdapterContext, create_adapter
from ffdl_batch.ports.scheduler import (
    InvalidRequest,
    NotTaken,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_slurm.adapter import SlurmScheduler
from tests import preloaded
from tests.contract.scheduler_harness import FakeSlurmHarness


def test_slurm_submit_sends_script_and_arguments_of_plan(slurm: FakeSlurmHarness) -> None:
    native, plan = slurm.submit("true")
    assert slurm.script(native) == plan.script
    call = slurm.calls("sbatch")[0]
    assert ("sbatch", *call["argv"]) == plan.submit_argv


def test_slurm_commands_receive_filtered_environment(slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBATCH_PARTITION", "SLURM_JOB_ID", "SQUEUE_FORMAT", "TOKEN_OF_THE_DAEMON", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    native, _ = slurm.submit("true")
    slurm.observe(native)
    for command in ("sbatch", "squeue"):
        environ = slurm.calls(command)[0]["env"]
        assert not {"SBATCH_PARTITION", "SLURM_JOB_ID", "SQUEUE_FORMAT"} & set(environ)
        assert environ["LC_ALL"] == "C"
    assert "TOKEN_OF_THE_DAEMON" not in slurm.calls("sbatch")[0]["env"]
    assert "SLURM_CONF" in slurm.calls("sbatch")[0]["env"]


def test_slurm_submit_is_uncertain_and_finds_job_after_lost_reply(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "lose_reply")
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain, match="looked for"):
        slurm.scheduler.submit(plan)
    found = slurm.scheduler.find(plan.token, plan.attempt_dir)
    assert [native.job for native in found] == slurm.accepted()
    assert slurm.await_end(next(iter(found))).end is EndCause.SUCCESS


@pytest.mark.parametrize("fault", ["silent", "garbage", "binary", "big", "empty"])
def test_slurm_submit_is_uncertain_when_sbatch_prints_no_id(slurm: FakeSlurmHarness, fault: str) -> None:
    slurm.spoil("sbatch", fault)
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain) as error:
        slurm.scheduler.submit(plan)
    assert len(str(error.value)) < 1000
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    assert not slurm.accepted()


def test_slurm_submit_is_uncertain_when_sbatch_exceeds_timeout(slurm: FakeSlurmHarness) -> None:
    """By one whose other questions have more time."""
    slurm.spoil("sbatch", "hang")
    plan = slurm.prepare("true")
    context = AdapterContext(slurm.root.path, getpass.getuser(), os.getuid())
    hasty = create_adapter("slurm", {"command_timeout_s": 2}, context)
    with pytest.raises(SubmissionUncertain, match="did not answer within 2 s"):
        hasty.submit(plan)
    found = slurm.scheduler.find(plan.token, plan.attempt_dir)
    assert [native.job for native in found] == slurm.accepted()


def test_slurm_find_returns_job_after_delayed_acceptance(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "late")
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain):
        slurm.scheduler.submit(plan)
    slurm.wait(lambda: bool(slurm.scheduler.find(plan.token, plan.attempt_dir)), slurm.diagnosis)
    assert isinstance(slurm.scheduler, SlurmScheduler) and slurm.scheduler.credential_life_s == 300


def test_slurm_job_runs_once_when_submission_is_accepted_twice(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "twice")
    native, plan = slurm.submit("echo ran; sleep 0.5")
    found = slurm.scheduler.find(plan.token, plan.attempt_dir)
    assert native in found and len(found) == 2
    for job in found:
        slurm.await_end(job)
    assert slurm.executions(plan.attempt_dir) == 1
    assert slurm.log(plan).count("ran") == 1


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        pytest.param("Invalid qos specification", "Invalid qos specification", id="unknown QOS"),
        pytest.param(
            "QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "QOSMaxWallDurationPerJobLimit",
            id="limit of a single job",
        ),
    ],
)
def test_slurm_submit_is_invalid_and_quotes_sbatch_refusal(slurm: FakeSlurmHarness, said: str, quoted: str) -> None:
    slurm.spoil("sbatch", f"refuse={said}")
    with pytest.raises(InvalidRequest, match=quoted):
        slurm.submit("true")


@pytest.mark.parametrize(
    ("lines", "said", "kind"),
    [
        ("echo 'sbatch: fatal: Unable to process configuration file' >&2; exit 1", "fatal", SchedulerUnreachable),
        ("echo 'error while loading shared libraries: x.so' >&2; exit 127", "x.so", SchedulerUnreachable),
        ("echo 'sbatch: fork: Cannot allocate memory' >&2; exit 254", "fork: Cannot allocate memory", NotTaken),
        ("exec sbatch-of-another-release", "not found", NotTaken),
        ("kill -9 $$", "-9", SubmissionUncertain),
        ("sh -c 'kill -9 $$'; exit $?", "137", SubmissionUncertain),
    ],
)
def test_slurm_submit_does_not_reject_job_when_sbatch_cannot_run(
    slurm: FakeSlurmHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    said: str,
    kind: type[Exception],
) -> None:
    wrapper = tmp_path / "site" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/sh\n{lines}\n")
    wrapper.chmod(0o755)
    plan = slurm.prepare("true")
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        with pytest.raises(SchedulerError, match=said) as raised:
            slurm.scheduler.submit(plan)
    assert type(raised.value) is kind
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    assert slurm.await_end(slurm.scheduler.submit(plan)).end is EndCause.SUCCESS


def test_slurm_submit_raises_unreachable_when_submit_limit_is_reached(slurm: FakeSlurmHarness) -> None:
    slurm.spoil(
        "sbatch", "refuse=Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    )
    with pytest.raises(SchedulerUnreachable, match="tried again"):
        slurm.submit("true")


def test_slurm_find_and_submit_raise_unreachable_while_sbatch_holds_lock(slurm: FakeSlurmHarness) -> None:
    """Its starter died; the lock that it inherited tells."""
    plan = slurm.prepare("true")
    submit = Path(plan.attempt_dir.submit)
    submit.mkdir()
    lock = os.open(submit / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SchedulerUnreachable, match="under way"):
            slurm.scheduler.find(plan.token, plan.attempt_dir)
        with pytest.raises(SchedulerUnreachable, match="under way"):
            slurm.scheduler.submit(plan)
    finally:
        os.close(lock)
    assert not slurm.accepted()


def test_slurm_find_reads_reply_of_vanished_submitter(slurm: FakeSlurmHarness) -> None:
    slurm.freeze()
    plan = slurm.prepare("true")
    submit = Path(plan.attempt_dir.submit)
    submit.mkdir()
    done = preloaded.run(["sbatch", "--parsable", plan.attempt_dir.script], capture_output=True, check=True)
    (submit / "reply").write_bytes(b"*** welcome ***\n" + done.stdout)
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == {NativeId(job) for job in slurm.accepted()}


@pytest.mark.parametrize("accounting", [True, False], ids=["accounting", "no accounting"])
@pytest.mark.parametrize("named", ["nobody", "another training", "a plain job"])
def test_slurm_find_ignores_reply_id_that_slurm_does_not_list_as_the_job(
    slurm: FakeSlurmHarness, named: str, accounting: bool
) -> None:
    """What a site has put before sbatch answered with a wrong one."""
    if accounting:
        slurm.keep_accounts()
    slurm.freeze()
    stranger, _ = slurm.submit("true")
    if named == "a plain job":
        slurm.change(stranger, name="wrap")
    plan = slurm.prepare("true")
    submit = Path(plan.attempt_dir.submit)
    submit.mkdir()
    (submit / "reply").write_text("7654321\n" if named == "nobody" else f"{stranger}\n")
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    own = slurm.scheduler.submit(plan)
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == {own}


def test_slurm_test_only_predicts_start_without_submission(slurm: FakeSlurmHarness) -> None:
    assert isinstance(slurm.scheduler, TrialSubmission)
    plan = slurm.scheduler.plan(slurm.request())
    assert "to start at" in slurm.scheduler.test_only(plan)
    slurm.spoil("sbatch", "refuse")
    with pytest.raises(InvalidRequest, match="Invalid qos"):
        slurm.scheduler.test_only(plan)
    assert not slurm.accepted()
    assert not Path(plan.attempt_dir.path).exists()


def test_slurm_submit_reads_id_between_banner_lines(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "banner")
    native, plan = slurm.submit("true")
    assert [native.job] == slurm.accepted()
    reply = (Path(plan.attempt_dir.submit) / "reply").read_bytes()
    assert reply.startswith(b"*** Welcome") and reply.endswith(b"intranet *\n") and b"\xa7" in reply


def test_slurm_submit_waits_for_sbatch_that_retries_itself(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "busy")
    native, _ = slurm.submit("true")
    assert [native.job] == slurm.accepted()


@pytest.mark.parametrize(
    "said",
    [
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)",
    ],
    ids=["MaxJobCount", "QOS"],
)
def test_slurm_submit_raises_too_many_when_queue_or_qos_is_full(slurm: FakeSlurmHarness, said: str) -> None:
    slurm.spoil("sbatch", f"refuse={said}")
    with pytest.raises(TooMany, match=r"QOSMaxSubmitJobPerUserLimit|temporarily unable"):
        slurm.submit("true")
    assert not slurm.accepted()


def test_slurm_submit_is_uncertain_and_finds_job_after_untrusted_reply(slurm: FakeSlurmHarness) -> None:
    """slurmctld took the job; its answer's credential had expired when munge looked at it here."""
    slurm.spoil("sbatch", "untrusted")
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain, match="Expired credential"):
        slurm.scheduler.submit(plan)
    assert [native.job for native in slurm.scheduler.find(plan.token, plan.attempt_dir)] == slurm.accepted()
