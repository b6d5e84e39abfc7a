"""The Slurm adapter when Slurm loses, doubles, refuses, hangs or talks nonsense. Against the fake executables."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.spec import Resources
from ffdl_batch.ports.scheduler import (
    ForgetsJobs,
    InvalidRequest,
    LosesJobs,
    NotNow,
    SchedulerMissing,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
    TrialSubmission,
)
from ffdl_slurm.adapter import SlurmScheduler
from tests.contract.scheduler_harness import FakeSlurmHarness


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    harness = FakeSlurmHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


def test_what_the_plan_shows_is_what_slurm_gets(world: FakeSlurmHarness) -> None:
    native, plan = world.submit("true")
    assert world.script(native) == plan.script
    call = world.calls("sbatch")[0]
    assert ("sbatch", *call["argv"]) == plan.submit_argv


def test_sbatch_sees_none_of_the_daemons_variables(world: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBATCH_PARTITION", "SLURM_JOB_ID", "SQUEUE_FORMAT", "TOKEN_OF_THE_DAEMON", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    native, _ = world.submit("true")
    world.observe(native)
    for command in ("sbatch", "squeue"):
        environ = world.calls(command)[0]["env"]
        assert not {"SBATCH_PARTITION", "SLURM_JOB_ID", "SQUEUE_FORMAT"} & set(environ)
        assert environ["LC_ALL"] == "C"
    assert "TOKEN_OF_THE_DAEMON" not in world.calls("sbatch")[0]["env"]
    assert "SLURM_CONF" in world.calls("sbatch")[0]["env"]


def test_any_number_of_jobs_is_one_question(world: FakeSlurmHarness) -> None:
    world.freeze()
    jobs = [world.submit("true")[0] for _ in range(5)]
    assert {seen.phase for seen in world.scheduler.observe(jobs).values()} == {Phase.PENDING}
    assert len(world.calls("squeue")) == 1
    assert not world.calls("sacct")
    world.scheduler.observe([])
    assert len(world.calls("squeue")) == 1


def test_ended_jobs_that_the_controller_forgot_cost_one_question_more(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    native, plan = world.submit("exit 4")
    world.await_end(native)
    world.forget(native)
    before = len(world.calls("sacct"))
    seen = world.scheduler.observe([native, NativeId("999")])
    assert (seen[native].end, seen[native].exit_code) == (EndCause.FAILURE, 4)
    assert len(world.calls("sacct")) == before + 1
    assert world.scheduler.find(plan.token, plan.attempt_dir) == {native}
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.is_forgotten([native, NativeId("999")]) == {NativeId("999")}


def test_without_accounting_a_purged_job_is_unknown_and_forgotten(world: FakeSlurmHarness) -> None:
    native, _ = world.submit("true")
    world.await_end(native)
    world.forget(native)
    assert world.scheduler.observe([native]) == {}
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.is_forgotten([native]) == {native}


@pytest.mark.parametrize(("command", "fault"), [("squeue", "down"), ("squeue", "garbage"), ("squeue", "half")])
def test_half_an_answer_is_no_answer(world: FakeSlurmHarness, command: str, fault: str) -> None:
    native, plan = world.submit("true")
    world.await_end(native)
    assert isinstance(world.scheduler, ForgetsJobs)
    for ask in (
        lambda: world.scheduler.observe([native]),
        lambda: world.scheduler.find(plan.token, plan.attempt_dir),
        lambda: world.scheduler.is_forgotten([native]),
    ):
        world.spoil(command, fault)
        with pytest.raises(SchedulerUnreachable):
            ask()


@pytest.mark.parametrize("fault", ["down", "garbage", "cut"])
@pytest.mark.parametrize("question", ["observe", "is_forgotten", "find"])
def test_a_silent_accounting_proves_nothing(world: FakeSlurmHarness, question: str, fault: str) -> None:
    world.keep_accounts()
    native, _ = world.submit("true")
    world.await_end(native)
    world.forget(native)
    assert isinstance(world.scheduler, ForgetsJobs)
    other = world.request()
    world.spoil("sacct", fault)
    if question == "observe":
        assert world.scheduler.observe([native]) == {}
    elif question == "is_forgotten":
        with pytest.raises(SchedulerUnreachable):
            world.scheduler.is_forgotten([native])
    else:
        with pytest.raises(SchedulerUnreachable):
            world.scheduler.find(other.token, other.attempt_dir)
    assert len(world.calls("sacct")) == 1


def test_an_answer_that_is_too_long_for_a_message_is_in_the_log_once(
    world: FakeSlurmHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.spoil("squeue", "big:always")
    for _ in range(3):
        with pytest.raises(SchedulerUnreachable) as raised:
            world.scheduler.observe([NativeId("7")])
        assert len(str(raised.value)) < 250 and str(raised.value).isprintable()
    assert len([text for text in caplog.messages if "said in full" in text]) == 1


def test_banners_are_read_over(world: FakeSlurmHarness) -> None:
    for command in ("sbatch", "squeue", "sinfo"):
        world.spoil(command, "banner:always")
    assert world.scheduler.probe().nodes
    native, _ = world.submit("true")
    assert world.await_end(native).end is EndCause.SUCCESS


def test_a_lost_reply_is_uncertain_and_the_job_is_found(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "lose_reply")
    plan = world.prepare("true")
    with pytest.raises(SubmissionUncertain, match="looked for"):
        world.scheduler.submit(plan)
    found = world.scheduler.find(plan.token, plan.attempt_dir)
    assert [native.job for native in found] == world.accepted()
    assert world.await_end(next(iter(found))).end is EndCause.SUCCESS


@pytest.mark.parametrize("fault", ["silent", "garbage"])
def test_an_answer_without_an_id_is_uncertain(world: FakeSlurmHarness, fault: str) -> None:
    world.spoil("sbatch", fault)
    plan = world.prepare("true")
    with pytest.raises(SubmissionUncertain):
        world.scheduler.submit(plan)
    assert world.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


def test_a_hanging_sbatch_is_ended_and_uncertain(tmp_path: Path) -> None:
    world = FakeSlurmHarness(tmp_path, {"command_timeout_s": 2})
    try:
        world.spoil("sbatch", "hang")
        plan = world.prepare("true")
        with pytest.raises(SubmissionUncertain, match="did not answer"):
            world.scheduler.submit(plan)
        found = world.scheduler.find(plan.token, plan.attempt_dir)
        assert [native.job for native in found] == world.accepted()
    finally:
        world.close()


def test_a_request_that_lands_late_is_found_later(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "late")
    plan = world.prepare("true")
    with pytest.raises(SubmissionUncertain):
        world.scheduler.submit(plan)
    world.wait(lambda: bool(world.scheduler.find(plan.token, plan.attempt_dir)), world.diagnosis)
    assert isinstance(world.scheduler, SlurmScheduler) and world.scheduler.credential_life_s == 300


def test_a_submission_that_is_accepted_twice_runs_once(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "twice")
    native, plan = world.submit("echo ran; sleep 0.5")
    found = world.scheduler.find(plan.token, plan.attempt_dir)
    assert native in found and len(found) == 2
    for job in found:
        world.await_end(job)
    assert world.executions(plan.attempt_dir) == 1
    assert world.log(plan).count("ran") == 1


def test_a_controller_that_is_down_is_unreachable_and_nothing_is_there(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "down")
    plan = world.prepare("true")
    with pytest.raises(SchedulerUnreachable, match="nothing was submitted"):
        world.scheduler.submit(plan)
    assert not world.accepted()
    assert world.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


def test_a_refusal_carries_slurms_sentence(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "refuse=Invalid qos specification")
    with pytest.raises(InvalidRequest, match="Invalid qos specification"):
        world.submit("true")


def test_a_full_queue_is_tried_again(world: FakeSlurmHarness) -> None:
    world.spoil(
        "sbatch", "refuse=Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    )
    with pytest.raises(SchedulerUnreachable, match="tried again"):
        world.submit("true")


def test_an_sbatch_that_still_runs_is_awaited(world: FakeSlurmHarness) -> None:
    """Its starter died; the lock that it inherited tells."""
    plan = world.prepare("true")
    submit = Path(plan.attempt_dir.submit)
    submit.mkdir()
    lock = os.open(submit / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SchedulerUnreachable, match="under way"):
            world.scheduler.find(plan.token, plan.attempt_dir)
        with pytest.raises(SchedulerUnreachable, match="under way"):
            world.scheduler.submit(plan)
    finally:
        os.close(lock)
    assert not world.accepted()


def test_a_reply_outlives_the_process_that_asked(world: FakeSlurmHarness) -> None:
    plan = world.prepare("true")
    submit = Path(plan.attempt_dir.submit)
    submit.mkdir()
    (submit / "reply").write_text("*** welcome ***\n4711;cluster\n")
    assert world.scheduler.find(plan.token, plan.attempt_dir) == {NativeId("4711")}


def test_only_is_asked_without_submitting(world: FakeSlurmHarness) -> None:
    assert isinstance(world.scheduler, TrialSubmission)
    plan = world.scheduler.plan(world.request())
    assert "to start at" in world.scheduler.test_only(plan)
    world.spoil("sbatch", "refuse")
    with pytest.raises(InvalidRequest, match="Invalid qos"):
        world.scheduler.test_only(plan)
    assert not world.accepted()
    assert not Path(plan.attempt_dir.path).exists()


def test_no_slurm_is_a_clear_error(world: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.prepare("true")
    monkeypatch.setenv("PATH", str(world.base))
    with pytest.raises(SchedulerMissing, match="sinfo cannot be run"):
        world.scheduler.probe()
    with pytest.raises(SchedulerMissing, match="sbatch cannot be run"):
        world.scheduler.submit(plan)


def test_a_scancel_that_reaches_nobody_is_tried_again(world: FakeSlurmHarness) -> None:
    world.spoil("scancel", "down")
    with pytest.raises(SchedulerUnreachable):
        world.scheduler.cancel(NativeId("101"))


def test_learners_get_their_gpus_and_the_container_its_options(world: FakeSlurmHarness) -> None:
    wanted = Resources(learners=1, cpus=1.5, gpus=2, gpu_type="A100", memory_bytes=10**9, gres={"nvme": 1})
    native, plan = world.submit('echo "gpus=$CUDA_VISIBLE_DEVICES"', resources=wanted)
    assert world.await_end(native).end is EndCause.SUCCESS, world.log(plan)
    assert "gpus=0,1" in world.log(plan)
    srun = world.calls("srun")[0]["argv"]
    assert {"--gres=gpu:a100:2,nvme:1", "--cpus-per-task=2", "--kill-on-bad-exit=0", "--wait=0"} <= set(srun)
    argv = world.calls("apptainer")[0]["argv"]
    assert {"--containall", "--no-home", "--nv", "--net"} <= set(argv)
    assert argv[argv.index("--network") + 1] == "none"
    assert any("rounded up" in warning for warning in plan.warnings)


def test_two_learners_are_two_nodes_of_one_job(world: FakeSlurmHarness) -> None:
    two = Resources(learners=2, cpus=1, memory_bytes=64 * 1024**2)
    native, plan = world.submit('echo "rank=$RANK of $WORLD_SIZE id=$LEARNER_ID"', resources=two)
    assert world.await_end(native).end is EndCause.SUCCESS, world.diagnosis()
    logs = [Path(plan.attempt_dir.training_log(n)).read_text() for n in (1, 2)]
    assert "rank=0 of 2 id=1" in logs[0] and "rank=1 of 2 id=2" in logs[1]
    assert len(world.accepted()) == 1


def test_a_job_that_the_controller_lost_is_not_running_by_the_accountings_word(world: FakeSlurmHarness) -> None:
    """A slurmctld that crashes forgets its last jobs; the accounting shows them as they were, for ever."""
    world.keep_accounts()
    world.freeze()
    native, _ = world.submit("true")
    world.forget(native)
    assert world.scheduler.observe([native]) == {}
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.is_forgotten([native]) == {native}
    assert isinstance(world.scheduler, LosesJobs)
    assert world.scheduler.was_lost([native]) == {native}


def test_a_job_that_ended_and_was_forgotten_was_not_lost(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    native, _ = world.submit("true")
    world.await_end(native)
    world.forget(native)
    assert isinstance(world.scheduler, LosesJobs)
    assert world.scheduler.was_lost([native]) == frozenset()


def test_what_is_seen_carries_the_jobs_name_and_only_own_jobs_are_asked_for(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    native, plan = world.submit("true")
    assert world.await_end(native).name == plan.token
    world.forget(native)
    assert world.scheduler.observe([native])[native].name == plan.token
    assert all(f"--user={os.getuid()}" in call["argv"] for call in world.calls("sacct"))


# ------------------------------------------------------------------- what sbatch does, and what is known then


@pytest.mark.parametrize("fault", ["binary", "big", "empty"])
def test_noise_in_the_place_of_an_id_is_uncertain_and_nothing_is_taken_for_one(
    world: FakeSlurmHarness, fault: str
) -> None:
    world.spoil("sbatch", fault)
    plan = world.prepare("true")
    with pytest.raises(SubmissionUncertain) as error:
        world.scheduler.submit(plan)
    assert len(str(error.value)) < 1000
    assert world.scheduler.find(plan.token, plan.attempt_dir) == frozenset()
    assert not world.accepted()


def test_an_id_among_greetings_is_the_id(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "banner")
    native, plan = world.submit("true")
    assert [native.job] == world.accepted()
    reply = (Path(plan.attempt_dir.submit) / "reply").read_bytes()
    assert reply.startswith(b"*** Welcome") and reply.endswith(b"intranet *\n") and b"\xa7" in reply


def test_an_sbatch_that_tries_again_by_itself_is_waited_for(world: FakeSlurmHarness) -> None:
    world.spoil("sbatch", "busy")
    native, _ = world.submit("true")
    assert [native.job] == world.accepted()


@pytest.mark.parametrize(
    "said",
    [
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)",
    ],
    ids=["MaxJobCount", "QOS"],
)
def test_no_room_is_an_answer_and_may_pass(world: FakeSlurmHarness, said: str) -> None:
    world.spoil("sbatch", f"refuse={said}")
    with pytest.raises(TooMany, match=r"QOSMaxSubmitJobPerUserLimit|temporarily unable"):
        world.submit("true")
    assert not world.accepted()


def test_a_limit_that_the_job_itself_breaks_is_a_refusal(world: FakeSlurmHarness) -> None:
    world.spoil(
        "sbatch",
        "refuse=QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates "
        "accounting/QOS policy (job submit limit, user's size and/or time limits)",
    )
    with pytest.raises(InvalidRequest, match="QOSMaxWallDurationPerJobLimit"):
        world.submit("true")


def test_a_reply_that_cannot_be_trusted_is_lost_and_the_job_is_found(world: FakeSlurmHarness) -> None:
    """slurmctld took the job; its answer's credential had expired when munge looked at it here."""
    world.spoil("sbatch", "untrusted")
    plan = world.prepare("true")
    with pytest.raises(SubmissionUncertain, match="Expired credential"):
        world.scheduler.submit(plan)
    assert [native.job for native in world.scheduler.find(plan.token, plan.attempt_dir)] == world.accepted()


