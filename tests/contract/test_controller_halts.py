"""Asking for checkpoints: real node controllers and learners on this machine."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.launch_file import Copy, Seat, Succession
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.host.processes import send, status_field
from ffdl_batch.host.running_clock import STOPPED_S
from tests.contract.controller_rig import LIMITS, Rig, patient_run, two_nodes  # noqa: F401

CATCHES = """
import os, signal, sys, time
def save(*_):
    time.sleep(float(os.environ.get("SLOW_S", "0")))
    open(os.environ["CHECKPOINT_DIR"] + "/saved-" + os.environ["LEARNER_ID"], "w").write("saved")
    sys.exit(int(os.environ.get("STATUS", "0")))
signal.signal(getattr(signal, os.environ.get("CAUGHT", "SIGUSR2")), save)
print("up", flush=True)
while True:
    time.sleep(0.1)
"""
LATE = f"""
import os, time
print("up", flush=True)
while not os.path.exists(os.environ["JOB_STATE_DIR"] + "/halt"):
    time.sleep(0.05)
time.sleep(0.5)
{CATCHES.replace('print("up", flush=True)', "")}"""
"""Handles the signal only some time after the request."""
IGNORES = "import time; print('up', flush=True); time.sleep(600)\n"
LAUNCHER = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "child.py"]) for _ in range(2)]
sys.exit(max(child.wait() for child in children))
"""
SLOW_COPY = """
import time
if "node" in sys.orig_argv:
    from ffdl_batch.controller.data import tree_copy as trees
    place = trees._place
    trees._place = lambda *arguments: (place(*arguments), time.sleep(1.0))
"""
SAVES = "echo saved > $CHECKPOINT_DIR/x"
SHORT = Limits(grace_s=1, kill_wait_s=3, heartbeat_s=0.5)
PATIENT = dataclasses.replace(LIMITS, kill_wait_s=300)
"""Time to answer a TERM and to store, also on a machine that does much else."""


def halt(run: Rig) -> None:
    """As the platform does: first the request, then the signal to the node controllers."""
    run.say("halt")
    os.kill(run.node_pid(), signal.SIGURG)


def is_pending(pid: int, number: int) -> bool:
    return bool(int(status_field(pid, "ShdPnd"), 16) >> (number - 1) & 1)


def up(run: Rig, command: str, program: str = CATCHES, limits: Limits = LIMITS, **env: str) -> subprocess.Popen[bytes]:
    run.write(command, model={"main.py": program}, limits=limits, user_env=env)
    return run.start_until("up")


READS = f"echo up; while [ ! -e $JOB_STATE_DIR/halt ]; do sleep 0.05; done; {SAVES}"
"""Looks for the file, and handles no signal."""
ANSWERING = {
    "eval": "python3 main.py",
    "pipe": "python3 main.py | tee $RESULT_DIR/out",
    "pipe-in-a-list": "true && python3 -u main.py 2>&1 | cat; true",
    "nested-shell": "bash -c 'python3 main.py; true'",
    "exec": "exec python3 main.py",
    "background": "python3 main.py & wait $!",
    "trap": f"trap '{SAVES}; exit 0' USR2; echo up; while :; do sleep 0.05; done",
    "launcher": "python3 launcher.py",
    "late-handler": "python3 late.py",
    "reads-the-file": READS,
}
"""What learners run that answer a request for a checkpoint."""


def test_halt_signals_in_each_learner_the_process_that_handles_it(run: Rig) -> None:
    kinds = list(ANSWERING)
    model = {"main.py": CATCHES, "launcher.py": LAUNCHER, "child.py": CATCHES, "late.py": LATE}
    seats = tuple(Seat(0, kind) for kind in kinds)
    run.write("", model=model, learners=len(kinds), learners_per_node=len(kinds), seats=seats, commands=ANSWERING)
    head = run.start_until("up")
    for number, kind in enumerate(kinds, 1):
        run.wait(lambda: run.log(number).count("up") == 1 + (kind == "launcher"), f"{kind} to be up")  # noqa: B023
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert (Path(run.attempt.state) / "halt").exists()
    ended = {e["learner_id"]: (e["asked"], e["ended_by"], e["signalled"], e["exit_code"]) for e in run.ended()}
    assert ended == {number: ("halt", "", kind != "reads-the-file", 0) for number, kind in enumerate(kinds, 1)}
    said = run.checkpoint()
    assert (said["asked"], said["answered"], said["confirmed"]) == (True, True, True)
    saved = {path.name for path in Path(run.job.checkpoints).iterdir()}
    assert saved == {"x", *(f"saved-{n}" for n, kind in enumerate(kinds, 1) if kind not in ("trap", "reads-the-file"))}
    assert (run.asked(), run.processes()) == (["halt"], [])
    final = run.final()
    assert (final.outcome, final.stored, final.checkpoint.confirmed) == (Outcome.HALTED, True, True)


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
    (ended,) = run.ended()
    assert (ended["ended_by"], ended["signal"], run.asked()) == ("halt", signal.SIGKILL, ["halt"])
    assert run.final().outcome is Outcome.HALTED


