"""A job with `batch.idle` whose GPUs are idle: the node controller warns, asks for a checkpoint, and ends it."""

from __future__ import annotations

import dataclasses

import pytest

from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from tests.contract.controller_rig import LIMITS, Rig, plain_run, two_nodes  # noqa: F401

IDLE_GPU = """
import os, sys
if "node" in sys.orig_argv:
    from ffdl_batch.controller.metrics import monitor
    from ffdl_batch.domain.metrics.usage import GpuUse
    monitor.EVERY_S = 0.2
    used = {used} if os.environ.get("FFDL_NODE_RANK", "0") in {idle_nodes} else 1.0
    monitor.Sampler._read_gpus = lambda _self: (GpuUse("0", 1, used),)
"""
CATCHES = """
import os, signal, sys, time
def save(*_):
    if {saves}:
        open(os.environ["CHECKPOINT_DIR"] + "/saved-" + os.environ["LEARNER_ID"], "w").write("saved")
    sys.exit({status})
signal.signal(signal.SIGUSR2, save)
print("up", flush=True)
time.sleep(600)
"""
COMMAND = "echo kept > $RESULT_DIR/kept; sleep {seconds}"
LIMIT = IdleLimit(0.05, 2)
BRIEF = dataclasses.replace(LIMITS, grace_s=1, idle=LIMIT)


def have_gpus_used(run: Rig, used: float, idle_nodes: tuple[str, ...] = ("0", "1")) -> None:
    run.have_controllers_do(IDLE_GPU.format(used=used, idle_nodes=idle_nodes))


def test_controller_warns_and_ends_job_with_idle_gpus_and_stores_results(run: Rig) -> None:
    have_gpus_used(run, 0.01)
    run.write(COMMAND.format(seconds=600), limits=BRIEF)
    assert run.run() == 143
    final = run.final()
    assert (final.outcome, final.error_code, final.exit_signal) == (Outcome.FAILED, "C206", 15)
    assert "the job was ended: each GPU on " in final.message and "less than 5 % of 2 s (batch.idle)" in final.message
    kinds = [event.kind for event in run.events()]
    assert kinds.count(EventKind.IDLE) == 1
    order = [kinds.index(kind) for kind in (EventKind.IDLE, EventKind.ASKED, EventKind.LEARNER_ENDED, EventKind.STORED)]
    assert order == sorted(order)
    assert list(run.store.rglob("kept"))


@pytest.mark.parametrize(("saves", "status"), [(True, 0), (True, 3), (False, 3), (False, 0)])
def test_idle_job_is_asked_for_checkpoint_and_fails_however_it_answers(run: Rig, saves: bool, status: int) -> None:
    have_gpus_used(run, 0.0)
    model = {"main.py": CATCHES.format(saves=saves, status=status)}
    run.write("python3 main.py", model=model, limits=dataclasses.replace(LIMITS, idle=LIMIT))
    assert run.run() == 143, run.errors
    final = run.final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "C206")
    assert (final.checkpoint.asked, final.checkpoint.confirmed) == (True, saves)
    assert run.asked() == ["idle"]


def test_idle_node_asks_learners_of_all_nodes(run: Rig) -> None:
    have_gpus_used(run, 0.0, idle_nodes=("1",))
    limits = dataclasses.replace(LIMITS, idle=LIMIT)
    two_nodes(run, "python3 main.py", {"main.py": CATCHES.format(saves=True, status=0)}, limits=limits)
    assert run.run() == 143, run.errors
    assert [run.asked(f"node-{n}") for n in (0, 1)] == [["idle"], ["idle"]]
    final = run.final()
    assert (final.error_code, final.checkpoint.confirmed) == ("C206", True)
    assert "less than 5 % of 2 s (batch.idle)" in final.message


def test_halt_while_idle_job_ends_is_recorded_as_halt(run: Rig) -> None:
    have_gpus_used(run, 0.0)
    run.write("sleep 600", limits=dataclasses.replace(LIMITS, grace_s=60, idle=LIMIT))
    head = run.start()
    run.wait(lambda: run.asked() == ["idle"], "the request")
    run.say("halt")
    run.wait(lambda: run.asked() == ["idle", "halt"], "the halt")
    assert run.is_running()
    head.terminate()
    assert head.wait(timeout=240) == 0, run.errors
    assert run.final().outcome is Outcome.HALTED


def test_controller_does_not_end_job_with_busy_gpus(run: Rig) -> None:
    have_gpus_used(run, 0.05)
    run.write(COMMAND.format(seconds=5), limits=BRIEF)
    assert run.run() == 0
    assert run.final().outcome is Outcome.COMPLETED
    assert EventKind.IDLE not in [event.kind for event in run.events()]
