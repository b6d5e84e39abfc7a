"""A training goes on after its allocation, as real processes and without any daemon: nothing runs twice, no slot is
held, and a chain that leads nowhere ends and says so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.job.job import Token, attempt_token
from ffdl_batch.domain.job.spec import BatchOptions, Checkpoint, Resources
from ffdl_batch.domain.launch.launch_file import Succession
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, GoesOn, Outcome, decode_events
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.domain.scheduler_errors import SubmissionUncertain
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_local.records import JOB_FILE, LOCK, STARTED, STATE, is_held, local_directory, process_stat, read_record
from tests.contract.controller_rig import Rig, plain_run  # noqa: F401
from tests.contract.scheduler_harness import LocalHarness

TRAIN = """
import os, signal, sys, time
attempt, path = int(os.environ["FFDL_ATTEMPT"]), os.environ["CHECKPOINT_DIR"] + "/step"
step = int(open(path).read()) if os.path.exists(path) else 0
asked = []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
print("resume", os.environ["RESUME"], "from", step, os.environ["FFDL_CHECKPOINT"] or "nothing", flush=True)
open(os.environ["RESULT_DIR"] + "/of-%d" % attempt, "w").write("x")
end = step + 5 if attempt == int(sys.argv[1]) else 10**9
while step < end:
    if asked:
        with open(path + ".tmp", "w") as file:
            file.write(str(step))
        os.replace(path + ".tmp", path)
        sys.exit(0)
    time.sleep(0.02)
    step += 1
    print("step", step, flush=True)
