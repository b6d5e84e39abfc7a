"""Asking for checkpoints: real node controllers and learners on this machine."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.controller.machine.processes import send, status_field
from ffdl_batch.controller.machine.running_time import STOPPED_S
from ffdl_batch.domain.events import EventKind, Outcome
from ffdl_batch.domain.launch import Copy, Succession
from ffdl_batch.domain.limits import Limits
from tests.contract.controller_rig import LIMITS, Rig, rig, two_nodes

CATCHES = """
import os, signal, sys, time
def save(*_):
    open(os.environ["CHECKPOINT_DIR"] + "/saved-" + os.environ["LEARNER_ID"], "w").write("saved")
    sys.exit(int(os.environ.get("STATUS", "0")))
signal.signal(getattr(signal, os.environ.get("CAUGHT", "SIGUSR2")), save)
print("up", flush=True)
while True:
    time.sleep(0.1)
"""
IGNORES = "import time; print('up', flush=True); time.sleep(600)\n"
LAUNCHER = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "child.py"]) for _ in range(2)]
sys.exit(max(child.wait() for child in children))
"""
SLOW_COPY = """
import time
if "node" in sys.orig_argv:
    from ffdl_batch.controller.stores import trees
    place = trees._place
    trees._place = lambda *arguments: (place(*arguments), time.sleep(0.1))
"""
SAVES = "echo saved > $CHECKPOINT_DIR/x"
SHORT = Limits(grace_s=1, kill_wait_s=3, heartbeat_s=0.5)
PATIENT = dataclasses.replace(LIMITS, kill_wait_s=300)
"""Time to answer a TERM and to store, also on a machine that does much else."""