def test_without_munge_nothing_is_sent_and_nothing_is_known(world: FakeSlurmHarness) -> None:
    native, _ = world.submit("true")
    for command in ("sbatch", "squeue", "scancel", "sinfo"):
        world.spoil(command, "no_munge")
    plan = world.prepare("true")
    with pytest.raises(SchedulerUnreachable, match="nothing was submitted"):
        world.scheduler.submit(plan)
    assert world.accepted() == [native.job]
    for ask in (
        lambda: world.scheduler.observe([native]),
        lambda: world.scheduler.cancel(native),
        world.scheduler.probe,
    ):
        with pytest.raises(SchedulerUnreachable):
            ask()


# ---------------------------------------------------------------------------------- what is asked about jobs


@pytest.mark.parametrize("fault", ["cut", "timeout", "no_munge", "binary", "big", "empty"])
def test_an_answer_that_is_none_is_no_word_about_any_job(world: FakeSlurmHarness, fault: str) -> None:
    world.freeze()
    native, plan = world.submit("true")
    assert isinstance(world.scheduler, ForgetsJobs)
    for ask in (
        lambda: world.scheduler.observe([native]),
        lambda: world.scheduler.find(plan.token, plan.attempt_dir),
        lambda: world.scheduler.is_forgotten([native]),
    ):
        world.spoil("squeue", fault)
        with pytest.raises(SchedulerUnreachable) as error:
            ask()
        assert not isinstance(error.value, NotNow)


