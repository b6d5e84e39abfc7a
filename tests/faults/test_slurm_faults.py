"""Questions to a Slurm that is silent, hangs, talks nonsense or has forgotten. Against the fake executables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.spec import Resources
from ffdl_batch.ports.capabilities import ForgetsJobs, LosesJobs
from ffdl_batch.ports.scheduler import NotNow, SchedulerMissing, SchedulerUnreachable
from tests.contract.scheduler_harness import FakeSlurmHarness


def test_slurm_observe_queries_squeue_once_for_many_jobs(slurm: FakeSlurmHarness) -> None:
    slurm.freeze()
    jobs = [slurm.submit("true")[0] for _ in range(5)]
    assert {seen.phase for seen in slurm.scheduler.observe(jobs).values()} == {Phase.PENDING}
    assert len(slurm.calls("squeue")) == 1
    assert not slurm.calls("sacct")
    slurm.scheduler.observe([])
    assert len(slurm.calls("squeue")) == 1


def test_slurm_observe_queries_sacct_once_for_purged_jobs(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    native, plan = slurm.submit("exit 4")
    slurm.await_end(native)
    slurm.forget(native)
    before = len(slurm.calls("sacct"))
    seen = slurm.scheduler.observe([native, NativeId("999")])
    assert (seen[native].end, seen[native].exit_code) == (EndCause.FAILURE, 4)
    assert len(slurm.calls("sacct")) == before + 1
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == {native}
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.is_forgotten([native, NativeId("999")]) == {NativeId("999")}


def test_slurm_reports_purged_job_as_forgotten_without_accounting(slurm: FakeSlurmHarness) -> None:
    native, _ = slurm.submit("true")
    slurm.await_end(native)
    slurm.forget(native)
    assert slurm.scheduler.observe([native]) == {}
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.is_forgotten([native]) == {native}


@pytest.mark.parametrize(("command", "fault"), [("squeue", "down"), ("squeue", "garbage"), ("squeue", "half")])
def test_slurm_queries_raise_unreachable_when_squeue_output_is_incomplete(
    slurm: FakeSlurmHarness, command: str, fault: str
) -> None:
    native, plan = slurm.submit("true")
    slurm.await_end(native)
    assert isinstance(slurm.scheduler, ForgetsJobs)
    for ask in (
        lambda: slurm.scheduler.observe([native]),
        lambda: slurm.scheduler.find(plan.token, plan.attempt_dir),
        lambda: slurm.scheduler.is_forgotten([native]),
    ):
        slurm.spoil(command, fault)
        with pytest.raises(SchedulerUnreachable):
            ask()


@pytest.mark.parametrize("fault", ["down", "garbage", "cut"])
@pytest.mark.parametrize("question", ["observe", "is_forgotten", "find"])
def test_slurm_queries_conclude_nothing_from_failed_sacct(slurm: FakeSlurmHarness, question: str, fault: str) -> None:
    slurm.keep_accounts()
    native, _ = slurm.submit("true")
    slurm.await_end(native)
    slurm.forget(native)
    assert isinstance(slurm.scheduler, ForgetsJobs)
    other = slurm.request()
    slurm.spoil("sacct", fault)
    if question == "observe":
        assert slurm.scheduler.observe([native]) == {}
    elif question == "is_forgotten":
        with pytest.raises(SchedulerUnreachable):
            slurm.scheduler.is_forgotten([native])
    else:
        with pytest.raises(SchedulerUnreachable):
            slurm.scheduler.find(other.token, other.attempt_dir)
    assert len(slurm.calls("sacct")) == 1


def test_slurm_logs_oversized_output_once_and_shortens_error(
    slurm: FakeSlurmHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    slurm.spoil("squeue", "big:always")
    for _ in range(3):
        with pytest.raises(SchedulerUnreachable) as raised:
            slurm.scheduler.observe([NativeId("7")])
        assert len(str(raised.value)) < 250 and str(raised.value).isprintable()
    assert len([text for text in caplog.messages if "said in full" in text]) == 1


def test_slurm_commands_ignore_banner_output(slurm: FakeSlurmHarness) -> None:
    for command in ("sbatch", "squeue", "sinfo"):
        slurm.spoil(command, "banner:always")
    assert slurm.scheduler.probe().nodes
    native, _ = slurm.submit("true")
    assert slurm.await_end(native).end is EndCause.SUCCESS


def test_slurm_submit_raises_unreachable_when_controller_is_down(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("sbatch", "down")
    plan = slurm.prepare("true")
    with pytest.raises(SchedulerUnreachable, match="nothing was submitted"):
        slurm.scheduler.submit(plan)
    assert not slurm.accepted()
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


def test_slurm_raises_scheduler_missing_when_commands_are_absent(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = slurm.prepare("true")
    monkeypatch.setenv("PATH", str(slurm.base))
    with pytest.raises(SchedulerMissing, match="sinfo cannot be run"):
        slurm.scheduler.probe()
    with pytest.raises(SchedulerMissing, match="sbatch cannot be run"):
        slurm.scheduler.submit(plan)


def test_slurm_cancel_raises_unreachable_when_scancel_fails(slurm: FakeSlurmHarness) -> None:
    slurm.spoil("scancel", "down")
    with pytest.raises(SchedulerUnreachable):
        slurm.scheduler.cancel(NativeId("101"))


def test_slurm_job_passes_resources_to_srun_and_options_to_apptainer(slurm: FakeSlurmHarness) -> None:
    wanted = Resources(learners=1, cpus=1.5, gpus=2, gpu_type="A100", memory_bytes=10**9, gres={"nvme": 1})
    native, plan = slurm.submit('echo "gpus=$CUDA_VISIBLE_DEVICES"', resources=wanted)
    assert slurm.await_end(native).end is EndCause.SUCCESS, slurm.log(plan)
    assert "gpus=0,1" in slurm.log(plan)
    srun = slurm.calls("srun")[0]["argv"]
    assert {"--gres=gpu:a100:2,nvme:1", "--cpus-per-task=2", "--kill-on-bad-exit=0", "--wait=0"} <= set(srun)
    argv = slurm.calls("apptainer")[0]["argv"]
    assert {"--containall", "--no-home", "--nv", "--net"} <= set(argv)
    assert argv[argv.index("--network") + 1] == "none"
    assert any("rounded up" in warning for warning in plan.warnings)


def test_slurm_job_runs_two_learners_with_ranks_in_one_submission(slurm: FakeSlurmHarness) -> None:
    two = Resources(learners=2, cpus=1, memory_bytes=64 * 1024**2)
    native, plan = slurm.submit('echo "rank=$RANK of $WORLD_SIZE id=$LEARNER_ID"', resources=two)
    assert slurm.await_end(native).end is EndCause.SUCCESS, slurm.diagnosis()
    logs = [Path(plan.attempt_dir.training_log(n)).read_text() for n in (1, 2)]
    assert "rank=0 of 2 id=1" in logs[0] and "rank=1 of 2 id=2" in logs[1]
    assert len(slurm.accepted()) == 1


def test_slurm_reports_job_lost_when_only_accounting_lists_it_as_live(slurm: FakeSlurmHarness) -> None:
    """A slurmctld that crashes forgets its last jobs; the accounting shows them as they were, for ever."""
    slurm.keep_accounts()
    slurm.freeze()
    native, _ = slurm.submit("true")
    slurm.forget(native)
    assert slurm.scheduler.observe([native]) == {}
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.is_forgotten([native]) == {native}
    assert isinstance(slurm.scheduler, LosesJobs)
    assert slurm.scheduler.was_lost([native]) == {native}


def test_slurm_does_not_report_ended_and_purged_job_as_lost(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    native, _ = slurm.submit("true")
    slurm.await_end(native)
    slurm.forget(native)
    assert isinstance(slurm.scheduler, LosesJobs)
    assert slurm.scheduler.was_lost([native]) == frozenset()


def test_slurm_observation_carries_job_name_and_sacct_filters_by_user(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    native, plan = slurm.submit("true")
    assert slurm.await_end(native).name == plan.token
    slurm.forget(native)
    assert slurm.scheduler.observe([native])[native].name == plan.token
    assert all(f"--user={os.getuid()}" in call["argv"] for call in slurm.calls("sacct"))


# ------------------------------------------------------------------- what sbatch does, and what is known then


def test_slurm_commands_raise_unreachable_without_munge(slurm: FakeSlurmHarness) -> None:
    native, _ = slurm.submit("true")
    for command in ("sbatch", "squeue", "scancel", "sinfo"):
        slurm.spoil(command, "no_munge")
    plan = slurm.prepare("true")
    with pytest.raises(SchedulerUnreachable, match="nothing was submitted"):
        slurm.scheduler.submit(plan)
    assert slurm.accepted() == [native.job]
    for ask in (
        lambda: slurm.scheduler.observe([native]),
        lambda: slurm.scheduler.cancel(native),
        slurm.scheduler.probe,
    ):
        with pytest.raises(SchedulerUnreachable):
            ask()


# ---------------------------------------------------------------------------------- what is asked about jobs


@pytest.mark.parametrize("fault", ["cut", "timeout", "no_munge", "binary", "big", "empty"])
def test_slurm_queries_raise_unreachable_when_squeue_output_is_unusable(slurm: FakeSlurmHarness, fault: str) -> None:
    slurm.freeze()
    native, plan = slurm.submit("true")
    assert isinstance(slurm.scheduler, ForgetsJobs)
    for ask in (
        lambda: slurm.scheduler.observe([native]),
        lambda: slurm.scheduler.find(plan.token, plan.attempt_dir),
        lambda: slurm.scheduler.is_forgotten([native]),
    ):
        slurm.spoil("squeue", fault)
        with pytest.raises(SchedulerUnreachable) as error:
            ask()
        assert not isinstance(error.value, NotNow)


def test_slurm_queries_tolerate_one_unknown_id_among_known_jobs(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    slurm.freeze()
    known = [slurm.submit("true")[0] for _ in range(3)]
    stranger = NativeId("999999")
    assert set(slurm.scheduler.observe([*known, stranger])) == set(known)
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.is_forgotten([*known, stranger]) == {stranger}
    slurm.scheduler.cancel(stranger)
    slurm.scheduler.signal(stranger, "URG")


def test_slurm_ignores_job_of_other_user_with_reused_id(slurm: FakeSlurmHarness) -> None:
    """slurmctld's state was wiped, and it began to count anew."""
    slurm.keep_accounts()
    slurm.freeze()
    native, plan = slurm.submit("true")
    slurm.change(native, user="somebody else", name="theirs", state="RUNNING")
    assert slurm.scheduler.observe([native]) == {}
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.is_forgotten([native]) == {native}
    Path(plan.attempt_dir.submit, "reply").unlink()
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