"""
SHORT = BatchOptions(time_s=12, checkpoint=Checkpoint(grace_s=12))
"""They are asked after half of it, and have the other half to answer, however busy the machine is."""
LONG = BatchOptions(time_s=600)
"""What asks them is a signal."""
DEAF = {"batch": BatchOptions(time_s=5, checkpoint=Checkpoint(grace_s=1)), "lead_s": 1}


@pytest.fixture(name="world")
def opened(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path, {"gpus": 2})
    try:
        yield harness
    finally:
        harness.close()


def start(world: LocalHarness, command: str, **changes: Any) -> tuple[NativeId, LaunchPlan]:
    """A first attempt that may be followed."""
    request = {"batch": SHORT, "lead_s": 6, **changes}
    plan = world.prepare_chain(command, **request)
    return world.scheduler.submit(plan), plan


def train(world: LocalHarness, last: int) -> str:
    """A training that needs `last` attempts."""
    path = world.base / "train.py"
    path.write_text(TRAIN)
    return f"python3 '{path}' {last}"


def attempt_of(plan: LaunchPlan, number: int) -> AttemptDir:
    return JobDir(plan.launch.job_dir).attempt(number)


def native_of(plan: LaunchPlan, number: int) -> NativeId:
    return NativeId(f"{plan.launch.job_id}-{number}")


def final(plan: LaunchPlan, number: int = 1) -> FinalRecord:
    return from_plain(FinalRecord, json.loads(Path(attempt_of(plan, number).final).read_text()))


def await_final(world: LocalHarness, plan: LaunchPlan, number: int) -> FinalRecord:
    world.wait(Path(attempt_of(plan, number).final).exists, world.diagnosis)
    world.await_end(native_of(plan, number))
    return final(plan, number)


def record(plan: LaunchPlan, name: str, number: int = 1) -> dict[str, Any]:
    found = read_record(local_directory(attempt_of(plan, number).path) / name)
    assert found is not None
    return found


def await_head(world: LocalHarness, plan: LaunchPlan) -> None:
    """Until its supervisor has written down who the head is."""
    world.wait(lambda: bool(record(plan, STATE)["head"]), world.diagnosis)


def log(plan: LaunchPlan, number: int) -> str:
    return Path(attempt_of(plan, number).training_log(1)).read_text()


def attempts(plan: LaunchPlan) -> list[str]:
    return sorted(p.name for p in Path(plan.launch.job_dir).glob("attempt-[0-9]*"))


def second_plan(plan: LaunchPlan) -> LaunchPlan:
    """What the platform submits for an attempt whose files the head wrote."""
    attempt = attempt_of(plan, 2)
    argv = (*plan.submit_argv[:-1], f"{attempt.path}/{JOB_FILE}")
    return replace(plan, token=Token(f"{plan.launch.job_id}-2"), attempt_dir=attempt, submit_argv=argv)


def put(plan: LaunchPlan, number: int, **cell: str) -> None:
    path = Path(attempt_of(plan, number).control)
    temporary = path.with_name("control.tmp")
    temporary.write_text(json.dumps({"attempt": number, "requested_action": "", "drill": "", **cell}))
    temporary.replace(path)


# ------------------------------------------------------------------------------------------------ time limit


def _is_free(lock: Path) -> bool:
    return not is_held(lock)


def test_continuation_completes_job_across_three_attempts_and_lets_pending_job_run_between(world: LocalHarness) -> None:
    """Two GPUs in all: the job that waits for both of them has its turn before the chain goes on."""
    both = Resources(gpus=2, cpus=1, memory_bytes=1 << 20)
    _, plan = start(world, train(world, last=3), resources=both)
    world.await_log(plan, "step")
    other, _ = world.submit("echo $CUDA_VISIBLE_DEVICES", resources=both)
    assert await_final(world, plan, 3).outcome is Outcome.COMPLETED, world.diagnosis()
    assert attempts(plan) == ["attempt-1", "attempt-2", "attempt-3"]
    steps: list[int] = []
    for number in (1, 2, 3):
        lines = log(plan, number).splitlines()
        confirmed = "step" if number > 1 else "nothing"
        assert lines[0] == f"resume {int(number > 1)} from {len(steps)} {confirmed}"
        steps += [int(line.split()[1]) for line in lines[1:]]
        assert world.executions(attempt_of(plan, number)) == 1
        lock = local_directory(attempt_of(plan, number).path) / LOCK
        world.wait(partial(_is_free, lock), lambda: "a lock of an ended attempt is still held")
    assert steps == list(range(1, len(steps) + 1))
    told = [final(plan, number) for number in (1, 2)]
    assert [(r.outcome, r.interruption, r.goes_on) for r in told] == [
        (Outcome.HALTED, "timeout", GoesOn.SUCCESSOR)
    ] * 2  # fmt: skip
    assert all(r.checkpoint.confirmed and r.checkpoint.newest == "step" and r.gpu_seconds > 0 for r in told)
    assert told[1].spent is not None and (told[1].spent.timeouts, told[1].spent.fruitless) == (2, 0)
    assert told[1].spent.gpu_seconds == pytest.approx(told[0].gpu_seconds + told[1].gpu_seconds)
    kept = sorted(p.name for p in Path(attempt_of(plan, 3).results).iterdir())
    assert kept == ["of-1", "of-2", "of-3"]
    assert [e.fields["by"] for e in head_events(plan, 1) if e.kind is EventKind.CONTINUED] == ["successor"]
    between, after = world.observe(other), world.observe(native_of(plan, 2))
    assert between is not None and after is not None
    assert between.end is EndCause.SUCCESS
    assert between.started_at and after.started_at and between.started_at < after.started_at


def head_events(plan: LaunchPlan, number: int) -> list[Event]:
    return decode_events(Path(attempt_of(plan, number).event_file("head")).read_text())


def test_continuation_stops_when_learner_confirms_no_checkpoint(world: LocalHarness) -> None:
    native, plan = start(world, "sleep 600", **DEAF)
    seen = world.await_end(native)
    told = final(plan)
    assert (seen.end, told.outcome, told.error_code) == (EndCause.TIMEOUT, Outcome.TIMED_OUT, "C203")
    assert "no checkpoint was confirmed" in told.message and "the chain ends here" in told.message
    assert (told.goes_on, attempts(plan)) == (GoesOn.NO, ["attempt-1"])


# ------------------------------------------------------------------------------------------ the owner's word


def test_halt_request_ends_job_with_confirmed_checkpoint_and_no_continuation(world: LocalHarness) -> None:
    native, plan = start(world, train(world, last=9), batch=LONG)
    world.await_log(plan, "step")
    put(plan, 1, requested_action="halt")
    world.scheduler.signal(native, "URG")
    assert world.await_end(native).end is EndCause.SUCCESS
    told = final(plan)
    assert (told.outcome, told.interruption, told.checkpoint.confirmed) == (Outcome.HALTED, "halt", True)
    assert (told.goes_on, attempts(plan)) == (GoesOn.NO, ["attempt-1"])


def test_signal_far_from_time_limit_is_charged_as_preemption_and_cancel_ends_next_attempt(world: LocalHarness) -> None:
    native, plan = start(world, train(world, last=9), batch=LONG)
    world.await_log(plan, "step")
    world.scheduler.signal(native, "URG")
    second = native_of(plan, 2)
    world.wait(lambda: Path(attempt_of(plan, 2).training_log(1)).exists() and "step" in log(plan, 2), world.diagnosis)
    told = final(plan)
    assert (told.interruption, told.goes_on) == ("preemption", GoesOn.SUCCESSOR)
    assert told.spent is not None and (told.spent.preemptions, told.spent.timeouts) == (1, 0)
    put(plan, 2, requested_action="cancel")
    world.scheduler.cancel(second)
    assert world.await_end(second).end is EndCause.CANCELLED
    world.wait(lambda: not world._own_processes(), world.diagnosis)
    assert attempts(plan) == ["attempt-1", "attempt-2"]


def test_halt_request_before_start_prevents_learner_execution(world: LocalHarness) -> None:
    plan = world.prepare_chain("echo ran")
    put(plan, 1, requested_action="halt")
    native = world.scheduler.submit(plan)
    world.await_end(native)
    assert (final(plan).outcome, world.executions(plan.attempt_dir)) == (Outcome.HALTED, 0)


# ------------------------------------------------------------------------------------------ killed processes


def test_continuation_is_submitted_by_platform_when_local_supervisor_is_killed(world: LocalHarness) -> None:
    _, plan = start(world, train(world, last=2), batch=LONG)
    world.await_log(plan, "step")
    await_head(world, plan)
    supervisor = record(plan, STARTED)["pid"]
    os.kill(supervisor, signal.SIGKILL)
    world.wait(lambda: process_stat(supervisor) is None, world.diagnosis)
    world.scheduler.signal(native_of(plan, 1), "URG")
    assert world.await_end(native_of(plan, 1)).end is EndCause.SUCCESS
    attempt = attempt_of(plan, 2)
    assert final(plan).goes_on is GoesOn.SUCCESSOR and Path(attempt.submit_begun).exists()
    assert world.scheduler.find(second_plan(plan).token, attempt) == frozenset()
    assert world.scheduler.submit(second_plan(plan)) == native_of(plan, 2)
    assert await_final(world, plan, 2).outcome is Outcome.COMPLETED
    assert log(plan, 2).startswith("resume 1 from")


def test_local_scheduler_keeps_slots_of_running_job_after_supervisor_is_killed(world: LocalHarness) -> None:
    both = Resources(gpus=2, cpus=1, memory_bytes=1 << 20)
    go = world.base / "go"
    native, plan = world.submit(f"echo up; while [ ! -e '{go}' ]; do sleep 0.05; done; echo over", resources=both)
    world.await_log(plan, "up")
    await_head(world, plan)
    os.kill(record(plan, STARTED)["pid"], signal.SIGKILL)
    other, _ = world.submit("true", resources=both)
    world.await_observation(other, lambda seen: seen.phase is Phase.PENDING)
    seen = world.observe(native)
    assert seen is not None and seen.phase is Phase.RUNNING
    go.touch()
    assert world.await_end(native).end is EndCause.SUCCESS
    assert "over" in world.log(plan)
    assert world.await_end(other).end is EndCause.SUCCESS


def test_continuation_runs_once_when_daemon_and_supervisor_both_submit_it(world: LocalHarness) -> None:
    native, plan = start(world, train(world, last=2), batch=LONG)
    world.await_log(plan, "step")
    world.scheduler.signal(native, "URG")
    attempt = attempt_of(plan, 2)
    world.wait(Path(attempt.submit_begun).exists, world.diagnosis)

    def submitted() -> bool:
        """As a daemon that does not know yet: it asks again."""
        with contextlib.suppress(SubmissionUncertain):
            return world.scheduler.submit(second_plan(plan)) == native_of(plan, 2)
        return False

    world.wait(submitted, world.diagnosis)
    assert await_final(world, plan, 2).outcome is Outcome.COMPLETED
    assert world.executions(attempt) == 1


def test_next_attempt_starts_after_learner_of_killed_head_controller_is_ended(world: LocalHarness) -> None:
    command = (
        f"cd '{world.base}'; if [ $FFDL_ATTEMPT = 2 ]; then kill -0 $(cat pid) 2>&1 && echo together || echo alone; "
        "else echo $$ > pid; echo up; exec sleep 600; fi"
    )
    native, plan = start(world, command, batch=BatchOptions())
    world.await_log(plan, "up")
    await_head(world, plan)
    for pid in (record(plan, STARTED)["pid"], record(plan, STATE)["head"]):
        os.kill(pid, signal.SIGKILL)
    assert world.await_end(native).end is EndCause.NODE_FAIL
    assert Path(f"/proc/{(world.base / 'pid').read_text().strip()}").exists()
    request = world.request(command, job_id=plan.launch.job_id, batch=BatchOptions())
    attempt = request.job_dir.attempt(2)
    second = replace(request, attempt=2, token=attempt_token(request.job_id, 2), attempt_dir=attempt)
    world.scheduler.submit(world.write(world.scheduler.plan(second)))
    assert await_final(world, plan, 2).outcome is Outcome.COMPLETED, world.diagnosis()
    assert "alone" in log(plan, 2) and "together" not in log(plan, 2)
    assert json.loads(Path(attempt_of(plan, 1).control).read_text())["attempt"] == 2
    assert Path(attempt_of(plan, 1).uploaded).exists(), world.diagnosis()


# ------------------------------------------------------------------------------------- controllers by themselves


def test_head_controller_finds_exit_status_of_learner_after_node_controller_is_killed(run: Rig) -> None:
    run.write(f"echo up; echo ran >> '{run.base}/n'; while [ ! -e '{run.base}/go' ]; do sleep 0.02; done; (exit 5)")
    head = run.start_until("up")
    node = run.node_pid()
    os.kill(node, signal.SIGSTOP)
    (run.base / "go").touch()
    run.wait((Path(run.attempt.state) / ".ended-1").exists, "the learner's own word about its end")
    os.kill(node, signal.SIGKILL)
    assert head.wait(timeout=180) == 5, run.errors
    told = run.final()
    assert (told.outcome, told.stored, told.exit_code) == (Outcome.FAILED, True, 5)
    assert (run.base / "n").read_text() == "ran\n"


WARNED = Limits(grace_s=60, kill_wait_s=60, heartbeat_s=0.5, time_s=600, lead_s=599)
"""A signal at the beginning counts as that of the time limit."""


def requeueing(run: Rig, *argv: str) -> Succession:
    return Succession(template=str(run.base / "none"), requeue=argv, timeout_s=120.0, budget=Budget(timeouts=2))


def warn(run: Rig) -> None:
    run.wait_for_log("step")
    os.kill(run.node_pid(), signal.SIGURG)


def test_continuation_by_requeue_restarts_same_attempt_from_checkpoint(run: Rig) -> None:
    """What asks the scheduler also plays it: it records the request and ends the head."""
    asked = run.base / "asked"
    play = f"import os, signal; open({str(asked)!r}, 'w').write('{{native_id}}'); os.kill(os.getppid(), signal.SIGTERM)"
    # The training ends in the second run, where it finds a checkpoint.
    body = TRAIN.replace("attempt == int(sys.argv[1])", "os.path.exists(path)")
    succession = requeueing(run, sys.executable, "-c", play)
    run.write("python3 main.py", model={"main.py": body}, limits=WARNED, succession=succession)
    head = run.start()
    warn(run)
    assert head.wait(timeout=180) == 0, run.errors
    told = run.final()
    assert (told.outcome, told.goes_on, told.spent) == (Outcome.HALTED, GoesOn.REQUEUE, Spent(timeouts=1))
    assert asked.read_text() == "7"
    assert run.run() == 0, run.errors
    told = run.final()
    assert (told.outcome, told.goes_on, told.restart, told.stored) == (Outcome.COMPLETED, GoesOn.NO, 1, True)
    assert "resume 1 from" in run.log()
    numbers = [int(line.split()[1]) for line in run.log().splitlines() if line.startswith("step")]
    assert numbers == list(range(1, len(numbers) + 1))


def test_continuation_is_left_to_platform_when_requeue_command_fails(run: Rig) -> None:
    run.write("python3 main.py 9", model={"main.py": TRAIN}, limits=WARNED, succession=requeueing(run, "false"))
    head = run.start()
    warn(run)
    assert head.wait(timeout=180) == 0, run.errors
    told = run.final()
    assert (told.outcome, told.goes_on) == (Outcome.HALTED, GoesOn.PLATFORM)
    assert "false exited with status 1" in told.message
    assert [e.fields["by"] for e in run.events("head") if e.kind is EventKind.CONTINUED] == ["requeue", "platform"]


def test_head_controller_does_not_rerun_attempt_after_next_submission_began(run: Rig) -> None:
    """The head was killed between submitting the next attempt and its own last word."""
    run.write(f"echo ran >> '{run.base}/n'; echo up; sleep 600")
    run.start_until("up")
    run.kill_controllers()
    following = run.job.attempt(2)
    os.makedirs(following.submit)  # noqa: PTH103 - AttemptDir gives texts
    Path(following.submit_begun).write_text("begun\n")
    run.run()
    assert (run.base / "n").read_text() == "ran\n"
    assert Path(run.attempt.final).exists()