def test_one_unknown_id_among_many_is_no_outage(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    world.freeze()
    known = [world.submit("true")[0] for _ in range(3)]
    stranger = NativeId("999999")
    assert set(world.scheduler.observe([*known, stranger])) == set(known)
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.is_forgotten([*known, stranger]) == {stranger}
    world.scheduler.cancel(stranger)
    world.scheduler.signal(stranger, "URG")


def test_an_id_that_is_another_users_by_now_is_not_the_job(world: FakeSlurmHarness) -> None:
    """slurmctld's state was wiped, and it began to count anew."""
    world.keep_accounts()
    world.freeze()
    native, plan = world.submit("true")
    world.change(native, user="somebody else", name="theirs", state="RUNNING")
    assert world.scheduler.observe([native]) == {}
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.is_forgotten([native]) == {native}
    Path(plan.attempt_dir.submit, "reply").unlink()
    assert world.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


def test_the_queue_is_believed_before_the_accounting(world: FakeSlurmHarness) -> None:
    """It lags a minute behind, or has the end of the run before."""
    world.keep_accounts()
    world.freeze()
    native, _ = world.submit("true")
    world.account(native, state="NODE_FAIL", start=1, end=2)
    seen = world.scheduler.observe([native])[native]
    assert (seen.phase, seen.end) == (Phase.PENDING, None)
    assert not world.calls("sacct")


def test_an_accounting_that_has_not_heard_of_the_end_yet_is_no_word(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    native, _ = world.submit("true")
    world.await_end(native)
    world.account(native, state="RUNNING", end=0)
    world.forget(native)
    assert world.scheduler.observe([native]) == {}
    (world.state / "accounts" / f"{native.job}.json").unlink()
    assert world.scheduler.observe([native])[native].end is EndCause.SUCCESS


def test_an_accounting_that_is_away_is_no_outage_of_slurm_and_is_left_alone(
    world: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):  # however slow this machine is
        monkeypatch.setattr(f"ffdl_slurm.accounting.{pause}", 3600.0)
    world.keep_accounts()
    world.freeze()
    native, _ = world.submit("true")
    stranger = NativeId("999999")
    assert isinstance(world.scheduler, ForgetsJobs)
    world.spoil("sacct", "down")
    assert set(world.scheduler.observe([native, stranger])) == {native}
    for _ in range(5):
        assert set(world.scheduler.observe([native, stranger])) == {native}
        with pytest.raises(NotNow):
            world.scheduler.is_forgotten([stranger])
    assert len(world.calls("sacct")) == 1


def test_a_hanging_query_is_ended(tmp_path: Path) -> None:
    world = FakeSlurmHarness(tmp_path, {"command_timeout_s": 1})
    try:
        native, _ = world.submit("true")
        world.spoil("squeue", "hang")
        with pytest.raises(SchedulerUnreachable, match="did not answer within 1 s"):
            world.scheduler.observe([native])
    finally:
        world.close()
