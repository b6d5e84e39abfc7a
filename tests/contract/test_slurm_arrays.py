"""A native array whose submission, listing or accounting goes wrong: no element is lost, none is taken for another.
Fake executables."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.backend_facts import Absent
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.scheduler_errors import ArraysRefused, SchedulerUnreachable, SubmissionUncertain, TooMany
from ffdl_batch.ports.capabilities import ForgetsJobs
from ffdl_slurm.gateways import command_runner
from tests import preloaded
from tests.contract.array_rig import Fleet, raw_id
from tests.contract.scheduler_harness import FakeSlurmHarness

SUBMIT_LIMIT = (
    "AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)
WAITING = BatchOptions(array="0-2", hold=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    with FakeSlurmHarness(tmp_path) as harness:
        yield harness


@pytest.mark.parametrize("fault", ["lose_reply", "silent_reply", "hang"])
def test_array_submission_finds_every_task_after_lost_sbatch_reply(
    world: FakeSlurmHarness, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    await_end = command_runner._await_end

    def is_accepted() -> bool:
        return bool(list((world.state / "jobs").glob("*.tasks")))

    def await_end_of_a_hang(process: subprocess.Popen[bytes], _timeout_s: float, must_stop: Callable[[], bool]) -> None:
        world.wait(is_accepted, lambda: "the request was not accepted")
        await_end(process, 0.2, must_stop)

    if fault == "hang":
        monkeypatch.setattr(command_runner, "_await_end", await_end_of_a_hang)
    world.spoil("sbatch", fault.removeprefix("silent_").replace("reply", "untrusted") if "silent" in fault else fault)
    with pytest.raises((SubmissionUncertain, SchedulerUnreachable)):
        fleet.scheduler.submit_array(plan)
    (job,) = world.accepted()
    assert fleet.finds() == [{NativeId(job, str(n))} for n in range(3)]


def test_array_submission_finds_tasks_only_after_delayed_request_is_accepted(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    world.spoil("sbatch", "late")
    (world.state / "later").touch()
    with pytest.raises(SubmissionUncertain):
        fleet.scheduler.submit_array(plan)
    assert fleet.finds() == [frozenset()] * 3
    (world.state / "later").unlink()
    world.wait(lambda: bool(world.accepted()), lambda: "the request did not land")
    world.wait(lambda: all(len(found) == 1 for found in fleet.finds()), lambda: str(fleet.finds()))


def test_array_find_ignores_sbatch_reply_when_slurm_no_longer_knows_the_tasks(world: FakeSlurmHarness) -> None:
    """They were not executed, for nobody claimed them."""
    fleet = Fleet(world, "true", batch=WAITING)
    natives = fleet.submit()
    assert fleet.finds() == [{native} for native in natives]
    for native in natives:
        world.forget(native)
    assert fleet.finds() == [frozenset() for _ in natives]


def test_array_find_raises_unreachable_while_submission_holds_lock(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    lock = os.open(Path(plan.chunk.directory.submit) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SchedulerUnreachable, match="under way"):
            fleet.finds()
    finally:
        os.close(lock)


def test_array_submission_distinguishes_refused_array_from_submit_limit(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    world.spoil("sbatch", "refuse=Invalid job array specification", f"refuse={SUBMIT_LIMIT}")
    with pytest.raises(ArraysRefused):
        fleet.scheduler.submit_array(plan)
    with pytest.raises(TooMany):
        fleet.scheduler.submit_array(plan)
    assert world.accepted() == []


def test_array_find_queries_squeue_and_sacct_once_for_200_tasks(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    (world.state / "still").touch()
    fleet = Fleet(world, "true", batch=BatchOptions(array="0-199"))
    natives = fleet.submit()
    before = {command: len(world.calls(command)) for command in ("squeue", "sacct")}
    assert fleet.finds() == [{native} for native in natives]
    more = {command: len(world.calls(command)) - count for command, count in before.items()}
    assert more == {"squeue": 1, "sacct": 1}
    assert len(world.scheduler.observe(natives)) == 200
    assert len(world.calls("squeue")) == before["squeue"] + 2
    assert len(world.calls("sbatch")) == 1


def test_requeued_array_task_keeps_id_and_claims_second_run(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "trap 'exit 1' TERM; echo up; sleep 60 & wait", batch=BatchOptions(array="0-1"))
    natives = fleet.submit()
    for plan in fleet.plans:
        world.await_log(plan, "up")
    head = json.loads(Path(fleet.plans[1].attempt_dir.claim_owner).read_text())["pid"]
    world.freeze()  # as Slurm, which starts a job again when its processes have ended
    preloaded.run(["scontrol", "requeue", str(natives[1])], check=True, timeout=120)
    world.wait(lambda: not Path(f"/proc/{head}").exists(), world.diagnosis)
    world.thaw()
    restarted = world.await_observation(natives[1], lambda seen: seen.restarts == 1)
    other = world.observe(natives[0])
    assert other is not None and (other.restarts, other.phase) == (0, Phase.RUNNING)
    assert restarted.name == fleet.plans[1].token
    second_run = Path(fleet.plans[1].attempt_dir.run_claim(2)) / "owner.json"
    world.wait(second_run.exists, world.diagnosis)
    assert json.loads(second_run.read_text())["native_id"] == str(natives[1])


def test_array_observation_reads_purged_tasks_from_accounting_under_listed_id(world: FakeSlurmHarness) -> None:
    """Slurm gives each task that starts a number of its own, which is in SLURM_JOB_ID and in no listing of ours."""
    world.keep_accounts()
    fleet = Fleet(world, "exit $FFDL_ARRAY_INDEX", batch=BatchOptions(array="0-1"))
    natives = fleet.submit()
    for native, plan in zip(natives, fleet.plans, strict=True):
        world.await_end(native)
        claim = json.loads(Path(plan.attempt_dir.claim_owner).read_text())
        assert claim["native_id"] == str(native) != raw_id(world, native)
        world.forget(native)
    assert isinstance(world.scheduler, ForgetsJobs)
    seen = world.scheduler.observe(natives)
    assert [seen[native].exit_code for native in natives] == [0, 1]
    assert [seen[native].name for native in natives] == [plan.token for plan in fleet.plans]
    unknown = NativeId(natives[0].job, "7")
    assert world.scheduler.find_absent([*natives, unknown]) == Absent(frozenset({unknown}))
    assert fleet.finds() == [{native} for native in natives]


def test_array_observation_reports_every_task_cancelled_from_one_collapsed_record(world: FakeSlurmHarness) -> None:
    """An array that was cancelled while it waited: Slurm shows what was left of it under the array's own id."""
    fleet = Fleet(world, "true", batch=WAITING)
    natives = fleet.submit()
    for native in natives:
        world.scheduler.cancel(native)
    seen = world.scheduler.observe(natives)
    assert [seen[native].end for native in natives] == [EndCause.CANCELLED] * 3
    assert [seen[native].name for native in natives] == [plan.token for plan in fleet.plans]
    assert fleet.finds() == [{native} for native in natives]


