"""Nodes that are released while the rest of the job continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ffdl_batch.attempt.conclusion import conclude
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.host.processes import read_living
from tests.contract.controller_rig import Rig, patient_run, two_nodes  # noqa: F401

UNTIL = "until [ -e '{0}/{1}' ]; do sleep 0.05; done; "


def kinds(run: Rig, source: str) -> list[EventKind]:
    return [event.kind for event in run.events(source)]


def start(run: Rig, second: str = "sleep 600") -> None:
    """Two nodes with a learner each: the first one waits for ``enough``, the other one does what `second` says."""
    two_nodes(run, f'echo up; [ "$LEARNER_ID" = 1 ] || {{ {second}; }}; {UNTIL.format(run.base, "enough")}')
    run.start()
    run.wait(lambda: run.log(1) == run.log(2) == "up\n", "both learners")
    run.wait(lambda: EventKind.LEARNER_STARTED in kinds(run, "node-1"), "the event of the start")


def check_that_the_rest_completes(run: Rig) -> None:
    run.wait(lambda: EventKind.ENDED in kinds(run, "node-1"), "the end of the second node's controller")
    (left,) = run.ended("node-1")
    assert left["ended_by"] == "released"
    assert not Path(run.attempt.state, "halt").exists() and run.asked() == run.asked("node-1") == []
    assert [event.fields["learner_id"] for event in run.events("node-1") if event.kind is EventKind.STORED] == [2]
    assert EventKind.LEARNER_ENDED not in kinds(run, "node-0")
    (run.base / "enough").touch()
    assert run.await_end() == 0, run.errors
    final = run.final()
    assert (final.outcome, final.stored) == (Outcome.COMPLETED, True)
    assert [(run.store / f"learner-{number}" / "training-log.txt").read_text() for number in (1, 2)] == ["up\n"] * 2


def test_node_that_is_given_back_ends_and_the_rest_completes(run: Rig) -> None:
    start(run)
    run.say(learners=1)
    check_that_the_rest_completes(run)


def test_learner_that_fails_because_others_have_left_does_not_fail_the_job(run: Rig) -> None:
    """Its controller has not yet read that its node is to be released."""
    start(run, UNTIL.format(run.base, "others-left") + "exit 3")
    (controller,) = [e.fields["pid"] for e in run.events("node-1") if e.kind is EventKind.STARTED]
    (learner,) = [e.fields["pid"] for e in run.events("node-1") if e.kind is EventKind.LEARNER_STARTED]
    os.kill(int(controller or 0), signal.SIGSTOP)
    run.say(learners=1)
    (run.base / "others-left").touch()
    run.wait(lambda: read_living(int(learner or 0)) is None, "the failure")
    os.kill(int(controller or 0), signal.SIGCONT)
    check_that_the_rest_completes(run)
    assert run.ended("node-1")[0]["exit_code"] == 3


def test_halt_after_a_node_was_given_back_asks_only_the_rest(run: Rig) -> None:
    two_nodes(run, f"echo up; trap 'echo saved >\"$CHECKPOINT_DIR/c\"; exit 0' USR2; {UNTIL.format(run.base, 'no')}")
    run.start()
    run.wait(lambda: run.log(1) == run.log(2) == "up\n", "both learners")
    run.say(learners=1)
    run.wait(lambda: EventKind.ENDED in kinds(run, "node-1"), "the end of the second node's controller")
    run.say("halt", learners=1)
    assert run.await_end() == 0, run.errors
    final = run.final()
    assert (final.outcome, final.stored, final.checkpoint.confirmed) == (Outcome.HALTED, True, True)
    launch = decode(Path(run.attempt.launch).read_text())
    events = [*run.events("node-0"), *run.events("node-1")]
    assert conclude(launch, events, terminated=False).checkpoint == final.checkpoint
