"""A native array whose submission, listing or accounting goes wrong: no element is lost, none is taken for another.
Fake executables."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.spec import BatchOptions
from ffdl_batch.ports.capabilities import DropsTasks, ForgetsJobs
from ffdl_batch.ports.scheduler import ArraysRefused, SchedulerUnreachable, SubmissionUncertain, TooMany
from ffdl_slurm import run
from tests import preloaded
from tests.contract.array_rig import Fleet, raw_id
from tests.contract.scheduler_harness import FakeSlurmHarness

SUBMIT_LIMIT = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
WAITING = BatchOptions(array="0-2", hold=True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeSlurmHarness]:
    """The fake cluster."""
    harness = FakeSlurmHarness(tmp_path)
    try:
        yield harness
    finally:
        harness.close()


@pytest.mark.parametrize("fault", ["lose_reply", "silent_reply", "hang"])
def test_a_lost_reply_leaves_it_open_and_every_task_is_found(
    world: FakeSlurmHarness, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    await_end = run._await_end

    def is_accepted() -> bool:
        return bool(list((world.state / "jobs").glob("*.tasks")))

    def await_end_of_a_hang(process: subprocess.Popen[bytes], _timeout_s: float) -> None:
        world.wait(is_accepted, lambda: "the request was not accepted")
        await_end(process, 0.2)

    if fault == "hang":
        monkeypatch.setattr(run, "_await_end", await_end_of_a_hang)
    world.spoil("sbatch", fault.removeprefix("silent_").replace("reply", "untrusted") if "silent" in fault else fault)
    with pytest.raises((SubmissionUncertain, SchedulerUnreachable)):
        fleet.scheduler.submit_array(plan)
    (job,) = world.accepted()
    assert fleet.finds() == [{NativeId(job, str(n))} for n in range(3)]


def test_a_request_that_lands_late_is_found_then_and_not_before(world: FakeSlurmHarness) -> None:
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


def test_what_sbatch_said_proves_nothing_of_tasks_that_nobody_knows(world: FakeSlurmHarness) -> None:
    """They were not executed, for nobody claimed them."""
    fleet = Fleet(world, "true", batch=WAITING)
    natives = fleet.submit()
    assert fleet.finds() == [{native} for native in natives]
    for native in natives:
        world.forget(native)
    assert fleet.finds() == [frozenset() for _ in natives]


def test_a_submission_that_is_under_way_is_waited_for(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    lock = os.open(Path(plan.chunk.directory.submit) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SchedulerUnreachable, match="under way"):
            fleet.finds()
    finally:
        os.close(lock)


def test_refusals_of_arrays_and_of_many_jobs_are_told_apart(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    plan = fleet.prepare()
    world.spoil("sbatch", "refuse=Invalid job array specification", f"refuse={SUBMIT_LIMIT}")
    with pytest.raises(ArraysRefused):
        fleet.scheduler.submit_array(plan)
    with pytest.raises(TooMany):
        fleet.scheduler.submit_array(plan)
    assert world.accepted() == []


def test_one_question_for_all_elements(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    (world.state / "still").touch()
    fleet = Fleet(world, "true", batch=BatchOptions(array="0-199"))
    natives = fleet.submit()
    before = {command: len(world.calls(command)) for command in ("squeue", "sacct")}
    assert fleet.finds() == [{native} for native in natives]
    assert {command: len(world.calls(command)) - count for command, count in before.items()} == {
        "squeue": 1,
        "sacct": 1,
    }
    assert len(world.scheduler.observe(natives)) == 200
    assert len(world.calls("squeue")) == before["squeue"] + 2
    assert len(world.calls("sbatch")) == 1


def test_a_task_that_slurm_starts_anew_is_the_same_job(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "trap 'exit 1' TERM; echo up; sleep 60 & wait", batch=BatchOptions(array="0-1"))
    natives = fleet.submit()
    for plan in fleet.plans:
        world.await_log(plan, "up")
    head = json.loads(Path(fleet.plans[1].attempt_dir.claim_owner).read_text())["pid"]
    world.freeze()  # as Slurm, which starts a job anew when its processes have ended
    preloaded.run(["scontrol", "requeue", str(natives[1])], check=True, timeout=120)
    world.wait(lambda: not Path(f"/proc/{head}").exists(), world.diagnosis)
    world.thaw()
    anew = world.await_observation(natives[1], lambda seen: seen.restarts == 1)
    other = world.observe(natives[0])
    assert other is not None and (other.restarts, other.phase) == (0, Phase.RUNNING)
    assert anew.name == fleet.plans[1].token
    second_run = Path(fleet.plans[1].attempt_dir.run_claim(2)) / "owner.json"
    world.wait(second_run.exists, world.diagnosis)
    assert json.loads(second_run.read_text())["native_id"] == str(natives[1])


def test_a_task_claims_by_the_id_that_it_is_listed_by(world: FakeSlurmHarness) -> None:
    """Slurm gives each task that starts a number of its own, which is in SLURM_JOB_ID and in no listing of ours."""
    fleet = Fleet(world, "true", batch=BatchOptions(array="0-1"))
    natives = fleet.submit()
    for native, plan in zip(natives, fleet.plans, strict=True):
        world.await_end(native)
        claim = json.loads(Path(plan.attempt_dir.claim_owner).read_text())
        assert claim["native_id"] == str(native) != raw_id(world, native)


def test_only_the_accounting_knows_tasks_that_ended_long_ago(world: FakeSlurmHarness) -> None:
    world.keep_accounts()
    fleet = Fleet(world, "exit $FFDL_ARRAY_INDEX", batch=BatchOptions(array="0-1"))
    natives = fleet.submit()
    for native in natives:
        world.await_end(native)
        world.forget(native)
    assert isinstance(world.scheduler, ForgetsJobs)
    seen = world.scheduler.observe(natives)
    assert [seen[native].exit_code for native in natives] == [0, 1]
    assert [seen[native].name for native in natives] == [plan.token for plan in fleet.plans]
    assert world.scheduler.is_forgotten([*natives, NativeId(natives[0].job, "7")]) == {NativeId(natives[0].job, "7")}
    assert fleet.finds() == [{native} for native in natives]


def test_tasks_that_are_left_as_one_record_have_ended_with_it(world: FakeSlurmHarness) -> None:
    """An array that was cancelled while it waited: Slurm shows what was left of it under the array's own id."""
    fleet = Fleet(world, "true", batch=WAITING)
    natives = fleet.submit()
    for native in natives:
        world.scheduler.cancel(native)
    seen = world.scheduler.observe(natives)
    assert [seen[native].end for native in natives] == [EndCause.CANCELLED] * 3
    assert [seen[native].name for native in natives] == [plan.token for plan in fleet.plans]
    assert fleet.finds() == [{native} for native in natives]