def test_find_absent_reports_dropped_task_only_while_its_array_is_listed(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    world.freeze()
    fleet = Fleet(world, "true", batch=BatchOptions(array="0-3"))
    natives = fleet.submit()
    preloaded.run(["scancel", str(natives[2])], check=True, timeout=120)
    assert isinstance(world.scheduler, ForgetsJobs)
    assert set(world.scheduler.observe(natives)) == {*natives} - {natives[2]}
    dropped = {natives[2]: fleet.plans[2].token}
    assert world.scheduler.find_absent(natives) == Absent(frozenset(dropped), dropped=dropped)
    for native in (natives[0], natives[1], natives[3]):
        world.forget(native)  # and then nothing is known of the array
    absent = world.scheduler.find_absent(natives)
    assert absent.gone == {*natives} and not absent.dropped


def test_split_off_array_task_keeps_its_record_after_cancel(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    natives = fleet.submit()
    preloaded.run(["scontrol", "update", f"JobId={natives[1]}", "ExcNodeList=n1"], check=True, timeout=120)
    world.scheduler.cancel(natives[1])
    seen = world.scheduler.observe(natives)
    assert [seen[native].phase for native in natives] == [Phase.PENDING, Phase.ENDED, Phase.PENDING]
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.find_absent(natives) == Absent()


def test_find_absent_raises_unreachable_when_squeue_listing_is_incomplete(world: FakeSlurmHarness) -> None:
    natives = Fleet(world, "true", batch=WAITING).submit()
    assert isinstance(world.scheduler, ForgetsJobs)
    for fault in ("half", "cut", "down", "garbage"):
        world.spoil("squeue", fault)
        with pytest.raises(SchedulerUnreachable):
            world.scheduler.find_absent(natives)


def test_array_observation_reports_new_owner_when_slurm_reuses_job_id(world: FakeSlurmHarness) -> None:
    fleet, other = (Fleet(world, "true", batch=WAITING) for _ in range(2))
    natives = fleet.submit()
    with world.locked():
        for native in natives:
            (world.state / "jobs" / f"{raw_id(world, native)}.json").unlink()
    (world.state / "next").write_text(natives[0].job)
    assert other.submit() == natives
    seen = world.scheduler.observe(natives)
    assert [seen[native].name for native in natives] == [plan.token for plan in other.plans]
    world.scheduler.cancel(natives[0])
    assert isinstance(world.scheduler, ForgetsJobs)
    assert world.scheduler.find_absent(natives).dropped == {natives[0]: other.plans[0].token}


def test_squeue_query_disables_truncation_of_pending_array_indexes(world: FakeSlurmHarness) -> None:
    """squeue and sacct cut the indexes of waiting tasks at 64 bytes unless they are told not to."""
    world.scheduler.observe([NativeId("1")])
    (call,) = world.calls("squeue")
    assert call["env"]["SLURM_BITSTR_LEN"] == "0" and "--array" in call["argv"]