@pytest.fixture(name="run")
def made(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as one:
        one.have_controllers_do()
        yield one


def halt(run: Rig) -> None:
    """As the platform does: first the wish, then the signal to the node controllers."""
    run.say("halt")
    os.kill(run.node_pid(), signal.SIGURG)


def is_pending(pid: int, number: int) -> bool:
    return bool(int(status_field(pid, "ShdPnd"), 16) >> (number - 1) & 1)


def up(run: Rig, command: str, program: str = CATCHES, limits: Limits = LIMITS, **env: str) -> subprocess.Popen[bytes]:
    run.write(command, model={"main.py": program, "child.py": CATCHES}, limits=limits, user_env=env)
    head = run.start()
    run.wait_for_log("up")
    return head


@pytest.mark.parametrize(
    "command",
    [
        "python3 main.py",
        "python3 main.py | tee $RESULT_DIR/out",
        "true && python3 -u main.py 2>&1 | cat; true",
        "bash -c 'python3 main.py; true'",
        "exec python3 main.py",
        "python3 main.py & wait $!",
        f"trap '{SAVES}; exit 0' USR2; echo up; while :; do sleep 0.05; done",
    ],
    ids=["eval", "pipe", "pipe in a list", "nested shell", "exec", "background", "trap"],
)
def test_halt_signals_the_process_that_handles_it(run: Rig, command: str) -> None:
    head = up(run, command)
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert (Path(run.attempt.state) / "halt").exists()
    (ended,) = run.ended()
    assert (ended["asked"], ended["ended_by"], ended["signalled"], ended["exit_code"]) == ("halt", "", True, 0)
    said = run.checkpoint()
    assert (said["asked"], said["answered"], said["confirmed"]) == (True, True, True)
    assert (run.asked(), run.processes()) == (["halt"], [])
    final = run.final()
    assert (final.outcome, final.stored, final.checkpoint.confirmed) == (Outcome.HALTED, True, True)


def test_halt_signals_child_processes_of_launcher(run: Rig) -> None:
    head = up(run, "python3 main.py", LAUNCHER)
    run.wait(lambda: run.log().count("up") == 2, "both children")
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert run.checkpoint()["confirmed"] is True
    assert run.final().outcome is Outcome.HALTED


def test_halt_signals_program_once_its_handler_is_installed(run: Rig) -> None:
    slow = (
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists(os.environ['JOB_STATE_DIR'] + '/halt'):\n"
    )
    head = up(run, "python3 main.py", slow + "    time.sleep(0.05)\ntime.sleep(0.5)\n" + CATCHES)
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert (run.ended()[0]["signalled"], run.checkpoint()["confirmed"]) == (True, True)


def test_halt_file_alone_confirms_checkpoint_without_signal(run: Rig) -> None:
    head = up(run, f"echo up; while [ ! -e $JOB_STATE_DIR/halt ]; do sleep 0.05; done; {SAVES}")
    halt(run)
    assert head.wait(timeout=240) == 0
    assert (run.ended()[0]["signalled"], run.checkpoint()["newest"]) == (False, "x")
    assert run.checkpoint()["confirmed"] is True
    assert run.final().outcome is Outcome.HALTED


@pytest.mark.parametrize(
    ("command", "number", "limits"),
    [
        ("python3 main.py", signal.SIGTERM, dataclasses.replace(SHORT, kill_wait_s=60)),
        ("trap '' TERM; echo up; while :; do sleep 0.1; done", signal.SIGKILL, SHORT),
    ],
    ids=["catches nothing", "ignores everything"],
)
def test_halt_ends_unresponsive_learner_after_grace_period(run: Rig, command: str, number: int, limits: Limits) -> None:
    head = up(run, command, IGNORES, limits)
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    (ended,) = run.ended()
    assert (ended["ended_by"], ended["asked"], ended.get("signal")) == ("halt", "halt", number)
    assert (run.checkpoint()["answered"], run.checkpoint()["confirmed"]) == (False, False)
    assert run.final().outcome is Outcome.HALTED
    assert "no checkpoint was confirmed" in run.final().message
    assert run.processes() == []


def test_checkpoint_before_halt_is_reported_but_not_confirmed(run: Rig) -> None:
    head = up(run, "echo 1 > $CHECKPOINT_DIR/early; python3 main.py", IGNORES, SHORT)
    halt(run)
    assert head.wait(timeout=240) == 0
    said = run.checkpoint()
    assert (said["confirmed"], said["newest"]) == (False, "early")
    assert said["saved_at"] == pytest.approx((Path(run.job.checkpoints) / "early").stat().st_mtime)


def test_checkpoint_files_of_earlier_attempt_are_not_reported(run: Rig) -> None:
    Path(run.job.checkpoints).mkdir(parents=True)
    (Path(run.job.checkpoints) / "old").write_text("old")
    run.write("true")
    assert run.run() == 0
    said = run.checkpoint()
    assert (said["asked"], said["confirmed"], said["saved_at"], said["newest"]) == (False, False, None, "")


def test_halt_request_takes_effect_without_signal(run: Rig) -> None:
    head = up(run, "python3 main.py")
    run.say("halt")
    assert head.wait(timeout=240) == 0
    assert (run.asked(), run.final().outcome) == (["halt"], Outcome.HALTED)


def test_repeated_halt_signals_learner_once(run: Rig) -> None:
    waits = f"print('caught', flush=True)\n    while not os.path.exists('{run.base}/go'): time.sleep(0.05)"
    slow = CATCHES.replace("def save(*_):", f"def save(*_):\n    {waits}")
    head = up(run, "python3 main.py", slow)
    halt(run)
    run.wait_for_log("caught")
    halt(run)
    run.wait(lambda: not is_pending(run.node_pid(), signal.SIGURG), "that the second one is taken")
    (run.base / "go").touch()
    assert head.wait(timeout=240) == 0
    assert (run.log().count("caught"), run.asked(), run.final().outcome) == (1, ["halt"], Outcome.HALTED)


def test_sigterm_after_halt_shortens_grace_period_and_stays_halted(run: Rig) -> None:
    limits = dataclasses.replace(LIMITS, grace_s=600, kill_wait_s=2)
    head = up(run, "trap 'echo caught' USR2; trap '' TERM; echo up; while :; do sleep 0.05; done", limits=limits)
    halt(run)
    run.wait_for_log("caught")
    os.kill(run.node_pid(), signal.SIGTERM)
    assert head.wait(timeout=240) == 0, run.errors
    assert (run.ended()[0]["ended_by"], run.asked()) == ("halt", ["halt"])
    assert run.final().outcome is Outcome.HALTED


@pytest.mark.parametrize("caught", ["SIGUSR2", "SIGTERM"])
def test_sigterm_requests_checkpoint_and_confirms_it(run: Rig, caught: str) -> None:
    head = up(run, "python3 main.py", limits=PATIENT, CAUGHT=caught)
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, run.errors
    (ended,) = run.ended()
    assert (ended["asked"], ended["ended_by"], ended["exit_code"]) == ("term", "", 0)
    assert run.checkpoint()["confirmed"] is True
    assert (run.final().outcome, run.final().stored, run.asked()) == (Outcome.CANCELLED, True, ["term"])


def test_sigterm_leaves_time_to_learner_that_reads_halt_file(run: Rig) -> None:
    head = up(run, f"echo up; while [ ! -e $JOB_STATE_DIR/halt ]; do sleep 0.05; done; {SAVES}", limits=PATIENT)
    head.send_signal(signal.SIGTERM)
    head.wait(timeout=240)
    assert run.checkpoint()["confirmed"] is True


@pytest.mark.parametrize("by_signal", [True, False], ids=["with TERM", "cell alone"])
def test_cancel_ends_learner_without_checkpoint_request(run: Rig, by_signal: bool) -> None:
    head = up(run, "python3 main.py")
    run.say("cancel")
    if by_signal:
        head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, run.errors
    assert (run.asked(), run.ended()[0]["ended_by"]) == ([], "term")
    assert not (Path(run.job.checkpoints) / "saved-1").exists()
    assert run.final().outcome is Outcome.CANCELLED


def test_time_limit_warning_lets_unresponsive_learner_finish(run: Rig) -> None:
    limits = dataclasses.replace(LIMITS, grace_s=1, lead_s=600, store_s=10)
    head = up(run, f"echo up; while [ ! -e '{run.base}/go' ]; do sleep 0.05; done; echo done", limits=limits)
    os.kill(run.node_pid(), signal.SIGURG)
    run.wait(lambda: bool(run.asked()), "the request")
    (run.base / "go").touch()
    assert head.wait(timeout=240) == 0
    assert (run.asked(), run.log(), run.final().outcome) == (["warned"], "up\ndone\n", Outcome.COMPLETED)


def test_time_limit_warning_halts_learner_that_saves_checkpoint(run: Rig) -> None:
    head = up(run, "python3 main.py")
    os.kill(run.node_pid(), signal.SIGURG)
    head.wait(timeout=240)
    assert (run.asked(), run.ended()[0]["asked"], run.checkpoint()["confirmed"]) == (["warned"], "warned", True)
    assert (run.final().outcome, run.final().interruption) == (Outcome.HALTED, "timeout")


@pytest.mark.parametrize(
    ("now", "interruption"), [("1:00", "timeout"), ("1-00:00:00", "preemption"), ("UNLIMITED", "preemption")]
)
def test_early_warning_is_timeout_only_when_time_limit_was_shortened(run: Rig, now: str, interruption: str) -> None:
    asking = Succession(str(run.base / "no-template"), limit_s=86400, limit_now=("echo", now))
    run.write("python3 main.py", model={"main.py": CATCHES}, succession=asking)
    head = run.start()
    run.wait_for_log("up")
    os.kill(run.node_pid(), signal.SIGURG)
    head.wait(timeout=240)
    assert (run.final().outcome, run.final().interruption) == (Outcome.HALTED, interruption)


def test_halt_after_warning_is_recorded_as_halt(run: Rig) -> None:
    limits = dataclasses.replace(SHORT, lead_s=600)
    head = up(run, "python3 main.py", IGNORES, limits)
    os.kill(run.node_pid(), signal.SIGURG)
    run.wait(lambda: bool(run.asked()), "the request")
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert (run.asked(), run.ended()[0]["ended_by"]) == (["warned", "halt"], "halt")
    assert (run.final().outcome, run.final().interruption) == (Outcome.HALTED, "halt")


def test_nonzero_exit_with_checkpoint_counts_as_halted(run: Rig) -> None:
    head = up(run, "python3 main.py", STATUS="6")
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert (run.final().outcome, run.ended()[0]["exit_code"]) == (Outcome.HALTED, 6)


def test_attempt_fails_when_learner_exits_nonzero_without_checkpoint(run: Rig) -> None:
    head = up(run, "trap 'exit 6' USR2; echo up; while :; do sleep 0.05; done")
    halt(run)
    assert head.wait(timeout=240) == 6
    assert (run.final().outcome, run.final().error_code) == (Outcome.FAILED, "C201")


def test_nonzero_exit_during_halt_leaves_grace_period_to_other_learner(run: Rig) -> None:
    command = "[ $LEARNER_ID = 2 ] && export STATUS=3 || export SLOW=1; python3 main.py"
    slow = CATCHES.replace("def save(*_):", "def save(*_):\n    time.sleep(2 * bool(os.environ.get('SLOW')))")
    run.write(command, model={"main.py": slow}, learners=2, learners_per_node=2)
    head = run.start()
    run.wait_for_log("up")
    run.wait(lambda: "up" in run.log(2), "the second learner")
    halt(run)
    head.wait(timeout=240)
    assert {e["learner_id"]: (e["ended_by"], e["exit_code"]) for e in run.ended()} == {1: ("", 0), 2: ("", 3)}
    assert run.checkpoint()["confirmed"] is True


@pytest.mark.parametrize(("wish", "outcome", "code"), [("halt", Outcome.HALTED, 0), ("cancel", Outcome.CANCELLED, 143)])
def test_earlier_halt_or_cancel_request_prevents_learner_start(
    run: Rig, wish: str, outcome: Outcome, code: int
) -> None:
    run.write("touch $RESULT_DIR/ran")
    run.say(wish)
    assert run.run() == code, run.errors
    assert run.final().outcome is outcome
    assert not (Path(run.attempt.results) / "ran").exists()


def test_controller_does_not_fence_itself_after_sigstop(run: Rig) -> None:
    limits = dataclasses.replace(LIMITS, fence_s=STOPPED_S + 1.0)
    head = up(run, f"echo up; while [ ! -e '{run.base}/go' ]; do sleep 0.05; done", limits=limits)
    pids = run.processes()
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        signal.sigtimedwait({signal.SIGUSR1}, STOPPED_S + 1.5)
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)
    (run.base / "go").touch()
    assert head.wait(timeout=240) == 0, run.errors
    assert run.final().outcome is Outcome.COMPLETED


