"""Two daemons share the work by leases. One of them is stopped or killed in the middle of a step: the other takes over
within the leases' time, every job is executed exactly once, and the one that wakes up drops its result."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from ffdl_batch.attempt.layout import Root
from ffdl_batch.controller.head.head_controller import EXIT_CLAIMED_BY_ANOTHER
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.store.schema import ATTEMPTS
from tests.crash.world import Findings
from tests.faults.two_daemons import Pair, SharedWorld, running_pair
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, migrated_template: str) -> Iterator[Pair]:
    with postgres.database(migrated_template) as name:
        world = SharedWorld(tmp_path_factory.mktemp("two"), postgres.url(name))
        with running_pair(world) as pair:
            yield pair


@pytest.fixture(autouse=True)
def both_live(pair: Pair) -> Iterator[None]:
    """Also after a test that failed in the middle."""
    pair.start()
    yield
    pair.world.plan.unlink(missing_ok=True)
    for daemon in (pair.one, pair.two):
        daemon.send(signal.SIGCONT)


def examine(pair: Pair) -> None:
    """Nothing lost, nothing executed twice, every history whole: of all jobs so far."""
    jobs = [str(job.id) for job in pair.world.jobs()]
    assert pair.world.examine(jobs) == Findings(), pair.world.diagnosis()


def test_two_daemons_both_deploy_and_list_all_jobs(pair: Pair) -> None:
    for _ in range(20):
        jobs = [daemon.surely_submit() for daemon in (pair.one, pair.two)]
        if len(pair.world.submitters()) == 2:
            break
    assert pair.world.submitters() == {str(pair.one.state), str(pair.two.state)}
    pair.finish(*jobs)
    for daemon in (pair.one, pair.two):
        with daemon.client() as client:
            assert [job.id for job in client.list()] == [job.id for job in reversed(pair.world.jobs())]
    pair.finish(*(job.id for job in pair.world.jobs()))
    examine(pair)


@pytest.mark.parametrize(
    ("step", "how"),
    [("claimed", "STOP"), ("deployer:committed", "STOP"), ("written", "STOP"), ("submitted", "STOP"),
     ("submitted", "KILL"), ("judged", "STOP"), ("watcher:transaction", "STOP")],
)  # fmt: skip
def test_second_daemon_completes_job_when_first_fails_at_any_step(pair: Pair, step: str, how: str) -> None:
    pair.world.stop_at(step, how)
    job = pair.one.surely_submit()
    fallen, _ = pair.by_pid(pair.world.stopped_pid())
    pair.finish(job)
    assert pair.world.job(job).state is JobState.COMPLETED
    examine(pair)
    if how == "STOP":
        wake(pair, fallen.pid)
        examine(pair)


def wake(pair: Pair, pid: int) -> None:
    """Let a daemon that was stopped go on, and do whatever it still has in mind."""
    woken, _ = pair.by_pid(pid)
    woken.send(signal.SIGCONT)
    pair.world.wait(woken.answers, f"daemon {woken.name} to answer again")
    time.sleep(1.0)


STOP_THE_DAEMON = (
    "if mkdir {base}/sbatch-once 2>/dev/null; then sleep 0.3; while [ -e {base}/unanswered ]; do sleep 0.05; done; "
    "echo $PPID > {base}/plan.whose; mv {base}/plan.whose {base}/plan.done; kill -STOP $PPID; "
    'sleep 0.5; fi; exec "$FAKE" "$@"'
)
"""The next sbatch stops the daemon that waits for it, and then goes on as if nothing had happened."""


def test_second_daemon_adopts_submission_when_first_is_stopped_during_sbatch(pair: Pair) -> None:
    """That sbatch goes on; its reply is in the attempt's directory for whoever comes next."""
    world = pair.world
    world.plan.with_name("plan.done").unlink(missing_ok=True)
    world.hold()
    world.wrap("sbatch", STOP_THE_DAEMON.format(base=world.base))
    job = pair.one.surely_submit()
    fallen, _ = pair.by_pid(world.stopped_pid())
    try:
        world.wait(lambda: world.job(job).native_id != "", "the other daemon to find what was submitted")
    finally:
        world.release()
    pair.finish(job)
    (world.base / "sbatch-once").rmdir()
    (world.base / "bin" / "sbatch").unlink()
    wake(pair, fallen.pid)
    examine(pair)
    assert len(of(world, job)) == 1, "it was submitted a second time"