@pytest.mark.parametrize("caught", ["SIGUSR2", "SIGTERM"])
def test_sigterm_requests_checkpoint_and_confirms_it(run: Rig, caught: str) -> None:
    head = up(run, "python3 main.py", limits=PATIENT, CAUGHT=caught, SLOW_S="0.5")
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, run.errors
    (ended,) = run.ended()
    assert (ended["asked"], ended["ended_by"], ended["exit_code"]) == ("term", "", 0)
    assert (Path(run.attempt.state) / "halt").exists()
    assert run.checkpoint()["confirmed"] is True
    assert (run.final().outcome, run.final().stored, run.asked()) == (Outcome.CANCELLED, True, ["term"])


@pytest.mark.parametrize(
    "by_signal", [True, pytest.param(False, marks=pytest.mark.full)], ids=["with TERM", "cell alone"]
)
def test_cancel_ends_learner_without_checkpoint_request(run: Rig, by_signal: bool) -> None:
    head = up(run, "python3 main.py")
    run.say("cancel")
    if by_signal:
        head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, run.errors
    assert (run.asked(), run.ended()[0]["ended_by"]) == ([], "term")
    assert not (Path(run.job.checkpoints) / "saved-1").exists()
    assert run.final().outcome is Outcome.CANCELLED


def test_time_limit_warning_halts_learner_that_saves_checkpoint(run: Rig) -> None:
    head = up(run, "python3 main.py")
    os.kill(run.node_pid(), signal.SIGURG)
    head.wait(timeout=240)
    assert (run.asked(), run.ended()[0]["asked"], run.checkpoint()["confirmed"]) == (["warned"], "warned", True)
    assert (run.final().outcome, run.final().interruption) == (Outcome.HALTED, "timeout")


def test_early_warning_is_timeout_when_time_limit_was_shortened(run: Rig) -> None:
    asking = Succession(str(run.base / "no-template"), limit_s=86400, limit_now=("echo", "1:00"))
    run.write("python3 main.py", model={"main.py": CATCHES}, succession=asking)
    head = run.start_until("up")
    os.kill(run.node_pid(), signal.SIGURG)
    head.wait(timeout=240)
    assert (run.final().outcome, run.final().interruption) == (Outcome.HALTED, "timeout")


@pytest.mark.full
def test_halt_after_warning_is_recorded_as_halt(run: Rig) -> None:
    limits = dataclasses.replace(SHORT, lead_s=600)
    head = up(run, "python3 main.py", IGNORES, limits)
    os.kill(run.node_pid(), signal.SIGURG)
    run.wait(lambda: bool(run.asked()), "the request")
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert (run.asked(), run.ended()[0]["ended_by"]) == (["warned", "halt"], "halt")
    assert (run.final().outcome, run.final().interruption) == (Outcome.HALTED, "halt")


def test_nonzero_exit_during_halt_leaves_grace_period_to_other_learner(run: Rig) -> None:
    command = "[ $LEARNER_ID = 2 ] && export STATUS=3 || export SLOW_S=2; python3 main.py"
    run.write(command, model={"main.py": CATCHES}, learners=2, learners_per_node=2)
    head = run.start_until("up")
    run.wait(lambda: "up" in run.log(2), "the second learner")
    halt(run)
    head.wait(timeout=240)
    assert {e["learner_id"]: (e["ended_by"], e["exit_code"]) for e in run.ended()} == {1: ("", 0), 2: ("", 3)}
    assert run.checkpoint()["confirmed"] is True


def test_earlier_cancel_request_prevents_learner_start(run: Rig) -> None:
    run.write("touch $RESULT_DIR/ran")
    run.say("cancel")
    assert run.run() == 143, run.errors
    assert run.final().outcome is Outcome.CANCELLED
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
    run.start_until("up")
    run.kill_controllers()
    (run.base / "go").touch()
    run.wait(lambda: not run.processes(), "the learner's end")
    assert run.run() == 3, run.errors
    assert (run.base / "n").read_text() == "ran\n"
    assert (run.final().outcome, run.final().exit_code, run.final().stored) == (Outcome.FAILED, 3, True)