def test_controller_ends_learners_when_newer_run_is_claimed_elsewhere(run: Rig) -> None:
    head = up(run, "python3 main.py")
    newer = Path(run.attempt.run_claim(2))
    newer.mkdir()
    (newer / "owner.json").write_text('{"native_id": "7", "host": "elsewhere", "boot_id": "x", "pid": 1}')
    assert head.wait(timeout=240) == 74, run.errors
    assert "run 2" in run.final().message
    assert not (run.store / "learner-1").exists()
    assert run.processes() == []


def test_ended_event_is_last_and_unique(run: Rig) -> None:
    run.write("sleep 300 & echo done")
    assert run.run() == 0
    kinds = [event.kind for event in run.events()]
    assert kinds[-1] is EventKind.ENDED
    assert kinds.count(EventKind.ENDED) == kinds.count(EventKind.CHECKPOINT) == 1


def test_results_of_earlier_attempt_are_copied_and_left_unchanged(run: Rig) -> None:
    earlier = run.base / "earlier"
    (earlier / "deep").mkdir(parents=True)
    (earlier / "deep" / "x").write_text("old")
    run.write("echo new >> $RESULT_DIR/deep/x", carry=str(earlier))
    assert run.run() == 0, run.errors
    assert (run.store / "deep" / "x").read_text() == "oldnew\n"
    assert (earlier / "deep" / "x").read_text() == "old"