# ------------------------------------------------------------------ awake again in the middle of adapter.submit


def of(world: SharedWorld, job: str) -> list[dict[str, str]]:
    """What Slurm has accepted of a job, in order."""
    return [record for record in world.accepted() if record["name"].startswith(job)]


def submit_twice(pair: Pair) -> tuple[str, str, str]:
    """A daemon is stopped as it is about to call sbatch; the other submits; the first one wakes up and submits, too.

    Returns the job, and the ids that Slurm gave to the other's and to the late submission.
    """
    world = pair.world
    world.stop_at("submitting")
    job = pair.one.surely_submit()
    fallen, _ = pair.by_pid(world.stopped_pid())
    world.wait(lambda: len(of(world, job)) == 1, "the other daemon's submission")
    world.wait(lambda: world.job(job).native_id != "", "its id in the row")
    wake(pair, fallen.pid)
    world.wait(lambda: len(of(world, job)) == 2, "the late submission")
    first, late = (record["id"] for record in of(world, job))
    return job, first, late


def test_two_daemons_cancel_late_duplicate_submission(pair: Pair) -> None:
    world = pair.world
    world.hold()
    job, taken, late = submit_twice(pair)
    world.wait(lambda: {r["id"]: r["state"] for r in of(world, job)} == {taken: "PENDING", late: "CANCELLED"}, "order")
    world.release()
    pair.finish(job)
    assert world.job(job).native_id == taken
    examine(pair)


def test_two_daemons_adopt_late_submission_that_claims_first(pair: Pair) -> None:
    """It could not be withdrawn, and claims the attempt before the one that is in the row: that one is abandoned."""
    world = pair.world
    world.hold()
    world.spoil("scancel", "down")
    job, taken, late = submit_twice(pair)
    world.suspend_runner(taken)
    world.release()
    pair.finish(job)
    assert world.job(job).native_id == late
    world.wait(lambda: [record["state"] for record in of(world, job)] == ["CANCELLED", "COMPLETED"], "the other's end")
    examine(pair)


def test_claim_prevents_execution_of_late_submission_after_job_completed(pair: Pair) -> None:
    world = pair.world
    world.stop_at("submitting")
    job = pair.one.surely_submit()
    fallen, _ = pair.by_pid(world.stopped_pid())
    pair.finish(job)
    world.spoil("scancel", "down")
    wake(pair, fallen.pid)
    world.wait(lambda: len(of(world, job)) == 2, "the late submission")
    world.wait(lambda: of(world, job)[1]["exit"] == f"{EXIT_CLAIMED_BY_ANOTHER}:0", "its end")
    examine(pair)


# -------------------------------------------------------------------------------------------- pending uploads


def test_second_daemon_completes_pending_upload_when_first_is_stopped(pair: Pair) -> None:
    """Its upload ends with it; the other daemon begins one of its own, and that one counts."""
    world = pair.world
    job = pair.one.surely_submit()
    pair.finish(job)
    uploaders = world.base / "uploaders"
    uploaders.unlink(missing_ok=True)
    world.stop_at("uploading")
    owe(world, job)
    fallen, other = pair.by_pid(world.stopped_pid())
    store = world.store()
    world.wait(lambda: not store.pending_uploads(), "the upload")
    store.close()
    assert uploaders.read_text().split() == [str(fallen.state), str(other.state)]
    assert json.loads(Path(Root(str(world.state)).job(job).attempt(1).uploaded).read_text())["learners"] == []
    wake(pair, fallen.pid)
    examine(pair)


def owe(world: SharedWorld, job: str) -> None:
    """As if the attempt had been killed before everything was stored."""
    store = world.store()
    with store.engine.begin() as connection:
        connection.execute(update(ATTEMPTS).where(ATTEMPTS.c.job_id == job).values(upload_pending=1))
    store.close()
