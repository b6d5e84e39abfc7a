"""A job with `batch.idle` whose GPUs are idle: the node controller warns, and ends it."""

from __future__ import annotations

import dataclasses

from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from tests.contract.controller_rig import LIMITS, Rig, plain_run  # noqa: F401

IDLE_GPU = """
import sys
if "node" in sys.orig_argv:
    from ffdl_batch.controller.metrics import monitor
    from ffdl_batch.domain.metrics.usage import GpuUse
    monitor.EVERY_S = 0.2
    monitor.Sampler._read_gpus = lambda _self: (GpuUse("0", 1, {used}),)
"""
COMMAND = "echo kept > $RESULT_DIR/kept; sleep {seconds}"
LIMIT = IdleLimit(0.05, 2)


def test_controller_warns_and_ends_job_with_idle_gpus_and_stores_results(run: Rig) -> None:
    run.have_controllers_do(IDLE_GPU.format(used=0.01))
    run.write(COMMAND.format(seconds=600), limits=dataclasses.replace(LIMITS, idle=LIMIT))
    assert run.run() != 0
    final = run.final()
    assert (final.outcome, final.error_code, final.exit_signal) == (Outcome.FAILED, "C206", 9)
    assert "the job was ended: each GPU on " in final.message and "less than 5 % of 2 s (batch.idle)" in final.message
    kinds = [event.kind for event in run.events()]
    assert kinds.count(EventKind.IDLE) == 1
    assert kinds.index(EventKind.IDLE) < kinds.index(EventKind.LEARNER_ENDED) < kinds.index(EventKind.STORED)
    assert list(run.store.rglob("kept"))


def test_controller_does_not_end_job_with_busy_gpus(run: Rig) -> None:
    run.have_controllers_do(IDLE_GPU.format(used=0.05))
    run.write(COMMAND.format(seconds=5), limits=dataclasses.replace(LIMITS, idle=LIMIT))
    assert run.run() == 0
    assert run.final().outcome is Outcome.COMPLETED
    assert EventKind.IDLE not in [event.kind for event in run.events()]
