"""At most one execution, whatever is delivered twice or killed: real controllers on this machine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ffdl_batch.controller.head.earlier_attempts import SILENCE_MARGIN_S
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Outcome, encode_event
from tests.contract.controller_rig import LIMITS, Rig, job_id, plain_run  # noqa: F401


def count(run: Rig) -> int:
    path = run.base / "counter"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_one_of_two_racing_head_controllers_of_same_job_executes(run: Rig) -> None:
    run.write(f"echo ran >> '{run.base}/counter'; until [ -e '{run.base}/go' ]; do sleep 0.1; done")
    heads = [run.start(), run.start()]
    run.wait(lambda: any(head.poll() is not None for head in heads), "one of them to give way")
    (run.base / "go").touch()
    codes = sorted(head.wait(timeout=240) for head in heads)
    assert codes == [0, 73], run.errors
    assert count(run) == 1
    assert "is executed by" in run.errors
    assert [e.kind for e in run.events("head")].count(EventKind.CLAIMED) == 1


def test_second_head_controller_after_end_runs_nothing(run: Rig) -> None:
    run.write(f"echo ran >> '{run.base}/counter'")
    assert run.run(native_id="7") == 0
    before = Path(run.attempt.final).read_bytes()
    assert run.run(native_id="8") == 73
    assert run.run(native_id="7") == 0
    assert (count(run), Path(run.attempt.final).read_bytes()) == (1, before)


def test_attempt_continues_after_sigterm_with_same_native_id(run: Rig) -> None:
    run.write(f"echo ran >> '{run.base}/counter'; echo up; [ -e '{run.base}/go' ] || sleep 600")
    head = run.start_until("up")
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143
    (run.base / "go").touch()
    assert run.run() == 0, run.errors
    assert (run.final().outcome, run.final().restart, count(run)) == (Outcome.COMPLETED, 1, 2)
    claims = [e.fields["restart"] for e in run.events("head") if e.kind is EventKind.CLAIMED]
    assert claims == [0, 1]
    numbers = [e.seq for e in run.events("head")]
    assert numbers == list(range(1, len(numbers) + 1))


def test_next_head_controller_adopts_running_node_controller(run: Rig) -> None:
    run.write(f"echo ran >> '{run.base}/counter'; echo up; while [ ! -e '{run.base}/go' ]; do sleep 0.05; done")
    head = run.start_until("up")
    head.kill()
    head.wait(timeout=240)
    second = run.start()
    run.wait(lambda: len([e for e in run.events("head") if e.kind is EventKind.CLAIMED]) == 2, "the second claim")
    (run.base / "go").touch()
    assert second.wait(timeout=240) == 0, run.errors
    assert (count(run), run.final().outcome) == (1, Outcome.COMPLETED)
    assert not [event for event in run.events("head") if event.kind is EventKind.WAITING], "it follows at once"
    assert len([event for event in run.events() if event.kind is EventKind.STARTED]) == 1


def test_next_head_controller_does_not_rerun_ended_learner(run: Rig) -> None:
    run.write(f"echo ran >> '{run.base}/counter'; echo up; while [ ! -e '{run.base}/go' ]; do sleep 0.05; done")
    head = run.start_until("up")
    head.kill()
    head.wait(timeout=240)
    (run.base / "go").touch()
    run.wait(lambda: any(e.kind is EventKind.STORED for e in run.events()) and not run.processes(), "the end")
    assert not Path(run.attempt.final).exists()
    assert run.run() == 0
    assert (count(run), run.final().outcome, run.final().stored) == (1, Outcome.COMPLETED, True)


@pytest.mark.parametrize(("printed", "code"), [("Out Of Memory", "C202"), ("Killed", "S106")])
def test_attempt_fails_with_c202_if_step_of_died_controller_ran_out_of_memory(
    run: Rig, printed: str, code: str
) -> None:
    step = ("sh", "-c", f"echo 'srun: error: n1: task 0: {printed}' >&2; exit 1")
    run.write("true", step=step, out_of_memory=(": Out Of Memory",))
    assert run.run() == 74
    assert run.final().error_code == code
    assert ("the job needed more memory than it has" in run.final().message) == (code == "C202")
    died = "the controller of node 0 (never started) died without a report; the ends of its learners are unknown"
    assert f"{died}; the step printed: srun: error: n1: task 0: {printed}" in run.final().message


def test_node_controller_kill_ends_learner_and_fails_with_s106(run: Rig) -> None:
    run.write(f"echo ran >> '{run.base}/counter'; echo up; sleep 600")
    head = run.start_until("up")
    os.kill(run.node_pid(), signal.SIGKILL)
    assert head.wait(timeout=240) == 74
    assert (run.final().error_code, run.final().stored) == ("S106", False)
    assert "died without a report" in run.final().message
    assert run.processes() == []


def test_orphaned_learner_is_ended_by_next_run_after_both_controllers_are_killed(run: Rig) -> None:
    """The second learner fails if the first one still runs."""
    orphan = run.base / "orphan"
    has_ended = f"pid=$(cat '{orphan}'); [ ! -e /proc/$pid ] || grep -q '^State:.*Z' /proc/$pid/status"
    run.write(f"[ -e '{run.base}/go' ] && {{ {has_ended}; exit; }}; echo $$ > '{orphan}'; echo up; sleep 600")
    run.start_until("up")
    run.kill_controllers()
    (run.base / "go").touch()
    assert run.run() == 0, run.errors
    assert run.processes() == []
    assert run.final().outcome is Outcome.COMPLETED


def test_head_controller_records_wait_for_controller_of_earlier_attempt(run: Rig) -> None:
    """The attempt before had a node controller on a machine that was cut off."""
    run.write("true")
    before = run.attempt
    Path(before.events).mkdir()
    Path(before.uploaded).touch()
    started = Event(1, time.time(), "node-0", EventKind.STARTED, {"host": "elsewhere", "pid": 7, "boot_id": "b"})
    Path(before.event_file("node-0")).write_text(encode_event(started))
    run.attempt = run.job.attempt(2)
    Path(run.attempt.path).mkdir()
    run.write("true", attempt=2, token=f"{job_id()}-2")

    def told() -> list[object]:
        return [event.fields["message"] for event in run.events("head") if event.kind is EventKind.WAITING]

    run.start(native_id="8")
    surely_s = LIMITS.fence_s + LIMITS.heartbeat_s + SILENCE_MARGIN_S
    why = (
        "waiting for the controller of node 0 of attempt 1 (pid 7 on elsewhere); it did not report its end, "
        f"and has certainly ended {surely_s:.0f} s after its last sign of life"
    )
    run.wait(lambda: told() == [why], "the event of the wait")
    assert (run.base / "doorbell" / job_id()).exists()
    assert f"ffdl-controller: {why}\n" in run.errors
    with Path(before.event_file("node-0")).open("a") as file:
        file.write(encode_event(Event(2, time.time(), "node-0", EventKind.ENDED)))
    assert run.await_end() == 0, run.errors
    assert told() == [why, ""]