def test_pending_upload_is_completed_once(run: Rig) -> None:
    run.write("echo out > $RESULT_DIR/x; echo up; sleep 600")
    run.start_until("up")
    assert run.run("upload") == 75
    run.kill_controllers()
    run.kill_all()
    assert run.run("upload") == 0, run.errors
    assert (run.store / "x").read_text() == "out\n"
    assert (run.store / "learner-1" / "training-log.txt").read_text() == "up\n"
    assert '"learners": [1]' in Path(run.attempt.uploaded).read_text()
    (run.store / "x").unlink()
    assert run.run("upload") == 0
    assert not (run.store / "x").exists()


def test_pending_upload_does_not_replace_results_of_newer_attempt(run: Rig) -> None:
    run.write("echo old > $RESULT_DIR/x; echo old > $RESULT_DIR/y; echo up; sleep 600")
    run.start_until("up")
    run.kill_controllers()
    run.kill_all()
    newer = Path(run.job.attempt(2).launch)
    newer.parent.mkdir()
    newer.touch()
    (run.store / "learner-1").mkdir(parents=True)
    (run.store / "x").write_text("new\n")
    (run.store / "learner-1" / "training-log.txt").write_text("second\n")
    assert run.run("upload") == 0, run.errors
    assert ((run.store / "x").read_text(), (run.store / "y").read_text()) == ("new\n", "old\n")
    assert (run.store / "learner-1" / "training-log.txt").read_text() == "second\n"
    assert (run.store / "learner-1" / "attempt-1" / "training-log.txt").read_text() == "up\n"


def test_pending_upload_stays_pending_and_exits_74_when_store_is_blocked(run: Rig) -> None:
    run.write("echo up; sleep 600")
    run.start_until("up")
    run.kill_controllers()
    run.kill_all()
    run.store.write_text("in the way")
    assert run.run("upload") == 74
    assert "cannot be stored" in run.errors
    assert not Path(run.attempt.uploaded).exists()


def test_halt_interrupts_data_copy_before_learner_start(run: Rig) -> None:
    """The copy is of many files, and looks up between them."""
    run.have_controllers_do(SLOW_COPY)
    many = run.base / "many"
    many.mkdir()
    for number in range(200):
        (many / str(number)).touch()
    run.write("touch $RESULT_DIR/ran", copies=(Copy(str(many), run.attempt.data),))
    head = run.start()
    run.wait(lambda: any(Path(run.attempt.data).glob("*")), "the copy's beginning")
    halt(run)
    assert head.wait(timeout=240) == 0, run.errors
    assert run.final().outcome is Outcome.HALTED
    assert len(list(Path(run.attempt.data).iterdir())) < 200
    assert not (Path(run.attempt.results) / "ran").exists()


def test_storing_stops_before_scheduler_kill_and_leaves_pending_upload(run: Rig) -> None:
    """A pipe in the store's place would hang; a slow one is played by a clock that is nearly used up."""
    limits = Limits(grace_s=1, kill_wait_s=0)
    run.write("echo out > $RESULT_DIR/x; echo up; sleep 600", limits=limits)
    head = run.start_until("up")
    head.send_signal(signal.SIGTERM)
    assert head.wait(timeout=240) == 143, run.errors
    assert (run.final().outcome, run.final().stored) == (Outcome.CANCELLED, False)
    assert "the rest is a pending upload" in run.errors
    assert run.run("upload") == 0
    assert (run.store / "x").read_text() == "out\n"


def test_halt_request_reaches_all_nodes_and_each_confirms_its_checkpoint(run: Rig) -> None:
    two_nodes(run, "python3 main.py", {"main.py": CATCHES})
    head = run.start_until("up")
    run.wait(lambda: "up" in run.log(2), "the second learner")
    run.say("halt")
    assert head.wait(timeout=240) == 0, run.errors
    assert [run.asked(f"node-{n}") for n in (0, 1)] == [["halt"], ["halt"]]
    said = [run.checkpoint(f"node-{n}") for n in (0, 1)]
    assert [(s["answered"], s["confirmed"]) for s in said] == [(True, True), (True, True)]
    assert run.final().checkpoint.confirmed


@pytest.mark.parametrize(
    ("number", "reason"), [pytest.param(signal.SIGURG, "warned", marks=pytest.mark.full), (signal.SIGTERM, "term")]
)
def test_warning_of_one_node_asks_learners_of_all_nodes(run: Rig, number: int, reason: str) -> None:
    two_nodes(run, "python3 main.py", {"main.py": CATCHES})
    head = run.start_until("up")
    run.wait(lambda: "up" in run.log(2), "the second learner")
    (started,) = [event for event in run.events("node-1") if event.kind is EventKind.STARTED]
    os.kill(int(str(started.fields["pid"])), number)
    head.wait(timeout=240)
    assert [run.asked(f"node-{n}") for n in (0, 1)] == [["warned"], [reason]]
    assert run.final().checkpoint.confirmed