def test_a_waiting_task_that_was_cancelled_is_in_no_record_and_known_by_those_of_its_array(
    world: FakeSlurmHarness,
) -> None:
    world.keep_accounts()
    world.freeze()
    fleet = Fleet(world, "true", batch=BatchOptions(array="0-3"))
    natives = fleet.submit()
    preloaded.run(["scancel", str(natives[2])], check=True, timeout=120)
    assert isinstance(world.scheduler, ForgetsJobs) and isinstance(world.scheduler, DropsTasks)
    assert set(world.scheduler.observe(natives)) == {*natives} - {natives[2]}
    assert world.scheduler.is_forgotten(natives) == {natives[2]}
    assert world.scheduler.dropped(natives) == {natives[2]: fleet.plans[2].token}
    for native in (natives[0], natives[1], natives[3]):
        world.forget(native)  # and then nothing is known of the array
    assert world.scheduler.dropped(natives) == {}


def test_a_task_that_is_a_job_of_its_own_keeps_its_record_when_it_is_cancelled(world: FakeSlurmHarness) -> None:
    fleet = Fleet(world, "true", batch=WAITING)
    natives = fleet.submit()
    preloaded.run(["scontrol", "update", f"JobId={natives[1]}", "ExcNodeList=n1"], check=True, timeout=120)
    world.scheduler.cancel(natives[1])
    seen = world.scheduler.observe(natives)
    assert [seen[native].phase for native in natives] == [Phase.PENDING, Phase.ENDED, Phase.PENDING]
    assert isinstance(world.scheduler, DropsTasks)
    assert world.scheduler.dropped(natives) == {}


def test_half_a_listing_drops_no_task(world: FakeSlurmHarness) -> None:
    natives = Fleet(world, "true", batch=WAITING).submit()
    assert isinstance(world.scheduler, DropsTasks)
    for fault in ("half", "cut", "down", "garbage"):
        world.spoil("squeue", fault)
        with pytest.raises(SchedulerUnreachable):
            world.scheduler.dropped(natives)


def test_an_id_that_slurm_gave_to_another_array_is_not_this_one(world: FakeSlurmHarness) -> None:
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
    assert isinstance(world.scheduler, DropsTasks)
    assert world.scheduler.dropped(natives) == {natives[0]: other.plans[0].token}


def test_waiting_tasks_are_asked_for_in_full(world: FakeSlurmHarness) -> None:
    """squeue and sacct cut the indexes of waiting tasks at 64 bytes unless they are told not to."""
    world.scheduler.observe([NativeId("1")])
    (call,) = world.calls("squeue")
    assert call["env"]["SLURM_BITSTR_LEN"] == "0" and "--array" in call["argv"]