def test_attempt_runs_when_results_of_earlier_attempt_are_missing(run: Rig) -> None:
    run.write("echo new > $RESULT_DIR/x", carry=str(run.base / "never"))
    assert run.run() == 0, run.errors
    assert (run.store / "x").read_text() == "new\n"


def test_next_run_finds_exit_status_of_learner_that_ended_unobserved(run: Rig) -> None:
    """Both controllers are killed, then the learner ends by itself: it is not run again."""
    run.write(
        f"echo ran >> '{run.base}/n'; echo up; while [ ! -e '{run.base}/go' ]; do sleep 0.05; done; sh -c 'exit 3'"
    )
    head = run.start()
    run.wait_for_log("up")
    head.kill()
    head.wait(timeout=240)
    os.kill(run.node_pid(), signal.SIGKILL)
    (run.base / "go").touch()
    run.wait(lambda: not run.processes(), "the learner's end")
    assert run.run() == 3, run.errors
    assert (run.base / "n").read_text() == "ran\n"
    assert (run.final().outcome, run.final().exit_code, run.final().stored) == (Outcome.FAILED, 3, True)


def test_pending_upload_is_completed_once(run: Rig) -> None:
    run.write("echo out > $RESULT_DIR/x; echo up; sleep 600")
    head = run.start()
    run.wait_for_log("up")
    assert run.run("pay") == 75
    head.kill()
    head.wait(timeout=240)
    os.kill(run.node_pid(), signal.SIGKILL)
    run.kill_all()
    assert run.run("pay") == 0, run.errors
    assert (run.store / "x").read_text() == "out\n"
    assert (run.store / "learner-1" / "training-log.txt").read_text() == "up\n"
    assert '"learners": [1]' in Path(run.attempt.paid).read_text()
    (run.store / "x").unlink()
    assert run.run("pay") == 0
    assert not (run.store / "x").exists()


