"""Questions to a Slurm that is silent, hangs, talks nonsense or has forgotten. Against the fake executables."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.domain.backend_facts import Absent
from ffdl_batch.domain.job.spec import Resources
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.scheduler_errors import NotNow, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import ForgetsJobs
from ffdl_slurm.adapter import SlurmScheduler
from tests.contract.scheduler_harness import FakeSlurmHarness


def test_slurm_observe_queries_squeue_once_for_many_jobs_and_tolerates_unknown_id(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    slurm.freeze()
    jobs, stranger = [slurm.submit("true")[0] for _ in range(3)], NativeId("999999")
    assert {seen.phase for seen in slurm.scheduler.observe(jobs).values()} == {Phase.PENDING}
    slurm.scheduler.observe([])
    assert (len(slurm.calls("squeue")), slurm.calls("sacct")) == (1, [])
    assert set(slurm.scheduler.observe([*jobs, stranger])) == set(jobs)
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.find_absent([*jobs, stranger]) == Absent(frozenset({stranger}))
    slurm.scheduler.cancel(stranger)
    slurm.scheduler.signal(stranger, "URG")


def test_slurm_reads_ended_and_purged_job_from_accounting_by_one_query(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    native, plan = slurm.submit("exit 4")
    assert slurm.await_end(native).name == plan.token
    slurm.forget(native)
    scheduler, unknown, before = slurm.scheduler, NativeId("999"), len(slurm.calls("sacct"))
    seen = scheduler.observe([native, unknown])
    assert (seen[native].end, seen[native].exit_code, seen[native].name) == (EndCause.FAILURE, 4, plan.token)
    assert len(slurm.calls("sacct")) == before + 1
    assert scheduler.find(plan.token, plan.attempt_dir) == {native}
    assert isinstance(scheduler, SlurmScheduler)
    assert scheduler.find_absent([native, unknown]) == Absent(frozenset({unknown}))
    assert all(f"--user={os.getuid()}" in call["argv"] for call in slurm.calls("sacct"))
    (slurm.state / "accounting").unlink()
    assert scheduler.observe([native]) == {}
    assert scheduler.find_absent([native]) == Absent(frozenset({native}))


def test_slurm_queries_conclude_nothing_from_failed_sacct(slurm: FakeSlurmHarness) -> None:
    slurm.keep_accounts()
    native, _ = slurm.submit("true")
    slurm.await_end(native)
    slurm.forget(native)
    other = slurm.request()

    def asked(fault: str) -> SlurmScheduler:
        """A daemon that has not asked sacct yet, which fails."""
        slurm.spoil("sacct", fault)
        made = create_adapter("slurm", {}, AdapterContext(slurm.root.path, getpass.getuser(), os.getuid()))
        assert isinstance(made, SlurmScheduler)
        return made

    assert asked("down").observe([native]) == {}
    with pytest.raises(SchedulerUnreachable):
        asked("garbage").find_absent([native])
    with pytest.raises(SchedulerUnreachable):
        asked("cut").find(other.token, other.attempt_dir)
    assert len(slurm.calls("sacct")) == 3


def test_slurm_logs_oversized_output_once_and_shortens_error(
    slurm: FakeSlurmHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    slurm.spoil("squeue", "big:always")
    for _ in range(3):
        with pytest.raises(SchedulerUnreachable) as raised:
            slurm.scheduler.observe([NativeId("7")])
        assert len(str(raised.value)) < 250 and str(raised.value).isprintable()
    assert len([text for text in caplog.messages if ", and printed: " in text]) == 1


def test_slurm_commands_ignore_banner_output(slurm: FakeSlurmHarness) -> None:
    for command in ("sbatch", "squeue", "sinfo"):
        slurm.spoil(command, "banner:always")
    assert slurm.scheduler.probe().nodes
    native, plan = slurm.submit("true")
    reply = (Path(plan.attempt_dir.submit) / "reply").read_bytes()
    assert reply.startswith(b"*** Welcome") and reply.endswith(b"intranet *\n") and b"\xa7" in reply
    assert slurm.await_end(native).end is EndCause.SUCCESS


def test_slurm_raises_scheduler_missing_when_commands_are_absent(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = slurm.prepare("true")
    monkeypatch.setenv("PATH", str(slurm.base))
    with pytest.raises(SchedulerMissing, match="sinfo cannot be run"):
        slurm.scheduler.probe()
    with pytest.raises(SchedulerMissing, match="sbatch cannot be run"):
        slurm.scheduler.submit(plan)


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


def test_slurm_reports_job_lost_when_only_accounting_lists_it_as_live(slurm: FakeSlurmHarness) -> None:
    """A slurmctld that crashes forgets its last jobs; the accounting shows them as they were, for ever."""
    slurm.keep_accounts()
    slurm.freeze()
    native, _ = slurm.submit("true")
    slurm.forget(native)
    assert slurm.scheduler.observe([native]) == {}
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.find_absent([native]) == Absent(frozenset({native}), lost=frozenset({native}))


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
    assert slurm.scheduler.find(plan.token, plan.attempt_dir) == frozenset()


# ---------------------------------------------------------------------------------- what is asked about jobs


def test_slurm_queries_raise_unreachable_when_squeue_output_is_unusable(slurm: FakeSlurmHarness) -> None:
    slurm.freeze()
    native, plan = slurm.submit("true")
    scheduler = slurm.scheduler
    assert isinstance(scheduler, ForgetsJobs)
    questions: tuple[Callable[[], object], ...] = (
        lambda: scheduler.observe([native]),
        lambda: scheduler.find(plan.token, plan.attempt_dir),
        lambda: scheduler.find_absent([native]),
    )
    faults = ("down", "garbage", "half", "cut", "timeout", "no_munge", "binary", "big", "empty")
    for ask, fault in zip(questions * 3, faults, strict=True):
        slurm.spoil("squeue", fault)
        with pytest.raises(SchedulerUnreachable) as error:
            ask()
        assert not isinstance(error.value, NotNow), fault


def test_slurm_ignores_job_of_other_user_with_reused_id(slurm: FakeSlurmHarness) -> None:
    """slurmctld's state was wiped, and it began to count again."""
    slurm.keep_accounts()
    slurm.freeze()
    native, plan = slurm.submit("true")
    slurm.change(native, user="somebody else", name="theirs", state="RUNNING")
    assert slurm.scheduler.observe([native]) == {}
    assert isinstance(slurm.scheduler, ForgetsJobs)
    assert slurm.scheduler.find_absent([native]).gone == {native}
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


def test_slurm_observe_continues_and_backs_off_when_sacct_is_down(
    slurm: FakeSlurmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):  # however slow this machine is
        monkeypatch.setattr(f"ffdl_slurm.gateways.accounting_circuit.{pause}", 3600.0)
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
            slurm.scheduler.find_absent([stranger])
    assert len(slurm.calls("sacct")) == 1


def test_slurm_observe_raises_unreachable_when_squeue_exceeds_timeout(tmp_path: Path) -> None:
    slurm = FakeSlurmHarness(tmp_path, {"command_timeout_s": 1})
    try:
        slurm.spoil("squeue", "hang")
        with pytest.raises(SchedulerUnreachable, match="did not answer within 1 s"):
            slurm.scheduler.observe([NativeId("101")])
    finally:
        slurm.close()