def test_slurm_observe_prefers_squeue_state_over_accounting(slurm: FakeSlurmHarness) -> None:
    """It lags a minute behind, or has the end of the run before."""
    slurm.keep_accounts()
    slurm.freeze()
    native, _ = slurm.submit("true")
    slurm.account(native, state="NODE_FAIL", start=1, end=2)
    seen = slurm.scheduler.observe([native])[native]
    assert (seen.phase, seen.end) == (Phase.PENDING, None)
    assert not slurm.calls("sacct")


def test_slurm_observe_ignores_running_state_in_accounting_of_purged_job(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    native, _ = slurm.submit("true")
    slurm.await_end(native)
    slurm.account(native, state="RUNNING", end=0)
    slurm.forget(native)
    assert slurm.scheduler.observe([native]) == {}
    (slurm.state / "accounts" / f"{native.job}.json").unlink()
    assert slurm.scheduler.observe([native])[native].end is EndCause.SUCCESS


def test_slurm_observe_continues_and_backs_off_when_sacct_is_down(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):  # however slow this machine is
        monkeypatch.setattr(f"ffdl_slurm.accounting.{pause}", 3600.0)
    slurm.keep_accounts()
    slurm.freeze()
    native, _ = slurm.submit("true")
    stranger = NativeId("999999")
    assert isinstance(slurm.scheduler, ForgetsJobs)
    slurm.spoil("sacct", "down")
    assert set(slurm.scheduler.observe([native, stranger])) == {native}
    for _ in range(5):
        assert set(slurm.scheduler.observe([native, stranger])) == {native}
        with pytest.raises(NotNow):
            slurm.scheduler.is_forgotten([stranger])
    assert len(slurm.calls("sacct")) == 1


def test_slurm_observe_raises_unreachable_when_squeue_exceeds_timeout(tmp_path: Path) -> None:
    slurm = FakeSlurmHarness(tmp_path, {"command_timeout_s": 1})
    try:
        slurm.spoil("squeue", "hang")
        with pytest.raises(SchedulerUnreachable, match="did not answer within 1 s"):
            slurm.scheduler.observe([NativeId("101")])
    finally:
        slurm.close()