def test_pending_upload_does_not_replace_results_of_newer_attempt(run: Rig) -> None:
    run.write("echo old > $RESULT_DIR/x; echo old > $RESULT_DIR/y; echo up; sleep 600")
    head = run.start()
    run.wait_for_log("up")
    head.kill()
    head.wait(timeout=240)
    os.kill(run.node_pid(), signal.SIGKILL)
    run.kill_all()
    newer = Path(run.job.attempt(2).launch)
    newer.parent.mkdir()
    newer.touch()
    (run.store / "learner-1").mkdir(parents=True)
    (run.store / "x").write_text("new\n")
    (run.store / "learner-1" / "training-log.txt").write_text("second\n")
    assert run.run("pay") == 0, run.errors
    assert ((run.store / "x").read_text(), (run.store / "y").read_text()) == ("new\n", "old\n")
    assert (run.store / "learner-1" / "training-log.txt").read_text() == "second\n"
    assert (run.store / "learner-1" / "attempt-1" / "training-log.txt").read_text() == "up\n"


def test_pending_upload_stays_pending_and_exits_74_when_store_is_blocked(run: Rig) -> None:
    run.write("echo up; sleep 600")
    head = run.start()
    run.wait_for_log("up")
    head.kill()
    head.wait(timeout=240)
    os.kill(run.node_pid(), signal.SIGKILL)
    run.kill_all()
    run.store.write_text("in the way")
    assert run.run("pay") == 74
    assert "cannot be stored" in run.errors
    assert not Path(run.attempt.paid).exists()


def test_halt_interrupts_data_copy_before_learner_start(run: Rig) -> None:
    """The copy is of many files, and looks up between them."""
    run.have_controllers_do(SLOW_COPY)
    many = run.base / "many"
    many.mkdir()
    for number in range(5_000):
        (many / str(number)).touch()
    run.write("touch $RESULT_DIR/ran", copies=(Copy(str(many), run.attempt.data),))
    head = run.start()
    run.wait(lambda: any(Path(run.attempt.data).glob("*")), "the copy's beginning")
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert run.final().outcome is Outcome.HALTED
    assert len(list(Path(run.attempt.data).iterdir())) < 5_000
    assert not (Path(run.attempt.results) / "ran").exists()


def test_storing_stops_before_scheduler_kill_and_leaves_pending_upload(run: Rig) -> None:
    """A pipe in the store's place would hang; a slow one is played by a clock that is nearly used up."""
    limits = Limits(grace_s=1, kill_wait_s=0)
    run.write("echo out > $RESULT_DIR/x; echo up; sleep 600", limits=limits)
    head = run.start()
    run.wait_for_log("up")
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, run.errors
    assert (run.final().outcome, run.final().stored) == (Outcome.CANCELLED, False)
    assert "what is missing is owed" in run.errors
    assert run.run("pay") == 0
    assert (run.store / "x").read_text() == "out\n"


def test_halt_request_reaches_all_nodes_and_each_confirms_its_checkpoint(run: Rig) -> None:
    two_nodes(run, "python3 main.py", {"main.py": CATCHES})
    head = run.start()
    run.wait_for_log("up")
    run.wait(lambda: Path(run.attempt.training_log(2)).exists() and "up" in run.log(2), "the second learner")
    run.say("halt")
    assert head.wait(timeout=240) == 0, run.errors
    assert [run.asked(f"node-{n}") for n in (0, 1)] == [["halt"], ["halt"]]
    said = [run.checkpoint(f"node-{n}") for n in (0, 1)]
    assert [(s["answered"], s["confirmed"]) for s in said] == [(True, True), (True, True)]
    assert run.final().checkpoint.confirmed
