"""Learners that fail and are started again beside the others, without a new attempt."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ffdl_batch.controller.zipapp import build_zipapp
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER, Seat
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from tests.contract.controller_rig import LIMITS, Rig, oldest_python, patient_run  # noqa: F401
from tests.contract.test_controller_gangs import CHECKPOINTS, NAMES, change, of_kind

LAST_PAUSE = """
if "node" in sys.orig_argv:
    from ffdl_batch.controller.learner import restarts
    pause_s = restarts.pause_s
    restarts.pause_s = lambda count: pause_s(count) if count < 3 else 600.0
"""
"""After its third end a learner is not started again for long."""
FAILS_TWICE = (
    "echo began $RESUME $FFDL_LEARNER_RESTARTS >> $RESULT_DIR/$LEARNER_ID; echo said; if [ $LEARNER_ID = 1 ]; then "
    "while [ ! -e $RESULT_DIR/done ]; do sleep 0.1; done; exit 0; fi; "
    "[ $(wc -l < $RESULT_DIR/2) = 3 ] || exit 4; touch $RESULT_DIR/done"
)
AGAIN: dict[str, Any] = {"learners": 2, "learners_per_node": 2, "restart": RESTART_LEARNER}


def test_failed_learner_restarts_while_other_learner_continues(run: Rig) -> None:
    run.write(FAILS_TWICE, **AGAIN, restarts_max=2, user_env={"FFDL_LEARNER_RESTARTS": "9"})
    began_at = time.monotonic()
    assert run.run() == 0, run.errors
    assert time.monotonic() - began_at >= 3.0  # a second, then two
    assert [run.log(number) for number in (1, 2)] == ["said\n", "said\n" * 3]
    assert (run.store / "1").read_text() == "began 0 0\n"
    assert (run.store / "2").read_text() == "began 0 0\nbegan 1 1\nbegan 1 2\n"
    ends = [(f["learner_id"], f["exit_code"], f.get("restarted")) for f in run.ended()]
    assert ends[:2] == [(2, 4, True), (2, 4, True)]
    assert sorted(ends[2:]) == [(1, 0, None), (2, 0, None)]
    started = [event.fields for event in of_kind(run, EventKind.LEARNER_STARTED)]
    assert [fields["learner_id"] for fields in started] == [1, 2, 2, 2]
    assert len({fields["pid"] for fields in started}) == 4
    assert (run.final().outcome, run.final().stored) == (Outcome.COMPLETED, True)
    # What is new in the event files changes no format: an older daemon passes over it.
    lines = Path(run.attempt.event_file("node-0")).read_text().splitlines()
    assert {json.loads(line)["format"] for line in lines} == {1}


def test_controller_zipapp_is_reproducible_and_restarts_learner_on_oldest_python(run: Rig) -> None:
    """By a process of its own, which needs the file and the interpreter."""
    target, again = run.base / "ffdl-controller.pyz", run.base / "again.pyz"
    build_zipapp(target)
    build_zipapp(again)
    assert target.read_bytes() == again.read_bytes()
    run.env["PYTHONPATH"] = "/nonexistent"
    run.python, run.controller = oldest_python(), ("-I", "-S", str(target))
    run.write("", **AGAIN, restarts_max=2, names=NAMES,
              seats=(Seat(0, "ps", 0, service=True), Seat(0, "worker", 0)), commands={"ps": "sleep 600"},
              command="echo $LEARNER_ID >> $RESULT_DIR/ran; [ $(wc -l < $RESULT_DIR/ran) = 3 ]")  # fmt: skip
    assert run.run() == 0, run.errors
    assert (run.store / "ran").read_text() == "2\n" * 3
    ends = [(f["learner_id"], f["ended_by"]) for f in run.ended()]
    assert ends == [(2, ""), (2, ""), (2, ""), (1, "service")]
    assert run.final().outcome is Outcome.COMPLETED


def test_restarted_learner_confirms_checkpoint_on_halt(run: Rig) -> None:
    """Its signals are free, its shell's word about its process is the new one's, and it leads a session of its own."""
    program = "if [ ! -e $RESULT_DIR/once ]; then touch $RESULT_DIR/once; exit 1; fi; exec python3 main.py"
    run.write(program, model={"main.py": CHECKPOINTS}, restart=RESTART_LEARNER, restarts_max=1)
    head = run.start()
    run.wait(lambda: "up" in run.log(1), "the second start")
    run.say("halt")
    assert head.wait(timeout=240) == 0, run.errors
    final = run.final()
    assert (final.outcome, final.checkpoint.confirmed) == (Outcome.HALTED, True)
    assert run.processes() == []


def test_learner_restart_ends_detached_processes_of_failed_learner_only(run: Rig) -> None:
    """It may hold a port, or memory of a GPU. What other learners have left is theirs."""
    run.write(
        "cd $RESULT_DIR; if [ $LEARNER_ID = 1 ]; then setsid sleep 600 & echo $! > other; "
        "while [ ! -e found ]; do sleep 0.1; done; kill -0 $(cat other) && echo mine lives; exit 0; fi; "
        "if [ ! -e own ]; then setsid sleep 600 & echo $! > own; sleep 0.5; exit 1; fi; "
        "kill -0 $(cat own) 2> $LOG_DIR/said && echo it lives; touch found",
        **AGAIN, restarts_max=1,
    )  # fmt: skip
    assert run.run() == 0, run.errors
    assert [run.log(number) for number in (1, 2)] == ["mine lives\n", ""]
    assert run.processes() == []


def test_attempt_fails_when_learner_restarts_are_used_up(run: Rig) -> None:
    run.write("if [ $LEARNER_ID = 2 ]; then exit 7; fi; sleep 600", **AGAIN, restarts_max=1)
    assert run.run() == 7, run.errors
    ends = [(f["learner_id"], f["ended_by"], f.get("restarted")) for f in run.ended()]
    assert ends == [(2, "", True), (2, "", None), (1, "stop", None)]
    final = run.final()
    assert (final.error_code, final.exit_code, final.stored) == ("C201", 7, True)
    assert "learner 2" in final.message


def test_learner_that_never_ran_its_command_is_not_restarted(run: Rig) -> None:
    launch = run.write("true", restart=RESTART_LEARNER, restarts_max=5)
    learner = dataclasses.replace(launch.learner, argv=("bash", "-c", "echo could not open image; exit 255"))
    change(run, learner=learner)
    assert run.run() == 255
    assert (len(run.ended()), run.final().error_code) == (1, "S105")


def test_cancel_request_prevents_pending_learner_restart(run: Rig) -> None:
    run.have_controllers_do(LAST_PAUSE)
    run.write("if [ $LEARNER_ID = 1 ]; then sleep 600; fi; echo up; exit 3",
              **AGAIN, restarts_max=9, limits=dataclasses.replace(LIMITS, grace_s=1))  # fmt: skip
    head = run.start()
    run.wait(lambda: len(run.ended()) == 3, "the third end, after which there is a long pause")
    run.say("cancel")
    head.wait(timeout=240)
    assert run.final().outcome is Outcome.CANCELLED, run.errors
    last = run.ended()[3]
    assert (last["learner_id"], last["exit_code"], last["waited"], last.get("restarted")) == (2, 3, True, None)
    assert last["ended_by"] == "term"
    assert run.log(2) == "up\n" * 3


def test_next_run_keeps_restart_count_after_controller_kill_during_pause(run: Rig) -> None:
    run.have_controllers_do(LAST_PAUSE)
    run.write(f"echo $RESUME $FFDL_LEARNER_RESTARTS >> $RESULT_DIR/began; [ -e '{run.base}/go' ] || exit 3",
              restart=RESTART_LEARNER, restarts_max=3)  # fmt: skip
    head = run.start()
    run.wait(lambda: len(run.ended()) == 3, "the third end, after which there is a long pause")
    os.kill(run.node_pid(), signal.SIGKILL)
    assert head.wait(timeout=240) == 74, run.errors
    assert run.final().error_code == "S106"
    (run.base / "go").touch()
    assert run.run() == 0, run.errors
    assert (run.store / "began").read_text() == "0 0\n1 1\n1 2\n1 3\n"
    assert run.final().outcome is Outcome.COMPLETED
