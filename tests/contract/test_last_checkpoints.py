"""Checkpoints of the last moment: completed on another node, or together with the training's very last step."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.job.spec import BatchOptions, Checkpoint
from ffdl_batch.domain.outcome.controller_events import EventKind, FinalRecord, GoesOn, Outcome
from ffdl_batch.domain.outcome.observation import NativeId
from tests.contract.controller_rig import Rig, rig, two_nodes
from tests.contract.scheduler_harness import LocalHarness

TWO_SHARES = """
import os, pathlib, signal, sys, time
first = os.environ["NODE_RANK"] == "0"
asked = []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
print("up", flush=True)
while not asked:
    time.sleep(0.02)
if not first:
    while not pathlib.Path(os.environ["RESULT_DIR"], "go").exists():
        time.sleep(0.02)
    pathlib.Path(os.environ["CHECKPOINT_DIR"], "whole").write_text("saved")
"""


LAST_STEP = """
import os, pathlib, signal, sys, time
checkpoint = pathlib.Path(os.environ["CHECKPOINT_DIR"], "step")
if checkpoint.exists() and checkpoint.read_text() == "last":
    print("nothing left to do", flush=True)
    sys.exit(0)
asked = []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
print("step", flush=True)
while not asked:
    time.sleep(0.02)
pathlib.Path(os.environ["RESULT_DIR"], "weights").write_text("trained")
checkpoint.write_text("last")
"""


@pytest.fixture(name="world")
def opened(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path, {})
    try:
        yield harness
    finally:
        harness.close()


def test_continuation_completes_job_when_last_step_was_already_saved(world: LocalHarness) -> None:
    """The attempt after it does nothing and exits with 0; what the training left is the job's result."""
    program = world.base / "train.py"
    program.write_text(LAST_STEP)
    limits = BatchOptions(time_s=12, checkpoint=Checkpoint(grace_s=12))
    plan = world.prepare_chain(f"python3 '{program}'", batch=limits, lead_s=6)
    world.scheduler.submit(plan)
    job = JobDir(plan.launch.job_dir)
    world.wait(Path(job.attempt(2).final).exists, world.diagnosis)
    world.await_end(NativeId(f"{plan.launch.job_id}-2"))
    first, second = (_final(job.attempt(number)) for number in (1, 2))
    assert (first.outcome, first.interruption, first.goes_on) == (Outcome.HALTED, "timeout", GoesOn.SUCCESSOR)
    assert (second.outcome, second.stored, second.goes_on) == (Outcome.COMPLETED, True, GoesOn.NO)
    assert Path(job.attempt(2).training_log(1)).read_text() == "nothing left to do\n"
    assert Path(job.attempt(2).results, "weights").read_text() == "trained"
    assert not Path(job.attempt(3).path).exists()


def _final(attempt: AttemptDir) -> FinalRecord:
    return from_plain(FinalRecord, json.loads(Path(attempt.final).read_text()))


@pytest.fixture(name="run")
def made(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as one:
        yield one


def ask(run: Rig) -> None:
    """A request of the owner, and the signal to both node controllers."""
    run.say("halt")
    for source in ("node-0", "node-1"):
        started = [event for event in run.events(source) if event.kind is EventKind.STARTED]
        os.kill(int(started[-1].fields["pid"] or 0), signal.SIGURG)


def test_head_controller_confirms_checkpoint_completed_later_by_another_node(run: Rig) -> None:
    """The first node's learner ends first, its controller has looked and even ended; then the last share is written."""
    two_nodes(run, "python3 main.py", {"main.py": TWO_SHARES})
    head = run.start()
    run.wait(lambda: all(_is_up(run, learner) for learner in (1, 2)), "both learners")
    ask(run)
    run.wait(lambda: any(e.kind is EventKind.ENDED for e in run.events("node-0")), "the end of the first node")
    assert (run.checkpoint("node-0")["confirmed"], list(Path(run.job.checkpoints).iterdir())) == (False, [])
    Path(run.attempt.results, "go").touch()
    assert head.wait(timeout=180) == 0, run.errors
    final = run.final()
    assert (final.outcome, final.checkpoint.confirmed, final.checkpoint.newest) == (Outcome.HALTED, True, "whole")
    assert final.checkpoint.saved_at == pytest.approx(Path(run.job.checkpoints, "whole").stat().st_mtime)
    assert "checkpoint confirmed" in final.message


def _is_up(run: Rig, learner: int) -> bool:
    path = Path(run.attempt.training_log(learner))
    return path.exists() and "up" in path.read_text()
