"""Submissions that Slurm loses, doubles, refuses, or answers with nonsense. Against the fake executables."""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.facts import AttemptFacts
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.outcome.verdict import judge
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NotTaken,
    RefusedBySite,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import TrialSubmission
from ffdl_slurm.gateways import cli_gateway
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


def unusable(place: Path, kind: str) -> Path:
    """Return an interpreter that a node cannot start."""
    python = place / f"venv {kind}" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    if kind == "dangling link":  # a virtual environment whose Python was removed
        python.symlink_to("/nonexistent/python3.9")
    elif kind != "missing":
        python.write_text("#!/nonexistent/bash\n")
        python.chmod(0o644 if kind == "not executable" else 0o755)
    return python


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "not found"),
        ("dangling link", "not found"),
        ("without its shell", "not found"),
        ("not executable", "Permission denied"),
    ],
)
def test_batch_log_and_message_name_interpreter_that_node_cannot_start(
    slurm: FakeSlurmHarness, tmp_path: Path, kind: str, said: str
) -> None:
    python = unusable(tmp_path, kind)
    native, plan = slurm.submit("true", facts=replace(slurm.facts, python=str(python)))
    seen = slurm.await_end(native)
    log = Path(plan.attempt_dir.batch_log).read_text().splitlines()
    assert str(python) in log[-1] and said in log[-1], log
    facts = AttemptFacts(
        JobState.QUEUED, RequestedAction.NONE, time.time(), observation=seen, batch_log_tail=tuple(log)
    )
    assert str(python) in judge(facts).message


@pytest.mark.parametrize(("fault", "said"), [("lose_reply", "looked for"), ("untrusted", "Expired credential")])
def test_slurm_submit_is_uncertain_and_finds_job_after_lost_reply(
    slurm: FakeSlurmHarness, fault: str, said: str
) -> None:
    """`untrusted`: slurmctld took the job; its answer's credential had expired when munge looked at it here."""
    slurm.freeze()
    slurm.spoil("sbatch", fault)
    plan = slurm.prepare("true")
    with pytest.raises(SubmissionUncertain, match=said):
        slurm.scheduler.submit(plan)
    assert [native.job for native in slurm.scheduler.find(plan.token, plan.attempt_dir)] == slurm.accepted()


def test_slurm_submit_is_uncertain_when_sbatch_prints_no_id(slurm: FakeSlurmHarness) -> None:
    faults = ("silent", "garbage", "binary", "big", "empty")
    slurm.spoil("sbatch", *faults)
    for fault in faults:
        plan = slurm.prepare("true")
        with pytest.raises(SubmissionUncertain) as error:
            slurm.scheduler.submit(plan)
        assert len(str(error.value)) < 1000, fault
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


def test_slurm_submit_is_invalid_and_quotes_sbatch_refusal(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "refuse=Invalid qos specification")
    with pytest.raises(InvalidRequest, match="Invalid qos specification"):
        slurm.submit("true")


@pytest.mark.parametrize(
    "words",
    [
        "jobs of this partition need --account; see https://site.example/rules",
        "license server: Socket timed out on send/recv operation",
        "Batch job submission failed: Job violates accounting/QOS policy",
    ],
)
def test_slurm_submit_and_test_only_quote_job_submit_plugin(slurm: FakeSlurmHarness, words: str) -> None:
    slurm.spoil("sbatch", f"site={words}", f"site={words}")
    plan = slurm.prepare("true")
    assert isinstance(slurm.scheduler, TrialSubmission)
    for ask in (slurm.scheduler.submit, slurm.scheduler.test_only):
        with pytest.raises(RefusedBySite, match=re.escape(words)):
            ask(plan)
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


WRAPPERS = [
    ("echo 'sbatch: fatal: Unable to process configuration file' >&2; exit 1", "fatal", SchedulerUnreachable),
    ("echo 'error while loading shared libraries: x.so' >&2; exit 127", "x.so", SchedulerUnreachable),
    ("echo 'sbatch: fork: Cannot allocate memory' >&2; exit 254", "fork: Cannot allocate memory", NotTaken),
    ("exec sbatch-of-another-release", "not found", NotTaken),
    ("kill -9 $$", "-9", SubmissionUncertain),
    ("sh -c 'kill -9 $$'; exit $?", "137", SubmissionUncertain),
]
"""What runs in the place of sbatch, and what is said and raised then."""


def test_slurm_submit_does_not_reject_job_when_sbatch_cannot_run(
    slurm: FakeSlurmHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.freeze()
    wrapper, plan = tmp_path / "site" / "sbatch", slurm.prepare("true")
    wrapper.parent.mkdir()
    for lines, said, kind in WRAPPERS:
        wrapper.write_text(f"#!/bin/sh\n{lines}\n")
        wrapper.chmod(0o755)
        with monkeypatch.context() as patched:
            patched.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
            with pytest.raises(SchedulerError, match=said) as raised:
                slurm.scheduler.submit(plan)
        assert type(raised.value) is kind, lines
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    assert [slurm.scheduler.submit(plan).job] == slurm.accepted()


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
def test_slurm_find_ignores_reply_id_that_slurm_does_not_list_as_the_job(
    slurm: FakeSlurmHarness, accounting: bool
) -> None:
    """What a site has put before sbatch answered with a wrong one: nobody's, another training's, a plain job's."""
    if accounting:
        slurm.keep_accounts()
    slurm.freeze()
    training, plain = (slurm.submit("true")[0] for _ in range(2))
    slurm.change(plain, name="wrap")
    plan = slurm.prepare("true")
    submit = Path(plan.attempt_dir.submit)
    submit.mkdir()
    for number in ("7654321", training, plain):
        (submit / "reply").write_text(f"{number}\n")
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


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [("busy", TooMany, "unable to accept job"), ("busy=quota: try later", NotTaken, "quota: try later")],
)
def test_slurm_submit_ends_sbatch_that_retries_itself(
    slurm: FakeSlurmHarness, fault: str, kind: type[NotTaken], words: str
) -> None:
    plan = slurm.prepare("true")
    slurm.spoil("sbatch", fault)
    with pytest.raises(NotTaken, match=words) as raised:
        slurm.scheduler.submit(plan)
    assert type(raised.value) is kind
    time.sleep(1)  # after which it would have been accepted
    assert not slurm.accepted() and slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    assert [slurm.scheduler.submit(plan).job] == slurm.accepted()


def test_slurm_submit_is_uncertain_if_sbatch_had_time_to_submit_again(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_gateway, "FIRST_RETRY_S", 0.0)
    slurm.spoil("sbatch", "busy")
    with pytest.raises(SubmissionUncertain, match="looked for"):
        slurm.submit("true")


def test_slurm_submit_raises_too_many_when_qos_is_full(slurm: FakeSlurmHarness) -> None:
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    limit = "QOSMaxSubmitJobPerUserLimit"
    slurm.spoil("sbatch", f"refuse={limit}\nsbatch: error: Batch job submission failed: {policy}")
    with pytest.raises(TooMany, match=limit):
        slurm.submit("true")
    assert not slurm.accepted()
